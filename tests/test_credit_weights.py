"""Weights of criteria and budgets of the parts: what they are, and what cannot be used."""

import math

import pytest
from claimwise.trainer.credit import Budget, criterion_weights, resolve_budget
from claimwise.verifier.errors import InputError
from credit_cases import criterion


def test_weights_leave_pitfalls_out_unless_they_are_credited():
    criteria = [criterion("c1", 5), criterion("c2", -3), criterion("p1", -2, "PITFALL")]
    for setting in ("veto", "veto-answer", "off"):
        assert criterion_weights(criteria, setting) == pytest.approx({"c1": 5 / 8, "c2": 3 / 8})
    assert criterion_weights(criteria, "criterion") == pytest.approx({"c1": 0.5, "c2": 0.3, "p1": 0.2})


@pytest.mark.parametrize("weights", [(), (0.0, 0.0)])
def test_weights_that_cannot_be_used(weights):
    criteria = [criterion(f"c{j}", weight) for j, weight in enumerate(weights)]
    with pytest.raises(InputError, match="weight"):
        criterion_weights(criteria)


def test_huge_weights_do_not_overflow():
    assert criterion_weights([criterion("a", 1.5e308), criterion("b", 1.5e308)]) == {"a": 0.5, "b": 0.5}


def test_budgets():
    assert resolve_budget("paper") == (0.5, 0, 0.5)
    assert resolve_budget("release-sequence") == (0.10, 0.10, 0.80)
    assert resolve_budget("release-prefix") == (0.50, 0.05, 0.45)
    assert resolve_budget("0.2,0.3,0.5") == resolve_budget((0.2, 0.3, 0.5)) == Budget(0.2, 0.3, 0.5)
    assert resolve_budget((0.2, 0.3, 0.5 + 5e-7))


@pytest.mark.parametrize(
    "budget", ["release", "0.5,0.5", (0.5, 0.5), (0.5, 0.0, 0.6), (-0.5, 0.5, 1.0), (math.nan, 0.5, 0.5), "a,b,c", None]
)
def test_budgets_that_cannot_be_used(budget):
    with pytest.raises(InputError, match="budget"):
        resolve_budget(budget)


def test_a_negative_weight_without_a_label_is_refused():
    """A yes would be rewarded, although whoever gave it a negative weight meant a failure."""
    criteria = [criterion("c1", 5), criterion("c2", -3, None)]
    with pytest.raises(InputError, match="criterion 'c2' has the weight -3 and no label; give it the label PITFALL"):
        criterion_weights(criteria)
    assert criterion_weights([criterion("c1", 5), criterion("c2", -3, "PITFALL")]) == {"c1": 1}
    assert criterion_weights([criterion("c1", 5), criterion("c2", 0, None)]) == {"c1": 1, "c2": 0}
