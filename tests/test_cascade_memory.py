"""What a cascade remembers: nothing is asked or paid for twice, and what came is kept."""

from __future__ import annotations

import dataclasses
import json

import pytest
from cascading import CRITERIA, EXAMPLE, QUICK, First, items, said
from claimwise.distill.oracle import OracleJudge
from claimwise.verifier import InputError
from claimwise.verifier.cascade import Band, CascadeJudge
from claimwise.verifier.quoting_judge import QuotingJudge
from judging import content
from servers import Server, judge, status


def test_what_is_remembered_is_neither_asked_nor_paid_again(tmp_path):
    """Five calls in all. c1 is refused, which is a call, and asked again; a row that was cut off is left out."""
    refused = [True]

    def behave(call):
        return status(400, "no") if refused and "1" in call.question["criterion"] else judge(call)

    memory = tmp_path / "new/cascade.jsonl"
    first = First(0.5, 0.51, 0.52, 0.9, 0.9, 0.9)
    with Server(behave) as server:

        def cascade():
            teacher = QuotingJudge(server.url, "m", "text", **QUICK)
            return CascadeJudge(first, teacher, Band(0.4, 0.6), max_calls=5, memory=memory)

        one = cascade().judge(items())
        assert len(server.calls) == 3 and len(memory.read_text().splitlines()) == 3
        with memory.open("a") as file:
            file.write('{"key": "12", "verd')
        refused.clear()
        later = cascade()
        two = later.judge(items())
        assert [call.question["criterion"] for call in server.calls[3:]] == ["It says 1."]
        assert said(one)[:3] == [("m", True), ("verifier", True), ("m", True)] and said(two)[1] == ("m", False)
        assert content(two)[::2] == content(one)[::2] and (later.tally.calls, later.tally.repeats) == (4, 2)
        last = cascade()
        verdicts = last.judge(items("r", response="Another.") + items("r2"))
        assert len(server.calls) == 5 and last.tally.calls == 5  # one was left
    assert [v.judge for v in verdicts] == ["m", *["verifier"] * 5, *["m"] * 3, *["verifier"] * 3]
    assert [json.loads(line)["verdict"]["verdict"] for line in memory.read_text().splitlines()] == [
        True, None, True, False, False
    ]  # fmt: skip


def test_a_run_stopped_while_it_asks_keeps_what_has_come(tmp_path):
    """Ctrl-C at the third of six answers: two are known, and four of the budget of six are left."""

    class Slow(OracleJudge):
        def __init__(self, most):
            super().__init__("image")
            self.most, self.asked = most, []

        def judge_each(self, pairs):
            for example, rollout in pairs:
                if len(self.asked) == self.most:
                    raise KeyboardInterrupt
                self.asked.append(example.criteria[0].id)
                yield First(1.0).judge([(example, rollout)])

    def cascade(teacher):
        return CascadeJudge(First(*[0.5] * 6), teacher, Band(0.4, 0.6), max_calls=6, memory=tmp_path / "c.jsonl")

    stopped, again = Slow(2), Slow(9)
    with pytest.raises(KeyboardInterrupt):
        cascade(stopped).judge(items())
    cascade(again).judge(items())
    assert stopped.asked == ["c0", "c1"] and again.asked == ["c2", "c3", "c4", "c5"]
    assert len((tmp_path / "c.jsonl").read_text().splitlines()) == 6


def test_what_never_reaches_the_teacher_takes_nothing_from_the_budget(tmp_path):
    """Seven calls in all. The teacher is out of reach; it answers one question; it refuses six; then six are left."""

    class Refusing(OracleJudge):
        def judge(self, pairs):
            raise InputError("the key is refused")

    with Server() as server:
        gone = QuotingJudge(server.url, "m", "text", **{**QUICK, "tries": 1})
    first, memory = First(*[0.5] * 6), tmp_path / "c.jsonl"
    cascade = CascadeJudge(first, gone, Band(0.4, 0.6), max_calls=7, memory=memory)
    assert {v.judge for v in cascade.judge(items())} == {"verifier"}
    assert cascade.tally.failed == {"connection": 6} and cascade.tally.calls == 0
    with Server() as server:
        cascade.teacher = QuotingJudge(server.url, "m", "text", **QUICK)
        cascade.first = First(0.5)
        one = [(dataclasses.replace(EXAMPLE, criteria=CRITERIA[:1]), rollout) for _, rollout in items()]
        assert said(cascade.judge(one)) == [("m", True)]
        cascade.first, cascade.teacher = first, Refusing("text")
        cascade.judge(items("r2", response="Another."))
        assert cascade.tally.failed == {"connection": 6, "stopped": 6} and cascade.tally.calls == 1
        cascade.teacher = QuotingJudge(server.url, "m", "text", **QUICK)
        assert {v.judge for v in cascade.judge(items("r3", response="Another."))} == {"m"}
    assert (cascade.tally.calls, len(server.calls), len(memory.read_text().splitlines())) == (7, 7, 7)


def test_a_memory_that_is_damaged_is_named(tmp_path):
    for line in ("{", "[]", '{"key": "00"}', '{"key": "zz", "verdict": {"verdict": true}}'):
        (tmp_path / "c.jsonl").write_text(line + "\n")
        cascade = CascadeJudge(First(0.5), OracleJudge("text"), Band(0.4, 0.6), memory=tmp_path / "c.jsonl")
        with pytest.raises(InputError, match=r"c\.jsonl, row 1: it is no answer of a teacher"):
            cascade.judge([])
