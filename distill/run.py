"""`claimwise distill` from tables to a finished adapter folder; what the command and the quickstart both call."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from transformers.trainer_utils import set_seed

from ..eval.agreement import agree
from ..verifier.adapter import FILE, VerifierCard
from ..verifier.errors import InputError
from ..verifier.model import base_hash, load_model
from ..verifier.progress import use_bar
from ..verifier.prompt import prompt_hash
from ..verifier.rundir import open_run, write_atomic
from ..verifier.tables import pair_up, read_examples, read_rollouts, read_verdicts
from .config import DistillConfig
from .train import Item, VerifierTrainer, add_adapter, join_verdicts, judge_of, matched, save_adapter, temperature_on


def load_items(examples: str, rollouts: str, verdicts: str, mode: str) -> tuple[list[Item], int]:
    """Items to train on, and how many verdicts are missing. Raises InputError where a table is absent or of the other
    mode."""
    for name, value in (("examples", examples), ("rollouts", rollouts), ("verdicts", verdicts)):
        if not value:
            raise InputError(f"the setting {name} is empty; give the table's path")
    rows = read_verdicts(verdicts)
    other = [row for row in rows if row.mode != mode]
    if other:
        raise InputError(f"{verdicts} has verdicts in {other[0].mode} mode, but the verifier is for {mode} mode")
    pairs = pair_up(read_examples(examples), read_rollouts(rollouts))
    return join_verdicts(pairs, rows), sum(row.verdict is None for row in rows)


def distill(config: DistillConfig) -> dict:
    """Trains, calibrates and saves a verifier under `config.output_dir`; returns its validation figures.

    A finished folder of the same settings is left as it is; an unfinished one is gone on with from its last checkpoint.
    """
    items, missing = load_items(config.examples, config.rollouts, config.verdicts, config.mode)
    validation, _ = load_items(
        config.validation_examples or config.examples,
        config.validation_rollouts,
        config.validation_verdicts,
        config.mode,
    )
    digest = base_hash(config.base)
    folder = open_run(config.output_dir or "verifier", {**_settings(config), "base_hash": digest})
    metrics_path = folder / "metrics.json"
    if (folder / FILE).is_file() and metrics_path.is_file():
        return json.loads(metrics_path.read_text())
    set_seed(config.seed)
    vlm = load_model(config.base, dtype=torch.bfloat16 if config.bf16 else torch.float32)
    print(f"{config.name}: {add_adapter(vlm, config)}; {len(items)} responses, {missing} verdicts missing")
    trainer = VerifierTrainer(vlm, config, items, validation)
    use_bar(trainer, f"distilling {config.name}", ["loss", "eval_kappa"])
    trainer.train(resume_from_checkpoint=_last_checkpoint(folder))
    teacher, own = matched(validation, judge_of(vlm, config).judge([(e, r) for e, r, _ in validation]))
    card = VerifierCard(
        name=config.name,
        base=_reference(config.base, folder),
        base_hash=digest,
        prompt_hash=prompt_hash(config.mode, config.readings),
        mode=config.mode,
        readings=config.readings,
        temperature=temperature_on(teacher, own),
    )
    metrics = {"temperature": card.temperature, **agree(teacher, own, draws=0)["overall"]}
    save_adapter(vlm, card, folder)
    write_atomic(metrics_path, json.dumps(metrics, indent=2) + "\n")
    return metrics


def _last_checkpoint(folder: Path) -> str | None:
    """The last complete checkpoint: the trainer's state is written last, so a run stopped while saving lacks it."""
    complete = [state.parent for state in folder.glob("checkpoint-*/trainer_state.json")]
    return str(max(complete, key=lambda path: int(path.name.rpartition("-")[2]))) if complete else None


def _reference(base: str, folder: Path) -> str:
    """How the card names the base: as given, or absolute where it is a local folder."""
    return str(Path(base).resolve()) if Path(base).is_dir() else base


def _settings(config: DistillConfig) -> dict:
    """What makes two runs the same run."""
    keys = ("base", "examples", "rollouts", "verdicts", "validation_examples", "validation_rollouts")
    keys += ("validation_verdicts", "mode", "readings", "lora_r", "lora_alpha", "learning_rate", "max_steps")
    keys += ("num_train_epochs", "per_device_train_batch_size", "gradient_accumulation_steps", "seed", "name")
    keys += ("lr_scheduler_type", "warmup_steps", "weight_decay", "max_grad_norm", "patience", "bf16")
    return {"command": "distill", **{key: getattr(config, key) for key in keys}}
