"""What more of a teacher's verdicts would buy: agreement at growing numbers of them, and the next doubling's gain.

In: of verifiers distilled on n_1 < n_2 < ... < N verdicts, their verdicts on the same held-out rollouts, and the
teacher's there. Out: figures per point with intervals over examples, and the expected gain from N to 2N with its own.

The gain comes from a saturating power law, y(n) = a - b (n / N)^-c, which is how errors fall with data in many places
(Hestness et al. 2017, arXiv 1712.00409): gain = y(2N) - y(N) = b (1 - 2^-c). Its interval holds both that other
examples might have been held out (the fit is repeated on draws of the examples, the same for all points) and that other
trainings scatter round the curve (by the fit's own residuals). Where the points do not show such a curve, or are too
few, the fit promises nothing: then the gain of the last doubling is given instead, and the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ..verifier.errors import InputError
from ..verifier.schema import Verdict
from . import metrics
from .bootstrap import interval, resample
from .metrics import FloatArray
from .pairs import as_arrays, count, matched

FIGURES = ("agreement", "kappa")
POINTS_TO_FIT = 4  # one more than the law has numbers
# Exponents tried, in steps of 1%: at the low end the curve is straight over doublings, at the high end all but the
# first point are level.
C_G = np.geomspace(0.05, 3.0, 412)
SETTLED = 0.75  # share of the draws whose exponent must lie between the ends


def learning_curve(
    reference: Sequence[Verdict],
    judged: Sequence[Sequence[Verdict]],
    bought: Sequence[int],
    draws: int = 1000,
    seed: int = 0,
) -> dict[str, Any]:
    """{"points": [{"verdicts", "agreement", "agreement_ci", "kappa", "kappa_ci"}], "next_doubling": {figure: gain}};
    `judged` are the verdicts of the verifiers that were trained on `bought` verdicts each, in rising order."""
    if any(a >= b for a, b in pairwise(bought)):
        raise InputError(f"the points of a curve must have more and more verdicts, not {list(bought)}")
    names = ("the teacher", "the verifier")
    arrays = [as_arrays(matched(reference, own, names)) for own in judged]
    counted = [count(pairs, ranked=False) for pairs in arrays]
    drawn = resample(counted, arrays[0].examples, draws, seed)
    points: list[dict[str, Any]] = [{"verdicts": n} for n in bought]
    gains = {}
    for name in FIGURES:
        values_k = np.array([_ratio(*metrics.ratios(group.counts_xc.sum(0))[name]) for group in counted])
        draws_dk = np.stack([_ratio(*metrics.ratios(sample.counts_dc)[name]) for sample in drawn], axis=1)
        for point, value, values_d in zip(points, values_k, draws_dk.T, strict=True):
            point[name] = float(value) if np.isfinite(value) else None
            point[f"{name}_ci"] = interval(values_d)
        gains[name] = next_doubling(np.array(bought, dtype=float), values_k, draws_dk, seed)
    return {"points": points, "examples": arrays[0].examples, "next_doubling": gains}


def _ratio(numerator: FloatArray, denominator: FloatArray) -> FloatArray:
    """NaN where there is no basis."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(denominator > 0, numerator / denominator, np.nan)


def next_doubling(n_k: FloatArray, y_k: FloatArray, y_dk: FloatArray, seed: int = 0) -> dict[str, Any]:
    """The expected gain from n_K to 2 n_K.

    n_k (K,) rising; y_k (K,) the values there; y_dk (D, K) the values in draws of the examples. Out: "method" ("fit" or
    "last doubling"), "gain", "gain_ci", "why" (None, or why the fit is not used), "fit" ({a, b, c} or None). The gain
    is None where a point has no value, or there is only one.
    """
    if not np.isfinite(y_k).all():
        return {"method": "last doubling", "gain": None, "gain_ci": None, "why": "a point has no value", "fit": None}
    y_dk = y_dk[np.isfinite(y_dk).all(axis=1)]
    fit, why = _fit_or_reason(n_k, y_k)
    if fit is not None:
        b_d, c_d = _fits_of_draws(n_k, y_k, y_dk, fit, seed)
        settled = float(_inside(b_d, c_d).mean()) if len(y_dk) else 1.0
        if settled >= SETTLED:
            gain, ci = _gain(fit["b"], fit["c"]), interval(_gain(b_d, c_d))
            return {"method": "fit", "gain": gain, "gain_ci": ci, "why": None, "fit": fit}
        why = f"in {1 - settled:.0%} of the draws the points show no levelling off, or no rise"
    if len(n_k) < 2:
        return {"method": "last doubling", "gain": None, "gain_ci": None, "why": why, "fit": None}
    doublings = np.log2(n_k[-1] / n_k[-2])
    last, ci = float((y_k[-1] - y_k[-2]) / doublings), interval((y_dk[:, -1] - y_dk[:, -2]) / doublings)
    return {"method": "last doubling", "gain": last, "gain_ci": ci, "why": why, "fit": None}


def fit_power_law(n_k: FloatArray, y_dk: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """a, b, c (D,) of least squares for each row: for an exponent of the grid a and b are those of a straight line in
    (n / N)^-c, so the best one is simply looked up (separable least squares, Golub and Pereyra 1973)."""
    power_gk = (n_k / n_k[-1]) ** -C_G[:, None]
    x_gk = power_gk - power_gk.mean(axis=1, keepdims=True)
    y_mean_d = y_dk.mean(axis=1)
    y_dk = y_dk - y_mean_d[:, None]
    squares_g = (x_gk**2).sum(axis=1)
    b_dg = -(y_dk @ x_gk.T) / squares_g
    best_d = (b_dg**2 * squares_g).argmax(axis=1)  # what the line explains
    b_d = b_dg[np.arange(len(y_dk)), best_d]
    return y_mean_d + b_d * power_gk.mean(axis=1)[best_d], b_d, C_G[best_d]


def _gain(b: Any, c: Any) -> Any:
    return b * (1 - 2**-c)


def _inside(b_d: FloatArray, c_d: FloatArray) -> Any:
    return (b_d > 0) & (c_d > C_G[0]) & (c_d < C_G[-1])


def _fit_or_reason(n_k: FloatArray, y_k: FloatArray) -> tuple[dict[str, float] | None, str | None]:
    if len(n_k) < POINTS_TO_FIT:
        return None, f"a curve needs {POINTS_TO_FIT} points, here are {len(n_k)}"
    a, b, c = (float(value_d[0]) for value_d in fit_power_law(n_k, y_k[None]))
    if y_k[-1] <= y_k[0] or b <= 0 or c == C_G[-1]:
        return None, "the points show no steady rise"
    if c == C_G[0]:
        return None, "the points show no levelling off"
    return {"a": a, "b": b, "c": c}, None


def _fits_of_draws(
    n_k: FloatArray, y_k: FloatArray, y_dk: FloatArray, fit: dict[str, float], seed: int
) -> tuple[FloatArray, FloatArray]:
    """b and c (D,): each draw is the fitted curve, moved as the draw moves the points, with a scatter of the size of
    the residuals."""
    curve_k = fit["a"] - fit["b"] * (n_k / n_k[-1]) ** -fit["c"]
    scatter = np.sqrt(((y_k - curve_k) ** 2).sum() / (len(n_k) - 3))
    noise_dk = np.random.default_rng(seed).normal(0, scatter, y_dk.shape)
    return fit_power_law(n_k, curve_k + (y_dk - y_k) + noise_dk)[1:]
