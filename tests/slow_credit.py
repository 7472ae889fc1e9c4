"""The credit of a group once more, value by value, without arrays: slow, and written from the text alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

from claimwise.trainer.credit import BUDGETS


def z(values):
    known = [v for v in values if v is not None]
    if len(known) < 2 or max(known) - min(known) < 1e-12:
        return [0.0] * len(values)
    mean = sum(known) / len(known)
    std = math.sqrt(sum((v - mean) ** 2 for v in known) / (len(known) - 1))
    return [0.0 if v is None else (v - mean) / (std + 1e-4) for v in values]


def total(parts):
    """parts: (share, values); the sum for each response, a missing value counting as the mean of the known ones."""
    parts = [(share, values) for share, values in parts if share > 0]
    sums = []
    for g in range(len(parts[0][1]) if parts else 0):
        known = [([v for v in values if v is not None], share, values[g]) for share, values in parts]
        there = [share * (sum(k) / len(k) if v is None else v) for k, share, v in known if k]
        sums.append(None if all(v is None for *_, v in known) else sum(there))
    return sums


def tokens_of(response, span):
    """The tokens that share a character with the span, an empty one going with its predecessor."""
    touched = []
    for t, (start, end) in enumerate(response.token_offsets):
        if start == end:
            touched.append(t > 0 and touched[t - 1])
        else:
            touched.append(any(span[0] <= c < span[1] for c in range(start, end)))
    for t, (start, end) in enumerate(response.token_offsets):  # leading ones go with the first that is not empty
        if start != end:
            touched[:t] = [touched[t]] * t
            break
    return [t for t, touch in enumerate(touched) if touch]


@dataclass
class Scores:
    """Answer and format of each response; of each credited criterion its weight's share, and for each response what it
    scores and which tokens decide it."""

    answer: list
    format: list
    rho: dict
    s: dict
    covered: dict


def scores_of(criteria, responses, pitfalls) -> Scores:
    credited = [c for c in criteria if pitfalls == "criterion" or c.label != "PITFALL"]
    weights = sum(abs(c.weight) for c in credited)
    of = Scores(
        [r.answer for r in responses],
        [r.format for r in responses],
        {c.id: abs(c.weight) / weights for c in credited},
        {c.id: [] for c in credited},
        {c.id: [] for c in credited},
    )
    for g, r in enumerate(responses):
        for c in credited:
            verdict, span = r.verdicts[c.id]
            of.s[c.id].append(None if verdict is None else float(verdict != (c.label == "PITFALL")))
            of.covered[c.id].append(tokens_of(r, span) if span else [])
        confirmed = [c for c in criteria if c.label == "PITFALL" and r.verdicts[c.id][0]]
        if confirmed and pitfalls in ("veto", "veto-answer"):
            of.answer[g] = 0
        if confirmed and pitfalls == "veto":
            _blame(of, g, r, [r.verdicts[c.id][1] for c in confirmed])
    return of


def _blame(of: Scores, g, response, spans) -> None:
    blamed = [t for span in spans if span for t in tokens_of(response, span)]
    for name in of.s:
        of.s[name][g] = 0.0
        of.covered[name][g] = list(range(min(blamed), max(blamed) + 1)) if blamed else []


def advantages(criteria, responses, arm, budget, pitfalls):
    """One list of tokens for each response."""
    budget = BUDGETS[budget] if isinstance(budget, str) else budget
    of = scores_of(criteria, responses, pitfalls)
    return [
        [_advantage(of, arm, budget, g, t, len(r.token_offsets)) for t in range(len(r.token_offsets))]
        for g, r in enumerate(responses)
    ]


def _advantage(of: Scores, arm, budget, g, t, length) -> float:
    b_ans, b_fmt, b_rub = budget
    rubric = total([(of.rho[name], of.s[name]) for name in of.s]) or [None] * len(of.answer)
    if arm == "answer":
        return z(total([(b_ans + b_rub, of.answer), (b_fmt, of.format)]))[g]
    if arm == "scalar":
        return z(total([(b_ans, of.answer), (b_fmt, of.format), (b_rub, rubric)]))[g]
    value = b_ans * z(of.answer)[g] + b_fmt * z(of.format)[g]
    if arm == "scalar-z":
        return value + b_rub * z(rubric)[g]
    for name, weight in of.rho.items():
        where = of.covered[name][g] or range(length)
        if arm == "component" or (t <= max(where) and (arm == "prefix" or t >= min(where))):
            value += b_rub * weight * z(of.s[name])[g]
    return value
