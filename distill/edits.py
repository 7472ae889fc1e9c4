"""Counterfactual responses: one thing changed, so that both verdicts occur for every kind of criterion.

In: a response and a seeded `random.Random`. Out: the edited response, or None where there is nothing to change. Edits
work on the text alone (numbers, relations, negations, swaps, truncation), so they serve any data.
"""

from __future__ import annotations

import random
import re

from ..verifier.sentences import split_sentences

RELATIONS = ("top", "bottom"), ("left", "right"), ("above", "below"), ("before", "after"), ("row", "column")
_OPPOSITE = {a: b for pair in RELATIONS for a, b in (pair, pair[::-1])}
_RELATION = re.compile(rf"\b({'|'.join(_OPPOSITE)})\b")
_NUMBER = re.compile(r"(?<![\w.])\d(?![\w]|\.\d)")
_NEGATABLE = re.compile(r"\b(is|are|was|were|has|can)\b(?! not)")


def change_number(rng: random.Random, text: str) -> str | None:
    """One single-digit number replaced by another."""
    found = list(_NUMBER.finditer(text))
    if not found:
        return None
    match = rng.choice(found)
    digit = (int(match[0]) + rng.randrange(1, 10)) % 10
    return f"{text[: match.start()]}{digit}{text[match.end() :]}"


def change_relation(rng: random.Random, text: str) -> str | None:
    """One relation turned round: top for bottom, left for right."""
    found = list(_RELATION.finditer(text))
    if not found:
        return None
    match = rng.choice(found)
    return text[: match.start()] + _OPPOSITE[match[0]] + text[match.end() :]


def negate(rng: random.Random, text: str) -> str | None:
    """One sentence negated."""
    found = list(_NEGATABLE.finditer(text))
    if not found:
        return None
    match = rng.choice(found)
    return text[: match.end()] + " not" + text[match.end() :]


def swap_numbers(rng: random.Random, text: str) -> str | None:
    """Two different numbers exchanged."""
    found = list(_NUMBER.finditer(text))
    pairs = [(a, b) for i, a in enumerate(found) for b in found[i + 1 :] if a[0] != b[0]]
    if not pairs:
        return None
    a, b = rng.choice(pairs)
    return text[: a.start()] + b[0] + text[a.end() : b.start()] + a[0] + text[b.end() :]


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


def counterfactual(rng: random.Random, text: str, kinds: tuple[str, ...] = tuple(EDITS)) -> tuple[str, str] | None:
    """(edited response, kind of edit) for a kind drawn at random among those that apply; None if none does."""
    for kind in rng.sample(kinds, len(kinds)):
        edited = EDITS[kind](rng, text)
        if edited is not None and edited != text:
            return edited, kind
    return None
