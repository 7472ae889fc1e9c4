"""How hard an example is for a policy: how many of eight responses give the right answer (V-Rubrics, arXiv 2608.25580).

In: examples with answers, and rollouts. Out: the examples with `difficulty` set: 0 of 8 right is hard, 1 to 5 medium, 6
and 7 simple; with 8 of 8 right there is nothing to learn, and the example is left out. A response that no rule decides
is never counted as wrong: whoever is given as `decide` is asked, and what stays open leaves the difficulty open too.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..verifier.schema import Example, Rollout
from .answers import answers_match, final_answer

SAMPLES = 8
EASY = "all right"  # what an example is that is left out
Decide = Callable[[Sequence[tuple[Example, Rollout]]], Sequence[bool | None]]


@dataclass(frozen=True)
class Rated:
    """One example's count. `undecided` holds the responses that neither rules nor `decide` could judge; `missing` is how
    many of the eight are not there."""

    example: Example
    right: int
    undecided: tuple[Rollout, ...]
    missing: int = 0

    @property
    def difficulty(self) -> str | None:
        """hard, medium, simple or EASY; None where the responses that are not known could make it another one."""
        possible = {_difficulty(self.right + more) for more in range(len(self.undecided) + self.missing + 1)}
        return possible.pop() if len(possible) == 1 else None


def _difficulty(right: int) -> str:
    return "hard" if right == 0 else "medium" if right <= 5 else "simple" if right < SAMPLES else EASY


def gives_answer(response: str, answer: str | None) -> bool | None:
    """Whether the response gives the answer; None where no rule can tell: no answer is known, the response does not mark
    its own as final, or it says more than three words with the answer among them."""
    if answer is None or not answer.strip():
        return None
    marked = final_answer(response)
    given = response.strip() if marked is None else marked
    if not given:
        return False
    matched = answers_match(given, answer)
    if matched is False and (marked is None or _mentions(given, answer)):
        return None
    return matched


def _mentions(given: str, answer: str) -> bool:
    words, wanted = (f" {' '.join(_words(text))} " for text in (given, answer))
    return len(given.split()) > 3 and wanted in words


def _words(text: str) -> list[str]:
    return [word.strip(".,;:!?()\"'*$").casefold() for word in text.split()]


def rate(examples: Sequence[Example], rollouts: Sequence[Rollout], decide: Decide | None = None) -> list[Rated]:
    """The examples rated by their first eight rollouts, in the order of the examples.

    `decide` gets the (example, rollout) pairs that rules leave open and that matter, and answers each with True, False
    or None; a teacher judges them by the criterion "gives the final answer X".
    """
    by_example: dict[str, list[Rollout]] = defaultdict(list)
    for rollout in rollouts:
        by_example[rollout.example_id].append(rollout)
    rated = [_rate(example, by_example[example.example_id][:SAMPLES]) for example in examples]
    if decide is None:
        return rated
    open_pairs = [
        (row.example, rollout)
        for row in rated
        if row.difficulty is None and (row.example.answer or "").strip()
        for rollout in row.undecided
    ]
    answers = {
        rollout.rollout_id: answer
        for (_, rollout), answer in zip(open_pairs, decide(open_pairs) if open_pairs else (), strict=True)
    }
    return [_with_answers(row, answers) for row in rated]


def _rate(example: Example, rollouts: Sequence[Rollout]) -> Rated:
    given = [gives_answer(rollout.response, example.answer) for rollout in rollouts]
    undecided = tuple(rollout for rollout, right in zip(rollouts, given, strict=True) if right is None)
    return Rated(example, sum(right is True for right in given), undecided, SAMPLES - len(rollouts))


def _with_answers(rated: Rated, answers: Mapping[str, bool | None]) -> Rated:
    """The rating once `decide` has answered; what it was not asked, or could not say, stays undecided."""
    known = [answers.get(rollout.rollout_id) for rollout in rated.undecided]
    still = tuple(rollout for rollout, right in zip(rated.undecided, known, strict=True) if right is None)
    return dataclasses.replace(rated, right=rated.right + sum(right is True for right in known), undecided=still)


def kept(rated: Sequence[Rated]) -> list[Example]:
    """The examples without those that are too easy; `difficulty` is null where it is open."""
    return [dataclasses.replace(r.example, difficulty=r.difficulty) for r in rated if r.difficulty != EASY]


def counts(rated: Sequence[Rated]) -> dict[str, int]:
    """Examples by difficulty, with `open` for those that are not decided, and `undecided`: their responses."""
    found = Counter(row.difficulty or "open" for row in rated)
    names = ("hard", "medium", "simple", EASY, "open")
    return {**{name: found[name] for name in names}, "undecided": sum(len(row.undecided) for row in rated)}
