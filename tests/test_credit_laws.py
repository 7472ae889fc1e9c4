"""The credit against a slow reference written from the text alone, and its laws."""

import math

import numpy as np
import pytest
import slow_credit
import torch
from claimwise.trainer.credit import PITFALLS, ScoredResponse, resolve_budget, token_advantages
from claimwise.verifier.schema import Criterion
from credit_cases import advantages, arms, budgets, close, criterion, groups, judged, law, settings_of_pitfalls
from hypothesis import given, settings
from hypothesis import strategies as st
from trl.trainer.utils import nanstd


@settings(max_examples=250)
@given(groups(), arms, budgets, settings_of_pitfalls)
def test_equals_the_slow_reference(group, arm, budget, pitfalls):
    credit = token_advantages(*group, arm=arm, budget=budget, pitfalls=pitfalls)
    close(credit.advantages, slow_credit.advantages(*group, arm, budget, pitfalls))


@law
@given(groups(), arms, settings_of_pitfalls, st.sampled_from([0.5, 3.0, 1000.0]))
def test_scaling_all_weights_changes_nothing(group, arm, pitfalls, factor):
    criteria, responses = group
    scaled = [Criterion(c.id, "", label=c.label, weight=c.weight * factor) for c in criteria]
    one, other = (token_advantages(c, responses, arm=arm, pitfalls=pitfalls) for c in (criteria, scaled))
    close(one.advantages, other.advantages)


@law
@given(groups(), arms, settings_of_pitfalls, st.booleans(), st.randoms(use_true_random=False))
def test_permuting_responses_permutes_advantages(group, arm, pitfalls, match_rms, random):
    criteria, responses = group
    order = list(range(len(responses)))
    random.shuffle(order)
    one, other = (
        token_advantages(criteria, r, arm=arm, pitfalls=pitfalls, match_rms=match_rms)
        for r in (responses, [responses[g] for g in order])
    )
    close([one.advantages[g] for g in order], other.advantages)
    assert (one.fallbacks, one.missing) == (other.fallbacks, other.missing)


@law
@given(groups(), settings_of_pitfalls, st.data())
def test_missing_verdict_never_changes_another_component(group, pitfalls, data):
    criteria, responses = group
    g = data.draw(st.integers(0, len(responses) - 1))
    lost = data.draw(st.sampled_from([c for c in criteria if c.label != "PITFALL"])).id
    r = responses[g]
    less = [*responses]
    less[g] = ScoredResponse(r.token_offsets, r.answer, r.format, {**r.verdicts, lost: (None, None)})
    before, after = (token_advantages(criteria, group, pitfalls=pitfalls) for group in (responses, less))
    for one, other in zip(before.terms, after.terms, strict=True):
        if one.name != lost:
            assert one.z_g.tolist() == other.z_g.tolist()
            assert one.last_g.tolist() == other.last_g.tolist()


@law
@given(groups(spans=False, pitfalls=False), budgets)
def test_component_is_normalize_then_sum_before_the_whitening(group, budget):
    """TRL's own lines for `multi_objective_aggregation="normalize_then_sum"`, up to the batch's mean and deviation, with
    a reward function for the answer, the format and each criterion, weighted by budget and rho."""
    criteria, responses = group
    credit = token_advantages(criteria, responses, arm="component", budget=budget)
    shares = resolve_budget(budget)
    weights = [shares.answer, shares.format, *(shares.rubric * rho for rho in credit.weights.values())]
    rows = [[r.answer, r.format, *(r.verdicts[c.id][0] for c in criteria)] for r in responses]
    grouped = torch.tensor([[[math.nan if u is None else float(u) for u in row] for row in rows]], dtype=torch.float64)
    mean_k, std_k = torch.nanmean(grouped, dim=1, keepdim=True), nanstd(grouped, dim=1, keepdim=True)
    reward_k = (grouped - mean_k) / (std_k + 1e-4)
    rewards = (reward_k[0] * torch.tensor(weights, dtype=torch.float64)).nansum(dim=1)
    for advantage, reward in zip(credit.advantages, rewards.tolist(), strict=True):
        np.testing.assert_allclose(advantage, reward, rtol=0, atol=1e-6)  # TRL corrects the deviation in float32


@law
@given(groups(spans=False), settings_of_pitfalls)
def test_without_spans_prefix_span_and_component_are_equal(group, pitfalls):
    component, *others = (
        token_advantages(*group, arm=arm, pitfalls=pitfalls) for arm in ("component", "prefix", "span")
    )
    assert all(advantages(other) == advantages(component) for other in others)


@law
@given(groups(spans=False), settings_of_pitfalls, st.data())
def test_with_spans_that_reach_the_end_prefix_equals_component(group, pitfalls, data):
    criteria, responses = group
    reaching = []
    for r in responses:
        end = r.token_offsets[-1][1] if r.token_offsets else 0
        verdicts = {name: (v, (data.draw(st.integers(0, end)), end)) for name, (v, _) in r.verdicts.items()}
        reaching.append(ScoredResponse(r.token_offsets, r.answer, r.format, verdicts))
    prefix, component = (
        token_advantages(criteria, reaching, arm=arm, pitfalls=pitfalls) for arm in ("prefix", "component")
    )
    assert advantages(prefix) == advantages(component)


@law
@given(groups(), st.data())
def test_a_vetoed_response_earns_nothing_whatever_else_was_said(group, data):
    criteria, responses = group
    criteria = [*criteria, criterion("veto", -1, "PITFALL")]
    r = responses[0]
    length = r.token_offsets[-1][1] if r.token_offsets else 0
    said = [
        {c.id: data.draw(judged(length)) if c.label != "PITFALL" else (None, None) for c in criteria} for _ in range(2)
    ]
    outcomes = []
    for verdicts, answer in zip(said, (0, 1), strict=True):
        vetoed = ScoredResponse(r.token_offsets, answer, r.format, {**verdicts, "veto": (True, None)})
        outcomes.append(token_advantages(criteria, [vetoed, *responses[1:]]))
    assert advantages(outcomes[0]) == advantages(outcomes[1])
    assert outcomes[0].rewards[0].rubric == outcomes[0].rewards[0].answer == 0


@law
@given(groups(pitfalls=False), arms)
def test_without_pitfalls_the_setting_does_not_matter(group, arm):
    first, *others = (token_advantages(*group, arm=arm, pitfalls=setting) for setting in PITFALLS)
    assert all(advantages(other) == advantages(first) for other in others)


@law
@given(groups(), arms, settings_of_pitfalls)
def test_matched_advantages_have_unit_rms_or_are_left_alone(group, arm, pitfalls):
    plain, matched = (token_advantages(*group, arm=arm, pitfalls=pitfalls, match_rms=m) for m in (False, True))
    values = np.concatenate(matched.advantages)
    if plain.rms["advantage"] >= 1e-8:
        assert np.sqrt(np.mean(values**2)) == pytest.approx(1)
    else:
        assert advantages(plain) == advantages(matched)
