"""What the tests of distillation share: a tiny random base, tables of the digits world, settings of a run of seconds."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path

import torch
from claimwise.distill.digits import make_example
from claimwise.distill.oracle import OracleJudge
from claimwise.distill.rollouts import references, with_edits
from claimwise.distill.tiny import build_model, build_processor
from claimwise.distill.train import Item, join_verdicts
from claimwise.verifier.tables import (
    pair_up,
    read_examples,
    read_rollouts,
    read_verdicts,
    write_examples,
    write_rollouts,
    write_verdicts,
)
from safetensors.torch import load_file

MODES = ("image", "text")


def make_base(folder: Path) -> Path:
    """A random Qwen3-VL of hidden 32 and 2 layers, in float32."""
    torch.manual_seed(1)
    processor = build_processor()
    build_model(processor, 32, 2, 0.06).save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def make_tables(folder: Path, part: str, count: int) -> Path:
    """Examples, their references and one edited response of each, and the oracle's verdicts in both modes."""
    examples = [make_example(random.Random(number), part, number) for number in range(count)]
    rollouts = references(examples)
    rollouts += list(with_edits(rollouts, per_rollout=1, empty_share=0.0, seed=0))
    write_examples(folder / "examples.jsonl", examples)
    write_rollouts(folder / "rollouts.jsonl", rollouts)
    for mode in MODES:
        write_verdicts(folder / f"gold-{mode}.jsonl", OracleJudge(mode).judge(pair_up(examples, rollouts)))
    return folder


def settings(base: Path, tables: Path, out: Path, mode: str = "image") -> dict:
    """Settings of a run of three steps of four responses."""
    train, held_out = tables / "train", tables / "validation"
    return {
        "base": str(base), "mode": mode, "output_dir": str(out),
        "examples": str(train / "examples.jsonl"), "rollouts": str(train / "rollouts.jsonl"),
        "verdicts": str(train / f"gold-{mode}.jsonl"),
        "validation_examples": str(held_out / "examples.jsonl"),
        "validation_rollouts": str(held_out / "rollouts.jsonl"),
        "validation_verdicts": str(held_out / f"gold-{mode}.jsonl"),
        "lora_r": 4, "lora_alpha": 8, "learning_rate": 1e-2, "max_steps": 3, "per_device_train_batch_size": 4,
        "save_strategy": "no", "logging_steps": 1, "report_to": "none", "seed": 5,
    }  # fmt: skip


def training_items(tables: Path, mode: str, count: int = 3) -> list[Item]:
    """The last ones, which are edited responses."""
    train = tables / "train"
    pairs = pair_up(read_examples(train / "examples.jsonl"), read_rollouts(train / "rollouts.jsonl"))
    return join_verdicts(pairs, read_verdicts(train / f"gold-{mode}.jsonl"))[-count:]


def uneven(items: list[Item]) -> list[Item]:
    """The same responses with 1, 5, 2, 6, 3, 7, 4, 1, ... of their verdicts: trees have unequal numbers of branches."""
    return [(example, rollout, rows[: 4 * i % 7 + 1]) for i, (example, rollout, rows) in enumerate(items)]


def write_uneven(tables: Path, path: Path) -> Path:
    """A table in which only the verdicts of `uneven` are known."""
    known = {row.key for *_, rows in uneven(training_items(tables, "image", 16)) for row in rows}
    rows = read_verdicts(tables / "train/gold-image.jsonl")
    missing = {"verdict": None, "p_yes": None, "error": "timeout"}
    write_verdicts(path, [row if row.key in known else dataclasses.replace(row, **missing) for row in rows])
    return path


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "adapter_model.safetensors")


def assert_same_weights(one: Path, two: Path, atol: float = 1e-6) -> None:
    a, b = weights_of(one), weights_of(two)
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=0, atol=atol)


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def log_of(folder: Path, key: str = "loss") -> list[float]:
    """The values that a run logged, from its last checkpoint."""
    states = sorted(
        folder.glob("checkpoint-*/trainer_state.json"), key=lambda path: int(path.parent.name.split("-")[1])
    )
    return [entry[key] for entry in json.loads(states[-1].read_text())["log_history"] if key in entry]
