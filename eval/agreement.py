"""How far two verdict tables agree, overall and per group of pairs, with bootstrap intervals.

In: two lists of verdicts on the same (rollout, criterion) pairs, the first being the reference. Out: the dictionary
that `claimwise agree --json` prints. A pair counts where both verdicts are known; missing ones are shown, never scored.

    n                       pairs known on both sides; missing_a, missing_b: unknown verdicts of either side
    always_a, always_b      "yes" or "no" where that judge says nothing else over those pairs, else null
    agreement, kappa, ...   the figures of `metrics`
    *_ci                    2.5% and 97.5% quantiles of a bootstrap over examples, whose verdicts are not independent
    undefined               why a figure, or its interval, is null: it has no basis (nothing to count, a class that never
                            occurs, kappa where both sides are constant and alike), or it rests on a single example
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..verifier.errors import InputError
from ..verifier.schema import GROUPS, Verdict
from . import metrics
from .bootstrap import Clustered, Drawn, interval, ratio_interval, resample
from .metrics import METRICS
from .pairs import Names, as_arrays, count, labels_of, matched

RANK_DRAWS = 100  # bootstrap draws of AUROC, which needs all pairs in each, not counts alone
Label = Callable[[Verdict], str | None]


def agree(
    reference: Sequence[Verdict],
    other: Sequence[Verdict],
    draws: int = 1000,
    seed: int = 0,
    dimensions: Mapping[tuple[str, str], str | None] | None = None,
    names: Names = ("the reference table", "the other table"),
    by: Mapping[str, Label] | None = None,
    token_offsets: Mapping[str, ArrayLike] | None = None,
) -> dict[str, Any]:
    """Figures of `other` against `reference`: "overall", "by_dimension", and "by_NAME" for each of `by`.

    `dimensions` maps (example_id, criterion_id) to VF, RC, IF, PITFALL or None; without it the verdicts' own count, the
    reference's first. `by` maps a name to the label of a reference's verdict (see `slices`). Pairs without a label
    count in "overall" only. `token_offsets` has the characters of each token, (T, 2), by rollout, for distances in
    tokens. `names` are how errors call the two tables. Raises InputError where a pair is judged twice or the two tables
    do not judge the same pairs.
    """
    if draws < 0 or seed < 0:
        raise InputError(f"draws is {draws} and seed {seed}; neither can be negative (0 draws: no intervals)")
    rows = matched(reference, other, names)
    pairs = as_arrays(rows, token_offsets)
    groups: dict[tuple[str, str], Clustered] = {("overall", ""): count(pairs)}
    labelled = {"dimension": lambda a, b: _dimension(a, b, dimensions)}
    labelled |= {name: lambda a, _, label=label: label(a) for name, label in (by or {}).items()}
    for name, label in labelled.items():
        code_p, labels = labels_of(rows, label)
        for group in sorted(labels, key=_order):
            groups[f"by_{name}", group] = count(pairs, code_p == labels.index(group))
    drawn = resample(list(groups.values()), pairs.examples, draws, seed, min(draws, RANK_DRAWS))
    result: dict[str, Any] = {"overall": {}, **{f"by_{name}": {} for name in labelled}}
    for ((family, group), counted), sample in zip(groups.items(), drawn, strict=True):
        figures = _figures(counted, sample)
        result[family] = figures if family == "overall" else {**result[family], group: figures}
    return result


def ceiling(reference: Sequence[Verdict], again: Sequence[Verdict], names: Names, **settings: Any) -> dict[str, Any]:
    """`agree` of the reference with itself (asked again, in other words, in the other mode) on the pairs that were asked
    again, which may be a part of them. `settings` are those of `agree`.

    `most_agreement`, beside the overall agreement c, is what the best student can reach: one that always gives the
    teacher's likelier answer agrees with it more often than the teacher with itself, up to (1 + sqrt(2 c - 1)) / 2 where
    the teacher's answers to a question are independent draws. None where the mode is another: that is another question.
    """
    asked = {verdict.key for verdict in again}
    before = [verdict for verdict in reference if verdict.key in asked]
    result = agree(before, again, names=names, **settings)
    agreement: float | None = result["overall"]["agreement"]
    same_question = {verdict.mode for verdict in before} == {verdict.mode for verdict in again}
    result["most_agreement"] = None
    if same_question and agreement is not None and agreement >= 0.5:
        result["most_agreement"] = (1 + math.sqrt(2 * agreement - 1)) / 2
    return result


def _order(group: str) -> tuple[int, int, str]:
    """Dimensions in their order, ranges by their first number, names by the alphabet."""
    if group in GROUPS:
        return GROUPS.index(group), 0, group
    number = re.match(r"\d{1,18}", group)
    return len(GROUPS), int(number[0]) if number else 0, group


def _dimension(a: Verdict, b: Verdict, dimensions: Mapping[tuple[str, str], str | None] | None) -> str | None:
    if dimensions is None:
        return a.dimension or b.dimension
    if (a.example_id, a.criterion_id) not in dimensions:
        raise InputError(
            f"the examples table has no criterion {a.criterion_id!r} of example {a.example_id!r}; give the examples "
            "that the verdicts were made on"
        )
    return dimensions[a.example_id, a.criterion_id]


def _figures(counted: Clustered, drawn: Drawn) -> dict[str, Any]:
    total_c = counted.counts_xc.sum(0)
    a_yes, a_no = (metrics.YES_YES, metrics.YES_NO), (metrics.NO_YES, metrics.NO_NO)
    b_yes, b_no = (metrics.YES_YES, metrics.NO_YES), (metrics.YES_NO, metrics.NO_NO)
    figures: dict[str, Any] = {
        "n": int(total_c[: metrics.NO_NO + 1].sum()),
        "missing_a": int(total_c[metrics.MISSING_A]),
        "missing_b": int(total_c[metrics.MISSING_B]),
        "always_a": metrics.constant(total_c, a_yes, a_no),
        "always_b": metrics.constant(total_c, b_yes, b_no),
    }
    undefined: dict[str, str] = {}
    examples = metrics.basis(counted.counts_xc)
    for name, (value, ci) in _values(counted, drawn, total_c).items():
        figures[name], figures[f"{name}_ci"] = value, ci if examples[name] > 1 else None
        if value is None:
            undefined[name] = metrics.why_undefined(name, total_c)
        elif examples[name] <= 1 and len(drawn.counts_dc):
            undefined[f"{name}_ci"] = "it rests on a single example"
    return {**figures, "undefined": undefined}


def _values(counted: Clustered, drawn: Drawn, total_c: np.ndarray) -> dict[str, tuple[float | None, Any]]:
    """Value and interval of every figure, in the order of METRICS."""
    found: dict[str, tuple[float | None, Any]] = {}
    sampled = metrics.ratios(drawn.counts_dc)
    for name, (value, denominator) in metrics.ratios(total_c).items():
        defined = bool(denominator)
        found[name] = (
            float(value / denominator) if defined else None,
            ratio_interval(*sampled[name]) if defined else None,
        )
    every_example_once = np.ones(int(counted.examples_x.max(initial=-1)) + 1)
    auroc = None if counted.ranked is None else counted.ranked.auroc(every_example_once)
    found["auroc"] = auroc, None if auroc is None else interval(drawn.auroc_r)
    return {name: found[name] for name in METRICS}
