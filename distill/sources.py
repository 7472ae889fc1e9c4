"""Rows of somebody's data: a data set of the Hub, or local Parquet, JSON Lines or JSON, one file or a folder of them.

In: a name or path. Out: a `Source`, whose `read(start)` yields rows one by one, from the one after number `start`; the
first is number 1. At no time are more than a few rows in memory.

Local files are read with pyarrow and json. `datasets`, which reads what the Hub has, makes strings of numbers and times
of strings that look like them, ends at the first bad line or late key, and holds a whole row group in memory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ..verifier.errors import InputError

SUFFIXES = (".parquet", ".jsonl", ".json")
PART_NAMES = {"train": "train", "training": "train", "validation": "validation", "valid": "validation"}
PART_NAMES |= {"val": "validation", "dev": "validation", "test": "test", "testing": "test"}
_PIECE = 1 << 20  # characters of a JSON file read at a time
_SPACE = re.compile(r"\s*")
Place = tuple[str, "dict[str, Any] | None", "str | None"]  # where in its file, the row, why there is none


@dataclass(frozen=True)
class RawRow:
    number: int  # from 1, over all files
    where: str  # "train.jsonl, line 7"
    values: dict[str, Any]
    error: str | None = None  # why there are no values
    folder: Path | None = None  # what its paths are relative to


@dataclass(frozen=True)
class Source:
    name: str
    description: str  # what it is, for people
    identity: list[Any]  # JSON; what must be the same for a stopped run to go on
    rows: int | None  # None where nobody knows without reading
    read: Callable[[int], Iterator[RawRow]]
    remote: bool = False


def open_source(name: str, part: str | None = None, subset: str | None = None) -> Source:
    """`part` is a split of the source (train, test, ...), `subset` a configuration of a Hub data set."""
    path = Path(name)
    if path.exists():
        if subset:
            raise InputError(f"--subset {subset}: {name} is local; subsets are for data sets of the Hub")
        return _local(path, part)
    if path.suffix in SUFFIXES or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
        raise InputError(f"{name}: there is no such file or folder")
    from .hub import open_hub

    return open_hub(name, part, subset)


def _local(path: Path, part: str | None) -> Source:
    files = _files(path, part)
    root = path if path.is_dir() else path.parent
    kind = {".parquet": "Parquet", ".jsonl": "JSON Lines", ".json": "JSON"}[files[0].suffix]
    listed = ", ".join(file.relative_to(root).as_posix() for file in files[:3])
    more = f" and {len(files) - 3} more" if len(files) > 3 else ""
    identity = [[str(f.relative_to(root)), f.stat().st_size, f.stat().st_mtime_ns] for f in files]

    def read(start: int) -> Iterator[RawRow]:
        number = 0
        for file in files:
            shown = file.relative_to(root).as_posix()
            for place, values, error in _rows(file, start - number):
                number += 1
                if number > start:
                    yield RawRow(number, f"{shown}, {place}", values or {}, error, file.parent)

    return Source(str(path), f"{kind}: {listed}{more}{_beside(path, files)}", identity, _count(files), read)


def _beside(path: Path, files: list[Path]) -> str:
    """Tables of another kind in the folder, which are not read."""
    others = [p.name for p in _found(path) if p.suffix in SUFFIXES and p.suffix != files[0].suffix]
    return f" (not read: {', '.join(others[:3])}{' and more' if len(others) > 3 else ''})" if others else ""


def _files(path: Path, part: str | None) -> list[Path]:
    if path.is_file():
        if path.suffix not in SUFFIXES:
            raise InputError(
                f"{path}: a file's name must end in {', '.join(SUFFIXES)}; give another file, or its folder"
            )
        if part:
            raise InputError(f"--part {part}: {path} is one file; parts are for folders and data sets of the Hub")
        return [path]
    found = _found(path)
    tables = next((kind for suffix in SUFFIXES if (kind := [p for p in found if p.suffix == suffix])), [])
    if not tables:
        raise InputError(f"{path}: the folder holds no file that ends in {', '.join(SUFFIXES)}")
    parts: dict[str | None, list[Path]] = {}
    for table in tables:
        parts.setdefault(_part_of(table.relative_to(path)), []).append(table)
    if part is None and len(parts) > 1:
        names = ", ".join(str(name) for name in parts if name)
        raise InputError(f"{path} has the parts {names}; choose one with --part NAME, or give one file")
    if part is not None and part not in parts:
        raise InputError(f"--part {part}: {path} has no such part; it has {', '.join(map(str, filter(None, parts)))}")
    return parts[part] if part is not None else tables


def _found(path: Path) -> list[Path]:
    """The folder's files, in order; without those that an earlier conversion wrote into it."""
    files = sorted(p for p in path.rglob("*") if p.is_file() and not _hidden(p.relative_to(path)))
    folders = {p.parent for p in files if p.name == "rejected.jsonl"} - {path}
    ours = {folder for folder in folders if (folder / "run.json").is_file() or (folder / ".part").is_dir()}
    return [p for p in files if ours.isdisjoint(p.parents)]


def _hidden(path: Path) -> bool:
    return any(step.startswith((".", "__")) for step in path.parts)


def _part_of(path: Path) -> str | None:
    """The split that a file's path names, as a word of its own."""
    words = re.split(r"[^a-z]+", path.with_suffix("").as_posix().lower())
    return next((PART_NAMES[word] for word in words if word in PART_NAMES), None)


def _count(files: list[Path]) -> int | None:
    """Rows, where a quick look tells: in Parquet, and in JSON Lines by the line ends."""
    if files[0].suffix == ".json":
        return None
    if files[0].suffix == ".parquet":
        import pyarrow.parquet as pq

        return sum(_parquet(file, lambda f: pq.read_metadata(f).num_rows) for file in files)
    total = 0
    for file in files:
        last = b"\n"
        with file.open("rb") as handle:
            while piece := handle.read(1 << 20):
                total += piece.count(b"\n")
                last = piece[-1:]
        total += last != b"\n"
    return total


def _rows(file: Path, skip: int) -> Iterator[Place]:
    """(place, values, error) of every row; of the first `skip`, which nobody looks at, the values may be left out."""
    try:
        if file.suffix == ".parquet":
            yield from _parquet_rows(file, skip)
        elif file.suffix == ".jsonl":
            yield from _json_lines(file)
        else:
            yield from _json_array(file) if _is_array(file) else _json_lines(file)
    except OSError as error:
        raise InputError(f"{file}: it cannot be read ({error.strerror or error})") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: it is not UTF-8 ({error}); save it as UTF-8") from None


def _is_array(file: Path) -> bool:
    with file.open("rb") as handle:
        first = next((line for line in handle if line.strip(b"\xef\xbb\xbf \t\r\n")), b"").lstrip(b"\xef\xbb\xbf \t")
    if first.startswith(b"["):
        return True
    try:
        json.loads(first)
        return False
    except (ValueError, RecursionError):
        raise InputError(f"{file}: it must hold a list of objects, or one object a line") from None


def _json_lines(file: Path) -> Iterator[Place]:
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                values = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
            except (ValueError, RecursionError) as error:
                yield f"line {number}", None, f"it is not JSON ({error})"
                continue
            yield f"line {number}", *_object(values)


def _object(values: Any) -> tuple[dict[str, Any] | None, str | None]:
    return (values, None) if isinstance(values, dict) else (None, f"it is {values!r:.60}; it must be an object")


def _json_array(file: Path) -> Iterator[Place]:
    with file.open(encoding="utf-8-sig") as handle:
        for number, values in enumerate(_items(handle, file), 1):
            yield f"row {number}", *_object(values)


def _items(handle: IO[str], file: Path) -> Iterator[Any]:
    """The items of one JSON list, each decoded when all of it has been read."""
    decoder, size = json.JSONDecoder(), _PIECE
    text = handle.read(size)
    at, number = _after_space(text, _after_space(text, 0) + 1), 1
    while text[at : at + 1] != "]":
        problem, hopeless = "the end is missing", False
        try:
            value, end = decoder.raw_decode(text, at)
            end = _after_space(text, end)
            following = _after_space(text, end + 1)
            if text[end : end + 1] == "]" or (text[end : end + 1] == "," and following < len(text)):
                yield value
                at, number, size = end if text[end] == "]" else following, number + 1, _PIECE
                continue
            hopeless = end < len(text) and text[end] != ","
        except (ValueError, RecursionError) as error:
            problem = str(error)
        more = "" if hopeless else handle.read(size)
        if not more:
            raise InputError(f"{file}, row {number}: it is not JSON ({problem}); mend it, or write one object a line")
        text, at, size = text[at:] + more, 0, 2 * size  # twice as much, or a long item is decoded over and over
    rest = (text[at + 1 :] + handle.read(_PIECE)).strip()
    if rest:
        raise InputError(
            f"{file}: behind the list there is more ({rest:.40}); make one list of it, or one object a line"
        )


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _parquet_rows(file: Path, skip: int) -> Iterator[Place]:
    import pyarrow.parquet as pq

    number = 0
    # Without pre_buffer and with a buffer of its own, pyarrow reads page by page and not a row group at once.
    with _parquet(file, lambda f: pq.ParquetFile(f, pre_buffer=False, buffer_size=1 << 20)) as table:
        batches = table.iter_batches(batch_size=16)
        while (batch := _parquet(file, lambda _: next(batches, None))) is not None:
            seen = number + batch.num_rows <= skip
            for values, error in [(None, None)] * batch.num_rows if seen else _values(batch):
                number += 1
                yield f"row {number}", values, error


def _values(batch: Any) -> list[tuple[dict[str, Any] | None, str | None]]:
    """The rows of a batch, each with why it has no values, such as a date that Python does not know."""
    import pyarrow as pa

    try:
        return [(values, None) for values in batch.to_pylist()]
    except (pa.ArrowException, ValueError, OverflowError) as error:
        if batch.num_rows == 1:
            return [(None, f"it cannot be read ({error})")]
    return [row for number in range(batch.num_rows) for row in _values(batch.slice(number, 1))]


def _parquet(file: Path, action: Callable[[Path], Any]) -> Any:
    import pyarrow as pa

    try:
        return action(file)
    except pa.ArrowException as error:
        raise InputError(f"{file}: it cannot be read as Parquet ({error})") from None
