"""How far two verdict tables agree, over all criteria and per dimension, with bootstrap intervals.

In: two lists of verdicts on the same (rollout, criterion) pairs, the first being the reference. Out: the dictionary
that `claimwise agree --json` prints. A pair counts where both verdicts are known; missing ones are shown, never scored.

    n            pairs known on both sides; missing_a, missing_b: unknown verdicts of either side
    agreement    share of n with equal verdicts; kappa: Cohen's, over the same pairs
    false_yes    share of yes in B among A's no; false_no: share of no in B among A's yes
    span_exact   share of B's spans that are A's, over the pairs of n where A has a span (whatever the two verdicts
                 are); span_iou: intersection over union in characters there. Where B has no span both are 0.
    *_ci         2.5% and 97.5% quantiles of a bootstrap over examples, whose verdicts are not independent

A figure without a basis (nothing to count, or kappa where both sides are constant and alike) is null, never NaN; so is
the interval of a figure that rests on a single example.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..verifier.errors import InputError
from ..verifier.schema import GROUPS, Verdict

METRICS = ("agreement", "kappa", "false_yes", "false_no", "span_exact", "span_iou")
# Columns of the counts: A and B both yes, A yes and B no, A no and B yes, both no; missing; pairs where A has a span.
YES_YES, YES_NO, NO_YES, NO_NO, MISSING_A, MISSING_B, SPANS, EXACT, IOU = range(9)
COLUMNS = 9


def agree(
    reference: Sequence[Verdict],
    other: Sequence[Verdict],
    draws: int = 1000,
    seed: int = 0,
    dimensions: Mapping[tuple[str, str], str | None] | None = None,
    names: tuple[str, str] = ("the reference table", "the other table"),
) -> dict[str, Any]:
    """Figures of `other` against `reference`.

    `dimensions` maps (example_id, criterion_id) to VF, RC, IF, PITFALL or None; without it the verdicts' own count, the
    reference's first. Pairs without one count in "overall" only. `names` are how errors call the two tables.
    """
    if draws < 0 or seed < 0:
        raise InputError(f"draws is {draws} and seed {seed}; neither can be negative (0 draws: no intervals)")
    pairs = matched(reference, other, names)
    codes: dict[str, int] = {}
    example_of = np.array([codes.setdefault(a.example_id, len(codes)) for a, _ in pairs], dtype=np.int64)
    counts_pc = np.array([_counts(a, b) for a, b in pairs], dtype=float).reshape(-1, COLUMNS)
    group_of = np.array([_group(a, b, dimensions) for a, b in pairs], dtype=object)
    groups = [None, *(group for group in GROUPS if (group_of == group).any())]  # None: overall
    counts_gec = np.zeros((len(groups), len(codes), COLUMNS))
    for total_ec, group in zip(counts_gec, groups, strict=True):
        chosen = slice(None) if group is None else group_of == group
        np.add.at(total_ec, example_of[chosen], counts_pc[chosen])
    drawn_dgc = _resample(counts_gec, draws, seed)
    figures = [_figures(counts_gec[g], drawn_dgc[:, g]) for g in range(len(groups))]
    return {"overall": figures[0], "by_dimension": dict(zip(groups[1:], figures[1:], strict=True))}


def matched(
    reference: Sequence[Verdict], other: Sequence[Verdict], names: tuple[str, str]
) -> list[tuple[Verdict, Verdict]]:
    """Pairs of verdicts on the same rollout and criterion, in the reference's order; other sets are refused."""
    by_key = []
    for table, name in ((reference, names[0]), (other, names[1])):
        by_key.append({verdict.key: verdict for verdict in table})
        if len(by_key[-1]) < len(table):
            raise InputError(f"{name} judges a criterion of a rollout twice; keep one verdict for each")
    a_of, b_of = by_key
    for here, there, present, absent in ((a_of, b_of, *names), (b_of, a_of, *reversed(names))):
        for rollout_id, criterion_id in here:
            if (rollout_id, criterion_id) not in there:
                raise InputError(
                    f"rollout {rollout_id!r}, criterion {criterion_id!r} is in {present} ({len(here)} rows) but not in "
                    f"{absent} ({len(there)} rows); compare tables of the same rollouts and criteria"
                )
    pairs = [(a, b_of[key]) for key, a in a_of.items()]
    for a, b in pairs:
        if a.example_id != b.example_id:
            raise InputError(
                f"rollout {a.rollout_id!r} belongs to example {a.example_id!r} in {names[0]} but to {b.example_id!r} "
                f"in {names[1]}; compare tables of the same rollouts"
            )
    return pairs


def _group(a: Verdict, b: Verdict, dimensions: Mapping[tuple[str, str], str | None] | None) -> str | None:
    if dimensions is None:
        return a.dimension or b.dimension
    if (a.example_id, a.criterion_id) not in dimensions:
        raise InputError(
            f"the examples table has no criterion {a.criterion_id!r} of example {a.example_id!r}; give the examples "
            "that the verdicts were made on"
        )
    return dimensions[a.example_id, a.criterion_id]


def _counts(a: Verdict, b: Verdict) -> list[float]:
    row = [0.0] * COLUMNS
    row[MISSING_A] = a.verdict is None
    row[MISSING_B] = b.verdict is None
    if a.verdict is None or b.verdict is None:
        return row
    row[(NO_NO, NO_YES, YES_NO, YES_YES)[2 * a.verdict + b.verdict]] = 1
    if a.span is not None:
        row[SPANS] = 1
        row[EXACT] = a.span == b.span
        row[IOU] = span_iou(a.span, b.span)
    return row


def span_iou(a: tuple[int, int], b: tuple[int, int] | None) -> float:
    """Intersection over union of two half-open character intervals; 1 for equal ones, even if empty."""
    if b is None:
        return 0.0
    if a == b:
        return 1.0
    shared = max(0, min(a[1], b[1]) - max(a[0], b[0]))
    return shared / max(1, a[1] - a[0] + b[1] - b[0] - shared)


def _resample(counts_gec: np.ndarray, draws: int, seed: int) -> np.ndarray:
    """Counts of each draw, (draws, groups, columns): as many examples as there are, drawn with replacement."""
    groups, examples, _ = counts_gec.shape
    counts_ek = np.moveaxis(counts_gec, 1, 0).reshape(examples, groups * COLUMNS)
    drawn_dk = np.zeros((draws, groups * COLUMNS))
    rng = np.random.default_rng(seed)
    batch = max(1, 2_000_000 // max(1, examples))  # bounds memory; a batch is one matrix product
    for first in range(0, draws if examples else 0, batch):
        times_be = np.empty((min(batch, draws - first), examples))
        for times_e in times_be:
            times_e[:] = np.bincount(rng.integers(examples, size=examples), minlength=examples)
        drawn_dk[first : first + batch] = times_be @ counts_ek
    return drawn_dk.reshape(draws, groups, COLUMNS)


def _ratios(counts_xc: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Numerator and denominator of each metric; a denominator of 0 means that the metric has no basis."""
    yy, yn, ny, nn = (counts_xc[..., c] for c in (YES_YES, YES_NO, NO_YES, NO_NO))
    n = yy + yn + ny + nn
    chance = (yy + yn) * (yy + ny) + (ny + nn) * (yn + nn)  # n^2 times the agreement expected by chance
    spans = counts_xc[..., SPANS]
    return {
        "agreement": (yy + nn, n),
        "kappa": ((yy + nn) * n - chance, n * n - chance),
        "false_yes": (ny, ny + nn),
        "false_no": (yn, yy + yn),
        "span_exact": (counts_xc[..., EXACT], spans),
        "span_iou": (counts_xc[..., IOU], spans),
    }


def _figures(counts_ec: np.ndarray, drawn_dc: np.ndarray) -> dict[str, Any]:
    total_c = counts_ec.sum(0)
    figures: dict[str, Any] = {
        "n": int(total_c[: NO_NO + 1].sum()),
        "missing_a": int(total_c[MISSING_A]),
        "missing_b": int(total_c[MISSING_B]),
    }
    once, drawn = _ratios(total_c), _ratios(drawn_dc)
    basis = {**_ratios(counts_ec), "kappa": _ratios(counts_ec)["agreement"]}
    for name in METRICS:
        value, denominator = once[name]
        figures[name] = float(value / denominator) if denominator else None
        examples = np.count_nonzero(basis[name][1])
        figures[f"{name}_ci"] = _interval(*drawn[name]) if denominator and examples > 1 else None
    return figures


def _interval(value_d: np.ndarray, denominator_d: np.ndarray) -> list[float] | None:
    known = denominator_d > 0
    if not known.any():
        return None
    low, high = np.quantile(value_d[known] / denominator_d[known], [0.025, 0.975])
    return [float(low), float(high)]
