"""One process at a time in an output folder.

In: the folder, made where it is not there. Out: a block in which no other process of ours is; an InputError where one is.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..verifier.errors import InputError


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """The lock is on the folder itself and leaves nothing in it; it ends with the block, or with the process."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is no folder; give the name of a new one")
    try:
        out.mkdir(parents=True, exist_ok=True)
        handle = os.open(out, os.O_RDONLY)
    except OSError as error:
        raise InputError(f"{out} cannot be used ({error.strerror}); give another folder") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise InputError(f"{out}: another process writes it; wait for it to end, or give another folder") from None
    try:
        yield
    finally:
        os.close(handle)
