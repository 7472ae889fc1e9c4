"""An output folder belongs to one run: it records the settings, and another run is refused, naming what differs.

In: the folder and the settings (anything JSON). A folder with the same settings is gone on with.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .errors import InputError

FILE = "run.json"
_PART = ".part"


def open_run(folder: str | Path, settings: Mapping[str, Any]) -> Path:
    """Makes the folder, or finds that it holds this very run. Raises InputError, and touches nothing, otherwise."""
    folder, wanted = Path(folder), json.loads(json.dumps(settings, default=str))
    if folder.is_file():
        raise InputError(f"{folder} is a file; give the name of a folder")
    record = folder / FILE
    try:
        if record.is_file():
            _refuse_another(folder, _read(record), wanted)
            return folder
        if folder.is_dir() and any(path.name != FILE + _PART for path in folder.iterdir()):
            raise InputError(f"{folder} is not empty and no run of ours ({FILE} is missing); give another folder")
        write_atomic(record, json.dumps(wanted, indent=2) + "\n")
    except OSError as error:
        raise InputError(f"{folder} cannot be used ({error.strerror}); give another folder") from error
    return folder


def _read(record: Path) -> dict[str, Any]:
    try:
        found = json.loads(record.read_text(encoding="utf-8"))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InputError(f"{record} is no record of a run of ours; give another folder")
    return found


def _refuse_another(folder: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    differing = sorted(k for k in wanted.keys() | found.keys() if wanted.get(k) != found.get(k))
    if differing:
        what = ", ".join(f"{key} ({found.get(key)!r} there, {wanted.get(key)!r} now)" for key in differing[:3])
        more = f" and {len(differing) - 3} more" if len(differing) > 3 else ""
        raise InputError(f"{folder} holds a different run: {what}{more}; give another folder, or remove that one")


def keep_inputs(read: Iterable[str | Path], written: Iterable[str | Path], flag: str) -> None:
    """Raises InputError, naming the `flag`, where what is read would be written over."""
    inputs = {Path(path).resolve() for path in read}
    if lost := [path for path in written if Path(path).resolve() in inputs]:
        raise InputError(f"{lost[0]} is read here and would be overwritten; give another {flag}")


def write_atomic(path: Path, text: str) -> None:
    """The whole text under its final name, or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + _PART)
    part.write_text(text, encoding="utf-8", newline="")
    part.replace(path)
