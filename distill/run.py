"""`claimwise distill` from tables to a finished adapter folder; what the command and the quickstart both call."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path

import torch
from accelerate.utils import broadcast_object_list
from transformers.trainer_utils import set_seed

from ..verifier.adapter import FILE, MERGED, VerifierCard, check_base, read_card
from ..verifier.errors import InputError
from ..verifier.lora import lora_settings
from ..verifier.model import VisionLanguageModel, base_hash, load_model
from ..verifier.progress import only_our_bars, use_bar
from ..verifier.prompt import prompt_hash
from ..verifier.rundir import open_run, write_atomic
from ..verifier.schema import Verdict
from ..verifier.tables import pair_up, read_examples, read_rollouts, read_verdicts, write_verdicts
from .config import DistillConfig
from .identity import identity
from .quantized import check_nf4, keep_trainable, nf4_settings, refuse_quantized
from .train import Item, VerifierTrainer, add_adapter, join_verdicts, projections, save_adapter, temperature_on
from .validation import AFTER, BEFORE, TEACHER, at_temperature, figures


def load_items(examples: str, rollouts: str, verdicts: str, mode: str) -> tuple[list[Item], int]:
    """Items to train on, and how many verdicts are missing. Raises InputError where a table is absent or of the other
    mode."""
    for name, value in (("examples", examples), ("rollouts", rollouts), ("verdicts", verdicts)):
        if not value:
            raise InputError(f"the setting {name} is empty; give the table's path")
    rows = read_verdicts(verdicts)
    other = [row for row in rows if row.mode != mode]
    if other:
        raise InputError(
            f"{verdicts} has verdicts in {other[0].mode} mode, but the verifier is for {mode} mode; give a table of that "
            f"mode alone (claimwise label --mode {mode} --export asks nothing that its ledger knows)"
        )
    pairs = pair_up(read_examples(examples), read_rollouts(rollouts))
    return join_verdicts(pairs, rows), sum(row.verdict is None for row in rows)


def distill(config: DistillConfig) -> dict:
    """Trains, calibrates and saves a verifier under `config.output_dir`; returns its validation figures.

    A finished folder of the same settings is left as it is; an unfinished one is gone on with from its last checkpoint.
    Under `accelerate launch` every process runs this: the main one alone writes and prints, all return the figures.
    """
    main = config.process_index == 0
    if not main:
        only_our_bars()  # of which there are none in this process
    items, missing = load_items(config.examples, config.rollouts, config.verdicts, config.mode)
    held_out = config.validation_examples or config.examples
    validation, _ = load_items(held_out, config.validation_rollouts, config.validation_verdicts, config.mode)
    digest = base_hash(config.base)
    refuse_quantized(config.base)
    old = _card_to_go_on_from(config, digest)
    folder = open_together(config.output_dir or "verifier", identity(config, digest), main)
    metrics_path = folder / "metrics.json"
    if (folder / FILE).is_file() and metrics_path.is_file():
        return json.loads(metrics_path.read_text())
    vlm, told = _student(config)
    if main:
        print(f"{config.name}: {told}; {len(items)} responses, {missing} verdicts missing")
    trainer = VerifierTrainer(vlm, config, items, validation)
    use_bar(trainer, f"distilling {config.name}", ["loss", "eval_kappa"])
    if old is not None:
        _, own = trainer.judge_validation()
        if main:
            write_verdicts(folder / BEFORE, at_temperature(own, old.temperature))
    trainer.train(resume_from_checkpoint=_last_checkpoint(folder))
    teacher, own = trainer.judge_validation()
    card = _card(config, digest, folder, temperature_on(teacher, own))
    own = at_temperature(own, card.temperature)
    metrics = figures(teacher, own, card.temperature)
    if main:
        _write_training(folder, trainer, teacher, own)
        save_adapter(vlm, card, folder)
        write_atomic(metrics_path, json.dumps(metrics, indent=2) + "\n")
    trainer.accelerator.wait_for_everyone()
    return metrics


def _write_training(folder: Path, trainer: VerifierTrainer, teacher: Sequence[Verdict], own: Sequence[Verdict]) -> None:
    """Loss and evaluations on the way as log.jsonl, and both sides' verdicts on the validation rollouts."""
    rows = [json.dumps(row) for row in trainer.state.log_history if row.keys() & {"loss", "eval_kappa"}]
    write_atomic(folder / "log.jsonl", "".join(row + "\n" for row in rows))
    write_verdicts(folder / AFTER, own)
    write_verdicts(folder / TEACHER, teacher)


def open_together(folder: str | Path, settings: dict, main: bool) -> Path:
    """`open_run` in the main process; all go on, or all stop for its reason."""
    refusal: list[str | None] = [None]
    if main:
        try:
            open_run(folder, settings)
        except InputError as error:
            refusal = [str(error)]
    broadcast_object_list(refusal)
    if refusal[0]:
        raise InputError(refusal[0])
    return Path(folder)


def _card_to_go_on_from(config: DistillConfig, digest: str) -> VerifierCard | None:
    """The card of the verifier whose weights are gone on from; refuses one of other answers, rank or base."""
    if not config.adapter:
        return None
    card = read_card(config.adapter)
    if card.base == MERGED:
        raise InputError(f"{config.adapter} is merged into its base; give the adapter that was merged")
    check_base(card, config.adapter, digest, config.base)
    lora = lora_settings(config.adapter)
    theirs = {"mode": card.mode, "readings": card.readings, "lora_r": lora["r"], "lora_alpha": lora["lora_alpha"]}
    for name, value in theirs.items():
        if value != getattr(config, name):
            raise InputError(f"{config.adapter} has {name} {value!r}, but the setting is {getattr(config, name)!r}; a "
                             "verifier is gone on with as it is")  # fmt: skip
    return card


def _student(config: DistillConfig) -> tuple[VisionLanguageModel, str]:
    """The base with a fresh adapter, the same in every process, and what the run says of it."""
    set_seed(config.seed)
    dtype = torch.bfloat16 if config.bf16 else torch.float32
    vlm = load_model(config.base, dtype=dtype, **(nf4_settings(dtype) if config.load_in_4bit else {}))
    told = []
    if config.load_in_4bit:
        told = [check_nf4(vlm.model, projections(vlm.model), config.base)]
        keep_trainable(vlm.model)
    return vlm, "; ".join([add_adapter(vlm, config), *told])


def _card(config: DistillConfig, digest: str, folder: Path, temperature: float) -> VerifierCard:
    return VerifierCard(
        name=config.name,
        base=_reference(config.base, folder),
        base_hash=digest,
        prompt_hash=prompt_hash(config.mode, config.readings),
        mode=config.mode,
        readings=config.readings,
        temperature=temperature,
    )


def _last_checkpoint(folder: Path) -> str | None:
    """The last complete checkpoint: the trainer's state is written last, so a run stopped while saving lacks it, or has
    its beginning only."""
    states = folder.glob("checkpoint-*/trainer_state.json")
    for state in sorted(states, key=lambda path: int(path.parent.name.rpartition("-")[2]), reverse=True):
        with contextlib.suppress(ValueError):
            json.loads(state.read_text())
            return str(state.parent)
    return None


def _reference(base: str, folder: Path) -> str:
    """How the card names the base: as given, or absolute where it is a local folder."""
    return str(Path(base).resolve()) if Path(base).is_dir() else base
