"""Is a criterion true of the image at all? Asked of a judge that sees the image, without people.

In: examples with their rubrics, and a judge in image mode. Out: a finding per criterion, the most suspicious first, with
what the judge read in the image.

1. The reference response is judged by all criteria. What it meets, the image does not contradict.
2. A criterion that it does not meet may be false of the image, or just not met. So the sentence that the judge pointed at
   is replaced by what the criterion claims, and the criterion is asked once more: it is met now, and a "no" that points
   at the claim can only come from the image.

A pitfall should not be met, so it goes to the second question at once, where its claim ("Wrongly reads x as 3": x is 3)
is asked as a plain criterion, "States that x is 3": a yes says that the image shows what the pitfall calls wrong.

The reference often shares its annotator's mistakes; here that helps. Criteria that are not about the image (the judge
read nothing there) make no claim that an image could contradict, and are set aside, counted and named.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..verifier.errors import InputError
from ..verifier.schema import Criterion, Example, Rollout, Verdict

Item = tuple[Example, Rollout]
Ask = Callable[[Sequence[Item]], Sequence[Verdict]]

NOT_ABOUT_IMAGE = "not about the image"
NO_CLAIM = "a pitfall whose yes means that it was avoided claims nothing that could stand in a response"
NOT_FOUND = "the judge found no sentence that makes the claim"

_ADVERBS = r"(?:(?:wrongly|incorrectly|mistakenly|falsely|erroneously|correctly|clearly|explicitly|accurately)\s+)*"
_SUBJECT = rf"(?is)^\s*(?:the (?:response|answer|model)\s+)?{_ADVERBS}"
_SAYS = r"(?:stat|say|not|mention|claim|conclud|assert|report|observ|identif|recogni[sz]|indicat|explain|find|infer)"
_THAT = re.compile(rf"{_SUBJECT}{_SAYS}(?:e|y|es|ies|s)?\s+{_ADVERBS}that\s+(.+)$")
_READS = r"(?:read|identif|describ|label|count|recogni[sz]|nam|giv|tak|report|interpret|treat)"
_AS = re.compile(rf"{_SUBJECT}{_READS}(?:e|y|es|ies|s)?\s+(.+?)\s+as\s+(.+)$")


@dataclass(frozen=True)
class Finding:
    """What the judge thinks of one criterion. `suspicion` is the chance, 0..1, that it gives to the answer that makes the
    criterion suspicious; both are None where the criterion was not decided, for the `reason` given. `asked` says of
    which response: the reference, the reference with the criterion's claim in it, or the claim alone (without a
    reference)."""

    example_id: str
    criterion_id: str
    text: str
    group: str | None
    suspicious: bool | None
    suspicion: float | None
    reading: str | None
    asked: str
    sentence: str | None
    reason: str | None


def claim_of(text: str) -> str:
    """What a criterion wants the response to say, as a sentence: "States that x is 3" becomes "X is 3.", "Reads x as 3"
    too. A text of another form is its own claim."""
    claim = text.strip()
    if match := _THAT.match(claim):
        claim = match[1]
    elif match := _AS.match(claim):
        claim = f"{match[1]} is {match[2]}"
    claim = claim[:1].upper() + claim[1:]
    return claim if claim.endswith((".", "!", "?", "。")) else claim + "."


@dataclass(frozen=True)
class Question:
    """The second question on a criterion: `asked` of a response that makes its claim at `claim`, in characters. `good` is
    the answer that clears the criterion."""

    example: Example
    criterion: Criterion
    asked: Criterion
    rollout: Rollout
    claim: tuple[int, int]
    good: bool

    @property
    def item(self) -> Item:
        return replace(self.example, criteria=(self.asked,)), self.rollout


def audit(examples: Sequence[Example], ask: Ask) -> list[Finding]:
    """Findings on every criterion, `ranked`. `ask` returns the verdicts of all criteria of each item, in order: the
    `judge` of any judge in image mode."""
    first = [
        (e, Rollout(f"{e.example_id}/audit", e.example_id, e.reference, "reference")) for e in examples if e.reference
    ]
    said = {(v.example_id, v.criterion_id): v for v in ask(first)}
    questions = [question for example in examples for question in _second(example, said)]
    answers = ask([question.item for question in questions])
    if len(answers) != len(questions):
        raise InputError(
            f"the judge gave {len(answers)} verdicts on {len(questions)} criteria; it must answer each once"
        )
    found = {
        (question.example.example_id, question.criterion.id): _after_claim(question, verdict)
        for question, verdict in zip(questions, answers, strict=True)
    }
    return ranked(
        found.get((e.example_id, c.id)) or _after_reference(e, c, said.get((e.example_id, c.id)))
        for e in examples
        for c in e.criteria
    )


def ranked(findings: Iterable[Finding]) -> list[Finding]:
    """By suspicion, undecided ones last."""
    return sorted(findings, key=lambda f: (f.suspicion is None, -(f.suspicion or 0), f.example_id, f.criterion_id))


def _second(example: Example, said: dict[tuple[str, str], Verdict]) -> Iterator[Question]:
    """The questions that the reference left open."""
    for criterion in example.criteria:
        verdict = said.get((example.example_id, criterion.id))
        settled = verdict is not None and (
            (verdict.verdict and not criterion.is_pitfall) or not _about_image(criterion, verdict)
        )
        if settled or _makes_no_claim(criterion):
            continue
        claim, response = claim_of(criterion.text), example.reference or ""
        start, end = (0, 0) if verdict is None or verdict.span is None else verdict.span
        space = " " if start == end and response else ""
        text = response[:start] + claim + space + response[end:]
        rollout = Rollout(f"{example.example_id}/audit/{criterion.id}", example.example_id, text, "claim")
        asked = _plain(criterion, claim)
        yield Question(example, criterion, asked, rollout, (start, start + len(claim)), good=asked is criterion)


def _plain(criterion: Criterion, claim: str) -> Criterion:
    """A pitfall whose claim is known, as a criterion that the claim be made; any other as it is."""
    if not criterion.is_pitfall or not (_THAT.match(criterion.text) or _AS.match(criterion.text)):
        return criterion
    text = f"States that {claim[:1].lower()}{claim[1:]}"
    return replace(criterion, text=text, label=None, weight=abs(criterion.weight))


def _makes_no_claim(criterion: Criterion) -> bool:
    return criterion.is_pitfall and criterion.yes_means == "avoided"


def _about_image(criterion: Criterion, verdict: Verdict) -> bool:
    """By the reading; where the judge gives none, by the dimension: reasoning and instructions are not in the image."""
    if verdict.reading is not None:
        return bool(verdict.reading.strip())
    return criterion.group not in ("RC", "IF")


def _after_reference(example: Example, criterion: Criterion, verdict: Verdict | None) -> Finding:
    """Only a criterion that makes no claim is left without a verdict, where there is no reference."""
    reason = None
    if verdict is None or _makes_no_claim(criterion):
        reason = NO_CLAIM
    elif not _about_image(criterion, verdict):
        reason = NOT_ABOUT_IMAGE
    return _finding(example, criterion, verdict, "reference", example.reference or "", reason)


def _after_claim(question: Question, verdict: Verdict) -> Finding:
    reason = None
    if verdict.verdict is None:
        reason = f"missing: {verdict.error}"
    elif not _about_image(question.criterion, verdict):
        reason = NOT_ABOUT_IMAGE
    elif not verdict.verdict and not _touches(verdict.span, question.claim):
        reason = NOT_FOUND
    asked = "reference with the claim" if question.example.reference else "claim alone"
    response = question.rollout.response
    return _finding(question.example, question.criterion, verdict, asked, response, reason, question.good)


def _touches(span: tuple[int, int] | None, claim: tuple[int, int]) -> bool:
    return span is not None and span[0] < claim[1] and claim[0] < span[1]


def _finding(
    e: Example,
    c: Criterion,
    verdict: Verdict | None,
    asked: str,
    response: str,
    reason: str | None,
    good: bool = True,
) -> Finding:
    said = verdict is not None and bool(verdict.verdict)
    p_yes = float(said) if verdict is None or verdict.p_yes is None else verdict.p_yes
    return Finding(
        example_id=e.example_id,
        criterion_id=c.id,
        text=c.text,
        group=c.group,
        suspicious=None if reason else said is not good,
        suspicion=None if reason else 1 - p_yes if good else p_yes,
        reading=None if verdict is None else verdict.reading,
        asked=asked,
        sentence=None if verdict is None or verdict.span is None else response[slice(*verdict.span)],
        reason=reason,
    )


def summarise(findings: Sequence[Finding]) -> dict[str, Any]:
    """Counts: all criteria, those decided and those suspicious, by group too, and the undecided ones by reason."""
    by_group = {}
    for group in dict.fromkeys(f.group or "other" for f in findings):
        own = [f for f in findings if (f.group or "other") == group and f.suspicious is not None]
        by_group[group] = {"decided": len(own), "suspicious": sum(bool(f.suspicious) for f in own)}
    return {
        "criteria": len(findings),
        "decided": sum(f.suspicious is not None for f in findings),
        "suspicious": sum(bool(f.suspicious) for f in findings),
        "by_dimension": by_group,
        "undecided": dict(Counter(f.reason for f in findings if f.reason)),
    }


def score(findings: Sequence[Finding], gold: Sequence[Finding]) -> dict[str, Any]:
    """Precision and recall of the suspicious ones against those that a better judge finds wrong, with 95% Wilson
    intervals; null with its reason in "undefined" where nothing is flagged, or nothing wrong. An undecided criterion is
    not flagged."""
    wrong = {(f.example_id, f.criterion_id) for f in gold if f.suspicious}
    flagged = {(f.example_id, f.criterion_id) for f in findings if f.suspicious}
    out: dict[str, Any] = {"wrong": len(wrong), "flagged": len(flagged), "found": len(wrong & flagged), "undefined": {}}
    for name, of, reason in (
        ("precision", flagged, "no criterion is suspicious"),
        ("recall", wrong, "no criterion is wrong"),
    ):
        out |= _share(name, out["found"], len(of))
        if not of:
            out["undefined"][name] = reason
    return out


def _share(name: str, count: int, of: int) -> dict[str, Any]:
    from scipy.stats import binomtest

    if not of:
        return {name: None, f"{name}_ci": None}
    low, high = binomtest(count, of).proportion_ci(method="wilson")
    return {name: count / of, f"{name}_ci": [float(low), float(high)]}
