"""What a pair of verdicts is broken down by, besides its dimension.

In: the examples and rollouts that were judged. Out: per name a function from a verdict to its label, for `agree(by=...)`.

    label, source, difficulty   of the criterion and of the example
    length                      of the response, in quarters of the responses judged, in characters
    policy                      whose response it is
    slice                       how the response came about: as sampled, or the kind of edit (a counterfactual, an attack)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..verifier.errors import InputError
from ..verifier.schema import Example, Rollout, Verdict
from .pairs import check_example

Label = Callable[[Verdict], str | None]
OF_EXAMPLES = ("label", "source", "difficulty")
OF_ROLLOUTS = ("length", "policy", "slice")
SLICES = (*OF_EXAMPLES, *OF_ROLLOUTS)


def labels_by(
    wanted: Sequence[str], examples: Sequence[Example] | None = None, rollouts: Sequence[Rollout] | None = None
) -> dict[str, Label]:
    """Raises InputError for an unknown name, for one whose table is not given, and, when called, for a verdict that the
    tables do not know."""
    out: dict[str, Label] = {}
    for name in wanted:
        if name not in SLICES:
            raise InputError(f"there is no breakdown by {name!r}; it must be one of dimension, {', '.join(SLICES)}")
        if name in OF_EXAMPLES:
            out[name] = _of_example(name, _given(examples, "examples", name))
        else:
            out[name] = _of_rollout(name, _given(rollouts, "rollouts", name))
    return out


def _given(table: Sequence | None, kind: str, name: str) -> Sequence:
    if table is None:
        raise InputError(f"a breakdown by {name} needs the {kind} table; give --{kind}")
    return table


def _of_example(name: str, examples: Sequence[Example]) -> Label:
    if name == "label":
        labels = {(e.example_id, c.id): c.label for e in examples for c in e.criteria}
        return lambda v: _find(labels, (v.example_id, v.criterion_id), "examples", "criterion")
    values = {example.example_id: getattr(example, name) for example in examples}
    return lambda v: _find(values, v.example_id, "examples", "example")


def _of_rollout(name: str, rollouts: Sequence[Rollout]) -> Label:
    label_of: Callable[[Rollout], str] = {
        "length": _quarters([len(rollout.response) for rollout in rollouts]),
        "policy": lambda rollout: rollout.policy,
        "slice": _slice,
    }[name]
    by_id = {rollout.rollout_id: rollout for rollout in rollouts}

    def label(verdict: Verdict) -> str:
        rollout = _find(by_id, verdict.rollout_id, "rollouts", "rollout")
        check_example(verdict, rollout)
        return label_of(rollout)

    return label


def _slice(rollout: Rollout) -> str:
    """ "as sampled", or the kind of edit without the criterion that it aims at: "number", "attack echo"."""
    return "as sampled" if rollout.edit is None else rollout.edit.partition(" at ")[0]


def _quarters(lengths: Sequence[int]) -> Callable[[Rollout], str]:
    """Names the quarter that a response's length falls in: "0-61 characters"."""
    edges = np.unique(np.quantile(lengths, [0.25, 0.5, 0.75, 1]).astype(int)) if lengths else np.array([0])
    firsts = [0, *(edges[:-1] + 1)]
    names = [f"{first}-{last} characters" for first, last in zip(firsts, edges, strict=True)]
    return lambda rollout: names[int(np.searchsorted(edges, len(rollout.response)))]


def _find(table: dict, key: object, kind: str, what: str) -> Any:
    if key not in table:
        raise InputError(f"the {kind} table has no {what} {key!r}; give the {kind} that the verdicts were made on")
    return table[key]
