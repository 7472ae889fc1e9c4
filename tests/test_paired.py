"""Paired comparisons against scipy and statsmodels, by hand, and where nothing is defined."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from claimwise.eval.paired import Difference, at_level, compare, in_words, with_holm
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.weightstats import DescrStatsW

NUMBERS = st.floats(-3, 3)
PAIRS = st.lists(st.tuples(NUMBERS, NUMBERS), min_size=2, max_size=20)


def test_by_hand():
    """Differences 1, 2, 3: mean 2, standard error 1/sqrt(3), t(0.975, 2) = 4.302653: 2 -+ 2.484138."""
    found = compare([2, 4, 6], [1, 2, 3])
    assert (found.n, found.mean) == (3, 2.0)
    assert (found.low, found.high) == (pytest.approx(-0.484138, abs=1e-6), pytest.approx(4.484138, abs=1e-6))
    assert found.p == pytest.approx(2 * stats.t.sf(2 * math.sqrt(3), 2))


def test_equals_the_paired_test_of_scipy_and_the_interval_of_statsmodels():
    rng = np.random.default_rng(0)
    a, b = rng.normal(0.3, 1, 20), rng.normal(0, 1, 20)
    found = compare(a.tolist(), b.tolist())
    assert found.p == pytest.approx(stats.ttest_rel(a, b).pvalue)
    assert (found.low, found.high) == pytest.approx(DescrStatsW(a - b).tconfint_mean(0.05))


@given(PAIRS)
def test_nothing_is_ever_nan_and_the_interval_holds_the_mean(pairs):
    a, b = zip(*pairs, strict=True)
    found, turned = compare(a, b), compare(b, a)
    assert not any(math.isnan(v) for v in dataclasses.astuple(found) if v is not None)
    assert found.low <= found.mean <= found.high and 0 <= found.p <= 1
    assert turned.mean == pytest.approx(-found.mean) and turned.p == pytest.approx(found.p)


def test_differences_that_are_all_the_same():
    assert compare([0.5] * 6, [0.5] * 6) == Difference(6, 0.0, 0.0, 0.0, 1.0)
    # six seeds, all of the same sign: 2 of the 64 ways to flip the signs are as far from zero
    assert compare([1.0] * 6, [0.5] * 6) == Difference(6, 0.5, 0.5, 0.5, 2 / 64)


def test_too_few_seeds_and_missing_ones():
    assert compare([], []) == Difference(0, None)
    assert compare([1.0, None], [0.5, 2.0]) == Difference(1, 0.5)
    assert compare([1.0, None, 3.0, 5.0], [0.0, 1.0, 1.0, None]).n == 2
    with pytest.raises(ValueError):
        compare([1.0], [1.0, 2.0])


def test_holm():
    """Sorted p .01, .02, .04 of three: 3 x .01, 2 x .02, 1 x .04, never falling; the one without p is not counted."""
    found = with_holm({k: Difference(5, 0.1, 0, 1, p) for k, p in {"a": 0.04, "b": 0.01, "c": 0.02, "d": None}.items()})
    assert [found[k].p_holm for k in "abc"] == pytest.approx([0.04, 0.03, 0.04])
    assert found["d"].p_holm is None and not found["d"].shown and found["a"].shown
    assert with_holm({}) == {}


@given(st.lists(st.floats(0.01, 2), min_size=1, max_size=6), st.floats(0, 12))
def test_a_rising_level_is_interpolated_like_numpy_does(rises, level):
    levels = np.cumsum([0.0, *rises]).tolist()
    values = np.sin(levels).tolist()
    found = at_level(level, levels, values)
    assert (found is None) == (level > levels[-1])
    if found is not None:
        assert found == pytest.approx(np.interp(level, levels, values))


def test_the_first_crossing_counts():
    assert at_level(1.0, [0.0, 2.0, 0.5, 3.0], [0.0, 0.4, 0.1, 1.0]) == pytest.approx(0.2)
    assert at_level(0.0, [0.0, 1.0], [0.3, 0.9]) == 0.3 and at_level(1.0, [], []) is None


def test_words():
    differs = Difference(20, 0.03, 0.01, 0.05, 0.001, 0.004)
    null = Difference(20, 0.002, -0.011, 0.015, 0.7, 1.0)
    assert in_words("a - b", {"answer": differs, "digits": null}) == (
        "a - b: a difference in answer +0.030; no difference shown in digits (-0.011 to +0.015)."
    )
    assert "a null result: no difference shown in digits" in in_words("a - b", {"digits": null})
    assert in_words("a - b", {"digits": Difference(1, 0.1)}) == "a - b: too few seeds for digits."
