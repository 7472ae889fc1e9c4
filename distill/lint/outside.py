"""Does a criterion refer to what its judge does not see: another task, the rubric, the reference, "as above"?

In: a criterion and its example. Out: a `Finding` with the phrase, or None. What the question itself says is inside
("exercise 3" where the question is about exercise 3).
"""

from __future__ import annotations

import re

from ...verifier.schema import Criterion, Example
from .text import Finding, body_of

_WHERE = r"(?:above|below|earlier|previously|before|beforehand)"
_BEFORE = r"(?:previous|earlier|preceding|prior)"
_END = r"(?=\s*(?:$|[.,;:)]))"  # "the source given below the chart" is in the picture
_TASK = r"(?:question|turn|message|prompt|conversation|exercise|problem|task|assignment|session|chat)s?"
_GIVEN = (
    r"(?:mentioned|described|stated|shown|noted|discussed|explained|defined|listed|given|seen|outlined|introduced|"
    r"named|specified|computed|calculated|found|used)"
)
_PATTERNS = {
    "rubric": (
        r"\b(?:rubrics?|graders?|annotators?)\b",
        r"\b(?:this|these|first|second|third|other|following|next|last|above|previous|preceding) "
        r"(?:\w+ )?criteri(?:on|a)\b"
        r"|\bcriteri(?:on|a) (?:\d|above|below|before)",
    ),
    "as mentioned": (
        rf"\b{_GIVEN} {_WHERE}{_END}|\b(?:see|cf\.?) {_WHERE}\b|\b(?:as|like|than) {_WHERE}{_END}",
        r"\bthe (?:above|aforementioned|foregoing)\b(?!-)",
        r"\b(?:earlier|previously|before) in (?:the|this|our) (?:conversation|chat|dialogue|session|task)\b",
    ),
    "step": (rf"\b{_BEFORE} (?:step|part|point|item)s?\b", rf"\b(?:step|part|item) \(?\w\)? {_WHERE}\b"),
    "another task": (
        rf"\b(?:{_BEFORE}|last|next|following|other|another) {_TASK}\b",
        rf"\b{_TASK} (?:before|preceding|above|below|after)\b(?: this\b|{_END})",
        r"\b(?:first|second|third|opening) (?:message|turn|prompt)\b",
        r"\b(?:question|exercise|problem|task) \d+\b|\bpart \([a-z]\)",
    ),
    "another response": (
        rf"\b(?:other|another|second|third|{_BEFORE}) (?:response|answer|rollout|completion|candidate|attempt)s?\b",
    ),
    "another picture": (
        rf"\b{_BEFORE} (?:image|picture|photo|figure|chart|table|document|example|diagram|invoice|page|case)s?\b",
        r"\bother (?:image|picture|photo) (?:set|pair)s?\b|\bexample given earlier\b",
    ),
    "reference": (
        r"\b(?:reference|sample|model|ideal|expected|gold|golden|official|provided) answers?\b|\banswer key\b",
        r"\b(?:reference|ideal|expected|gold|golden|official) responses?\b|\bground[- ]truth\b|\bgold label\b",
        r"\b(?:reference|model|official) solutions?\b",
        # what a chemist's sample solution does is in the picture
        r"\b(?:as in|like|with|match(?:es)?|follows|mirrors) the (?:sample|provided|expected) solution\b",
    ),
    "course": (r"\b(?:from|in|by) (?:the|our|your) (?:textbook|lectures?|syllabus|curriculum)\b",),
}
_COMPILED = {rule: [re.compile(p, re.IGNORECASE) for p in patterns] for rule, patterns in _PATTERNS.items()}


def outside(criterion: Criterion, example: Example) -> Finding | None:
    body, question = body_of(criterion.text), example.question.lower()
    for rule, patterns in _COMPILED.items():
        for match in (match for pattern in patterns if (match := pattern.search(body))):
            if match[0].lower() in question:
                continue
            many = rule == "another picture" and len(example.images) > 1
            return Finding("outside", rule, f"{match[0]!r} is nothing that image, question or response holds", not many)
    return None
