"""The placebo `prefix-shuffled`: the masks of `prefix`, as long as before, in wrong places."""

from __future__ import annotations

import numpy as np
import pytest
from claimwise.trainer.credit import PITFALLS, PLACEBO, token_advantages
from credit_cases import FOUR, Z2, budgets, close, criterion, groups, law, response, same
from hypothesis import given
from hypothesis import strategies as st

TWO = [criterion("c1", 3), criterion("c2", 1)]
RUBRIC = (0.0, 0.0, 1.0)
A, B = (0, 3), (6, 9)  # the first and the third of four tokens


def lasts(credit):
    """The last token of each criterion, (J, G)."""
    return np.array([term.last_g for term in credit.terms[2:]])


def test_two_criteria_exchange_their_spans():
    """c1 (rho 3/4) ends at token 0 and c2 (rho 1/4) at token 2; shuffled it is the other way round."""
    group = [response(c1=(True, A), c2=(True, B)), response(c1=(False, A), c2=(False, B))]
    real = token_advantages(TWO, group, arm="prefix", budget=RUBRIC)
    same(real, [[Z2, Z2 / 4, Z2 / 4, 0, 0], [-Z2, -Z2 / 4, -Z2 / 4, 0, 0]])
    placebo = token_advantages(TWO, group, arm=PLACEBO, budget=RUBRIC)
    same(placebo, [[Z2, 0.75 * Z2, 0.75 * Z2, 0, 0], [-Z2, -0.75 * Z2, -0.75 * Z2, 0, 0]])


def test_a_criterion_without_a_span_keeps_the_whole_response_and_takes_part_in_no_exchange():
    group = [response(c1=(True, A), c2=True), response(c1=(False, A), c2=False)]
    credits = [token_advantages(TWO, group, arm=arm, budget=RUBRIC) for arm in ("prefix", PLACEBO)]
    close(credits[0].advantages, credits[1].advantages)
    assert credits[1].fallbacks == 2


def test_a_vetoed_response_bears_the_blame_where_the_pitfall_is():
    criteria = [*TWO, criterion("p1", -1, "PITFALL")]
    group = [response(c1=(True, A), c2=(True, B), p1=(True, (3, 6))), response(c1=(True, A), c2=(True, B), p1=False)]
    credit = token_advantages(criteria, group, arm=PLACEBO, budget=RUBRIC)
    assert lasts(credit).tolist() == [[1, 2], [1, 0]]


@law
@given(groups(), budgets, st.sampled_from(PITFALLS), st.lists(st.integers(0, 99), max_size=2))
def test_the_same_masks_in_other_places(group, budget, pitfalls, seed):
    """Per response the located spans are the same collection; none stays where two or more different ones could move;
    everything that is not a mask is as in `prefix`; and it repeats."""
    settings = {"budget": budget, "pitfalls": pitfalls}
    real = token_advantages(*group, arm="prefix", **settings)
    placebo = token_advantages(*group, arm=PLACEBO, shuffle_seed=seed, **settings)
    again = token_advantages(*group, arm=PLACEBO, shuffle_seed=seed, **settings)
    close(placebo.advantages, again.advantages)
    assert placebo.rewards == real.rewards and placebo.fallbacks == real.fallbacks
    located = real.scores.located_gj
    for g in range(len(group[1])):
        before, after = lasts(real)[:, g], lasts(placebo)[:, g]
        assert sorted(before) == sorted(after)
        assert (before[~located[g]] == after[~located[g]]).all()
        if located[g].sum() > 1 and len(set(before[located[g]])) == located[g].sum():
            assert (before[located[g]] != after[located[g]]).all()


@law
@given(groups(), st.randoms(use_true_random=False))
def test_permuting_responses_permutes_advantages(group, random):
    criteria, responses = group
    order = list(range(len(responses)))
    random.shuffle(order)
    one = token_advantages(criteria, responses, arm=PLACEBO, shuffle_seed=(3,))
    other = token_advantages(criteria, [responses[g] for g in order], arm=PLACEBO, shuffle_seed=(3,))
    close([one.advantages[g] for g in order], other.advantages)


@pytest.mark.parametrize("count, derangements", [(2, 1), (3, 2), (4, 9)])
def test_every_derangement_is_as_likely(count, derangements):
    """Spans at the tokens 0, 1, ... of a response; over 900 seeds each derangement comes up about equally often."""
    criteria = [criterion(f"c{j}") for j in range(count)]
    spans = {f"c{j}": (True, (3 * j, 3 * j + 3)) for j in range(count)}
    group = [response(offsets=FOUR, **spans), response(offsets=FOUR)]
    seen: dict[tuple, int] = {}
    for seed in range(900):
        credit = token_advantages(criteria, group, arm=PLACEBO, shuffle_seed=(seed,))
        order = tuple(lasts(credit)[:, 0].tolist())
        seen[order] = seen.get(order, 0) + 1
    assert len(seen) == derangements
    expected = 900 / derangements
    assert sum((n - expected) ** 2 / expected for n in seen.values()) < 30  # chi squared; 8 degrees of freedom at most
