"""The three tables' rows: examples, rollouts and verdicts (schema version 1).

One row type per table, plain frozen dataclasses, checked when made. A verdict says yes (True), no (False) or is missing
(None, with the reason in `error`); missing is never 0 and never 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from .errors import InputError

if TYPE_CHECKING:
    from PIL.Image import Image

SCHEMA_VERSION = 1
DIMENSIONS = ("VF", "RC", "IF")  # visual faithfulness, reasoning consistency, instruction following
GROUPS = (*DIMENSIONS, "PITFALL")  # how figures are broken down: a pitfall counts as one, whatever its dimension
LABELS = ("ESSENTIAL", "IMPORTANT", "OPTIONAL", "PITFALL")
MODES = ("text", "image")
MATCHES = ("pointer", "exact", "casefold", "fuzzy", "none")
Mode = Literal["text", "image"]


def _one_of(value: object, allowed: Sequence[str | None], what: str) -> None:
    if value not in allowed:
        raise InputError(f"{what} is {value!r}; it must be one of {', '.join(map(str, allowed))}")


@dataclass(frozen=True)
class Criterion:
    """One atomic criterion of a rubric. A PITFALL names a failure: yes means that the response commits it, unless
    `yes_means` is "avoided"."""

    id: str
    text: str
    title: str | None = None
    dimension: str | None = None
    label: str | None = None
    weight: float = 1.0
    yes_means: str = "committed"

    def __post_init__(self) -> None:
        _one_of(self.dimension, (*DIMENSIONS, None), f"the dimension of criterion {self.id!r}")
        _one_of(self.label, (*LABELS, None), f"the label of criterion {self.id!r}")
        _one_of(self.yes_means, ("committed", "avoided"), f"yes_means of criterion {self.id!r}")
        if not math.isfinite(self.weight):
            raise InputError(f"the weight of criterion {self.id!r} is {self.weight}; it must be a finite number")

    @property
    def is_pitfall(self) -> bool:
        return self.label == "PITFALL"

    @property
    def group(self) -> str | None:
        """VF, RC, IF or PITFALL: the row of a table of figures that this criterion counts in."""
        return "PITFALL" if self.is_pitfall else self.dimension


@dataclass(frozen=True)
class Example:
    """An image (or several, or none), a question, and the rubric of J criteria. Images are PIL images or paths."""

    example_id: str
    question: str
    criteria: tuple[Criterion, ...]
    images: tuple[Image | Path, ...] = ()
    reference: str | None = None
    answer: str | None = None
    source: str | None = None
    difficulty: str | None = None

    def __post_init__(self) -> None:
        ids = [criterion.id for criterion in self.criteria]
        if len(set(ids)) != len(ids):
            raise InputError(f"example {self.example_id!r} names a criterion twice; criterion ids must differ")


@dataclass(frozen=True)
class Rollout:
    """One response to an example. `edit` says what a counterfactual changed; it is None for a response as sampled."""

    rollout_id: str
    example_id: str
    response: str
    policy: str
    sample_index: int = 0
    finish_reason: str | None = None
    edit: str | None = None


@dataclass(frozen=True)
class Verdict:
    """One judge's answer to one criterion of one rollout.

    `p_yes` is in 0..1; the span is in characters of the response, half open; `dimension` is the criterion's group (VF,
    RC, IF, PITFALL), kept here so that two tables can be compared without the examples.
    """

    example_id: str
    rollout_id: str
    criterion_id: str
    judge: str
    mode: Mode
    verdict: bool | None
    p_yes: float | None = None
    span_start: int | None = None
    span_end: int | None = None
    match: str = "none"
    reading: str | None = None
    error: str | None = None
    prompt_hash: str | None = None
    created_at: str | None = None
    dimension: str | None = None

    def __post_init__(self) -> None:
        where = f"of rollout {self.rollout_id!r}, criterion {self.criterion_id!r}"
        _one_of(self.mode, MODES, f"the mode {where}")
        _one_of(self.match, MATCHES, f"the match {where}")
        _one_of(self.dimension, (*GROUPS, None), f"the dimension {where}")
        if self.verdict not in (True, False, None) or type(self.verdict) in (int, float):
            raise InputError(f"the verdict {where} is {self.verdict!r}; it must be true, false or null")
        if self.verdict is None and not self.error:
            raise InputError(f"the verdict {where} is null but `error` is empty; a missing verdict needs its reason")
        if self.p_yes is not None and not 0 <= self.p_yes <= 1:
            raise InputError(f"p_yes {where} is {self.p_yes}; it must lie in 0..1")
        if (self.span_start is None) != (self.span_end is None):
            raise InputError(f"the span {where} has only one end; give span_start and span_end, or neither")
        if self.span_start is not None and self.span_end is not None and not 0 <= self.span_start <= self.span_end:
            raise InputError(f"the span {where} is {self.span_start}..{self.span_end}; it must be 0 <= start <= end")

    @property
    def key(self) -> tuple[str, str]:
        return self.rollout_id, self.criterion_id

    @property
    def span(self) -> tuple[int, int] | None:
        return None if self.span_start is None or self.span_end is None else (self.span_start, self.span_end)


class Judge(Protocol):
    """Whoever answers criteria: the verifier, the oracle, a teacher behind a server."""

    name: str
    mode: Mode

    def judge(self, items: Sequence[tuple[Example, Rollout]]) -> list[Verdict]:
        """All criteria of each item, in order: items first, then the example's criteria."""
        ...
