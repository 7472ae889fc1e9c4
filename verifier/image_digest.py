"""What identifies an image.

In: a file, or an image in memory. Out: a digest of its pixels, whatever they come from; or, where to look at all pictures
would take too long, one of the file; or what changes whenever the image does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import InputError
from .tables import load_image

if TYPE_CHECKING:
    from PIL.Image import Image


def digest_of(image: Path | Image) -> str:
    """Of an image, or a file's. Raises InputError as `load_image` does."""
    return digest_of_pixels(load_image(image))


def digest_of_pixels(rgb: Image) -> str:
    return hashlib.sha256(repr(rgb.size).encode() + rgb.tobytes()).hexdigest()


def stored_digest(image: Path | Image) -> str:
    """Of a file its bytes, so that another which shows the same has another one; of an image in memory its pixels."""
    return file_digest(image) if isinstance(image, Path) else digest_of(image)


def file_digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal. Raises InputError where it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{path}: it cannot be read ({error.strerror})") from None


def state_of(image: Path | Image) -> Hashable:
    """What differs once an image has been changed in place: of a file its time and size, of one in memory its pixels."""
    if not isinstance(image, Path):
        return digest_of(image)
    try:
        found = image.stat()
    except OSError:  # `load_image` says what is wrong with it
        return image
    return image, found.st_mtime_ns, found.st_size
