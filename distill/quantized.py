"""QLoRA: the language model's linears in 4-bit NF4, the vision tower and `lm_head` as they are.

In: an unquantised base. Out: what transformers' `from_pretrained` needs for it, and after loading the number of quantised
linears per tower, checked. bitsandbytes does the arithmetic, on CPUs too; the base's hash is that of its unquantised
weights, so the adapter is judged, served and merged on those.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch

from ..verifier.errors import InputError

# A vision tower in 4 bits gives nonsense (unsloth#1347); `lm_head` is what the verdict's margin is read from.
UNQUANTIZED = ["model.visual", "lm_head"]


def require_bitsandbytes() -> None:
    if importlib.util.find_spec("bitsandbytes") is None:
        raise InputError(
            "load_in_4bit needs bitsandbytes; pip install 'claimwise[quantized]', or leave load_in_4bit out"
        )


def nf4_settings(compute_dtype: torch.dtype) -> dict[str, Any]:
    """Keyword arguments for `from_pretrained`."""
    from transformers import BitsAndBytesConfig

    settings = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=compute_dtype,
        llm_int8_skip_modules=UNQUANTIZED,  # transformers' name for it, in 4 bits too
    )
    return {"quantization_config": settings}


def refuse_quantized(path: str) -> None:
    """A base that is stored in 4 or 8 bits would tie the adapter to them: merged into them it loses, and its vision tower
    is most often quantised with the rest."""
    if stored_quantized(path):
        raise InputError(
            f"the base model {path!r} is stored quantised; give the unquantised one, and load_in_4bit: true"
        )


def stored_quantized(path: str) -> bool:
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(path)
    except (OSError, ValueError):
        return False  # loading it will say what is wrong
    return getattr(config, "quantization_config", None) is not None


def keep_trainable(model: torch.nn.Module) -> None:
    """On CPUs with AVX512-BF16 bitsandbytes repacks a weight when it is first evaluated, into a layout through which no
    gradient flows: an evaluation within a training would cut the gradients of all that follows, without an error."""
    modules: list[Any] = list(model.modules())
    for module in modules:
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def check_nf4(model: torch.nn.Module, linears: set[str], path: str) -> str:
    """That exactly `linears` (full names) hold 4-bit weights, as words for the run's first line."""
    import bitsandbytes

    found = {name for name, module in model.named_modules() if isinstance(module, bitsandbytes.nn.Linear4bit)}
    if found != linears:
        odd = sorted(found ^ linears)
        raise InputError(f"{path}: 4 bits are for the {len(linears)} linears of the language model, but {odd[0]!r} and "
                         f"{len(odd) - 1} more differ; claimwise distill needs a Qwen-VL of transformers")  # fmt: skip
    return f"NF4 on {len(found)} linears of the language model, vision tower and lm_head unquantised"
