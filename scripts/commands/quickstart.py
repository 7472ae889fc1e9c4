"""claimwise quickstart: the whole product on real handwritten digits, ending in a report. No download."""

from __future__ import annotations

from ..parser import CommandParser

EXAMPLE = """example:
  claimwise quickstart --out runs/quickstart --seed 1
"""


def make_parser() -> CommandParser:
    parser = CommandParser(
        "quickstart",
        "Distil two verifiers on handwritten digits, measure them, train a policy with one of them as the "
        "judge, and write summary.json and report.html. Stopped with Ctrl-C, the same command goes on.",
        EXAMPLE,
    )
    parser.add_argument("--out", default="runs/quickstart", help="output folder (default: runs/quickstart)")
    parser.add_argument("--seed", type=int, default=0, help="another seed, other pictures and responses (default: 0)")
    return parser


def main(argv: list[str]) -> int:
    args = make_parser().parse_args(argv)
    from pathlib import Path

    from ..quickstart import quickstart

    report = quickstart(Path(args.out), args.seed)
    print(f"the report lies at {report}")
    return 0
