"""Settings of `claimwise distill`: transformers' TrainingArguments and what a verifier needs besides."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import torch
from transformers import TrainingArguments

from ..verifier.errors import InputError
from ..verifier.schema import MODES
from .quantized import require_bitsandbytes


@dataclass
class DistillConfig(TrainingArguments):
    """Batch sizes count responses: each brings one packed tree with all its criteria."""

    base: str = field(default="Qwen/Qwen2.5-VL-7B-Instruct", metadata={"help": "base model: a folder or a Hub name"})
    examples: str = field(default="", metadata={"help": "example table (Parquet or JSONL)"})
    rollouts: str = field(default="", metadata={"help": "rollout table"})
    verdicts: str = field(default="", metadata={"help": "the teacher's verdict table on these rollouts"})
    validation_rollouts: str = field(default="", metadata={"help": "rollout table held out for kappa and temperature"})
    validation_verdicts: str = field(default="", metadata={"help": "the teacher's verdicts on them"})
    validation_examples: str = field(default="", metadata={"help": "their examples; empty: the training table"})
    mode: str = field(default="image", metadata={"help": "text or image: does the verifier see the image"})
    readings: bool = field(default=True, metadata={"help": "write what the image shows before the verdict"})
    lora_r: int = field(default=16, metadata={"help": "rank of the adapter"})
    lora_alpha: int = field(default=32, metadata={"help": "scale of the adapter"})
    load_in_4bit: bool = field(
        default=False,
        metadata={"help": "QLoRA: the language model's linears in 4-bit NF4, vision tower and lm_head as they are"},
    )
    adapter: str = field(default="", metadata={"help": "go on from this verifier's weights; empty: a fresh adapter"})
    patience: int = field(default=0, metadata={"help": "stop after so many evaluations without a better kappa; 0: off"})
    name: str = field(default="", metadata={"help": "the judge's name in verdict tables; empty: verifier-MODE"})

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise InputError(f"mode is {self.mode!r}; it must be text or image")
        for key in ("lora_r", "lora_alpha", "per_device_train_batch_size", "gradient_accumulation_steps"):
            if getattr(self, key) < 1:
                raise InputError(f"{key} is {getattr(self, key)}; it must be at least 1")
        if not 0 <= self.learning_rate < math.inf:
            raise InputError(f"learning_rate is {self.learning_rate}; it must be a number from 0 up")
        if self.max_steps == 0 or (self.max_steps < 0 and not self.num_train_epochs > 0):
            raise InputError("max_steps and num_train_epochs leave nothing to train; set one of them above 0")
        if self.load_in_4bit:
            require_bitsandbytes()
        if self.patience and str(self.eval_strategy) in ("no", "IntervalStrategy.NO"):
            raise InputError("patience needs evaluations; set eval_strategy: steps and eval_steps")
        if self.patience:  # the adapter with the best kappa is the one that is kept
            self.metric_for_best_model, self.greater_is_better, self.load_best_model_at_end = "kappa", True, True
            self.save_strategy, self.save_steps = self.eval_strategy, self.eval_steps or self.logging_steps
        self.name = self.name or f"verifier-{self.mode}"
        self.readings = self.readings and self.mode == "image"
        self.remove_unused_columns = False  # our collator reads the rows whole
        self.label_names = []
        self.use_cpu = self.use_cpu or not torch.accelerator.is_available()  # else torchrun's processes train apart
        if self.ddp_find_unused_parameters is None:
            self.ddp_find_unused_parameters = False  # every step uses every projection of the adapter
        super().__post_init__()

    @cached_property
    def _setup_devices(self) -> torch.device:
        """As ever; but accelerate calls the CPU of several processes "cpu:0", which no checkpoint can be loaded to."""
        device = super()._setup_devices
        return torch.device("cpu") if device.type == "cpu" else device

    @property
    def responses_per_step(self) -> int:
        """Responses behind one optimizer step, over micro-batches and processes."""
        return self.per_device_train_batch_size * self.gradient_accumulation_steps * self.world_size
