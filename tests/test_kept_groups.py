"""Groups kept of a GRPO run: what is in them is what was used, `claimwise credit` finds the same, the report shows it,
and they survive a stop."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from claimwise.distill.oracle import OracleJudge
from claimwise.eval.report import write_report
from claimwise.scripts.cli import main
from claimwise.trainer.kept_groups import MOST, KeptGroups
from claimwise.verifier.tables import write_examples
from grpo_runs import (
    PLAIN_SGD,
    Failing,
    batches_of,
    make_examples,
    rubric_trainer,
    write_down,
    written_completions,
)
from reporting import Page

SHOWN = ["answer", "scalar", "scalar-z", "component", "prefix", "span"]


def trained(assets, folder, arm, **settings):
    """One step on two groups of four, some verdicts missing: the rows of advantages that reached the loss, and the group
    kept."""
    examples = make_examples(2)
    judge = Failing(lambda i: i % 7 == 3)
    trainer = rubric_trainer(assets, folder, examples, judge, arm=arm, **{**PLAIN_SGD, **settings})
    seen = batches_of(write_down(trainer, written_completions(assets, examples)))
    trainer.train()
    rows = [
        np.broadcast_to(row.numpy(), mask.shape)[: int(mask.sum())]
        for batch in seen
        for row, mask in zip(batch["advantages"], batch["completion_mask"], strict=True)
    ]
    (file,) = (folder / "groups").iterdir()
    assert file.name == "step00000.json"
    return rows, file, json.loads(file.read_text())


@pytest.mark.parametrize(
    ("arm", "settings"),
    [
        ("answer", {}),
        ("scalar", {}),
        ("prefix", {"budget": "release-prefix", "pitfalls": "criterion"}),
        ("prefix", {"match_rms": True}),
        ("span", {}),
        ("prefix-shuffled", {}),
    ],
)
def test_the_advantages_kept_are_those_that_reached_the_loss(assets, tmp_path, arm, settings, capsys):
    rows, file, group = trained(assets, tmp_path, arm, **settings)
    capsys.readouterr()
    own = [response["arms"][arm]["advantages"] for response in group["responses"]]
    assert len(own) == 4 and any(max(map(abs, row)) > 0.1 for row in own)
    for row in own:  # TRL shuffles a batch before it reaches the loss
        assert any(len(row) == len(used) and np.allclose(row, used, atol=2e-6) for used in rows)
    assert set(group["responses"][0]["arms"]) == {*SHOWN, arm}
    flags = ["--budget", group["budget"], "--pitfalls", group["pitfalls"], "--json"]
    for other in SHOWN if not settings.get("match_rms") else []:
        assert main(["credit", str(file), "--arm", other, *flags]) == 0
        found = json.loads(capsys.readouterr().out)
        for response, advantages, rewards in zip(
            group["responses"], found["advantages"], found["rewards"], strict=True
        ):
            if other != arm or arm != "answer":  # where it is the arm, it is TRL's own, which has another epsilon
                assert response["arms"][other]["advantages"] == pytest.approx(advantages, abs=2e-6)
            assert response["rewards"] == rewards


def test_under_match_rms_all_arms_have_one_root_mean_square(assets, tmp_path):
    """That of the batch: its other group is not kept, so it is within the two groups' own."""
    rows, _, group = trained(assets, tmp_path, "component", match_rms=True)
    everything = np.concatenate(rows)
    assert np.sqrt(np.mean(everything**2)) == pytest.approx(1, abs=1e-5)
    for arm in set(SHOWN) - {"answer"}:
        for response in group["responses"]:
            credit = response["arms"][arm]
            summed = np.zeros(len(credit["advantages"]))
            for term in credit["terms"]:
                summed[term["first"] : term["last"] + 1] += term["added"]
            assert credit["advantages"] == pytest.approx(summed, abs=1e-5)


def test_verdicts_are_kept_with_sentence_and_reading(assets, tmp_path):
    _, _, group = trained(assets, tmp_path, "prefix")
    example = next(e for e in make_examples(2) if e.example_id == group["example_id"])
    assert [c["id"] for c in group["criteria"]] == [c.id for c in example.criteria]
    missing = 0
    for response in group["responses"]:
        assert "".join(response["response"][a:b] for a, b in response["token_offsets"]) == response["response"]
        assert list(response["verdicts"]) == [c.id for c in example.criteria]
        for said in response["verdicts"].values():
            missing += said["verdict"] is None
            assert (said["error"] == "timed out") is (said["verdict"] is None)
            assert said["span"] is None or response["response"][slice(*said["span"])].strip()
    assert missing > 0
    assert any(said["reading"] for said in group["responses"][0]["verdicts"].values())


def test_the_report_shows_them_with_a_switch(assets, tmp_path):
    run = tmp_path / "run"
    _, _, group = trained(assets, run, "prefix")
    write_examples(tmp_path / "examples.parquet", make_examples(2))
    settings = {"command": "train", "arm": "prefix", "examples": str(tmp_path / "examples.parquet")}
    (run / "run.json").write_text(json.dumps(settings))
    page = Page(write_report([run]).read_text())
    credit = page.section("credit")
    assert "Step 0, example " + group["example_id"] in credit and group["question"] in credit
    titles = [attrs["title"] for attrs in page.of("span") if "title" in attrs]
    for response in group["responses"]:
        assert response["response"].split(".")[0] in credit
        first = response["arms"]["prefix"]["advantages"][0]
        assert any(title.startswith(f"{first:+.3f}, tokens 1–".replace("-", "−")) for title in titles)
    switch = [attrs for attrs in page.of("input") if attrs["type"] == "radio"]
    assert [attrs["for"] for attrs in page.of("label")] == [attrs["id"] for attrs in switch]
    assert ["checked" in attrs for attrs in switch] == [arm == "prefix" for arm in SHOWN]
    assert any(attrs["alt"].startswith(f"The picture of example {group['example_id']}") for attrs in page.of("img"))


def test_a_few_evenly_spread_steps_are_kept(tmp_path):
    def steps_of(total):
        kept = KeptGroups(tmp_path / str(total))
        for step in range(total):
            if kept.wanted(step, total):
                kept.write(step, {})
        return [int(path.stem[4:]) for path in sorted(kept.folder.iterdir())]

    assert steps_of(3) == [0] and steps_of(9) == [0, 4, 8]
    assert steps_of(28) == [0, 4, 8, 12, 16, 20, 24]
    assert steps_of(800) == list(range(0, 800, 100)) and MOST == 8


def test_steps_taken_again_are_kept_anew(tmp_path):
    first = KeptGroups(tmp_path)
    for step in (0, 100, 200):
        assert first.wanted(step, 800)
        first.write(step, {"from": "first"})
    resumed = KeptGroups(tmp_path)
    assert not resumed.wanted(150, 800)  # what was kept of this interval lies before it
    assert resumed.wanted(200, 800)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step00000.json", "step00100.json"]
    resumed.write(210, {})  # where completions serve several steps, the next generation
    assert not resumed.wanted(290, 800) and resumed.wanted(300, 800)


@pytest.mark.slow
def test_a_run_that_is_gone_on_with_keeps_the_same_groups(assets, tmp_path):
    examples = make_examples(4)
    settings = {"max_steps": 5, "save_strategy": "steps", "save_steps": 1}
    whole = rubric_trainer(assets, tmp_path / "whole", examples, OracleJudge("image"), **settings)
    whole.train()
    shutil.copytree(tmp_path / "whole/groups", tmp_path / "again/groups")
    (tmp_path / "again/groups/step00004.json").write_text("of a step that is taken again")
    again = rubric_trainer(assets, tmp_path / "again", examples, OracleJudge("image"), **settings)
    again.train(resume_from_checkpoint=str(tmp_path / "whole/checkpoint-1"))
    names = ["step00000.json", "step00004.json"]
    assert sorted(path.name for path in (tmp_path / "again/groups").iterdir()) == names
    for name in names:
        assert (tmp_path / "again/groups" / name).read_text() == (tmp_path / "whole/groups" / name).read_text()
