"""`claimwise report`: one self-contained page for a run.

In: the folder of a run. Out: report.html, with the figures, plots, pictures and the credit on a real response (see
`eval.report`).
"""

from __future__ import annotations

from pathlib import Path

from ..parser import CommandParser

EPILOG = """example:
  claimwise report runs/quickstart
  claimwise report runs/quickstart --out page.html

The folder must hold summary.json. Verdict tables, held-out tables, training log and credit.json are shown where they
exist; a section whose file is missing says so. The page loads nothing: send it as a single file."""


def make_parser() -> CommandParser:
    parser = CommandParser(
        "report",
        "Write one self-contained page for a run.",
        EPILOG,
    )
    parser.add_argument("run", metavar="RUN", type=Path, help="the folder of a run")
    parser.add_argument("--out", metavar="FILE", type=Path, help="the page to write (default: RUN/report.html)")
    return parser


def main(argv: list[str] | None = None) -> int:
    args = make_parser().parse_args(argv)
    from ...eval.report import write_report

    print(f"{write_report(args.run, args.out)}: open it in a browser; it loads nothing else")
    return 0
