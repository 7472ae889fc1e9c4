"""`claimwise agree`: how far two verdict tables agree.

In: two verdict tables on the same rollouts and criteria, the first being the reference; perhaps the examples and
rollouts, to break the figures down by; perhaps tables in which the reference was asked again. Out: tables of figures, or
one JSON object (see `eval.agreement`).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...verifier.tables import read_examples, read_rollouts, read_verdicts
from ...verifier.text import one_line
from ..parser import CommandParser

BREAKDOWNS = ("dimension", "label", "source", "difficulty", "length", "policy", "slice")
EPILOG = """examples:
  claimwise agree runs/quickstart/verdicts/gold-image.jsonl runs/quickstart/verdicts/image.jsonl
  claimwise agree teacher.jsonl verifier.jsonl --ceiling teacher-again.jsonl --by label,length,slice \\
      --examples heldout/examples.parquet --rollouts heldout/rollouts.parquet

TABLE_A is the reference: false yes is the share of yes in B among A's no, false no the share of no in B among A's yes;
AUROC and ECE are of B's P(yes) against A's verdicts. Missing verdicts are counted and never scored. Spans are compared
where both verdicts are known and A has a span, the ends where both have one. Brackets: 95% intervals, bootstrapped over
examples. A figure without a basis is "-", and the reason stands below.

--ceiling: what the reference agrees with itself, asked again (claimwise label with a new --ledger), in other words
(with criteria reworded in the examples, their ids kept) or in the other mode (--mode), is what B's figures are to be read
against. A judge that always gives the teacher's likelier answer can agree with it a little more often
than the teacher with itself; the most it can reach is printed too.

--attacks: the share of attacks that talk B into yes, with its Wilson interval, and the share of each kind."""

TABLES = (
    ("agreement", "kappa", "false_yes", "false_no", "span_exact", "span_iou"),  # with the counts
    ("balanced_accuracy", "ac1", "f1_yes", "f1_no", "auroc", "ece"),
    ("span_end_chars", "span_end_tokens"),
)


def make_parser() -> CommandParser:
    parser = CommandParser("agree", "How far two verdict tables agree, overall and per dimension.", EPILOG)
    parser.add_argument("table_a", metavar="TABLE_A", type=Path, help="the reference's verdicts, .jsonl or .parquet")
    parser.add_argument("table_b", metavar="TABLE_B", type=Path, help="the verdicts to compare with it")
    parser.add_argument(
        "--ceiling",
        type=Path,
        action="append",
        default=[],
        metavar="TABLE",
        help="the reference's own verdicts once more, on all pairs or some; may be given several times",
    )
    parser.add_argument(
        "--by",
        type=_names,
        default=[],
        metavar="NAME,...",
        help=f"break down by {', '.join(BREAKDOWNS)}, or all that the tables given allow (dimension always is)",
    )
    parser.add_argument("--examples", type=Path, metavar="E", help="examples: dimension, label, source, difficulty")
    parser.add_argument("--rollouts", type=Path, metavar="R", help="rollouts: length, policy, slice")
    parser.add_argument(
        "--attacks",
        type=Path,
        metavar="TABLE",
        help="B's verdicts on the adversarial suite, as `judge --adversarial` writes them, with the attacks beside them",
    )
    parser.add_argument("--tokenizer", metavar="DIR", help="with --rollouts: distances of span ends in tokens as well")
    parser.add_draws()
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in (*BREAKDOWNS, "all")]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(BREAKDOWNS)}, all")
    return names


def main(argv: list[str] | None = None) -> int:
    args = make_parser().parse_args(argv)
    from ...eval.agreement import agree, ceiling

    reference, other = read_verdicts(args.table_a), read_verdicts(args.table_b)
    settings = _settings(args, {verdict.rollout_id for verdict in reference})
    result = agree(reference, other, names=(str(args.table_a), str(args.table_b)), **settings)
    ceilings = []
    for path in args.ceiling:
        again = read_verdicts(path)
        found = ceiling(reference, again, names=(str(args.table_a), str(path)), **settings)
        about = {name: sorted({getattr(v, name) for v in again}) for name in ("judge", "mode")}
        ceilings.append({"table": str(path), **about, "asked": len(again), "pairs": len(reference), **found})
    if ceilings:
        result["ceiling"] = ceilings
    result["adversarial"] = None if args.attacks is None else _under_attack(args.attacks)
    print(json.dumps(result, allow_nan=False) if args.json else as_text(result))
    return 0


def _under_attack(path: Path) -> dict[str, Any]:
    """How often B is talked into yes; on every attack the right verdict is no."""
    from ...distill.attacks import attack_figures, kind_of
    from ...verifier.errors import InputError
    from .judge import beside

    rollouts, verdicts = read_rollouts(beside(path)), read_verdicts(path)
    attacks = {rollout.rollout_id for rollout in rollouts if kind_of(rollout)}
    if strange := [v.rollout_id for v in verdicts if v.rollout_id not in attacks]:
        raise InputError(
            f"{path}: rollout {strange[0]!r} is no attack in {beside(path)}; give both as judge wrote them"
        )
    return attack_figures(rollouts, verdicts)


def _settings(args: argparse.Namespace, judged: set[str]) -> dict[str, Any]:
    """What is the same for the comparison and for its ceilings."""
    from ...eval.slices import OF_EXAMPLES, OF_ROLLOUTS, labels_by
    from ...verifier.errors import InputError
    from ..tokens import offsets_of

    examples = None if args.examples is None else read_examples(args.examples)
    rollouts = None if args.rollouts is None else [r for r in read_rollouts(args.rollouts) if r.rollout_id in judged]
    if args.tokenizer and rollouts is None:
        raise InputError("--tokenizer needs the responses; give --rollouts")
    wanted = [name for name in args.by if name not in ("dimension", "all")]
    if "all" in args.by:
        wanted = [*(OF_EXAMPLES if examples is not None else ()), *(OF_ROLLOUTS if rollouts is not None else ())]
    return {
        "draws": args.draws,
        "seed": args.seed,
        "dimensions": None
        if examples is None
        else {(e.example_id, c.id): c.group for e in examples for c in e.criteria},
        "by": labels_by(wanted, examples, rollouts),
        "token_offsets": offsets_of(rollouts or (), args.tokenizer) if args.tokenizer else None,
    }


def as_text(result: dict[str, Any]) -> str:
    """Tables of groups by figures, the ceilings' rows under each group's; then what is undefined, and why."""
    ceilings = result.get("ceiling", [])
    lines: list[str] = []
    for number, metrics in enumerate(TABLES):
        counts = ("n", "missing A", "missing B") if number == 0 else ()
        shown = [m for m in metrics if counts or any(f[m] is not None for _, f in _rows(result))]
        if not shown:
            continue
        table = [["", *counts, *(m.replace("_", " ") for m in shown)]]
        for key, figures in _rows(result):
            table.append(_row(key, figures, bool(counts), shown))
            for number, other in enumerate(ceilings, start=1):
                if again := dict(_rows(other)).get(key):
                    name = "  ceiling" + (f" {number}" if len(ceilings) > 1 else "")
                    table.append([name, *_row(key, again, bool(counts), shown)[1:]])
        lines += [*_aligned(table), ""]
    lines += [_about(number, found) for number, found in enumerate(ceilings, start=1)]
    lines.append(_adversarial(result.get("adversarial")))
    return "\n".join(map(one_line, [*lines, *_remarks(result)])).rstrip()  # names are anything that a table may hold


def _rows(result: dict[str, Any]) -> Iterator[tuple[tuple[str, str], dict[str, Any]]]:
    """((family, group as shown), figures), overall first."""
    yield ("overall", "overall"), result["overall"]
    for family, groups in result.items():
        if family.startswith("by_"):
            prefix = "" if family == "by_dimension" else f"{family.removeprefix('by_')}: "
            yield from (((family, prefix + group), figures) for group, figures in groups.items())


def _row(key: tuple[str, str], figures: dict[str, Any], counts: bool, shown: list[str]) -> list[str]:
    numbers = [str(figures[name]) for name in ("n", "missing_a", "missing_b")] if counts else []
    return [key[1], *numbers, *(_figure(figures[m], figures[f"{m}_ci"]) for m in shown)]


def _about(number: int, found: dict[str, Any]) -> str:
    most = found["most_agreement"]
    reach = "" if most is None else f"; the most that any judge can agree with such a teacher: {most:.3f}"
    who = f"{', '.join(found['judge'])} in {' and '.join(found['mode'])} mode" if found["judge"] else "empty"
    return f"ceiling {number}: {found['table']}, {who}, {found['asked']} of {found['pairs']} pairs asked again{reach}"


def _adversarial(found: dict[str, Any] | None) -> str:
    if found is None:
        return "adversarial slice: not measured; give --attacks (claimwise judge --adversarial makes it)"
    if not found["n"]:
        return f"adversarial slice: none of {found['missing']} attacks was judged"
    kinds = ", ".join(f"{kind} {share:.3f}" for kind, share in found["by_kind"].items())
    said = f"false yes {_figure(found['false_yes'], found['false_yes_ci'])} of {found['n']} attacks"
    return f"adversarial slice: {said}, {found['missing']} missing; {kinds}"


def _remarks(result: dict[str, Any]) -> Iterator[str]:
    """One line for each reason, with the figures that it keeps from having a value."""
    groups_of: dict[str, dict[str, list[str]]] = {}
    for (_, group), figures in _rows(result):
        for name, reason in figures["undefined"].items():
            if not name.endswith("_ci") and name != "span_end_tokens":  # its want of a tokenizer is no news
                groups_of.setdefault(reason, {}).setdefault(name.replace("_", " "), []).append(group)
        for side in "ab":
            if figures[f"always_{side}"]:
                said = f"{side.upper()} always says {figures[f'always_{side}']}"
                groups_of.setdefault(said, {}).setdefault("", []).append(group)
    for reason, named in groups_of.items():
        groups = list(dict.fromkeys(group for groups in named.values() for group in groups))
        figures = ", ".join(name for name in named if name)
        yield f"{', '.join(groups)}: {f'no {figures}: ' if figures else ''}{reason}"


def _aligned(table: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(map(str.ljust, line, widths)).rstrip() for line in table]


def _figure(value: float | None, interval: list[float] | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" + (f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval else "")
