"""Judging by a server where an event loop runs already, as in a notebook."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time

import pytest
from claimwise.verifier import InputError, load_judge
from claimwise.verifier.schema import Criterion, Example, Rollout
from judging import said
from servers import Server, judge, status

CRITERIA = tuple(Criterion(f"c{n}", f"It says {n}.", dimension="VF") for n in range(6))
ITEMS = [(Example("e", "What?", CRITERIA), Rollout("r", "e", "It says 0. It says 2. It says 4.", "p"))]


async def in_a_cell(work, *args):
    """As a notebook calls it: from code that a running loop runs."""
    assert asyncio.get_running_loop().is_running()
    return work(*args)


def test_a_judge_behind_a_server(recwarn):
    before = set(threading.enumerate())
    with Server() as server:
        apart, here = (load_judge(None, "text", server=server.url, model="m", max_in_flight=2) for _ in range(2))
        verdicts = asyncio.run(in_a_cell(here.judge, ITEMS))
        assert said(verdicts) == said(apart.judge(ITEMS))
        assert [v.verdict for v in verdicts] == [True, False] * 3
        assert said(asyncio.run(in_a_cell(here.judge, ITEMS))) == said(verdicts) and len(server.calls) == 12
    assert not [one for one in recwarn if "never awaited" in str(one.message)]
    left = [thread.name for thread in threading.enumerate() if thread not in before]
    assert all("process_request_thread" in name for name in left)  # the server's; the judge's own have ended


def test_an_error_comes_through():
    with Server(lambda call: status(401, "no")) as server:
        asked = load_judge(None, "text", server=server.url, model="m")
        with pytest.raises(InputError, match="refuses the key"):
            asyncio.run(in_a_cell(asked.judge, ITEMS))


def test_it_can_be_stopped():
    """Ctrl-C while the server takes a minute for each call."""

    def interrupt():
        while not server.calls:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    def cell():
        with pytest.raises(KeyboardInterrupt):
            asked.judge(ITEMS)
        return time.monotonic()

    with Server(lambda call: judge(call, wait_s=60)) as server:
        asked = load_judge(None, "text", server=server.url, model="m")
        loop = asyncio.new_event_loop()  # asyncio.run would take the signal for itself; a notebook leaves it
        threading.Thread(target=interrupt).start()
        assert loop.run_until_complete(in_a_cell(cell)) - server.calls[0].at < 30
        loop.close()
