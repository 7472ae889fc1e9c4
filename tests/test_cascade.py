"""The cascade: who answers what, budgets, failures, a real server as the teacher; and `claimwise cascade judge`."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter

import pytest
import torch
from claimwise.distill.oracle import OracleJudge
from claimwise.scripts.cli import main
from claimwise.verifier import InputError, load_judge
from claimwise.verifier.cascade import Band, CascadeJudge, affordable, band_for, uncertain
from claimwise.verifier.quoting_judge import QuotingJudge
from claimwise.verifier.schema import Criterion, Example, Rollout, Verdict
from claimwise.verifier.tables import pair_up, read_examples, read_rollouts, read_verdicts
from grpo_runs import make_examples, rubric_trainer, weights_of
from hypothesis import given
from hypothesis import strategies as st
from judging import content
from servers import Server, judge, say, status

QUICK = {"backoff_s": 0.01, "tries": 2, "max_in_flight": 2}
# the honest server says yes to c0, c2 and c4, whose texts the response has
CRITERIA = tuple(Criterion(f"c{n}", f"It says {n}.", dimension="VF") for n in range(6))
EXAMPLE = Example("e", "What?", CRITERIA)
RESPONSE = "It says 0. It says 2. It says 4."


def items(*ids, response=RESPONSE):
    return [(EXAMPLE, Rollout(name, "e", response, "p")) for name in ids or ("r",)]


class First:
    """A verifier that always gives these P(yes), one a criterion; None: missing."""

    name, mode = "verifier", "text"

    def __init__(self, *p_yes):
        self.p_yes = p_yes

    def judge(self, items):
        return [self._verdict(r, c, p) for e, r in items for c, p in zip(e.criteria, self.p_yes, strict=True)]

    def _verdict(self, rollout, criterion, p):
        said = {"verdict": None, "error": "lost"} if p is None else {"verdict": p > 0.5, "p_yes": p}
        return Verdict(
            rollout.example_id, rollout.rollout_id, criterion.id, self.name, self.mode, dimension="VF", **said
        )


def said(verdicts):
    return [(v.judge, v.verdict) for v in verdicts]


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


def test_a_real_verifier_before_the_oracle(world):
    """The whole range: the oracle's verdicts; nothing: the verifier's own; in between: each where it should be."""
    first = load_judge(world / "image")
    folder = world / "validation"
    pairs = pair_up(read_examples(folder / "examples.jsonl"), read_rollouts(folder / "rollouts.jsonl"))
    own, gold = first.judge(pairs), OracleJudge("image").judge(pairs)
    p_yes = sorted(abs(v.p_yes - 0.5) for v in own)
    middle = p_yes[len(p_yes) // 2]
    for width in (0.5, 0.0, middle):
        cascade = CascadeJudge(first, OracleJudge("image"), Band(0.5 - width, 0.5 + width))
        verdicts = [verdict for each in cascade.judge_each(pairs) for verdict in each]
        wanted = [g if v.p_yes in cascade.band else v for v, g in zip(own, gold, strict=True)]
        assert content(verdicts) == content(wanted)
        assert [v.judge for v in verdicts] == [v.judge for v in wanted]
    assert 0 < cascade.tally.answered < len(own)


def test_a_policy_trained_by_a_cascade_that_asks_everything_is_the_teacher_s(assets, tmp_path):
    examples, first = make_examples(4), load_judge(assets / "verifier", device="cpu")
    cascade = CascadeJudge(first, OracleJudge("image"), Band(0, 1))
    trained = []
    for name, judge_ in (("cascade", cascade), ("oracle", OracleJudge("image"))):
        trainer = rubric_trainer(assets, tmp_path / name, examples, judge_, arm="prefix", max_steps=1)
        trainer.train()
        trained.append(weights_of(trainer))
    assert all(torch.equal(value, trained[1][name]) for name, value in trained[0].items())
    assert cascade.tally.answered == cascade.tally.verdicts > 0


def command(world, out, *more):
    flags = ["cascade", "judge", "--adapter", world / "image", "--examples", world / "validation/examples.jsonl"]
    flags += ["--rollouts", world / "validation/rollouts.jsonl"]
    return list(map(str, [*flags, "--out", out, *more]))


def test_the_command_with_a_server_resumes_and_comes_to_the_same_table(world, tmp_path, capsys):
    """Three calls, then the budget of calls is greater: only what is new is asked."""
    band = {"schema_version": 1, "band": [0.0, 1.0], "verifier": {"judge": "verifier-image", "mode": "image"}}
    (tmp_path / "c.json").write_text(json.dumps(band))
    with Server() as server:
        teacher = ["--band", tmp_path / "c.json", "--teacher", server.url, "--model", "m"]
        teacher += ["--ledger", tmp_path / "l.sqlite", "--price-in", "1000", "--price-out", "1000", "--json"]
        runs = []
        for number, most in enumerate((3, 3, 8)):
            out = tmp_path / f"{number}.jsonl"
            assert main(command(world, out, *teacher, "--max-calls", most)) == 0
            runs.append((json.loads(capsys.readouterr().out), len(server.calls), read_verdicts(out)))
        assert main(command(world, tmp_path / "all.jsonl", *teacher, "--budget", "2.2")) == 0
        paid, calls = json.loads(capsys.readouterr().out), len(server.calls)
    assert [asked for _, asked, _ in runs] == [3, 3, 8]
    assert content(runs[0][2]) == content(runs[1][2])
    for found, _, verdicts in runs:
        assert found["by_judge"] == Counter(v.judge for v in verdicts)
        assert found["uncertain"] == len(verdicts) == found["answered"] + found["over_budget"]
    assert runs[0][0]["spent"] == pytest.approx(3 * 0.11)  # 100 and 10 tokens a call
    # the budget is for the ledger: the worst case of a call must fit, so it ends early and is never passed
    assert paid["spent"] <= 2.2 and paid["answered"] == calls and paid["over_budget"] == paid["uncertain"] - calls
    assert paid["failed"] == {} and paid["calls"] == calls


def test_the_command_with_the_oracle_in_words(world, tmp_path, capsys):
    out = tmp_path / "v.parquet"
    assert main(command(world, out, "--low", "0.0", "--high", "1", "--teacher", "oracle", "--max-calls", "5")) == 0
    text = capsys.readouterr().out
    assert "5 by oracle-image" in text and "5 answered by the teacher with 5 questions" in text
    rest = len(read_verdicts(out)) - 5
    assert f"{rest} beyond the budget: the verifier's verdicts stand" in text


def test_what_the_command_refuses(world, tmp_path, capsys):
    (tmp_path / "other.json").write_text(json.dumps({"schema_version": 1, "band": [0, 1], "verifier": {"judge": "v"}}))
    (tmp_path / "bad.json").write_text('{"band": 3}')
    oracle, range_ = ["--teacher", "oracle"], ["--low", "0.2", "--high", "0.8"]
    cases = [
        (oracle, "which verdicts go to the teacher?"),
        ([*oracle, "--low", "0.2"], "which verdicts go to the teacher?"),
        ([*oracle, "--low", "0.7", "--high", "0.8"], "the band is 0.7 to 0.8"),
        ([*oracle, "--band", tmp_path / "other.json"], "was chosen for a verifier with judge 'v'"),
        ([*oracle, "--band", tmp_path / "bad.json"], "is no file of claimwise cascade band"),
        ([*oracle, "--band", tmp_path / "none.json"], "is no file of claimwise cascade band"),
        ([*oracle, *range_, "--budget", "3"], "--budget is for a teacher behind a server"),
        (["--teacher", "http://localhost:1/v1", *range_], "--model is missing"),
        ([*oracle, *range_, "--max-calls", "-1"], "cannot be negative"),
    ]
    for more, told in cases:
        assert main(command(world, tmp_path / "v.jsonl", *more)) == 2
        out, err = capsys.readouterr()
        assert not out and told in err.splitlines()[-1] and "Traceback" not in err
    assert not (tmp_path / "v.jsonl").exists()
    assert main(["cascade", "no-such"]) == 2
    assert "it must be one of band, judge" in capsys.readouterr().err


def test_a_band_holds_for_one_verifier(world, tmp_path):
    band = {"schema_version": 1, "band": [0.1, 0.7], "verifier": {"judge": "verifier-image", "mode": "image"}}
    (tmp_path / "c.json").write_text(json.dumps(band))
    assert band_for(tmp_path / "c.json", world / "image") == Band(0.1, 0.7)
    with pytest.raises(InputError, match=r"with judge 'verifier-image', .*text has 'verifier-text'"):
        band_for(tmp_path / "c.json", world / "text")
    (tmp_path / "c.json").write_text(json.dumps({**band, "schema_version": 2}))
    with pytest.raises(InputError, match=r"c\.json is of version 2, this claimwise reads 1"):
        band_for(tmp_path / "c.json", world / "image")


def test_load_judge_gives_a_cascade_like_any_other_judge(world, tmp_path):
    """The band reaches from 0 to .5: of the verifier's no three go to the teacher, the nearest to .5, and no yes."""
    tables = world / "validation"
    pairs = pair_up(read_examples(tables / "examples.jsonl"), read_rollouts(tables / "rollouts.jsonl"))
    band = {"schema_version": 1, "band": [0.0, 0.5], "verifier": {"judge": "verifier-image", "mode": "image"}}
    (tmp_path / "band.json").write_text(json.dumps(band))
    teacher = OracleJudge("image")
    cascade = load_judge(world / "image", cascade=tmp_path / "band.json", teacher=teacher, max_calls=3)
    own = load_judge(world / "image").judge(pairs)
    verdicts = cascade.judge(pairs)
    by_teacher = [v for v, o in zip(verdicts, own, strict=True) if v.judge == teacher.name]
    assert by_teacher and cascade.tally.calls == 3
    assert all(v.judge == teacher.name or v.verdict == o.verdict for v, o in zip(verdicts, own, strict=True))
    assert all(not o.verdict for v, o in zip(verdicts, own, strict=True) if v.judge == teacher.name)
    with pytest.raises(InputError, match="a cascade needs a verifier's adapter"):
        load_judge(world / "image", cascade=tmp_path / "band.json")
