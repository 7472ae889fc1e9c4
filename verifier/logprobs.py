"""P(yes) of a written verdict, from the log-probabilities that a chat server gives for its tokens.

In: the answer's text, the place where a verdict's value begins, and `choices[0].logprobs.content`. Out: the probability
of yes among yes and no at the token that decides, or None: a server that does not list both is not guessed for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .quoting import yes_no


def p_yes(answer: str, at: int | None, content: Sequence[Any] | None) -> float | None:
    """P(yes) / (P(yes) + P(no)) in 0..1, where one token begins with or just before the value at `at` and is a whole yes
    or no, and its `top_logprobs` hold both; spellings of either are added up. Never raises."""
    if at is None or not content:
        return None
    try:
        found = _token_at(answer, at, content)
        return None if found is None else _share(*found)
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError):
        return None  # a server's own idea of the format


def _token_at(answer: str, at: int, content: Sequence[Any]) -> tuple[Any, bytes] | None:
    """The token in which the value begins, and what of the token comes before the value."""
    pieces = [_bytes(token) for token in content]
    whole = b"".join(pieces)
    text = answer.encode("utf-8", "replace")
    first = whole.rfind(text)  # a server may leave thinking before it, or an end token behind it, out of the text
    if first < 0 or not text:
        return None
    place, begin = first + len(answer[:at].encode("utf-8", "replace")), 0
    place += len(answer[at:]) > 0 and answer[at] == '"'  # the value's own quotation mark
    for token, piece in zip(content, pieces, strict=True):
        if begin <= place < begin + len(piece):
            return token, piece[: place - begin]
        begin += len(piece)
    return None


def _bytes(token: Any) -> bytes:
    return bytes(token["bytes"]) if token.get("bytes") is not None else token["token"].encode("utf-8", "replace")


def _share(token: Any, before: bytes) -> float | None:
    """`before` is punctuation that the token has in front of the word; other candidates count with the same one."""
    if _word(token, before) is None:
        return None
    mass: dict[bool, float] = {}
    for candidate in token["top_logprobs"]:
        word = _word(candidate, before)
        if word is not None:
            mass[word] = mass.get(word, 0.0) + math.exp(min(float(candidate["logprob"]), 0.0))
    total = sum(mass.values())
    return mass[True] / total if len(mass) == 2 and total > 0 and math.isfinite(total) else None


def _word(token: Any, before: bytes) -> bool | None:
    piece = _bytes(token)
    return yes_no(piece[len(before) :].decode("utf-8", "replace")) if piece.startswith(before) else None
