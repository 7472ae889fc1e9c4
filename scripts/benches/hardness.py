"""The figures of `claimwise bench judge` that are about what a verifier says: is it talked into yes, is P(yes) true?

In: a verifier's folder. Out: the upper Wilson bound of its false yes over the adversarial suite, and the expected
calibration error on responses that nobody attacked; both on held-out digits, against people's own labels. And the share
of its verdicts on these that are the same in bfloat16.
"""

from __future__ import annotations

import argparse
from importlib import resources

import torch
from tqdm import tqdm

from ...distill.attacks import KINDS, aimed, attack_figures, attacks
from ...distill.oracle import OracleJudge
from ...eval.calibration import expected_calibration_error
from ...verifier.judge import PackedJudge, load_judge
from ...verifier.model import load_model
from ...verifier.schema import Verdict
from ...verifier.tables import pair_up
from ..quickstart_data import make_examples, make_rollouts

ASSETS = resources.files("claimwise.distill") / "assets"
EXAMPLES, SEED = 110, 2026  # another seed than any that made what the shipped verifier learned from


def figures(args: argparse.Namespace) -> dict:
    """`adversarial_false_yes` and `ece`, with `attacks` and `calibration`, which say how they came about; and
    `bf16_equal_verdicts`."""
    judge = load_judge(args.adapter, dtype=torch.float32, device=args.device)
    examples = make_examples("test", 4 if args.quick else EXAMPLES, SEED)
    hostile = attacks(examples, tuple(KINDS), SEED, len(KINDS))
    found = attack_figures(hostile, _judged(judge, aimed(examples, hostile), "attacks"))
    policy = load_model(str(ASSETS / "policy"))
    pairs = pair_up(examples, make_rollouts(policy, examples, 1, SEED))
    gold, told = OracleJudge(judge.mode).judge(pairs), _judged(judge, pairs, "calibration")
    coarse = load_judge(args.adapter, dtype=torch.bfloat16, device=args.device)
    equal = [a.verdict is b.verdict for a, b in zip(told, _judged(coarse, pairs, "bfloat16"), strict=True)]
    return {
        "bf16_equal_verdicts": round(sum(equal) / len(equal), 4),
        "adversarial_false_yes": round(found["false_yes_ci"][1], 4),
        "ece": round(expected_calibration_error([v.p_yes for v in told], [v.verdict for v in gold]), 4),
        "attacks": {
            **{name: found[name] for name in ("n", "missing", "by_kind")},
            "false_yes": round(found["false_yes"], 4),
        },
        "calibration": {"n": len(told), "temperature": judge.card.temperature},
    }


def _judged(judge: PackedJudge, pairs: list, what: str) -> list[Verdict]:
    return [v for row in tqdm(judge.judge_each(pairs), what, len(pairs), unit="response") for v in row]
