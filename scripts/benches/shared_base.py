"""How much memory a verifier takes beside the policy: as a second adapter on the policy's base, and on a base of its own.

In: nothing. Out: two numbers of megabytes, by which the resident memory of the process grew when the verifier was loaded
and had judged once. The base has random weights and is large enough (some 200 MB) that what Python needs hardly counts.
"""

from __future__ import annotations

import gc
import random
import tempfile
from collections.abc import Callable
from pathlib import Path

import psutil
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForImageTextToText

from ...distill.digits import make_example
from ...distill.tiny import build_model, build_processor
from ...trainer.policy import LORA_TARGETS
from ...trainer.shared_base import SharedBaseJudge
from ...verifier.adapter import VerifierCard
from ...verifier.judge import load_judge
from ...verifier.model import base_hash, load_model
from ...verifier.prompt import prompt_hash
from ...verifier.schema import Judge, Rollout

WIDTH, LAYERS, RANK = 768, 8, 16


def measure() -> tuple[float, float]:
    """(one base with two adapters, a base of its own), in MB."""
    example = make_example(random.Random(0), "train", 0)
    item = (example, Rollout("r", example.example_id, "The top-left digit is 3.", "bench"))
    config = LoraConfig(r=RANK, target_modules=LORA_TARGETS, init_lora_weights=False)
    with tempfile.TemporaryDirectory() as folder:
        base, adapter = _save(Path(folder), config)
        model = AutoModelForImageTextToText.from_pretrained(base, dtype=torch.float32)
        policy = get_peft_model(model, config)

        def second_adapter() -> SharedBaseJudge:
            judge = SharedBaseJudge(adapter, str(base))
            judge.attach(policy)
            judge.judge([item])
            return judge

        def second_base() -> Judge:
            judge = load_judge(adapter, base=base, dtype=torch.float32, device="cpu")
            judge.judge([item])
            return judge

        second_adapter().detach()  # once without a count: what any first pass allocates belongs to neither
        return _growth(second_adapter), _growth(second_base)


def _growth(load: Callable[[], Judge]) -> float:
    before = _resident()
    judge = load()
    after = _resident()
    del judge
    return after - before


def _resident() -> float:
    gc.collect()
    return psutil.Process().memory_info().rss / 1e6


def _save(folder: Path, config: LoraConfig) -> tuple[Path, Path]:
    """A base and a verifier of random weights."""
    base, adapter = folder / "base", folder / "verifier"
    processor = build_processor()
    build_model(processor, WIDTH, LAYERS, 0.02).save_pretrained(base)
    processor.save_pretrained(base)
    get_peft_model(load_model(base).model, config).save_pretrained(str(adapter))
    VerifierCard("bench", str(base), base_hash(base), prompt_hash("image", True), "image", True).write(adapter)
    return base, adapter
