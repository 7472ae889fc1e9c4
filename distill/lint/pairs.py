"""Near duplicates among the criteria of one example.

In: the example's criteria. Out: for each later criterion that says what an earlier one says, a `Finding` and the
earlier one's id. Two criteria say the same when their content words match, inflected or not, and nothing that could
make a difference (a number, a name, a colour, a direction, a negation, the order in a comparison) is in one alone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from rapidfuzz import fuzz
from rapidfuzz.distance import Indel

from ...verifier.schema import Criterion
from .text import Finding, body_of, content_of, lead_of, stem, tokens_of
from .words import DECISIVE, OPPOSED, ORDERED, words_of

SAME_TEXT = "same text"
ALIKE = 88  # rapidfuzz's token_sort_ratio, 0..100, from which two texts are worth a doubt
SAME_WORD = 85  # and its ratio from which two stems are one word
SAME_ORDER = 0.8  # share of the words in the same order, where order carries the meaning


class Reading(NamedTuple):
    criterion: Criterion
    same: str  # the text as it is compared for an exact copy
    content: list[str]
    guarded: frozenset[str]  # stems that make a difference
    decisive: frozenset[str]  # function words that do
    names: list[str]  # in order, as the numbers
    numbers: list[str]
    ordered: bool  # the order of its words carries meaning
    paired: bool  # two names joined by "and", whose order does not
    negated: bool


_OPPOSED = frozenset(map(stem, OPPOSED))
_PAIR = re.compile(r"\b([A-Z]\w*) (?:and|or|with) ([A-Z]\w*)\b")
_LIGHT = frozenset(map(stem, words_of("full whole entire make form constitute take equal = colour value fact")))


def read(criterion: Criterion) -> Reading:
    body = body_of(criterion.text)
    tokens = tokens_of(body)
    names = [stem(t) for t in tokens[1:] if t[0].isupper() or (len(t) == 1 and t.isalpha() and t != "a")]
    content = [word for word in content_of(body) if word not in _LIGHT]
    numbers = [word for word in content if word[0].isdigit()]
    guarded = set(names) | {word for word in content if word in _OPPOSED or not word.isalpha()}
    return Reading(
        criterion,
        exact_text(criterion),
        content,
        frozenset(guarded),
        DECISIVE & set(map(str.lower, tokens)),
        names,
        numbers,
        bool(ORDERED.search(body)),
        bool(_PAIR.search(body)),
        lead_of(body).negated,
    )


def exact_text(criterion: Criterion) -> str:
    """The text without prefix, spacing, final stop and the case of its first letter: equal for exact duplicates."""
    text = " ".join(body_of(criterion.text).split()).rstrip(".! ")
    return text[:1].lower() + text[1:]  # elsewhere the case may matter: angle A, side a


def duplicates(criteria: Sequence[Criterion]) -> list[tuple[Criterion, Criterion, Finding]]:
    """(later, earlier, finding) for each criterion that repeats earlier ones: an exact copy of it, else the first."""
    readings = [read(criterion) for criterion in criteria]
    found = []
    for number, later in enumerate(readings):
        pairs = ((earlier, _compare(earlier, later)) for earlier in readings[:number])
        hits = sorted(((e, f) for e, f in pairs if f), key=lambda hit: (not hit[1].sure, hit[1].rule != SAME_TEXT))
        if hits:
            found.append((later.criterion, hits[0][0].criterion, hits[0][1]))
    return found


def _compare(a: Reading, b: Reading) -> Finding | None:
    name = a.criterion.id
    if a.criterion.is_pitfall != b.criterion.is_pitfall or a.negated != b.negated:
        return None
    if a.same == b.same:
        return Finding("duplicate", SAME_TEXT, f"the text of {name}")
    shared = len(set(a.content) & set(b.content))
    if a.decisive != b.decisive or 2 * shared < min(len(a.content), len(b.content)):
        return None  # what follows is slower
    only_a, only_b = _left_over(a.content, b.content)
    shared = len(a.content) - len(only_a)
    if not shared or set(only_a + only_b) & (a.guarded | b.guarded):
        return None
    if not _same_order(a, b):
        return None
    if not only_a and not only_b and shared > 1:
        return Finding("duplicate", "same words", f"the content words of {name}")
    if shared >= 3 and len(only_a + only_b) == 1:
        return Finding("duplicate", "one word more", f"the content words of {name} and {(only_a + only_b)[0]!r}")
    alike = fuzz.token_sort_ratio(" ".join(a.content), " ".join(b.content))
    if alike >= ALIKE:
        return Finding("duplicate", "alike", f"{alike:.0f}% like {name}, but {only_a} is not {only_b}", sure=False)
    return None


def _same_order(a: Reading, b: Reading) -> bool:
    """Names keep their order ("Asia overtakes Africa") unless joined by "and"; so do the numbers that go with them."""
    if len(a.names) > 1:
        in_order = _rotated(a.names, b.names) or (a.paired and b.paired)
        return in_order and (len(a.numbers) < 2 or a.numbers == b.numbers)
    if len(a.numbers) > 2 and a.numbers != b.numbers:
        return False
    return not a.ordered or Indel.normalized_similarity(a.content, b.content) >= SAME_ORDER


def _rotated(a: list[str], b: list[str]) -> bool:
    """The same order, perhaps with an end moved to the front ("near Bexley the Tarn joins the Orl")."""
    return a == b or (len(a) > 2 and any(a[i:] + a[:i] == b for i in range(len(a))))


def _left_over(a: Sequence[str], b: Sequence[str]) -> tuple[list[str], list[str]]:
    """The stems of each that the other lacks; stems that are nearly alike count as one."""
    only_a, only_b = list((Counter(a) - Counter(b)).elements()), list((Counter(b) - Counter(a)).elements())
    for word in list(only_a):
        near = next((other for other in only_b if _one_word(word, other)), None)
        if near is not None:
            only_a.remove(word)
            only_b.remove(near)
    return only_a, only_b


def _one_word(a: str, b: str) -> bool:
    return a.isalpha() and b.isalpha() and len(a) > 3 and fuzz.ratio(a, b) >= SAME_WORD
