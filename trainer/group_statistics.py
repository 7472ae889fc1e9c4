"""z and sums over a group of G responses, where any value may be missing.

In: values (G,) or (G, K), one column per part, NaN where missing. Missing is neither 0 nor 1: a missing value has z = 0
and stands for its column's mean in a sum, so that failing to be judged is neither good nor bad.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

EPSILON = 1e-4
# Values in 0..1 that differ by less are equal but for rounding: rewards summed in another order, say.
_ROUNDING = 1e-12


def z_scores(values: FloatArray) -> FloatArray:
    """(u - mean) / (std + eps) over the known values of each column, std with Bessel's correction; 0 where missing, and
    everywhere in a column with fewer than two known values or with equal ones."""
    deviation, scale = _deviation_and_scale(values)
    return deviation / scale


def _deviation_and_scale(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """(u - mean), 0 where missing, and std + eps per column: infinite where the column has no spread."""
    known = ~np.isnan(values)
    count = known.sum(axis=0)
    mean = np.where(known, values, 0.0).sum(axis=0) / np.maximum(count, 1)
    deviation = np.where(known, values - mean, 0.0)
    std = np.sqrt((deviation**2).sum(axis=0) / np.maximum(count - 1, 1))
    spread = deviation.max(axis=0) - deviation.min(axis=0) > _ROUNDING
    return deviation, np.where(spread, std + EPSILON, np.inf)


def weighted_sum(values_gk: FloatArray, shares_k: FloatArray) -> FloatArray:
    """sum_k share_k u_gk (G,), NaN where every part with a share is missing."""
    some_known = (~np.isnan(values_gk) & (shares_k > 0)).any(axis=1)
    return np.where(some_known, _filled(values_gk) @ shares_k, np.nan)


def z_of_sum(values_gk: FloatArray, shares_k: FloatArray) -> FloatArray:
    """z of the weighted sum, as its parts' contributions (G, K) before the shares: z(sum)_g = sum_k share_k out_gk.

    z is linear once its mean and std are given, so each part's own contribution is known even where only the sum is
    normalised.
    """
    total_g = weighted_sum(values_gk, shares_k)
    _, scale = _deviation_and_scale(total_g)
    known = ~np.isnan(total_g)
    filled = _filled(values_gk)
    mean = filled.sum(axis=0, where=known[:, None]) / max(known.sum(), 1)
    return np.where(known[:, None], filled - mean, 0.0) / scale


def _filled(values_gk: FloatArray) -> FloatArray:
    """A missing value takes the mean of its column's known ones; a column unknown for the whole group becomes 0, which
    drops the part from a sum without renormalising the rest."""
    known = ~np.isnan(values_gk)
    mean = np.where(known, values_gk, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    return np.where(known, values_gk, mean)
