"""`claimwise audit sample`: a page on which people judge a sample of pairs of a response and a criterion.

In: examples, rollouts, and one or two verdict tables on them. Out: one HTML page that needs no network, and beside it the
key that `claimwise audit merge` needs: which pair stands where, what the judges said of it, and its chance to be drawn.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ...verifier.errors import InputError
from ...verifier.tables import read_examples, read_rollouts, read_verdicts
from ..parser import CommandParser

EPILOG = """example:
  claimwise audit sample --examples runs/quickstart/heldout/examples.parquet \\
      --rollouts runs/quickstart/heldout/rollouts.parquet --verdicts runs/quickstart/verdicts/image.jsonl \\
      --verdicts runs/quickstart/verdicts/text.jsonl --count 40 --out audit/page.html

Give the page to each person; keep page.key.jsonl, which holds the judges' verdicts, to yourself. The page shows image,
question, response and criterion, works offline and from a folder, keeps the answers in the browser, and exports them.
Pairs are drawn by source, difficulty, dimension and the judges' verdicts, rare kinds more often than their share; the key
has the weights that undo this, and `claimwise audit merge` applies them.

The sentences that the judges point at are marked only when a person asks for it, and the answer given before counts:
where no judge points at a sentence the verdict is mostly no, so that a mark, or its want, would give the verdict away."""


def make_parser() -> CommandParser:
    parser = CommandParser("audit sample", "Draw pairs of response and criterion for people to judge.", EPILOG)
    parser.add_argument("--examples", type=Path, required=True, metavar="E", help="the examples, with their images")
    parser.add_argument("--rollouts", type=Path, required=True, metavar="R", help="the responses that were judged")
    parser.add_argument(
        "--verdicts",
        type=Path,
        action="append",
        required=True,
        metavar="TABLE",
        help="a judge's verdicts on them; once or twice",
    )
    parser.add_argument("--count", type=int, required=True, metavar="N", help="how many pairs to draw")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="seed of the draw (default 0)")
    parser.add_argument("--out", type=Path, required=True, metavar="PAGE.html", help="the page to write")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def main(argv: list[str] | None = None) -> int:
    args = make_parser().parse_args(argv)
    if args.out.suffix != ".html":
        raise InputError(f"--out is {args.out}; the page's name must end in .html")
    if len(args.verdicts) > 2 or len(set(args.verdicts)) < len(args.verdicts):
        raise InputError("--verdicts is to be given once or twice, with different tables")
    from ...eval.audit_page import write_page
    from ...eval.audit_sample import draw, effective_size, mark_tells, population

    tables = {str(path): read_verdicts(path) for path in args.verdicts}
    pairs, left_out, unused = population(read_examples(args.examples), read_rollouts(args.rollouts), tables)
    drawn = draw(pairs, args.count, args.seed)
    page, key = write_page(drawn, args.out)
    result = {
        "page": str(page),
        "key": str(key),
        "mb": page.stat().st_size / 1e6,
        "population": len(pairs),
        "strata": len({pair.stratum for pair in pairs}),
        "drawn": len(drawn),
        "strata_drawn": len({one.pair.stratum for one in drawn}),
        "effective_size": effective_size(drawn),
        "left_out": left_out,
        "unused": unused,
        "mark_tells": mark_tells(drawn),
    }
    print(json.dumps(result, allow_nan=False) if args.json else as_text(result, args.count))
    return 0


def as_text(result: dict[str, Any], count: int) -> str:
    lines = [
        f"{result['page']}: {result['drawn']} of {result['population']} pairs ({result['mb']:.1f} MB), from "
        f"{result['strata_drawn']} of {result['strata']} strata; give it to each person",
        f"{result['key']}: the judges' verdicts and the weights; keep it for claimwise audit merge",
        f"weighted figures will be as sure as with {result['effective_size']:.0f} pairs of equal weight",
    ]
    if result["drawn"] < count:
        lines.append(f"there are no more than {result['drawn']} pairs, so all were taken")
    lines += [
        f"{number} pairs were left out, for {table} has no verdict on them"
        for table, number in result["left_out"].items()
        if number
    ]
    lines += [
        f"{number} verdicts of {table} are on other responses or criteria, and not used"
        for table, number in result["unused"].items()
        if number
    ]
    said = {name: ", ".join(f"{n} {what}" for what, n in of.items()) for name, of in result["mark_tells"].items()}
    lines.append(
        f"what the first judge says where a sentence could be marked: {said['marked'] or '-'}; where none: "
        f"{said['unmarked'] or '-'} (marks are shown on request only)"
    )
    return "\n".join(lines)
