"""Does a criterion's dimension contradict its text?

In: a criterion marked VF, RC or IF. Out: a `Finding` where the text speaks clearly for another dimension, a doubt where
it only leans to another, else None. The form of the answer speaks for IF; seeing verbs for VF; reasoning verbs for RC.
A bare answer is nobody's instruction: "selects option 3" marked IF is a contradiction without a better dimension.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ...verifier.schema import Criterion, Example
from .answer import answer_only
from .text import Finding, body_of, lead_of, tokens_of
from .words import ANSWERS, FORMATS, MAY_REASON, MAY_SEE, REASONS, SEES, STATES, VERB_FORMS, words_of

_COUNT = r"(?:one|two|three|four|five|ten|\d+|a single|exactly one)"
_FORM = re.compile(
    "|".join(
        (
            rf"\b(?:in|with|of|within|using|at most|no more than|fewer than|under|up to|less than|exactly) "
            rf"(?:at most |exactly |no more than )?{_COUNT} (?:\w+ )?"
            r"(?:words?|sentences?|characters?|paragraphs?|lines?|letters?|digits?|bullets?)\b",
            r"\bas an? (?:\w+ )?(?:integer|fraction|percentage|decimal|list|table|whole number)\b",
            r"\ba single (?:\w+ )?(?:word|sentence|letter|number|integer|line)\b",
            r"\b(?:bold|italics?|capital letters?|upper ?case|lower ?case|punctuation|bulleted|JSON|LaTeX)\b",
            r"\b(?:markdown|boxed|box|code block|plain text|lowest terms|yes or no|in English|whole number)\b",
            r"\b(?:separator|abbreviations?)\b",
            r"\b(?:significant (?:figure|digit)s?|decimal places?|decimals|rounded|in the form|format(?:s|ted)?)\b",
            r"\b(?:own line|line of its own|separate line|line numbers?|(?:final|answer|last) line)\b",
            r"\b(?:units?|words|digits|letters?|names?|numbers?|values?) only\b|\bonly (?:the|one)\b|\bexactly one\b",
            r"\b(?:with(?:out)?|includ|giv|stat|omit|add)(?:es|s|e)?(?: \w+){0,4} units?\b",
            r"\bas the unit\b|\bcurrency symbol\b",
            r"\bas (?:requested|asked|instructed)\b",
            r"\bbefore (?:giving|stating|describing|explaining|(?:the|any) (?:answer|explanation))\b",
            r"\bwithout (?:any )?(?:an? )?(?:explanation|units?|words|text)\b",
        )
    ),
    re.IGNORECASE,
)
_FORM_VERBS = words_of("round spell format phrase limit restrict")
_PICTURE = re.compile(
    r"\b(?:red|blue|green|yellow|orange|purple|black|white|gr[ae]y|brown|pink|left|right|upper|lower|corner|behind|bar|"
    r"axis|axes|legend|label(?:led|ed)?|line|arrow|curve|slice|segment|image|picture|photo|figure|visible|shaded|"
    r"hanging|standing|printed|logo|icon|background|foreground)\b",
    re.IGNORECASE,
)
_INFERENCE = re.compile(
    r"\b(?:because|therefore|hence|since|thus|follows|implies|theorem|equation|formula|than|equals?|same|exceeds?|"
    r"so that|on the grounds)\b",
    re.IGNORECASE,
)
_CALCULATED = re.compile(
    r"\w+ (?:the|a) (?:\w+ )?(?:difference|sum|product|ratio|quotient|average|mean)\b", re.IGNORECASE
)
_EVIDENCE = re.compile(
    r"(?:takes?|uses?|treats?|considers?|names?|cites?)\b.* (?:as|for) (?:an? |the )?"
    r"(?:hint|sign|evidence|reason|proof|clue|indication)\b",
    re.IGNORECASE,
)
_ABOUT = {"VF": "what the image shows", "RC": "a step of reasoning", "IF": "the form of the answer"}


class Speaks(NamedTuple):
    """The dimension that a text speaks for, the words that do, and whether they decide."""

    dimension: str
    words: str
    sure: bool


def dimension(criterion: Criterion, example: Example) -> Finding | None:
    marked, body = criterion.dimension, body_of(criterion.text)
    if marked is None:
        return None
    if marked == "IF" and (found := answer_only(criterion, example)) and not _FORM.search(body):
        reason = f"the right answer is no matter of following an instruction ({found.reason})"
        return Finding("dimension", "bare answer", reason, found.sure)
    speaks = _speaks_for(body)
    if speaks is None or speaks.dimension == marked:
        return None
    if marked == "IF" and lead_of(body).verb in {VERB_FORMS.get(word) for word in tokens_of(example.question.lower())}:
        return None  # the question asks for this very act
    reason = f"marked {marked}, but the text is about {_ABOUT[speaks.dimension]} ({speaks.words})"
    better = speaks.dimension if speaks.sure else None
    return Finding("dimension", f"about {speaks.dimension}", reason, speaks.sure or marked == "IF", better)


def _speaks_for(body: str) -> Speaks | None:
    verb, form = lead_of(body).verb, _FORM.search(body)
    if verb in REASONS or _EVIDENCE.match(body) or (verb in MAY_SEE | MAY_REASON and _CALCULATED.match(body)):
        return Speaks("RC", f"verb {verb!r}", True)
    if verb in SEES:
        return None if _reasons(body) else Speaks("VF", f"verb {verb!r}", True)
    if verb in _FORM_VERBS or (form and verb not in MAY_SEE | MAY_REASON):
        return Speaks("IF", repr(form[0] if form else verb), True)
    if form or verb in FORMATS | ANSWERS:
        return None
    if verb == "explain" and tokens_of(body)[1:2] == ("why",):
        return Speaks("RC", "explains why", True)
    if verb in MAY_REASON:
        return Speaks("RC", f"verb {verb!r}", False)
    if verb in MAY_SEE | STATES:
        return _leans_to_picture(body, str(verb))
    return None


def _leans_to_picture(body: str, verb: str) -> Speaks | None:
    seen = {match.lower() for match in _PICTURE.findall(body)}
    if _reasons(body) or not (seen or verb in MAY_SEE):
        return None
    return Speaks("VF", ", ".join(sorted(seen)) or f"verb {verb!r}", len(seen) > 1)


def _reasons(body: str) -> bool:
    """Is there inference or calculation behind the first verb?"""
    later = {VERB_FORMS.get(word.lower()) for word in tokens_of(body)[1:]}
    return bool(_INFERENCE.search(body) or later & (REASONS | MAY_REASON))
