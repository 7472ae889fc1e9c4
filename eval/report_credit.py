"""The credit of one group of responses: the object of `trainer.kept_groups`, checked, and as the page shows it.

In: arm, budget, example_id, question, criteria, and responses with their text, token_offsets, rewards, verdicts, and
`arms`: by name of an arm its advantages (one per token) and terms (name, added, first and last token, inclusive; those
of answer and format first). Out:
`Credit`, whose responses are cut, under each arm, into stretches of neighbouring tokens with the same number: the
advantage, and the rubric's part of it, which is the sum of all terms but answer and format.

    shade = |number| / the largest of its kind that is shown under any arm, 0..1
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from ..verifier.columns import parse_criteria
from ..verifier.errors import InputError
from ..verifier.schema import Criterion

PARTS, WHOLE = ("answer", "format"), "rubric"  # the terms before the rubric's, and the name of a rubric in one piece
HOW_TO_READ = (
    "Every token is coloured by its advantage. The number after a stretch is the advantage of each of its tokens; "
    "pointing at it shows which tokens these are. What all responses of a group have in common adds nothing. Colours "
    "mean the same under every arm."
)


@dataclass(frozen=True)
class Stretch:
    """Neighbouring tokens, `first` to `last`, with the same number."""

    text: str
    value: float  # the advantage, or the rubric's part of it
    shade: float  # 0..1
    first: int
    last: int


@dataclass(frozen=True)
class Decision:
    """One criterion of one response: the verdict, and what decided it."""

    criterion: Criterion
    verdict: bool | None
    sentence: str | None
    reading: str | None
    error: str | None  # why there is no verdict


@dataclass(frozen=True)
class Term:
    """What the answer, the format, the rubric as a whole or one criterion added, to tokens first..last."""

    name: str
    added: float
    first: int
    last: int


@dataclass(frozen=True)
class ArmCredit:
    """A response's credit under one arm: its terms by name, in `parts` answer, format and a rubric in one piece, in
    `criteria` those of criteria by their ids, which may be named like a part."""

    stretches: list[Stretch]  # of the same advantage
    rubric_stretches: list[Stretch]  # to which the rubric adds the same
    parts: dict[str, Term]
    criteria: dict[str, Term]


@dataclass(frozen=True)
class Response:
    number: int  # in its group, from 1
    text: str
    tokens: int
    arms: dict[str, ArmCredit]
    decisions: list[Decision]
    rewards: dict[str, float | None]
    vetoed: bool


@dataclass(frozen=True)
class Credit:
    arm: str  # the one that is shown at first
    arms: list[str]
    budget: str
    example_id: str
    question: str
    group: int  # how many responses it has
    largest: float  # the largest |advantage|
    largest_rubric: float  # the largest |sum of the rubric's terms|
    responses: list[Response]  # those that are shown


def parse_credit(raw: Any, path: Path, most: int = 4) -> Credit:
    """Checked, or an InputError that names the file and the key. Of a larger group `most` responses, from the one with
    the largest mean advantage to that with the smallest."""
    try:
        criteria = parse_criteria(_take(raw, "criteria", list))
        names = {key: str(_take(raw, key, str)) for key in ("arm", "budget", "example_id", "question")}
        checked = _checked(_take(raw, "responses", list), criteria, names["arm"])
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    chosen = _spread(checked, names["arm"], most)
    everything = [arm for number in chosen for arm in checked[number].arms.values()]
    largest = _largest(arm.advantages for arm in everything)
    of_rubric = _largest(arm.rubric for arm in everything)
    shown = [checked[number].response(number + 1, largest, of_rubric) for number in chosen]
    arms = list(checked[0].arms) if checked else [names["arm"]]
    return Credit(**names, arms=arms, group=len(checked), largest=largest, largest_rubric=of_rubric, responses=shown)


def _spread(checked: Sequence[_Parts], arm: str, most: int) -> list[int]:
    """The numbers of `most` responses, evenly spread from the best to the worst, in the order of the group."""

    def mean(number: int) -> float:
        advantages = checked[number].arms[arm].advantages
        return sum(advantages) / max(len(advantages), 1)

    order = sorted(range(len(checked)), key=lambda number: (-mean(number), number))
    if len(order) <= most:
        return sorted(order)
    return sorted(order[round(k * (len(order) - 1) / (most - 1))] for k in range(most))


def _checked(responses: Sequence[Any], criteria: tuple[Criterion, ...], arm: str) -> list[_Parts]:
    checked: list[_Parts] = []
    for number, response in enumerate(responses, 1):
        try:
            parts = _Parts.of(response, criteria)
            if arm not in parts.arms:
                raise InputError(f"it has no credit of arm {arm!r}, which the file names")
            if checked and parts.arms.keys() != checked[0].arms.keys():
                raise InputError("it has other arms than the first response")
        except InputError as error:
            raise InputError(f"response {number}: {error}") from None
        checked.append(parts)
    return checked


def _largest(rows: Iterable[list[float]]) -> float:
    return max((abs(value) for row in rows for value in row), default=0.0)


@dataclass(frozen=True)
class _Arm:
    advantages: list[float]
    rubric: list[float]
    parts: dict[str, Term]
    criteria: dict[str, Term]

    @classmethod
    def of(cls, raw: Any, tokens: int) -> _Arm:
        advantages = [_number(a, "advantages") for a in _take(raw, "advantages", list)]
        if len(advantages) != tokens:
            raise InputError(f"it has {tokens} tokens and {len(advantages)} advantages; each token needs one")
        terms = [_term(term) for term in _take(raw, "terms", list)]
        parts = {term.name: term for term in terms[: len(PARTS)]}
        if terms and tuple(parts) != PARTS:
            raise InputError(f"its terms must begin with {' and '.join(PARTS)}, as the trainer writes them")
        rest = terms[len(PARTS) :]
        rubric = [sum(t.added for t in rest if t.first <= token <= t.last) for token in range(tokens)]
        if [term.name for term in rest] == [WHOLE]:
            return cls(advantages, rubric, {**parts, WHOLE: rest[0]}, {})
        return cls(advantages, rubric, parts, {term.name: term for term in rest})


@dataclass(frozen=True)
class _Parts:
    """A response, checked, before its numbers are put beside those of the others."""

    texts: list[str]
    arms: dict[str, _Arm]
    decisions: list[Decision]
    rewards: dict[str, float | None]
    vetoed: bool

    @classmethod
    def of(cls, raw: Any, criteria: tuple[Criterion, ...]) -> _Parts:
        texts = _tokens(_take(raw, "response", str), _take(raw, "token_offsets", list))
        arms = {str(name): _Arm.of(arm, len(texts)) for name, arm in _take(raw, "arms", dict).items()}
        verdicts = _take(raw, "verdicts", dict)
        if unknown := sorted(verdicts.keys() - {criterion.id for criterion in criteria}):
            raise InputError(f"it has a verdict on {unknown[0]!r}, which is none of the criteria")
        rewards = _take(raw, "rewards", dict)
        known = {name: rewards.get(name) for name in ("answer", "format", "rubric")}
        return cls(
            texts,
            arms,
            [_decision(c, verdicts.get(c.id, {}), "".join(texts)) for c in criteria],
            {name: None if value is None else _number(value, name) for name, value in known.items()},
            bool(rewards.get("vetoed")),
        )

    def response(self, number: int, largest: float, largest_rubric: float) -> Response:
        arms = {
            name: ArmCredit(
                _stretches(self.texts, arm.advantages, largest),
                _stretches(self.texts, arm.rubric, largest_rubric),
                arm.parts,
                arm.criteria,
            )
            for name, arm in self.arms.items()
        }
        text = "".join(self.texts)
        return Response(number, text, len(self.texts), arms, self.decisions, self.rewards, self.vetoed)


def _tokens(text: str, offsets: Sequence[Any]) -> list[str]:
    """The text of each token; together they are the response."""
    for t, pair in enumerate(offsets):
        if not (isinstance(pair, list) and len(pair) == 2 and all(type(end) is int for end in pair)):
            raise InputError(f"token_offsets[{t}] is {str(pair)[:60]}; it must be two whole numbers [start, end]")
    texts = [text[start:end] for start, end in offsets]
    if any(start < 0 for start, _ in offsets) or "".join(texts) != text:
        raise InputError("the characters of its token_offsets are not those of its response, each once and in order")
    return texts


def _stretches(texts: list[str], values: list[float], largest: float) -> list[Stretch]:
    out = []
    for _, run in groupby(range(len(texts)), key=lambda t: round(values[t], 9)):
        own = list(run)
        value = values[own[0]]
        text = "".join(texts[own[0] : own[-1] + 1])
        out.append(Stretch(text, value, abs(value) / (largest or 1.0), own[0], own[-1]))
    return out


def _term(raw: Any) -> Term:
    first, last = (int(_take(raw, end, int)) for end in ("first", "last"))
    return Term(_take(raw, "name", str), _number(raw.get("added"), "added"), first, last)


def _decision(criterion: Criterion, raw: Any, text: str) -> Decision:
    if not isinstance(raw, dict):
        raise InputError(f"the verdict on {criterion.id!r} is {str(raw)[:60]!r}; it must be an object")
    verdict, span, reading = (raw.get(key) for key in ("verdict", "span", "reading"))
    if not isinstance(verdict, bool | None) or not isinstance(reading, str | None):
        raise InputError(f"the verdict on {criterion.id!r} is {verdict!r}, its reading {reading!r}; it cannot be used")
    sentence = None
    if span is not None:
        if not (isinstance(span, list) and len(span) == 2 and all(type(end) is int for end in span)):
            raise InputError(f"the span of {criterion.id!r} is {span!r}; it must be [start, end] or null")
        if not 0 <= span[0] <= span[1] <= len(text):
            raise InputError(f"the span of {criterion.id!r} is {span}, outside its response of {len(text)} characters")
        sentence = text[span[0] : span[1]].strip()
    error = raw.get("error")
    return Decision(criterion, verdict, sentence, reading or None, str(error) if error and verdict is None else None)


def _take(raw: Any, key: str, kind: type) -> Any:
    if not isinstance(raw, dict):
        raise InputError(f"{str(raw)[:60]!r} must be an object with the key {key!r}")
    value = raw.get(key)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise InputError(f"key {key!r} is {str(value)[:60]!r}; it must be of type {kind.__name__}")
    return value


def _number(value: Any, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InputError(f"key {key!r} holds {str(value)[:60]!r}; it must be a finite number")
    return float(value)
