"""What the verifier adds to a GRPO step of `claimwise bench judge`: the step with the shipped verifier over that with the
oracle, which costs nothing.

In: flags. Out: one ratio, the median over interleaved pairs of runs: CPU seconds of one thread from the end of the first
step to the end of the last, as `claimwise train` with the recipe of the digits world takes them.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from importlib import resources
from typing import cast

import torch
from tqdm import tqdm
from transformers import PrinterCallback, TrainerCallback

from ...distill.oracle import OracleJudge
from ...trainer.config import RubricGRPOConfig
from ...trainer.grpo import RubricGRPOTrainer
from ...trainer.policy import load_policy
from ...verifier.judge import PackedJudge, load_judge
from ...verifier.processor import load_processor
from ...verifier.progress import only_our_bars
from ...verifier.schema import Judge
from ...verifier.settings import parse_settings
from ..quickstart_data import make_examples, recipe

POLICY = str(resources.files("claimwise.distill") / "assets" / "policy")


def figures(args: argparse.Namespace) -> dict:
    """`grpo_step_vs_oracle`: seconds of a step with the verifier over those of a step with the oracle."""
    only_our_bars()
    repeats, steps = (1, 2) if args.quick else (5, 10)  # short pairs: a machine that slows down slows both
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        verifier = load_judge(args.adapter, "image", device="cpu")
        ratios = []
        for pair in tqdm(range(repeats), "GRPO step", unit="pair"):
            judges: list[Judge] = [OracleJudge("image"), verifier]
            seconds = {
                judge.name: _step(judge, steps, 8 if args.quick else 64)
                for judge in (judges if pair % 2 else judges[::-1])
            }
            ratios.append(seconds[verifier.name] / seconds[judges[0].name])
    finally:
        torch.set_num_threads(threads)
    return {"grpo_step_vs_oracle": round(statistics.median(ratios), 3)}


class _Watch(TrainerCallback):
    """CPU seconds from the end of the first step to the end of the last."""

    def __init__(self):
        self.ends: list[float] = []

    def on_step_end(self, args, state, control, **kwargs):
        self.ends.append(time.process_time())


def _step(judge: Judge, steps: int, responses: int) -> float:
    if isinstance(judge, PackedJudge) and judge.cache is not None:
        judge.cache.clear()  # another run's answers to the same completions would cost nothing
    with tempfile.TemporaryDirectory() as folder:
        flags = {
            "model": POLICY,
            "output_dir": folder,
            "learning_rate": "0",
            "max_steps": str(steps),
            "use_cpu": "true",
        }
        argv = ["--config", recipe("grpo-digits.yaml"), *(word for k, v in flags.items() for word in (f"--{k}", v))]
        config = cast(RubricGRPOConfig, parse_settings(RubricGRPOConfig, argv, "train"))
        config.disable_tqdm = True
        model, _ = load_policy(config)
        examples, watch = make_examples("train", 224, 0), _Watch()
        trainer = RubricGRPOTrainer(model, config, examples, judge, processing_class=load_processor(POLICY))
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(watch)
        trainer.train()
    return (watch.ends[-1] - watch.ends[0]) / (steps - 1)
