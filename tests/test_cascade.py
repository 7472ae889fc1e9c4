"""The cascade: who answers what, budgets, failures, a real server as the teacher; and `claimwise cascade judge`."""

from __future__ import annotations

import dataclasses

import pytest
from cascading import CRITERIA, EXAMPLE, QUICK, First, items, said
from claimwise.distill.oracle import OracleJudge
from claimwise.verifier import InputError
from claimwise.verifier.cascade import Band, CascadeJudge, affordable, uncertain
from claimwise.verifier.quoting_judge import QuotingJudge
from claimwise.verifier.schema import Criterion
from hypothesis import given
from hypothesis import strategies as st
from servers import Server, judge, say, status


def test_the_teacher_answers_where_the_verifier_is_uncertain():
    """.2, .4 and .8 lie in .2 to .8; a row is as its judge gave it, and the verifier's missing verdict stays missing."""
    first = First(0.2, 0.19, 0.4, 0.81, None, 0.8)
    with Server() as server:
        cascade = CascadeJudge(first, QuotingJudge(server.url, "m", "text", **QUICK), Band(0.2, 0.8))
        verdicts = cascade.judge(items())
    assert said(verdicts) == [
        ("m", True),  # the verifier said no
        ("verifier", False),
        ("m", True),  # no again
        ("verifier", True),
        ("verifier", None),
        ("m", False),  # yes
    ]
    assert len(server.calls) == 3 and [v.criterion_id for v in verdicts] == [c.id for c in CRITERIA]
    assert verdicts[0].span == (0, 10) and verdicts[0].prompt_hash and verdicts[0].dimension == "VF"
    tally = cascade.tally
    assert (tally.verdicts, tally.missing, tally.uncertain, tally.answered, tally.calls) == (6, 1, 3, 3, 3)
    assert not tally.failed and tally.over_budget == 0 and tally.cost is None
    assert (cascade.name, cascade.mode) == ("verifier+m", "text")


def test_the_least_certain_go_first_and_the_budget_holds_for_the_judge_s_life():
    """Distances .3, .1, .2, .05, .4, .45: with four calls c3, c1, c2 and c0; the next response finds nothing left."""
    first = First(0.2, 0.6, 0.3, 0.55, 0.9, 0.05)
    with Server() as server:
        teacher = QuotingJudge(server.url, "m", "text", **QUICK)
        cascade = CascadeJudge(first, teacher, Band(0, 1), max_calls=9, price=0.25, budget=1.1)
        one = cascade.judge(items())
        asked = {call.question["criterion"] for call in server.calls}
        again = cascade.judge(items("r2"))  # the same questions: four answers are known
        other = cascade.judge(items("r3", response="Another."))
    assert [v.judge == "m" for v in one] == [True, True, True, True, False, False]
    assert asked == {f"It says {n}." for n in range(4)} and len(server.calls) == 4
    assert [(v.judge, v.verdict, v.span) for v in again] == [(v.judge, v.verdict, v.span) for v in one]
    assert {v.rollout_id for v in again} == {"r2"} and {v.judge for v in other} == {"verifier"}
    tally = cascade.tally
    assert (tally.uncertain, tally.answered, tally.repeats, tally.over_budget) == (18, 8, 4, 10)
    assert (tally.calls, tally.cost) == (4, 1.0)


def test_equal_questions_of_one_call_are_asked_once():
    with Server() as server:
        cascade = CascadeJudge(
            First(0.5, 0.9, 0.9, 0.9, 0.9, 0.9), QuotingJudge(server.url, "m", "text", **QUICK), Band(0.4, 0.6), 1
        )
        verdicts = cascade.judge(items("r1", "r2", "r3"))
    assert len(server.calls) == 1 and [v.rollout_id for v in verdicts if v.judge == "m"] == ["r1", "r2", "r3"]
    assert (cascade.tally.answered, cascade.tally.repeats, cascade.tally.over_budget) == (3, 2, 0)


def test_where_the_teacher_fails_the_verifier_s_verdict_stands_and_is_counted():
    def behave(call):
        text = call.question["criterion"]
        if "1" in text:
            return status(400, "no")
        return say("no idea") if "2" in text else judge(call)

    first = First(*[0.5] * 6)
    with Server(behave) as server:
        cascade = CascadeJudge(first, QuotingJudge(server.url, "m", "text", **QUICK), Band(0.4, 0.6))
        verdicts = cascade.judge(items())
        calls = len(server.calls)
        assert [v.judge for v in verdicts] == ["m", "verifier", "verifier", "m", "m", "m"]
        assert [v.verdict for v in verdicts[1:3]] == [False, False]
        assert cascade.tally.failed == {"refused": 1, "unreadable": 1} and cascade.tally.answered == 4
        cascade.judge(items())  # what failed is asked again, what was answered is not
        assert {call.question["criterion"] for call in server.calls[calls:]} == {"It says 1.", "It says 2."}


def test_a_refusal_at_the_first_question_is_an_error_and_a_later_one_is_counted():
    refuse = []
    with Server(lambda call: status(401) if refuse else judge(call)) as server:
        teacher = QuotingJudge(server.url, "m", "text", **QUICK)
        refuse.append(True)
        cascade = CascadeJudge(First(*[0.5] * 6), teacher, Band(0.4, 0.6))
        with pytest.raises(InputError, match="refuses the key"):
            cascade.judge(items())
        refuse.clear()
        cascade.judge(items())
        refuse.append(True)
        verdicts = cascade.judge(items("r2", response="Another."))
    assert {v.judge for v in verdicts} == {"verifier"} and cascade.tally.failed == {"stopped": 6}


@given(st.lists(st.one_of(st.none(), st.floats(0, 1)), max_size=8), st.floats(0, 0.5), st.floats(0.5, 1))
def test_laws_of_the_uncertain(p_yes, low, high):
    criteria = tuple(Criterion(f"c{n}", "x") for n in range(len(p_yes)))
    verdicts = First(*p_yes).judge([(dataclasses.replace(EXAMPLE, criteria=criteria), items()[0][1])])
    order = uncertain(verdicts, Band(low, high))
    assert sorted(order) == [i for i, p in enumerate(p_yes) if p is not None and low <= p <= high]
    distances = [abs(p - 0.5) for i in order if (p := p_yes[i]) is not None]
    assert distances == sorted(distances)


@pytest.mark.parametrize(
    ("bounds", "calls"),
    [
        ((None, None, None), None),
        ((None, 1.0, float("inf")), None),
        ((0, 1.0, 9.0), 0),
        ((7, 1.0, 0.0), 0),
        ((7, 0.1, None), 7),
        ((7, 0.1, 0.3), 3),
        ((2, 0.1, 0.3), 2),
        ((None, 0.3, 0.89), 2),
    ],
)
def test_calls_that_a_budget_allows(bounds, calls):
    assert affordable(*bounds) == calls


def test_what_a_cascade_refuses():
    for bounds in (
        (-1, None, None),
        (None, -0.1, None),
        (None, None, 3.0),
        (None, 0.0, 3.0),
        (None, float("nan"), None),
    ):
        with pytest.raises(InputError):
            affordable(*bounds)
    for ends in ((0.6, 0.7), (0.3, 0.4), (-0.1, 0.5), (0.5, 1.1), (float("nan"), 0.5)):
        with pytest.raises(InputError, match="the band is"):
            Band(*ends)
    sees = First()
    sees.mode = "image"
    with pytest.raises(InputError, match="text mode"):
        CascadeJudge(sees, OracleJudge("text"), Band(0.4, 0.6))
