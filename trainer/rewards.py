"""Rewards by rule, as plain TRL reward functions: the final answer, and the form of the response.

In: completions (text, or TRL's conversations) and the column `answer`. Out: a number per completion, or None where no
rule can decide; None is missing, never 0.
"""

from __future__ import annotations

import re

_MARKED = re.compile(r"(?is)(?:.*\banswer\s*(?:is)?\s*:\s*)(.*?)\s*$")
_BOXED = re.compile(r"\\boxed\{([^{}]*)\}")
_NUMBER = re.compile(r"[-+]?[\d.,/]+(?:e[-+]?\d+)?")


def completion_text(completion) -> str:
    """The text of a completion as TRL gives it: a string, or a conversation of one message."""
    return completion if isinstance(completion, str) else completion[-1]["content"]


def final_answer(response: str) -> str | None:
    """What stands in the last \\boxed{...}, or after the last "Answer:"; None where neither is there."""
    if boxed := _BOXED.findall(response):
        return boxed[-1].strip()
    marked = _MARKED.match(response)
    return marked[1].strip() if marked and marked[1].strip() else None


def answers_match(given: str, wanted: str) -> bool | None:
    """Equal but for case, white space and closing dots; else, where the wanted answer is a number or a formula,
    equal to math-verify. None where the wanted answer is free text, which no rule can compare."""
    a, b = (" ".join(text.split()).rstrip(".").casefold() for text in (given, wanted))
    if a == b:
        return True
    if _NUMBER.fullmatch(b) or "\\" in b:
        from math_verify import parse, verify

        return bool(verify(parse(wanted, parsing_timeout=None), parse(given, parsing_timeout=None), timeout_seconds=None))
    if len(b) == 1 or re.fullmatch(r"[\d\s.,]+", b):  # a letter, or a list of numbers
        return re.sub(r"[()\s]", "", a) == re.sub(r"[()\s]", "", b)
    return None if len(b.split()) > 3 else False


def answer_reward(completions, answer, **kwargs) -> list[float | None]:
    """1 for a right final answer, 0 for a wrong or absent one, None where no answer is known or no rule decides."""
    return [_answer(completion_text(c), wanted) for c, wanted in zip(completions, answer, strict=True)]


def _answer(response: str, wanted: str | None) -> float | None:
    if wanted is None:
        return None
    given = final_answer(response)
    if given is None:
        return 0.0
    matched = answers_match(given, wanted)
    return None if matched is None else float(matched)


def format_reward(completions, **kwargs) -> list[float]:
    """1 where a final answer can be found, else 0."""
    return [float(final_answer(completion_text(completion)) is not None) for completion in completions]
