"""`claimwise agree`: how far two verdict tables agree.

In: two verdict tables on the same rollouts and criteria, the first being the reference; perhaps the examples, for the
dimensions. Out: a table of figures, or one JSON object (see `eval.agreement`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ...verifier.tables import read_examples, read_verdicts
from ..parser import CommandParser

EPILOG = """example:
  claimwise agree runs/quickstart/verdicts/gold-image.jsonl runs/quickstart/verdicts/image.jsonl

TABLE_A is the reference: false yes is the share of yes in B among A's no, false no the share of no in B among A's yes.
Missing verdicts are counted and never scored. Spans are compared where both verdicts are known and A has a span.
Brackets: 95% intervals, bootstrapped over examples."""


def make_parser() -> CommandParser:
    parser = CommandParser(
        "agree",
        "How far two verdict tables agree, overall and per dimension.",
        EPILOG,
    )
    parser.add_argument("table_a", metavar="TABLE_A", type=Path, help="the reference's verdicts, .jsonl or .parquet")
    parser.add_argument("table_b", metavar="TABLE_B", type=Path, help="the verdicts to compare with it")
    parser.add_argument(
        "--examples", type=Path, metavar="E", help="take each criterion's dimension from this examples table"
    )
    parser.add_argument("--draws", type=int, default=1000, metavar="N", help="bootstrap draws (default 1000)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="seed of the bootstrap (default 0)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def main(argv: list[str] | None = None) -> int:
    args = make_parser().parse_args(argv)
    from ...eval.agreement import agree

    dimensions = None
    if args.examples is not None:
        dimensions = {(e.example_id, c.id): c.group for e in read_examples(args.examples) for c in e.criteria}
    tables = read_verdicts(args.table_a), read_verdicts(args.table_b)
    result = agree(*tables, args.draws, args.seed, dimensions, names=(str(args.table_a), str(args.table_b)))
    print(json.dumps(result) if args.json else as_table(result))
    return 0


def as_table(result: dict[str, Any]) -> str:
    metrics = ("agreement", "kappa", "false_yes", "false_no", "span_exact", "span_iou")
    lines = [["", "n", "missing A", "missing B", *(name.replace("_", " ") for name in metrics)]]
    for group, figures in {"overall": result["overall"], **result["by_dimension"]}.items():
        counts = [str(figures[name]) for name in ("n", "missing_a", "missing_b")]
        lines.append([group, *counts, *(_figure(figures[m], figures[f"{m}_ci"]) for m in metrics)])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def _figure(value: float | None, interval: list[float] | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" + (f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval else "")
