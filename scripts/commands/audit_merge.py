"""`claimwise audit merge`: what people answered on the audit's page, as verdict tables, and how far it agrees.

In: the key that `audit sample` wrote, the exports of one person or more, and judges' verdict tables. Out: a verdict table
per person and one of their majority; alpha among people, agreement with each judge, the criteria's quality (see
`eval.audit_merge`), as text or as one JSON object.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...verifier.errors import InputError
from ...verifier.rundir import keep_inputs
from ...verifier.tables import read_verdicts, write_verdicts
from ...verifier.text import one_line
from ..parser import CommandParser

if TYPE_CHECKING:
    from ...eval.audit_exports import Person
    from ...verifier.schema import Verdict

EPILOG = """example:
  claimwise audit merge audit/page.key.jsonl audit-*.json --verdicts runs/quickstart/verdicts/image.jsonl \\
      --verdicts runs/quickstart/verdicts/text.jsonl --out audit/people.jsonl

Writes people.jsonl, what most people say, and people.NAME.jsonl for each of them: verdict tables like any other. A tie, a
"cannot tell" and a pair without an answer are missing verdicts, with that reason. An answer given before the judges'
sentences were marked counts, whatever it was changed to after.

Raw figures are over the pairs as drawn; weighted ones undo the sampling. The people's majority is the reference: false
yes is the share of a judge's yes among people's no. Brackets: 95% intervals, bootstrapped over examples."""
SHOWN = ("agreement", "kappa", "false_yes", "false_no")


def make_parser() -> CommandParser:
    parser = CommandParser("audit merge", "Turn people's exports into verdict tables, and compare them.", EPILOG)
    parser.add_argument("key", type=Path, metavar="PAGE.key.jsonl", help="the key beside the page")
    parser.add_argument("exports", type=Path, nargs="+", metavar="EXPORT.json", help="one export per person")
    parser.add_argument(
        "--verdicts", type=Path, action="append", default=[], metavar="TABLE", help="a judge's verdicts; any number"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="TABLE", help="the majority's table to write")
    parser.add_draws()
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def main(argv: list[str] | None = None) -> int:
    args = make_parser().parse_args(argv)
    if args.out.suffix not in (".jsonl", ".parquet"):
        raise InputError(f"--out is {args.out}; a table's name must end in .jsonl or .parquet")
    from ...eval.audit_exports import read_key, read_people
    from ...eval.audit_merge import among_people, majority, quality_of, summary_of, table_of, with_judge

    page, asked = read_key(args.key)
    people = read_people(args.exports, page, asked)
    keep_inputs((args.key, *args.exports, *args.verdicts), _paths(args.out, people), "--out")
    tables = [table_of(person, asked) for person in people]
    most = majority(tables, asked)
    drawn = {"draws": args.draws, "seed": args.seed}
    result = {
        "page": page,
        "pairs": len(asked),
        "people": [summary_of(person, asked) for person in people],
        "majority": {"known": sum(v.verdict is not None for v in most), "missing": _reasons(most)},
        "alpha": among_people(tables, asked, **drawn),
        "judges": [with_judge(most, read_verdicts(path), asked, str(path), **drawn) for path in args.verdicts],
        "quality": quality_of(people, asked),
    }
    for path, table in zip(_paths(args.out, people), [most, *tables], strict=True):
        write_verdicts(path, table)
    result["tables"] = [str(path) for path in _paths(args.out, people)]
    print(json.dumps(result, allow_nan=False) if args.json else as_text(result))
    return 0


def _paths(out: Path, people: Sequence[Person]) -> list[Path]:
    """The majority's table, then each person's beside it."""
    return [out, *(out.with_name(f"{out.stem}.{person.slug}{out.suffix}") for person in people)]


def _reasons(verdicts: Sequence[Verdict]) -> dict[str, int]:
    return dict(sorted(Counter((v.error or "").split(",")[0] for v in verdicts if v.verdict is None).items()))


def as_text(result: dict[str, Any]) -> str:
    lines = []
    for person, table in zip(result["people"], result["tables"][1:], strict=True):
        lines.append(
            f"{person['name']}: {person['answered']} of {result['pairs']} pairs answered, "
            f"{person['cannot_tell']} of them cannot tell: {table}"
        )
        if person["hinted"] or person["changed"]:
            lines.append(
                f"  {person['hinted']} answered only after the judges' sentences were marked, {person['changed']} "
                "changed after an answer without marks, which is the one that counts"
            )
    most = result["majority"]
    missing = ", ".join(f"{number} {reason}" for reason, number in most["missing"].items())
    missing = f", missing: {missing}" if missing else ""
    lines += [f"majority: {most['known']} verdicts{missing}: {result['tables'][0]}", ""]
    lines += _aligned([["alpha among people", "pairs", "raw", "weighted"], *_alpha_rows(result["alpha"])])
    for judge in result["judges"]:
        lines += ["", f"{', '.join(judge['judge'])} ({judge['table']}) against the people's majority"]
        lines += _judge_lines(judge)
    return "\n".join(map(one_line, [*lines, "", *_quality_lines(result["quality"])]))


def _alpha_rows(found: dict[str, Any]) -> list[list[str]]:
    raw, weighted = ({"overall": f["overall"], **f["by_dimension"]} for f in (found["raw"], found["weighted"]))
    return [
        [
            group,
            str(raw[group]["pairs"]),
            *(
                _figure(f[group]["alpha"], f[group]["alpha_ci"], f"- ({f[group]['undefined']})")
                for f in (raw, weighted)
            ),
        ]
        for group in raw
    ]


def _judge_lines(judge: dict[str, Any]) -> list[str]:
    table = [["", "n", "", *(name.replace("_", " ") for name in SHOWN)]]
    raw, weighted = ({"overall": f["overall"], **f["by_dimension"]} for f in (judge["raw"], judge["weighted"]))
    for group, figures in raw.items():
        for name, of in (("raw", figures), ("weighted", weighted[group])):
            counts = [group, str(figures["n"])] if name == "raw" else ["", ""]
            table.append([*counts, name, *(_figure(of[m], of[f"{m}_ci"], "-") for m in SHOWN)])
    overall = judge["raw"]["overall"]
    lines = _aligned(table)
    if overall["missing_a"] or overall["missing_b"]:
        lines.append(f"missing, never scored: {overall['missing_a']} of people, {overall['missing_b']} of the judge")
    return lines


def _quality_lines(found: dict[str, Any]) -> list[str]:
    said = {
        question: ", ".join(f"{number} {answer}" for answer, number in answers.items())
        for question, answers in found["answers"].items()
    }
    lines = [f"criteria: {found['criteria']} rated, {len(found['faulty'])} faulty"]
    lines += [f"  {question}: {counts}" for question, counts in said.items()]
    lines += [
        f"  faulty ({', '.join(f['faults'])}): {f['example_id']} {f['criterion_id']}" for f in found["faulty"][:20]
    ]
    if len(found["faulty"]) > 20:
        lines.append(f"  and {len(found['faulty']) - 20} more; --json has them all")
    return lines


def _aligned(table: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(map(str.ljust, line, widths)).rstrip() for line in table]


def _figure(value: float | None, interval: list[float] | None, absent: str) -> str:
    if value is None:
        return absent
    return f"{value:.3f}" + (f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval else "")
