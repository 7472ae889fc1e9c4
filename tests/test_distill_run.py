"""Whole distillation runs on a tiny random base: what they leave behind, and that broken ones end as unbroken ones."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch
from claimwise.distill.config import DistillConfig
from claimwise.distill.run import distill
from claimwise.distill.tiny import build_model, build_processor
from claimwise.verifier.errors import InputError
from claimwise.verifier.model import base_hash
from claimwise.verifier.prompt import prompt_hash
from claimwise.verifier.tables import read_examples, read_verdicts, write_examples, write_verdicts
from distilling import assert_same_weights, contents, log_of, settings, weights_of, write_uneven
from transformers.trainer_callback import DefaultFlowCallback

UNBROKEN = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 3, "max_steps": 5}


@pytest.fixture
def run(tiny_base, tables, tmp_path):
    """Distils with some settings changed; the folder is `out` beneath the test's own unless said."""

    def go(mode: str = "image", **changes) -> dict:
        return distill(DistillConfig(**{**settings(tiny_base, tables, tmp_path / "out", mode), **changes}))

    return go


@pytest.fixture(scope="session")
def finished(tiny_base, tables, tmp_path_factory) -> tuple[Path, dict]:
    """A run of three steps, stopped by nothing; tests must not change its folder."""
    out = tmp_path_factory.mktemp("finished") / "out"
    metrics = distill(DistillConfig(**{**settings(tiny_base, tables, out), "save_strategy": "steps", "save_steps": 1}))
    return out, metrics


def test_a_run_leaves_an_adapter_with_its_card_and_figures(finished, tiny_base):
    out, metrics = finished
    card = json.loads((out / "verifier.json").read_text())
    assert card == {
        "name": "verifier-image",
        "base": str(tiny_base),
        "base_hash": base_hash(tiny_base),
        "prompt_hash": prompt_hash("image", True),
        "mode": "image",
        "readings": True,
        "temperature": metrics["temperature"],
        "schema_version": 1,
    }
    assert 0.05 <= card["temperature"] <= 20
    assert json.loads((out / "metrics.json").read_text()) == metrics
    assert metrics["n"] == 3 * 2 * 7 and metrics["missing_a"] == metrics["missing_b"] == 0
    assert {"agreement", "kappa", "span_exact"} <= metrics.keys()
    weights = weights_of(out)
    assert len(weights) == 28 and all("language_model.layers" in name for name in weights)
    # B starts at zero, so all of them not zero means that every projection was trained
    assert all(weight.abs().max() > 0 for weight in weights.values())
    assert not list(out.glob("*.part"))


def test_a_finished_run_is_left_as_it_is(finished, run):
    out, metrics = finished
    before = contents(out)
    assert run(output_dir=str(out), save_strategy="steps", save_steps=1) == metrics
    assert contents(out) == before


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("learning_rate", 2e-2, "learning_rate (0.01 there, 0.02 now)"),
        ("seed", 6, "seed (5 there, 6 now)"),
        ("readings", False, "readings (True there, False now)"),
        ("weight_decay", 0.1, "weight_decay (0.0 there, 0.1 now)"),
    ],
)
def test_a_folder_of_another_run_is_not_touched(finished, run, key, value, told):
    out, _ = finished
    before = contents(out)
    with pytest.raises(InputError) as refusal:
        run(output_dir=str(out), **{key: value})
    assert f"{out} holds a different run: {told}" in str(refusal.value)
    assert contents(out) == before


def test_the_same_folder_with_another_base_under_the_same_name_is_refused(finished, run, tiny_base, tmp_path):
    """A base made anew has other weights: its old verifier would be refused by every judge."""
    shutil.copytree(tiny_base, tmp_path / "base")
    run(base=str(tmp_path / "base"), max_steps=1)
    before = contents(tmp_path / "out")
    torch.manual_seed(2)
    build_model(build_processor(), 32, 2, 0.06).save_pretrained(tmp_path / "base")
    with pytest.raises(InputError, match="holds a different run: base_hash"):
        run(base=str(tmp_path / "base"), max_steps=1)
    assert contents(tmp_path / "out") == before


@pytest.fixture
def steps(monkeypatch):
    """The steps that transformers' trainer begins; Ctrl-C comes before the one that `stop` names."""
    seen = {"begun": [], "stop": None}

    def on_step_begin(self, args, state, control, **_):
        if state.global_step == seen["stop"]:
            raise KeyboardInterrupt
        seen["begun"].append(state.global_step)

    monkeypatch.setattr(DefaultFlowCallback, "on_step_begin", on_step_begin)
    return seen


@pytest.mark.parametrize("half", [None, '{"global_step": 3, "epo'])
def test_a_killed_run_goes_on_and_ends_as_if_unbroken(finished, run, steps, tmp_path, half):
    unbroken, metrics = finished
    steps["stop"] = 2
    with pytest.raises(KeyboardInterrupt):
        run(save_strategy="steps", save_steps=1)
    out = tmp_path / "out"
    assert steps["begun"] == [0, 1] and (out / "checkpoint-2").is_dir()
    assert not (out / "verifier.json").exists()  # no judge takes it for a verifier
    # A kill while the third checkpoint was written would have left this; it is not complete, so it is passed over.
    shutil.copytree(out / "checkpoint-1", out / "checkpoint-3", ignore=shutil.ignore_patterns("trainer_state.json"))
    if half is not None:
        (out / "checkpoint-3/trainer_state.json").write_text(half)
    steps.update(begun=[], stop=None)
    again = run(save_strategy="steps", save_steps=1)
    assert steps["begun"] == [2]  # only the step that was left
    assert_same_weights(out, unbroken)
    for name in ("temperature", "agreement", "kappa", "span_exact"):
        assert again[name] == pytest.approx(metrics[name], abs=1e-4)
    assert json.loads((out / "verifier.json").read_text())["temperature"] == again["temperature"]


def test_how_a_step_is_divided_changes_nothing(run, tables, tmp_path):
    """Four responses a step, with 1 to 7 verdicts each, as one batch, two or four."""
    verdicts = str(write_uneven(tables, tmp_path / "uneven.jsonl"))
    for size in (4, 2, 1):
        split = {"per_device_train_batch_size": size, "gradient_accumulation_steps": 4 // size}
        run(verdicts=verdicts, output_dir=str(tmp_path / str(size)), save_strategy="steps", save_steps=3, **split)
    whole = log_of(tmp_path / "4")
    assert len(whole) == 3
    for size in (2, 1):
        assert log_of(tmp_path / str(size)) == pytest.approx(whole, abs=1e-5)
        assert log_of(tmp_path / str(size), "grad_norm") == pytest.approx(log_of(tmp_path / "4", "grad_norm"), abs=1e-4)


@pytest.fixture(scope="module")
def accumulated(tiny_base, tables, tmp_path_factory) -> Path:
    """An unbroken run of five steps of three batches; an epoch has eight batches, so its third step has two."""
    out = tmp_path_factory.mktemp("accumulated") / "out"
    distill(
        DistillConfig(**{**settings(tiny_base, tables, out), **UNBROKEN, "save_strategy": "steps", "save_steps": 5})
    )
    return out


@pytest.mark.parametrize(("size", "batches", "atol"), [(2, 3, 0), (1, 6, 1e-4)])
def test_a_killed_run_goes_on_within_an_epoch(accumulated, run, steps, tmp_path, size, batches, atol):
    """Killed in the second epoch. It may go on in smaller batches of as many responses: then sums round otherwise."""
    steps["stop"] = 4
    with pytest.raises(KeyboardInterrupt):
        run(save_strategy="steps", save_steps=1, **UNBROKEN)
    steps.update(begun=[], stop=None)
    split = {"per_device_train_batch_size": size, "gradient_accumulation_steps": batches}
    run(save_strategy="steps", save_steps=1, **{**UNBROKEN, **split})
    assert steps["begun"] == [4]
    assert_same_weights(tmp_path / "out", accumulated, atol)


def test_bf16_learns_as_float32_does(finished, run, tmp_path):
    """Base and arithmetic in bfloat16 (8 bits of mantissa: three digits), the adapter's weights in float32."""
    run(bf16=True, save_strategy="steps", save_steps=3)
    assert log_of(tmp_path / "out") == pytest.approx(log_of(finished[0]), rel=2e-3)
    assert {weight.dtype for weight in weights_of(tmp_path / "out").values()} == {torch.float32}


def test_changed_tables_are_another_run_and_moved_ones_are_not(finished, run, tables, tmp_path):
    out, metrics = finished
    before = contents(out)
    shutil.copytree(tables / "train", tmp_path / "moved")
    moved = {name: str(tmp_path / f"moved/{name}.jsonl") for name in ("examples", "rollouts")}
    assert run(output_dir=str(out), **moved, verdicts=str(tmp_path / "moved/gold-image.jsonl")) == metrics
    table = tmp_path / "moved/gold-image.jsonl"
    rows = read_verdicts(table)
    write_verdicts(table, [dataclasses.replace(rows[0], verdict=not rows[0].verdict), *rows[1:]])
    with pytest.raises(InputError, match=r"holds a different run: verdicts \('sha256 \w{16}' there"):
        run(output_dir=str(out), **moved, verdicts=str(table))
    assert contents(out) == before


def test_the_best_adapter_by_kappa_is_kept(run, steps, tmp_path):
    """Steps too small to change a verdict: the second evaluation is no better than the first, so the run stops there
    and keeps what it had after the first step."""
    run(learning_rate=1e-9, max_steps=6, patience=1, eval_strategy="steps", eval_steps=1)
    assert steps["begun"] == [0, 1]
    out = tmp_path / "out"
    assert_same_weights(out, out / "checkpoint-1")
    state = json.loads((out / "checkpoint-2/trainer_state.json").read_text())
    assert len(log_of(out, "eval_kappa")) == 2 and state["best_metric"] == log_of(out, "eval_kappa")[0]
    assert state["best_global_step"] == 1


def test_missing_verdicts_are_counted(run, tables, tmp_path, capsys):
    rows = read_verdicts(tables / "train/gold-image.jsonl")
    rows[:2] = [dataclasses.replace(row, verdict=None, p_yes=None, error="timeout") for row in rows[:2]]
    write_verdicts(tmp_path / "gold.jsonl", rows)
    run(verdicts=str(tmp_path / "gold.jsonl"), max_steps=1)
    wanted = "verifier-image: LoRA on 14 projections of the language model, 0 of the vision tower; 16 responses, 2 "
    assert wanted + "verdicts missing\n" in capsys.readouterr().out


def test_text_mode_does_not_look_at_the_picture(run, tables, tmp_path):
    """Broken pictures and none: the same verifier."""
    shutil.copytree(tables / "train", tmp_path / "broken")
    for image in (tmp_path / "broken/images").iterdir():
        image.write_bytes(b"no picture")
    examples = read_examples(tables / "train/examples.jsonl")
    write_examples(tmp_path / "bare.jsonl", [dataclasses.replace(example, images=()) for example in examples])
    for name, table in (("one", "broken/examples.jsonl"), ("two", "bare.jsonl")):
        run("text", output_dir=str(tmp_path / name), examples=str(tmp_path / table))
    assert_same_weights(tmp_path / "one", tmp_path / "two")
    card = json.loads((tmp_path / "one/verifier.json").read_text())
    assert (card["mode"], card["readings"]) == ("text", False)
    with pytest.raises(InputError, match="it cannot be read as an image"):
        run("image", output_dir=str(tmp_path / "three"), examples=str(tmp_path / "broken/examples.jsonl"))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"verdicts": "{tables}/train/gold-text.jsonl"},
            "has verdicts in text mode, but the verifier is for image mode",
        ),
        ({"validation_verdicts": "{tables}/validation/gold-text.jsonl"}, "has verdicts in text mode"),
        ({"verdicts": "{tables}/no-such.jsonl"}, "there is no such file"),
        ({"verdicts": ""}, "the setting verdicts is empty; give the table's path"),
        ({"rollouts": "{tables}/validation/rollouts.jsonl"}, "which the examples table does not have"),
        ({"verdicts": "{tables}/validation/gold-image.jsonl"}, "give the tables that were labelled"),
        ({"base": "{tables}/no-base"}, "no-base' is no folder, nor found on the Hub"),
        ({"base": "{tables}/train"}, "holds no safetensors file; give the folder of a base model"),
        ({"learning_rate": float("nan")}, "learning_rate is nan; it must be a number from 0 up"),
        ({"per_device_train_batch_size": 0}, "per_device_train_batch_size is 0; it must be at least 1"),
        ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps is 0; it must be at least 1"),
        ({"max_steps": 0}, "leave nothing to train"),
        ({"max_steps": -1, "num_train_epochs": 0}, "leave nothing to train"),
    ],
)
def test_bad_input_is_refused_before_the_folder_is_taken(run, tables, tmp_path, changes, told):
    """So the same folder serves the corrected command."""
    with pytest.raises(InputError) as refusal:
        run(**{k: v.format(tables=tables) if isinstance(v, str) else v for k, v in changes.items()})
    assert told in str(refusal.value)
    assert not (tmp_path / "out").exists()


def test_verdicts_on_other_responses_are_refused(run, tables, tmp_path):
    """A rollout table made anew has the same ids; a span behind the end of its response gives it away."""
    rows = read_verdicts(tables / "train/gold-image.jsonl")
    at = next(number for number, row in enumerate(rows) if row.span)
    rows[at] = dataclasses.replace(rows[at], span_end=5000)
    write_verdicts(tmp_path / "gold.jsonl", rows)
    with pytest.raises(InputError, match=r"points at characters up to 5000 of a response that has \d+; give"):
        run(verdicts=str(tmp_path / "gold.jsonl"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("model.safetensors", b"{" * 40, "header"),
        ("tokenizer.json", None, "tokenizer"),
        ("config.json", b"{", "JSON"),
    ],
)
def test_a_damaged_base_is_one_line(name, content, told, run, tiny_base, tmp_path):
    base = shutil.copytree(tiny_base, tmp_path / "base")
    (base / name).unlink()
    if content is not None:
        (base / name).write_bytes(content)
    with pytest.raises(InputError, match=f"the base model '{base}' .*loaded: .*{told}"):
        run(base=str(base))
