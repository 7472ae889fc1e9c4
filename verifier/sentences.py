"""A response, split into at most 52 labelled sentences without losing a character.

In: any Unicode text. Out: half-open character intervals that tile it. Each sentence carries a label (A..Z, a..z) by
which a judge points at it, so that a deciding span is verbatim text of the response by construction.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence

LABELS = tuple(string.ascii_uppercase + string.ascii_lowercase)
MAX_SENTENCES = len(LABELS)  # 52
NO_SENTENCE = "-"

# A sentence ends after a full stop with white space behind it (so not within 3.5), after a full stop of Chinese or
# Japanese, or after a line break; the white space stays with the sentence it ends.
# Looking behind and "++" keep a long run of stops ("......") linear.
_END = re.compile(r"""(?<![.!?…])[.!?…]++["'”’)\]]*+\s+|[。！？]+["'”’」』）]*\s*|[\r\n]\s*""")


def split_sentences(text: str) -> list[tuple[int, int]]:
    """Intervals (start, end) that tile `text`; at most 52, neighbours merged evenly where there would be more."""
    ends: list[int] = []
    for match in _END.finditer(text):
        last = ends[-1] if ends else 0
        if text[last : match.end()].strip():  # a line break behind nothing is no sentence of its own
            ends.append(match.end())
    if text and (not ends or ends[-1] < len(text)):
        ends.append(len(text))
    if len(ends) > MAX_SENTENCES:
        ends = [ends[(i + 1) * len(ends) // MAX_SENTENCES - 1] for i in range(MAX_SENTENCES)]
    return list(zip([0, *ends][:-1], ends, strict=True))


def widen(sentences: Sequence[tuple[int, int]], span: tuple[int, int]) -> tuple[int, int]:
    """The span from the start of the first to the end of the last sentence that it touches."""
    touched = [s for s in sentences if s[0] < span[1] and span[0] < s[1]]
    if not touched:  # an empty span touches the sentence it lies in
        touched = [s for s in sentences if s[0] <= span[0] < s[1]] or list(sentences[-1:])
    return touched[0][0], touched[-1][1]


def trim(text: str, span: tuple[int, int]) -> tuple[int, int]:
    """The span without the white space around it: the token behind a sentence may begin with that space, and is not
    part of what the sentence says. White space alone stays as it is."""
    inside = text[span[0] : span[1]]
    if not inside.strip():
        return span
    return span[0] + len(inside) - len(inside.lstrip()), span[1] - len(inside) + len(inside.rstrip())


def label_of(sentences: Sequence[tuple[int, int]], span: tuple[int, int] | None) -> str:
    """The label of the last sentence that the span touches; "-" without a span."""
    if span is None or not sentences:
        return NO_SENTENCE
    end = widen(sentences, span)[1]
    return LABELS[[s[1] for s in sentences].index(end)]
