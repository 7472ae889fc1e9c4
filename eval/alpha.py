"""Krippendorff's alpha for nominal values, any number of people, missing values allowed (Krippendorff 2011, "Computing
Krippendorff's Alpha-Reliability").

In: how often each value was given to each unit. Out: alpha as numerator and denominator, from sums over units, so that a
bootstrap over examples is a product of weights with the sums of each example.

    alpha = 1 - D_o / D_e = 1 - (n - 1) O / (n^2 - sum over values c of n_c^2)

with m_u values given to unit u, O the sum over units with m_u >= 2 of (m_u^2 - sum of n_uc^2) / (m_u - 1), n_c and n the
sums of n_uc and m_u over those units. The one maintained package for it is under the GPL, which this project is not.
"""

from __future__ import annotations

import numpy as np

from .metrics import FloatArray, Ratio


def columns(counts_uv: FloatArray, weight_u: FloatArray | None = None) -> FloatArray:
    """(U, 1 + V): each unit's disagreement, and its values where it has at least two; 0 where it has not. Counted
    `weight_u` times."""
    given_u = counts_uv.sum(-1)
    paired_u = given_u >= 2
    unlike_u = (given_u**2 - (counts_uv**2).sum(-1)) / np.maximum(given_u - 1, 1)
    columns_uc = np.column_stack([unlike_u, counts_uv]) * paired_u[:, None]
    return columns_uc if weight_u is None else columns_uc * weight_u[:, None]


def alpha(sums_xc: FloatArray) -> Ratio:
    """Numerator and denominator, (...,), of sums of `columns` over units. A denominator of 0: alpha is not defined,
    for want of units with two values, or because all values are the same."""
    unlike, values = sums_xc[..., 0], sums_xc[..., 1:]
    n = values.sum(-1)
    by_chance = n**2 - (values**2).sum(-1)
    return by_chance - (n - 1) * unlike, by_chance
