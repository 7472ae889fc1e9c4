"""Where a judge's quote stands in a response.

In: the response and the quote. Out: an Alignment, whose offsets are characters of the response as given, half open. The
quote is looked for exactly, then casefolded with white space folded, then by rapidfuzz's best partial match; the first
occurrence counts. The sentences that it touches are the deciding span.

    align("It is 3. So 3 wins.", "IT  IS 3").text == "It is 3"
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .sentences import split_sentences, trim, widen

FUZZY_CUTOFF = 60.0  # of 100; rapidfuzz.fuzz.partial_ratio_alignment's scale


@dataclass(frozen=True)
class Alignment:
    """`start`, `end`, `text`: the quote in the response; `sentence_start`, `sentence_end`: widened to sentences.

    `score` is 100 for exact and casefold, rapidfuzz's for fuzzy. All are None where `match` is "none".
    """

    match: Literal["exact", "casefold", "fuzzy", "none"]
    start: int | None = None
    end: int | None = None
    text: str | None = None
    score: float | None = None
    sentence_start: int | None = None
    sentence_end: int | None = None


def align(response: str, quote: str) -> Alignment:
    """The quote's first occurrence in the response; "none" for an empty quote, one of white space, or no match."""
    if not quote.strip():
        return Alignment("none")
    start = response.find(quote)
    if start >= 0:
        return _found(response, "exact", (start, start + len(quote)), 100.0)
    span = _casefold_span(response, quote)
    if span is not None:
        return _found(response, "casefold", span, 100.0)
    return _fuzzy(response, quote)


def _found(
    response: str, match: Literal["exact", "casefold", "fuzzy"], span: tuple[int, int], score: float
) -> Alignment:
    start, end = span
    text = response[start:end]
    # White space belongs to the sentence before it, which a quote that begins with a space does not mean.
    inner = (start + len(text) - len(text.lstrip()), end - len(text) + len(text.rstrip()))
    sentence_start, sentence_end = trim(response, widen(split_sentences(response), inner))
    return Alignment(match, start, end, text, score, sentence_start, sentence_end)


def _casefold_span(response: str, quote: str) -> tuple[int, int] | None:
    folded, origin = _fold(response)
    wanted = _fold(quote.strip())[0]
    at = folded.find(wanted)
    return None if at < 0 else (origin[at][0], origin[at + len(wanted) - 1][1])


def _fold(text: str) -> tuple[str, list[tuple[int, int]]]:
    """The text casefolded, each run of white space one space; and for each folded character the interval it came from
    (casefolding may lengthen: one "ß" gives "ss", one "ﬁ" gives "fi")."""
    folded: list[str] = []
    origin: list[tuple[int, int]] = []
    for i, char in enumerate(text):
        if not char.isspace():
            parts = char.casefold()
            folded.extend(parts)
            origin.extend([(i, i + 1)] * len(parts))
        elif i and text[i - 1].isspace():
            origin[-1] = (origin[-1][0], i + 1)
        else:
            folded.append(" ")
            origin.append((i, i + 1))
    return "".join(folded), origin


def _fuzzy(response: str, quote: str) -> Alignment:
    from rapidfuzz.fuzz import partial_ratio_alignment

    best = partial_ratio_alignment(quote, response, score_cutoff=FUZZY_CUTOFF)
    if best is None or best.dest_start == best.dest_end:
        return Alignment("none")
    return _found(response, "fuzzy", (best.dest_start, best.dest_end), best.score)
