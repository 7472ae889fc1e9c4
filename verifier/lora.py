"""The files of a LoRA adapter, as they must be before it is gone on with or handed over.

In: an adapter's folder. Out: its settings (adapter_config.json), or an InputError that names what is missing or damaged.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .errors import InputError

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def lora_settings(folder: str | Path) -> dict[str, Any]:
    """With the numbers `r` and `lora_alpha` at least. The weights beside them are opened, not loaded: both halves of each
    module must be there, in that rank."""
    from safetensors import SafetensorError, safe_open

    for name in (CONFIG, WEIGHTS):
        if not (Path(folder) / name).is_file():
            raise InputError(f"{folder} has no {name}; give a folder that claimwise distill has finished")
    try:
        settings = json.loads((Path(folder) / CONFIG).read_text(encoding="utf-8"))
        if not isinstance(settings, dict) or not {"r", "lora_alpha"} <= settings.keys():
            raise ValueError("it lacks r or lora_alpha")
        if not all(type(settings[name]) in (int, float) for name in ("r", "lora_alpha")):
            raise ValueError("r or lora_alpha is no number")
    except ValueError as error:
        raise InputError(f"{Path(folder) / CONFIG} is damaged ({error}); distil the verifier again") from error
    try:
        with safe_open(Path(folder) / WEIGHTS, framework="pt") as weights:
            shapes = {key: list(weights.get_slice(key).get_shape()) for key in weights.keys()}  # noqa: SIM118
        _check_halves(shapes, None if settings.get("rank_pattern") else settings["r"])
    except (SafetensorError, ValueError) as error:
        raise InputError(f"{Path(folder) / WEIGHTS} is damaged ({error}); distil the verifier again") from error
    return settings


def module_of(key: str) -> tuple[str, str]:
    """The base's name of the module that a weight of the adapter is for, and which part of it ("A.weight", ...)."""
    name, _, part = key.removeprefix("base_model.model.").partition(".lora_")
    return name, part


def _check_halves(shapes: dict[str, list[int]], rank: int | None) -> None:
    """PEFT would start a missing half anew, with a warning, so that its module would do nothing."""
    found: dict[str, set[str]] = {}
    for key, shape in shapes.items():
        name, part = module_of(key)
        found.setdefault(name, set()).add(part)
        if part == "A.weight" and rank is not None and shape[0] != rank:
            raise ValueError(f"{name} has rank {shape[0]}, where {CONFIG} says r = {rank}")
    for name, parts in found.items():
        if len(parts & {"A.weight", "B.weight"}) == 1:
            raise ValueError(f"half of the weights of {name} are missing")
