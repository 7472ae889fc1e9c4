"""What a group's judges said, as arrays: s_gj, a_g, f_g and the tokens of each span, after the veto.

In: criteria and `ScoredResponse`s. Out: `GroupScores`, in which NaN is missing, s = 1 always means good (a pitfall's
verdict is turned round), and only the credited criteria are left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..verifier.errors import InputError
from ..verifier.schema import Criterion
from .group_statistics import FloatArray, z_scores
from .spans import Span, TokenIntervals, token_intervals

PitfallSetting = Literal["veto", "veto-answer", "criterion", "off"]
PITFALLS: tuple[PitfallSetting, ...] = ("veto", "veto-answer", "criterion", "off")
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
JudgedVerdict = tuple[bool | None, Span | None]
_NOWHERE = -1  # stands for a token where no span was located


@dataclass(frozen=True, eq=False)
class ScoredResponse:
    """One response of a group. `token_offsets`: (T, 2) characters of each token, half open. `answer`: 0, 1 or None.
    `format`: 0..1 or None. `verdicts`: criterion id -> (yes, no or None, span in characters or None); a criterion
    without an entry is missing. None is missing throughout."""

    token_offsets: ArrayLike
    answer: float | None = None
    format: float | None = None
    verdicts: Mapping[str, JudgedVerdict] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class GroupScores:
    """G responses, J credited criteria, after the veto. `first_gj` and `last_gj` are the tokens (inclusive) that a
    criterion's span covers: the whole response where there is none."""

    criteria: tuple[Criterion, ...]
    answer_g: FloatArray
    format_g: FloatArray
    holds_gj: FloatArray
    first_gj: IntArray
    last_gj: IntArray
    located_gj: BoolArray
    vetoed_g: BoolArray
    tokens_g: IntArray
    missing: int  # unknown verdicts of all criteria, before the veto

    @property
    def fallback_gj(self) -> BoolArray:
        """Known verdicts that credit the whole response for want of a span."""
        return ~np.isnan(self.holds_gj) & ~self.located_gj

    @property
    def fallbacks(self) -> int:
        return int(self.fallback_gj.sum())

    @property
    def spread_j(self) -> BoolArray:
        """Which components tell the responses apart: at least two known values, and not all equal."""
        return (z_scores(self.holds_gj) != 0).any(axis=0)


def is_credited(criterion: Criterion, pitfalls: PitfallSetting) -> bool:
    return pitfalls == "criterion" or not criterion.is_pitfall


def score_group(
    criteria: Sequence[Criterion], responses: Sequence[ScoredResponse], pitfalls: PitfallSetting
) -> GroupScores:
    """Raises InputError, naming response and criterion, for whatever is out of range, unknown or named twice."""
    _check_group(criteria, responses)
    answer, formats = np.full(len(responses), np.nan), np.full(len(responses), np.nan)
    tokens = np.zeros(len(responses), dtype=np.int64)
    holds = np.full((len(responses), len(criteria)), np.nan)
    spans = np.full((len(responses), len(criteria), 2), _NOWHERE)
    for g, response in enumerate(responses):
        try:
            answer[g], formats[g] = _answer_reward(response.answer), _format_reward(response.format)
            tokens[g] = _read_verdicts(response, criteria, holds[g], spans[g])
        except InputError as error:
            raise InputError(f"responses[{g}]: {error}") from error
    first, last = spans[..., 0], spans[..., 1]
    missing = int(np.isnan(holds).sum())
    vetoed = _veto(criteria, pitfalls, answer, holds, first, last)
    credited = np.array([is_credited(criterion, pitfalls) for criterion in criteria], dtype=bool)
    holds, first, last = holds[:, credited], first[:, credited], last[:, credited]
    located = last != _NOWHERE
    return GroupScores(
        criteria=tuple(criterion for criterion in criteria if is_credited(criterion, pitfalls)),
        answer_g=answer,
        format_g=formats,
        holds_gj=holds,
        first_gj=np.where(located, first, 0),
        last_gj=np.where(located, last, tokens[:, None] - 1),
        located_gj=located,
        vetoed_g=vetoed,
        tokens_g=tokens,
        missing=missing,
    )


def _read_verdicts(
    response: ScoredResponse, criteria: Sequence[Criterion], holds_j: FloatArray, spans_j: IntArray
) -> int:
    """Fills in the response's rows, s (J,) and first and last token (J, 2); its number of tokens."""
    intervals = token_intervals(response.token_offsets)
    _refuse_unknown(response, criteria)
    for j, criterion in enumerate(criteria):
        verdict, span = response.verdicts.get(criterion.id, (None, None))
        holds_j[j] = _holds(criterion, verdict)
        if verdict is not None and span is not None:  # a span beside a missing verdict is ignored
            _check_span(criterion, span, intervals)
            spans_j[j] = intervals.locate(span) or _NOWHERE
    return len(intervals)


def _veto(
    criteria: Sequence[Criterion],
    pitfalls: PitfallSetting,
    answer: FloatArray,
    holds: FloatArray,
    first: IntArray,
    last: IntArray,
) -> BoolArray:
    """Applies the veto to the arrays in place (all criteria are still in them); which responses it hit (G,)."""
    if pitfalls not in ("veto", "veto-answer"):
        return np.zeros(len(answer), dtype=bool)
    is_pitfall = np.array([criterion.is_pitfall for criterion in criteria], dtype=bool)
    confirmed = is_pitfall & (holds == 0)
    vetoed = confirmed.any(axis=1)
    answer[vetoed] = 0.0
    if pitfalls == "veto":
        holds[vetoed] = 0.0  # missing ones too: the failure is known whatever else could not be judged
        for g in np.flatnonzero(vetoed):
            pointed = confirmed[g] & (last[g] != _NOWHERE)
            first[g] = first[g, pointed].min() if pointed.any() else _NOWHERE
            last[g] = last[g, pointed].max() if pointed.any() else _NOWHERE
    return vetoed


def _holds(criterion: Criterion, verdict: object) -> float:
    """s: 1 is good, NaN missing. A pitfall is good where the failure was not committed."""
    if verdict is None:
        return np.nan
    if not isinstance(verdict, bool | np.bool_):
        raise InputError(f"the verdict of criterion {criterion.id!r} is {verdict!r}; it must be true, false or null")
    yes_is_good = not criterion.is_pitfall or criterion.yes_means == "avoided"
    return float(bool(verdict) == yes_is_good)


def _answer_reward(answer: float | None) -> float:
    if answer is None:
        return np.nan
    if answer not in (0, 1):
        raise InputError(f"answer is {answer!r}; it must be 0, 1 or null where there was nothing to compare with")
    return float(answer)


def _format_reward(format_reward: float | None) -> float:
    if format_reward is None:
        return np.nan
    if not 0 <= format_reward <= 1:
        raise InputError(f"format is {format_reward!r}; it must lie in 0..1, or be null")
    return float(format_reward)


def _check_span(criterion: Criterion, span: Span, intervals: TokenIntervals) -> None:
    start, end = span
    if not 0 <= start <= end <= intervals.characters:
        raise InputError(
            f"the span of criterion {criterion.id!r} is {start}..{end}, outside its response; it must be 0 <= start <= "
            f"end <= {intervals.characters}, where the last token ends"
        )


def _refuse_unknown(response: ScoredResponse, criteria: Sequence[Criterion]) -> None:
    unknown = set(response.verdicts).difference(criterion.id for criterion in criteria)
    if unknown:
        known = ", ".join(criterion.id for criterion in criteria)
        raise InputError(f"a verdict on criterion {min(unknown)!r}, which is not one of the criteria ({known})")


def _check_group(criteria: Sequence[Criterion], responses: Sequence[ScoredResponse]) -> None:
    if len(responses) < 2:
        raise InputError(
            f"a group of {len(responses)}: credit compares the responses to one example; give at least two responses"
        )
    seen: set[str] = set()
    for criterion in criteria:
        if criterion.id in seen:
            raise InputError(f"criterion {criterion.id!r} is named twice; criterion ids must differ")
        seen.add(criterion.id)
