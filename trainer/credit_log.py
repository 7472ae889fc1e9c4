"""What a step's credit looked like, as numbers for the log.

In: the judgements and credits of all processes, the advantages as they were used, and the tokens that bear loss. Out: a
flat dictionary. By group of criteria (VF, RC, IF, PITFALL): the share of yes, of spans located and of missing verdicts;
where the rubric is credited by criterion, also the share of components without spread, the fallbacks, the root mean
square beside the answer's, and the mean advantage by position decile (of the response's tokens), as it was used: what
the answer, the format and the dimensions add makes up the whole.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from .credit import MINIMAL_RMS, GroupCredit
from .group_statistics import FloatArray
from .judging import Judgement

DECILES = 10
BoolRow = np.ndarray  # (T,) of bool


def verdict_figures(judgements: Sequence[Judgement]) -> dict[str, float]:
    """Rates of the verdicts themselves, with or without a group to compare in."""
    by_name = defaultdict(list)
    for judgement in judgements:
        for verdict in judgement.verdicts:
            by_name[verdict.dimension or "other"].append(verdict)
    figures = {}
    for name, verdicts in sorted(by_name.items()):
        known = [v for v in verdicts if v.verdict is not None]
        figures[f"rubric/{name}/yes"] = _mean([bool(v.verdict) for v in known])
        figures[f"rubric/{name}/located"] = _mean([v.span is not None for v in known])
        figures[f"rubric/{name}/missing"] = 1 - len(known) / len(verdicts)
    figures["answer/by_judge"] = _mean([j.answer is not None for j in judgements])
    return figures


def credit_figures(
    credits: Sequence[GroupCredit], used: Sequence[FloatArray], loss_masks: Sequence[BoolRow]
) -> dict[str, float]:
    """`used` and `loss_masks`: a row (T,) per response, groups in the order of `credits`."""
    rewards = [reward for credit in credits for reward in credit.rewards]
    answer, tenths = _root_mean_square(credits, "answer"), _Tenths(loss_masks)
    figures = {
        "rubric/reward": _mean([reward.rubric for reward in rewards if reward.rubric is not None]),
        "rubric/vetoed": _mean([reward.vetoed for reward in rewards]),
        "rubric/fallbacks": float(sum(credit.fallbacks for credit in credits)),
        "rubric/to_answer_rms": _ratio(_root_mean_square(credits, "rubric"), answer),
        "answer/missing": _mean([reward.answer is None for reward in rewards]),
        **tenths.means("advantage", used),
    }
    for name in sorted({c.group or "other" for credit in credits for c in credit.scores.criteria}):
        figures |= _component_figures(name, credits, answer, tenths)
    return figures


def _component_figures(
    name: str, credits: Sequence[GroupCredit], answer_rms: float, tenths: _Tenths
) -> dict[str, float]:
    """The criteria of one dimension; of the credit itself only where the arm credits the rubric by criterion."""
    scores = [credit.scores for credit in credits]
    columns = [[(c.group or "other") == name for c in s.criteria] for s in scores]
    spread = np.concatenate([s.spread_j[own] for s, own in zip(scores, columns, strict=True)])
    fallbacks = sum(int(s.fallback_gj[:, own].sum()) for s, own in zip(scores, columns, strict=True))
    figures = {f"rubric/{name}/no_spread": 1 - _mean(spread), f"rubric/{name}/fallbacks": float(fallbacks)}
    if all(credit.by_component for credit in credits):
        ids = [{c.id for c in s.criteria if (c.group or "other") == name} for s in scores]
        by_credit = [credit.added_by(own) for credit, own in zip(credits, ids, strict=True)]
        everything = np.concatenate([row for rows in by_credit for row in rows])
        rms = float(everything @ everything / max(len(everything), 1)) ** 0.5
        figures[f"rubric/{name}/to_answer_rms"] = _ratio(rms, answer_rms)
        used = [row / credit.divisor for credit, rows in zip(credits, by_credit, strict=True) for row in rows]
        figures |= tenths.means(f"rubric/{name}/advantage", used)
    return figures


class _Tenths:
    """The loss-bearing tokens by tenth of their response."""

    def __init__(self, loss_masks: Sequence[BoolRow]):
        tenth = np.concatenate([np.arange(len(mask)) * DECILES // max(len(mask), 1) for mask in loss_masks])
        self.mask = np.concatenate(loss_masks)
        self.tenth = tenth[self.mask]
        self.counts = np.bincount(self.tenth, minlength=DECILES)

    def means(self, name: str, rows: Sequence[FloatArray]) -> dict[str, float]:
        """Of a row (T,) per response; NaN in a tenth that no response reaches into."""
        sums = np.bincount(self.tenth, np.concatenate(rows)[self.mask], DECILES)
        means = np.divide(sums, self.counts, out=np.full(DECILES, np.nan), where=self.counts > 0)
        return {f"{name}/decile_{i + 1:02d}": float(mean) for i, mean in enumerate(means)}


def _root_mean_square(credits: Sequence[GroupCredit], part: str) -> float:
    """Over all tokens of all groups."""
    tokens = np.array([credit.scores.tokens_g.sum() for credit in credits])
    return float(
        np.sqrt((np.array([credit.rms[part] for credit in credits]) ** 2 * tokens).sum() / max(tokens.sum(), 1))
    )


def _ratio(rubric: float, answer: float) -> float:
    return rubric / answer if answer > MINIMAL_RMS else float("nan")


def _mean(values) -> float:
    return float(np.mean(values)) if len(values) else float("nan")
