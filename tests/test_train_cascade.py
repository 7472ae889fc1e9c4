"""A cascade as the judge of a GRPO run: who is asked what, one budget for all processes and starts, and the sample."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from cascade_worker import CALLS, Unsure, trained
from claimwise.scripts.cli import main
from claimwise.trainer import RubricGRPOConfig
from claimwise.trainer.cascade import RunCascade
from claimwise.verifier import InputError
from claimwise.verifier.cascade import Band
from claimwise.verifier.tables import read_verdicts, write_examples
from grpo_runs import COMMON, logged, make_examples, rubric_trainer, weights_of
from launches import together

SAVED = {"max_steps": 4, "save_strategy": "steps", "save_steps": 1}


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Four steps, eight responses each, within twenty questions."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, *trained(folder, 8, **SAVED)


def test_the_teacher_is_asked_within_the_budget_and_not_sampled(whole):
    """56 verdicts a step, about six tenths in the band: the first step takes all twenty questions. Four examples, two a
    step, so the third and fourth step have the responses of the first two, and what is known of them."""
    folder, trainer, oracle = whole
    assert len(oracle.asked) == len(set(oracle.asked)) == CALLS == len(rows(folder / "cascade.jsonl"))
    tally = trainer.judge.tally
    assert (tally.verdicts, tally.calls, tally.answered) == (4 * 56, CALLS, 2 * CALLS) and tally.over_budget > 20
    shares = logged(trainer, "judge/by_teacher")
    assert len(shares) == 4 and sum(shares) * 56 == pytest.approx(2 * CALLS) and shares[0] + shares[1] > 0.3
    drawn = read_verdicts(folder / "in_loop/judge.jsonl")
    assert len(drawn) == 4 * 6 and {v.judge for v in drawn} == {"unsure"}
    assert trainer.in_loop.samples[0].judge in drawn


@pytest.mark.parametrize("checkpoint", [1, 3])
def test_a_run_that_is_gone_on_with_spends_nothing_twice(whole, tmp_path, checkpoint):
    """The same trajectory to the last bit, whatever was done after the checkpoint."""
    folder, trainer, _ = whole
    shutil.copytree(folder, tmp_path / "again")
    start = str(tmp_path / f"again/checkpoint-{checkpoint}")
    with (tmp_path / "again/cascade.jsonl").open("a") as file:
        file.write('{"key": "00')  # cut off while it was written
    resumed, oracle = trained(tmp_path / "again", 8, start, **SAVED)
    assert oracle.asked == [] and rows(tmp_path / "again/cascade.jsonl") == rows(folder / "cascade.jsonl")
    assert logged(resumed, "loss") == logged(trainer, "loss")
    one, other = weights_of(trainer), weights_of(resumed)
    assert all(torch.equal(one[name], other[name]) for name in one)
    more, oracle = trained(tmp_path / "again", 8, start, calls=CALLS + 5, **SAVED)
    assert len(oracle.asked) == 5 and more.judge.tally.calls == CALLS + 5


@pytest.mark.slow
def test_two_processes_have_one_budget(tmp_path):
    """The same questions go to the teacher as in one process, from the main one, and end in the same verdicts."""
    _, oracle = trained(tmp_path / "one", 8, max_steps=1)
    script = str(Path(__file__).with_name("cascade_worker.py"))
    ends = together(2, script, str(tmp_path / "two"), "4")
    assert [end[0] for end in ends] == [0, 0], [end[2][-2000:] for end in ends]
    assert [end[1].split()[-2:] for end in ends] == [["True", str(len(oracle.asked))], ["False", "0"]]
    one, two = (rows(tmp_path / name / "cascade.jsonl") for name in ("one", "two"))
    assert {row["key"] for row in one} == {row["key"] for row in two} and len(one) == len(two) == len(oracle.asked)
    figures = []
    for name in ("one", "two"):
        [row] = [json.loads(line) for line in (tmp_path / name / "in_loop/drawn.jsonl").read_text().splitlines()[:1]]
        figures.append(row["reward"])  # the step's mean rubric reward: of the verdicts that were used
    assert figures[0] == pytest.approx(figures[1])


def test_a_teacher_that_refuses_the_first_question_ends_the_run(assets, tmp_path):
    class Refusing:
        name, mode = "m", "image"

        def judge(self, items):
            raise InputError("the key is refused")

    cascade = RunCascade(Unsure(), Refusing(), Band(0.2, 0.8))
    with pytest.raises(InputError, match="the key is refused"):
        rubric_trainer(assets, tmp_path, make_examples(4), cascade, max_completion_length=8).train()


def flags(assets, folder: Path, **more) -> list[str]:
    values = {
        "model": assets / "policy", "examples": folder / "examples.parquet", "verifier": assets / "verifier",
        "teacher": "oracle", "cascade": folder / "cascade.json", "output_dir": folder / "run", **COMMON, "max_steps": 1,
        "sampled_verdicts": 4, **more,
    }  # fmt: skip
    return ["train", *(word for key, value in values.items() for word in (f"--{key}", str(value)))]


def test_the_command(assets, tmp_path, capsys):
    band = {"schema_version": 1, "band": [0.0, 1.0], "verifier": {"judge": "verifier-image", "mode": "image"}}
    (tmp_path / "cascade.json").write_text(json.dumps(band))
    write_examples(tmp_path / "examples.parquet", make_examples(4))
    assert main(flags(assets, tmp_path, cascade_calls=7)) == 0
    [row] = rows(tmp_path / "run/log.jsonl")
    assert row["judge/by_teacher"] * 56 >= 7 - 1e-6  # equal responses share an answer
    asked = rows(tmp_path / "run/cascade.jsonl")
    assert len(asked) == 7 and {one["verdict"]["judge"] for one in asked} == {"oracle-image"}
    assert {v.judge for v in read_verdicts(tmp_path / "run/in_loop/judge.jsonl")} == {"verifier-image"}
    capsys.readouterr()
    (tmp_path / "cascade.json").write_text(json.dumps({**band, "verifier": {"judge": "other"}}))
    assert main(flags(assets, tmp_path, output_dir=tmp_path / "other")) == 2
    assert "was chosen for a verifier with judge 'other'" in capsys.readouterr().err


def test_a_verifier_on_the_policys_base_comes_first(assets, tmp_path):
    """Its verdicts are those of one with a base of its own, and so are the questions that the teacher gets."""
    band = {"schema_version": 1, "band": [0.0, 1.0], "verifier": {"judge": "verifier-image", "mode": "image"}}
    (tmp_path / "cascade.json").write_text(json.dumps(band))
    write_examples(tmp_path / "examples.parquet", make_examples(4))
    settings = {"model": assets / "base", "lora_r": 4, "cascade_calls": 9, "cascade": tmp_path / "cascade.json"}
    asked = []
    for shared in (False, True):
        folder = tmp_path / f"shared-{shared}"
        assert main(flags(assets, tmp_path, output_dir=folder, shared_base=shared, **settings)) == 0
        asked.append([row["key"] for row in rows(folder / "cascade.jsonl")])
        drawn = read_verdicts(folder / "in_loop/judge.jsonl")
        assert drawn and {v.judge for v in drawn} == {"verifier-image"}
    assert asked[0] == asked[1] and len(asked[0]) == 9


def test_a_verifier_learns_nothing_from_a_teacher_in_another_mode(assets, world, tmp_path, capsys):
    band = {"schema_version": 1, "band": [0.0, 1.0], "verifier": {"judge": "verifier-text"}}
    (tmp_path / "cascade.json").write_text(json.dumps(band))
    write_examples(tmp_path / "examples.parquet", make_examples(2))
    assert main(flags(assets, tmp_path, verifier=world / "text", on_alarm="refresh")) == 2
    assert f"the teacher judges in image mode and {world / 'text'} in text mode" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"verifier": "oracle", "teacher": "oracle"}, "cascade needs a verifier's adapter folder"),
        ({"verifier": "DIR"}, "cascade needs .* and a teacher"),
        ({"verifier": "DIR", "teacher": "oracle", "cascade_calls": -1}, "cascade_calls is -1"),
    ],
)
def test_settings_that_cannot_be_used(tmp_path, settings, reason):
    with pytest.raises(InputError, match=reason):
        RubricGRPOConfig(output_dir=str(tmp_path), cascade="c.json", **{**COMMON, **settings})
