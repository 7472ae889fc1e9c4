"""How good a policy's responses are on held-out rubric data, and how policies differ on the same examples.

In: each policy's responses with a verdict per criterion and, where the example has an answer, one on the final answer
(`Judged`). Out: the dictionary that `claimwise evaluate` writes. The figures, each a share with its interval:

    right_but_unfaithful    responses with a right answer and a failed VF criterion: the headline
    unfaithful_given_right  the same among the right ones
    answer                  right answers among those that could be decided
    pass, pass_VF, ...      criteria that hold among those with a verdict, over all and per dimension; pitfalls are a
                            dimension of their own there, and hold where the failure was avoided

A VF criterion is one of dimension VF, pitfalls included: a confirmed one has failed. The first two figures count
responses to examples with an answer and a VF criterion, where the answer is decided and all VF verdicts are there;
`least` and `most` are what the headline would be if everything unknown had turned out well, or badly. Nothing missing is
scored. Intervals: 2.5% and 97.5% quantiles of a bootstrap over examples, the same draws for every policy.

A criterion that contradicts the image fails every response that is true (`claimwise audit` finds such criteria), so read
a policy's level beside another policy's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..verifier.schema import GROUPS, Criterion, Example, Rollout, Verdict
from .bootstrap import Clustered, ratio_interval, resample
from .metrics import FloatArray

HEADLINE, GIVEN_RIGHT, ANSWER = "right_but_unfaithful", "unfaithful_given_right", "answer"
FIGURES = (HEADLINE, GIVEN_RIGHT, ANSWER, "pass", *(f"pass_{group}" for group in GROUPS))
RULES = "rules"  # the judge of an answer that needs none


@dataclass(frozen=True)
class Judged:
    """One response: a verdict per criterion of its example, in order, and one on "gives the final answer X" (by `RULES`
    or a judge; None where the example has no answer)."""

    example: Example
    rollout: Rollout
    verdicts: Sequence[Verdict]
    answer: Verdict | None = None

    @property
    def right(self) -> bool | None:
        return None if self.answer is None else self.answer.verdict


def holds(criterion: Criterion, verdict: Verdict) -> bool | None:
    """Whether that is good: a pitfall holds where the failure was not committed. None where the verdict is missing."""
    if verdict.verdict is None:
        return None
    return verdict.verdict == (not criterion.is_pitfall or criterion.yes_means == "avoided")


def unfaithful(judged: Judged) -> tuple[bool | None, bool]:
    """Whether a VF criterion failed (None: not known), and whether the example has any."""
    held = [holds(c, v) for c, v in _pairs(judged) if c.dimension == "VF"]
    return (True if False in held else None if None in held else False), bool(held)


def _pairs(judged: Judged) -> list[tuple[Criterion, Verdict]]:
    return list(zip(judged.example.criteria, judged.verdicts, strict=True))


def tally(judged: Judged) -> FloatArray:
    """(2, F): what the response adds to numerator and denominator of each of `FIGURES`."""
    found: dict[str, tuple[int, int]] = dict.fromkeys(FIGURES, (0, 0))
    if judged.right is not None:
        found[ANSWER] = int(judged.right), 1
    if _scored(judged):
        right, failed = bool(judged.right), bool(unfaithful(judged)[0])
        found[HEADLINE] = int(right and failed), 1
        found[GIVEN_RIGHT] = int(right and failed), int(right)
    for criterion, verdict in _pairs(judged):
        good = holds(criterion, verdict)
        for name in ("pass", f"pass_{criterion.group}") if good is not None else ():
            if name in found:  # a criterion without a dimension counts in the whole only
                found[name] = found[name][0] + int(bool(good)), found[name][1] + 1
    return np.array([found[name] for name in FIGURES], dtype=float).T


def _scored(judged: Judged) -> bool:
    """Whether the response counts in the headline: all that bears on it is known."""
    vf = [v for c, v in _pairs(judged) if c.dimension == "VF"]
    return judged.right is not None and bool(vf) and all(verdict.verdict is not None for verdict in vf)


def evaluate(
    policies: Mapping[str, Sequence[Judged]], draws: int = 1000, seed: int = 0, rates: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """{"examples", "policies": {name: figures and counts}, "differences": each policy less the first one}. `rates` has
    the judge's own errors, as `judge_errors` gives them."""
    example_of: dict[str, int] = {}
    for rows in policies.values():
        for row in rows:
            example_of.setdefault(row.example.example_id, len(example_of))
    groups: dict[tuple[str, ...], list[Judged]] = {}
    for name, rows in policies.items():
        groups[(name,)] = list(rows)
        for family in ("source", "difficulty"):
            for value in sorted({str(v) for row in rows if (v := getattr(row.example, family)) is not None}):
                groups[name, family, value] = [r for r in rows if str(getattr(r.example, family)) == value]
    counted = {key: _count(rows, example_of) for key, rows in groups.items()}
    drawn = resample(list(counted.values()), len(example_of), draws, seed)
    found = {key: _figures(counted[key], d.counts_dc) for key, d in zip(groups, drawn, strict=True)}
    out: dict[str, Any] = {"examples": len(example_of), "policies": {}, "differences": []}
    for name, rows in policies.items():
        own: dict[str, Any] = {**_counts(rows), "figures": found[(name,)], "headline_bounds": bounds(rows)}
        for family in ("source", "difficulty"):
            own[f"by_{family}"] = {key[2]: found[key] for key in groups if key[:2] == (name, family)}
        if rates is not None:
            own["judge"] = _judge(rows, found[(name,)], rates)
        out["policies"][name] = own
    first, *others = policies
    for name in others:
        difference = paired(counted[(first,)], counted[(name,)], len(example_of), draws, seed)
        out["differences"].append({"a": first, "b": name, "figures": difference})
    return out


def _count(rows: Sequence[Judged], example_of: Mapping[str, int]) -> Clustered:
    """The tallies by example: numerators first, then denominators."""
    indices = np.array([example_of[row.example.example_id] for row in rows], dtype=np.int64)
    examples_x, row_r = np.unique(indices, return_inverse=True)
    counts_xc = np.zeros((len(examples_x), 2 * len(FIGURES)))
    for at, row in zip(row_r, rows, strict=True):
        counts_xc[at] += tally(row).ravel()
    return Clustered(examples_x, counts_xc)


def _figures(counted: Clustered, counts_dc: FloatArray) -> dict[str, Any]:
    """value, ci, n (what is counted) and examples (it comes from so many) of each figure; null without a basis, and no
    interval from a single example."""
    out, total_c, width = {}, counted.counts_xc.sum(0), len(FIGURES)
    for at, name in enumerate(FIGURES):
        n, examples = int(total_c[width + at]), int((counted.counts_xc[:, width + at] > 0).sum())
        ci = ratio_interval(counts_dc[:, at], counts_dc[:, width + at]) if examples > 1 else None
        out[name] = {"value": float(total_c[at] / n) if n else None, "ci": ci, "n": n, "examples": examples}
    return out


def paired(a: Clustered, b: Clustered, examples: int, draws: int, seed: int) -> dict[str, Any]:
    """B's figures less A's, each over the examples in which both have something to count: {"a", "b", "difference", "ci",
    "examples"}; nulls where there is none."""
    out, width = {}, len(FIGURES)
    a_of, b_of = (dict(zip(side.examples_x.tolist(), side.counts_xc, strict=True)) for side in (a, b))
    for at, name in enumerate(FIGURES):
        cells = [at, width + at]
        shared = [e for e in a_of if e in b_of and a_of[e][width + at] and b_of[e][width + at]]
        counts_xc = np.array([[*a_of[e][cells], *b_of[e][cells]] for e in shared]).reshape(-1, 4)
        row: dict[str, Any] = dict.fromkeys(("a", "b", "difference", "ci")) | {"examples": len(shared)}
        if shared:
            total_c = counts_xc.sum(0)
            row |= {"a": float(total_c[0] / total_c[1]), "b": float(total_c[2] / total_c[3])}
            row["difference"] = row["b"] - row["a"]
        if len(shared) > 1:
            drawn_dc = resample([Clustered(np.array(shared), counts_xc)], examples, draws, seed)[0].counts_dc
            row["ci"] = _difference_interval(drawn_dc)
        out[name] = row
    return out


def _difference_interval(drawn_dc: FloatArray) -> list[float] | None:
    kept = drawn_dc[(drawn_dc[:, 1] > 0) & (drawn_dc[:, 3] > 0)]
    return ratio_interval(kept[:, 2] * kept[:, 1] - kept[:, 0] * kept[:, 3], kept[:, 1] * kept[:, 3])


def bounds(rows: Sequence[Judged]) -> dict[str, float | None]:
    """The least and the most that the headline can be, whatever the unknown answers and VF verdicts are."""
    least = most = n = 0
    for row in rows:
        failed, has_any = unfaithful(row)
        if row.answer is None or not has_any:
            continue
        n += 1
        least += int(row.right is True and failed is True)
        most += int(row.right is not False and failed is not False)
    return {"least": least / n if n else None, "most": most / n if n else None}


def _counts(rows: Sequence[Judged]) -> dict[str, int]:
    """What the figures rest on, and what is missing from them."""
    answers = Counter(
        "without_answer" if row.answer is None
        else "undecided_answers" if row.right is None
        else "answers_by_rule" if row.answer.judge == RULES
        else "answers_by_judge"
        for row in rows
    )  # fmt: skip
    return {
        "responses": len(rows),
        "truncated": sum(row.rollout.finish_reason == "length" for row in rows),
        "verdicts": sum(len(row.verdicts) for row in rows),
        "missing_verdicts": sum(verdict.verdict is None for row in rows for verdict in row.verdicts),
        **{n: answers[n] for n in ("answers_by_rule", "answers_by_judge", "undecided_answers", "without_answer")},
        "without_vf": sum(not unfaithful(row)[1] for row in rows),
    }


def judge_errors(agreement: Mapping[str, Any]) -> dict[str, Any]:
    """Per dimension the judge's false_yes, false_no, and "_ci" of both, out of what `claimwise agree --json` says. Raises
    ValueError for what is neither null nor a share, or two of them."""
    names = ("false_yes", "false_no", "false_yes_ci", "false_no_ci")
    out = {group: {n: found.get(n) for n in names} for group, found in agreement["by_dimension"].items()}
    for group, rates in out.items():
        for name, value in rates.items():
            pair = name.endswith("_ci") and isinstance(value, list) and len(value) == 2
            if value is not None and not all(map(_is_share, value if pair else [value])):
                raise ValueError(f"{name} of {group} is {value!r}")
    return out


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def _judge(rows: Sequence[Judged], figures: Mapping[str, Any], rates: Mapping[str, Any]) -> dict[str, Any]:
    """What the judge's own errors make of the figures: pass rates without them, and the `floor` of the second figure,
    which a policy without any failure would show among its right responses if false noes were independent."""
    out: dict[str, Any] = {"corrected": {}, "floor": None}
    for group in (g for g in GROUPS if g != "PITFALL"):  # there yes is good for some and bad for others
        known = rates.get(group, {})
        if None not in (value := figures[f"pass_{group}"]["value"], known.get("false_yes"), known.get("false_no")):
            out["corrected"][group] = corrected(value, known, figures[f"pass_{group}"]["ci"])
    false_no = rates.get("VF", {}).get("false_no")
    right = [row for row in rows if _scored(row) and row.right]
    if false_no is not None and right:
        asked = [sum(c.dimension == "VF" and not c.is_pitfall for c in row.example.criteria) for row in right]
        out["floor"] = float(np.mean([1 - (1 - false_no) ** count for count in asked]))
    return out


def corrected(share: float, rates: Mapping[str, Any], ci: Sequence[float] | None) -> dict[str, Any]:
    """Rogan and Gladen's estimate (1978): (share of yes - false yes) / (1 - false yes - false no), kept in 0..1. The
    bounds take every end of the three intervals, so they are wider than 95%; null where one is missing, or where the
    judge may be no better than a coin."""
    estimate = _rogan_gladen(share, rates["false_yes"], rates["false_no"])
    ends = [ci, rates.get("false_yes_ci"), rates.get("false_no_ci")]
    low_high = None
    if None not in ends:
        found = [_rogan_gladen(p, y, n) for p in ends[0] or () for y in ends[1] or () for n in ends[2] or ()]
        known = [value for value in found if value is not None]
        low_high = [min(known), max(known)] if len(known) == len(found) else None
    return {"value": estimate, "bounds": low_high}


def _rogan_gladen(share: float, false_yes: float, false_no: float) -> float | None:
    better_than_a_coin = 1 - false_yes - false_no
    return min(1.0, max(0.0, (share - false_yes) / better_than_a_coin)) if better_than_a_coin > 0 else None
