"""The credit of groups of responses under a verdict table, for `eval.fidelity`, and the baseline of tossed coins.

In: examples, rollouts, the characters of each token, and verdict tables on them. Out: per group of two responses or more
its advantages and rubric rewards.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..eval.fidelity import GroupCredit, fidelity
from ..trainer.credit import ARMS, PLACEBO, Arm, PitfallSetting, ScoredResponse, token_advantages
from ..verifier.errors import InputError
from ..verifier.schema import Example, Rollout, Verdict

RUBRIC_ALONE = (0.0, 0.0, 1.0)
RUBRIC_ARMS: tuple[Arm, ...] = tuple(arm for arm in ARMS if arm not in ("answer", PLACEBO))
Group = tuple[Example, list[Rollout]]


def groups_of(pairs: Sequence[tuple[Example, Rollout]]) -> tuple[list[Group], int]:
    """The responses to each example, in order, and how many examples have fewer than two."""
    found: dict[str, Group] = {}
    for example, rollout in pairs:
        found.setdefault(example.example_id, (example, []))[1].append(rollout)
    groups = [group for group in found.values() if len(group[1]) > 1]
    return groups, len(found) - len(groups)


def credit_under(
    verdicts: Sequence[Verdict],
    groups: Sequence[Group],
    offsets: Mapping[str, np.ndarray],
    arm: Arm,
    pitfalls: PitfallSetting = "veto",
) -> list[GroupCredit]:
    """Advantages on the rubric term alone, of all tokens, and the responses' rubric rewards after the veto."""
    said: dict[str, dict[str, tuple[bool | None, tuple[int, int] | None]]] = {}
    for verdict in verdicts:
        said.setdefault(verdict.rollout_id, {})[verdict.criterion_id] = verdict.verdict, verdict.span
    out = []
    for example, rollouts in groups:
        responses = [ScoredResponse(offsets[r.rollout_id], None, None, said.get(r.rollout_id, {})) for r in rollouts]
        try:
            credit = token_advantages(example.criteria, responses, arm=arm, budget=RUBRIC_ALONE, pitfalls=pitfalls)
        except InputError as error:
            raise InputError(f"example {example.example_id!r}: {error}") from error
        rewards = [np.nan if r.rubric is None else r.rubric for r in credit.rewards]
        out.append(GroupCredit(np.concatenate(credit.advantages), np.array(rewards, dtype=float)))
    return out


def fidelity_by_arm(
    teacher: Sequence[Verdict],
    judge: Sequence[Verdict],
    groups: Sequence[Group],
    offsets: Mapping[str, np.ndarray],
    arms: Sequence[Arm] = RUBRIC_ARMS,
    pitfalls: PitfallSetting = "veto",
    tosses: int = 10,
    draws: int = 1000,
    seed: int = 0,
) -> dict[str, dict[str, Any]]:
    """Per arm the judge's fidelity and, under "coin_flip", that of the judge's spans with tossed verdicts: each figure's
    mean over `tosses`."""
    tossed = [toss(judge, seed + number) for number in range(tosses)]
    out = {}
    for arm in arms:
        wanted = credit_under(teacher, groups, offsets, arm, pitfalls)
        figures = fidelity(wanted, credit_under(judge, groups, offsets, arm, pitfalls), draws, seed)
        coins = [fidelity(wanted, credit_under(coin, groups, offsets, arm, pitfalls), draws=0) for coin in tossed]
        figures["coin_flip"] = {
            name: float(np.mean(known)) if (known := [c[name] for c in coins if c[name] is not None]) else None
            for name in ("cosine", "sign", "best_changes", "pooled_cosine")
        }
        out[arm] = figures
    return out


def toss(verdicts: Sequence[Verdict], seed: int) -> list[Verdict]:
    """The same table with every known verdict decided by a fair coin; spans stay."""
    heads = np.random.default_rng([seed, 1]).random(len(verdicts)) < 0.5
    return [
        v if v.verdict is None else dataclasses.replace(v, verdict=bool(head), p_yes=None)
        for v, head in zip(verdicts, heads, strict=True)
    ]
