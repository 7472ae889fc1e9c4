"""The verifier as a judge: examples and responses in, verdicts out (`load_judge`).

judge = load_judge("runs/verifier", mode="image")
verdicts = judge.judge([(example, rollout), ...])
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import cast

import torch

from .adapter import MERGED, VerifierCard, check_base, read_card
from .batching import Row, batches, runs, siblings
from .cache import Desk, VerdictCache, question_keys
from .errors import InputError
from .model import VisionLanguageModel, adapter_hash, base_hash, load_model
from .packed import Answer, answer_trees
from .prompt import prompt_hash
from .schema import Criterion, Example, Mode, Rollout, Verdict
from .sentences import LABELS, NO_SENTENCE, split_sentences, trim
from .shared_prefix import Opening
from .tree import Tree

MAX_PACKED_TOKENS = 16384


class PackedJudge:
    """A verifier that encodes image and question once per example, and judges all criteria of a response in one packed
    pass that goes on from there; several responses make a batch.

    `max_packed_tokens` bounds one batch, padding included, but for the few tokens that are decoded; a response whose
    criteria exceed it alone is judged in several passes, never cut. A question that comes twice in a call is answered
    once. With a `cache`, which wants a model whose weights stay as they are, so is one that comes again in a later
    call; `adapter` identifies the weights there. `repeats` counts the verdicts that took no pass of their own.
    """

    def __init__(
        self,
        model: VisionLanguageModel,
        card: VerifierCard,
        max_packed_tokens: int = MAX_PACKED_TOKENS,
        cache: VerdictCache[Answer] | None = None,
        adapter: str = "",
    ):
        self.model, self.card, self.max_packed_tokens, self.cache = model, card, max_packed_tokens, cache
        self.name = card.name
        self.mode: Mode = cast(Mode, card.mode)
        self.repeats = 0
        self.adapter = adapter
        self._identity = (adapter, card.base_hash, card.prompt_hash, card.mode, str(model.backbone.dtype))
        self._label_of = {index: label for label, index in model.encoder.label_ids.items()}
        self._branch = lru_cache(maxsize=4096)(model.encoder.branch)  # a rubric comes with each of its responses

    def judge(self, items: Sequence[tuple[Example, Rollout]]) -> list[Verdict]:
        """Verdicts of all criteria of each item, in order."""
        return [verdict for verdicts in self.judge_each(items) for verdict in verdicts]

    def judge_each(self, items: Sequence[tuple[Example, Rollout]]) -> Iterator[list[Verdict]]:
        """The same, a list per item, in order, as batches finish. Siblings are judged together: tables in which they
        stand together flow evenly."""
        self.model.model.eval()
        desk: Desk[Answer] = Desk([len(example.criteria) for example, _ in items], self.cache)
        done = 0
        for batch in batches(self._rows(items, desk), self.max_packed_tokens):
            for key, answer in self._answer(batch):
                desk.take(key, answer)
            while done < len(items) and None not in desk.answers[done]:
                yield self._verdicts(*items[done], desk.answers[done])
                done += 1
        self.repeats += desk.repeats
        for item, answers in zip(items[done:], desk.answers[done:], strict=True):
            yield self._verdicts(*item, answers)

    def _rows(self, items: Sequence[tuple[Example, Rollout]], desk: Desk[Answer]) -> Iterator[Row]:
        """What has to be asked, siblings together."""
        for group in siblings(items):
            example = items[group[0]][0]
            images = [self.model.picture(image).digest for image in example.images] if self.mode == "image" else []
            opening = None
            for index in group:
                example, rollout = items[index]
                texts = [criterion.text for criterion in example.criteria]
                keys = question_keys(self._identity, images, example.question, rollout.response, texts)
                asked = desk.ask(index, keys)
                if asked:
                    opening = Opening(self.model.opening(example, self.mode)) if opening is None else opening
                    criteria = [example.criteria[k] for k in asked]
                    yield from self._split(opening, rollout, criteria, [keys[k] for k in asked])

    def _split(self, opening: Opening, rollout: Rollout, criteria: Sequence[Criterion], keys) -> Iterator[Row]:
        """Rows of one response; more than one where its criteria do not fit together."""
        encoder, sentences = self.model.encoder, split_sentences(rollout.response)
        own = encoder.response(rollout.response, sentences)
        labels = [encoder.label_ids[label] for label in (NO_SENTENCE, *LABELS[: len(sentences)])]
        branches = [self._branch(criterion.text) for criterion in criteria]
        room = self.max_packed_tokens - len(opening) - len(own)
        for criterion, branch in zip(criteria, branches, strict=True):
            if len(branch) > room:
                needed = self.max_packed_tokens - room + len(branch)
                raise InputError(
                    f"criterion {criterion.id!r} of rollout {rollout.rollout_id!r} needs {needed} tokens, more than "
                    f"max_packed_tokens = {self.max_packed_tokens}"
                )
        for part in runs([len(branch) for branch in branches], room):
            yield Row(opening, Tree(own, branches[part]), labels, keys[part])

    def _answer(self, batch: Sequence[Row]) -> Iterator[tuple[bytes, Answer]]:
        trees, labels = [row.tree for row in batch], [row.labels for row in batch]
        openings = [row.opening for row in batch]
        answered = answer_trees(self.model, trees, labels, self.card.readings, openings)
        for row, answers in zip(batch, answered, strict=True):
            yield from zip(row.keys, answers, strict=True)

    def _verdicts(self, example: Example, rollout: Rollout, answers) -> list[Verdict]:
        sentences = split_sentences(rollout.response)
        return [self._verdict(rollout, c, a, sentences) for c, a in zip(example.criteria, answers, strict=True)]

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


def load_judge(
    adapter: str | Path,
    mode: Mode | None = None,
    base: str | Path | None = None,
    max_packed_tokens: int = MAX_PACKED_TOKENS,
    dtype: torch.dtype | str = "auto",
    device: str | torch.device | None = None,
) -> PackedJudge:
    """The verifier of an adapter folder, on the base that it names (or `base`), checked against its hashes; or one that
    is merged into its base.

    `mode` refuses an adapter that was trained for the other mode. The judge remembers its answers; after a change of its
    weights call `judge.cache.clear()`. Raises InputError for a folder that is not a
    verifier's, another prompt or another base.
    """
    from peft import PeftModel

    card = read_card(adapter)
    if mode is not None and mode != card.mode:
        raise InputError(f"{adapter} is a verifier for {card.mode} mode; it cannot judge in {mode} mode")
    path = base or resolve_base(card, Path(adapter))
    check_base(card, adapter, base_hash(path), path)
    model = load_model(path, dtype=dtype)
    if card.base != MERGED:
        model.model = PeftModel.from_pretrained(model.model, adapter)
    model.model.eval().requires_grad_(False)
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    model.model.to(device)
    return PackedJudge(model, card, max_packed_tokens, VerdictCache(), adapter_hash(adapter))


def base_judge(model: VisionLanguageModel, mode: str, name: str, readings: bool) -> PackedJudge:
    """A judge without an adapter, under the same prompt: what distillation is measured against."""
    card = VerifierCard(name, model.path, "", prompt_hash(mode, readings), mode, readings)
    return PackedJudge(model, card)


def resolve_base(card: VerifierCard, adapter: Path) -> str | Path:
    """The base that a card names: a Hub name, an absolute folder, or one relative to the adapter's folder."""
    beside = adapter / card.base
    return beside.resolve() if beside.is_dir() else card.base
