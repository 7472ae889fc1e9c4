"""The finished rows of a table that is not: what a stopped run goes on from.

    with PartFile("rollouts.parquet", settings, Rollout, "rollout_id") as part:
        part.add(rollout)                     # for all whose key is not in part.rows
        write_rollouts("rollouts.parquet", part.rows.values())
        part.remove()

`rollouts.parquet.part` holds a line of settings and then a line for each row, each whole before the next is waited for. A
part file of other settings is refused.
"""

from __future__ import annotations

import dataclasses
import fcntl
import itertools
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Generic, TypeVar

from .errors import InputError

FORMAT = 1
_BEGINNING = b'{"part": '

Row = TypeVar("Row")


def part_of(out: str | Path) -> Path:
    """Where the part of a table lies."""
    return Path(f"{out}.part")


def remove_part(out: str | Path) -> None:
    """Once the table is there, nobody goes on from its part."""
    part_of(out).unlink(missing_ok=True)


class PartFile(Generic[Row]):
    """`read` makes a row, which is a dataclass, of its fields; `key` is the field that identifies it. A row that comes
    again takes the place of the first.

    Raises InputError where the file is of other settings, is no such file, or is being written by another process.
    """

    def __init__(self, out: str | Path, settings: dict[str, Any], read: Callable[..., Row], key: str):
        self.path = part_of(out)
        self.rows: dict[str, Row] = {}
        self._row_of, self._key = read, key
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("a+b", buffering=0)  # nothing is left to be written when a write has failed
        except OSError as error:
            raise InputError(f"{self.path}: it cannot be written ({error})") from None
        try:
            self._lock()
            self._read(json.loads(json.dumps(settings)))
        except InputError:
            self._file.close()
            raise

    def __enter__(self) -> PartFile[Row]:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.rows:
            self.path.unlink(missing_ok=True)  # no work is in it, and a mistyped policy would stay in the settings
        self._file.close()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # given back when the file is closed, or we die
        except OSError:
            raise InputError(f"{self.path}: another process writes it; wait for it, or give another --out") from None

    def _read(self, settings: dict[str, Any]) -> None:
        """Reads what is there and cuts off a last line that did not get whole; a file without rows is begun anew."""
        with self.path.open("rb") as file:
            head, first = file.readline(), file.readline()
            if not first.endswith(b"\n") and head[: len(_BEGINNING)] == _BEGINNING[: len(head)]:
                self._file.truncate(0)
                self._write({"part": FORMAT, "settings": settings})  # as _BEGINNING says
                return
            _refuse_other(self.path, self._settings_in(head), settings)
            try:
                self._take(itertools.chain([first], file), len(head))
            except (ValueError, LookupError, TypeError):
                raise self._no_part() from None

    def _settings_in(self, head: bytes) -> dict[str, Any]:
        try:
            header = json.loads(head)
            return (header["settings"] if header["part"] == FORMAT else None) or {}
        except (ValueError, LookupError, TypeError):
            raise self._no_part() from None

    def _no_part(self) -> InputError:
        return InputError(f"{self.path} is no unfinished table of ours; remove it, or give another --out")

    def _take(self, lines: Iterable[bytes], end: int) -> None:
        for line in lines:
            if line.endswith(b"\n"):
                row, end = self._row_of(**json.loads(line)), end + len(line)
                self.rows[getattr(row, self._key)] = row
            else:
                self._file.truncate(end)

    def add(self, row: Row) -> None:
        """Kept from here on, whatever ends the process."""
        self._write(dataclasses.asdict(row))  # pyright: ignore[reportArgumentType]
        self.rows[getattr(row, self._key)] = row

    def _write(self, row: dict[str, Any]) -> None:
        try:
            line = json.dumps(row).encode() + b"\n"
            while line:
                line = line[self._file.write(line) :]
        except OSError as error:
            raise InputError(f"{self.path}: it cannot be written ({error}); the same command goes on") from None

    def remove(self) -> None:
        """Once the table is there."""
        self.path.unlink(missing_ok=True)


def _refuse_other(path: Path, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    differing = sorted(key for key in found.keys() | wanted.keys() if found.get(key) != wanted.get(key))
    if differing:
        what = ", ".join(f"{key} ({found.get(key)!r} there, {wanted.get(key)!r} now)" for key in differing)
        raise InputError(f"{path} was begun with other settings: {what}; give another --out, or remove it")
