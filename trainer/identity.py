"""What makes two GRPO runs the same: recorded as `run.json`, so that no folder is gone on with by another run.

In: the settings and the examples as they were read. Out: a flat mapping. Whatever changes what is learned is in it: the
settings of `NAMED` always, others where they are not at their default; examples and verifier by their contents (images by
nothing). What may differ when a run is gone on with is not: where servers are, how full a GPU gets, what is logged, and
what is done about alarms and missing verdicts.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import TrainingArguments

from ..verifier.model import adapter_hash
from ..verifier.schema import Example
from .config import RubricGRPOConfig

NAMED = (
    *("model", "examples", "verifier", "verifier_base", "teacher", "teacher_model", "arm", "budget", "pitfalls"),
    *("learning_rate", "max_steps", "num_generations", "per_device_train_batch_size", "gradient_accumulation_steps"),
    *("num_iterations", "beta", "loss_type", "temperature", "max_completion_length", "seed", "sampled_verdicts"),
    *("lora_r", "lora_alpha", "load_in_4bit", "num_train_epochs", "steps_per_generation", "mask_truncated_completions"),
    *("lr_scheduler_type", "warmup_steps", "weight_decay", "optim", "max_grad_norm", "epsilon", "epsilon_high", "bf16"),
    *("top_p", "top_k", "eval_examples", "use_vllm", "world_size", "match_rms", "verifier_server", "shared_base"),
    "cascade",
)
# Of TRL's settings and ours, those that may change; generation_batch_size and reward_weights follow from others.
FREE = {
    *("generation_batch_size", "reward_weights", "model_init_kwargs", "trust_remote_code", "ds3_gather_for_generation"),
    *("vllm_enable_sleep_mode", "vllm_server_base_url", "vllm_server_host", "vllm_server_port", "vllm_server_timeout"),
    *("vllm_group_port", "vllm_gpu_memory_utilization", "vllm_max_model_length", "vllm_tensor_parallel_size"),
    *("vllm_importance_sampling_cap", "use_transformers_paged", "transformers_continuous_batching_config"),
    *("cache_implementation", "log_completions", "log_multimodal", "num_completions_to_print", "log_unique_prompts"),
    *("log_completions_hub_repo", "max_missing", "on_alarm", "healthy_agreement", "bad_agreement", "escalate_budget"),
    *("escalate_band", "cascade_calls"),
}
# Of transformers' settings, those that change what is learned; an evaluation draws random numbers.
ALSO = {
    *("adam_beta1", "adam_beta2", "adam_epsilon", "data_seed", "fp16", "lr_scheduler_kwargs", "optim_args"),
    *("optim_target_modules", "neftune_noise_alpha", "eval_strategy", "eval_steps", "eval_delay", "eval_on_start"),
    *("per_device_eval_batch_size",),
}


def identity(
    config: RubricGRPOConfig, examples: Sequence[Example], eval_examples: Sequence[Example] = ()
) -> dict[str, Any]:
    """The mapping for `open_run`."""
    theirs = {field.name for field in dataclasses.fields(TrainingArguments)}
    others = [
        field
        for field in dataclasses.fields(RubricGRPOConfig)
        if field.name not in {*NAMED, *FREE} and (field.name in ALSO or field.name not in theirs)
    ]
    settings = {name: getattr(config, name) for name in NAMED}
    settings |= {f.name: getattr(config, f.name) for f in others if not _is_default(f, getattr(config, f.name))}
    contents = {"examples_hash": _digest(examples)}
    contents |= {"eval_examples_hash": _digest(eval_examples)} if eval_examples else {}
    contents |= {"verifier_hash": adapter_hash(config.verifier)} if Path(config.verifier or " ").is_dir() else {}
    return {"command": "train", **settings, **contents}


def _is_default(field: dataclasses.Field, value: Any) -> bool:
    made = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
    return value == made or (value in (None, {}) and made in (None, {}))


def _digest(examples: Sequence[Example]) -> str:
    digest = hashlib.sha256()
    for e in examples:
        row = [e.example_id, e.question, e.answer, e.reference, *(list(vars(c).values()) for c in e.criteria)]
        digest.update(json.dumps(row).encode())
    return digest.hexdigest()[:16]
