"""Cold start of a policy: TRL's `SFTTrainer` on conversations, and a folder that GRPO, rollouts and servers load.

In: settings, and a dataset with prompt, completion and images. Out: `output_dir` with all weights and the processor (an
adapter is merged into unquantised weights, and kept beside them in adapter/), and `log.jsonl`, a row per logged step. A
stopped run goes on from its last checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from accelerate.utils import broadcast_object_list
from transformers import AutoModelForImageTextToText
from transformers.trainer_utils import set_seed
from trl import SFTTrainer

from ..verifier.errors import InputError
from ..verifier.progress import only_our_bars, use_bar
from ..verifier.rundir import open_run, write_atomic
from .cold_start_config import ColdStartConfig
from .policy import load_policy
from .run import _last_checkpoint

RUN_KEYS = (
    *("model", "streaming", "max_tokens", "lora_r", "lora_alpha", "load_in_4bit", "bf16", "seed", "data_seed"),
    *("learning_rate", "lr_scheduler_type", "warmup_steps", "weight_decay", "optim", "max_grad_norm", "loss_type"),
    *("max_steps", "num_train_epochs", "per_device_train_batch_size", "gradient_accumulation_steps", "world_size"),
)
ADAPTER = "adapter"


def cold_start(
    config: ColdStartConfig, processor: Any, data_identity: list[Any], make_dataset: Callable[[Path], Any]
) -> dict[str, Any]:
    """Trains, and returns the last loss and the number of steps. `make_dataset(folder)` is called once the folder is
    known to be this run's; `data_identity` is what makes the data the same. A finished folder is left as it is."""
    folder = Path(config.output_dir or "cold-start")
    _open_together(folder, config, data_identity)
    finished = folder / "finished.json"
    if finished.is_file():
        return json.loads(finished.read_text())
    only_our_bars()
    with config.main_process_first(desc="reading the conversations"):
        dataset = make_dataset(folder)
    set_seed(config.seed)
    trainer = make_trainer(config, processor, dataset)
    trainer.train(resume_from_checkpoint=_last_checkpoint(folder))
    losses = [row for row in trainer.state.log_history if "loss" in row]
    if config.lora_r:
        trainer.save_model(str(folder / ADAPTER))
    else:
        trainer.save_model(str(folder))
    figures = {"steps": trainer.state.global_step, "loss": losses[-1]["loss"] if losses else None}
    if config.process_index == 0:
        if config.lora_r:
            merge(config, folder)
            processor.save_pretrained(folder)
        write_atomic(folder / "log.jsonl", "".join(json.dumps(row) + "\n" for row in losses))
        write_atomic(finished, json.dumps(figures, indent=2) + "\n")
    trainer.accelerator.wait_for_everyone()
    return figures


def make_trainer(config: ColdStartConfig, processor: Any, dataset: Any) -> SFTTrainer:
    """Stock `SFTTrainer` on the policy as `claimwise train` loads it."""
    model, adapter = load_policy(cast(Any, config))
    try:
        trainer = SFTTrainer(model, config, train_dataset=dataset, processing_class=processor, peft_config=adapter)
    except ValueError as error:
        raise InputError(f"SFTTrainer refuses these settings: {error}") from error
    use_bar(trainer, "SFT", ["loss", "mean_token_accuracy"])
    return trainer


def merge(config: ColdStartConfig, folder: Path) -> None:
    """The adapter in the weights that it was trained on, before they were quantised, at folder."""
    from peft import PeftModel

    dtype = torch.bfloat16 if config.bf16 else torch.float32
    base = AutoModelForImageTextToText.from_pretrained(config.model, dtype=dtype)
    PeftModel.from_pretrained(base, str(folder / ADAPTER)).merge_and_unload(safe_merge=True).save_pretrained(folder)


def _open_together(folder: Path, config: ColdStartConfig, data_identity: list[Any]) -> None:
    """The main process takes the folder; all processes go on, or all stop for its reason."""
    refusal: list[str | None] = [None]
    if config.process_index == 0:
        settings = {key: getattr(config, key) for key in RUN_KEYS}
        try:
            open_run(folder, {"command": "sft", "data": data_identity, **settings})
        except InputError as error:
            refusal = [str(error)]
    broadcast_object_list(refusal)
    if refusal[0]:
        raise InputError(refusal[0])
