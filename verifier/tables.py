"""The three tables on disk: examples, rollouts, verdicts, as JSONL or Parquet (chosen by suffix).

In: a path, or rows of `schema`. Out: rows of `schema`, or one InputError that names file, row and key. Both formats
load with `datasets.load_dataset`; images lie beside the table, whose column `images` holds their paths relative to it.

    verdicts = read_verdicts("verdicts/image.jsonl")
    write_examples("heldout/examples.parquet", examples)     # also heldout/images/*.png

Rows count from 1 (in JSONL: lines). Every row carries `schema_version`. Files appear under their name when complete.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from .columns import (
    CRITERION,
    EXAMPLES,
    ROLLOUTS,
    VERDICTS,
    Columns,
    base_kind,
    check_version,
    checked_values,
    parse_criteria,
)
from .errors import InputError
from .pixels import as_rgb
from .schema import SCHEMA_VERSION, Example, Rollout, Verdict

if TYPE_CHECKING:
    import pyarrow as pa
    from PIL.Image import Image

Row = TypeVar("Row", Example, Rollout, Verdict)
KEYS = {"examples": ("example_id",), "rollouts": ("rollout_id",), "verdicts": ("mode", "rollout_id", "criterion_id")}


def read_examples(path: str | Path, check_images: bool = True, need_criteria: bool = True) -> list[Example]:
    """Examples; their images are absolute paths of files that exist (`load_image` opens them). Where nobody is going to
    look at them, `check_images=False` takes the paths as they are. `need_criteria=False` takes examples that have no
    criteria yet."""
    folder = Path(path).parent
    columns = EXAMPLES if need_criteria else {**EXAMPLES, "criteria": "list?"}

    def make(values: dict[str, Any]) -> Example:
        criteria = parse_criteria(values.pop("criteria", []))
        images = tuple(_absolute(folder / image) for image in values.pop("images", ()))
        for image in images:
            if check_images and not image.is_file():
                raise InputError(f"key 'images': there is no file {image}; paths are relative to the table's folder")
        return Example(criteria=criteria, images=images, **values)

    return _read(Path(path), columns, KEYS["examples"], make)


def read_rollouts(path: str | Path) -> list[Rollout]:
    return _read(Path(path), ROLLOUTS, KEYS["rollouts"], lambda values: Rollout(**values))


def read_verdicts(path: str | Path) -> list[Verdict]:
    return _read(Path(path), VERDICTS, KEYS["verdicts"], lambda values: Verdict(**values))


def write_examples(path: str | Path, examples: Iterable[Example], check_images: bool = True) -> None:
    """PIL images are saved as PNG in `images/` beside the table; paths are stored relative to the table's folder, and
    must be those of files unless `check_images=False`."""
    path, examples = Path(path), list(examples)
    rows = [
        {**_fields(example), "images": None, "criteria": [dataclasses.asdict(c) for c in example.criteria]}
        for example in examples
    ]
    rows = _checked_rows(path, rows, EXAMPLES, KEYS["examples"])  # before the first image is saved
    for row, example in zip(rows, examples, strict=True):
        row["images"] = [
            _store(path, example.example_id, n, image, check_images) for n, image in enumerate(example.images)
        ]
    _write(path, rows, EXAMPLES)


def write_rollouts(path: str | Path, rollouts: Iterable[Rollout]) -> None:
    rows = [_fields(rollout) for rollout in rollouts]
    _write(Path(path), _checked_rows(Path(path), rows, ROLLOUTS, KEYS["rollouts"]), ROLLOUTS)


def write_verdicts(path: str | Path, verdicts: Iterable[Verdict]) -> None:
    rows = [_fields(verdict) for verdict in verdicts]
    _write(Path(path), _checked_rows(Path(path), rows, VERDICTS, KEYS["verdicts"]), VERDICTS)


def pair_up(examples: Iterable[Example], rollouts: Iterable[Rollout]) -> list[tuple[Example, Rollout]]:
    """Each rollout with its example, in the order of the rollouts."""
    by_id = {example.example_id: example for example in examples}
    pairs = []
    for rollout in rollouts:
        if rollout.example_id not in by_id:
            raise InputError(
                f"rollout {rollout.rollout_id!r} answers example {rollout.example_id!r}, which the examples table does "
                "not have; give the examples that the rollouts were made from"
            )
        pairs.append((by_id[rollout.example_id], rollout))
    return pairs


def load_image(image: str | Path | Image) -> Image:
    """The image as RGB, upright; InputError for a missing, empty or broken one, or what is no image."""
    from PIL import Image as pil
    from PIL import ImageOps

    from_file = isinstance(image, (str, Path))
    if not from_file and not isinstance(image, pil.Image):
        raise InputError(f"an image is of type {type(image).__name__}; it must be a path or a PIL image")
    name = f"image {image}" if from_file else "an image in memory"
    try:
        if from_file:
            with pil.open(image) as opened:
                rgb = as_rgb(ImageOps.exif_transpose(opened))  # upright, as datasets decodes it
        else:
            rgb = as_rgb(image)
    except FileNotFoundError:
        raise InputError(f"{name}: there is no such file") from None
    except (OSError, ValueError, SyntaxError, pil.DecompressionBombError) as error:
        empty = from_file and os.path.isfile(image) and not os.path.getsize(image)
        reason = "the file is empty" if empty else f"it cannot be read as an image ({error})"
        raise InputError(f"{name}: {reason}; replace it or drop its row") from None
    if 0 in rgb.size:
        raise InputError(f"{name}: it has no pixels ({rgb.width} x {rgb.height}); replace it or drop its row")
    return rgb


def check_out(path: str | Path) -> None:
    """Raises InputError where no table could be written under that name: to be asked before the work that makes it."""
    path = Path(path)
    _suffix(path)
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        reason = "it is a folder" if path.is_dir() else f"nothing can be written to {folder}"
        raise InputError(f"{path}: it cannot be written ({reason}); give another name")


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """A file to write to, which takes its final name when the block ends without an error."""
    temporary = path.parent / f".{uuid.uuid4().hex}.tmp"  # same folder, hence same file system
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as handle:
                yield handle
                handle.flush()
                os.fsync(handle.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"{path}: it cannot be written ({error})") from None


def _read(path: Path, columns: Columns, key: Sequence[str], make: Callable[[dict[str, Any]], Row]) -> list[Row]:
    suffix = _suffix(path)
    if not path.is_file():
        raise InputError(f"{path}: there is no such file")
    rows: list[Row] = []
    seen: dict[tuple[str, ...], int] = {}
    try:
        for number, raw in _jsonl_rows(path) if suffix == ".jsonl" else _parquet_rows(path, columns):
            try:
                check_version(raw)
                values = checked_values(raw, columns)
                _check_unique(values, key, seen, number)
                rows.append(make(values))
            except InputError as error:
                raise InputError(f"{path}, row {number}: {error}") from None
    except OSError as error:
        raise InputError(f"{path}: it cannot be read ({error})") from None
    return rows


def _jsonl_rows(path: Path) -> Iterator[tuple[int, Any]]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                yield number, json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
            except (ValueError, RecursionError) as error:
                raise InputError(f"{path}, row {number}: it is not JSON ({error}); give one object a line") from None


def _parquet_rows(path: Path, columns: Columns) -> Iterator[tuple[int, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as table:  # not read_table, which takes "a=b" in a path for a column
            wanted = [name for name in ("schema_version", *columns) if name in table.schema_arrow.names]
            for batch in table.iter_batches(batch_size=10_000, columns=wanted):
                for raw in _plain_rows(batch, path):
                    number += 1
                    yield number, raw
    except pa.ArrowException as error:
        raise InputError(f"{path}: it cannot be read as Parquet ({error})") from None


def _plain_rows(batch: pa.RecordBatch, path: Path) -> list[dict[str, Any]]:
    try:
        return batch.to_pylist()
    except (ValueError, OverflowError) as error:  # bytes that are no UTF-8, a date beyond Python's
        raise InputError(f"{path}: it has a value that cannot be read ({error})") from None


def _check_unique(values: dict[str, Any], key: Sequence[str], seen: dict[tuple[str, ...], int], number: int) -> None:
    value = tuple(values[name] for name in key)
    if value in seen:
        named = ", ".join(f"{name} {part!r}" for name, part in zip(key, value, strict=True))
        raise InputError(f"{named} is already in row {seen[value]}; it must be unique")
    seen[value] = number


def _fields(row: Example | Rollout | Verdict) -> dict[str, Any]:
    """A dataclass as a dict, one level deep, numbers of numpy and torch as Python's."""
    values = {field.name: getattr(row, field.name) for field in dataclasses.fields(row)}
    return {name: value.item() if hasattr(value, "item") else value for name, value in values.items()}


def _checked_rows(path: Path, rows: list[dict[str, Any]], columns: Columns, key: Sequence[str]) -> list[dict[str, Any]]:
    """Rows with every column in order, checked as a reader does: what is written can be read."""
    _suffix(path)
    seen: dict[tuple[str, ...], int] = {}
    whole = []
    for number, row in enumerate(rows, 1):
        try:
            values = checked_values(row, columns)
            _check_unique(values, key, seen, number)
            parse_criteria(values.get("criteria", []))
        except InputError as error:
            raise InputError(f"{path}, row {number}: {error}") from None
        whole.append({"schema_version": SCHEMA_VERSION, **{name: values.get(name) for name in columns}})
    return whole


def _write(path: Path, rows: list[dict[str, Any]], columns: Columns) -> None:
    with atomic_write(path) as handle:
        if path.suffix == ".jsonl":
            for row in rows:
                handle.write(json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n")
        else:
            import pyarrow as pa
            import pyarrow.parquet as pq

            schema = pa.schema({"schema_version": pa.int64(), **_arrow_types(columns)})
            pq.write_table(pa.Table.from_pylist(rows, schema=schema), handle)


def _arrow_types(columns: Columns) -> dict[str, pa.DataType]:
    import pyarrow as pa

    types = {"key": pa.string(), "str": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}
    if columns is not CRITERION:
        types |= {"images": pa.list_(pa.string()), "criteria": pa.list_(pa.struct(_arrow_types(CRITERION)))}
    return {name: types[base_kind(kind)] for name, kind in columns.items()}


def _suffix(path: Path) -> str:
    if path.suffix not in (".jsonl", ".parquet"):
        raise InputError(f"{path}: a table's name must end in .jsonl or .parquet")
    return path.suffix


def _absolute(path: Path) -> Path:
    """Links among the folders are followed (".." would otherwise go astray); a link that is the file keeps its name."""
    return Path(os.path.realpath(path.parent)) / path.name


def _store(table: Path, example_id: str, index: int, image: Image | Path, check: bool) -> str:
    """The image's path relative to the table; a PIL image is saved first."""
    if isinstance(image, (str, Path)):
        found = _absolute(Path(image))
        if check and not found.is_file():
            raise InputError(f"example {example_id!r}: there is no image file {image}")
        return Path(os.path.relpath(found, os.path.realpath(table.parent))).as_posix()
    safe = re.sub(r"[^A-Za-z0-9_-]", "_", example_id)[:80]
    if safe != example_id:  # two ids may be alike once made safe
        safe += "-" + hashlib.sha256(example_id.encode()).hexdigest()[:8]
    name = f"images/{safe}-{index}.png"
    with atomic_write(table.parent / name) as handle:
        load_image(image).save(handle, format="PNG")
    return name
