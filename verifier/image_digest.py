"""What identifies an image: its pixels, whatever file or object they come from.

In: a file, or an image in memory. Out: a digest of what a model would see; or, where that would take too long, what
changes whenever a file does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from pathlib import Path
from typing import TYPE_CHECKING

from .tables import load_image

if TYPE_CHECKING:
    from PIL.Image import Image


def digest_of(image: Path | Image) -> str:
    """Of an image, or a file's. Raises InputError as `load_image` does."""
    return digest_of_pixels(load_image(image))


def digest_of_pixels(rgb: Image) -> str:
    return hashlib.sha256(repr(rgb.size).encode() + rgb.tobytes()).hexdigest()


def state_of(image: Path | Image) -> Hashable:
    """What differs once an image has been changed in place: of a file its time and size, of one in memory its pixels."""
    if not isinstance(image, Path):
        return digest_of(image)
    try:
        found = image.stat()
    except OSError:  # `load_image` says what is wrong with it
        return image
    return image, found.st_mtime_ns, found.st_size


class Digests:
    """`digest_of`, which reads no file again that is as it was."""

    def __init__(self) -> None:
        self._known: dict[Hashable, str] = {}

    def __call__(self, image: Path | Image) -> str:
        if not isinstance(image, Path):
            return digest_of(image)
        state = state_of(image)
        if state not in self._known:
            self._known[state] = digest_of(image)
        return self._known[state]
