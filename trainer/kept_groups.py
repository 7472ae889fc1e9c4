"""Whole groups of a GRPO run, kept to be looked at: a few of the run, evenly spread over its steps.

In: one group's example, responses, verdicts, rewards, and its credit under several arms. Out: an object that
`claimwise credit` reads and the report shows; in a run's folder one file for each group kept:

    groups/step00012.json    the first group of step 12 (steps count from 0)

    {"step", "arm", "budget", "pitfalls", "example_id", "question", "criteria": [...],
     "responses": [{"rollout_id", "response", "token_offsets", "answer", "format",
                    "verdicts": {criterion id: {"verdict", "span", "p_yes", "reading", "error"}},
                    "rewards": {"answer", "format", "rubric", "vetoed"},       after the veto
                    "arms": {arm: {"advantages": [one per token], "terms": [{"name", "added", "first", "last"}]}}}]}
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..verifier.rundir import write_atomic
from ..verifier.schema import Example, Rollout, Verdict
from .credit import GroupCredit, ScoredResponse

FOLDER = "groups"
MOST, LEAST_APART = 8, 4  # groups kept of a run, and steps between two of them
DIGITS = 6  # behind the point, of what is written


@dataclass(frozen=True)
class JudgedResponse:
    """One response of a group: its text, a verdict per criterion, and what its credit is made of."""

    rollout: Rollout
    verdicts: Sequence[Verdict]
    scored: ScoredResponse


def describe_group(
    example: Example, group: Sequence[JudgedResponse], arm: str, budget: str, credits: Mapping[str, GroupCredit]
) -> dict[str, Any]:
    """The object as JSON takes it. `credits` by arm: that of `arm` and of whatever else is to be compared with it; their
    advantages are those that are shown."""
    return {
        "arm": arm,
        "budget": budget,
        "example_id": example.example_id,
        "question": example.question,
        "criteria": [asdict(criterion) for criterion in example.criteria],
        "responses": [_response(g, one, arm, credits) for g, one in enumerate(group)],
    }


def _response(g: int, one: JudgedResponse, arm: str, credits: Mapping[str, GroupCredit]) -> dict[str, Any]:
    return {
        "rollout_id": one.rollout.rollout_id,
        "response": one.rollout.response,
        "token_offsets": np.asarray(one.scored.token_offsets, dtype=int).reshape(-1, 2).tolist(),
        "answer": one.scored.answer,
        "format": one.scored.format,
        "verdicts": {v.criterion_id: _verdict(v) for v in one.verdicts},
        "rewards": asdict(credits[arm].rewards[g]),
        "arms": {name: _credit(g, credit) for name, credit in credits.items()},
    }


def _verdict(v: Verdict) -> dict[str, Any]:
    return {
        "verdict": v.verdict,
        "span": None if v.span is None else list(v.span),
        "p_yes": v.p_yes,
        "reading": v.reading,
        "error": v.error,
    }


def _credit(g: int, credit: GroupCredit) -> dict[str, Any]:
    return {
        "advantages": [round(float(a), DIGITS) for a in credit.advantages[g]],
        "terms": [
            {
                "name": term.name,
                "added": round(float(term.added_g[g]) / credit.divisor, DIGITS),
                "first": int(term.first_g[g]),
                "last": int(term.last_g[g]),
            }
            for term in credit.terms
        ],
    }


class KeptGroups:
    """The files of a run. A run that is gone on with takes some steps again: their groups are written anew."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._steps: set[int] | None = None  # of the files; None before the first step of this process

    def wanted(self, step: int, steps: int) -> bool:
        """Whether a group of this step of `steps` is to be kept."""
        if self._steps is None:
            self._steps = self._without_later(step)
        every = max(LEAST_APART, math.ceil(steps / MOST))
        return step // every not in {kept // every for kept in self._steps}

    def _without_later(self, step: int) -> set[int]:
        """The steps on file, once those that are taken again are gone."""
        found = {int(path.stem.removeprefix("step")): path for path in self.folder.glob("step*.json")}
        for kept, path in found.items():
            if kept >= step:
                path.unlink()
        return {kept for kept in found if kept < step}

    def write(self, step: int, group: Mapping[str, Any]) -> None:
        write_atomic(self.folder / f"step{step:05d}.json", json.dumps({"step": step, **group}) + "\n")
        self._steps = (self._steps or set()) | {step}
