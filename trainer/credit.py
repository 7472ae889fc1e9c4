"""Component-wise credit: the advantage of every token of one group of responses (V-Rubrics, arXiv 2608.25580).

In: the criteria, and per response the answer reward, the format reward, a verdict with its deciding span for each
criterion, and the characters of each token. Out: `GroupCredit`, one float64 per token and all that led to it.

    answer      z((b_ans + b_rub) a + b_fmt f)                        every token
    scalar      z(b_ans a + b_fmt f + b_rub R_rub)                    every token, R_rub = sum_j rho_j s_j
    scalar-z    b_ans z(a) + b_fmt z(f) + b_rub z(R_rub)              every token
    component   b_ans z(a) + b_fmt z(f) + b_rub sum_j rho_j z(s_j)    every token
    prefix      the same, but term j only up to the last token of its span
    span        the same, but term j only within its span
    prefix-shuffled   a placebo for studies: as prefix, but the located spans of a response have changed places among
                its criteria, so that the masks are as long as before and stand in the wrong places

The shuffle is a derangement (no criterion keeps its own span), drawn uniformly from the response's located spans and a
seed, so that a run repeats and the order of the responses does not matter. A response with one located span keeps it; a
vetoed one looks the same shuffled, since all its criteria bear the pitfall's span.

A criterion without a span credits the whole response; so does one whose span shares no character with any token (it is
empty, or lies between tokens), since it points at nothing. Pure: numpy only. A GRPO trainer calls this once per group
with `match_rms=False` and divides by the root mean square of the whole batch itself.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..verifier.errors import InputError
from ..verifier.schema import Criterion
from .group_scores import PITFALLS, GroupScores, IntArray, PitfallSetting, ScoredResponse, is_credited, score_group
from .group_statistics import FloatArray, weighted_sum, z_of_sum, z_scores

__all__ = [
    "ARMS",
    "BUDGETS",
    "PITFALLS",
    "PLACEBO",
    "Arm",
    "Budget",
    "GroupCredit",
    "PitfallSetting",
    "Rewards",
    "ScoredResponse",
]
__all__ += ["Term", "criterion_weights", "matched", "resolve_budget", "token_advantages"]

Arm = Literal["answer", "scalar", "scalar-z", "component", "prefix", "prefix-shuffled", "span"]
ARMS: tuple[Arm, ...] = ("answer", "scalar", "scalar-z", "component", "prefix", "prefix-shuffled", "span")
PLACEBO: Arm = "prefix-shuffled"
PARTS = ("answer", "format")  # the terms that come first under every arm, before the rubric's
MINIMAL_RMS = 1e-8  # advantages below it are rounding; dividing by it would blow them up


class Budget(NamedTuple):
    """Shares of the three parts, each >= 0, together 1."""

    answer: float
    format: float
    rubric: float


BUDGETS = {
    "paper": Budget(0.5, 0.0, 0.5),
    "release-sequence": Budget(0.10, 0.10, 0.80),
    "release-prefix": Budget(0.50, 0.05, 0.45),
}


@dataclass(frozen=True)
class Rewards:
    """The rewards of one response after the veto; None is missing."""

    answer: float | None
    format: float | None
    rubric: float | None
    vetoed: bool


@dataclass(frozen=True, eq=False)
class Term:
    """One summand of the advantage: the answer, the format, the rubric as a whole, or one criterion.

    It adds `share * z_g` to the tokens `first_g` .. `last_g` (inclusive) of response g. In the arms `answer` and
    `scalar`, where only the sum is normalised, `z_g` is the part's deviation over the sum's std + eps.
    """

    name: str
    share: float
    value_g: FloatArray  # NaN where missing
    z_g: FloatArray
    first_g: IntArray
    last_g: IntArray

    @property
    def added_g(self) -> FloatArray:
        return self.share * self.z_g


@dataclass(frozen=True, eq=False)
class GroupCredit:
    """The credit of one group. Everything but `advantages` is before the division by `divisor`."""

    advantages: list[FloatArray]  # per response (T,), T its number of tokens
    rewards: list[Rewards]  # per response, after the veto
    fallbacks: (
        int  # known verdicts of credited criteria that credit a whole response for want of a span, after the veto
    )
    missing: int  # unknown verdicts of all criteria, before the veto
    terms: tuple[Term, ...]  # answer, format, then the rubric as one or by criterion
    weights: dict[str, float]  # rho by criterion id, credited criteria only
    scores: GroupScores
    rms: dict[str, float]  # over all tokens, of the parts "answer", "format", "rubric" and of their sum "advantage"
    divisor: float  # what `match_rms` divided by; 1 where it did not
    by_component: bool  # whether every criterion is a term of its own

    def added_by(self, criteria: Collection[str]) -> list[FloatArray]:
        """What the terms of these criteria add to every token, (T,) per response; where they have terms of their own. (A
        criterion may be named like the answer's term.)"""
        chosen = [term for term in self.terms[len(PARTS) :] if term.name in criteria]
        rows = [np.zeros(tokens) for tokens in self.scores.tokens_g]
        for term in chosen:
            for row, added, first, last in zip(rows, term.added_g, term.first_g, term.last_g, strict=True):
                row[first : last + 1] += added
        return rows


def resolve_budget(budget: str | Sequence[float]) -> Budget:
    """A name of `BUDGETS`, "A,F,R", or the three numbers themselves."""
    if isinstance(budget, str) and budget in BUDGETS:
        return BUDGETS[budget]
    try:
        shares = [float(share) for share in (budget.split(",") if isinstance(budget, str) else budget)]
    except (TypeError, ValueError):
        shares = []
    if len(shares) != 3:
        raise InputError(f"budget {budget!r} is unknown; give {', '.join(BUDGETS)}, or A,F,R (answer, format, rubric)")
    if not all(0 <= share <= 1 + 1e-6 for share in shares) or abs(sum(shares) - 1) > 1e-6:
        raise InputError(f"budget {budget!r}: the three shares must be >= 0 and sum to 1, here {sum(shares):g}")
    return Budget(*shares)


def criterion_weights(criteria: Sequence[Criterion], pitfalls: PitfallSetting = "veto") -> dict[str, float]:
    """rho = |w| / sum of |w| over the credited criteria, by criterion id.

    Raises InputError where that sum is zero, and where a weight is negative and no label says that this is a pitfall (its
    failure would be rewarded), so a trainer can check its examples before the first step.
    """
    for criterion in criteria:
        if criterion.label is None and criterion.weight < 0:
            raise InputError(
                f"criterion {criterion.id!r} has the weight {criterion.weight:g} and no label; give it the label "
                "PITFALL, or a weight that is not negative"
            )
    credited = [criterion for criterion in criteria if is_credited(criterion, pitfalls)]
    largest = max((abs(criterion.weight) for criterion in credited), default=0.0)
    if largest == 0:
        some = "their weights sum to zero" if credited else "there is none"
        raise InputError(f"no credited criterion counts: {some} (pitfalls: {pitfalls}); give one a weight other than 0")
    sizes = [abs(criterion.weight) / largest for criterion in credited]  # by the largest first: no sum overflows
    return {criterion.id: size / sum(sizes) for criterion, size in zip(credited, sizes, strict=True)}


def token_advantages(
    criteria: Sequence[Criterion],
    responses: Sequence[ScoredResponse],
    *,
    arm: Arm = "prefix",
    budget: str | Sequence[float] = "paper",
    pitfalls: PitfallSetting = "veto",
    match_rms: bool = False,
    shuffle_seed: Sequence[int] = (),
) -> GroupCredit:
    """The credit of one group: G >= 2 responses to one example.

    `match_rms` divides by the root mean square over all tokens of the group, unless that is below 1e-8. `shuffle_seed`,
    numbers >= 0, varies the placebo from group to group; the other arms do not read it. Raises InputError, naming
    response and criterion, where the input cannot be used.
    """
    for name, value, allowed in (("arm", arm, ARMS), ("pitfalls", pitfalls, PITFALLS)):
        if value not in allowed:
            raise InputError(f"{name} is {value!r}; it must be one of {', '.join(allowed)}")
    shares = resolve_budget(budget)
    weights = criterion_weights(criteria, pitfalls)
    scores = score_group(criteria, responses, pitfalls)
    rubric_g = weighted_sum(scores.holds_gj, np.array(list(weights.values())))
    by_component = arm in ("component", "prefix", "span", PLACEBO)
    if by_component:
        last_gj = _shuffled(scores, shuffle_seed) if arm == PLACEBO else scores.last_gj
        terms = _terms_of_components(arm, shares, scores, weights, last_gj)
    else:
        terms = _terms_of_parts(arm, shares, scores, rubric_g)
    advantages, rms = _add_up(terms, scores.tokens_g)
    divisor = rms["advantage"] if match_rms and rms["advantage"] >= MINIMAL_RMS else 1.0
    return GroupCredit(
        advantages=[advantage / divisor for advantage in advantages] if divisor != 1.0 else advantages,
        rewards=_rewards(scores, rubric_g),
        fallbacks=scores.fallbacks,
        missing=scores.missing,
        terms=terms,
        weights=weights,
        scores=scores,
        rms=rms,
        divisor=divisor,
        by_component=by_component,
    )


def matched(credits: Sequence[GroupCredit], masks: Sequence[NDArray[np.bool_]]) -> list[GroupCredit]:
    """The credits of a batch divided by the root mean square of all their advantages, unless that is below 1e-8. `masks`:
    which tokens count in it, a row (T,) per response."""
    rows = [row for credit in credits for row in credit.advantages]
    squares = sum(float(np.square(row[mask]).sum()) for row, mask in zip(rows, masks, strict=True))
    rms = (squares / max(sum(int(mask.sum()) for mask in masks), 1)) ** 0.5
    divisor = rms if rms >= MINIMAL_RMS else 1.0
    return [replace(c, advantages=[a / divisor for a in c.advantages], divisor=divisor) for c in credits]


def _terms_of_parts(arm: Arm, budget: Budget, scores: GroupScores, rubric_g: FloatArray) -> tuple[Term, ...]:
    """The arms that keep the rubric in one piece; every term covers the whole response."""
    values_gk = np.stack([scores.answer_g, scores.format_g, rubric_g], axis=1)
    shares = Budget(budget.answer + budget.rubric, budget.format, 0.0) if arm == "answer" else budget
    z_gk = z_scores(values_gk) if arm == "scalar-z" else z_of_sum(values_gk, np.array(shares))
    return tuple(_whole(name, shares[k], values_gk[:, k], z_gk[:, k], scores) for k, name in enumerate(Budget._fields))


def _terms_of_components(
    arm: Arm, budget: Budget, scores: GroupScores, weights: dict[str, float], last_gj: IntArray
) -> tuple[Term, ...]:
    """The arms with a term for each criterion: everywhere, up to its span's end, or within its span."""
    values = zip(PARTS, (scores.answer_g, scores.format_g), strict=True)
    terms = [_whole(name, getattr(budget, name), u_g, z_scores(u_g), scores) for name, u_g in values]
    z_gj = z_scores(scores.holds_gj)
    for j, (criterion_id, rho) in enumerate(weights.items()):
        term = _whole(criterion_id, budget.rubric * rho, scores.holds_gj[:, j], z_gj[:, j], scores)
        first_g = scores.first_gj[:, j] if arm == "span" else term.first_g
        last_g = term.last_g if arm == "component" else last_gj[:, j]
        terms.append(Term(term.name, term.share, term.value_g, term.z_g, first_g, last_g))
    return tuple(terms)


def _shuffled(scores: GroupScores, seed: Sequence[int]) -> IntArray:
    """`last_gj` with the located spans of each response deranged among its criteria: uniform permutations are drawn until
    one leaves no span in its place. Seeded by the response's own spans, not by its number in the group."""
    last_gj = scores.last_gj.copy()
    for g, located_j in enumerate(scores.located_gj):
        own = np.flatnonzero(located_j)
        if len(own) < 2:
            continue
        rng = np.random.default_rng([*seed, *scores.first_gj[g, own], *scores.last_gj[g, own], int(scores.tokens_g[g])])
        order = rng.permutation(len(own))
        while (order == np.arange(len(own))).any():
            order = rng.permutation(len(own))
        last_gj[g, own] = scores.last_gj[g, own[order]]
    return last_gj


def _whole(name: str, share: float, value_g: FloatArray, z_g: FloatArray, scores: GroupScores) -> Term:
    return Term(name, share, value_g, z_g, np.zeros_like(scores.tokens_g), scores.tokens_g - 1)


def _add_up(terms: tuple[Term, ...], tokens_g: IntArray) -> tuple[list[FloatArray], dict[str, float]]:
    """The advantages, and the RMS of each part. The first terms, answer and format, always cover whole responses."""
    answer_g, format_g = (term.added_g for term in terms[: len(PARTS)])
    added = [(term.added_g, term.first_g, term.last_g + 1) for term in terms[len(PARTS) :]]
    squares = {"rubric": 0.0, "advantage": 0.0}
    advantages = []
    for g, tokens in enumerate(tokens_g):
        advantage = np.zeros(tokens)
        for added_g, first_g, stop_g in added:
            advantage[first_g[g] : stop_g[g]] += added_g[g]
        squares["rubric"] += float(advantage @ advantage)
        advantage += answer_g[g] + format_g[g]
        squares["advantage"] += float(advantage @ advantage)
        advantages.append(advantage)
    squares |= {"answer": float(tokens_g @ answer_g**2), "format": float(tokens_g @ format_g**2)}
    total = max(int(tokens_g.sum()), 1)
    return advantages, {part: math.sqrt(square / total) for part, square in squares.items()}


def _rewards(scores: GroupScores, rubric_g: FloatArray) -> list[Rewards]:
    def known(value: float) -> float | None:
        return None if math.isnan(value) else float(value)

    return [
        Rewards(known(scores.answer_g[g]), known(scores.format_g[g]), known(rubric_g[g]), bool(scores.vetoed_g[g]))
        for g in range(len(rubric_g))
    ]
