"""A cascade as the judge of a GRPO run, in one process or several: one budget, and none of it spent twice.

In: completions, in each process its own. Out: verdicts on them. Each process judges by the verifier; the main one asks
the teacher about the uncertain verdicts of all, the least certain first, and tells the others. With a `memory` a run that
is gone on with asks nothing again and has what is left of its budget; steps that are taken again find their answers in
it.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object

from ..verifier.cascade import CascadeJudge
from ..verifier.errors import InputError
from ..verifier.schema import Example, Rollout, Verdict


class RunCascade(CascadeJudge):
    """`judge` wants to be called by all processes together, as the trainer does."""

    def judge(self, items: Iterable[tuple[Example, Rollout]]) -> list[Verdict]:
        """As a cascade's. Raises InputError in all processes where the teacher refuses the first question."""
        state = PartialState()
        items = list(items)
        own = self.first.judge(items)
        parts = gather_object([(items, own)])
        settled: list[list[Verdict] | str] = [""]
        if state.is_main_process:
            settled = [self._settled_or_refused(*(list(chain(*part)) for part in zip(*parts, strict=True)))]
        broadcast_object_list(settled)
        if isinstance(settled[0], str):
            raise InputError(settled[0])
        start = sum(len(verdicts) for _, verdicts in parts[: state.process_index])
        return settled[0][start : start + len(own)]

    def _settled_or_refused(self, items: list[tuple[Example, Rollout]], own: list[Verdict]) -> list[Verdict] | str:
        """The verdicts, or why there are none."""
        try:
            return self.settle(items, own)
        except InputError as error:
            return str(error)
