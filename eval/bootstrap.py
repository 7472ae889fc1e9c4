"""A bootstrap over examples, whose verdicts are not independent: as many examples as there are, drawn with replacement.

In: counts per example (or ranks). Out: the counts of each draw. A draw is a vector of multinomial weights over the
examples, so that 1,000 draws of a million pairs are one matrix product of the weights with the counts per example.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from .metrics import FloatArray, IntArray, Ranked

BATCH = 2_000_000  # weights held at a time, which bounds the memory


@dataclass(frozen=True, eq=False)
class Clustered:
    """The counts of one group of pairs: rows of the examples that have any, and the pairs in order of P(yes)."""

    examples_x: IntArray
    counts_xc: FloatArray
    ranked: Ranked | None = None


@dataclass(frozen=True, eq=False)
class Drawn:
    """`counts_dc` of each draw; `auroc_r` of the first ones, NaN where a draw has only one class."""

    counts_dc: FloatArray
    auroc_r: FloatArray


def draw_weights(examples: int, draws: int, seed: int) -> Iterator[FloatArray]:
    """Batches (b, examples) of how often each draw took each example."""
    rng = np.random.default_rng(seed)
    batch = max(1, BATCH // max(1, examples))
    for first in range(0, draws if examples else 0, batch):
        weights_be = np.empty((min(batch, draws - first), examples))
        for weights_e in weights_be:
            weights_e[:] = np.bincount(rng.integers(examples, size=examples), minlength=examples)
        yield weights_be


def resample(groups: Sequence[Clustered], examples: int, draws: int, seed: int, rank_draws: int = 0) -> list[Drawn]:
    """The counts of each group in each draw, all groups under the same draws; AUROC in the first `rank_draws`."""
    drawn = [
        Drawn(np.zeros((draws if examples else 0, group.counts_xc.shape[1])), np.full(min(rank_draws, draws), np.nan))
        for group in groups
    ]
    first = 0
    for weights_be in draw_weights(examples, draws, seed):
        for group, out in zip(groups, drawn, strict=True):
            everyone = len(group.examples_x) == examples
            out.counts_dc[first : first + len(weights_be)] = (
                weights_be if everyone else weights_be[:, group.examples_x]
            ) @ group.counts_xc
            if group.ranked is not None:
                for d in range(first, min(first + len(weights_be), len(out.auroc_r))):
                    found = group.ranked.auroc(weights_be[d - first])
                    out.auroc_r[d] = np.nan if found is None else found
        first += len(weights_be)
    return drawn


def interval(values: FloatArray) -> list[float] | None:
    """2.5% and 97.5% quantiles of the draws that have a value; None where none has."""
    known = values[np.isfinite(values)]
    if not len(known):
        return None
    low, high = np.quantile(known, [0.025, 0.975])
    return [float(low), float(high)]


def ratio_interval(numerator_d: FloatArray, denominator_d: FloatArray) -> list[float] | None:
    known = denominator_d > 0
    return interval(numerator_d[known] / denominator_d[known])
