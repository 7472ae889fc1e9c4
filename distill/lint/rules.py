"""The lint's rules on one criterion alone: compound, uncheckable, weight, polarity.

In: a criterion. Out: a `Finding`, sure or in doubt, or None. The kinds that need more have modules of their own:
`lint_answer`, `lint_dimension`, `lint_outside` and, for near duplicates, `lint_pairs`.
"""

from __future__ import annotations

import re

from ...verifier.schema import Criterion
from .compound import joins
from .text import Finding, Lead, body_of, lead_of, prefix_label, speaks_of_answer, tokens_of
from .words import (
    CORRECT,
    FAILING,
    FAILS,
    FUNCTION,
    GENERIC,
    SUCCEEDING,
    SURELY_FAILS,
    VAGUE,
    VERB_FORMS,
    VIRTUES,
    words_of,
)

_ATTITUDES = words_of("understand know look pay capture consider address analyze analyse interpret examine")
_RELATIONS = words_of("match support follow link relate connect compare")
_HELPFUL = words_of("mention state include explain provide specify note identify address acknowledge give say suggest")
_PHRASES = re.compile(r"critical thinking|(?:good|best) practices?|real[- ]world|user[- ]friendly", re.IGNORECASE)
_EMPTY = FUNCTION | GENERIC | VAGUE | CORRECT
_PRAISE = VAGUE | CORRECT | VIRTUES
_NAMED = re.compile(r"[\"“`=<>]|\bas \w+ as\b|\bthan\b")  # something quoted or compared is something to check


def compound(criterion: Criterion) -> Finding | None:
    """More than one proposition, unless they are all praise."""
    found = None if uncheckable(criterion) else joins(body_of(criterion.text))
    return Finding("compound", *found) if found else None


def uncheckable(criterion: Criterion) -> Finding | None:
    """What is left without rubric talk, nouns of any task and words of praise? Nothing, or one noun well treated."""
    body = body_of(criterion.text)
    tokens = tokens_of(_PHRASES.sub("good", body))
    words = [token.lower() for token in tokens]
    praise = [word for word in words if word in _PRAISE]
    rest = [token for token, word in zip(tokens, words, strict=True) if not _says_nothing(word)]
    if _NAMED.search(body) or len(rest) > 1:
        return None
    only_correct = not (VAGUE | VIRTUES) & set(words)
    if only_correct and speaks_of_answer(body):
        return None  # "the correct answer" is answer_only
    if not praise:
        return None if rest else _without_object(body)
    listed = ", ".join(praise[:3])
    if not rest:
        return Finding(
            "uncheckable", "nothing but praise", f"only praise ({listed}); nothing that a judge could look up"
        )
    if not rest[0].isalpha() or (rest[0][0].isupper() and rest[0] != tokens[0]):
        return None  # a number or a name
    reason = f"praise ({listed}) of {rest[0]!r}, without saying what makes it so"
    return Finding("uncheckable", "praise of one noun", reason, sure=not only_correct)


def _says_nothing(word: str) -> bool:
    return word in _EMPTY or word in VERB_FORMS


def _without_object(body: str) -> Finding | None:
    """Only words of any rubric, and no praise: "understands the chart"; perhaps "describes the picture"."""
    if {VERB_FORMS.get(token.lower()) for token in tokens_of(body)} & _RELATIONS:
        return None
    sure = lead_of(body).verb in _ATTITUDES
    return Finding("uncheckable", "no object", "it names no fact, only what any response does", sure)


def weight(criterion: Criterion) -> Finding | None:
    """5 and more ESSENTIAL, from 3 IMPORTANT, above 0 OPTIONAL, negative PITFALL; the text's own prefix agrees."""
    named, label, value = prefix_label(criterion.text), criterion.label, criterion.weight
    fitting = label_for(value)
    if label is None:
        return Finding("weight", "no label", f"weight {value:g} without a label", sure=False) if value < 0 else None
    if named and named != label:
        return Finding("weight", "prefix", f"the text begins with {named.title()!r}, the label is {label}")
    if fitting == label:
        return None
    return Finding("weight", "label", f"weight {value:g} goes with {fitting or 'no label'}, the label is {label}")


def label_for(weight: float) -> str | None:
    """The label that a weight goes with; none for 0."""
    if weight == 0:
        return None
    return "PITFALL" if weight < 0 else "ESSENTIAL" if weight >= 5 else "IMPORTANT" if weight >= 3 else "OPTIONAL"


def polarity(criterion: Criterion) -> Finding | None:
    """Does the text fit what yes means? For a pitfall yes is the failure ("committed") or its absence ("avoided")."""
    body = body_of(criterion.text)
    lead = lead_of(body)
    fails = lead.verb in FAILS or bool(FAILING & set(lead.adverbs))
    if not criterion.is_pitfall:
        return _failure_rewarded(lead, fails)
    if lead.negated and lead.verb in ("fail", "forget", "omit", "neglect"):
        return _polarity("double negation", f"'not' and '{lead.verb}' in one text")
    praised = bool(SUCCEEDING & set(lead.adverbs)) and not fails
    if criterion.yes_means == "committed":
        return _committed(lead.negated, praised)
    if lead.negated and lead.verb in _HELPFUL:
        reason = f"yes means that the failure is avoided, but not to {lead.verb} something may be the failure"
        return _polarity("negated omission", reason, sure=False)
    if lead.negated or praised or (not fails and re.search(r"\b(?:not|never|no|without)\b", body)):
        return None
    if fails:
        return _polarity("failure", "yes means that the failure is avoided, but the text says that it is committed")
    return _polarity("no negation", "yes means that the failure is avoided, but nothing in the text says so")


def _committed(negated: bool, praised: bool) -> Finding | None:
    means = "yes means that the failure is committed, but the text says what is"
    if negated:
        return _polarity("negation", f"{means} not done")
    return _polarity("praise", f"{means} done well") if praised else None


def _failure_rewarded(lead: Lead, fails: bool) -> Finding | None:
    """ "Ignores the outlier" may be what is wanted; "misreads the axis" is not."""
    if not fails or lead.negated:
        return None
    sure = lead.verb in SURELY_FAILS or bool(FAILING & set(lead.adverbs))
    return _polarity("failure rewarded", "the text names a failure, but the label is no pitfall's", sure)


def _polarity(rule: str, reason: str, sure: bool = True) -> Finding:
    return Finding("polarity", rule, reason, sure)
