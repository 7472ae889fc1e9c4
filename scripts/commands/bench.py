"""claimwise bench NAME: figures measured here and now, for a person or as one JSON object on the last line.

A bench is a module of `benches` with `DESCRIPTION`, `EXAMPLE`, `add_flags(parser)` and `measure(args) -> dict` of figures
by name; it prints nothing on standard output. To add one, name it in BENCHES.
"""

from __future__ import annotations

import importlib
import json

from ..parser import CommandParser

BENCHES = ("distill", "eval", "judge", "label", "trainer")  # modules of `benches`
EXAMPLE = """example:
  claimwise bench label --json

claimwise bench NAME --help shows what a bench measures and its flags."""


def main(argv: list[str]) -> int:
    name = next((word for word in argv if word in BENCHES), None)
    if name is None:
        return _overview(argv)
    bench = importlib.import_module(f"...benches.{name}", __name__)
    parser = CommandParser(f"bench {name}", bench.DESCRIPTION, bench.EXAMPLE)
    bench.add_flags(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    rest = list(argv)
    rest.remove(name)
    args = parser.parse_args(rest)
    figures = bench.measure(args)
    print(json.dumps(figures) if args.json else "\n".join(f"{key:<24} {value}" for key, value in figures.items()))
    return 0


def _overview(argv: list[str]) -> int:
    """Help, or the error that no bench was named."""
    parser = CommandParser("bench", "Measure a part of claimwise on this machine.", EXAMPLE)
    parser.add_argument("name", choices=BENCHES, help="what to measure")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    parser.parse_args(argv)
    return 2  # not reached: without a name the parser refuses or shows the help
