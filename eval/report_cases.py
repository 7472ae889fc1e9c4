"""Verdicts to look at, and tables of verdicts against verdicts: what the reports of several kinds of run share.

In: examples, responses and verdicts. Out: blocks (see `report_blocks`).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from ..verifier.schema import Example
from . import plots
from .report_blocks import Block, Drawing, Picture, Piece, Table, Text, cells, picture

NOT_ATTACKED = (
    "Adversarial slice: not measured in this run. claimwise judge --adversarial attacks the judge, and claimwise agree "
    "--attacks shows how often it is talked into yes."
)
CONFUSION = ("both yes", "false no", "false yes", "both no", "missing")
Span = tuple[int, int] | None


def pieces(text: str, judge: Span, gold: Span) -> list[Piece]:
    """The response, cut where the judge's or gold's deciding sentence begins or ends."""
    cuts = sorted({0, len(text), *(end for span in (judge, gold) if span for end in span)})

    def inside(span: Span, start: int) -> bool:
        return span is not None and span[0] <= start < span[1]

    return [Piece(text[a:b], inside(judge, a), inside(gold, a)) for a, b in pairwise(cuts)]


def pictures_of(example: Example) -> list[Picture]:
    alt = f"The picture of example {example.example_id}: {example.question}"
    return [picture(image, alt) for image in example.images]


def confusion_table(caption: str, counts: Mapping[str, Mapping[str, int]]) -> Table:
    """`counts` as `report_figures.confusion` returns them."""
    rows = [cells(group, *(row[name] for name in CONFUSION)) for group, row in counts.items()]
    return Table(caption, ["", *CONFUSION], rows)


def reliability_block(bins: dict[str, list[tuple[float, float, int]]]) -> Block:
    if not bins:
        return Text("No verdict of this run has a P(yes), so there is no reliability diagram.", "absent")
    caption = (
        "Reliability: of the verdicts given with that P(yes), how many are yes for the reference. On the dotted line "
    )
    return Drawing(plots.reliability(bins), caption + "P(yes) says what it means. Larger points rest on more verdicts.")
