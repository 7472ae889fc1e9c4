"""Which trees go into one forward pass.

In: items to judge, the lengths of openings, responses and criteria. Out: the order in which siblings stand together,
criteria split into runs that fit, and batches of rows whose padded size stays within `max_packed_tokens`. Nothing is cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .schema import Example, Rollout
from .shared_prefix import Opening
from .tree import Tree


@dataclass
class Row:
    """One row of a batch: a response with some or all of its criteria, below its opening."""

    opening: Opening
    tree: Tree
    labels: list[int]  # token ids of the labels that the response has
    keys: list[bytes]  # what each branch asks


def siblings(items: Sequence[tuple[Example, Rollout]]) -> list[list[int]]:
    """Indices of the items, grouped by images and question in order of first appearance."""
    groups: dict[tuple, list[int]] = {}
    for index, (example, _) in enumerate(items):
        images = tuple(image if isinstance(image, Path) else id(image) for image in example.images)
        groups.setdefault((images, example.question), []).append(index)
    return list(groups.values())


def runs(lengths: Sequence[int], room: int) -> list[slice]:
    """Consecutive parts whose lengths add up to at most `room`; a length above it stands alone."""
    parts, first, used = [], 0, 0
    for index, length in enumerate(lengths):
        if index > first and used + length > room:
            parts.append(slice(first, index))
            first, used = index, 0
        used += length
    return [*parts, slice(first, len(lengths))] if lengths else []


def batches(rows: Iterable[Row], limit: int) -> Iterator[list[Row]]:
    """Consecutive rows whose padded size, opening included, stays within `limit` tokens; a row above it stands alone."""
    batch: list[Row] = []
    opening, own = 0, 0
    for row in rows:
        wider, longer = max(opening, len(row.opening)), max(own, len(row.tree))
        if batch and (wider + longer) * (len(batch) + 1) > limit:
            yield batch
            batch, wider, longer = [], len(row.opening), len(row.tree)
        batch.append(row)
        opening, own = wider, longer
    if batch:
        yield batch
