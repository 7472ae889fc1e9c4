"""What vLLM needs to serve a verifier.

In: a base and an adapter. Out: a folder that vLLM can load, and its engine's settings, for `vllm.LLM` and, as flags, for
`vllm serve`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .errors import InputError
from .processor import ImageOnlyQwen3VLProcessor, load_config

# Environment variables that vLLM wants on the CPU where they are not set: GB for keys and values, and no compiler.
ON_CPU = {"VLLM_CPU_KVCACHE_SPACE": "4", "TORCHDYNAMO_DISABLE": "1"}


def servable(base: str | Path, scratch: Path) -> str:
    """The base itself, or, where it names our image-only processor, which vLLM does not know, a folder in `scratch` with
    links to its files and the stock processor instead."""
    config = Path(base) / "processor_config.json"
    if not config.is_file():
        return str(base)
    values = json.loads(config.read_text())
    if values.get("processor_class") != ImageOnlyQwen3VLProcessor.__name__:
        return str(base)
    for file in Path(base).resolve().iterdir():
        if file.name != config.name:
            (scratch / file.name).symlink_to(file)
    videos = {key: value for key, value in values["image_processor"].items() if key != "image_processor_type"}
    values["processor_class"] = "Qwen3VLProcessor"
    values["video_processor"] = {**videos, "video_processor_type": "Qwen3VLVideoProcessor"}
    (scratch / config.name).write_text(json.dumps(values, indent=2))
    return str(scratch)


def engine_settings(base: str | Path, adapter: Path | None, on_cpu: bool) -> dict[str, Any]:
    """Settings of vLLM's engine for a base and, unless it is merged, an adapter."""
    settings: dict[str, Any] = {
        "dtype": own_dtype(base),  # what the adapter was trained on; vLLM would turn float32 into 16 bits
        "generation_config": "vllm",  # not the checkpoint's top-k and repetition penalty
        "enable_prefix_caching": True,
    }
    if adapter is not None:
        settings |= {"enable_lora": True, "max_lora_rank": lora_rank(adapter), "max_loras": 1}
    if on_cpu:
        settings |= {"enforce_eager": True, "block_size": 32}  # with larger blocks short prompts never hit the cache
    return settings


def own_dtype(base: str | Path) -> str:
    """The type of the base's weights, as its configuration names it."""
    return str(load_config(base).dtype).removeprefix("torch.")


def lora_rank(adapter: Path) -> int:
    """The least rank that vLLM has room for and the adapter fits in."""
    path = adapter / "adapter_config.json"
    try:
        values = json.loads(path.read_text())
        rank = max([values["r"], *(values.get("rank_pattern") or {}).values()])
        return next(room for room in _RANKS if room >= rank)
    except (OSError, ValueError, LookupError, TypeError, StopIteration) as error:
        raise InputError(f"{path} names no rank up to {_RANKS[-1]} ({error or 'too large'}); distil it again") from None


_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
