"""A criterion's text as the lint's rules read it.

In: the text of a criterion, perhaps with RaR's prefix ("Essential Criteria: ..."). Out: its body, its tokens, the verb
that it begins with, and its content: the stemmed words that are left without function words and rubric talk.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from .words import (
    ANSWERS,
    FUNCTION,
    IRREGULAR,
    MAY_SEE,
    NUMBER_WORDS,
    SEES,
    STATES,
    SYNONYMS,
    VERB_FORMS,
)

NUMBER = r"[$€£]?\d[\d,]*(?:\.\d+)?"
_PREFIX = re.compile(r"\s*(essential|important|optional|pitfall)\s+criteri(?:a|on)\s*:\s*", re.IGNORECASE)
_SUBJECT = re.compile(
    r"(?:the\s+)?(?:response|assistant|it)\s+(?:(?:should|must|needs to|has to|ought to)\s+)?(?=\w)|should\s+|must\s+",
    re.IGNORECASE,
)
_TOKEN = re.compile(rf"(?:(?<![\w)])[-−])?{NUMBER}|[^\W\d_]+(?:['’][^\W\d_]+)?|[%°=<>≤≥]|\+|(?<=\s)[-–/](?=\s)")
_POSSESSIVE, _THOUSANDS, _NUMERIC = re.compile(r"['’]s?$"), re.compile(r"(?<=\d),(?=\d{3})"), "0123456789$€£-−"
_SAYING = SEES | MAY_SEE | STATES | {"response", "write", "show", "demonstrate"}


_EVEN = re.compile(r"\bnext to\b|\b[ap]\.m\.", re.IGNORECASE)


def _evened(match: re.Match[str]) -> str:
    return "beside" if len(match[0]) > 4 else match[0].replace(".", "")


@dataclass(frozen=True)
class Finding:
    """What a rule says of a criterion. `sure` is False where the rules cannot decide; `better` is the dimension that
    the text speaks for, where that is clear."""

    kind: str
    rule: str
    reason: str
    sure: bool = True
    better: str | None = None


class Lead(NamedTuple):
    """How a body begins: its verb in base form (None where it is no known verb), and the adverbs before it."""

    verb: str | None
    adverbs: tuple[str, ...]
    negated: bool


def prefix_label(text: str) -> str | None:
    """The label that the text's own prefix names: "Pitfall Criteria: ..." is PITFALL."""
    match = _PREFIX.match(text)
    return match[1].upper() if match else None


@lru_cache(4096)  # every rule asks
def body_of(text: str) -> str:
    """The text without its prefix and without "The response (should)"."""
    body = text[match.end() :] if (match := _PREFIX.match(text)) else text
    return body[match.end() :].strip() if (match := _SUBJECT.match(body.lstrip())) else body.strip()


@lru_cache(4096)
def tokens_of(text: str) -> tuple[str, ...]:
    """Words, numbers and relation signs, case kept; thousands separators and possessives are gone."""
    found = (_POSSESSIVE.sub("", token.rstrip(",")) for token in _TOKEN.findall(text))
    return tuple(_THOUSANDS.sub("", token) if token[0] in _NUMERIC else token for token in found if token)


_NEGATION = re.compile(
    r"(?:does not|doesn['’]t|do not|don['’]t|must not|should not|is not|never|not|no|avoids?|refrains? from)\b\s*",
    re.IGNORECASE,
)


@lru_cache(4096)
def lead_of(body: str) -> Lead:
    match = _NEGATION.match(body)
    words = list(tokens_of(body[match.end() :] if match else body)[:4])
    adverbs = []
    while words and (words[0].lower().endswith("ly") or words[0].lower() in ("also", "first", "then", "wrong")):
        adverbs.append(words.pop(0).lower())
    return Lead(VERB_FORMS.get(words[0].lower()) if words else None, tuple(adverbs), bool(match))


_ANSWER = re.compile(
    r"\b(?:final|correct|right)\s+(?:final\s+)?(?:answer|result|option|choice)\b|\b(?:the|its|an?)\s+answer\b"
    r"|\banswer\s+is\b|\b(?:option|choice)\s+\(?[A-Za-z0-9]\)?(?!\w)",
    re.IGNORECASE,
)


def speaks_of_answer(body: str) -> bool:
    return bool(_ANSWER.search(body)) or lead_of(body).verb in ANSWERS


@lru_cache(65536)
def stem(word: str) -> str:
    """A word without its endings, roughly: enough to know "bars" for "bar" and "subtracting" for "subtracts"."""
    word = word.lower()
    word = NUMBER_WORDS.get(word, word)
    word = IRREGULAR.get(word, VERB_FORMS.get(word, word))
    word = SYNONYMS.get(word, word)
    for ending, instead, least in (("ies", "y", 5), ("ying", "ie", 5), ("ing", "", 6), ("ed", "", 5), ("es", "e", 5)):
        if word.endswith(ending) and len(word) >= least and word not in VERB_FORMS:
            word = word[: -len(ending)] + instead
            break
    else:
        if word.endswith("s") and not word.endswith(("ss", "us", "is")) and len(word) > 3:
            word = word[:-1]
    word = SYNONYMS.get(word, word)
    return word.rstrip("e") if len(word) > 4 else word


def content_of(text: str, drop: frozenset[str] = frozenset(_SAYING)) -> list[str]:
    """The stems of the words that carry the fact, in order: without function words and verbs of saying and seeing."""
    kept = []
    for token in tokens_of(_EVEN.sub(_evened, body_of(text))):
        lower = token.lower()
        is_letter = len(token) == 1 and token.isupper()
        base = VERB_FORMS.get(lower, lower)
        if is_letter or (lower not in FUNCTION and SYNONYMS.get(base, base) not in drop):
            kept.append(token.lower() if is_letter else stem(token))
    return kept
