"""Rewards by rule, as plain TRL reward functions: the final answer, and the form of the response.

In: completions (text, or TRL's conversations) and the column `answer`. Out: a number per completion, or None where no
rule can decide: missing, never 0. Stock TRL, whose advantages arm `answer` leaves as they are, counts it as 0 beside
rewards that are known; so give it answers that rules can compare, or a judge.
"""

from __future__ import annotations

from ..eval.answers import answers_match, final_answer


def completion_text(completion) -> str:
    """The text of a completion as TRL gives it: a string, or a conversation of one message."""
    return completion if isinstance(completion, str) else completion[-1]["content"]


def answer_reward(completions, answer, **kwargs) -> list[float | None]:
    """1 for a right final answer, 0 for a wrong or absent one, None where no answer is known or no rule decides."""
    return [_answer(completion_text(c), wanted) for c, wanted in zip(completions, answer, strict=True)]


def _answer(response: str, wanted: str | None) -> float | None:
    if wanted is None or not wanted.strip():
        return None
    given = final_answer(response)
    if given is None:
        return 0.0
    matched = answers_match(given, wanted)
    return None if matched is None else float(matched)


def format_reward(completions, **kwargs) -> list[float]:
    """1 where a final answer can be found, else 0."""
    return [float(final_answer(completion_text(completion)) is not None) for completion in completions]
