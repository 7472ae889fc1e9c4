"""The work of `claimwise evaluate`: verdicts on responses and on their answers, each kept as soon as it is there.

In: responses with their examples, and a judge. Out: under the run's folder `verdicts.jsonl` and `answers.jsonl` (a
verdict per response: by rules, else by the judge on "gives the final answer X"), and the responses as `Judged`.

Each response's verdicts are a line of `verdicts.jsonl.part` before the next is waited for. The same command goes on from
there, and judges the responses again of which a verdict is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..eval.answers import ANSWER, answer_criterion
from ..eval.difficulty import gives_answer
from ..eval.policy import RULES, Judged
from ..verifier.errors import InputError
from ..verifier.schema import Example, Verdict
from ..verifier.tables import read_verdicts, write_verdicts
from .judging import Item, complete, judge_rest, known_in, open_part

MAX_MISSING = 0.5  # with more of the verdicts missing the judge is to be mended, not the policy reported on


def by_rules(items: Sequence[Item]) -> list[bool | None]:
    """Whether each response gives the answer; None where no rule can tell, or there is no answer."""
    return [gives_answer(rollout.response, example.answer) for example, rollout in items]


def asked(items: Sequence[Item], decided: Sequence[bool | None]) -> list[Item]:
    """The items with the criterion on the final answer behind the rubric where that is left to the judge: it costs one
    criterion more and no pass."""
    out = []
    for (example, rollout), right in zip(items, decided, strict=True):
        if right is None and has_answer(example):
            example = replace(example, criteria=(*example.criteria, answer_criterion(example)))
        out.append((example, rollout))
    return out


def has_answer(example: Example) -> bool:
    return bool((example.answer or "").strip())


def judged(items: Sequence[Item], decided: Sequence[bool | None], rows: Sequence[Sequence[Verdict]]) -> list[Judged]:
    """`rows`: the verdicts on each of `asked(items, decided)`."""
    out = []
    for (example, rollout), right, row in zip(items, decided, rows, strict=True):
        verdicts, answer = list(row), None
        if right is not None:
            answer = Verdict(example.example_id, rollout.rollout_id, ANSWER, RULES, "text", right)
        elif has_answer(example):
            answer = verdicts.pop()
        out.append(Judged(example, rollout, verdicts, answer))
    return out


def judge_all(folder: Path, items: Sequence[Item], open_judge: Callable[[], Any]) -> list[Judged]:
    """All verdicts, those of an earlier start included, and both tables. Raises InputError where more than `MAX_MISSING`
    of the verdicts are missing."""
    decided = by_rules(items)
    questions = asked(items, decided)
    with open_part(folder / "verdicts.jsonl", {"command": "evaluate"}) as part:  # the folder knows the settings
        known = _stored(folder) | known_in(part)
        if not all(complete(item, known) for item in questions):
            judge_rest(questions, known, open_judge(), part)
        rows = [known.get(rollout.rollout_id, []) for _, rollout in questions]  # none where nothing is asked
        _refuse_too_many_missing([verdict for row in rows for verdict in row])
        out = judged(items, decided, rows)
        write_verdicts(folder / "answers.jsonl", [row.answer for row in out if row.answer is not None])
        write_verdicts(folder / "verdicts.jsonl", [verdict for row in out for verdict in row.verdicts])
        part.remove()
    return out


def _stored(folder: Path) -> dict[str, list[Verdict]]:
    """The verdicts of a finished run by rollout, the judge's on the answer last."""
    known: dict[str, list[Verdict]] = {}
    for table in (folder / "verdicts.jsonl", folder / "answers.jsonl"):
        for verdict in read_verdicts(table) if table.is_file() else ():
            if verdict.judge != RULES:
                known.setdefault(verdict.rollout_id, []).append(verdict)
    return known


def _refuse_too_many_missing(verdicts: Sequence[Verdict]) -> None:
    missing = [verdict for verdict in verdicts if verdict.verdict is None]
    if len(missing) > MAX_MISSING * len(verdicts):
        raise InputError(
            f"{len(missing)} of {len(verdicts)} verdicts are missing, the first because: {missing[0].error}; mend the "
            "judge, and the same command asks for them again"
        )
