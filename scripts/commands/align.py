"""`claimwise align`: find a quote in a response.

In: a UTF-8 file and a quote. Out: the quote's place and the sentences that it touches, as text or as one JSON object.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from ...verifier.align import Alignment, align
from ...verifier.errors import InputError
from ..parser import CommandParser

EPILOG = """example:
  claimwise align --response-file response.txt --quote "the total is 42" --json

A quote that begins with a dash is written --quote=-5."""


def make_parser() -> CommandParser:
    parser = CommandParser(
        "align",
        "Find a quote in a response: exactly, else without case and spacing, else by likeness.",
        EPILOG,
    )
    parser.add_argument("--response-file", type=Path, required=True, metavar="FILE", help="the response, UTF-8")
    parser.add_argument("--quote", required=True, metavar="TEXT", help="what to look for")
    parser.add_argument("--json", action="store_true", help="print one JSON object; offsets count characters from 0")
    return parser


def main(argv: list[str] | None = None) -> int:
    args = make_parser().parse_args(argv)
    response = read_text(args.response_file)
    found = align(response, args.quote)
    print(json.dumps(dataclasses.asdict(found)) if args.json else describe(response, found))
    return 0


def read_text(path: Path) -> str:
    """The file's characters as they are: line ends stay, since offsets refer to them."""
    try:
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file") from None
    except OSError as error:
        raise InputError(f"{path}: it cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start} is not UTF-8; save the response as UTF-8") from None


def describe(response: str, found: Alignment) -> str:
    if found.start is None or found.end is None:
        return "no match"
    sentence = (
        f"{response[found.sentence_start : found.start]}[[{found.text}]]{response[found.end : found.sentence_end]}"
    )
    where = f"characters {found.start}-{found.end}, sentence {found.sentence_start}-{found.sentence_end}"
    score = f", score {found.score:.1f}" if found.match == "fuzzy" else ""
    return f"{found.match} match: {where}{score}\n{sentence.rstrip()}"
