"""An image as somebody's data gives it, checked and ready to be stored.

In: bytes, a PIL image, the undecoded image of `datasets` ({"bytes", "path"}), base64 with or without a "data:" prefix,
or a path relative to the data. Out: a `Picture`, decoded in full once, or an InputError with the reason. JPEG, PNG and
WebP are stored as they are; anything else, and what a camera held sideways, what is see-through or has 16 bits, as an
upright PNG of 8-bit RGB. The file's name is its content's, so that equal images are stored once.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..verifier.errors import InputError
from ..verifier.pixels import as_rgb, is_plain
from .layouts import is_null, shown

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = {"JPEG": ".jpg", "PNG": ".png", "WEBP": ".webp"}
SHORTEST_BASE64 = 64  # characters; no image is smaller, and a shorter string is rather a path
ORIENTATION = 0x0112  # EXIF; 1 is upright


@dataclass(frozen=True)
class Picture:
    name: str  # of its file
    data: bytes  # the file
    image: Image  # RGB, upright
    format: str  # as it came
    as_is: bool  # `data` is what came

    def store(self, folder: Path) -> Path:
        """Raises OSError where it cannot be written. No flush to the disk: one for each takes longer than all else."""
        path = folder / self.name
        if not path.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(".tmp")
            part.write_bytes(self.data)
            part.replace(path)
        return path


def read_picture(value: Any, folder: Path | None, remote: bool = False) -> Picture:
    """`folder` is what paths are relative to, None where rows come without files; `remote` allows hf:// URLs."""
    from PIL.Image import Image

    if isinstance(value, Image):
        value = _png(value)
    data = _bytes_of(value, folder, remote)
    image, kind, as_is = _decode(data)
    if not as_is:
        data = _png(image)
    suffix = SUFFIXES[kind] if as_is else ".png"
    return Picture(hashlib.sha256(data).hexdigest()[:32] + suffix, data, image, kind, as_is)


def _bytes_of(value: Any, folder: Path | None, remote: bool) -> bytes:
    if isinstance(value, Mapping) and set(value) & {"bytes", "path"}:
        value = value["bytes"] if value.get("bytes") is not None else value.get("path")
    if is_null(value):
        raise InputError("it is null, beside images that are not")
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if not isinstance(value, str):
        raise InputError(f"it is {shown(value)}; it must be bytes, base64 or a path")
    if value.startswith("data:"):
        header, _, payload = value.partition(",")
        decoded = _base64(payload) if header.endswith(";base64") else None
        if decoded is None:
            raise InputError(f"it begins with {value[:30]!r}, but no base64 follows")
        return decoded
    on_the_hub = remote and value.rpartition("::")[2].startswith("hf://")
    return _from_url(value) if on_the_hub else _from_path(value, folder)


def _from_path(text: str, folder: Path | None) -> bytes:
    path = os.path.join(folder, text) if folder is not None else None
    if path is not None and os.path.isfile(path):
        try:
            return Path(path).read_bytes()
        except OSError as error:
            raise InputError(f"{text}: it cannot be read ({error.strerror})") from None
    decoded = _base64(text) if len(text) >= SHORTEST_BASE64 else None
    if decoded is not None:
        return decoded
    if len(text) > 1000:
        raise InputError(f"the string of {len(text)} characters is neither a path nor base64")
    if "://" in text:
        raise InputError(f"{text} is a URL; download it and give its path")
    if path is None:
        raise InputError(f"the rows name the file {text} but do not hold it; download the data set and give its folder")
    raise InputError(f"there is no file {path}")


def _from_url(url: str) -> bytes:
    import fsspec

    try:
        with fsspec.open(url, "rb") as handle:
            return handle.read()  # pyright: ignore[reportAttributeAccessIssue]
    except Exception as error:  # whatever the file system behind it raises
        raise InputError(f"{url}: it cannot be read ({error})") from None


def _base64(text: str) -> bytes | None:
    try:
        return base64.b64decode("".join(text.split()), validate=True) or None
    except (binascii.Error, ValueError):
        return None


def _decode(data: bytes) -> tuple[Image, str, bool]:
    """(RGB and upright, format, may be stored as it is)."""
    from PIL import Image as pil
    from PIL import ImageOps

    if not data:
        raise InputError("it is empty")
    try:
        with warnings.catch_warnings(), pil.open(io.BytesIO(data)) as opened:
            warnings.simplefilter("ignore")  # of large pictures, odd palettes, ...
            as_is = opened.getexif().get(ORIENTATION, 1) == 1 and not getattr(opened, "is_animated", False)
            as_is = as_is and opened.format in SUFFIXES and is_plain(opened)
            image = as_rgb(ImageOps.exif_transpose(opened))
            kind = opened.format or "?"
    except pil.UnidentifiedImageError:
        raise InputError(f"its {len(data)} bytes are no image that can be read") from None
    except Exception as error:  # broken files make decoders raise what they like
        raise InputError(f"it is broken ({error})") from None
    if 0 in image.size:
        raise InputError(f"it has no pixels ({image.width} x {image.height})")
    return image, kind, as_is


def _png(image: Image) -> bytes:
    if 0 in image.size:
        raise InputError(f"it has no pixels ({image.width} x {image.height})")
    buffer = io.BytesIO()
    try:
        as_rgb(image).save(buffer, format="PNG")
    except (OSError, ValueError) as error:  # a PIL image reads its file only now
        raise InputError(f"it is broken ({error})") from None
    return buffer.getvalue()
