"""Somebody's rubric data as our example table.

In: a `Source` and a `FieldMap`. Out: OUT/examples.parquet with its images in OUT/images, the tables of the splits that
were asked for, and OUT/rejected.jsonl, which names every row that is in no table: its `kind` is "refused" for a fault
of the row, "filtered" for a duplicate or a question that every sample solved.

The work is done in OUT/.part, a chunk of rows at a time, so that a stopped run goes on after its last whole chunk, and
memory holds one chunk's texts and one row's images. When all is done the files take their names in OUT.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ..verifier.errors import InputError
from ..verifier.rundir import FILE, open_run, write_atomic
from ..verifier.schema import Example
from ..verifier.tables import write_examples
from ..verifier.text import clean
from .alone import alone
from .filters import Duplicates, Fingerprint, components, digest, image_groups, normalised, perceptual_hash
from .layouts import FieldMap, is_null, value_at
from .pictures import read_picture
from .rows import read_row
from .sources import RawRow, Source
from .splits import Proof, assign, merge, prove

CHUNK = 500  # rows
PART = ".part"
TABLE = "examples.parquet"
REJECTED = "rejected.jsonl"


class Filtered(Exception):
    """Nothing is wrong with the row, but it does not belong in the table."""


@dataclass
class Work:
    """What has become of the rows so far. `folder` keeps it: a table and then a JSON file for each chunk."""

    folder: Path
    rows: int = 0
    chunks: int = 0
    done: bool = False
    kept: list[Fingerprint] = field(default_factory=list)
    rejected: list[dict[str, Any]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    row_of: dict[str, int] = field(default_factory=dict)
    duplicates: Duplicates = field(default_factory=Duplicates)

    @property
    def refused(self) -> list[dict[str, Any]]:
        return [row for row in self.rejected if row["kind"] == "refused"]

    @property
    def tables(self) -> list[Path]:
        return [path for n in range(self.chunks) if (path := self._file(n, ".parquet")).is_file()]

    def resume(self) -> None:
        for leftover in self.folder.rglob("*.tmp"):  # of a run that was killed
            leftover.unlink()
        while (record := self._file(self.chunks, ".json")).is_file():
            chunk = json.loads(record.read_text(encoding="utf-8"))
            for kept in chunk["kept"]:
                self.keep(Fingerprint(**{**kept, "images": tuple(kept["images"]), "hashes": tuple(kept["hashes"])}))
            self.rejected += chunk["rejected"]
            self.counts.update(chunk["counts"])
            self.rows, self.done, self.chunks = self.rows + chunk["rows"], chunk["done"], self.chunks + 1

    def keep(self, mark: Fingerprint) -> None:
        self.kept.append(mark)
        self.row_of[mark.example_id] = mark.row
        self.duplicates.add(mark)

    def add_chunk(self, rows: Iterator[RawRow], source: Source, fields: FieldMap, bar: tqdm) -> None:
        """Takes the next rows; their JSON file, written last, makes them count."""
        first_kept, first_rejected, examples, taken = len(self.kept), len(self.rejected), [], 0
        counts: Counter[str] = Counter()
        for raw in itertools.islice(rows, CHUNK):
            taken += 1
            try:
                examples.append(self._take(raw, source, fields, counts))
            except (InputError, Filtered) as error:
                self.rejected.append(_rejection(raw, fields, error))
            bar.update()
        if examples:
            write_examples(self._file(self.chunks, ".parquet"), examples)
        self.done = taken < CHUNK
        chunk = {
            "rows": taken,
            "done": self.done,
            "kept": [dataclasses.asdict(mark) for mark in self.kept[first_kept:]],
            "rejected": self.rejected[first_rejected:],
            "counts": counts,
        }
        write_atomic(self._file(self.chunks, ".json"), json.dumps(chunk))
        self.counts.update(counts)
        self.rows, self.chunks = self.rows + taken, self.chunks + 1

    def _take(self, raw: RawRow, source: Source, fields: FieldMap, counts: Counter[str]) -> Example:
        """The row as an example, its images stored; InputError or Filtered with the reason why not, OSError where OUT
        cannot be written."""
        if raw.error:
            raise InputError(raw.error)
        row = read_row(raw.values, fields, raw.number)
        if row.solved:
            raise Filtered("solved by every sample (rs_score)")
        pictures = []
        for number, image in enumerate(row.images, 1):
            try:
                pictures.append(read_picture(image, raw.folder, source.remote))
            except InputError as error:
                raise InputError(f"image {number}: {error}") from None
        mark = Fingerprint(
            example_id=row.example.example_id,
            row=raw.number,
            question=digest(normalised(row.example.question)),
            answer=digest(normalised(row.example.answer)),
            images=tuple(picture.name for picture in pictures),
            hashes=tuple(perceptual_hash(picture.image) for picture in pictures),
        )
        if why := self.duplicates.find(mark):
            raise Filtered(why)
        if first := self.row_of.get(mark.example_id):
            raise InputError(f"example_id {mark.example_id!r} is already in row {first}; it must be unique")
        images = tuple(picture.store(self.folder / "images") for picture in pictures)
        self.keep(mark)
        _count(row.example, row.other_dimensions, bool(images), counts)
        return dataclasses.replace(row.example, images=images)

    def _file(self, number: int, suffix: str) -> Path:
        return self.folder / f"rows-{number:05d}{suffix}"


def convert(
    source: Source,
    fields: FieldMap,
    out: Path,
    max_rejected: float = 0.01,
    shares: Mapping[str, float] | None = None,
    seed: int = 0,
) -> tuple[Work, dict[str, Proof]] | None:
    """What became of the rows, and the proof for each split; None where OUT holds this very table already.

    Raises InputError where the share of refused rows exceeds `max_rejected` (0..1): then OUT/rejected.jsonl is written
    and no table, and the same command with a larger share needs only write the tables.
    """
    fields.check_complete()
    try:
        return _convert(source, fields, out, max_rejected, shares, seed)
    except OSError as error:  # of OUT: what cannot be read is an InputError already
        raise InputError(
            f"{out}: it cannot be written ({error.strerror}); make room, and the same command goes on"
        ) from None


def _convert(
    source: Source, fields: FieldMap, out: Path, max_rejected: float, shares: Mapping[str, float] | None, seed: int
) -> tuple[Work, dict[str, Proof]] | None:
    reading = {"source": source.name, "rows": source.identity, "columns": fields.columns, "keys": fields.keys}
    reading |= {"pitfall_yes_means": fields.yes_means}
    settings = {**reading, "split": dict(shares or {}), "seed": seed if shares else None}
    if (out / FILE).is_file():
        open_run(out, settings)
        return None
    with alone(out):
        work = _open_work(out, reading, max_rejected)
        rows = _watched(source.read(work.rows), fields)
        with tqdm(total=source.rows, initial=work.rows, desc="converting", unit="row") as bar:
            while not work.done:
                work.add_chunk(rows, source, fields, bar)
        return work, _finish(work, out, max_rejected, shares, seed, settings)


def _finish(
    work: Work, out: Path, max_rejected: float, shares: Mapping[str, float] | None, seed: int, settings: Mapping
) -> dict[str, Proof]:
    write_atomic(out / REJECTED, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in work.rejected))
    _check_share(work, out, max_rejected)
    proofs = _write_tables(work, out, shares, seed)
    write_atomic(out / FILE, json.dumps(settings, indent=2) + "\n")
    shutil.rmtree(work.folder)
    return proofs


def _open_work(out: Path, reading: Mapping[str, Any], max_rejected: float) -> Work:
    """The unfinished work in OUT, or new work where there is none, where it was for another reading of the rows, or where
    the same rows would be refused again: files beside the data may have been mended since."""
    folder = out / PART
    record, wanted = folder / FILE, json.loads(json.dumps(reading))
    try:
        same = record.is_file() and json.loads(record.read_text(encoding="utf-8")) == wanted
    except ValueError:
        same = False
    if not same:
        if out.is_dir() and {path.name for path in out.iterdir()} - {PART, REJECTED}:
            raise InputError(f"{out} is not empty and no table of this command; give another folder")
        if folder.is_dir():
            shutil.rmtree(folder)
    work = Work(open_run(folder, wanted))
    work.resume()
    if work.done and _too_many(work, max_rejected):
        shutil.rmtree(folder)
        work = Work(open_run(folder, wanted))
    return work


def _watched(rows: Iterator[RawRow], fields: FieldMap) -> Iterator[RawRow]:
    for raw in rows:
        fields.check_new(raw.values, raw.number)
        yield raw


def _rejection(raw: RawRow, fields: FieldMap, error: Exception) -> dict[str, Any]:
    named = value_at(raw.values, fields.columns.get("example_id"))
    return {
        "row": raw.number,
        "where": clean(raw.where),
        "example_id": None if is_null(named) else clean(str(named)[:200]),
        "kind": "filtered" if isinstance(error, Filtered) else "refused",
        "reason": clean(str(error)),
    }


def _count(example: Example, other_dimensions: tuple[str, ...], has_image: bool, counts: Counter[str]) -> None:
    counts["criteria"] += len(example.criteria)
    counts["pitfalls"] += sum(criterion.is_pitfall for criterion in example.criteria)
    counts["pitfalls alone"] += all(criterion.is_pitfall for criterion in example.criteria)
    counts["without an image"] += not has_image
    counts[f"difficulty {example.difficulty or 'none'}"] += 1
    counts.update(f"dimension {criterion.dimension or 'none'}" for criterion in example.criteria)
    counts.update(f"other dimension {clean(name[:40])}" for name in other_dimensions)


def _too_many(work: Work, max_rejected: float) -> bool:
    return len(work.refused) > max_rejected * work.rows


def _check_share(work: Work, out: Path, max_rejected: float) -> None:
    if not work.rows:
        raise InputError("the data has no rows; nothing was written")
    refused = work.refused
    if _too_many(work, max_rejected):
        first = refused[0]
        raise InputError(
            f"{len(refused)} of {work.rows} rows ({len(refused) / work.rows:.1%}) were refused, more than "
            f"--max-rejected {max_rejected:g}, and no table was written; the first is {first['where']}: "
            f"{first['reason']}; {out / REJECTED} names each; mend the rows or the mapping, or allow more"
        )
    if not work.kept:
        raise InputError(f"no row is left to write; {out / REJECTED} names each with its reason")


def _write_tables(work: Work, out: Path, shares: Mapping[str, float] | None, seed: int) -> dict[str, Proof]:
    targets: dict[str, list[str] | None] = {TABLE: None}
    group_of: dict[str, int] = {}
    if shares:
        group_of = image_groups(
            {name: h for kept in work.kept for name, h in zip(kept.images, kept.hashes, strict=True)}
        )
        split_of = assign(components(work.kept, group_of), shares, seed)
        for split in shares:
            ids = [kept.example_id for kept, its in zip(work.kept, split_of, strict=True) if its == split]
            targets[f"{split}.parquet"] = ids
    images = work.folder / "images", out / "images"
    if images[1].is_dir():  # a run was stopped amid the moves below
        os.replace(images[1], images[0])
    merge(work.tables, {work.folder / name: ids for name, ids in targets.items()})
    proofs = prove({split: work.folder / f"{split}.parquet" for split in shares or ()}, group_of)
    if images[0].is_dir():
        os.replace(*images)
    for name in targets:
        os.replace(work.folder / name, out / name)
    return proofs
