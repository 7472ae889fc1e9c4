"""What the judge says of a batch of completions.

In: examples with rollouts, a judge, and which answers no rule could compare. Out: one list of verdicts per rollout, in
the order of the criteria, and for the undecided answers a verdict on "gives the final answer X". A judge that answers
another number of criteria, or in another order, is an error: a list of the wrong length would credit the wrong tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..eval.answers import answer_criterion
from ..verifier.errors import InputError
from ..verifier.schema import Example, Judge, Rollout, Verdict
from .offsets import texts_and_offsets


@dataclass(frozen=True)
class Judgement:
    """One completion of a batch: its text, the characters (T, 2) of its tokens, a verdict per criterion of its example,
    and one on its final answer where no rule decides."""

    rollout: Rollout
    offsets: np.ndarray
    verdicts: list[Verdict]
    answer: Verdict | None = None

    @property
    def asked(self) -> list[Verdict]:
        return self.verdicts if self.answer is None else [*self.verdicts, self.answer]


def rollouts_of(tokenizer, examples: Sequence[Example], ids: Sequence[Sequence[int]], names: Sequence[str]):
    """Rollouts and the character offsets of their tokens, which refer to that very text."""
    texts = texts_and_offsets(tokenizer, ids)
    rollouts = [
        Rollout(name, example.example_id, text, "policy", i)
        for i, (name, example, (text, _)) in enumerate(zip(names, examples, texts, strict=True))
    ]
    return rollouts, [offsets for _, offsets in texts]


def judge_completions(
    judge: Judge,
    examples: Sequence[Example],
    rollouts: Sequence[Rollout],
    offsets: Sequence[np.ndarray],
    undecided: Sequence[bool],
) -> list[Judgement]:
    """`undecided`: whether the answer of a completion is left to the judge. It is asked with the completion's own rubric,
    so that it costs one criterion more and no pass."""
    asked = [_with_answer(example) if ask else example for example, ask in zip(examples, undecided, strict=True)]
    rows = ask_judge(judge, list(zip(asked, rollouts, strict=True)))
    return [
        Judgement(rollout, own, row[: len(example.criteria)], row[-1] if by_judge else None)
        for rollout, own, row, example, by_judge in zip(rollouts, offsets, rows, examples, undecided, strict=True)
    ]


def _with_answer(example: Example) -> Example:
    return replace(example, criteria=(*example.criteria, answer_criterion(example)))


def ask_judge(judge: Judge, items: Sequence[tuple[Example, Rollout]]) -> list[list[Verdict]]:
    """The judge's verdicts, a list per item. Raises InputError where they are not those that were asked for."""
    verdicts = judge.judge(items)
    wanted = [(rollout.rollout_id, criterion.id) for example, rollout in items for criterion in example.criteria]
    if len(verdicts) != len(wanted):
        raise InputError(
            f"judge {judge.name} gave {len(verdicts)} verdicts on {len(wanted)} criteria; it must give one each"
        )
    for verdict, key in zip(verdicts, wanted, strict=True):
        if verdict.key != key:
            raise InputError(f"judge {judge.name} answered {verdict.key} where {key} was asked; it must keep the order")
    rest = iter(verdicts)
    return [[next(rest) for _ in example.criteria] for example, _ in items]


def refuse_too_many_missing(verdicts: Sequence[Verdict], max_missing: float, when: str) -> None:
    """Raises InputError with the first reason where more than the share `max_missing` (0..1) has no verdict."""
    missing = [verdict for verdict in verdicts if verdict.verdict is None]
    if len(missing) > max_missing * len(verdicts):
        raise InputError(
            f"{when}: {len(missing)} of {len(verdicts)} verdicts are missing, more than max_missing = {max_missing:g}; "
            f"the first reason: {missing[0].error}"
        )
