"""Resuming a GRPO run on the very trajectory that it was stopped on.

TRL leaves two things out of a checkpoint. The order of the prompts starts again from the seed, so a run resumed in its
second epoch would see the first epoch's order. And completions that serve several optimizer steps (`num_iterations` or
`steps_per_generation` above one) are lost when the checkpoint falls between those steps. Here the order is wound
forward, and such completions are stored with the checkpoint, a file per process. A verifier that shares the policy's
base is no part of a checkpoint.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl import GRPOTrainer

from ..verifier.errors import InputError
from .shared_base import verifier_left_out


class ResumableGRPOTrainer(GRPOTrainer):
    """`GRPOTrainer` whose checkpoints hold all that the next step depends on."""

    def _get_train_sampler(self, dataset=None):
        self._train_sampler: Any = super()._get_train_sampler(dataset)
        return self._train_sampler

    def _init_training_state(self, *args, **kwargs):
        epochs, batches = super()._init_training_state(*args, **kwargs)
        sampler = self._train_sampler
        for _ in range(epochs if self.shuffle_dataset else 0):  # draws their orders and throws them away
            torch.randperm(sampler.num_samples, generator=sampler.generator)
        return epochs, batches

    def _save_checkpoint(self, model, trial):
        folder = Path(self._get_output_dir(trial=trial)) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        folder.mkdir(parents=True, exist_ok=True)
        inputs = self._buffered_inputs if self._step % self._generate_every else None
        torch.save({"step": self._step, "inputs": inputs}, self._completions_of(folder))
        super()._save_checkpoint(model, trial)  # ends with the trainer's state, which marks the checkpoint as whole

    def _save(self, output_dir=None, state_dict=None):
        with verifier_left_out(self.accelerator.unwrap_model(self.model)):
            super()._save(output_dir, state_dict)

    def _load_optimizer_and_scheduler(self, checkpoint):
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        path = self._completions_of(Path(checkpoint))
        if path.is_file():
            saved = torch.load(path, map_location=self.accelerator.device, weights_only=True)
            self._step, self._buffered_inputs = saved["step"], saved["inputs"]
            return
        self._step = self.state.global_step * self.args.gradient_accumulation_steps
        if self._step % self._generate_every:  # with other processes than before, or a checkpoint of another trainer
            raise InputError(
                f"{path} is missing, and {checkpoint} falls between two uses of the same completions; resume from a "
                "checkpoint that does not, or with as many processes as it was made with"
            )

    @property
    def _generate_every(self) -> int:
        """Micro-steps that one batch of completions serves."""
        return self.args.steps_per_generation * self.num_iterations  # pyright: ignore[reportAttributeAccessIssue]

    def _completions_of(self, folder: Path) -> Path:
        return folder / f"completions_{self.accelerator.process_index}.pt"
