"""`claimwise report`: one self-contained page for one or several runs, the same as Markdown, and the figures as JSON.

In: folders of runs. Out: report.html, report.md and report.json (see `eval.report`).
"""

from __future__ import annotations

from pathlib import Path

from ..parser import CommandParser

EPILOG = """example:
  claimwise report runs/quickstart
  claimwise report runs/grpo runs/study-arms --out runs/page.html

A run is the output folder of quickstart, distill, train or study; which, its run.json says. What a run does not have is
said in its place. The page loads nothing: send it as a single file. Beside it lie the same text as Markdown (.md) and the
figures (.json: {"runs": [{"name", "kind", "figures"}]}). The same runs give the same files."""


def make_parser() -> CommandParser:
    parser = CommandParser("report", "Write one self-contained page for a run, or for several.", EPILOG)
    parser.add_argument("runs", metavar="RUN", type=Path, nargs="+", help="the folder of a run")
    parser.add_argument(
        "--out", metavar="FILE.html", type=Path, help="the page (default for a single run: RUN/report.html)"
    )
    return parser


def main(argv: list[str] | None = None) -> int:
    args = make_parser().parse_args(argv)
    from ...eval.report import write_report

    page = write_report(args.runs, args.out)
    print(f"{page}: open it in a browser; it loads nothing else ({page.stem}.md and {page.stem}.json beside it)")
    return 0
