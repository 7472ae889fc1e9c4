"""Settings from YAML files and flags, through TRL's parser, with its errors as one line each.

    claimwise train --config recipe.yaml --learning_rate 1e-6

YAML values bypass TRL's type checks, `--config=FILE` is refused by it, and a missing file gives a bare traceback; this
is the one place that mends it.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import types
import typing
from collections.abc import Iterable, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from .errors import InputError

Settings = TypeVar("Settings")


def parse_settings(cls: type[Settings], argv: Sequence[str], command: str) -> Settings:
    """An instance of the dataclass `cls`. Raises InputError naming the file and key, or the flag, at fault."""
    from trl import TrlParser

    argv, path = _take_config([part for flag in argv for part in _plain(flag)])
    parser = TrlParser([cls], prog=f"claimwise {command}", allow_abbrev=False)  # pyright: ignore[reportArgumentType]
    parser.error = _refuse
    names = {field.name for field in dataclasses.fields(cls) if field.init}  # pyright: ignore[reportArgumentType]
    if path is not None:
        values = _read(path)
        environment = values.pop("env", {})  # as TRL has it: variables to set
        _check(cls, values, names, path)
        if not isinstance(environment, dict):
            raise InputError(f"{path}: env is {environment!r}; it must be a mapping of variables to set")
        os.environ.update({str(key): str(value) for key, value in environment.items()})
        parser.set_defaults_with_config(**values)
    if unknown := parser.parse_known_args(argv)[1]:
        flag = unknown[0].partition("=")[0]
        raise InputError(f"there is no flag {flag}; {_suggestion(flag.strip('-').replace('-', '_'), names, '--')}")
    try:
        return parser.parse_args_into_dataclasses(argv, look_for_args_file=False)[0]  # pyright: ignore
    except InputError:
        raise
    except (ValueError, TypeError, ImportError) as error:
        raise InputError(str(error)) from error


def _refuse(message: str) -> NoReturn:
    raise InputError(message)


def _plain(flag: str) -> list[str]:
    """The flag as TRL's parser knows it: `--config FILE` without "=", and `--help-all` as its `--help`."""
    name, equals, value = flag.partition("=")
    return [name, value] if equals and name == "--config" else ["--help" if flag == "--help-all" else flag]


def _take_config(argv: list[str]) -> tuple[list[str], Path | None]:
    """The other flags, and the file that --config names."""
    if "--config" not in argv:
        return argv, None
    index = argv.index("--config")
    rest = argv[:index] + argv[index + 2 :]
    if index + 1 == len(argv) or not argv[index + 1]:
        raise InputError("--config needs the path of a YAML file")
    if "--config" in rest:
        raise InputError("--config is given twice; give one file")
    return rest, Path(argv[index + 1])


def _read(path: Path) -> dict[str, Any]:
    import yaml

    if not path.is_file():
        raise InputError(f"there is no configuration file {path}; recipes are under scripts/recipes")
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), _strict(yaml.SafeLoader))
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: no UTF-8, or a date that does not exist
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise InputError(f"{path}{line} is not YAML: {getattr(error, 'problem', None) or error}") from error
    if not isinstance(values, dict):
        raise InputError(f"{path} must hold a mapping of settings, one `key: value` a line")
    return values


def _strict(loader: type) -> type:
    """A YAML loader that refuses a key that stands twice, where the last one would win."""
    import yaml

    class Strict(loader):  # type: ignore[misc]
        def construct_mapping(self, node, deep=False):
            seen: set[str] = set()
            for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
                if key.value in seen:
                    problem = f"{key.value} stands there twice; keep one"
                    raise yaml.constructor.ConstructorError(problem=problem, problem_mark=key.start_mark)
                seen.add(key.value)
            return super().construct_mapping(node, deep)

    return Strict


def _check(cls: type, values: dict[str, Any], names: set[str], path: Path) -> None:
    """Every key must be a field, and every value of its type, as a flag's would have to be."""
    hints = typing.get_type_hints(cls)
    for key, value in values.items():
        if key not in names:
            raise InputError(f"{path}: there is no setting {key!r}; {_suggestion(str(key), names)}")
        if not _fits(value, hints[key]):
            switch = "; YAML reads yes, no, on and off as true and false, quote them" if isinstance(value, bool) else ""
            wanted = f"it must be {_describe(hints[key])}{switch}"
            raise InputError(f"{path}: {key} is {value!r} ({type(value).__name__}); {wanted}")


def _suggestion(key: str, names: Iterable[str], prefix: str = "") -> str:
    close = difflib.get_close_matches(key, names, 1)
    return f"did you mean {prefix}{close[0]}?" if close else "remove it"


def _fits(value: Any, hint: Any) -> bool:
    """Whether a YAML value may stand for the type; a class that YAML cannot write is left to the dataclass itself."""
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, option) for option in options)
    if origin is typing.Literal:
        return any(value == option and type(value) is type(option) for option in options)
    if hint is None or hint is type(None):
        return value is None
    if (origin or hint) is list:
        return isinstance(value, list) and all(_fits_inside(item, *options) for item in value)
    if (origin or hint) is dict:
        return isinstance(value, dict)
    if hint is float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number or (isinstance(value, str) and _is_number(value))  # YAML reads 1e-6 as text
    if hint in (bool, int, str):
        return type(value) is hint
    if isinstance(hint, type) and issubclass(hint, Enum):
        return value in [option.value for option in hint]
    return True


def _fits_inside(item: Any, hint: Any = Any) -> bool:
    """As `_fits`, for an item of a list: there nothing turns 1e-6 from text into a number later."""
    return _fits(item, hint) and not (hint is float and isinstance(item, str))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _describe(hint: Any) -> str:
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_describe(option) for option in options)
    if origin is typing.Literal:
        return " or ".join(repr(option) for option in options)
    if origin is list:
        return f"a list of {_describe(options[0])}"
    if hint is type(None):
        return "null"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return " or ".join(repr(option.value) for option in hint)
    return getattr(hint, "__name__", str(hint))
