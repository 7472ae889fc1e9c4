"""Answers by content, so that a question asked again costs nothing.

In: what a question consists of (who judges, image digests, question, response, criterion). Out: a key per criterion, a
bounded table from keys to answers, and within a call who waits for which. Late in training a policy gives the same
response to a prompt again and again.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, TypeVar

CAPACITY = 1 << 17  # answers, about 60 MB: eight GRPO steps of 16,000 questions

T = TypeVar("T")


def question_keys(
    judge: Sequence[str], images: Sequence[str], question: str, response: str, criteria: Sequence[str]
) -> list[bytes]:
    """A key per criterion. `judge` identifies who answers and under which prompt; `images` are digests of the pixels."""
    shared = hashlib.sha256(json.dumps([list(judge), list(images), question, response]).encode())
    keys = []
    for criterion in criteria:
        digest = shared.copy()
        digest.update(json.dumps(criterion).encode())  # JSON says where each part ends; ASCII, so any Unicode will do
        keys.append(digest.digest())
    return keys


class VerdictCache(Generic[T]):
    """At most `capacity` answers; the least recently asked goes first."""

    def __init__(self, capacity: int = CAPACITY):
        self.capacity = capacity
        self._answers: OrderedDict[bytes, T] = OrderedDict()

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, key: bytes) -> T | None:
        answer = self._answers.get(key)
        if answer is not None:
            self._answers.move_to_end(key)
        return answer

    def put(self, key: bytes, answer: T) -> None:
        self._answers[key] = answer
        self._answers.move_to_end(key)
        while len(self._answers) > self.capacity:
            self._answers.popitem(last=False)

    def clear(self) -> None:
        self._answers.clear()


class Desk(Generic[T]):
    """The questions of one call: a question that several criteria share is asked once, one whose answer is known not at
    all. `repeats` counts the criteria that were spared. Without a `cache` what is known is forgotten after the call."""

    def __init__(self, counts: Sequence[int], cache: VerdictCache[T] | None):
        self.answers: list[list[T | None]] = [[None] * count for count in counts]  # per item and criterion
        self.cache: VerdictCache[T] = VerdictCache() if cache is None else cache
        self.repeats = 0
        self._waiting: dict[bytes, list[tuple[int, int]]] = {}

    def ask(self, item: int, keys: Sequence[bytes]) -> list[int]:
        """The criteria of an item that have to be answered now; the others are known or on their way."""
        asked = []
        for k, key in enumerate(keys):
            known = self.cache.get(key)
            if known is not None:
                self.answers[item][k] = known
            else:
                waiting = self._waiting.setdefault(key, [])
                if not waiting:
                    asked.append(k)
                waiting.append((item, k))
        self.repeats += len(keys) - len(asked)
        return asked

    def take(self, key: bytes, answer: T) -> None:
        """Hands an answer to all who wait for it."""
        self.cache.put(key, answer)
        for item, k in self._waiting.pop(key):
            self.answers[item][k] = answer

    def settle(self, answered: Iterable[tuple[bytes, T]]) -> Iterator[tuple[int, list[T | None]]]:
        """Takes keys and answers as they come; (item, its answers) in order of the items, each once it is complete."""
        done = 0
        for key, answer in answered:
            self.take(key, answer)
            while done < len(self.answers) and None not in self.answers[done]:
                yield done, self.answers[done]
                done += 1
        yield from enumerate(self.answers[done:], start=done)
