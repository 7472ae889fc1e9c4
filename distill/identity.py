"""What makes two distillations the same run: recorded as `run.json`, so that no folder is gone on with by another run.

In: the settings and the base's hash. Out: a flat mapping. Everything that changes the resulting weights is in it, tables
by their contents. What only says where things lie or how a step is carried out is not: paths, gradient checkpointing,
logging and saving, and how the responses of a step are divided into micro-batches and processes (where an epoch does not
divide evenly, several processes fill its last step with its first responses). So a run that ran out of memory, or lost a
GPU, goes on under other such settings. Images are known by their paths in the example table alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..verifier.image_digest import file_digest
from ..verifier.model import adapter_hash
from .config import DistillConfig

VALUES = ("mode", "readings", "name", "lora_r", "lora_alpha", "load_in_4bit", "bf16", "seed", "data_seed", "max_steps")
VALUES += ("num_train_epochs", "optim", "optim_args", "learning_rate", "lr_scheduler_type", "lr_scheduler_kwargs")
VALUES += ("warmup_steps", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm", "patience")


def identity(config: DistillConfig, base_hash: str) -> dict[str, Any]:
    """The mapping for `open_run`; reads the tables, which must be there."""
    tables = {
        "examples": config.examples,
        "rollouts": config.rollouts,
        "verdicts": config.verdicts,
        "validation_examples": config.validation_examples or config.examples,
        "validation_rollouts": config.validation_rollouts,
        "validation_verdicts": config.validation_verdicts,
    }
    return {
        "command": "distill",
        "base_hash": base_hash,
        **{name: f"sha256 {digest(path)}" for name, path in tables.items()},
        **{name: getattr(config, name) for name in VALUES},
        "adapter": adapter_hash(config.adapter) if config.adapter else None,
        "responses_per_step": config.responses_per_step,
        "eval_steps": config.eval_steps if config.patience else None,  # when the best adapter is chosen
    }


def digest(path: str | Path) -> str:
    """A table by its contents."""
    return file_digest(Path(path))[:16]
