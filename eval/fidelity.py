"""Credit fidelity: how far a judge's verdicts lead to the credit that the teacher's verdicts lead to.

In: per group (the responses to one example) the advantages of all its tokens and the rubric rewards of its responses,
under the teacher's verdicts and under another judge's. Out: figures over the groups, with intervals. Pure arithmetic on
arrays: whoever calls it makes the advantages, with the rubric term alone (budget 0,0,1), since the answer's term is the
same on both sides and would hide the rest.

    cosine         of the two advantage vectors, one number per token of the group. 0 where the judge's are all zero.
    sign           share of the tokens with a teacher's advantage where the judge's has the same sign
    best_changes   chance that a best response under the judge's rewards (drawn from those tied) is not among the
                   teacher's best
    pooled_cosine  over the tokens of all groups at once: what their summed gradient feels

A group counts where the teacher's advantages have any spread; `flat` are those where they are zero throughout, and
`invented` those of them to which the judge gives credit nevertheless. Of those that count, `silent` are those to which
the judge gives none, and `unranked` those where one side knows no reward, so that they are not in `best_changes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..verifier.errors import InputError
from .bootstrap import draw_weights, interval
from .metrics import FloatArray

ZERO = 1e-12  # advantages of a group whose responses are all alike are rounding at most


@dataclass(frozen=True, eq=False)
class GroupCredit:
    """`advantages_t`: of all tokens of a group's responses, one after another. `rewards_g`: rubric reward of each
    response, NaN where it is missing."""

    advantages_t: FloatArray
    rewards_g: FloatArray


def fidelity(teacher: Sequence[GroupCredit], judge: Sequence[GroupCredit], draws: int = 1000, seed: int = 0) -> dict:
    """Figures over the groups. Raises InputError where the two sides have other groups, tokens or responses."""
    _check(teacher, judge)
    spread = [bool(np.abs(t.advantages_t).max(initial=0) > ZERO) for t in teacher]
    kept = [pair for pair, has in zip(zip(teacher, judge, strict=True), spread, strict=True) if has]
    flat = [j for j, has in zip(judge, spread, strict=True) if not has]
    figures: dict[str, Any] = {
        "groups": len(kept),
        "flat": len(flat),
        "invented": sum(bool(np.abs(j.advantages_t).max(initial=0) > ZERO) for j in flat),
        "silent": sum(not bool(np.abs(j.advantages_t).max(initial=0) > ZERO) for _, j in kept),
    }
    rows = {
        "cosine": np.array([_cosine(t.advantages_t, j.advantages_t) for t, j in kept]),
        "sign": np.array([_same_sign(t.advantages_t, j.advantages_t) for t, j in kept]),
        "best_changes": np.array([_best_changes(t.rewards_g, j.rewards_g) for t, j in kept]),
    }
    figures["unranked"] = int(np.isnan(rows["best_changes"]).sum())
    for name, value_k in rows.items():
        figures |= _mean_and_spread(name, value_k, draws, seed)
    figures["pooled_cosine"] = _pooled(teacher, judge) if kept else None
    return figures


def _check(teacher: Sequence[GroupCredit], judge: Sequence[GroupCredit]) -> None:
    if len(teacher) != len(judge):
        raise InputError(f"{len(teacher)} groups on one side and {len(judge)} on the other; give the same groups")
    for k, (t, j) in enumerate(zip(teacher, judge, strict=True)):
        for what in ("advantages_t", "rewards_g"):
            a, b = getattr(t, what), getattr(j, what)
            if a.shape != b.shape or a.ndim != 1:
                raise InputError(
                    f"group {k}: {what} is {a.shape} on one side and {b.shape} on the other; they must match"
                )


def _cosine(a_t: FloatArray, b_t: FloatArray) -> float:
    lengths = float(np.linalg.norm(a_t) * np.linalg.norm(b_t))
    return float(a_t @ b_t) / lengths if lengths > ZERO**2 else 0.0


def _same_sign(a_t: FloatArray, b_t: FloatArray) -> float:
    credited = np.abs(a_t) > ZERO
    return float((np.sign(a_t) == np.where(np.abs(b_t) > ZERO, np.sign(b_t), 0))[credited].mean())


def _best_changes(a_g: FloatArray, b_g: FloatArray) -> float:
    """NaN where one side knows no reward at all."""
    if np.isnan(a_g).all() or np.isnan(b_g).all():
        return float("nan")
    best_a, best_b = (u_g >= np.nanmax(u_g) - ZERO for u_g in (a_g, b_g))
    return 1 - float(best_a[best_b].mean())


def _mean_and_spread(name: str, value_k: FloatArray, draws: int, seed: int) -> dict[str, Any]:
    known = value_k[~np.isnan(value_k)]
    if not len(known):
        return {name: None, f"{name}_std": None, f"{name}_ci": None}
    means = [weights @ known / len(known) for weights in draw_weights(len(known), draws, seed)]
    return {
        name: float(known.mean()),
        f"{name}_std": float(known.std(ddof=1)) if len(known) > 1 else None,
        f"{name}_ci": interval(np.concatenate(means)) if means and len(known) > 1 else None,
    }


def _pooled(teacher: Sequence[GroupCredit], judge: Sequence[GroupCredit]) -> float:
    a, b = (np.concatenate([group.advantages_t for group in side]) for side in (teacher, judge))
    return _cosine(a, b)
