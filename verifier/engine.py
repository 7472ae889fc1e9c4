"""Judging by an engine that generates token by token and shares prefixes by itself: vLLM, in this process or behind a
server.

In: examples and responses. Out: questions in tree order (all criteria of a response one after the other, all responses to
an example likewise, the criterion last), each the whole prompt as token ids, so that nothing in the data can become a
special token; and from the answers, verdicts. Numbers may differ a little with what else is in a batch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from .adapter import VerifierCard
from .answers import Missing, VerifierJudge
from .batching import siblings
from .cache import Desk, VerdictCache, question_keys
from .errors import InputError
from .image_digest import digest_of_pixels, state_of
from .packed import Answer
from .pixels import prepared
from .prompt import SYSTEM, PromptEncoder
from .schema import Example, Rollout, Verdict
from .sentences import LABELS, NO_SENTENCE, split_sentences
from .tables import load_image
from .turn import Turn

KEPT_PICTURES = 1024  # what is kept of each is a digest and a count


@dataclass(frozen=True)
class Shown:
    """An image of the prompt: a digest of its pixels, by which the engine may know it, and its number of tokens."""

    digest: str
    tokens: int
    source: Any  # the image or its path


@dataclass(frozen=True)
class Question:
    """One criterion of one response. `ids` has one placeholder for each image, which the engine expands; `opening` of
    them are shared by all responses to the example."""

    ids: list[int]
    opening: int
    labels: list[int]
    images: tuple[Shown, ...]
    key: bytes

    @property
    def length(self) -> int:
        """Tokens of the prompt once the placeholders are expanded."""
        return len(self.ids) + sum(image.tokens - 1 for image in self.images)


class _Known(VerdictCache[Answer | Missing]):
    """What is missing is asked again."""

    def put(self, key: bytes, answer: Answer | Missing) -> None:
        if not isinstance(answer, Missing):
            super().put(key, answer)


class EngineJudge(VerifierJudge):
    """A verifier in an engine. `processor` is the base's; `adapter` identifies the adapter's weights in the cache.

    A question that comes again is answered from memory. One that brings no answer has a missing verdict with its reason
    and is asked again next time.
    """

    def __init__(self, card: VerifierCard, processor: Any, adapter: str):
        super().__init__(card, PromptEncoder(processor.tokenizer))
        self.processor, self.adapter = processor, adapter
        self.cache: VerdictCache[Answer | Missing] = _Known()
        self._identity = (adapter, card.base_hash, card.prompt_hash, card.mode)
        self._branch = lru_cache(maxsize=4096)(self.encoder.branch)
        self._shown: OrderedDict[Hashable, Shown] = OrderedDict()

    @abstractmethod
    def _answers(self, questions: Iterator[Question]) -> Iterator[tuple[bytes, Answer | Missing]]:
        """A key and an answer for each question, in any order."""

    def judge_each(self, items: Iterable[tuple[Example, Rollout]]) -> Iterator[list[Verdict]]:
        items = list(items)
        desk: Desk[Answer | Missing] = Desk([len(example.criteria) for example, _ in items], self.cache)
        for index, answers in desk.settle(self._answers(self._questions(items, desk))):
            yield self._verdicts(*items[index], answers)
        self.repeats += desk.repeats

    def turn(self, question: Question) -> Turn:
        return Turn(self.encoder, question.labels, self.card.readings)

    def questions(
        self, example: Example, rollout: Rollout, keys: Sequence[bytes], asked: Iterable[int]
    ) -> list[Question]:
        """The questions on the criteria with the numbers `asked`; `keys` has a key for each criterion."""
        encoder, sentences, images = self.encoder, split_sentences(rollout.response), self.images(example)
        opening = encoder.opening(example.question, [1] * len(images), SYSTEM[self.mode])
        prefix = opening + encoder.response(rollout.response, sentences)
        labels = [encoder.label_ids[label] for label in (NO_SENTENCE, *LABELS[: len(sentences)])]
        branches = [(k, self._branch(example.criteria[k].text)) for k in asked]
        return [Question(prefix + branch, len(opening), labels, images, keys[k]) for k, branch in branches]

    def _questions(self, items: Sequence[tuple[Example, Rollout]], desk: Desk) -> Iterator[Question]:
        for group in siblings(items):
            digests = [image.digest for image in self.images(items[group[0]][0])]
            for index in group:
                example, rollout = items[index]
                texts = [criterion.text for criterion in example.criteria]
                keys = question_keys(self._identity, digests, example.question, rollout.response, texts)
                yield from self.questions(example, rollout, keys, desk.ask(index, keys))

    def images(self, example: Example) -> tuple[Shown, ...]:
        """The images that the prompt shows; none in text mode. Raises InputError where there should be one."""
        if self.mode == "text":
            return ()
        if not example.images:
            raise InputError(f"example {example.example_id!r} has no image; judge it in text mode")
        return tuple(self._show(image) for image in example.images)

    def _show(self, image: Any) -> Shown:
        key = state_of(image)
        if key not in self._shown:
            rgb, process = load_image(image), self.processor.image_processor
            with prepared(image):
                patches = process.get_number_of_image_patches(rgb.height, rgb.width, {})
            self._shown[key] = Shown(digest_of_pixels(rgb), patches // process.merge_size**2, image)
            if len(self._shown) > KEPT_PICTURES:
                self._shown.popitem(last=False)
        return self._shown[key]
