"""The verifier as a judge: examples and responses in, verdicts out (`load_judge`).

judge = load_judge("runs/verifier", mode="image")
verdicts = judge.judge([(example, rollout), ...])
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import cast

import torch

from .adapter import VerifierCard, check_base, read_card
from .errors import InputError
from .model import VisionLanguageModel, base_hash, load_model
from .packed import Answer, answer_trees
from .prompt import prompt_hash
from .schema import Example, Mode, Rollout, Verdict
from .sentences import LABELS, split_sentences, trim
from .tree import Tree

MAX_PACKED_TOKENS = 16384


class PackedJudge:
    """A verifier that judges all criteria of a response in one packed pass; several responses make a batch.

    `max_packed_tokens` bounds one batch, padding included; a response whose criteria exceed it alone is judged in
    several passes, never cut.
    """

    def __init__(self, model: VisionLanguageModel, card: VerifierCard, max_packed_tokens: int = MAX_PACKED_TOKENS):
        self.model, self.card, self.max_packed_tokens = model, card, max_packed_tokens
        self.name = card.name
        self.mode: Mode = cast(Mode, card.mode)
        encoder = model.encoder
        self._label_of = {index: label for label, index in encoder.label_ids.items()}

    def judge(self, items: Sequence[tuple[Example, Rollout]]) -> list[Verdict]:
        """Verdicts of all criteria of each item, in order."""
        return [verdict for verdicts in self.judge_each(items) for verdict in verdicts]

    def judge_each(self, items: Sequence[tuple[Example, Rollout]]) -> Iterator[list[Verdict]]:
        """The same, a list per item, as batches finish; for progress bars and long tables."""
        self.model.model.eval()
        units = [(i, piece) for i, item in enumerate(items) for piece in self._pieces(*item)]
        answered: dict[int, list[Verdict]] = {}
        done = 0
        for batch in _batches(units, self.max_packed_tokens):
            for index, verdicts in self._judge_batch(items, batch):
                answered.setdefault(index, []).extend(verdicts)
            while done < len(items) and len(answered.get(done, ())) == len(items[done][0].criteria):
                yield answered.pop(done)
                done += 1

    def _pieces(self, example: Example, rollout: Rollout) -> Iterator[tuple[Tree, int]]:
        """Trees of one response with the index of each one's first criterion; more than one where it does not fit."""
        branches = [self.model.encoder.branch(criterion.text) for criterion in example.criteria]
        whole = self.model.tree(example, rollout.response, branches, self.mode)
        room = self.max_packed_tokens - len(whole.prefix)
        first, used = 0, 0
        for k, branch in enumerate(branches):
            if len(branch) > room:
                raise InputError(
                    f"criterion {example.criteria[k].id!r} of rollout {rollout.rollout_id!r} needs "
                    f"{len(whole.prefix) + len(branch)} tokens, more than max_packed_tokens = {self.max_packed_tokens}"
                )
            if used + len(branch) > room:
                yield Tree(whole.prefix, branches[first:k], whole.pixel_values, whole.image_grid_thw), first
                first, used = k, 0
            used += len(branch)
        yield Tree(whole.prefix, branches[first:], whole.pixel_values, whole.image_grid_thw), first

    def _judge_batch(self, items, batch) -> Iterator[tuple[int, list[Verdict]]]:
        trees = [tree for _, (tree, _) in batch]
        sentences = [split_sentences(items[index][1].response) for index, _ in batch]
        label_ids = self.model.encoder.label_ids
        allowed = [[label_ids["-"], *(label_ids[label] for label in LABELS[: len(own)])] for own in sentences]
        answers = answer_trees(self.model, trees, allowed, self.card.readings)
        for (index, (_, first)), own, row in zip(batch, sentences, answers, strict=True):
            example, rollout = items[index]
            criteria = example.criteria[first : first + len(row)]
            yield index, [self._verdict(rollout, c, a, own) for c, a in zip(criteria, row, strict=True)]

    def _verdict(self, rollout: Rollout, criterion, answer: Answer, sentences) -> Verdict:
        label = self._label_of[answer.label_id]
        pointed = label in LABELS
        start, end = trim(rollout.response, sentences[LABELS.index(label)]) if pointed else (None, None)
        reading = self.model.processor.tokenizer.decode(answer.reading_ids).strip() if self.card.readings else None
        return Verdict(
            example_id=rollout.example_id,
            rollout_id=rollout.rollout_id,
            criterion_id=criterion.id,
            judge=self.name,
            mode=self.mode,
            verdict=answer.margin > 0,
            p_yes=_sigmoid(answer.margin / self.card.temperature),
            span_start=start,
            span_end=end,
            match="pointer" if start is not None else "none",
            reading=reading,
            prompt_hash=self.card.prompt_hash,
            created_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            dimension=criterion.group,
        )


def _sigmoid(margin: float) -> float:
    """In double precision, and without overflow at either end."""
    return 1 / (1 + math.exp(-margin)) if margin >= 0 else math.exp(margin) / (1 + math.exp(margin))


def _batches(units: Iterable, limit: int) -> Iterator[list]:
    """Consecutive units whose padded size stays within `limit` tokens."""
    batch, longest = [], 0
    for unit in units:
        length = len(unit[1][0])
        if batch and max(longest, length) * (len(batch) + 1) > limit:
            yield batch
            batch, longest = [], 0
        batch.append(unit)
        longest = max(longest, length)
    if batch:
        yield batch


def load_judge(
    adapter: str | Path,
    mode: Mode | None = None,
    base: str | Path | None = None,
    max_packed_tokens: int = MAX_PACKED_TOKENS,
    dtype: torch.dtype | str = "auto",
    device: str | torch.device | None = None,
) -> PackedJudge:
    """The verifier of an adapter folder, on the base that it names (or `base`), checked against its hashes.

    `mode` refuses an adapter that was trained for the other mode. Raises InputError for a folder that is not a
    verifier's, another prompt or another base.
    """
    from peft import PeftModel

    card = read_card(adapter)
    if mode is not None and mode != card.mode:
        raise InputError(f"{adapter} is a verifier for {card.mode} mode; it cannot judge in {mode} mode")
    path = base or resolve_base(card, Path(adapter))
    check_base(card, adapter, base_hash(path), path)
    model = load_model(path, dtype=dtype)
    model.model = PeftModel.from_pretrained(model.model, adapter).eval().requires_grad_(False)
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    model.model.to(device)
    return PackedJudge(model, card, max_packed_tokens)


def base_judge(model: VisionLanguageModel, mode: str, name: str, readings: bool) -> PackedJudge:
    """A judge without an adapter, under the same prompt: what distillation is measured against."""
    card = VerifierCard(name, model.path, "", prompt_hash(mode, readings), mode, readings)
    return PackedJudge(model, card)


def resolve_base(card: VerifierCard, adapter: Path) -> str | Path:
    """The base that a card names: a Hub name, an absolute folder, or one relative to the adapter's folder."""
    beside = adapter / card.base
    return beside.resolve() if beside.is_dir() else card.base
