"""Pitfalls, by numbers worked out by hand: the veto, the veto of the answer alone, as criteria, off, and missing."""

import pytest
from claimwise.trainer.credit import PITFALLS, token_advantages
from credit_cases import Z2, advantages, criterion, response, same

WITH_PITFALLS = [criterion("c1", 3), criterion("c2", 1), criterion("p1", -4, "PITFALL"), criterion("p2", -1, "PITFALL")]


def pitfall_group(first=None, second=None):
    """The second response commits p1 and p2, at the spans given; c2 is missing there, c1 holds."""
    return [
        response(1, c1=(True, (0, 3)), c2=(True, (0, 12)), p1=False, p2=None),
        response(1, c1=(True, (0, 12)), c2=(None, (0, 12)), p1=(True, first), p2=(True, second)),
    ]


def test_veto_takes_everything_and_moves_the_spans_to_the_failure():
    """p2 at token 1, p1 at token 2: c1 and c2 fail from token 1 to token 2. Every z is +-Z2, missing c2 included."""
    credit = token_advantages(WITH_PITFALLS, pitfall_group((6, 8), (4, 5)), arm="span")
    same(credit, [[Z2, *[0.5 * Z2 + 0.125 * Z2] * 4], [-0.5 * Z2, -Z2, -Z2, -0.5 * Z2, -0.5 * Z2]])
    assert (credit.missing, credit.fallbacks) == (2, 0)
    first, second = credit.rewards
    assert (first.answer, first.rubric, first.vetoed) == (1, 1, False)
    assert (second.answer, second.rubric, second.vetoed) == (0, 0, True)
    prefix = token_advantages(WITH_PITFALLS, pitfall_group((6, 8), (4, 5)), arm="prefix")
    assert prefix.advantages[1] == pytest.approx([-Z2] * 3 + [-0.5 * Z2] * 2)


def test_veto_without_a_span_blames_the_whole_response():
    credit = token_advantages(WITH_PITFALLS, pitfall_group(), arm="span")
    assert credit.advantages[1] == pytest.approx([-Z2] * 5)
    assert credit.fallbacks == 2  # both credited criteria of the vetoed response, the missing one is known now


def test_veto_goes_by_the_pitfalls_that_have_a_span():
    credit = token_advantages(WITH_PITFALLS, pitfall_group(None, (4, 5)), arm="span")
    assert credit.advantages[1] == pytest.approx([-0.5 * Z2, -Z2, *[-0.5 * Z2] * 3])
    assert credit.fallbacks == 0


def test_veto_answer_leaves_the_criteria():
    """c1 holds in both: no spread. c2 has one known value. Only the answer differs."""
    credit = token_advantages(WITH_PITFALLS, pitfall_group((6, 8), (4, 5)), pitfalls="veto-answer")
    same(credit, [[0.5 * Z2] * 5, [-0.5 * Z2] * 5])
    second = credit.rewards[1]
    assert (second.answer, second.rubric, second.vetoed) == (0, 1, True)


def test_veto_makes_a_missing_answer_wrong():
    group = [response(1, c1=True, p1=False), response(None, c1=True, p1=True)]
    for setting in ("veto", "veto-answer"):
        assert token_advantages(WITH_PITFALLS, group, pitfalls=setting).rewards[1].answer == 0


def test_pitfalls_off_count_as_missing_only():
    credit = token_advantages(WITH_PITFALLS, pitfall_group((6, 8), (4, 5)), pitfalls="off")
    same(credit, [[0] * 5, [0] * 5])
    assert (credit.missing, credit.rewards[1].vetoed, credit.rewards[1].answer) == (2, False, 1)


def test_pitfall_as_a_criterion():
    """Weights 3, 1, 4, 1 of 9. p1: good in the first response (no span, a fallback), bad in the second at token 2, so
    +-Z2; p2 is known once, c1 has no spread."""
    credit = token_advantages(WITH_PITFALLS, pitfall_group((6, 8), (4, 5)), pitfalls="criterion", arm="span")
    share = 0.5 * 4 / 9 * Z2
    same(credit, [[share] * 5, [0, 0, -share, 0, 0]])
    assert (credit.missing, credit.fallbacks) == (2, 1)
    # R = 3/9 + 1/9 + 4/9 + p2's mean (0) and 3/9 + c2's mean 1/9
    assert [r.rubric for r in credit.rewards] == pytest.approx([8 / 9, 4 / 9])
    assert not credit.rewards[1].vetoed


@pytest.mark.parametrize("setting", PITFALLS)
def test_avoided_reads_a_pitfall_the_other_way_round(setting):
    committed = [criterion("c1"), criterion("p1", -1, "PITFALL")]
    avoided = [criterion("c1"), criterion("p1", -1, "PITFALL", yes_means="avoided")]
    group = [response(1, c1=True, p1=(True, (0, 3))), response(1, c1=True, p1=False), response(0, c1=False)]
    turned = [response(1, c1=True, p1=(False, (0, 3))), response(1, c1=True, p1=True), response(0, c1=False)]
    one, other = (token_advantages(c, g, pitfalls=setting) for c, g in ((committed, group), (avoided, turned)))
    assert advantages(one) == advantages(other)
    assert one.rewards == other.rewards


def test_missing_pitfall_vetoes_nothing():
    group = [response(1, c1=True, p1=None), response(0, c1=False, p1=False)]
    credit = token_advantages([criterion("c1"), criterion("p1", -1, "PITFALL")], group)
    assert not credit.rewards[0].vetoed
    assert credit.missing == 1
