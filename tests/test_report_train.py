"""The report of a GRPO run: curves with alarms and actions, the judge against the teacher, a hacked judge named."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
from claimwise.eval.report import write_report
from claimwise.scripts.cli import main
from claimwise.trainer.alarms import Alarm, RisingAndFalling, row_of
from claimwise.trainer.samples import Drawn, Sample, SampleFiles
from claimwise.verifier.schema import Example, Rollout
from claimwise.verifier.tables import write_examples
from PIL import Image
from reporting import CREDIT, CRITERIA, EVIL, FIRST, Page, verdict

STEPS = 12


def make_train(folder, hacked=False):
    """A run of 12 steps, one sampled verdict on c1 a step; from step 8 on the teacher says no to the judge's yes."""
    folder.mkdir()
    write_examples(
        folder / "examples.parquet", [Example("e0", "What is on top?", CRITERIA, (Image.new("RGB", (64, 64)),))]
    )
    settings = {"command": "train", "arm": "prefix", "budget": "paper", "verifier": "v", "teacher": "oracle"}
    (folder / "run.json").write_text(json.dumps({**settings, "examples": str(folder / "examples.parquet")}))
    rows = [
        {
            "step": step + 1,
            "rubric/reward": 0.3 + 0.05 * step,
            "rubric/VF/yes": 0.5,
            "rubric/VF/located": 0.9,
            "rubric/fallbacks": 3.0,
            "rubric/VF/missing": 0.0,
            "judge/agreement": 1 - 0.02 * step,
            "judge/agreement_low": 0.7,
            "judge/agreement_high": 1.0,
            "judge/escalated": float(step == 9),
        }
        for step in range(STEPS)
    ]
    (folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = SampleFiles(folder / "in_loop")
    for step in range(STEPS):
        judge = verdict(0, CRITERIA[0], "small", "image", True, 0.9, FIRST)
        teacher = verdict(0, CRITERIA[0], "oracle-image", "image", step < 8, float(step < 8), FIRST)
        judge, teacher = (type(v)(**{**asdict(v), "rollout_id": f"s{step}"}) for v in (judge, teacher))
        files.add_drawn([Drawn(step, 2.0, judge)], [Rollout(f"s{step}", "e0", EVIL, "policy")])
        files.add_samples([Sample(step, 2.0, judge, teacher)])
    alarms = [Alarm(9, "all", 7, 5, 3, 6.2), Alarm(9, "VF", 7, 5, 3, 6.2)]
    alarms += [RisingAndFalling(11, 0, (0.3, 0.8), (0.9, 0.7))] if hacked else []
    files.append("alarms.jsonl", map(row_of, alarms))
    files.append("escalated.jsonl", [{"step": 9, "judge": asdict(judge), "teacher": asdict(teacher)}])
    (folder / "groups").mkdir()
    for step in (0, 2, 4, 6):
        (folder / f"groups/step{step:05d}.json").write_text(json.dumps({"step": step, **CREDIT}))
    end = {"agreement": 8 / 12, "agreement_ci": [0.39, 0.86], "kappa": None, "sampled": STEPS}
    (folder / "finished.json").write_text(json.dumps(end))
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_train(tmp_path_factory.mktemp("runs") / "grpo")


@pytest.fixture(scope="module")
def page(run):
    return Page(write_report([run]).read_text())


def test_alarms_and_actions_are_said_and_marked(page, run):
    training = page.section("training")
    assert "Alarm, step 9: the judge no longer agrees with the teacher on all sampled verdicts: 3 of 5" in training
    assert "Escalated: 1 uncertain verdicts of steps 9 to 9 went to the teacher" in training
    (agreement,) = [a["aria-label"] for a in page.of("svg") if a["aria-label"].startswith("In-loop")]
    assert "alarm at step 10; escalation begins at step 10" in agreement  # the log's tenth step is step 9
    (found,) = json.loads((run / "report.json").read_text())["runs"]
    assert found["figures"]["marks"] == {"alarm": [10], "escalation begins": [10]}
    assert len(found["figures"]["alarms"]) == 2


def test_steps_are_counted_and_not_the_rows_of_the_log(tmp_path):
    """A row every four steps, and one of an evaluation."""
    run = make_train(tmp_path / "run")
    rows = [line for line in (run / "log.jsonl").read_text().splitlines() if json.loads(line)["step"] % 4 == 0]
    (run / "log.jsonl").write_text("\n".join(rows) + "\n")
    (run / "eval_log.jsonl").write_text(json.dumps({"step": 6, "eval_reward": 0.5}) + "\n")
    assert len(rows) == 3 and "budget paper: 12 steps judged by v" in Page(write_report([run]).read_text()).text


def test_curves_are_drawn_of_what_was_logged(page):
    *titles, reliability = [attrs["aria-label"].split(".")[0] for attrs in page.of("svg")]
    assert reliability == "P(yes) against the reference’s share of yes"
    names = ["Reward", "In-loop agreement", "Verdicts that say yes", "Verdicts with a deciding sentence", "Fallbacks"]
    assert titles == [f"{name} over training steps" for name in [*names, "Escalated verdicts"]]  # none was missing


def test_the_judge_is_held_against_the_teacher(page):
    agreement = page.section("agreement")
    assert "all 12 4 0.667 [0.390, 0.860]" in agreement
    assert "VF 8 0 4 0 0" in agreement  # both yes, false no, false yes, both no, missing
    # P(yes) .9 twelve times, of which the teacher says yes to 8
    assert any("the judge: mean gap to the diagonal 0.233 over 12 verdicts" in a["aria-label"] for a in page.of("svg"))
    shown = page.section("disagreements")
    assert "False yes: the judge accepts" in shown and shown.count("✗ no the teacher, oracle-image") == 3
    assert "<script>alert(1)</script>" in shown and "<script" not in page.source
    assert shown.count("None among the sampled verdicts") == 1  # no false no
    pictures = [a for a in page.of("img") if a["alt"].startswith("The picture of example e0")]
    assert len(pictures) == 3 + 3  # and of the groups shown


def test_groups_are_shown_with_their_credit(page):
    credit = page.section("credit")
    assert "3 of 4 groups kept" in credit and "Trained on: arm prefix" in credit
    assert [f"Step {step}, example e0" in credit for step in (0, 2, 4, 6)] == [True, False, True, True]
    assert credit.count("✓ yes States that the top <b>digit</b> is 3.") == 3
    assert "“" not in credit and credit.count("It is 3.") >= 3 and credit.count("reads in the picture: three") == 3
    assert credit.count("timed <out>") == 3 and "<out>" not in page.source
    names = [attrs["name"] for attrs in page.of("input")]
    assert names == ["g1-arm"] * 2 + ["g2-arm"] * 2 + ["g3-arm"] * 2
    ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert len(ids) == len(set(ids))


def test_of_a_large_group_some_responses_are_shown(tmp_path):
    run, many = make_train(tmp_path / "grpo"), json.loads(json.dumps({"step": 6, **CREDIT}))
    (first,) = many["responses"]
    many["responses"] = []
    for number in range(9):  # the advantage falls with the number, but for the last
        own = json.loads(json.dumps(first))
        own["arms"]["prefix"]["advantages"] = [5.0 if number == 8 else 1 - number / 8] * 5
        many["responses"].append(own)
    (run / "groups/step00006.json").write_text(json.dumps(many))
    credit = Page(write_report([run]).read_text()).section("credit")
    assert "4 of the 9 responses of a group" in credit
    shown = [number for number in range(1, 10) if f"Response {number} Rewards" in credit.partition("Step 6")[2]]
    assert shown == [3, 5, 8, 9]  # from the best to the worst 9, 1, 2, ... 8: of these the first, the 4th, 6th and last


@pytest.mark.parametrize("hacked", [False, True])
def test_a_reward_that_rises_while_agreement_falls_is_named(tmp_path, hacked):
    training = Page(write_report([make_train(tmp_path / "grpo", hacked)]).read_text()).section("training")
    # quarters of twelve steps: .3, .35, .4 and .75, .8, .85; 1, .98, .96 and .82, .8, .78
    assert "the rubric reward went from 0.350 to 0.800" in training and "from 0.980 to 0.800" in training
    assert ("a trend test confirms both" in training) is hacked
    assert ("No trend test has confirmed it" in training) is not hacked
    assert ("the judge may be hacked: since step 0" in training) is hacked


def test_what_is_missing_is_said(tmp_path):
    run = make_train(tmp_path / "grpo")
    for name in ("log.jsonl", "finished.json", "examples.parquet", "in_loop/alarms.jsonl"):
        (run / name).unlink()
    for file in (run / "groups").iterdir():
        file.unlink()
    page = Page(write_report([run]).read_text())
    assert "log.jsonl is not in this run" in page.section("training")
    assert "This run is not finished" in page.section("training")
    assert "groups/ is not in this run" in page.section("credit")
    assert "The examples are not where run.json says" in page.section("disagreements")
    assert "criterion c1" in page.section("disagreements")
    assert len(page.of("svg")) == 2  # the agreement and the reliability, from the samples
    (run / "in_loop/samples.jsonl").unlink()
    assert "samples.jsonl is not in this run" in Page(write_report([run]).read_text()).section("agreement")


def test_a_stopped_run_and_the_last_checkpoint(tmp_path):
    run = make_train(tmp_path / "grpo")
    (run / "stopped.txt").write_text("step 9: the judge no longer agrees\n")
    state = {"log_history": [{"step": 5, "rubric/reward": 0.5, "reward": 1.0}, {"step": 6, "rubric/reward": 0.6}]}
    for number in (10, 9):
        (run / f"checkpoint-{number}").mkdir()
        (run / f"checkpoint-{number}/trainer_state.json").write_text(json.dumps(state if number == 10 else {}))
    (run / "log.jsonl").unlink()
    page = Page(write_report([run]).read_text())
    assert "An alarm stopped this run. step 9: the judge no longer agrees" in page.section("training")
    assert any("rubric reward from 0.500 at step 5 to" in a["aria-label"] for a in page.of("svg"))


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("in_loop/alarms.jsonl", '{"step": 1}\n', "alarms.jsonl, row 1: it needs 'kind' and 'text'"),
        ("in_loop/escalated.jsonl", "{}\n", "escalated.jsonl, row 1: key 'step'"),
        ("log.jsonl", "{", "log.jsonl, row 1: it is not JSON"),
        ("run.json", "[]", "run.json: it is no object"),
        ("groups/step00006.json", '{"step": 6}', "step00006.json: key 'criteria'"),
        ("groups/step00006.json", "{}", "step00006.json, row 1: key 'step'"),
    ],
)
def test_bad_files_are_one_line(tmp_path, name, text, said, capsys):
    run = make_train(tmp_path / "grpo")
    (run / name).write_text(text)
    assert main(["report", str(run)]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1 and not (run / "report.html").exists()
