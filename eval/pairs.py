"""Two verdict tables as arrays of pairs, and the counts that figures are made of.

In: verdicts of two judges on the same (rollout, criterion) pairs. Out: `Pairs`, in the reference's order; per group of
pairs the counts of each example.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..verifier.errors import InputError
from ..verifier.schema import Rollout, Verdict
from . import metrics
from .bootstrap import Clustered
from .metrics import FloatArray, IntArray, Ranked

Names = tuple[str, str]
BoolArray = NDArray[np.bool_]
MISSING = -1  # of a verdict, or of an end of a span


@dataclass(frozen=True, eq=False)
class Pairs:
    """n pairs: the index of each one's example, both verdicts (0, 1 or MISSING), B's P(yes) (NaN where there is none),
    both spans (n, 2), and the distance of their ends in tokens (NaN where it is not known)."""

    example: IntArray
    examples: int
    a: IntArray
    b: IntArray
    p_yes: FloatArray
    span_a: IntArray
    span_b: IntArray
    token_distance: FloatArray

    @property
    def known(self) -> BoolArray:
        return (self.a != MISSING) & (self.b != MISSING)


def matched(reference: Sequence[Verdict], other: Sequence[Verdict], names: Names) -> list[tuple[Verdict, Verdict]]:
    """Pairs of verdicts on the same rollout and criterion, in the reference's order; other sets are refused."""
    b_of = {verdict.key: verdict for verdict in other}
    distinct = len(b_of)
    pairs = [(a, b) for a in reference if (b := b_of.pop(a.key, None)) is not None]  # taken: a second a finds none
    if not len(pairs) == len(reference) == len(other) == distinct:
        _refuse(reference, other, names)
    for a, b in pairs:
        if a.example_id != b.example_id:
            raise InputError(
                f"rollout {a.rollout_id!r} belongs to example {a.example_id!r} in {names[0]} but to {b.example_id!r} "
                f"in {names[1]}; compare tables of the same rollouts"
            )
    return pairs


def _refuse(reference: Sequence[Verdict], other: Sequence[Verdict], names: Names) -> None:
    """Says what keeps two tables apart: a pair that is judged twice, else the first that only one of them has."""
    keys = []
    for table, name in ((reference, names[0]), (other, names[1])):
        seen = Counter(verdict.key for verdict in table)
        for (rollout_id, criterion_id), times in seen.items():
            if times > 1:
                raise InputError(
                    f"{name} judges a criterion of a rollout twice (rollout {rollout_id!r}, criterion "
                    f"{criterion_id!r}); keep one verdict for each"
                )
        keys.append(seen)
    a, b = keys
    for here, there, present, absent in ((a, b, *names), (b, a, *reversed(names))):
        for rollout_id, criterion_id in here:
            if (rollout_id, criterion_id) not in there:
                raise InputError(
                    f"rollout {rollout_id!r}, criterion {criterion_id!r} is in {present} ({len(here)} rows) but not in "
                    f"{absent} ({len(there)} rows); compare tables of the same rollouts and criteria"
                )


def check_example(verdict: Verdict, rollout: Rollout) -> None:
    """Refuses a verdict on a rollout that has the same id, but answers another example."""
    if verdict.example_id != rollout.example_id:
        raise InputError(
            f"the verdicts say that rollout {rollout.rollout_id!r} answers example {verdict.example_id!r}, the rollouts "
            f"table that it answers {rollout.example_id!r}; give the rollouts that were judged"
        )


def as_arrays(pairs: Sequence[tuple[Verdict, Verdict]], token_offsets: Mapping[str, ArrayLike] | None = None) -> Pairs:
    """`token_offsets` has the characters of each token, (T, 2), by rollout; without it no distance in tokens is known."""
    codes: dict[str, int] = {}
    count = len(pairs)
    whole = np.dtype(np.int64)
    return Pairs(
        example=np.fromiter((codes.setdefault(a.example_id, len(codes)) for a, _ in pairs), whole, count),
        examples=len(codes),
        a=np.fromiter((_code(a.verdict) for a, _ in pairs), whole, count),
        b=np.fromiter((_code(b.verdict) for _, b in pairs), whole, count),
        p_yes=np.fromiter((np.nan if b.p_yes is None else b.p_yes for _, b in pairs), np.float64, count),
        span_a=_spans([a for a, _ in pairs]),
        span_b=_spans([b for _, b in pairs]),
        token_distance=np.fromiter((_token_distance(a, b, token_offsets) for a, b in pairs), np.float64, count)
        if token_offsets is not None
        else np.full(count, np.nan),
    )


def _code(verdict: bool | None) -> int:
    return MISSING if verdict is None else int(verdict)


def _spans(verdicts: Sequence[Verdict]) -> IntArray:
    ends = (MISSING if end is None else end for v in verdicts for end in (v.span_start, v.span_end))
    return np.fromiter(ends, np.int64, 2 * len(verdicts)).reshape(-1, 2)


def _token_distance(a: Verdict, b: Verdict, token_offsets: Mapping[str, ArrayLike]) -> float:
    if a.span_end is None or b.span_end is None:
        return np.nan
    if a.rollout_id not in token_offsets:
        raise InputError(f"the rollouts table has no rollout {a.rollout_id!r}; give the rollouts that were judged")
    starts = np.asarray(token_offsets[a.rollout_id]).reshape(-1, 2)[:, 0]
    begun = np.searchsorted(starts, [a.span_end, b.span_end])  # tokens that begin before each end
    return float(abs(begun[0] - begun[1]))


def labels_of(
    pairs: Sequence[tuple[Verdict, Verdict]], label: Callable[[Verdict, Verdict], str | None]
) -> tuple[IntArray, list[str]]:
    """The code of each pair's label, MISSING where it has none, and the labels in the order of their codes."""
    codes: dict[str, int] = {}
    found = (label(a, b) for a, b in pairs)
    code_p = np.fromiter(
        (MISSING if name is None else codes.setdefault(name, len(codes)) for name in found), np.int64, len(pairs)
    )
    return code_p, list(codes)


def count(pairs: Pairs, chosen: BoolArray | None = None, ranked: bool = True) -> Clustered:
    """The counts of the chosen pairs by example, rows of the examples that have any; `ranked`: for AUROC too."""
    index_p = np.arange(len(pairs.a)) if chosen is None else np.flatnonzero(chosen)
    examples_x, row_p = np.unique(pairs.example[index_p], return_inverse=True)
    counts_xc = np.zeros((len(examples_x), metrics.COLUMNS))
    a, b, known = pairs.a[index_p], pairs.b[index_p], pairs.known[index_p]

    def add(column: int, where: BoolArray, value: FloatArray | None = None) -> None:
        weights = None if value is None else value[where]
        counts_xc[:, column] = np.bincount(row_p[where], weights, minlength=len(examples_x))

    for column, (first, second) in enumerate(((1, 1), (1, 0), (0, 1), (0, 0))):
        add(metrics.YES_YES + column, (a == first) & (b == second))
    add(metrics.MISSING_A, a == MISSING)
    add(metrics.MISSING_B, b == MISSING)
    _count_spans(pairs, index_p, known, add)
    p_yes = pairs.p_yes[index_p]
    scored = known & ~np.isnan(p_yes)
    add(metrics.WITH_P, scored)
    bin_p = np.where(scored, np.minimum(np.nan_to_num(p_yes) * metrics.ECE_BINS, metrics.ECE_BINS - 1), -1).astype(int)
    for bin_ in range(metrics.ECE_BINS):
        add(metrics.FIRST_BIN + bin_, bin_p == bin_, p_yes - a)
    ranks = Ranked.of(p_yes[scored], a[scored] == 1, pairs.example[index_p][scored]) if ranked else None
    return Clustered(examples_x, counts_xc, ranks)


def _count_spans(pairs: Pairs, index_p: IntArray, known: BoolArray, add: Callable[..., None]) -> None:
    span_a, span_b, distance = pairs.span_a[index_p], pairs.span_b[index_p], pairs.token_distance[index_p]
    with_a = known & (span_a[:, 0] != MISSING)
    both = with_a & (span_b[:, 0] != MISSING)
    add(metrics.SPANS, with_a)
    add(metrics.EXACT, both & (span_a == span_b).all(axis=1))
    add(metrics.IOU, both, metrics.span_iou(span_a, span_b))
    add(metrics.ENDS, both)
    add(metrics.END_CHARS, both, np.abs(span_a[:, 1] - span_b[:, 1]).astype(float))
    add(metrics.TOKEN_ENDS, both & ~np.isnan(distance))
    add(metrics.END_TOKENS, both & ~np.isnan(distance), distance)
