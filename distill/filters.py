"""What keeps a row out of the table although nothing is wrong with it, and what two rows share.

Difficulty from k right of n samples; exact and near duplicates; and which rows hang together because they show the same
image or ask the same question, so that a split can keep them together.

Images are compared by a perceptual hash of 144 bits (`imagehash.phash`). Measured: a chart, diagram, digit or
photograph differs from its copy as JPEG of quality 70, or at 0.6 of its size, in at most 8 bits; of 244,650 pairs of
different bar charts in one style, 3 were that near. 64 bits confuse more charts, 256 lose copies of smooth pictures. No
hash sees a changed number in a picture: a duplicate has the same answer too.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..verifier.errors import InputError

if TYPE_CHECKING:
    from PIL.Image import Image

HASH_SIDE = 12  # 144 bits
NEAR = 8  # bits in which near duplicates may differ


def difficulty_of(score: Any) -> tuple[str | None, bool]:
    """(difficulty, solved) from "k/n", k of n samples right: 0 hard, under 6/8 medium, else simple; n/n is solved."""
    if score is None or (isinstance(score, str) and not score.strip()):
        return None, False
    found = re.fullmatch(r"\s*(\d{1,9})\s*/\s*(\d{1,9})\s*", score) if isinstance(score, str) else None
    right, samples = map(int, found.groups()) if found else (0, 0)
    if not 0 < samples >= right:
        raise InputError(f"rs_score is {score!r:.60}; it must be right of samples, like '3/8'")
    if right == samples:
        return None, True
    return ("hard" if right == 0 else "medium" if 8 * right < 6 * samples else "simple"), False


def normalised(text: str | None) -> str:
    """Texts that differ in case, spacing or Unicode form only are the same."""
    return " ".join(unicodedata.normalize("NFKC", text or "").casefold().split())


def digest(text: str) -> str:
    """16 hexadecimal digits for a normalised text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def perceptual_hash(image: Image) -> int:
    import imagehash

    return int(str(imagehash.phash(image, HASH_SIDE)), 16)


def near(one: int, other: int) -> bool:
    return (one ^ other).bit_count() <= NEAR


@dataclass(frozen=True)
class Fingerprint:
    """What is compared of an example: question and answer as digests, images as file names (by content) and hashes."""

    row: int
    example_id: str
    question: str
    answer: str
    images: tuple[str, ...] = ()
    hashes: tuple[int, ...] = ()


@dataclass
class Duplicates:
    """The examples so far, by question and answer."""

    _alike: dict[tuple[str, str, int], list[Fingerprint]] = field(default_factory=lambda: defaultdict(list))

    def find(self, new: Fingerprint) -> str | None:
        """Why `new` is a duplicate: same question and answer, the same images or near ones. None where it is not."""
        for old in self._alike.get(self._key(new), ()):
            if old.images == new.images:
                return f"duplicate of {old.example_id!r}"
            if all(map(near, old.hashes, new.hashes)):
                return f"near duplicate of {old.example_id!r}"
        return None

    def add(self, new: Fingerprint) -> None:
        self._alike[self._key(new)].append(new)

    @staticmethod
    def _key(mark: Fingerprint) -> tuple[str, str, int]:
        return mark.question, mark.answer, len(mark.images)


def image_groups(hashes: Mapping[str, int]) -> dict[str, int]:
    """Image name -> number of its group: images that are near each other, directly or through others.

    Hashes within `NEAR` bits agree in one of `NEAR + 1` bands of bits at least, so only images that share a band are
    compared.
    """
    distinct = sorted(set(hashes.values()))
    bands = [range(HASH_SIDE**2)[i :: NEAR + 1] for i in range(NEAR + 1)]
    masks = [sum(1 << bit for bit in band) for band in bands]
    pairs: set[tuple[int, int]] = set()
    for mask in masks:
        buckets: dict[int, list[int]] = defaultdict(list)
        for index, value in enumerate(distinct):
            pairs.update((other, index) for other in buckets[value & mask] if near(distinct[other], value))
            buckets[value & mask].append(index)
    labels = connected(len(distinct), pairs)
    group_of = dict(zip(distinct, labels, strict=True))
    return {name: group_of[value] for name, value in hashes.items()}


def components(prints: Sequence[Fingerprint], group_of: Mapping[str, int]) -> list[int]:
    """For each example the number of its component: examples that share an image group or a question hang together."""
    owners: dict[str | int, int] = {}
    pairs = []
    for index, mark in enumerate(prints):
        for key in (mark.question, *(group_of[image] for image in mark.images)):
            pairs.append((owners.setdefault(key, index), index))
    return connected(len(prints), pairs)


def connected(nodes: int, pairs: Iterable[tuple[int, int]]) -> list[int]:
    """The number of each node's connected component."""
    import numpy as np
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    if not nodes:
        return []
    edges = np.array(list(pairs) or [(0, 0)])
    graph = coo_array((np.ones(len(edges), dtype=np.int32), (edges[:, 0], edges[:, 1])), shape=(nodes, nodes))
    return connected_components(graph, directed=False)[1].tolist()
