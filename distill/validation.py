"""What a distillation says of its verifier on the held-out rollouts, beside the adapter.

In: the teacher's verdicts and the verifier's, whose P(yes) was made at temperature 1. Out: the figures of
`metrics.json` (the teacher's name, overall figures, `by_dimension`, each with its interval over examples) and the
verifier's own verdicts at its temperature, as a verdict table that any other can be compared with.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from ..eval.agreement import agree
from ..verifier.schema import Verdict

AFTER = "validation.jsonl"  # the verdicts of the finished verifier
TEACHER = "validation_teacher.jsonl"  # the teacher's on the same pairs
BEFORE = "before.jsonl"  # those of the verifier that the training went on from, if it did


def at_temperature(verdicts: Sequence[Verdict], temperature: float) -> list[Verdict]:
    """The same verdicts with P(yes) = sigmoid(margin / temperature), the margin taken from P(yes) at temperature 1."""
    return [
        row if row.p_yes is None else dataclasses.replace(row, p_yes=_tempered(row.p_yes, temperature))
        for row in verdicts
    ]


def _tempered(p_yes: float, temperature: float) -> float:
    """p^(1/T) / (p^(1/T) + (1 - p)^(1/T)), which is right at 0 and 1 too."""
    yes, no = math.pow(p_yes, 1 / temperature), math.pow(1 - p_yes, 1 / temperature)
    return yes / (yes + no)


def figures(teacher: Sequence[Verdict], own: Sequence[Verdict], temperature: float) -> dict[str, Any]:
    """The contents of `metrics.json`; `own` at the temperature."""
    found = agree(teacher, own, names=("the teacher", "the verifier"))
    who = ", ".join(sorted({row.judge for row in teacher}))
    return {"teacher": who, "temperature": temperature, **found["overall"], "by_dimension": found["by_dimension"]}
