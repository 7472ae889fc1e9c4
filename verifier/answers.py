"""From what a verifier wrote to verdict rows: the part of a judge that does not depend on where its model runs.

In: per criterion an `Answer` (label, reading, margin of yes over no), or a `Missing` with its reason. Out: verdicts. A
margin that is no number is a missing verdict.
"""

from __future__ import annotations

import datetime
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from .adapter import VerifierCard
from .prompt import PromptEncoder
from .schema import Criterion, Example, Mode, Rollout, Verdict
from .sentences import LABELS, split_sentences, trim

if TYPE_CHECKING:
    from .packed import Answer


@dataclass(frozen=True)
class Missing:
    """No answer, and why."""

    reason: str


class VerifierJudge(ABC):
    """A judge that asks a distilled verifier. `repeats` counts the verdicts that took no question of their own."""

    def __init__(self, card: VerifierCard, encoder: PromptEncoder):
        self.card, self.name, self.repeats = card, card.name, 0
        self.mode: Mode = cast(Mode, card.mode)
        self.encoder = encoder
        self._label_of = {index: label for label, index in encoder.label_ids.items()}

    def judge(self, items: Iterable[tuple[Example, Rollout]]) -> list[Verdict]:
        """Verdicts of all criteria of each item, in order."""
        return [verdict for verdicts in self.judge_each(items) for verdict in verdicts]

    @abstractmethod
    def judge_each(self, items: Iterable[tuple[Example, Rollout]]) -> Iterator[list[Verdict]]:
        """The same, a list per item, in order, as they are ready."""

    def _verdicts(self, example: Example, rollout: Rollout, answers: Sequence[Any]) -> list[Verdict]:
        sentences = split_sentences(rollout.response)
        pairs = zip(example.criteria, answers, strict=True)
        return [self._verdict(rollout, criterion, answer, sentences) for criterion, answer in pairs]

    def _verdict(self, rollout: Rollout, criterion: Criterion, answer: Answer | Missing, sentences) -> Verdict:
        found: dict[str, Any] = {"verdict": None}
        if isinstance(answer, Missing):
            found["error"] = answer.reason
        elif math.isnan(answer.margin):
            found["error"] = "nan: the model gives no number for yes and no"
        else:
            found = self._read(rollout.response, answer, sentences)
        return Verdict(
            example_id=rollout.example_id,
            rollout_id=rollout.rollout_id,
            criterion_id=criterion.id,
            judge=self.name,
            mode=self.mode,
            prompt_hash=self.card.prompt_hash,
            created_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            dimension=criterion.group,
            **found,
        )

    def _read(self, response: str, answer: Answer, sentences) -> dict[str, Any]:
        label = self._label_of[answer.label_id]
        start, end = trim(response, sentences[LABELS.index(label)]) if label in LABELS else (None, None)
        return {
            "verdict": answer.margin > 0,
            "p_yes": sigmoid(answer.margin / self.card.temperature),
            "span_start": start,
            "span_end": end,
            "match": "pointer" if start is not None else "none",
            "reading": self.encoder.tokenizer.decode(answer.reading_ids).strip() if self.card.readings else None,
        }


def sigmoid(margin: float) -> float:
    """In double precision, and without overflow at either end."""
    return 1 / (1 + math.exp(-margin)) if margin >= 0 else math.exp(margin) / (1 + math.exp(margin))
