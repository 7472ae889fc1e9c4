"""Paired comparisons over seeds: differences, their intervals and p-values, Holm's correction, and values at equal level.

In: the outcomes of two settings, a number per seed, seed by seed in the same order. Out: `Difference`. Seeds share their
data and their random numbers, so only their differences are compared (Student's t of the differences, by scipy).
Differences that are all the same have no spread to measure against: the interval is the point, and the p-value that of
the sign-flip test. Nothing here is ever NaN: what is not defined is None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

CONFIDENCE = 0.95
ALPHA = 0.05
_ROUNDING = 1e-12  # differences that spread less are equal


@dataclass(frozen=True)
class Difference:
    """a - b over n seeds: its mean, the 95% interval and the two-sided p-value (None below two seeds; of no seed the
    mean too), and the p-value after Holm's correction where one was made."""

    n: int
    mean: float | None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    p_holm: float | None = None

    @property
    def shown(self) -> bool:
        """Is there a difference after correction? False is not "equal": see `low` and `high`."""
        return self.p_holm is not None and self.p_holm < ALPHA


def compare(a: Sequence[float | None], b: Sequence[float | None]) -> Difference:
    """Pairs of which one is None are left out, and not counted in n. Raises ValueError for lists of different lengths."""
    pairs = [(x, y) for x, y in zip(a, b, strict=True) if x is not None and y is not None]
    if not pairs:
        return Difference(0, None)
    left, right = np.array(pairs, dtype=float).T
    differences = left - right
    mean = float(differences.mean())
    if len(pairs) < 2:
        return Difference(1, mean)
    if np.ptp(differences) < _ROUNDING:
        p = 1.0 if abs(mean) < _ROUNDING else min(1.0, 2.0 ** (1 - len(pairs)))
        return Difference(len(pairs), mean, mean, mean, p)
    from scipy.stats import ttest_1samp

    result: Any = ttest_1samp(differences, 0.0)
    interval = result.confidence_interval(CONFIDENCE)
    return Difference(len(pairs), mean, float(interval.low), float(interval.high), float(result.pvalue))


def with_holm(differences: Mapping[Any, Difference]) -> dict[Any, Difference]:
    """The same differences with Holm's correction over all of them that have a p-value."""
    from statsmodels.stats.multitest import multipletests

    tested = {key: d.p for key, d in differences.items() if d.p is not None}
    corrected: Any = multipletests(list(tested.values()), ALPHA, method="holm")[1] if tested else []
    p_holm = {key: float(p) for key, p in zip(tested, corrected, strict=True)}
    return {key: replace(d, p_holm=p_holm.get(key)) for key, d in differences.items()}


def at_level(level: float, levels: Sequence[float], values: Sequence[float]) -> float | None:
    """The value where `levels` first reaches `level`, between two points along the straight line; None if it never does.
    Training moves a policy away from its start mostly, but not at every step: later crossings do not count."""
    if not levels or levels[0] >= level:
        return values[0] if levels else None
    for i in range(1, len(levels)):
        if levels[i] >= level:
            share = (level - levels[i - 1]) / (levels[i] - levels[i - 1])
            return values[i - 1] + share * (values[i] - values[i - 1])
    return None


def in_words(name: str, by_metric: Mapping[str, Difference]) -> str:
    """One sentence on a contrast: in which outcomes a difference is shown, in which none is, and how large one might
    still be there."""
    shown = [f"{metric} {d.mean:+.3f}" for metric, d in by_metric.items() if d.shown]
    null = [
        f"{metric} ({d.low:+.3f} to {d.high:+.3f})"
        for metric, d in by_metric.items()
        if not d.shown and d.low is not None and d.high is not None
    ]
    untested = [metric for metric, d in by_metric.items() if d.low is None]
    parts = [f"a difference in {', '.join(shown)}"] if shown else []
    parts += [
        f"{'no difference shown' if shown else 'a null result: no difference shown'} in {', '.join(null)}"
    ] * bool(null)
    parts += [f"too few seeds for {', '.join(untested)}"] * bool(untested)
    return f"{name}: {'; '.join(parts)}."
