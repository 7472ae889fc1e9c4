"""`claimwise refresh`: what is drawn and held out, a whole run on a tiny base, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
from claimwise.distill.config import DistillConfig
from claimwise.distill.refresh import RefreshConfig, before_and_after, refresh, replay, split_new
from claimwise.distill.run import distill
from claimwise.distill.train import Item
from claimwise.eval.agreement import agree
from claimwise.scripts.cli import main
from claimwise.verifier.adapter import MERGED
from claimwise.verifier.errors import InputError
from claimwise.verifier.judge import load_judge
from claimwise.verifier.schema import Criterion, Example, Rollout, Verdict
from claimwise.verifier.tables import (
    pair_up,
    read_examples,
    read_rollouts,
    read_verdicts,
    write_examples,
    write_rollouts,
    write_verdicts,
)
from distilling import assert_same_weights, contents, make_tables, settings
from transformers.trainer_callback import DefaultFlowCallback

SAMPLED = 3  # the teacher was asked every third verdict


def item(name: str, image: str | None = None, verdicts: int = 2, sample: int = 0) -> Item:
    criteria = tuple(Criterion(f"c{k}", f"Says {k}") for k in range(verdicts))
    example = Example(name, "?", criteria, (Path(image),) if image else ())
    rollout = Rollout(f"{name}/{sample}", name, "Text.", "policy", sample)
    return example, rollout, [Verdict(name, rollout.rollout_id, c.id, "teacher", "image", True) for c in criteria]


def names(items: list[Item]) -> set[str]:
    return {example.example_id for example, *_ in items}


def test_examples_with_the_same_image_stay_together():
    """Ten images of two examples with two responses each; a fifth of ten images is two."""
    new = [item(f"p/e{i}-{j}", f"{i}.png", sample=s) for i in range(10) for j in range(2) for s in range(2)]
    train, held_out = split_new(new, "p/", [item("v0", "v.png")], 0.2, seed=0)
    assert len(train) == 32 and len(held_out) == 8
    images = [{example.images for example, *_ in part} for part in (train, held_out)]
    assert not images[0] & images[1] and not names(train) & names(held_out)
    assert train + held_out != new and sorted(names(train) | names(held_out)) == sorted(names(new))
    assert split_new(new, "p/", [], 0.2, seed=0)[0] == train
    assert split_new(new, "p/", [], 0.2, seed=1)[0] != train


def test_what_was_held_out_before_is_held_out_again():
    """By its id or by its image: otherwise the old figures after would be of what was trained on."""
    new = [item(f"p/e{i}", f"{i}.png") for i in range(10)]
    old = [item("e3", "elsewhere/3.png"), item("other", "7.png"), item("e4", "4.png")]
    train, held_out = split_new(new, "p/", old, 0.2, seed=0)
    assert names(held_out) == {"p/e3", "p/e4", "p/e7"} and len(train) == 7
    with pytest.raises(InputError, match="on 1 examples, 1 of them held out before; too few to train on some and"):
        split_new(new[3:4], "p/", old, 0.2, seed=0)


@pytest.mark.parametrize(
    ("share", "verdicts", "wanted"),
    [
        (0.5, 9, 5),  # 9 old verdicts beside 9 new ones: five responses of two
        (0.25, 9, 2),  # 9 / 3 = 3 verdicts
        (0.75, 6, 9),  # 18 verdicts
        (0.0, 9, 0),
        (0.9, 9, 20),  # 81 verdicts, of which there are 40
    ],
)
def test_old_responses_are_replayed_to_the_share(share, verdicts, wanted):
    old = [item(f"e{i}") for i in range(20)]
    drawn = replay(old, verdicts, share, seed=0)
    assert len(drawn) == wanted == len(names(drawn)) and names(drawn) <= names(old)
    assert drawn == replay(old, verdicts, share, seed=0)


def test_the_change_is_paired():
    """Four examples of two verdicts, the teacher says yes; before 4 of 8 right, after 6, none of them lost."""

    def table(judge: str, values: str) -> list[Verdict]:
        return [Verdict(f"e{i // 2}", f"r{i // 2}", f"c{i}", judge, "image", v == "y") for i, v in enumerate(values)]

    found = before_and_after(table("t", "y" * 8), table("old", "ynynynyn"), table("new", "yyyynyyn"))
    assert found["before"]["overall"]["agreement"] == 0.5 and found["after"]["overall"]["agreement"] == 0.75
    change = found["change"]
    assert (change["difference"], change["only_a"], change["only_b"]) == (0.25, 1, 3)
    assert change["difference_ci"][0] <= 0.25 <= change["difference_ci"][1]


@pytest.fixture(scope="module")
def verifier(tiny_base, tables, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("refresh") / "verifier"
    distill(DistillConfig(**settings(tiny_base, tables, out)))
    return out


@pytest.fixture(scope="module")
def grpo(tables, tmp_path_factory) -> Path:
    """What a run left: examples with the ids of old ones, one of them held out before, and a sample of the teacher's
    verdicts in two tables, one of them missing."""
    folder = make_tables(tmp_path_factory.mktemp("grpo"), "train", 10)
    held_out = read_examples(tables / "validation/examples.jsonl")[0]
    answer = next(r for r in read_rollouts(tables / "validation/rollouts.jsonl") if r.example_id == held_out.example_id)
    write_examples(folder / "examples.jsonl", [*read_examples(folder / "examples.jsonl"), held_out])
    write_rollouts(folder / "rollouts.jsonl", [*read_rollouts(folder / "rollouts.jsonl"), answer])
    rows = read_verdicts(folder / "gold-image.jsonl")[::SAMPLED]
    rows[0] = dataclasses.replace(rows[0], verdict=None, p_yes=None, error="timeout")
    gold = read_verdicts(tables / "validation/gold-image.jsonl")
    write_verdicts(folder / "first.jsonl", rows[:20])
    write_verdicts(folder / "second.jsonl", [*rows[20:], *(v for v in gold if v.rollout_id == answer.rollout_id)])
    return folder


@pytest.fixture
def flags(verifier, grpo, tables, tiny_base, tmp_path):
    """The settings of a run of two steps."""
    held_out = {k: v for k, v in settings(tiny_base, tables, tmp_path).items() if k.startswith("validation_")}
    return {
        "adapter": str(verifier), "examples": str(grpo / "examples.jsonl"), "rollouts": str(grpo / "rollouts.jsonl"),
        "disagreements": [str(grpo / "first.jsonl"), str(grpo / "second.jsonl")],
        **{f"old_{name}": str(tables / f"train/{name}.jsonl") for name in ("examples", "rollouts")},
        "old_verdicts": str(tables / "train/gold-image.jsonl"), **held_out, "output_dir": str(tmp_path / "new"),
        "learning_rate": 5e-3, "max_steps": 2, "per_device_train_batch_size": 4, "save_strategy": "steps",
        "save_steps": 1, "report_to": "none", "seed": 5,
    }  # fmt: skip


def argv(flags: dict) -> list[str]:
    words = []
    for key, value in flags.items():
        words += [f"--{key}", *map(str, value if isinstance(value, list) else [value])]
    return ["refresh", *words]


@pytest.fixture
def refreshed(flags, tmp_path, capsys) -> tuple[Path, str]:
    """The folder of a run and what it printed."""
    assert main(argv(flags)) == 0
    return tmp_path / "new", capsys.readouterr().out


def rows_of(*tables: Path) -> dict[tuple[str, str], Verdict]:
    """The known verdicts by rollout and criterion."""
    return {row.key: row for table in tables for row in read_verdicts(table) if row.verdict is not None}


def prefix_of(out: Path) -> str:
    """What the ids of the run's rows begin with; the digits world's own have no stroke before their first sign."""
    rollouts = read_rollouts(out / "data/train/rollouts.parquet")
    return next(r.rollout_id for r in rollouts if r.rollout_id.index("/") == 8).partition("/")[0] + "/"


@pytest.mark.slow
def test_new_and_old_verdicts_are_mixed_and_none_is_lost(refreshed, grpo, tables):
    out, told = refreshed
    prefix = prefix_of(out)
    train, held_out = (rows_of(out / f"data/{part}/verdicts.parquet") for part in ("train", "validation"))
    new = {key for key in (*train, *held_out) if key[0].startswith(prefix)}
    sampled = rows_of(grpo / "first.jsonl", grpo / "second.jsonl")
    assert {(rollout.removeprefix(prefix), criterion) for rollout, criterion in new} == set(sampled)
    replayed, trained = train.keys() - new, train.keys() & new
    assert replayed <= rows_of(tables / "train/gold-image.jsonl").keys()
    assert len(trained) <= len(replayed) < len(trained) + 7  # half and half, in responses of up to seven verdicts
    old_held_out = rows_of(tables / "validation/gold-image.jsonl")
    assert old_held_out.items() <= held_out.items()
    kept = {row.example_id for key, row in held_out.items() if key in new}
    assert len(kept) == 2  # a fifth of eleven
    assert prefix + next(iter(old_held_out.values())).example_id in kept  # which the old table has too
    assert not kept & {row.example_id for row in train.values()}
    found = json.loads((out / "refresh.json").read_text())
    assert found["trained_on"] == {"new": len(trained), "replayed": len(replayed)}
    assert f"training on {len(trained)} new verdicts and {len(replayed)} old ones; " in told


@pytest.mark.slow
def test_it_is_compared_with_what_it_was_on_old_and_new(refreshed, verifier):
    out, told = refreshed
    prefix, gold = prefix_of(out), rows_of(out / "data/validation/verdicts.parquet")
    tables = [out / f"data/validation/{name}.parquet" for name in ("examples", "rollouts")]
    pairs = pair_up(read_examples(tables[0]), read_rollouts(tables[1]))
    found = json.loads((out / "refresh.json").read_text())
    for when, adapter in (("before", verifier), ("after", out / "verifier")):
        judged = [row for row in load_judge(adapter, "image").judge(pairs) if row.key in gold]
        for part, is_new in (("old", False), ("new", True)):
            mine, theirs = (
                [row for row in rows if row.example_id.startswith(prefix) is is_new] for rows in (judged, gold.values())
            )
            wanted = agree(theirs, mine)
            for name in ("n", "agreement", "agreement_ci", "kappa"):
                assert found[part][when]["overall"][name] == pytest.approx(wanted["overall"][name]), (part, when, name)
            assert found[part][when]["by_dimension"].keys() == wanted["by_dimension"].keys()
    assert f"{found['old']['before']['overall']['agreement']:.3f} [" in told
    assert f"{out}/verifier: the new verifier" in told


@pytest.mark.slow
def test_a_finished_run_is_measured_again_and_left_as_it_is(refreshed, flags):
    out, _ = refreshed
    before = contents(out)
    assert main(argv(flags)) == 0
    after = contents(out)
    assert {name: held[1] for name, held in after.items()} == {name: held[1] for name, held in before.items()}
    assert {name for name in after if after[name][0] != before[name][0]} == {"refresh.json"}


@pytest.mark.slow
def test_it_starts_from_the_adapters_weights(flags, verifier, tmp_path):
    found = refresh(RefreshConfig(**{**flags, "learning_rate": 0.0, "max_steps": 1, "replay": 0.0}))
    assert_same_weights(tmp_path / "new/verifier", verifier, atol=0)
    for part in ("old", "new"):
        assert found[part]["before"]["overall"]["agreement"] == found[part]["after"]["overall"]["agreement"]
        assert found[part]["change"]["only_a"] == found[part]["change"]["only_b"] == 0
    assert found["trained_on"]["replayed"] == 0


@pytest.mark.slow
def test_a_stopped_run_goes_on_from_its_checkpoint(flags, tmp_path, monkeypatch, capsys):
    assert main(argv({**flags, "output_dir": str(tmp_path / "whole")})) == 0
    begun = []

    def on_step_begin(self, args, state, control, **_):
        if state.global_step == 1 and not begun.count("stopped"):
            begun.append("stopped")
            raise KeyboardInterrupt
        begun.append(state.global_step)

    monkeypatch.setattr(DefaultFlowCallback, "on_step_begin", on_step_begin)
    assert main(argv(flags)) == 130 and not (tmp_path / "new/refresh.json").exists()
    assert main(argv(flags)) == 0 and begun == [0, "stopped", 1]
    assert_same_weights(tmp_path / "new/verifier", tmp_path / "whole/verifier")
    whole, stopped = (json.loads((tmp_path / f"{name}/refresh.json").read_text()) for name in ("whole", "new"))
    assert whole == stopped
    assert main(argv({**flags, "replay": 0.25})) == 2
    assert "holds a different run: replay (0.5 there, 0.25 now)" in capsys.readouterr().err


def test_bad_input_is_one_line_and_leaves_no_folder(flags, verifier, grpo, tables, tmp_path, capsys):
    def told(**changes) -> str:
        assert main(argv({**flags, **changes})) == 2
        error = capsys.readouterr().err
        assert error.startswith("claimwise refresh: ") and error.count("\n") == 1
        return error

    assert "the setting adapter is empty; refresh needs adapter, disagreements" in told(adapter="")
    assert "there is no adapter folder" in told(adapter=str(tmp_path / "none"))
    assert "replay is 1.0; it must be a share from 0 to below 1" in told(replay=1.0)
    assert "held_out is 0.0; it must be a share between 0 and 1" in told(held_out=0.0)
    assert "has verdicts in text mode, but the verifier is for image mode" in told(
        disagreements=[str(grpo / "gold-text.jsonl")]
    )
    assert "twice; keep one verdict" in told(disagreements=[str(grpo / "first.jsonl"), str(grpo / "gold-image.jsonl")])
    assert "which the rollout and example tables do not hold" in told(
        disagreements=[str(tables / "validation/gold-image.jsonl")]
    )
    assert "none.jsonl: there is no such file" in told(rollouts=str(tmp_path / "none.jsonl"))
    merged = shutil.copytree(verifier, tmp_path / "merged")
    card = json.loads((merged / "verifier.json").read_text())
    (merged / "verifier.json").write_text(json.dumps({**card, "base": MERGED}))
    assert "is merged into its base; give the adapter that was merged" in told(adapter=str(merged))
    assert not (tmp_path / "new").exists()
    other = shutil.copytree(verifier, tmp_path / "other")
    card = json.loads((other / "verifier.json").read_text())
    (other / "verifier.json").write_text(json.dumps({**card, "base_hash": "0" * 16}))
    assert "the adapter was trained on base 0000000000000000" in told(adapter=str(other))


def test_distilling_on_takes_the_adapter_as_it_is(verifier, tables, tiny_base, tmp_path):
    values = {**settings(tiny_base, tables, tmp_path / "on"), "adapter": str(verifier)}
    with pytest.raises(InputError, match="has lora_r 4, but the setting is 8; a verifier is gone on with as it is"):
        distill(DistillConfig(**{**values, "lora_r": 8}))
    assert not (tmp_path / "on").exists()
