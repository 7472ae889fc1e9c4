"""The teacher, asked in the background: one thread of its own, whoever the teacher is.

In: verdicts of the judge, each with its example and rollout. Out: a future with the teacher's verdicts, in order. What is
urgent goes before all that waits. A teacher that fails gives missing verdicts with the reason, never an error: a training
run does not end because the one who watches it is away. The thread ends with the process, whatever it still owes.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from itertools import count
from queue import PriorityQueue
from threading import Thread

from ..verifier.errors import InputError
from ..verifier.schema import Example, Judge, Rollout, Verdict
from .judging import ask_judge

Judged = tuple[Example, Rollout, Verdict]


class BackgroundTeacher:
    def __init__(self, teacher: Judge):
        self.teacher = teacher
        self.closed = False
        self._queue: PriorityQueue[tuple[int, int, Sequence[Judged], Future]] = PriorityQueue()
        self._number = count()
        Thread(target=self._work, name="teacher", daemon=True).start()

    def ask(self, judged: Sequence[Judged], urgent: bool = False) -> Future[list[Verdict]]:
        """The teacher's verdicts on the same criteria, none where the future is cancelled before its turn."""
        if self.closed:
            raise RuntimeError("the teacher is asked after the end")
        future: Future[list[Verdict]] = Future()
        self._queue.put((0 if urgent else 1, next(self._number), judged, future))
        return future

    def close(self) -> None:
        """Lets the thread end after what it is asked to."""
        self.closed = True
        self._queue.put((2, next(self._number), (), Future()))

    def _work(self) -> None:
        while True:
            priority, _, judged, future = self._queue.get()
            if priority == 2:
                return
            if future.set_running_or_notify_cancel():
                future.set_result(self._answers(judged))

    def _answers(self, judged: Sequence[Judged]) -> list[Verdict]:
        try:
            items = [(_asked_alone(example, verdict.criterion_id), rollout) for example, rollout, verdict in judged]
            return [verdict for verdicts in ask_judge(self.teacher, items) for verdict in verdicts]
        except Exception as error:
            if len(judged) > 1:  # it may be one of them that the teacher cannot do
                return [verdict for one in judged for verdict in self._answers([one])]
            reason = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
            return self.missing([verdict for *_, verdict in judged], reason)

    def missing(self, verdicts: Sequence[Verdict], reason: str) -> list[Verdict]:
        """The teacher's verdicts where it gives none."""
        return [
            Verdict(
                v.example_id, v.rollout_id, v.criterion_id, self.teacher.name, self.teacher.mode, None, error=reason,
                dimension=v.dimension,
            )
            for v in verdicts
        ]  # fmt: skip


def _asked_alone(example: Example, criterion_id: str) -> Example:
    """The example with one criterion. Raises InputError where it has none of this id: a run may be gone on with after
    its examples were changed."""
    own = tuple(criterion for criterion in example.criteria if criterion.id == criterion_id)
    if not own:
        raise InputError(f"example {example.example_id!r} has no criterion {criterion_id!r} any more")
    return replace(example, criteria=own)
