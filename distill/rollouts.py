"""Responses of a policy to examples, and counterfactual, truncated and empty ones beside them.

In: a policy and examples. Out: rollout rows; each edited one says in `edit` what was changed ("number: 3 -> 8 at 41").
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tqdm import tqdm

from ..verifier.schema import Example, Rollout
from .edits import EDITS, counterfactual, describe_change

if TYPE_CHECKING:
    from ..verifier.model import VisionLanguageModel


def sample(
    policy: VisionLanguageModel,
    examples: Sequence[Example],
    samples: int,
    temperature: float = 1.0,
    max_new_tokens: int = 1024,
    seed: int = 0,
    batch_size: int = 64,
    name: str = "policy",
) -> list[Rollout]:
    """`samples` responses per example, in the order of the examples; the same seed gives the same rollouts. All at once,
    with one stream of random numbers: `rollout_run.roll_out` is the one that can be interrupted."""
    import torch

    from .sampling import Sampler

    torch.manual_seed(seed)
    sampler = Sampler(policy, max_new_tokens)
    wanted = [(example, index) for example in examples for index in range(samples)]
    rollouts: list[Rollout] = []
    with tqdm(total=len(wanted), desc=f"sampling {name}", unit="response") as bar:
        for first in range(0, len(wanted), batch_size):
            batch = wanted[first : first + batch_size]
            answers = sampler.generate([sampler.prompt(example) for example, _ in batch], temperature)
            for (example, index), (text, finish) in zip(batch, answers, strict=True):
                identity = f"{example.example_id}/{name}-{index}"
                rollouts.append(Rollout(identity, example.example_id, text, name, index, finish))
            bar.update(len(batch))
    return rollouts


def references(examples: Sequence[Example]) -> list[Rollout]:
    """The reference responses as rollouts, where there are any."""
    return [
        Rollout(f"{e.example_id}/reference", e.example_id, e.reference, "reference", 0, "stop")
        for e in examples
        if e.reference
    ]


def with_edits(
    rollouts: Sequence[Rollout],
    per_rollout: int,
    empty_share: float,
    seed: int,
    kinds: Sequence[str] = tuple(EDITS),
) -> Iterator[Rollout]:
    """Counterfactuals of the given rollouts, each of a kind drawn among `kinds`, and an empty response for a share of
    them. Where no kind applies there is none."""
    rng = random.Random(f"edits-{seed}")
    for rollout in rollouts:
        for index in range(per_rollout):
            is_empty = rng.random() < empty_share
            edited = ("", "empty") if is_empty else counterfactual(rng, rollout.response, kinds)
            if edited is not None and edited[0] != rollout.response:
                yield edited_rollout(rollout, *edited, index)


def edited_rollout(rollout: Rollout, text: str, kind: str, index: int) -> Rollout:
    """The rollout with another text; `edit` says the kind of edit and what it changed."""
    return Rollout(
        f"{rollout.rollout_id}/{kind}-{index}",
        rollout.example_id,
        text,
        rollout.policy,
        rollout.sample_index,
        "length" if kind == "truncation" else rollout.finish_reason,
        f"{kind}: {describe_change(rollout.response, text)}",
    )
