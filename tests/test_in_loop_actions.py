"""What follows from an alarm while a policy trains, a teacher behind a server, and a run that is gone on with."""

from __future__ import annotations

import dataclasses
import json
import shlex
import threading
from pathlib import Path

import pytest
from alarm_worker import grpo
from claimwise.distill.oracle import OracleJudge
from claimwise.distill.refresh import RefreshConfig
from claimwise.distill.train import join_verdicts
from claimwise.scripts.cli import main
from claimwise.trainer import RubricGRPOConfig
from claimwise.trainer.actions import write_refresh
from claimwise.trainer.in_loop import InLoopAgreement
from claimwise.verifier import InputError
from claimwise.verifier.quoting_judge import QuotingJudge
from claimwise.verifier.schema import Criterion, Example, Rollout, Verdict
from claimwise.verifier.settings import parse_settings
from claimwise.verifier.tables import pair_up, read_examples, read_rollouts, read_verdicts, write_examples
from grpo_runs import COMMON, logged, make_examples, rubric_trainer
from launches import together
from servers import Server, judge, say, status

IMAGE = OracleJudge("image")
CRITERIA = tuple(Criterion(f"c{i}", f"criterion {i}", dimension="VF") for i in range(8))
EXAMPLE = Example("e", "What does it read?", CRITERIA)


@pytest.fixture(scope="module")
def examples():
    return make_examples()


@pytest.fixture(scope="module")
def on_disk(examples, tmp_path_factory):
    """The same with images in files, as the command reads them."""
    path = tmp_path_factory.mktemp("examples") / "examples.parquet"
    write_examples(path, examples)
    return read_examples(path)


def a_step(number: int, said, p_yes=0.9):
    """Eight verdicts of a judge on one response."""
    rollout = Rollout(f"r{number}", "e", "It reads 3 5.", "policy")
    values = zip(CRITERIA, said, strict=True)
    return [
        (EXAMPLE, rollout, Verdict("e", rollout.rollout_id, c.id, "v", "image", s, p_yes=p_yes, dimension="VF"))
        for c, s in values
    ]


class No:
    """A teacher that says no to everything, once `gate` is open; asked for `fails`, it fails."""

    name, mode = "teacher", "image"

    def __init__(self, gate=None, fails=None):
        self.gate, self.fails, self.asked = gate, fails, []

    def judge(self, items):
        assert self.gate is None or self.gate.wait(60)
        keys = [(rollout.rollout_id, c.id) for example, rollout in items for c in example.criteria]
        if any(criterion == self.fails for _, criterion in keys):
            raise InputError("cannot see it")
        self.asked += keys
        return [Verdict("e", r, c, self.name, "image", False, dimension="VF") for r, c in keys]


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def watched(folder, steps, teacher=None, said=(True,) * 4 + (False,) * 4):
    """An in-loop folder after some steps; the teacher shares none of the yes."""
    watch = InLoopAgreement(teacher or No(), 4, folder, seed=0, examples={"e": EXAMPLE})
    for step in steps:
        watch.observe(step, a_step(step, said), reward=step / 10)
        if teacher is None:
            watch.collect(wait=True)
    return watch


FILES = ("drawn", "samples", "judge", "teacher", "rollouts", "alarms")


def contents(folder: Path) -> list[list[dict]]:
    return [rows(folder / f"{name}.jsonl") for name in FILES]


def test_alarms_are_rebuilt_from_the_samples(tmp_path):
    """Steps 0-9, and the same stopped in step 6 and gone on with from 4: the same files and alarms to the last byte."""
    whole = watched(tmp_path / "whole", range(10))
    whole.close()
    assert len(whole.alarms) > 2
    watched(tmp_path / "stopped", range(7))
    again = watched(tmp_path / "stopped", range(4, 10))
    again.close()
    assert again.alarms == whole.alarms and contents(tmp_path / "stopped") == contents(tmp_path / "whole")
    assert [row["text"] for row in rows(tmp_path / "whole/alarms.jsonl")] == [str(alarm) for alarm in whole.alarms]
    # finished training, and only the teacher's end was interrupted: nothing is forgotten
    last = InLoopAgreement(No(), 4, tmp_path / "stopped", seed=0)
    assert last.close()["sampled"] == 40 and contents(tmp_path / "stopped") == contents(tmp_path / "whole")


def test_what_the_teacher_still_owed_is_asked_again(tmp_path, capsys):
    """The teacher answers nothing before the run is stopped; gone on with, it is asked for the steps before as well."""
    whole = watched(tmp_path / "whole", range(6))
    whole.close()
    watched(tmp_path / "stopped", range(5), No(threading.Event()))  # never closed, as a killed run
    assert not (tmp_path / "stopped/samples.jsonl").exists() and len(rows(tmp_path / "stopped/drawn.jsonl")) == 20
    gate = threading.Event()
    again = watched(tmp_path / "stopped", range(3, 6), No(gate))
    assert not again.samples  # nothing waits
    gate.set()
    assert again.close()["sampled"] == 24 and again.alarms == whole.alarms
    assert contents(tmp_path / "stopped") == contents(tmp_path / "whole")
    assert "the teacher's last verdicts: 100%" in capsys.readouterr().err


@pytest.mark.parametrize(("left", "missing"), [(0, 8), (4, 4)])
def test_what_is_owed_on_a_criterion_that_has_gone_is_missing(tmp_path, left, missing):
    """The table was changed before the run was gone on with: nothing is asked without its text, and no thread dies and is
    waited for. Of each step two of the first four criteria are drawn, and two of the last."""
    watched(tmp_path, range(2), No(threading.Event()))
    examples = {"e": dataclasses.replace(EXAMPLE, criteria=CRITERIA[:left])} if left else {}
    figures = InLoopAgreement(No(), 4, tmp_path, seed=0, examples=examples).close()
    assert (figures["sampled"], figures["teacher_missing"]) == (8, missing)
    gone = [v for v in read_verdicts(tmp_path / "teacher.jsonl") if v.verdict is None]
    assert {(v.criterion_id, v.error) for v in gone} == {
        (v.criterion_id, f"example 'e' has no criterion {v.criterion_id!r} any more") for v in gone
    }


def test_the_sample_is_two_tables_that_agree_reads(tmp_path, capsys):
    watched(tmp_path, range(5)).close()
    assert main(["agree", str(tmp_path / "teacher.jsonl"), str(tmp_path / "judge.jsonl"), "--json"]) == 0
    overall = json.loads(capsys.readouterr().out)["overall"]
    assert (overall["n"], overall["agreement"]) == (20, 0.5)  # of each step two yes and two no
    assert {r.rollout_id for r in read_rollouts(tmp_path / "rollouts.jsonl")} == {f"r{i}" for i in range(5)}


def test_uncertain_verdicts_are_escalated_within_the_budget(tmp_path):
    """P(yes) .52 to .94 in steps of .06: within .3 of a half are six of eight. Before an alarm none, then the nearest to
    a half first; the budget of 10 leaves four for the second step and none for the third."""
    watch = InLoopAgreement(No(fails="c1"), 4, tmp_path, seed=0, examples={"e": EXAMPLE})

    def judged(step):
        raised = [
            (e, r, dataclasses.replace(v, p_yes=0.52 + 0.06 * i))
            for i, (e, r, v) in enumerate(a_step(step, [True] * 8))
        ]
        return [
            *raised[::-1],
            (EXAMPLE, raised[0][1], dataclasses.replace(raised[0][2], verdict=None, p_yes=None, error="x")),
        ]

    assert watch.escalate(0, judged(0), 10, 0.3) == {}
    for step in range(4):
        watch.observe(step, a_step(step, [True] * 8))
        watch.collect(wait=True)
    assert watch.alarms
    first = watch.escalate(4, judged(4), 10, 0.3)
    assert sorted(first) == [3, 4, 5, 7] and watch.escalated == 5  # c1, number 6, fails: the judge's stands
    assert all(v.verdict is False and v.judge == "teacher" for v in first.values())
    used = watch.escalated
    second = watch.escalate(5, judged(5), 10, 0.3)
    assert watch.escalated == 10 and len(second) == 10 - used - 1 and set(second) <= {7, 5, 4, 3}
    assert watch.escalate(6, judged(6), 10, 0.3) == {}
    assert [row["step"] for row in rows(tmp_path / "escalated.jsonl")] == [4] * used + [5] * (10 - used)
    assert watch.close()["escalated"] == 10
    again = InLoopAgreement(No(), 4, tmp_path, seed=0, examples={"e": EXAMPLE})
    again.start(5)  # step 5 is taken again, so its calls are free again
    assert again.escalated == used and [row["step"] for row in rows(tmp_path / "escalated.jsonl")] == [4] * used
    # r4 was asked about in the judge's place alone: what the teacher said there still has its response
    assert {r.rollout_id for r in read_rollouts(tmp_path / "rollouts.jsonl")} == {"r0", "r1", "r2", "r3", "r4"}
    again.close()


def test_refresh_writes_what_the_command_reads(tmp_path):
    """The command that it names is one that `claimwise refresh` takes, and the tables join."""
    write_examples(tmp_path / "examples.jsonl", [EXAMPLE])
    watch = watched(tmp_path / "in_loop", range(3))
    settings = RubricGRPOConfig(
        **COMMON, output_dir=str(tmp_path), verifier="ADAPTER", examples=str(tmp_path / "examples.jsonl")
    )
    told = write_refresh(watch, settings)
    watch.close()
    assert told.startswith("refresh: 12 verdicts of the teacher on 3 rollouts, 6 of them disagreements, are in ")
    command = (tmp_path / "in_loop/refresh/command.txt").read_text().strip()
    assert told.endswith(command)
    named = parse_settings(RefreshConfig, shlex.split(command)[2:], "refresh")
    assert named.adapter == "ADAPTER" and named.old_verdicts == "OLD_VERDICTS"
    pairs = pair_up(read_examples(named.examples), read_rollouts(named.rollouts))
    items = join_verdicts(pairs, [v for table in named.disagreements for v in read_verdicts(table)])
    assert sum(len(verdicts) for *_, verdicts in items) == 12


@pytest.mark.slow
def test_stop_ends_the_run_with_the_figures_and_is_not_gone_on_with_silently(assets, tmp_path, examples):
    run = tmp_path / "run"
    told = r"step \d: the judge no longer agrees with the teacher .*: \d+ of \d+ sampled verdicts since step 0"
    with pytest.raises(InputError, match=told):
        grpo(assets, run, examples, on_alarm="stop")
    assert (run / "model.safetensors").is_file() and (run / "processor_config.json").is_file()
    assert not (run / "finished.json").exists()
    steps = int(next(run.glob("checkpoint-*")).name.rpartition("-")[2])
    assert steps < 4 and len(rows(run / "log.jsonl")) == steps
    weights = (run / "model.safetensors").read_bytes()
    with pytest.raises(InputError, match=r"was stopped: step \d: .* go on with --on_alarm warn"):
        grpo(assets, run, examples, on_alarm="stop")
    assert (run / "model.safetensors").read_bytes() == weights
    figures = grpo(assets, run, examples, on_alarm="warn")
    assert figures["alarms"] and len(rows(run / "log.jsonl")) == 4 and (run / "finished.json").is_file()
    assert {row["step"] for row in rows(run / "in_loop/samples.jsonl")} == {0, 1, 2, 3}


def test_warn_says_so_in_a_line_and_in_the_log(assets, tmp_path, examples, capsys):
    figures = grpo(assets, tmp_path / "run", examples)
    told = capsys.readouterr().err
    assert "alarm, step" in told and "the run goes on (on_alarm: warn)" in told
    found = rows(tmp_path / "run/in_loop/alarms.jsonl")
    assert [row["text"] for row in found] == figures["alarms"] and {row["kind"] for row in found} == {"agreement"}
    log = rows(tmp_path / "run/log.jsonl")
    assert log[-1]["judge/alarms"] > 0 and "judge/cusum/all" in log[-1]
    assert log[-1]["judge/agreement_low"] < log[-1]["judge/agreement"] < log[-1]["judge/agreement_high"] < 1


def test_refresh_while_training(assets, tmp_path, examples, capsys):
    grpo(assets, tmp_path / "run", examples, on_alarm="refresh", max_steps=2)
    assert "claimwise refresh --adapter ADAPTER" in capsys.readouterr().err
    assert read_verdicts(tmp_path / "run/in_loop/refresh/teacher.jsonl")


@pytest.mark.slow
def test_escalate_while_training(assets, tmp_path, examples):
    grpo(assets, tmp_path / "run", examples, on_alarm="escalate", escalate_budget=60)
    asked = []
    for row in rows(tmp_path / "run/log.jsonl"):  # the judge says yes to all; the credit is made of the teacher's word
        asked.append(row["judge/escalated"])
        assert (min(value for key, value in row.items() if key.endswith("/yes")) < 1) == (asked[-1] > 0)
    assert asked[0] == 0 and 0 < sum(asked) <= 60
    escalated = rows(tmp_path / "run/in_loop/escalated.jsonl")
    assert 0 <= len(escalated) - sum(asked) <= 60 and {row["teacher"]["judge"] for row in escalated} == {"oracle-image"}
    drawn = rows(tmp_path / "run/in_loop/drawn.jsonl")
    assert {row["judge"]["judge"] for row in drawn} == {"yes"}  # the sample watches the judge, not its replacement


@pytest.mark.slow
@pytest.mark.parametrize("action", ["stop", "escalate"])
def test_two_processes_act_together(tmp_path, action):
    """Both end, neither waits for the other, and both for the same reason."""
    ends = together(2, str(Path(__file__).with_name("alarm_worker.py")), str(tmp_path / "run"), action)
    assert [end[0] for end in ends] == [0, 0], [end[2][-2000:] for end in ends]
    said = [end[1].strip().splitlines()[-1] for end in ends]
    if action == "stop":
        assert said[0] == said[1] and "no longer agrees with the teacher" in said[0]
        assert not (tmp_path / "run/finished.json").exists() and (tmp_path / "run/model.safetensors").is_file()
    else:
        assert said[0] == said[1] and 0 < float(said[0].rpartition(" ")[2]) < 1  # the share of yes of the last step
        assert len(rows(tmp_path / "run/in_loop/escalated.jsonl")) > 0


@pytest.mark.parametrize("action", ["escalate", "refresh", "stop"])
def test_an_action_without_a_teacher_is_refused(assets, tmp_path, examples, action):
    with pytest.raises(InputError, match=f"on_alarm is {action}, but nobody checks the verdicts"):
        rubric_trainer(assets, tmp_path, examples, IMAGE, on_alarm=action)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"on_alarm": "panic"}, "must be one of warn, escalate, refresh, stop"),
        ({"teacher": "someone"}, "it must be oracle, a server's address"),
        ({"teacher": "http://localhost:1/v1"}, "set teacher_model"),
        ({"teacher": "oracle", "teacher_model": "m"}, "teacher is no server's address"),
        ({"bad_agreement": 0.95}, "0 < bad_agreement < healthy_agreement < 1"),
        ({"escalate_band": 0.7}, "0..0.5"),
    ],
)
def test_settings_that_cannot_be_used(tmp_path, settings, reason):
    with pytest.raises(InputError, match=reason):
        RubricGRPOConfig(output_dir=str(tmp_path), **{**COMMON, **settings})


def test_refresh_wants_a_teacher_in_the_verifiers_mode(assets, tmp_path, examples):
    with pytest.raises(InputError, match="teacher judges in image mode and the verifier in text mode"):
        rubric_trainer(assets, tmp_path, examples, OracleJudge("text"), IMAGE, on_alarm="refresh")


def misbehaving(call):
    """By turns an answer, an error, prose and a broken connection."""
    answer = judge(call)
    kinds = (answer, status(500, "overloaded"), say("I cannot say."), dataclasses.replace(answer, reset=True))
    return kinds[(call.number - 1) % 4]


@pytest.mark.slow
def test_a_server_that_misbehaves_does_not_stop_the_training(assets, tmp_path, on_disk):
    with Server(misbehaving) as server:
        teacher = QuotingJudge(server.url, "big", "image", tries=1)
        trainer = rubric_trainer(assets, tmp_path, on_disk, IMAGE, teacher, sampled_verdicts=8)
        trainer.train()
        figures = trainer.in_loop.close()
    assert len(logged(trainer, "loss")) == 2 and figures["sampled"] == 16
    verdicts = read_verdicts(tmp_path / "in_loop/teacher.jsonl")
    missing = [v for v in verdicts if v.verdict is None]
    assert 0 < len(missing) == figures["teacher_missing"] < 16
    assert all(v.error for v in missing) and figures["agreement"] is not None
    assert {v.judge for v in verdicts} == {"big"}


def test_a_server_that_is_not_there_does_not_stop_the_training_either(assets, tmp_path, on_disk):
    with Server() as server:
        url = server.url
    teacher = QuotingJudge(url, "big", "image", tries=1)
    trainer = rubric_trainer(assets, tmp_path, on_disk, IMAGE, teacher, sampled_verdicts=4)
    trainer.train()
    figures = trainer.in_loop.close()
    assert (figures["sampled"], figures["teacher_missing"], figures["agreement"]) == (8, 8, None)
    assert all("connection" in v.error for v in read_verdicts(tmp_path / "in_loop/teacher.jsonl"))


def test_the_command_takes_a_teacher_behind_a_server(assets, tmp_path, examples, monkeypatch, capsys):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    write_examples(tmp_path / "examples.parquet", examples)
    with Server() as server:
        flags = {
            "model": assets / "policy", "examples": tmp_path / "examples.parquet", "verifier": "oracle",
            "teacher": server.url, "teacher_model": "big", "output_dir": tmp_path / "run", "sampled_verdicts": 3,
            **COMMON, "max_steps": 1, "max_completion_length": 24,
        }  # fmt: skip
        assert main(["train", *(x for k, v in flags.items() for x in (f"--{k}", str(v)))]) == 0
    assert '"sampled": 3' in capsys.readouterr().out
    assert {call.headers["authorization"] for call in server.calls} == {"Bearer sk-test"}
    assert {call.body["model"] for call in server.calls} == {"big"} and len(server.calls) == 3
    assert len(read_verdicts(tmp_path / "run/in_loop/teacher.jsonl")) == 3
