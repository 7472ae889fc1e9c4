"""claimwise bench judge: how fast the packed judge is against the ways it replaces, and how exact.

In: flags. Out: the figures of FIGURES by name; one that cannot be measured here is null, and `not_measured` says why. A
part is a module beside this one with `figures(args) -> dict`; to add one, name it in PARTS and its flags here.
"""

from __future__ import annotations

import argparse
import importlib
from importlib import resources

SHIPPED = str(resources.files("claimwise.distill") / "assets" / "verifier")
DESCRIPTION = """Measure the judge: packed against one pass per criterion and against a padded batch; image and
question encoded once per example against once per response; the greatest difference between their logits; and the
seconds for 1 to 32 criteria. Ratios are medians over interleaved repeats; on the CPU they are of one thread's
processor time, so that other work on the machine does not count. Their model has random weights: what it says does
not matter, only that all ways agree on it. Then what a verifier says on held-out digits: the upper 95% bound of its
false yes under attack, its calibration error, and a GRPO step in the digits world with it over one with the oracle. Where
there is a vLLM (scripts/vllm_cpu.sh install makes one; CLAIMWISE_VLLM_ENV names its environment), also how much longer
its server takes with the criterion first, and with the image sent along each time."""
EXAMPLE = """examples:
  claimwise bench judge --json
  claimwise bench judge --quick          # a tiny model, once: does it run?
"""
PARTS = ["speed", "hardness", "step", "vllm_orders"]  # modules of `benches`
FIGURES = (
    *("packed_vs_single", "packed_vs_batch", "k7_vs_k1", "depth2_vs_depth1", "max_logit_diff", "cost_curve"),
    *("vllm_order_ratio", "vllm_uuid_ratio", "adversarial_false_yes", "ece", "bf16_equal_verdicts"),
    "grpo_step_vs_oracle",
)


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--adapter", default=SHIPPED, help="verifier to attack (default: the shipped one)")
    parser.add_argument("--repeats", type=int, default=5, help="interleaved repeats per ratio (default: 5)")
    parser.add_argument("--device", default="cpu", help="where the model runs (default: cpu)")
    parser.add_argument("--quick", action="store_true", help="tiny shapes, once, few examples: figures mean nothing")


def measure(args: argparse.Namespace) -> dict:
    measured: dict = {}
    for part in PARTS:
        measured |= importlib.import_module(f".{part}", __package__).figures(args)
    return {name: measured.pop(name) for name in FIGURES} | {"not_measured": {}} | measured
