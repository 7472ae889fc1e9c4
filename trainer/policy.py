"""The policy as it is trained: all weights, a LoRA adapter, or an adapter on 4-bit weights (QLoRA).

In: settings. Out: the model, and the adapter's configuration for the trainer (None for full fine-tuning).
"""

from __future__ import annotations

import importlib.util

import torch
from peft import LoraConfig
from transformers import AutoModelForImageTextToText, BitsAndBytesConfig, PreTrainedModel

from ..verifier.errors import InputError
from .config import RubricGRPOConfig

# Full paths of the language model's projections: the vision tower has `mlp` and `qkv` names too (peft#2615), and vLLM
# serves adapters on these alone.
LORA_TARGETS = r"model\.language_model\.layers\.\d+\.(self_attn\.(q|k|v|o)_proj|mlp\.(gate|up|down)_proj)"
# A vision tower in 4 bits gives nonsense (unsloth#1347), and TRL reads the log-probabilities off `lm_head` itself.
UNQUANTIZED = ["model.visual", "lm_head"]


def load_policy(config: RubricGRPOConfig) -> tuple[PreTrainedModel, LoraConfig | None]:
    """Raises InputError where the model cannot be loaded, or has none of the projections that an adapter changes."""
    low = torch.bfloat16 if config.bf16 else torch.float32
    # All weights are trained in float32, under autocast with bf16: in bfloat16 a step of 1e-6 would round to nothing.
    dtype = low if config.lora_r else torch.float32
    quantized = {"quantization_config": _nf4(low)} if config.load_in_4bit else {}
    try:
        model = AutoModelForImageTextToText.from_pretrained(config.model, dtype=dtype, **quantized)
    except (OSError, ValueError) as error:
        raise InputError(f"the policy {config.model!r} cannot be loaded: {error}") from error
    if not config.lora_r:
        return model, None
    if not any(name.startswith("model.language_model.layers.") for name, _ in model.named_modules()):
        raise InputError(f"{config.model} has no language model that an adapter could change; set lora_r to 0")
    return model, LoraConfig(r=config.lora_r, lora_alpha=config.lora_alpha, target_modules=LORA_TARGETS, bias="none")


def _nf4(compute_dtype: torch.dtype) -> BitsAndBytesConfig:
    if importlib.util.find_spec("bitsandbytes") is None:
        raise InputError(
            "load_in_4bit needs bitsandbytes; pip install 'claimwise[quantized]', or leave load_in_4bit out"
        )
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=compute_dtype,
        llm_int8_skip_modules=UNQUANTIZED,  # transformers' name for it, in 4 bits too
    )
