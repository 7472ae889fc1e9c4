"""What a report is made of, whatever it is of: sections of blocks, which one page and one text are written from.

In: values, from the modules of each kind of run. Out: plain dataclasses. Texts are plain: whoever writes them out
escapes them. A cell is already a text, with what stands small beside it (an interval, a count).
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

from ..verifier.schema import Verdict
from ..verifier.tables import load_image
from .plots import Plot
from .report_credit import Credit

LARGEST_PICTURE = 768  # pixels; larger ones are shrunk for the page
TINY_PICTURE = 128  # up to here every pixel is shown as a square
UNKNOWN = "–"


class Picture(NamedTuple):
    """An image for the page: a data URI, its alternative text, whether to enlarge it pixel by pixel."""

    uri: str
    alt: str
    tiny: bool


class Cell(NamedTuple):
    text: str
    small: str = ""


@dataclass(frozen=True)
class Text:
    """`look`: plain, small ("soft"), something that is not there ("absent"), or a warning ("alarm")."""

    text: str
    look: Literal["", "soft", "absent", "alarm"] = ""
    kind: ClassVar = "text"


@dataclass(frozen=True)
class Heading:
    text: str
    kind: ClassVar = "heading"


@dataclass(frozen=True)
class Table:
    """The first cell of a row names it."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    wide: bool = False
    kind: ClassVar = "table"


@dataclass(frozen=True)
class Drawing:
    plot: Plot
    caption: str
    kind: ClassVar = "drawing"


@dataclass(frozen=True)
class Columns:
    """Blocks beside each other where there is room."""

    blocks: Sequence[Block]
    kind: ClassVar = "columns"


class Piece(NamedTuple):
    """A stretch of a response; `judge` and `gold` say whose deciding sentence it belongs to."""

    text: str
    judge: bool
    gold: bool


class Said(NamedTuple):
    """One judge's verdict in a case: who, in words, and the verdict; `p_yes` where it tells something."""

    who: str
    verdict: Verdict
    p_yes: float | None


@dataclass(frozen=True)
class Case:
    """A verdict to look at: the pictures, the criterion, the response with the deciding sentences, who said what."""

    pictures: Sequence[Picture]
    question: str
    criterion: str
    about: str  # the criterion's id and dimension
    pieces: Sequence[Piece]
    said: Sequence[Said]
    source: str  # which response it is
    kind: ClassVar = "case"


@dataclass(frozen=True)
class CreditView:
    """`name` tells the switches of one run's groups apart."""

    credit: Credit
    pictures: Sequence[Picture]
    name: str = ""
    kind: ClassVar = "credit"


Block = Text | Heading | Table | Drawing | Columns | Case | CreditView


@dataclass(frozen=True)
class Section:
    id: str
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Report:
    """A run's report. `figures` are the numbers behind it, as JSON takes them."""

    name: str
    kind: str
    lead: str
    sections: Sequence[Section]
    figures: dict[str, Any] = field(default_factory=dict)


def share(value: float | None, interval: Sequence[float | None] | None = None) -> Cell:
    """0.944, with its interval small beside it; a dash where it is unknown."""
    if interval is None or None in interval:
        return Cell(three(value))
    return Cell(three(value), f"[{three(interval[0])}, {three(interval[1])}]")


def three(value: float | None) -> str:
    """Three digits behind the point, with a minus that is one; a dash where it is unknown."""
    return UNKNOWN if value is None else f"{value:.3f}".replace("-", "−")


def signed(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:+.3f}".replace("-", "−")


def percent(value: float) -> str:
    return f"{100 * value:.1f}%"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return UNKNOWN
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def cells(*texts: str | int | Cell) -> list[Cell]:
    return [text if isinstance(text, Cell) else Cell(str(text)) for text in texts]


def picture(image: Any, alt: str) -> Picture:
    """As PNG in a data URI, at most 768 pixels a side."""
    pixels = load_image(image)
    pixels.thumbnail((LARGEST_PICTURE, LARGEST_PICTURE))
    buffer = io.BytesIO()
    pixels.save(buffer, format="PNG")
    uri = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
    return Picture(uri, alt, max(pixels.size) <= TINY_PICTURE)
