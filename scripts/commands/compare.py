"""`claimwise compare`: two judges on the same items, with and without the image, or two verifiers.

In: two verdict tables, or one or two verifiers with examples and rollouts; perhaps references in both modes. Out: paired
tables with McNemar's test by slice, what judging cost, and what the data can tell (`eval.compare`).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...verifier.errors import InputError
from ...verifier.schema import Example, Rollout, Verdict
from ...verifier.tables import pair_up, read_examples, read_rollouts, read_verdicts, write_verdicts
from ...verifier.text import one_line
from ..parser import CommandParser

if TYPE_CHECKING:
    from ...eval.compare import Key

EPILOG = """examples:
  one verifier, with the image and with the image hidden from it:
    claimwise compare --adapter runs/quickstart/verifier-image --examples heldout/examples.parquet \\
        --rollouts heldout/rollouts.parquet --out runs/compare \\
        --reference heldout/gold-image.jsonl --text-reference heldout/gold-text.jsonl
  two verifiers, each in the mode it was distilled for:
    claimwise compare --adapter runs/quickstart/verifier-image runs/quickstart/verifier-text ...
  two tables that exist:
    claimwise compare verdicts/image.jsonl verdicts/text.jsonl --reference verdicts/gold-image.jsonl

With --reference, who is right; with --text-reference too, the pairs whose text-mode and image-mode reference differ are a
slice: there the criterion contradicts the image. --out keeps the verdict tables; the same command goes on there."""

COST = ("judge", "mode", "verdicts", "seconds", "verdicts_per_second", "tokens_per_verdict")
VIEWS = {"right": "right (has the reference's verdict)", "false_yes": "false yes (of the reference's no)"}
VIEWS |= {"says_yes": "says yes"}


def make_parser() -> CommandParser:
    parser = CommandParser("compare", "Compare two judges pair by pair: with and without the image, or two.", EPILOG)
    parser.add_argument("tables", nargs="*", type=Path, metavar="TABLE", help="two verdict tables, A and B")
    parser.add_argument(
        "--adapter", nargs="+", default=[], metavar="DIR", help="one or two verifiers, instead of tables"
    )
    parser.add_argument("--base", help="the verifiers' base model, where not the one that they name")
    parser.add_argument("--examples", type=Path, metavar="E", help="what the verifiers judge")
    parser.add_argument("--rollouts", type=Path, metavar="R", help="what the verifiers judge")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for the verifiers' verdict tables")
    parser.add_argument(
        "--reference", type=Path, metavar="TABLE", help="who is right: gold or a teacher, in image mode"
    )
    parser.add_argument("--text-reference", type=Path, metavar="TABLE", help="the same reference in text mode")
    parser.add_argument("--max-packed-tokens", type=int, default=16384, help="bound of one pass (default: 16384)")
    parser.add_draws()
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def main(argv: list[str] | None = None) -> int:
    args = make_parser().parse_args(argv)
    _check(args)
    paths, costs = (args.tables, [None, None]) if args.tables else _judge(args)
    from ...eval.compare import compare, what_it_tells

    a, b = (read_verdicts(path) for path in paths)
    reference = None if args.reference is None else read_verdicts(args.reference)
    names = (str(paths[0]), str(paths[1]), str(args.reference))
    contradicted, untold = _contradicted(args, reference)
    result = compare(a, b, reference, contradicted, args.draws, args.seed, names, untold)
    sides = [_about(path, table, cost) for path, table, cost in zip(paths, (a, b), costs, strict=True)]
    result = {"a": sides[0], "b": sides[1], **result}
    result["tells"] = what_it_tells(result, (sides[0]["mode"], sides[1]["mode"]), reference is not None)
    print(json.dumps(result, allow_nan=False) if args.json else as_text(result))
    return 0


def _check(args: argparse.Namespace) -> None:
    if bool(args.tables) == bool(args.adapter):
        raise InputError("give either two verdict tables or --adapter; claimwise compare --help shows examples")
    if args.tables and len(args.tables) != 2:
        raise InputError(f"{len(args.tables)} tables are given; a comparison takes two")
    if len(args.adapter) > 2:
        raise InputError(f"{len(args.adapter)} verifiers are given; a comparison takes one (in both modes) or two")
    absent = [name for name in ("examples", "rollouts", "out") if args.adapter and getattr(args, name) is None]
    if absent:
        raise InputError(f"--adapter needs --{absent[0]} as well")
    if args.text_reference is not None and args.reference is None:
        raise InputError("--text-reference needs --reference, in image mode")


def _contradicted(args: argparse.Namespace, image: list[Verdict] | None) -> tuple[set[Key] | None, set[Key]]:
    """The pairs whose reference differs between the modes, and those of which one of the two is missing."""
    if args.text_reference is None or image is None:
        return None, set()
    from ...eval.pairs import matched

    text = read_verdicts(args.text_reference)
    for path, table, mode in ((args.reference, image, "image"), (args.text_reference, text, "text")):
        if other := next((v for v in table if v.mode != mode), None):
            raise InputError(f"{path} has verdicts in {other.mode} mode; here it must be the reference in {mode} mode")
    rows = matched(image, text, (str(args.reference), str(args.text_reference)))
    untold = {a.key for a, b in rows if None in (a.verdict, b.verdict)}
    return {a.key for a, b in rows if a.key not in untold and a.verdict != b.verdict}, untold


def _judge(args: argparse.Namespace) -> tuple[list[Path], list[dict[str, Any]]]:
    """Both judges' tables under --out, made now or by an earlier start, and what each cost."""
    from ...verifier.adapter import read_card
    from ...verifier.rundir import open_run, write_atomic

    cards = [read_card(adapter) for adapter in args.adapter]  # refuse before torch is loaded
    pairs = pair_up(read_examples(args.examples), read_rollouts(args.rollouts))
    settings = {"adapter": [str(Path(folder).resolve()) for folder in args.adapter], "base": args.base}
    settings |= {"base_hash": [card.base_hash for card in cards], "prompt_hash": [card.prompt_hash for card in cards]}
    tables = {name: str(getattr(args, name).resolve()) for name in ("examples", "rollouts")}
    out = open_run(args.out, {"command": "compare", **settings, **tables})
    one = len(cards) == 1
    modes = ["image", "text"] if one else [card.mode for card in cards]
    paths = [out / f"{side}-{mode}.jsonl" for side, mode in zip("ab", modes, strict=True)]
    costs = []
    for path, adapter, mode in zip(paths, args.adapter * (2 if one else 1), modes, strict=True):
        record = path.with_suffix(".cost.json")
        if not (path.is_file() and record.is_file()):
            judge = _load(adapter, mode, args)
            verdicts, cost = _timed(judge, pairs)
            write_verdicts(path, verdicts)
            write_atomic(record, json.dumps(cost, indent=2) + "\n")
        costs.append(json.loads(record.read_text()))
    return paths, costs


def _load(adapter: str, mode: str, args: argparse.Namespace):
    """The verifier in its own mode, or in the other one: with the image hidden, or shown to one that learned without."""
    from ...verifier.judge import PackedJudge, load_judge
    from ...verifier.progress import only_our_bars
    from ...verifier.prompt import prompt_hash

    only_our_bars()
    judge = load_judge(adapter, base=args.base, max_packed_tokens=args.max_packed_tokens)
    if judge.mode == mode:
        return judge
    name = f"{judge.name}, image {'hidden' if mode == 'text' else 'shown'}"
    digest = prompt_hash(mode, judge.card.readings)
    card = dataclasses.replace(judge.card, name=name, mode=mode, prompt_hash=digest)
    return PackedJudge(judge.model, card, args.max_packed_tokens)


def _timed(judge, pairs: list[tuple[Example, Rollout]]) -> tuple[list[Verdict], dict[str, float]]:
    """The verdicts, with the seconds that they took here and the tokens that one forward pass reads, per verdict."""
    from tqdm import tqdm

    started = time.monotonic()
    bar = tqdm(judge.judge_each(pairs), total=len(pairs), desc=f"judging {judge.name}", unit="response")
    verdicts = [verdict for row in bar for verdict in row]
    seconds = time.monotonic() - started
    tokens = 0
    for example, rollout in pairs:
        branches = [judge.model.encoder.branch(criterion.text) for criterion in example.criteria]
        tokens += len(judge.model.tree(example, rollout.response, branches, judge.mode))
    count = max(1, len(verdicts))
    cost = {"seconds": seconds, "verdicts_per_second": len(verdicts) / seconds, "tokens_per_verdict": tokens / count}
    return verdicts, {name: round(value, 3) for name, value in cost.items()}


def _about(path: Path, verdicts: list[Verdict], cost: dict[str, float] | None) -> dict[str, Any]:
    """Who judged, in which mode, and at what cost; null where the table was there already."""
    found = {name: ", ".join(sorted({getattr(v, name) for v in verdicts})) for name in ("judge", "mode")}
    out: dict[str, Any] = {"table": str(path), **found, "verdicts": len(verdicts)}
    return out | (cost or dict.fromkeys(("seconds", "verdicts_per_second", "tokens_per_verdict")))


def as_text(result: dict[str, Any]) -> str:
    lines = _aligned([["", *(name.replace("_", " ") for name in COST)], *(_cost(result, side) for side in "ab")])
    for view, title in VIEWS.items():
        shown = {name: slice_[view] for name, slice_ in result["slices"].items() if view in slice_}
        if shown:
            head = ["n", "both", "only A", "only B", "neither", "A", "B", "B less A", "McNemar p", "Holm p"]
            lines += ["", *_aligned([[title, *head], *([name, *_paired(table)] for name, table in shown.items())])]
    missing = result["slices"]["overall"]["missing"]
    lines += ["", f"{missing} pairs with a missing verdict are not counted", "", *result["tells"]]
    return "\n".join(map(one_line, lines))


def _cost(result: dict[str, Any], side: str) -> list[str]:
    return [side.upper(), *("not measured" if result[side][name] is None else str(result[side][name]) for name in COST)]


def _paired(table: dict[str, Any]) -> list[str]:
    counts = [str(table[name]) for name in ("n", "both", "only_a", "only_b", "neither")]
    ci = table["difference_ci"]
    difference = _number(table["difference"], "+.3f") + (f" [{ci[0]:+.3f}, {ci[1]:+.3f}]" if ci else "")
    rates = [_number(table[name], ".3f") for name in ("rate_a", "rate_b")]
    return [*counts, *rates, difference, *(_number(table[name], ".2g") for name in ("mcnemar_p", "holm_p"))]


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _aligned(table: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(map(str.ljust, line, widths)).rstrip() for line in table]
