"""What people said, as verdict tables, and how far it agrees: among themselves, and with each judge.

In: the pairs that were drawn with their weights, and each person's answers (see `audit_exports`). Out: a verdict table
per person and one of the majority; Krippendorff's alpha; agreement with judges; the criteria's quality. Figures come
raw, over the pairs as drawn, and weighted by one over each pair's chance to be drawn, which undoes the sampling: an
estimate for all pairs that could have been drawn. Intervals: a bootstrap over examples.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..verifier.errors import InputError
from ..verifier.schema import GROUPS, Verdict
from . import metrics
from .agreement import agree
from .alpha import alpha, columns
from .audit_exports import Asked, Person
from .audit_page import QUALITY
from .bootstrap import Clustered, ratio_interval, resample
from .metrics import FloatArray, IntArray
from .pairs import as_arrays, matched

MAJORITY = "people"
NOT_ANSWERED = "not answered"
WEIGHTED = ("agreement", "balanced_accuracy", "kappa", "ac1", "false_yes", "false_no", "f1_yes", "f1_no")


def table_of(person: Person, asked: Sequence[Asked]) -> list[Verdict]:
    """The person's verdict on every pair; missing where there is no answer, or where the person cannot tell."""
    return [_verdict(one, f"person {person.name}", *_said(person, one)) for one in asked]


def _said(person: Person, one: Asked) -> tuple[bool | None, str | None, str | None]:
    answer = person.answers.get(one.id)
    if answer is None or answer.counts is None:
        return None, NOT_ANSWERED, None
    if answer.counts == "cannot tell":
        return None, "cannot tell", answer.at
    return answer.counts == "yes", None, answer.at


def majority(tables: Sequence[Sequence[Verdict]], asked: Sequence[Asked]) -> list[Verdict]:
    """What more people say than say the opposite; a tie is missing, and so is what nobody could tell, or answered."""
    out = []
    for one, verdicts in zip(asked, zip(*tables, strict=True), strict=True):
        yes, no = (sum(v.verdict is value for v in verdicts) for value in (True, False))
        silent = {v.error for v in verdicts} == {NOT_ANSWERED}
        error = (
            None if yes != no else f"a tie, {yes} to {no}" if yes else NOT_ANSWERED if silent else "nobody could tell"
        )
        out.append(_verdict(one, MAJORITY, None if error else yes > no, error, None))
    return out


def _verdict(one: Asked, judge: str, verdict: bool | None, error: str | None, at: str | None) -> Verdict:
    keys = one.example_id, one.rollout_id, one.criterion_id
    return Verdict(*keys, judge, "image", verdict, error=error, created_at=at, dimension=one.dimension)


def summary_of(person: Person, asked: Sequence[Asked]) -> dict[str, Any]:
    """How many pairs the person answered, could not tell, and left; `hinted` were answered after the marks were shown
    only, `changed` after an answer without them, which is the one that counts."""
    given = [person.answers[one.id] for one in asked if one.id in person.answers]
    given = [answer for answer in given if answer.counts]
    return {
        "name": person.name,
        "answered": len(given),
        "cannot_tell": sum(answer.counts == "cannot tell" for answer in given),
        "unanswered": len(asked) - len(given),
        "hinted": sum(answer.blind is None for answer in given),
        "changed": sum(answer.blind not in (None, answer.verdict) for answer in given),
    }


def among_people(
    tables: Sequence[Sequence[Verdict]], asked: Sequence[Asked], draws: int = 1000, seed: int = 0
) -> dict[str, Any]:
    """Krippendorff's alpha of the people's verdicts: "raw" and "weighted", each with "overall" and "by_dimension"."""
    said = zip(*tables, strict=True)
    counts_uv = np.array([[sum(v.verdict is value for v in pair) for value in (True, False)] for pair in said])
    weight_u = np.array([one.weight for one in asked])
    weights = {"raw": np.ones(len(asked)), "weighted": weight_u}
    return {
        name: _by_dimension(asked, lambda here, w=w: _alpha(counts_uv[here], w[here], asked, here, draws, seed))
        for name, w in weights.items()
    }


def _alpha(
    counts_uv: FloatArray, weight_u: FloatArray, asked: Sequence[Asked], here: IntArray, draws: int, seed: int
) -> dict[str, Any]:
    columns_uc = columns(counts_uv, weight_u / weight_u.mean())  # the small-sample term n - 1 counts pairs
    clustered = _clustered(columns_uc, [asked[index].example_id for index in here])
    value, denominator = alpha(columns_uc.sum(0))
    paired = int((counts_uv.sum(1) >= 2).sum())
    out: dict[str, Any] = {"pairs": paired, "alpha": None, "alpha_ci": None, "undefined": None}
    if not denominator:
        out["undefined"] = "all answers are the same" if paired else "no pair has a verdict of two people"
        return out
    out["alpha"] = float(value / denominator)
    if (clustered.counts_xc[:, 1:].sum(1) > 0).sum() > 1:
        (drawn,) = resample([clustered], len(clustered.examples_x), draws, seed)
        out["alpha_ci"] = ratio_interval(*alpha(drawn.counts_dc))
    return out


def with_judge(
    people: Sequence[Verdict],
    judge: Sequence[Verdict],
    asked: Sequence[Asked],
    name: str,
    draws: int = 1000,
    seed: int = 0,
) -> dict[str, Any]:
    """A judge against the people's majority, the reference: "raw", the figures of `agree`, and "weighted", those of
    WEIGHTED. `judge` may have more verdicts than the pairs that were drawn."""
    wanted = {(one.rollout_id, one.criterion_id) for one in asked}
    judge = [verdict for verdict in judge if verdict.key in wanted]
    absent = wanted - {verdict.key for verdict in judge}
    if absent:
        rollout_id, criterion_id = min(absent)
        raise InputError(
            f"{name} has no verdict on {len(absent)} of the {len(wanted)} pairs, the first being rollout {rollout_id!r}, "
            f"criterion {criterion_id!r}; give the verdicts that the pairs were drawn by, or others on all of these"
        )
    names = ("the people's verdicts", name)
    raw = agree(people, judge, draws, seed, names=names)
    other = [b for _, b in matched(people, judge, names)]
    weighted = _by_dimension(asked, lambda here: _weighted(people, other, asked, here, draws, seed))
    return {"table": name, "judge": sorted({verdict.judge for verdict in judge}), "raw": raw, "weighted": weighted}


def _weighted(
    people: Sequence[Verdict],
    judge: Sequence[Verdict],
    asked: Sequence[Asked],
    here: IntArray,
    draws: int,
    seed: int,
) -> dict[str, Any]:
    pairs = as_arrays([(people[index], judge[index]) for index in here])
    weight_u = np.array([asked[index].weight for index in here])
    counts_uc = np.zeros((len(here), metrics.COLUMNS))
    for column, (first, second) in enumerate(((1, 1), (1, 0), (0, 1), (0, 0))):
        counts_uc[:, metrics.YES_YES + column] = weight_u * ((pairs.a == first) & (pairs.b == second))
    clustered = _clustered(counts_uc, [asked[index].example_id for index in here])
    (drawn,) = resample([clustered], len(clustered.examples_x), draws, seed)
    total_c, examples = counts_uc.sum(0), metrics.basis(clustered.counts_xc)
    known_u = weight_u[pairs.known]
    out: dict[str, Any] = {
        "n": len(known_u),
        "effective_n": float(known_u.sum() ** 2 / (known_u**2).sum()) if len(known_u) else 0.0,
    }
    undefined: dict[str, str] = {}
    ratios, sampled = metrics.ratios(total_c), metrics.ratios(drawn.counts_dc)
    for name in WEIGHTED:
        value, denominator = ratios[name]
        out[name] = float(value / denominator) if denominator else None
        out[f"{name}_ci"] = ratio_interval(*sampled[name]) if denominator and examples[name] > 1 else None
        if not denominator:
            undefined[name] = metrics.why_undefined(name, total_c)
    return {**out, "undefined": undefined}


def _clustered(columns_uc: FloatArray, example_ids: Sequence[str]) -> Clustered:
    """The sums of the columns over each example's pairs."""
    examples, row_u = np.unique(np.array(example_ids, dtype=object), return_inverse=True)
    sums_xc = np.zeros((len(examples), columns_uc.shape[1]))
    np.add.at(sums_xc, row_u, columns_uc)
    return Clustered(np.arange(len(examples)), sums_xc)


def _by_dimension(asked: Sequence[Asked], figures_of: Any) -> dict[str, Any]:
    """`figures_of` the indices of all pairs, and of those of each dimension."""
    groups = np.array([one.dimension for one in asked], dtype=object)
    return {
        "overall": figures_of(np.arange(len(asked))),
        "by_dimension": {group: figures_of(np.flatnonzero(groups == group)) for group in GROUPS if group in groups},
    }


def quality_of(people: Sequence[Person], asked: Sequence[Asked]) -> dict[str, Any]:
    """By question how often each answer was given, each person counting once for a criterion; `faulty`: the criteria of
    which at least as many people say so as say the opposite, with the questions."""
    said: dict[tuple[str, str], dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    for person in people:
        once: dict[tuple[str, str], dict[str, str]] = {}
        for one in asked:
            if one.id in person.answers and person.answers[one.id].quality:
                once[one.example_id, one.criterion_id] = person.answers[one.id].quality
        for criterion, quality in once.items():
            for question, answer in quality.items():
                said[criterion][question][answer] += 1
    counts = {
        question: {answer: sum(of[question][answer] for of in said.values()) for answer in answers}
        for question, answers in QUALITY.items()
    }
    faulty = []
    for (example_id, criterion_id), of in sorted(said.items()):
        bad = [q for q, (good, fault, *_) in QUALITY.items() if of[q][fault] and of[q][fault] >= of[q][good]]
        if bad:
            faulty.append({"example_id": example_id, "criterion_id": criterion_id, "faults": bad})
    return {"criteria": len(said), "answers": counts, "faulty": faulty}
