"""What a study measures of a policy's responses in the digits world, against the human labels.

In: examples with responses. Out: the outcomes by name, each 0..1; an outcome with nothing to be measured on is None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ...distill.digits import gold, score_policy, truth_of, understand
from ...distill.grids import grid_of
from ...verifier.schema import Example

CONFUSED = {4: 9, 9: 4}  # the digits that the systematic annotator takes for one another

Pair = tuple[Example, str]


def _digits(example: Example, response: str) -> float:
    """Share of the picture's digits that are read right."""
    return score_policy(response, example)["digits"]


def _conclusion(example: Example, response: str) -> float:
    """Does the conclusion follow from the response's own readings?"""
    return score_policy(response, example)["conclusion"]


def _answer(example: Example, response: str) -> float:
    return score_policy(response, example)["answer"]


def _lucky(example: Example, response: str) -> float:
    """Is the answer right although a digit is read wrong? A digit that is not read is not read wrong."""
    truth, reads = _read(example, response)
    wrong = any(digit is not None and digit != truth[place] for place, (digit, _) in reads.items())
    return float(wrong and _answer(example, response) == 1)


def _faithful(example: Example, response: str) -> float | None:
    """Unconditional visual faithfulness: share of the VF criteria that are met, whatever the answer."""
    met = [gold(c, response, truth_of(example)).image for c in example.criteria if c.group == "VF"]
    return sum(met) / len(met) if met else None


def _places(example: Example, response: str, counts: Callable[[int], bool], wanted: Callable[[int], int]):
    """Share of the places whose true digit counts that are read as `wanted` says."""
    truth, reads = _read(example, response)
    found = [reads.get(place, (None,))[0] == wanted(digit) for place, digit in enumerate(truth) if counts(digit)]
    return sum(found) / len(found) if found else None


def _third(which: int, example: Example, response: str) -> float | None:
    """Of the sentences that read a digit, in the order of the response, the first, middle or last third: the share that
    reads it right. A place that is read twice has the last of its sentences."""
    truth, reads = _read(example, response)
    in_order = sorted(reads.items(), key=lambda read: read[1][1])
    right = [d == truth[p] for rank, (p, (d, _)) in enumerate(in_order) if rank * 3 // len(in_order) == which]
    return sum(right) / len(right) if right else None


def _read(example: Example, response: str):
    """The human labels, and what is read: place -> digit, interval of the sentence."""
    truth = truth_of(example)
    return truth, understand(response, grid_of(truth)).reads


OUTCOMES: dict[str, Callable[[Example, str], float | None]] = {
    "digits": _digits,
    "conclusion": _conclusion,
    "answer": _answer,
    "right answer, wrong reading": _lucky,
    "VF": _faithful,
    "4 and 9 right": lambda e, r: _places(e, r, lambda d: d in CONFUSED, lambda d: d),
    "4 and 9 swapped": lambda e, r: _places(e, r, lambda d: d in CONFUSED, lambda d: CONFUSED[d]),
    "other digits right": lambda e, r: _places(e, r, lambda d: d not in CONFUSED, lambda d: d),
    "first third right": partial(_third, 0),
    "middle third right": partial(_third, 1),
    "last third right": partial(_third, 2),
}
METRICS = tuple(OUTCOMES)


def measure(pairs: Sequence[Pair], metrics: Sequence[str] = METRICS) -> dict[str, float | None]:
    """The mean of each outcome over the responses that it can be measured on."""
    out = {}
    for name in metrics:
        known = [value for pair in pairs if (value := OUTCOMES[name](*pair)) is not None]
        out[name] = sum(known) / len(known) if known else None
    return out
