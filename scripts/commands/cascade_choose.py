"""`claimwise cascade band`: which P(yes) of a verifier go to the teacher.

In: verdict tables of teacher and verifier on the same rollouts. Out: the band with agreement, coverage and cost of it and
of others, as text or JSON (see `eval.cascade_band`); with --out as the file that `claimwise cascade judge` takes.
"""

from __future__ import annotations

import json
from pathlib import Path

from ...verifier.errors import InputError
from ..parser import CommandParser

EXAMPLE = """example:
  claimwise cascade band --reference runs/quickstart/verdicts/gold-image.jsonl \\
      --verifier runs/quickstart/verdicts/image.jsonl --agreement 0.99 --price 0.002 \\
      --out cascade.json --plot cascade.html

The band is chosen on half of the examples: the fewest calls with which the lower end of the 95% interval of the
cascade's agreement with the teacher reaches what is wanted. What it then does is measured on the other half. A teacher
that answers agrees with itself, unless --ceiling says how often it does when it is asked again (claimwise agree
--ceiling)."""


def make_parser() -> CommandParser:
    parser = CommandParser("cascade band", "Choose which P(yes) of a verifier go to the teacher.", EXAMPLE)
    add = parser.add_argument
    add("--reference", type=Path, required=True, metavar="TABLE", help="the teacher's verdicts, .jsonl or .parquet")
    add("--verifier", type=Path, required=True, metavar="TABLE", help="the verifier's verdicts on the same rollouts")
    add(
        "--agreement",
        type=float,
        required=True,
        metavar="A",
        help="the agreement with the teacher that is wanted (0..1)",
    )
    add("--share", type=float, default=0.5, metavar="S", help="share of examples to choose on (default: 0.5; 1: all)")
    add("--ceiling", type=float, default=1.0, metavar="C", help="the teacher's agreement with itself (default: 1)")
    add("--price", type=float, metavar="P", help="money that a call of the teacher costs (a call is one criterion)")
    parser.add_draws("the halves and of the bootstrap")
    add("--out", type=Path, metavar="FILE.json", help="write the band, and how it was chosen")
    add("--plot", type=Path, metavar="FILE.html", help="write a page: agreement against coverage and cost")
    add("--json", action="store_true", help="print one JSON object")
    return parser


def main(argv: list[str]) -> int:
    args = make_parser().parse_args(argv)
    for path, suffix in ((args.out, ".json"), (args.plot, ".html")):
        if path is not None and path.suffix != suffix:
            raise InputError(f"{path}: its name must end in {suffix}")
    from ...eval.cascade_band import choose_band
    from ...verifier.rundir import write_atomic
    from ...verifier.tables import read_verdicts

    found = choose_band(
        read_verdicts(args.reference),
        read_verdicts(args.verifier),
        args.agreement,
        args.share,
        args.ceiling,
        args.price,
        args.draws,
        args.seed,
        (str(args.reference), str(args.verifier)),
    )
    from ...eval.cascade_page import as_page, as_text

    files = (
        (args.out, lambda: json.dumps(found, indent=2, allow_nan=False) + "\n"),
        (args.plot, lambda: as_page(found)),
    )
    for path, text in files:
        if path is not None:
            try:
                write_atomic(path, text())
            except OSError as error:
                raise InputError(f"{path}: it cannot be written ({error})") from None
    print(json.dumps(found, allow_nan=False) if args.json else as_text(found))
    return 0
