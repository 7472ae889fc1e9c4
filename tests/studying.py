"""What the tests of studies share."""

from __future__ import annotations

from contextlib import contextmanager

import pytest


@contextmanager
def stopped_in_the_second_run(module):
    """`carry_out` of the module is interrupted the second time it is called; yields the tasks that it is given."""
    started, carry_out = [], module.carry_out

    def carried_out(task, **rest):
        started.append(task)
        if len(started) == 2:
            raise KeyboardInterrupt
        return carry_out(task, **rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "carry_out", carried_out)
        yield started
