"""The three tables row by row, for tables that do not fit into memory.

In: paths. Out: rows of `schema`, checked like those of `tables`, a few thousand in memory at a time. Examples are looked
up by id in a temporary file on disk, since rollouts may name them in any order.

    with Pairs("examples.parquet", "rollouts.parquet") as pairs:
        for example, rollout in pairs: ...
    count = write_verdict_stream("verdicts.parquet", verdicts)
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import IO, Any

from .columns import EXAMPLES, ROLLOUTS, VERDICTS, Columns, base_kind, check_version, checked_values, parse_criteria
from .errors import InputError
from .schema import SCHEMA_VERSION, Example, Rollout, Verdict
from .tables import _absolute, _jsonl_rows, _parquet_rows, _suffix, atomic_write

BATCH = 10_000  # rows written at a time
KEPT_EXAMPLES = 64


class Pairs:
    """Each rollout with its example, in the order of the rollouts; may be gone through more than once.

    Opening reads both tables once and raises InputError for a bad row, an id given twice, a missing image file (unless
    nobody is going to look: `check_images`) or a rollout of an unknown example, so that long work does not fail
    half-way. `rollouts` and `criteria` count rollouts and (rollout, criterion) pairs.
    """

    def __init__(self, examples: str | Path, rollouts: str | Path, check_images: bool = True):
        self._examples, self._rollouts, self._check_images = Path(examples), Path(rollouts), check_images
        self.rollouts = self.criteria = 0
        self._db = sqlite3.connect("")  # a file of SQLite's own, gone when closed
        self._get = lru_cache(KEPT_EXAMPLES)(self._look_up)
        try:
            with self._on_disk():
                self._index()
        except BaseException:
            self._db.close()
            raise

    def _index(self) -> None:
        self._db.execute("PRAGMA journal_mode = OFF")
        self._db.execute("CREATE TABLE examples (id TEXT PRIMARY KEY, criteria INTEGER, row TEXT)")
        self._db.execute("CREATE TABLE rollouts (id TEXT PRIMARY KEY) WITHOUT ROWID")
        for number, values in _rows(self._examples, EXAMPLES, self._example):
            row = (values["example_id"], len(values["criteria"]), json.dumps(values))
            self._insert("examples", row, f"{self._examples}, row {number}: example_id")
        for number, values in _rows(self._rollouts, ROLLOUTS, lambda values: Rollout(**values)):
            where = f"{self._rollouts}, row {number}"
            self._insert("rollouts", (values["rollout_id"],), f"{where}: rollout_id")
            found = self._db.execute("SELECT criteria FROM examples WHERE id = ?", (values["example_id"],)).fetchone()
            if found is None:
                raise InputError(
                    f"{where}: rollout {values['rollout_id']!r} answers example {values['example_id']!r}, which "
                    f"{self._examples} does not have; give the examples that the rollouts were made from"
                )
            self.rollouts += 1
            self.criteria += found[0]

    def _insert(self, table: str, row: tuple[Any, ...], where: str) -> None:
        try:
            self._db.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
        except sqlite3.IntegrityError:
            raise InputError(f"{where} {row[0]!r} is already in an earlier row; it must be unique") from None

    def _example(self, values: dict[str, Any]) -> Example:
        images = tuple(_absolute(self._examples.parent / image) for image in values.pop("images", ()))
        for image in images:
            if self._check_images and not image.is_file():
                raise InputError(f"key 'images': there is no file {image}; paths are relative to the table's folder")
        return Example(criteria=parse_criteria(values.pop("criteria")), images=images, **values)

    def _look_up(self, example_id: str) -> Example:
        row = self._db.execute("SELECT row FROM examples WHERE id = ?", (example_id,)).fetchone()
        return self._example(json.loads(row[0]))

    def __iter__(self) -> Iterator[tuple[Example, Rollout]]:
        with self._on_disk():
            for _, values in _rows(self._rollouts, ROLLOUTS):
                rollout = Rollout(**values)
                yield self._get(rollout.example_id), rollout

    @contextmanager
    def _on_disk(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise InputError(
                f"the temporary index of the examples cannot be used ({error}); make room in TMPDIR"
            ) from None

    def __enter__(self) -> Pairs:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()


def _rows(
    path: Path, columns: Columns, check: Callable[[dict[str, Any]], object] | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Row numbers, from 1, and checked values; `check` may take apart a copy of them."""
    if not path.is_file():
        raise InputError(f"{path}: there is no such file")
    try:
        for number, raw in _jsonl_rows(path) if _suffix(path) == ".jsonl" else _parquet_rows(path, columns):
            try:
                check_version(raw)
                values = checked_values(raw, columns)
                if check is not None:
                    check(dict(values))
            except InputError as error:
                raise InputError(f"{path}, row {number}: {error}") from None
            yield number, values
    except OSError as error:
        raise InputError(f"{path}: it cannot be read ({error})") from None


def write_verdict_stream(path: str | Path, verdicts: Iterable[Verdict]) -> int:
    """Writes a verdict table as its rows come, and gives their number. The caller answers for unique keys."""
    path, rows = Path(path), iter(verdicts)
    write = _write_jsonl if _suffix(path) == ".jsonl" else _write_parquet
    with atomic_write(path) as handle:
        return write(handle, iter(lambda: list(islice(rows, BATCH)), []))


def _write_jsonl(handle: IO[bytes], batches: Iterator[list[Verdict]]) -> int:
    count = 0
    for batch in batches:
        for verdict in batch:
            row = {"schema_version": SCHEMA_VERSION, **{name: getattr(verdict, name) for name in VERDICTS}}
            handle.write(json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n")
        count += len(batch)
    return count


def _write_parquet(handle: IO[bytes], batches: Iterator[list[Verdict]]) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {"key": pa.string(), "str": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}
    types = {name: kinds[base_kind(kind)] for name, kind in VERDICTS.items()}
    schema, count, values_of = pa.schema({"schema_version": pa.int64(), **types}), 0, attrgetter(*VERDICTS)
    with pq.ParquetWriter(handle, schema) as writer:
        for batch in batches:
            columns: dict[str, Sequence[Any]] = {"schema_version": [SCHEMA_VERSION] * len(batch)}
            columns |= zip(VERDICTS, zip(*map(values_of, batch), strict=True), strict=True)
            writer.write_table(pa.table(columns, schema=schema))
            count += len(batch)
    return count
