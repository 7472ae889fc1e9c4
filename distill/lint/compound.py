"""Does a criterion hold more than one proposition? Rules over how its parts are joined.

In: the body of a criterion. Out: the rule that found a second proposition and what it saw, a doubt that no rule
settles, or None. "The sum of 3 and 4", "between A and B", "the x and y axes" are one proposition.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from .text import NUMBER, lead_of, tokens_of
from .words import (
    ADVISES,
    ALSO_NOUNS,
    ANSWERS,
    FAILS,
    FINITE,
    FUNCTION,
    MAY_SEE,
    REASONS,
    RELATES,
    SEES,
    STATES,
    SUBORDINATORS,
    VERBS,
    gerund,
    third_person,
)

Join = tuple[str, str, bool]  # the rule, what it saw, whether that decides


def _any(words: Iterable[str]) -> str:
    return "(?:" + "|".join(sorted(map(re.escape, words), key=len, reverse=True)) + ")"


_WH = "(?:how|where|why|what|when|who)"
_ARTICLE = "(?:the|a|an|its|their|his|her)"
_ABOUT = r"(?:(?:about|approximately|roughly|around|only|pH)\s+)?"
# A word that is a plural noun as well is a verb only before an object.
_OBJECT = rf"(?:(?:{_ARTICLE}|{_WH}|each|all|both|which|whether|it|them|that|this|as|to|from)\b|[A-Z0-9$€£\"“(])"
_CLEAR = _any(third_person(verb) for verb in (VERBS | FAILS) - ALSO_NOUNS)
_NOUNLIKE = _any(third_person(verb) for verb in ALSO_NOUNS)
_SAYING = _any(gerund(verb) for verb in (STATES | REASONS | ANSWERS) - {"set", "apply", "add"})
_ACTS = [  # a second act of the response
    re.compile(
        rf"(?:[,;]|\b(?:and|but|then)\b)\s+(?:(?:and|but|then|also|finally|thus|so|\w+ly)\s+)*"
        rf"(?P<verb>{_CLEAR}\b|{_NOUNLIKE}(?=\s+{_OBJECT}))"
    ),
    re.compile(rf", (?:thus |thereby |then |also )?(?P<verb>{_SAYING})\b"),
    re.compile(r"\band (?P<verb>(?:does|do|is|are|must|should) not)\b"),
]
_BASE_ACT = re.compile(
    rf"\band\s+(?:(?:then|also|\w+ly)\s+)*(?P<verb>{_any(VERBS)}(?=\s+{_OBJECT}))"
)  # "state ... and"
_VERB_IN_CLAUSE = re.compile(
    rf"\band (?P<verb>[a-z]{{2,}}[a-rt-z]s) (?:{_ARTICLE}\b|[A-Z0-9])"
)  # no plural is followed so
_AND_HOW = re.compile(rf"\b(?!{_WH}\b)\w+,? and {_WH}\b")
_SENTENCE_END = re.compile(
    r"(?<!\b[A-Z])(?<!e\.g)(?<!i\.e)(?<!\bLtd)(?<!\bInc)(?<!\bNo)(?<!\bFig)(?<!\b[DMS]r)(?<!\bSt)(?<!\bvs)"
    r"[.!?][\"”)]?\s+(?=[A-Z])"
)
_COMMENT = re.compile(r"(?:For example|E\.g\.|I\.e\.|That is|This|Accept|Note|Either)\b")
_ALSO = re.compile(r"\b(as well as|and also|in addition to|and additionally)\b")
_CONJUNCTION = re.compile(
    r",?\s*(?:\b(and|while|whereas|but)\b|(?<=,)(?=\s+(?:the|it|its|their|both|each)\b))\s+"
    r"(that\b(?!\s+(?:of|for|in|on|at)\b)\s*)?"
)
_VALUES = [
    re.compile(
        rf"\b(as|at|to|to be|of|is|for|with|by)\s+{_ABOUT}{NUMBER}\b[^.;]*?\band\b[^.;]*?\b\1\s+{_ABOUT}{NUMBER}"
    ),
    re.compile(rf"{NUMBER}%?(?: [a-z]+)? (for|in|at) [^.;]*?(?:,|\band) {NUMBER}%?(?: [a-z]+)? \1\b"),
]
_TWO_COUNTS = re.compile(rf"^\W*\w+\s+(?:that\s+there\s+are\s+)?{NUMBER}\s+[a-z]+\s+and\s+{NUMBER}\s+[a-z]+")
_TWO_ADVISED = re.compile(
    r"\b(?!during|(?:some|no|any|every)thing)[a-z]{2,}ing\b[^.;]*?\band\s+(?:\w+ly\s+)?[a-z]{2,}ing\b"
)
_TWO_THINGS = re.compile(rf"^\W*\w+\s+(?:both\s+)?(?:{_ARTICLE}|{_WH})\b.*?\band\s+(?:{_ARTICLE}|{_WH})\b")
_ONE_THING = re.compile(
    r"\b(?:between|from|sum|difference|ratio|relation|relationship|angle|distance|intersection|average|product|"
    r"comparison|combination|either|among|with|both sides)\b|\bof the \w+ and the \w+\.?$"
)
_QUOTED = re.compile(r"\"[^\"]*\"|“[^”]*”|‘[^’]*’|`[^`]*`|\([^()]*\)")


def joins(body: str) -> Join | None:
    """What the first rule says that finds a second proposition; the rules that decide come first."""
    plain = _QUOTED.sub(lambda match: match[0][0] + "x" * (len(match[0]) - 2) + match[0][-1], body)
    found = [join for rules in (_sentences, _acts, _clauses, _objects) for join in rules(plain)]
    found.sort(key=lambda join: not join[2])
    return found[0] if found else _doubt(plain)


def _sentences(body: str) -> Iterator[Join]:
    sentences = [part for part in _SENTENCE_END.split(body) if part.strip()]
    if len(sentences) > 1:
        yield "second sentence", f"two sentences, the second {sentences[1]!r}", not _COMMENT.match(sentences[1])
    parts = [part for part in body.split(";") if len(part.split()) > 1]
    if len(parts) > 1:
        yield "semicolon", f"a second clause after a semicolon, {parts[1].strip()!r}", True


def _acts(body: str) -> Iterator[Join]:
    tokens = tokens_of(body)
    patterns = [*_ACTS]
    if tokens[:1] == (lead_of(body).verb,):  # a body cut from "should state ..."
        patterns.append(_BASE_ACT)
    if "that" in tokens:
        patterns.append(_VERB_IN_CLAUSE)
    for match in (match for pattern in patterns if (match := pattern.search(body))):
        yield "second verb", f"a second act, {match['verb']!r}", True
    if match := _AND_HOW.search(body):
        yield "two things", f"two things to explain, the second after {match[0]!r}", True


def _clauses(body: str) -> Iterator[Join]:
    """A conjunction with a clause of its own verb on either side: "that A is red and B is green"."""
    for match in _CONJUNCTION.finditer(body):
        left, right = tokens_of(body[: match.start()].lower()), tokens_of(body[match.end() :].lower())
        joint = (match[1] or "") + (" that" if match[2] else "")
        own_verb = next((i for i, word in enumerate(right[:8]) if word in FINITE and not _relative(right[:i])), None)
        if match[1] == "and" and match[2] and len(left) > 1:
            yield "second clause", f"a second clause, '{joint} {' '.join(right[:4])} ...'", True
        elif own_verb is not None and (set(left[1:]) & FINITE or (own_verb == 0 and "that" in left)):
            said = " ".join(right[: own_verb + 2])
            yield "second clause", f"a second clause, '{joint} {said} ...'", not SUBORDINATORS & set(left)


def _relative(words: Sequence[str]) -> bool:
    return bool({"which", "that", "who", "where", "whose"} & set(words))


def _objects(body: str) -> Iterator[Join]:
    """Two objects of one verb, where that verb takes them one by one."""
    verb = lead_of(body).verb
    if verb in RELATES:
        return
    if match := _ALSO.search(body):
        yield "as well as", f"two things joined by {match[1]!r}", True
    values = [*_VALUES, _TWO_COUNTS] if verb in SEES | STATES | MAY_SEE else _VALUES
    if match := next((match for pattern in values if (match := pattern.search(body))), None):
        yield "two values", f"two values, {match[0]!r}", True
    if verb in ADVISES and (match := _TWO_ADVISED.search(body)):
        yield "two pieces of advice", f"two acts are advised, {match[0]!r}", True
    if verb in STATES | {"describe"} and _TWO_THINGS.match(body) and not _ONE_THING.search(body):
        yield "two things", "two things to name, joined by 'and'", True


def _doubt(body: str) -> Join | None:
    """One verb of naming with an object that an "and" may split: "Mentions fever and chills"."""
    words = [word.lower() for word in tokens_of(body)]
    if lead_of(body).verb not in STATES | MAY_SEE | SEES | ADVISES or "that" in words or _ONE_THING.search(body):
        return None
    place = words.index("and") if "and" in words else 0
    if not place or words[place - 1] in FUNCTION or words[place - 1].isdecimal():
        return None
    return "joined objects", "'and' may join two things to look for, or name one", False
