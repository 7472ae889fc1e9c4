"""Does a criterion only repeat the final answer, which the answer reward judges already?

In: a criterion and its example. Out: a `Finding` where nothing is said but the answer, alone ("selects option 2") or
within the question's own words ("four people are waiting at the bus stop"); else None.
"""

from __future__ import annotations

import re
from collections import Counter

from ...verifier.schema import Criterion, Example
from .text import Finding, body_of, content_of, lead_of, speaks_of_answer, tokens_of
from .words import ANSWERS, CONCLUDES, CORRECT, MAY_SEE, SEES, STATES, UNITS

_SAYING = SEES | MAY_SEE | STATES | ANSWERS | CONCLUDES
_FRAME = UNITS | {"final", "correct", "correctly", "right", "answer", "option", "choice", "result", "arriv", "="}


def answer_only(criterion: Criterion, example: Example) -> Finding | None:
    """A pitfall, and what a response is not to say, is about a wrong answer: nothing is found in it."""
    body = body_of(criterion.text)
    if criterion.is_pitfall or lead_of(body).negated:
        return None
    said = set(content_of(body, _SAYING | {"response"})) - _FRAME
    answer = _answer_of(example, body)
    if speaks_of_answer(body):
        if not said and set(map(str.lower, tokens_of(body))) & (CORRECT | {"right"}):
            return _found("the answer, without a value", "the answer reward already says whether it is right")
        one_value = not example.answer and len(said) == 1 and bool(re.search(r"\d|\b[A-Z]\b", body[1:]))
        if said and (said <= answer or one_value):
            return _found("the answer alone", "it says the final answer and nothing else")
    return _question_answered(body, said, answer, example)


def _answer_of(example: Example, body: str) -> set[str]:
    """The stems of the answer, units aside; none where the body lacks a part ("3 3" is not answered by one 3)."""
    parts = Counter(content_of(example.answer or ""))
    if parts - Counter(content_of(body)):
        return set()
    return set(parts) - UNITS or set(parts)


def _question_answered(body: str, said: set[str], answer: set[str], example: Example) -> Finding | None:
    verb = lead_of(body).verb
    asked = set(content_of(example.question, _SAYING - CONCLUDES))
    if not answer or not answer <= said or not said <= asked | answer:
        return None
    if verb not in _SAYING and not (verb is None and (said == answer or re.match(r"the\b", body, re.IGNORECASE))):
        return None
    new = not answer <= asked  # where the question offers the answer ("red or blue?"), only a conclusion gives it
    return _found("the question answered", "question and answer are all that it says", new or verb in CONCLUDES)


def _found(rule: str, reason: str, sure: bool = True) -> Finding:
    return Finding("answer_only", rule, reason, sure)
