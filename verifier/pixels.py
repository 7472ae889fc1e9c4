"""What a model sees of an image: 8-bit RGB.

In: a PIL image of any mode. Out: RGB. Pillow's own conversion cuts 16-bit greys off at 255, so that nearly everything is
white, and shows what is see-through in the colour that lies hidden there, mostly black.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import InputError

if TYPE_CHECKING:
    from PIL.Image import Image


def as_rgb(image: Image) -> Image:
    """16-bit greys scaled to 8 bits, what is see-through on white, as a page would show it. Raises ValueError for pixels
    of 32 bits, of which nobody knows what is white."""
    from PIL import Image as pil

    if image.mode in ("I", "F"):
        raise ValueError(
            f"its greys have 32 bits (mode {image.mode}), and nothing says which is white; save it with 8 or 16"
        )
    if image.mode.startswith("I;16"):
        return image.convert("I").point(lambda grey: grey * (1 / 257)).convert("L").convert("RGB")
    if image.has_transparency_data:
        return pil.alpha_composite(pil.new("RGBA", image.size, "white"), image.convert("RGBA")).convert("RGB")
    return image.convert("RGB")


@contextmanager
def prepared(image: object) -> Iterator[None]:
    """Names the image that a model's processor refuses, as Qwen's does where one side is 200 times the other."""
    try:
        yield
    except ValueError as error:
        name = f"image {image}" if isinstance(image, (str, Path)) else "an image in memory"
        raise InputError(f"{name}: the model cannot be shown it ({error}); replace it or drop its row") from error


def is_plain(image: Image) -> bool:
    """Whether every reader sees the same: 8 bits a colour, and nothing see-through."""
    if image.has_transparency_data:
        return image.convert("RGBA").getchannel("A").getextrema()[0] == 255
    return not image.mode.startswith(("I", "F"))
