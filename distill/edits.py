"""Counterfactual responses: one thing changed, so that both verdicts occur for every kind of criterion.

In: a response and a seeded `random.Random`. Out: the edited response, or None where there is nothing to change; and what
was changed, in words ("3 -> 8 at 41"). Edits work on the text alone, so they serve any English data.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from ..verifier.sentences import split_sentences, trim

RELATIONS = (
    *(("top", "bottom"), ("left", "right"), ("above", "below"), ("before", "after"), ("row", "column")),
    *(("larger", "smaller"), ("higher", "lower"), ("longer", "shorter"), ("older", "younger"), ("more", "less")),
    *(("largest", "smallest"), ("highest", "lowest"), ("most", "least"), ("maximum", "minimum"), ("inside", "outside")),
    *(("increases", "decreases"), ("increased", "decreased"), ("north", "south"), ("east", "west")),
)
COLOURS = ("red", "blue", "green", "yellow", "orange", "purple", "pink", "brown", "black", "white", "grey")
_OPPOSITE = {a: b for pair in RELATIONS for a, b in (pair, pair[::-1])}
_OPPOSITE |= {"bigger": "smaller", "taller": "shorter", "fewer": "more"}
_RELATION = re.compile(rf"(?i)\b({'|'.join(_OPPOSITE)})\b")
_COLOUR = re.compile(rf"(?i)\b({'|'.join(COLOURS)}|gray)\b")
_NUMBER = re.compile(r"(?<![\w.])(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?!\w|\.\d)")  # no part of "x2" or "1.2.3"
_VERB = "is|are|was|were|has|can|will|would|should|could|must|does|do|did"
_NEGATABLE = re.compile(rf"\b({_VERB})\b(?! not|['’]t)")
_NEGATED = re.compile(rf"\b({_VERB})(?: not|n['’]t)\b|\b(can)(?:not|['’]t)\b")
_NAME = re.compile(r"\b[A-Z]\w+(?:[ -][A-Z]\w+)*")
_QUOTED = re.compile(r'"([^"\n]{1,60})"|“([^”\n]{1,60})”')
_NOUN = re.compile(r"(?i:\bthe )([a-z]{3,})")
_NO_NOUNS = {*_OPPOSITE, *COLOURS, "same", "other", "first", "second", "third", "last", "only", "final", "correct"}
_PIECE = re.compile(r"\w+(?:[.,'’-]\w+)*|\s+|.", re.DOTALL)  # a word or number, white space, a sign


def change_number(rng: random.Random, text: str) -> str | None:
    """One digit of one number replaced by another, so that the number keeps its form: 12.50% may become 17.50%."""
    found = list(_NUMBER.finditer(text))
    return _replace(text, match := rng.choice(found), _other_number(rng, match[0])) if found else None


def _other_number(rng: random.Random, number: str) -> str:
    places = [at for at, sign in enumerate(number) if sign.isdigit()]
    if len(places) == 1:
        return str((int(number) + rng.randrange(1, 10)) % 10)
    at = rng.choice(places)
    leading = at == 0 and number[1] != "."  # no 0 before other digits
    return number[:at] + rng.choice([d for d in "0123456789"[leading:] if d != number[at]]) + number[at + 1 :]


def change_relation(rng: random.Random, text: str) -> str | None:
    """One relation turned round: top for bottom, left for right."""
    found = list(_RELATION.finditer(text))
    return _replace(text, match := rng.choice(found), _OPPOSITE[match[0].lower()]) if found else None


def change_colour(rng: random.Random, text: str) -> str | None:
    """One colour replaced by another."""
    found = list(_COLOUR.finditer(text))
    if not found:
        return None
    match = rng.choice(found)
    named = match[0].lower().replace("gray", "grey")
    return _replace(text, match, rng.choice([colour for colour in COLOURS if colour != named]))


def _replace(text: str, match: re.Match[str], new: str) -> str:
    """With `new` in place of the match, and its first letter as large."""
    if match[0][0].isupper():
        new = new.upper() if match[0].isupper() else new.capitalize()
    return text[: match.start()] + new + text[match.end() :]


def negate(rng: random.Random, text: str) -> str | None:
    """One sentence negated."""
    found = list(_NEGATABLE.finditer(text))
    if not found:
        return None
    match = rng.choice(found)
    return text[: match.end()] + " not" + text[match.end() :]


def affirm(rng: random.Random, text: str) -> str | None:
    """One negation taken away: "is not", "isn't" and "cannot" become "is" and "can"."""
    found = list(_NEGATED.finditer(text))
    if not found:
        return None
    match = rng.choice(found)
    return text[: match.start()] + (match[1] or match[2]) + text[match.end() :]


def swap_numbers(rng: random.Random, text: str) -> str | None:
    """Two different numbers exchanged."""
    spans = [match.span() for match in _NUMBER.finditer(text)]
    return _swap(rng, text, _pairs(text, spans, lambda number: float(number.replace(",", ""))))


def swap_entities(rng: random.Random, text: str) -> str | None:
    """Two different names, quoted words, or nouns behind "the" exchanged. A name is capitalised within a sentence."""
    names = [match.span() for match in _NAME.finditer(text)]
    starts = {trim(text, sentence)[0] for sentence in split_sentences(text)}
    names = [(a + len(text[a:b].split()[0]) + 1, b) if a in starts else (a, b) for a, b in names]  # "Here Anna Lee"
    names = [(a, b) for a, b in names if a < b]
    quoted = [match.span(1 if match[1] else 2) for match in _QUOTED.finditer(text)]
    nouns = [match.span(1) for match in _NOUN.finditer(text) if match[1] not in _NO_NOUNS]
    return _swap(rng, text, [pair for spans in (names, quoted, nouns) for pair in _pairs(text, spans, str.casefold)])


Span = tuple[int, int]


def _pairs(text: str, spans: Sequence[Span], meaning) -> list[tuple[Span, Span]]:
    """Every two of the spans that differ in meaning, in order."""
    values = [meaning(text[start:end]) for start, end in spans]
    return [(a, spans[j]) for i, a in enumerate(spans) for j in range(i + 1, len(spans)) if values[i] != values[j]]


def _swap(rng: random.Random, text: str, pairs: Sequence[tuple[Span, Span]]) -> str | None:
    if not pairs:
        return None
    (a, b), (c, d) = rng.choice(pairs)
    return text[:a] + text[c:d] + text[b:c] + text[a:b] + text[d:]


def drop_sentence(rng: random.Random, text: str) -> str | None:
    """One sentence left out."""
    sentences = split_sentences(text)
    if len(sentences) < 2:
        return None
    start, end = rng.choice(sentences)
    return text[:start] + text[end:]


def truncate(rng: random.Random, text: str) -> str | None:
    """Cut at a random character, as a length limit would."""
    return text[: rng.randrange(1, len(text))] if len(text) > 1 else None


EDITS = {
    "number": change_number,
    "relation": change_relation,
    "negation": negate,
    "swap": swap_numbers,
    "drop": drop_sentence,
    "truncation": truncate,
}
ALL_EDITS = {**EDITS, "colour": change_colour, "affirmation": affirm, "entity": swap_entities}


def counterfactual(rng: random.Random, text: str, kinds: Sequence[str] = tuple(EDITS)) -> tuple[str, str] | None:
    """(edited response, kind of edit) for a kind drawn at random among those that apply; None if none does. The default
    kinds are those from which the digits world's models were made."""
    for kind in rng.sample(kinds, len(kinds)):
        edited = ALL_EDITS[kind](rng, text)
        if edited is not None and edited != text:
            return edited, kind
    return None


def describe_change(before: str, after: str) -> str:
    """What an edit changed, and at which character of the original: "3 -> 8 at 41", "nothing -> not at 8". Several
    places are told one by one where no word came or went between them."""
    old, new = _PIECE.findall(before), _PIECE.findall(after)
    first = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    last = 0  # how many pieces are the same at the end
    while last < min(len(old), len(new)) - first and old[-1 - last] == new[-1 - last]:
        last += 1
    old_middle, new_middle = old[first : len(old) - last], new[first : len(new) - last]
    if len(old_middle) != len(new_middle):
        old_middle, new_middle = ["".join(old_middle)], ["".join(new_middle)]
    changes, at = [], sum(map(len, old[:first]))
    for a, b in zip(old_middle, new_middle, strict=True):
        if a != b:
            changes.append(f"{_shown(a)} -> {_shown(b)} at {at}")
        at += len(a)
    return ", ".join(changes)


def _shown(text: str) -> str:
    plain = " ".join(text.split())
    if len(plain) > 60:
        return f"{plain[:40]}... ({len(text)} characters)"
    return plain or (repr(text) if text else "nothing")
