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
    """With `r` and `lora_alpha` at least. The weights beside them are opened, not loaded."""
    from safetensors import SafetensorError, safe_open

    for name in (CONFIG, WEIGHTS):
        if not (Path(folder) / name).is_file():
            raise InputError(f"{folder} has no {name}; give a folder that claimwise distill has finished")
    try:
        settings = json.loads((Path(folder) / CONFIG).read_text(encoding="utf-8"))
        if not isinstance(settings, dict) or not {"r", "lora_alpha"} <= settings.keys():
            raise ValueError("it lacks r or lora_alpha")
    except ValueError as error:
        raise InputError(f"{Path(folder) / CONFIG} is damaged ({error}); distil the verifier again") from error
    try:
        with safe_open(Path(folder) / WEIGHTS, framework="pt"):
            return settings
    except SafetensorError as error:
        raise InputError(f"{Path(folder) / WEIGHTS} is damaged ({error}); distil the verifier again") from error
