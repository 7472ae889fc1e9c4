"""`claimwise train` from settings to a trained policy; what the command and the quickstart both call."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import torch
from transformers import AutoModelForImageTextToText
from transformers.trainer_utils import get_last_checkpoint, set_seed

from ..verifier.errors import InputError
from ..verifier.processor import load_processor
from ..verifier.progress import only_our_bars, use_bar
from ..verifier.rundir import open_run, write_atomic
from ..verifier.schema import Example, Judge
from .config import RubricGRPOConfig
from .grpo import RubricGRPOTrainer

RUN_KEYS = (
    *("model", "examples", "verifier", "verifier_base", "teacher", "arm", "budget", "pitfalls", "match_rms"),
    *("learning_rate", "max_steps", "num_generations", "per_device_train_batch_size", "gradient_accumulation_steps"),
    *("num_iterations", "beta", "loss_type", "temperature", "max_completion_length", "seed", "sampled_verdicts"),
)


def train(
    config: RubricGRPOConfig,
    examples: Sequence[Example],
    judge: Judge | None,
    teacher: Judge | None = None,
    monitors: Sequence[Callable] = (),
    peft_config=None,
) -> dict:
    """Trains the policy under `config.output_dir`; returns the in-loop figures. The folder then holds the policy with
    its processor, `log.jsonl` (a row per step) and `in_loop/samples.jsonl`. A finished folder is left as it is."""
    folder = open_run(config.output_dir or "policy", {"command": "train", **{k: getattr(config, k) for k in RUN_KEYS}})
    finished = folder / "finished.json"
    if finished.is_file():
        return json.loads(finished.read_text())
    if not examples:
        raise InputError(f"{config.examples} holds no example to train on")
    only_our_bars()
    set_seed(config.seed)
    dtype = torch.bfloat16 if config.bf16 else torch.float32
    model = AutoModelForImageTextToText.from_pretrained(config.model, dtype=dtype)
    processor = load_processor(config.model)
    trainer = RubricGRPOTrainer(
        model,
        config,
        examples,
        judge,
        teacher,
        monitors,
        processing_class=processor,
        peft_config=peft_config,
    )
    use_bar(trainer, f"GRPO {config.arm}", ["reward", "rubric/reward", "judge/agreement"])
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(folder)))
    figures: dict = {} if trainer.in_loop is None else trainer.in_loop.close()
    trainer.save_model(str(folder))
    rows = [json.dumps(row) for row in trainer.state.log_history if "reward" in row]
    write_atomic(folder / "log.jsonl", "\n".join(rows) + "\n")
    write_atomic(finished, json.dumps(figures, indent=2) + "\n")
    return figures
