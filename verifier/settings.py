"""Settings from YAML files and flags, through TRL's parser, with its errors as one line each.

    claimwise train --config recipe.yaml --learning_rate 1e-6

YAML values bypass TRL's type checks, `--config=FILE` is refused by it, and a missing file gives a bare traceback; this is
the one place that mends it.
"""

from __future__ import annotations

import dataclasses
import io
import typing
from collections.abc import Sequence
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any, TypeVar

from .errors import InputError

Settings = TypeVar("Settings")


def parse_settings(cls: type[Settings], argv: Sequence[str], command: str) -> Settings:
    """An instance of the dataclass `cls`. Raises InputError naming the file and key that cannot be used."""
    import yaml
    from trl import TrlParser

    argv = [part for flag in argv for part in _split_config(flag)]
    if "--config" in argv:
        index = argv.index("--config")
        if index + 1 == len(argv):
            raise InputError("--config needs the path of a YAML file")
        path = Path(argv[index + 1])
        if not path.is_file():
            raise InputError(f"there is no configuration file {path}; recipes are under scripts/recipes")
        try:
            values = yaml.safe_load(path.read_text())
        except yaml.YAMLError as error:
            raise InputError(f"{path} is not YAML: {error}") from error
        if not isinstance(values, dict):
            raise InputError(f"{path} must hold a mapping of settings, one `key: value` a line")
        _check(cls, values, path)
    errors = io.StringIO()
    try:
        with redirect_stderr(errors):
            return TrlParser([cls], prog=f"claimwise {command}").parse_args_and_config(list(argv))[0]  # pyright: ignore
    except SystemExit as stop:
        if not stop.code:
            raise
        lines = errors.getvalue().strip().splitlines()
        raise InputError(lines[-1].partition("error: ")[2] or lines[-1] if lines else "bad flags") from stop
    except InputError:
        raise
    except (ValueError, TypeError) as error:
        raise InputError(str(error)) from error


def _split_config(flag: str) -> list[str]:
    name, equals, value = flag.partition("=")
    return [name, value] if equals and name == "--config" else [flag]


def _check(cls: type, values: dict[str, Any], path: Path) -> None:
    """Every key must be a field, and every value of its type, as a flag's would have to be."""
    hints = typing.get_type_hints(cls)
    names = {field.name for field in dataclasses.fields(cls) if field.init}
    for key, value in values.items():
        if key == "env":
            continue
        if key not in names:
            raise InputError(f"{path}: there is no setting {key!r}; {_suggestion(key, names)}")
        if not _fits(value, hints[key]):
            raise InputError(f"{path}: {key} is {value!r} ({type(value).__name__}); it must be {_describe(hints[key])}")


def _suggestion(key: str, names: set[str]) -> str:
    import difflib

    close = difflib.get_close_matches(key, names, 1)
    return f"did you mean {close[0]!r}?" if close else "remove it"


def _fits(value: Any, hint: Any) -> bool:
    """Whether a YAML value may stand for the type; what is not a plain type is left to the dataclass itself."""
    options = typing.get_args(hint) if typing.get_origin(hint) is not None else (hint,)
    origin = typing.get_origin(hint)
    if origin in (list, dict, tuple):
        return isinstance(value, str | origin) or (value is None)
    if origin is typing.Literal:
        return value in options
    plain = {bool: (bool,), int: (int,), float: (int, float, str), str: (str,)}
    if any(option not in plain and option is not type(None) for option in options):
        return True
    if isinstance(value, bool):
        return bool in options
    if isinstance(value, str) and float in options and str not in options:
        return _is_number(value)  # YAML reads 1e-6 as text
    return any(isinstance(value, plain.get(option, (type(None),))) for option in options)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _describe(hint: Any) -> str:
    names = [getattr(option, "__name__", str(option)) for option in typing.get_args(hint) or (hint,)]
    return " or ".join("null" if name == "NoneType" else name for name in names)
