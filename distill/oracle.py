"""The oracle teacher of the digits world: people's own labelling, as a judge like any other."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Sequence

from ..verifier.schema import Example, Mode, Rollout, Verdict
from .digits import gold, share_read, truth_of, verdict_of


class OracleJudge:
    """Answers every criterion from the human labels, with the deciding sentence and what the image shows there."""

    def __init__(self, mode: Mode):
        self.mode: Mode = mode
        self.name = f"oracle-{mode}"

    def judge(self, items: Iterable[tuple[Example, Rollout]]) -> list[Verdict]:
        """Verdicts of all criteria of each item, in order. Raises InputError for an example of another world."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        return [
            self._verdict(rollout, criterion, truth, now)
            for example, rollout in items
            for truth in [truth_of(example)]
            for criterion in example.criteria
        ]

    def _verdict(self, rollout: Rollout, criterion, truth, now: str) -> Verdict:
        answer = gold(criterion, rollout.response, truth)
        verdict = verdict_of(answer, self.mode)
        start, end = answer.span or (None, None)
        return Verdict(
            example_id=rollout.example_id,
            rollout_id=rollout.rollout_id,
            criterion_id=criterion.id,
            judge=self.name,
            mode=self.mode,
            verdict=verdict,
            p_yes=float(verdict),
            span_start=start,
            span_end=end,
            match="exact" if answer.span else "none",
            reading=(answer.reading or "") if self.mode == "image" else None,
            created_at=now,
            dimension=criterion.group,
        )


def reading_monitor(examples: Sequence[Example]) -> Callable[..., list[float]]:
    """A TRL reward function that is logged and never rewarded: the share of a picture's digits that each completion
    reads right (0..1), against the human labels."""
    by_id = {example.example_id: example for example in examples}

    def digits_read(completions, example_id, **kwargs) -> list[float]:
        texts = [completion[-1]["content"] for completion in completions]
        return [share_read(text, by_id[e]) for text, e in zip(texts, example_id, strict=True)]

    return digits_read
