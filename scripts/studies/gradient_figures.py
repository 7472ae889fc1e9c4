"""From inner products of gradients to signal, noise, bias and direction.

In: for a set of arms the Gram matrix of their gradients on n batches, K[a, b, i, j] = <gradient of arm a on batch i,
gradient of arm b on batch j>. Batches are independent; on one batch all arms have the same responses. Out: figures.

    <mu_a, mu_b>   of the mean gradients: the mean of K over pairs of different batches, unbiased (it may be negative)
    noise_a        E |gradient - mu_a|^2 of one batch: the mean of K[a, a, i, i] less |mu_a|^2, unbiased
    snr            |mu|^2 / noise of a step
    own            |mu| / sqrt(|mu|^2 + noise): cosine of a step's gradient with its arm's mean gradient
    aligned        <mu_a, mu_r> / (|mu_r| sqrt(|mu_a|^2 + noise_a)): the same with the reference's mean gradient
    bias           |mu_a - mu_r|^2 / |mu_r|^2

A step may be larger or smaller than a batch: its noise is the batch's times `scale`. Bootstrap: batches drawn with
replacement, the same draws for every arm; a pair of one batch with its own copy is left out, or the noise would count
as signal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...eval.bootstrap import interval
from ...eval.metrics import FloatArray

FIGURES = ("snr", "aligned", "bias")


@dataclass(frozen=True, eq=False)
class Moments:
    """Under each draw of batches (W,): inner products of the mean gradients (W, A, A) and noise of a step (W, A)."""

    product: FloatArray
    noise: FloatArray


def moments(gram_abij: FloatArray, weights_wi: FloatArray, scale: float = 1.0) -> Moments:
    """`weights_wi` (W, n): how often each draw took each batch; a row of ones is the sample itself."""
    arms, n = gram_abij.shape[0], gram_abij.shape[-1]
    if n < 3:
        raise ValueError(f"{n} batches; a mean and its noise need at least 3")
    own_abi = np.diagonal(gram_abij, axis1=2, axis2=3)
    total_w = weights_wi.sum(1)
    pairs_w = total_w**2 - (weights_wi**2).sum(1)
    product = np.empty((len(weights_wi), arms, arms))
    for a in range(arms):
        for b in range(arms):
            everything = ((weights_wi @ gram_abij[a, b]) * weights_wi).sum(1)
            with np.errstate(invalid="ignore"):  # of few batches a draw may take one alone: no pair, NaN
                product[:, a, b] = (everything - weights_wi**2 @ own_abi[a, b]) / pairs_w
    squares = weights_wi @ own_abi[np.arange(arms), np.arange(arms)].T / total_w[:, None]
    signal = np.diagonal(product, axis1=1, axis2=2)
    return Moments(product, (squares - signal) * scale)


def figures_of(found: Moments, arm: int, reference: int) -> dict[str, FloatArray]:
    """(W,) of each figure, NaN where it is not defined: a squared norm that came out negative has no root."""
    signal, noise = found.product[:, arm, arm], found.noise[:, arm]
    theirs, cross = found.product[:, reference, reference], found.product[:, arm, reference]
    with np.errstate(invalid="ignore", divide="ignore"):
        return {
            "snr": signal / noise,
            "own": np.sqrt(signal / (signal + noise)),
            "aligned": cross / np.sqrt(theirs * (signal + noise)),
            "bias": (signal - 2 * cross + theirs) / theirs,
            "cosine": cross / np.sqrt(signal * theirs),
            "norm": np.sqrt(signal / theirs),
            "noise": noise / found.noise[:, reference],
        }


def draw_batches(n: int, draws: int, seed: int) -> FloatArray:
    """(draws, n) multinomial weights."""
    return np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=draws).astype(float)


def difference_gram(gram_abij: FloatArray, arm: int, against: int) -> FloatArray:
    """(n, n) inner products of the differences of two arms, batch by batch."""
    k = gram_abij
    return k[arm, arm] - k[arm, against] - k[against, arm] + k[against, against]


def sign_flip_p(gram_ij: FloatArray, draws: int, seed: int) -> float:
    """One-sided p-value of vectors whose mean is 0, from the squared norm of their mean: as often as random signs give
    one as large. Where all inner products are equal (no vector differs from 0, say) it is 1."""
    n = len(gram_ij)
    apart = gram_ij - np.diag(np.diag(gram_ij))
    signs = np.random.default_rng(seed).integers(0, 2, size=(draws, n)) * 2.0 - 1.0
    flipped = ((signs @ apart) * signs).sum(1)
    return float((1 + (flipped >= apart.sum()).sum()) / (1 + draws))


def two_sided_p(values_d: FloatArray) -> float:
    """Of a difference that is 0, from its bootstrap draws; 1 where all of them are 0. Undefined draws count on the
    smaller side."""
    lost = int((~np.isfinite(values_d)).sum())
    sides = (int((values_d <= 0).sum()), int((values_d >= 0).sum()))
    return min(1.0, 2 * (1 + lost + min(sides)) / (1 + len(values_d)))


def contrast(
    gram_abij: FloatArray, pair: tuple[int, int], figure: str, reference: int, draws: int, seed: int, scale=1.0
):
    """Estimate, 95% interval and p-value of arm `pair[0]` against `pair[1]`: the logarithm of the ratio of their `snr` or
    `aligned`; or the `bias` of the first against the second, whose test is one-sided."""
    n = gram_abij.shape[-1]
    weights_wi = np.vstack([np.ones(n), draw_batches(n, draws, seed)])
    found = moments(gram_abij, weights_wi, scale)
    if figure == "bias":
        values = figures_of(found, *pair)["bias"]
        p = sign_flip_p(difference_gram(gram_abij, *pair), draws, seed)
    else:
        with np.errstate(invalid="ignore", divide="ignore"):
            first, second = (np.log(figures_of(found, arm, reference)[figure]) for arm in pair)
        values = first - second
        p = two_sided_p(values[1:])
    return {"estimate": _number(values[0]), "interval": interval(values[1:]), "p": p}


def halves(gram_abij: FloatArray, arm: int, reference: int) -> float:
    """Cosine of the arm's mean gradient on one half of the batches with the reference's on the other, both ways. Nothing
    is corrected: for the reference itself it shows how well these batches can see at all."""
    n = gram_abij.shape[-1]
    even, odd = np.arange(0, n, 2), np.arange(1, n, 2)
    cosines = [
        _sum(gram_abij[arm, reference], one, other)
        / np.sqrt(_sum(gram_abij[arm, arm], one, one) * _sum(gram_abij[reference, reference], other, other))
        for one, other in ((even, odd), (odd, even))
    ]
    return float(np.mean(cosines))


def _sum(gram_ij: FloatArray, rows, columns) -> float:
    return float(gram_ij[np.ix_(rows, columns)].sum())


def measured_cosine(gram_abij: FloatArray, arm: int, reference: int) -> float:
    """Mean cosine of one batch's gradient with the mean gradient of all the other batches."""
    own, cross, theirs = gram_abij[arm, arm], gram_abij[arm, reference], gram_abij[reference, reference]
    with_others = cross.sum(1) - np.diag(cross)
    others = theirs.sum() - 2 * theirs.sum(1) + np.diag(theirs)
    return float(np.mean(with_others / np.sqrt(np.diag(own) * others)))


def matched(gram_abij: FloatArray, rms_ai: FloatArray) -> FloatArray:
    """The same gradients, each divided by the root mean square of its advantages (A, n)."""
    inverse = 1 / rms_ai
    return gram_abij * inverse[:, None, :, None] * inverse[None, :, None, :]


def table(
    gram_abij, rms_ai, arms: Sequence[str], reference: str, scale: float, draws: int, seed: int
) -> dict[str, Any]:
    """The figures of each arm, `value` and 95% `interval` where there is one; `matched_*`: after division by the RMS."""
    n, at = gram_abij.shape[-1], arms.index(reference)
    weights_wi = np.vstack([np.ones(n), draw_batches(n, draws, seed)])
    found = moments(gram_abij, weights_wi, scale)
    scaled = moments(matched(gram_abij, rms_ai), weights_wi, scale)
    out = {}
    for a, arm in enumerate(arms):
        rows = figures_of(found, a, at)
        after = figures_of(scaled, a, at)
        rows |= {f"matched_{name}": after[name] for name in ("snr", "norm", "aligned")}
        told: dict[str, Any] = {
            name: {"value": _number(values[0]), "interval": interval(values[1:])} for name, values in rows.items()
        }
        told["halves"] = _number(halves(gram_abij, a, at))
        told["measured_own"] = _number(measured_cosine(gram_abij, a, a))
        told["measured_aligned"] = _number(measured_cosine(gram_abij, a, at))
        told["bias_p"] = sign_flip_p(difference_gram(gram_abij, a, at), draws, seed) if a != at else None
        out[arm] = told
    return out


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def position_shares(gram_abij: FloatArray, columns: Sequence[tuple[str, int]], reference: str) -> Mapping[str, Any]:
    """Of each arm and part of a response: its share of the reference's noise and of the reference's signal, as the
    covariance, or the inner product of the means, of the part's gradient with the arm's own whole. An arm's shares add up
    to its own noise, or signal, over the reference's."""
    arms = list(dict.fromkeys(arm for arm, _ in columns))
    n, out = gram_abij.shape[-1], {}
    for arm in arms:
        own = [k for k, (name, _) in enumerate(columns) if name == arm]
        rows = np.array([sum(gram_abij[k, other] for other in own) for k in own])  # (parts, n, n): part with whole
        together = np.trace(rows, axis1=1, axis2=2) / n
        signal = (rows.sum((1, 2)) - together * n) / (n * (n - 1))
        out[arm] = {"signal": signal, "noise": together - signal}
    whole = {name: out[reference][name].sum() for name in ("signal", "noise")}
    return {arm: {name: (row[name] / whole[name]).tolist() for name in row} for arm, row in out.items()}
