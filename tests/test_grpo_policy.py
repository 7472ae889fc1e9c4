"""`claimwise train`: all weights, LoRA and QLoRA; evaluations; where the log goes; a stop and a second start."""

from __future__ import annotations

import importlib.util
import json

import pytest
import torch
from claimwise.distill.oracle import OracleJudge
from claimwise.scripts import cli
from claimwise.trainer import RubricGRPOConfig
from claimwise.trainer import run as trainer_run
from claimwise.trainer.policy import load_policy
from claimwise.verifier.tables import write_examples
from grpo_runs import COMMON, logged, make_examples, policy, rubric_trainer
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText, TrainerCallback

SMALL = {"max_steps": 2, "per_device_train_batch_size": 4, "num_generations": 4, "max_completion_length": 24}
SMALL |= {
    "learning_rate": 3e-3,
    "bf16": False,
    "gradient_checkpointing": False,
    "report_to": "none",
    "logging_steps": 1,
}


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    write_examples(folder / "train.parquet", make_examples(4))
    write_examples(folder / "eval.parquet", make_examples(2, "test"))
    return folder


def flags(assets, tables, out, **settings):
    values = {
        "model": assets / "policy",
        "examples": tables / "train.parquet",
        "verifier": "oracle",
        **SMALL,
        **settings,
    }
    return ["train", "--output_dir", str(out), *(part for k, v in values.items() for part in (f"--{k}", str(v)))]


def test_all_weights(assets, tables, tmp_path, capsys):
    out = tmp_path / "run"
    assert cli.main(flags(assets, tables, out, beta=0.01, teacher="oracle", sampled_verdicts=4)) == 0
    assert "policy after 2 steps of arm prefix" in capsys.readouterr().out
    rows = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert len(rows) == 2 and {"kl", "rubric/VF/yes"} <= set(rows[0])
    assert json.loads((out / "finished.json").read_text())["sampled"] == 8
    trained, start = AutoModelForImageTextToText.from_pretrained(out), policy(assets)
    moved = {
        name for (name, a), b in zip(trained.named_parameters(), start.parameters(), strict=True) if not a.equal(b)
    }
    assert any(".visual." in name for name in moved) and any("language_model" in name for name in moved)
    before = (out / "model.safetensors").stat().st_mtime_ns
    assert cli.main(flags(assets, tables, out, beta=0.01, teacher="oracle", sampled_verdicts=4)) == 0  # finished: left
    assert (out / "model.safetensors").stat().st_mtime_ns == before
    assert cli.main(flags(assets, tables, out, beta=0.1, teacher="oracle", sampled_verdicts=4)) == 2
    assert "beta (0.01 there, 0.1 now)" in capsys.readouterr().err


@pytest.mark.parametrize("quantized", [False, True])
def test_adapters(assets, tables, tmp_path, quantized):
    """Only the adapter is saved, it lies on the language model alone, and it moved. With beta the reference is the
    policy without it."""
    if quantized:
        pytest.importorskip("bitsandbytes")
    out = tmp_path / "run"
    assert cli.main(flags(assets, tables, out, lora_r=4, lora_alpha=8, load_in_4bit=quantized, beta=0.01)) == 0
    saved = load_file(out / "adapter_model.safetensors")
    assert len(saved) == 2 * 2 * 7 and all("language_model.layers" in name for name in saved)  # A and B, layers, kinds
    assert all(float(value.float().abs().max()) > 0 for value in saved.values())  # B starts at 0
    assert not (out / "model.safetensors").exists()
    kl = [json.loads(line)["kl"] for line in (out / "log.jsonl").read_text().splitlines()]
    assert kl[0] == pytest.approx(0, abs=1e-5) and kl[1] != kl[0]


def test_what_is_quantized(assets, tmp_path):
    """The language model's linears and nothing else; the other weights as they are."""
    pytest.importorskip("bitsandbytes")
    config = RubricGRPOConfig(
        output_dir=str(tmp_path),
        model=str(assets / "policy"),
        lora_r=4,
        load_in_4bit=True,
        bf16=False,
        report_to="none",
    )
    model, _ = load_policy(config)
    names = [name for name, module in model.named_modules() if type(module).__name__ == "Linear4bit"]
    assert len(names) == 2 * 7 and all(name.startswith("model.language_model.layers.") for name in names)
    assert {p.dtype for n, p in model.named_parameters() if ".visual." in n} == {torch.float32}


def test_all_weights_are_kept_in_single_precision_under_bf16(assets, tmp_path):
    """A step of 1e-6 on a weight of 0.05 is nothing in bfloat16; adapters are small, their base may be rounded."""
    common = {"output_dir": str(tmp_path), "model": str(assets / "policy"), "bf16": True, "use_cpu": True}
    assert load_policy(RubricGRPOConfig(**common))[0].dtype == torch.float32
    assert load_policy(RubricGRPOConfig(**common, lora_r=4))[0].dtype == torch.bfloat16


@pytest.mark.parametrize("generations", [2, 1])
def test_evaluation_while_training(assets, tables, tmp_path, generations):
    """Of other examples, with their own rubrics. One response per example has rates and no credit."""
    out = tmp_path / "run"
    settings = {"eval_examples": tables / "eval.parquet", "eval_strategy": "steps", "eval_steps": 1}
    settings |= {"num_generations_eval": generations, "per_device_eval_batch_size": 2}
    assert cli.main(flags(assets, tables, out, **settings)) == 0
    rows = [json.loads(line) for line in (out / "eval_log.jsonl").read_text().splitlines()]
    assert len(rows) == 2 and {"eval_reward", "eval_loss", "eval_rubric/VF/yes", "eval_rubric/VF/missing"} <= set(
        rows[0]
    )
    assert ("eval_rubric/reward" in rows[0]) == (generations > 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"eval_strategy": "steps", "eval_steps": 1}, "set eval_examples"),
        ({"eval_examples": "EVAL"}, "set eval_strategy"),
        ({"model": "no/such/folder"}, "the policy 'no/such/folder' cannot be loaded"),
        ({"num_generations": 3}, "must be divisible by num_generations"),
        ({"load_in_4bit": True}, "set lora_r"),
        ({"arm": "answer", "verifier": "", "teacher": "oracle"}, "there is no verifier whose verdicts it could check"),
        *(({"report_to": name}, name) for name in ("trackio", "wandb") if not importlib.util.find_spec(name)),
    ],
)
def test_settings_that_do_not_go_together(assets, tables, tmp_path, capsys, settings, message):
    settings = {k: tables / "eval.parquet" if v == "EVAL" else v for k, v in settings.items()}
    assert cli.main(flags(assets, tables, tmp_path / "run", **settings)) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


class Stopping(TrainerCallback):
    def __init__(self, at):
        self.at = at

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == self.at:
            raise KeyboardInterrupt


@pytest.mark.slow
def test_a_stopped_run_is_gone_on_with_by_the_same_command(assets, tables, tmp_path, monkeypatch, capsys):
    """Stopped in its third step, with the checkpoint of step 2 cut off as by a crash: it goes on from that of step 1."""
    settings = {"max_steps": 3, "save_strategy": "steps", "save_steps": 1}
    assert cli.main(flags(assets, tables, tmp_path / "whole", **settings)) == 0
    made = trainer_run.RubricGRPOTrainer

    def stopping(*args, **kwargs):
        trainer = made(*args, **kwargs)
        trainer.add_callback(Stopping(2))
        return trainer

    with monkeypatch.context() as patch:
        patch.setattr(trainer_run, "RubricGRPOTrainer", stopping)
        assert cli.main(flags(assets, tables, tmp_path / "run", **settings)) == 130
    (tmp_path / "run" / "checkpoint-2" / "trainer_state.json").unlink()
    assert cli.main(flags(assets, tables, tmp_path / "run", **settings)) == 0
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "run"))
    assert all(one[name].equal(other[name]) for name in one)
    logs = [(tmp_path / name / "log.jsonl").read_text().splitlines() for name in ("whole", "run")]
    assert [json.loads(row)["reward"] for row in logs[0]] == [json.loads(row)["reward"] for row in logs[1]]


class Listening(TrainerCallback):
    def __init__(self):
        self.heard = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.heard.append(dict(logs))


def test_every_figure_reaches_whoever_listens(assets, tmp_path):
    """Trackio, wandb and tensorboard listen to `on_log`; `report_to` chooses them, and is passed on as it is."""
    trainer = rubric_trainer(assets, tmp_path, make_examples(2), OracleJudge("image"), max_steps=1)
    listening = Listening()
    trainer.add_callback(listening)
    trainer.train()
    assert "rubric/VF/no_spread" in listening.heard[0] and "advantage/decile_05" in listening.heard[0]
    for name in ("tensorboard", "trackio", "wandb"):
        assert RubricGRPOConfig(output_dir=str(tmp_path), **{**COMMON, "report_to": name}).report_to == [name]


@pytest.mark.parametrize("name", ["tensorboard", "trackio", "wandb"])
def test_a_service_that_is_not_installed_is_asked_for(assets, tables, tmp_path, name):
    """So `report_to` is not swallowed on the way."""
    if importlib.util.find_spec(name):
        pytest.skip(f"{name} is installed")
    with pytest.raises(RuntimeError, match=f"(?i){name}"):
        rubric_trainer(assets, tmp_path, make_examples(2), OracleJudge("image"), report_to=name)


def test_tensorboard(assets, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trainer = rubric_trainer(
        assets, tmp_path, make_examples(2), OracleJudge("image"), max_steps=1, report_to="tensorboard"
    )
    trainer.train()
    files = list(tmp_path.rglob("events.out.tfevents.*"))
    events = EventAccumulator(str(files[0].parent))
    events.Reload()
    found = [event.value for event in events.Scalars("train/rubric/VF/yes")]
    assert found == pytest.approx(logged(trainer, "rubric/VF/yes"), abs=1e-6)
