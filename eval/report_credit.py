"""The credit of a few responses to one picture: `credit.json`, checked, and as the page shows it.

In: the object of `credit.json`: arm, budget, example_id, question, image (relative to the run), criteria, and responses
with tokens, advantages (one per token), terms (name, added, first and last token, inclusive), rewards and verdicts.
Out: `Credit`, whose responses are cut into runs of neighbouring tokens with the same number: the advantage, and the
rubric's part of it, which is the sum of all terms but answer and format.

    shade = |number| / the largest of its kind that is shown, 0..1
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from ..verifier.columns import parse_criteria
from ..verifier.errors import InputError
from ..verifier.schema import Criterion


@dataclass(frozen=True)
class Token:
    text: str
    value: float  # the advantage, or the rubric's part of it
    shade: float  # 0..1


@dataclass(frozen=True)
class Decision:
    """One criterion of one response: the verdict, what decided it, and what it added to tokens first..last."""

    criterion: Criterion
    verdict: bool | None
    sentence: str | None
    reading: str | None
    added: float | None  # None: not credited
    first: int
    last: int


@dataclass(frozen=True)
class Term:
    """What the answer or the format added, to tokens first..last."""

    name: str
    added: float
    first: int
    last: int


@dataclass(frozen=True)
class Response:
    runs: list[list[Token]]  # neighbours with the same advantage
    rubric_runs: list[list[Token]]  # neighbours to which the rubric adds the same
    tokens: int
    terms: list[Term]  # those that are no criterion's
    decisions: list[Decision]
    rewards: dict[str, float | None]
    vetoed: bool


@dataclass(frozen=True)
class Credit:
    arm: str
    budget: str
    example_id: str
    question: str
    image: str  # relative to the run
    largest: float  # the largest |advantage|
    largest_rubric: float  # the largest |sum of the rubric's terms|
    responses: list[Response]


def parse_credit(raw: Any, path: Path) -> Credit:
    """Checked, or an InputError that names the file and the key."""
    try:
        criteria = parse_criteria(_take(raw, "criteria", list))
        responses = _take(raw, "responses", list)
        names = {key: str(_take(raw, key, str)) for key in ("arm", "budget", "example_id", "question", "image")}
        checked = []
        for number, response in enumerate(responses, 1):
            try:
                checked.append(_Parts.of(response, criteria))
            except InputError as error:
                raise InputError(f"response {number}: {error}") from None
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    largest, of_rubric = (
        max((abs(value) for parts in checked for value in values(parts)), default=0.0)
        for values in (lambda parts: parts.advantages, lambda parts: parts.rubric)
    )
    shown = [parts.response(largest, of_rubric) for parts in checked]
    return Credit(**names, largest=largest, largest_rubric=of_rubric, responses=shown)


@dataclass(frozen=True)
class _Parts:
    """A response, checked, before its numbers are put beside those of the others."""

    texts: list[str]
    advantages: list[float]
    rubric: list[float]
    terms: list[Term]
    decisions: list[Decision]
    rewards: dict[str, float | None]
    vetoed: bool

    @classmethod
    def of(cls, raw: Any, criteria: tuple[Criterion, ...]) -> _Parts:
        texts, advantages = (
            _take(raw, "tokens", list),
            [_number(a, "advantages") for a in _take(raw, "advantages", list)],
        )
        if len(texts) != len(advantages) or not all(isinstance(text, str) for text in texts):
            raise InputError(
                f"it has {len(texts)} tokens and {len(advantages)} advantages; each token, a string, needs one"
            )
        terms = {term.name: term for term in map(_term, _take(raw, "terms", list))}
        verdicts = {_take(v, "criterion_id", str): v for v in _take(raw, "verdicts", list)}
        ids = {criterion.id for criterion in criteria}
        if unknown := sorted(verdicts.keys() - ids):
            raise InputError(f"it has a verdict on {unknown[0]!r}, which is none of the criteria")
        rewards = _take(raw, "rewards", dict)
        known = {name: rewards.get(name) for name in ("answer", "format", "rubric")}
        return cls(
            texts,
            advantages,
            [_rubric_part(terms.values(), t) for t in range(len(texts))],
            [term for name, term in terms.items() if name not in ids],
            [_decision(c, verdicts.get(c.id, {}), terms.get(c.id), "".join(texts)) for c in criteria],
            {name: None if value is None else _number(value, name) for name, value in known.items()},
            bool(rewards.get("vetoed")),
        )

    def response(self, largest: float, largest_rubric: float) -> Response:
        return Response(
            _runs(self.texts, self.advantages, largest),
            _runs(self.texts, self.rubric, largest_rubric),
            len(self.texts),
            self.terms,
            self.decisions,
            self.rewards,
            self.vetoed,
        )


def _rubric_part(terms: Iterable[Term], token: int) -> float:
    return sum(t.added for t in terms if t.name not in ("answer", "format") and t.first <= token <= t.last)


def _runs(texts: list[str], values: list[float], largest: float) -> list[list[Token]]:
    tokens = [Token(text, value, abs(value) / (largest or 1.0)) for text, value in zip(texts, values, strict=True)]
    return [list(run) for _, run in groupby(tokens, key=lambda token: round(token.value, 9))]


def _term(raw: Any) -> Term:
    first, last = (int(_take(raw, end, int)) for end in ("first", "last"))
    return Term(_take(raw, "name", str), _number(raw.get("added"), "added"), first, last)


def _decision(criterion: Criterion, raw: Mapping[str, Any], term: Term | None, text: str) -> Decision:
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
    added, first, last = (None, 0, -1) if term is None else (term.added, term.first, term.last)
    return Decision(criterion, verdict, sentence, reading or None, added, first, last)


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
