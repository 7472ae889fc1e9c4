"""Is P(yes) what it says? Expected calibration error, and the temperature that makes it so.

In: P(yes), or the margin logit(yes) - logit(no), of each verdict, with the reference's verdicts. Out: one number.

    ECE = sum over bins of (share of verdicts in the bin) * |mean P(yes) - share of yes|       (Naeini et al. 2015)
    T = argmin NLL of P(yes) = sigmoid(margin / T)                                             (Guo et al. 2017)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..verifier.errors import InputError

# Where margins separate yes from no, the likelihood rises without end as T falls; where they say the opposite, as T
# grows.
TEMPERATURE_BOUNDS = (0.05, 20.0)


def expected_calibration_error(
    p_yes: Sequence[float | None] | np.ndarray, verdicts: Sequence[bool | None] | np.ndarray, bins: int = 15
) -> float:
    """ECE of P(yes) in 0..1 over bins of equal width; a pair with a None on either side is not scored."""
    p, yes = _known(p_yes, verdicts)
    if not ((p >= 0) & (p <= 1)).all():
        raise InputError("p_yes must lie in 0..1")
    bin_of = np.minimum((p * bins).astype(int), bins - 1)  # 1.0 belongs to the last bin
    return float(np.abs(np.bincount(bin_of, p - yes, minlength=bins)).sum() / len(p))


def fit_temperature(
    logit_margin: Sequence[float | None] | np.ndarray, verdicts: Sequence[bool | float | None] | np.ndarray
) -> float:
    """The T in 0.05..20 that minimises the negative log-likelihood of the verdicts under sigmoid(margin / T).

    `verdicts` may be a teacher's P(yes) in 0..1 instead. Convex in 1/T, so the bounded search finds the one minimum;
    1.0 where no T is better than another (all margins 0). Where the margins separate yes from no, as they may where there
    are few or all are yes, there is none: then the verdicts count as Platt's (1999) targets, (n + 1) / (n + 2) for the n
    that are yes and 1 / (n + 2) for the n that are no, or every P(yes) would be 0 or 1.
    """
    margin, yes = _known(logit_margin, verdicts)
    if not np.isfinite(margin).all() or not ((yes >= 0) & (yes <= 1)).all():
        raise InputError("margins must be finite, and what they are fitted to must lie in 0..1")
    if not margin.any():
        return 1.0
    if np.isin(yes, (0, 1)).all() and ((yes - 0.5) * margin >= 0).all():
        count = np.where(yes == 1, yes.sum(), (1 - yes).sum())
        yes = np.where(yes == 1, count + 1, 1) / (count + 2)
    return _likeliest(margin, yes)


def _likeliest(margin: np.ndarray, yes: np.ndarray) -> float:
    from scipy.optimize import minimize_scalar

    def nll(log_t: float) -> float:
        z = margin / np.exp(log_t)
        return float(np.mean(np.logaddexp(0, z) - yes * z))

    low, high = np.log(TEMPERATURE_BOUNDS)
    best = minimize_scalar(nll, bounds=(low, high), method="bounded", options={"xatol": 1e-6})
    return float(np.exp(best.x))


def _known(figures: object, verdicts: object) -> tuple[np.ndarray, np.ndarray]:
    x, y = np.array(figures, dtype=float), np.array(verdicts, dtype=float)  # None becomes NaN
    if x.shape != y.shape or x.ndim != 1:
        raise InputError(f"{x.shape} figures do not match {y.shape} verdicts; give two lists of equal length")
    known = ~np.isnan(x) & ~np.isnan(y)
    if not known.any():
        raise InputError("there is no known verdict to calibrate on")
    return x[known], y[known]
