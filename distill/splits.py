"""Splits of an example table, such that no image and no question is in two of them.

In: for each example the component that it hangs in (`filters.components`), and the share of each split. Out: the split
of each example, the split tables, and the proof, counted from the written tables and image files.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from ..verifier.errors import InputError
from ..verifier.tables import atomic_write
from .filters import normalised


def assign(components: Sequence[int], shares: Mapping[str, float], seed: int) -> list[str]:
    """The split of each example. Components that would fill a fifth of the smallest split or more go first, largest
    first, to where most is wanted; the others, in an order of the seed, to where the largest part is still wanted."""
    sizes = Counter(components)
    wanted = {name: share * len(components) for name, share in shares.items()}
    still = dict(wanted)
    order = sorted(sizes)
    random.Random(f"split-{seed}").shuffle(order)
    order.sort(key=lambda c: -sizes[c] if sizes[c] >= 0.2 * min(wanted.values()) else 0)
    split_of: dict[int, str] = {}
    for component in order:
        large = sizes[component] >= 0.2 * min(wanted.values())
        name = max(still, key=lambda s: still[s] if large else still[s] / wanted[s])
        split_of[component] = name
        still[name] -= sizes[component]
    for name in shares:
        if name not in split_of.values():
            raise InputError(
                f"the split {name!r} would be empty: {len(components)} examples hang together, through shared images "
                f"and questions, in {len(sizes)} groups, the largest of {max(sizes.values())}; ask for fewer or larger "
                "splits"
            )
    return [split_of[component] for component in components]


def merge(chunks: Sequence[Path], targets: Mapping[Path, Iterable[str] | None]) -> None:
    """Writes the chunks' rows as one Parquet table for each target: all (None), or those with the given example ids."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    wanted = {path: None if ids is None else pa.array(sorted(ids), pa.string()) for path, ids in targets.items()}
    with ExitStack() as stack:
        writers = {}
        for path in targets:
            handle = stack.enter_context(atomic_write(path))
            writers[path] = stack.enter_context(pq.ParquetWriter(handle, pq.read_schema(chunks[0])))
        for chunk in chunks:
            with pq.ParquetFile(chunk) as file:
                table = file.read()
            for path, ids in wanted.items():
                part = (
                    table
                    if ids is None
                    else table.filter(pc.call_function("is_in", [table["example_id"]], pc.SetLookupOptions(ids)))
                )
                writers[path].write_table(part)


@dataclass(frozen=True)
class Proof:
    """What a split's table and images hold."""

    rows: int
    images: frozenset[str]  # by content
    groups: frozenset[int]  # near duplicates are one
    questions: frozenset[str]  # normalised


def prove(tables: Mapping[str, Path], group_of: Mapping[str, int]) -> dict[str, Proof]:
    """Reads the tables and every image file again. Raises RuntimeError where two splits share anything."""
    proofs = {name: _read(path, group_of) for name, path in tables.items()}
    for one, other in itertools.combinations(proofs, 2):
        for what, mine, theirs in (
            ("images", proofs[one].groups, proofs[other].groups),
            ("questions", proofs[one].questions, proofs[other].questions),
        ):
            if mine & theirs:
                raise RuntimeError(f"{len(mine & theirs)} {what} are in {one} and in {other}")
    return proofs


def _read(path: Path, group_of: Mapping[str, int]) -> Proof:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        table = file.read(columns=["question", "images"])
    files = {image for images in table["images"].to_pylist() for image in images or ()}
    names = set()
    for image in tqdm(sorted(files), desc=f"checking {path.stem}", unit="image", disable=not files):
        content = (path.parent / image).read_bytes()
        names.add(hashlib.sha256(content).hexdigest()[:32] + Path(image).suffix)
    questions = frozenset(map(normalised, table["question"].to_pylist()))
    return Proof(table.num_rows, frozenset(names), frozenset(group_of[name] for name in names), questions)
