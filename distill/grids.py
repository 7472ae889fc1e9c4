"""The grids in which the digits of the embedded world's pictures stand: names of the places, lines one can ask for.

Out: `TWO`, the world that is shipped, and `THREE`, whose responses are twice as long; with each the patterns by which
its sentences and its criteria are read back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, eq=False)
class Grid:
    """`positions` row by row; `lines` names the places of each row and column, in reading order."""

    side: int
    positions: tuple[str, ...]
    lines: Mapping[str, tuple[int, ...]]

    @cached_property
    def read(self) -> re.Pattern[str]:
        """A sentence that reads a digit: place, negation, digit."""
        place = "|".join(self.positions)
        return re.compile(rf"(?i)(?:at )?the (?:digit at the )?({place})(?: digit)? (?:is|I see) (not )?(\d)\.?\s*$")

    @cached_property
    def conclusion(self) -> re.Pattern[str]:
        """A sentence that concludes: line, digits."""
        line = "|".join(self.lines)
        return re.compile(rf"(?i)(?:so|thus) the ({line}) (?:reads|is)((?: \d){{{self.side}}})\.?\s*$")

    @cached_property
    def placed(self) -> re.Pattern[str]:
        """A criterion on a reading, or a pitfall: its first word, place, digit."""
        return re.compile(rf"(States|Reads|Wrongly) .*?({'|'.join(self.positions)}) digit (?:is|as) (\d)\.")


TWO = Grid(
    2,
    ("top-left", "top-right", "bottom-left", "bottom-right"),
    {"top row": (0, 1), "bottom row": (2, 3), "left column": (0, 2), "right column": (1, 3)},
)
THREE = Grid(
    3,
    (
        "top-left", "top-centre", "top-right",
        "middle-left", "centre", "middle-right",
        "bottom-left", "bottom-centre", "bottom-right",
    ),
    {
        "top row": (0, 1, 2), "middle row": (3, 4, 5), "bottom row": (6, 7, 8),
        "left column": (0, 3, 6), "middle column": (1, 4, 7), "right column": (2, 5, 8),
    },
)  # fmt: skip
WORLDS = {"2x2": TWO, "3x3": THREE}


def grid_of(digits: Sequence[object]) -> Grid:
    """The grid that so many digits fill."""
    return {len(grid.positions): grid for grid in WORLDS.values()}[len(digits)]
