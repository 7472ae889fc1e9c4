"""The tables of the quickstart: pictures and rubrics, a policy's responses with hard negatives, the oracle's verdicts.

In: a seed and how many examples of which digits. Out: a folder with examples.parquet, rollouts.parquet and the oracle's
verdicts in both modes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from ..distill.attacks import MIX, attacks
from ..distill.digits import assert_criterion, make_example
from ..distill.oracle import OracleJudge
from ..distill.rollouts import edited_rollout, references, sample, with_edits
from ..verifier.model import VisionLanguageModel
from ..verifier.schema import Example, Rollout
from ..verifier.tables import pair_up, write_examples, write_rollouts, write_verdicts


def make_examples(part: str, count: int, seed: int) -> list[Example]:
    """`count` pictures of the digits of one part, each with its rubric; another seed, other pictures."""
    rng = random.Random(f"{part}-{seed}")
    return [make_example(rng, part, number) for number in range(count)]


def hard_negatives(examples: Sequence[Example], rollouts: Sequence[Rollout], seed: int) -> list[Rollout]:
    """Each response again with one digit read as a criterion says, right or wrong: what a text-only judge falls for."""
    rng = random.Random(f"hard-{seed}")
    out = []
    for example, rollout in pair_up(examples, rollouts):
        text = assert_criterion(rng, example, rollout.response)
        if text != rollout.response:
            out.append(edited_rollout(rollout, text, "criterion", 0))
    return out


def make_rollouts(
    policy: VisionLanguageModel, examples: Sequence[Example], samples: int, seed: int, attacked: int = 0
) -> list[Rollout]:
    """The policy's responses and the references, of each a counterfactual and a hard negative, and so many responses to
    each example that try to fool a judge, of the kinds that are trained on."""
    rollouts = sample(policy, examples, samples, max_new_tokens=64, seed=seed) + references(examples)
    edited = [*with_edits(rollouts, 1, 0.03, seed), *hard_negatives(examples, rollouts, seed)]
    return [*rollouts, *edited, *attacks(examples, MIX, seed, attacked)]


def recipe(name: str) -> str:
    """The path of a shipped recipe."""
    return str(resources.files("claimwise.scripts") / "recipes" / name)


def write_part(folder: Path, examples: Sequence[Example], rollouts: Sequence[Rollout]) -> None:
    """The tables of one part; the oracle's verdicts last, in text and in image mode."""
    write_examples(folder / "examples.parquet", examples)
    write_rollouts(folder / "rollouts.parquet", rollouts)
    pairs = pair_up(examples, rollouts)
    for mode in ("text", "image"):
        write_verdicts(folder / f"gold-{mode}.jsonl", OracleJudge(mode).judge(pairs))
