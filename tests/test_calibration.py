"""Calibration: ECE by hand, the temperature that data were made with, and data that have none."""

import math

import numpy as np
import pytest
from claimwise.eval.calibration import TEMPERATURE_BOUNDS, expected_calibration_error, fit_temperature
from claimwise.verifier.errors import InputError


def test_ece_by_hand():
    # Two bins. Low: p .1 .3, yes 0 1: |.2 - .5| = .3 for half the verdicts. High: p .9 1.0, yes 1 1: |.95 - 1| = .05.
    assert expected_calibration_error([0.1, 0.3, 0.9, 1.0], [False, True, True, True], bins=2) == pytest.approx(0.175)
    # Fifteen bins: each p alone in its bin, |p - yes| on average.
    assert expected_calibration_error([0.1, 0.3, 0.9, 1.0], [False, True, True, True]) == pytest.approx(0.9 / 4)
    assert expected_calibration_error([0.0, 1.0], [False, True]) == 0
    assert expected_calibration_error([0.0, 1.0], [True, False]) == 1


def test_missing_verdicts_are_not_scored():
    assert expected_calibration_error([0.1, None, 0.8, 0.5], [False, True, True, None]) == pytest.approx(0.15)
    assert fit_temperature([2.0, None, -1.0, 3.0, 1.0], [True, True, False, None, False]) == fit_temperature(
        [2.0, -1.0, 1.0], [True, False, False]
    )


@pytest.mark.parametrize("temperature", [0.3, 1.0, 4.0])
def test_the_temperature_of_the_data_is_found(temperature):
    rng = np.random.default_rng(0)
    z = rng.normal(0, 2, 20_000)
    yes = rng.random(20_000) < 1 / (1 + np.exp(-z))
    fitted = fit_temperature(z * temperature, yes)
    assert fitted == pytest.approx(temperature, rel=0.05)
    before = expected_calibration_error(1 / (1 + np.exp(-z * temperature)), yes)
    after = expected_calibration_error(1 / (1 + np.exp(-z * temperature / fitted)), yes)
    assert after < 0.02 and (temperature == 1.0 or before > 0.05)


def test_two_margins_by_hand():
    # Margin 2 is right 3 times of 4: sigmoid(2 / T) = .75, T = 2 / ln 3.
    assert fit_temperature([2.0] * 4, [True, True, True, False]) == pytest.approx(2 / math.log(3), rel=1e-4)


def test_a_teachers_p_yes_may_be_the_target():
    margin = np.linspace(-5, 5, 101)
    assert fit_temperature(margin, 1 / (1 + np.exp(-margin / 1.7))) == pytest.approx(1.7, rel=1e-3)


@pytest.mark.parametrize(
    ("margin", "verdicts", "bound"),
    [
        ([-0.01, 0.01], [False, True], 0),  # separable, and with hardly a margin
        ([1000.0, -1000.0], [True, False], None),  # no overflow
        ([-3.0, 3.0], [True, False], 1),  # always wrong: the flatter the better
    ],
)
def test_without_an_inner_minimum_it_stays_in_bounds(margin, verdicts, bound):
    fitted = fit_temperature(margin, verdicts)
    assert math.isfinite(fitted) and TEMPERATURE_BOUNDS[0] <= fitted <= TEMPERATURE_BOUNDS[1]
    assert bound is None or fitted == pytest.approx(TEMPERATURE_BOUNDS[bound], rel=0.01)


@pytest.mark.parametrize(
    ("margin", "verdicts", "temperature"),
    [
        ([3.0] * 8, [True] * 8, 3 / math.log(9)),  # one class: 9 of 10 are yes
        ([-2.0, 2.0], [False, True], 2 / math.log(2)),  # separable: 2 of 3
        ([5.0] * 98 + [-5.0] * 98, [True] * 98 + [False] * 98, 5 / math.log(99)),
    ],
)
def test_few_verdicts_and_no_mistake_do_not_make_it_certain(margin, verdicts, temperature):
    """By Platt's targets, the T at which P(yes) is (n + 1) / (n + 2)."""
    assert fit_temperature(margin, verdicts) == pytest.approx(temperature, rel=1e-4)


def test_margins_of_zero_leave_the_temperature_alone():
    assert fit_temperature([0.0, 0.0], [True, False]) == 1.0


def test_bad_input():
    with pytest.raises(InputError, match="no known verdict"):
        expected_calibration_error([], [])
    with pytest.raises(InputError, match="no known verdict"):
        fit_temperature([None], [True])
    with pytest.raises(InputError, match="do not match"):
        fit_temperature([1.0, 2.0], [True])
    with pytest.raises(InputError, match="must be finite"):
        fit_temperature([math.inf, 1.0], [True, False])
    with pytest.raises(InputError, match=r"lie in 0\.\.1"):
        fit_temperature([2.0, 1.0], [1.5, False])
    with pytest.raises(InputError, match=r"0\.\.1"):
        expected_calibration_error([1.2], [True])
