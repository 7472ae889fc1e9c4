"""Runs vLLM for `claimwise serve`, and ends it with all that it has started as soon as standard input closes, as it does
when the serving process ends, in whatever way: no handler there sees SIGKILL.

    python serve_guard.py FOLDER COMMAND ...

In: a pipe as standard input that nobody writes to; it leads a process group of its own. Out: the command's exit status,
128 and the number for a signal. When the pipe closes first, the whole group ends, this process with it, and FOLDER, the
command's temporary one, is removed. It imports nothing of the project, for it lives as long as vLLM does.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from select import select

GRACE_S = 20.0
POLL_S = 0.2


def main(argv: list[str]) -> int:
    folder, *command = argv
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # it is in the group that it ends; SIG_IGN would be vLLM's as well
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    while child.poll() is None:
        if select([sys.stdin], [], [], POLL_S)[0]:
            _end(child, folder)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _end(child: subprocess.Popen, folder: str) -> None:
    os.killpg(os.getpgrp(), signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        child.wait(GRACE_S)
    shutil.rmtree(folder, ignore_errors=True)
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
