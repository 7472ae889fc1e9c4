"""`claimwise rubrics`: what is wrong with the criteria of an example table (`lint`), or new ones (`write`: see
`rubrics_write`).

In: an example table; its images are not opened. Out: each fault named and counted, as text or as one JSON object, with
who decided, a rule or a model; with `--fix` a new table and the list of what was changed in it.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...verifier.errors import InputError
from ..lint_asking import add_model_flags, asker_of
from ..parser import CommandParser
from .rubrics_write import write

if TYPE_CHECKING:
    from ...distill.lint.report import Note, Report

EXAMPLE = """example:
  claimwise rubrics lint data/vr50k/examples.parquet
  claimwise rubrics write --examples ours.jsonl --model Qwen3-VL-235B-A22B-Instruct --server http://localhost:8000/v1 \\
      --out data/ours

claimwise rubrics lint --help and claimwise rubrics write --help say more."""
LINT_EXAMPLE = """example:
  claimwise rubrics lint examples.parquet --json > lint.json
  claimwise rubrics lint examples.parquet --fix mended.parquet
  claimwise rubrics lint examples.parquet --server http://localhost:8000/v1 --model Qwen3-VL-235B-A22B-Instruct

The kinds of fault:
  compound     more than one proposition, which could get different verdicts
  uncheckable  no fact that a judge could look up
  duplicate    says what an earlier criterion of the example says
  dimension    VF, RC or IF contradicts the text ("selects option 3" marked IF)
  answer_only  says nothing but the final answer, which the answer reward judges already
  weight       out of line with the label: from 5 ESSENTIAL, from 3 IMPORTANT, else OPTIONAL, negative PITFALL
  polarity     unclear whether yes is good or bad ("does not ..." where yes means that the failure is committed)
  outside      refers to what the judge does not see ("as in step 2 above", "the reference answer")
The rules read English. What they can't decide is listed as undecided; it is no fault yet. With --server and --model a
chat model is asked about that, and about nothing else; each finding says whether a rule or which model decided. What the
model cannot say stays undecided. All its answers are in the ledger: stopped in any way, the same command goes on.

--fix mends only what is safe: weight from label (or the label, where the text's own prefix sides with the weight), a
dimension for which the text clearly speaks, exact duplicates taken out. OUT-changes.jsonl names every change. Texts and
yes_means stay as they are, and nothing becomes or stops being a pitfall.

Exit status: 0 when the lint ran, whatever it found; 3 where the budget ended the asking first."""


def make_parser() -> CommandParser:
    parser = CommandParser("rubrics", "Look after the rubrics of an example table.", EXAMPLE)
    parser.add_argument("action", choices=["lint", "write"], help="what to do")
    return parser


def main(argv: list[str]) -> int:
    if argv and argv[0] == "lint":
        return lint(argv[1:])
    if argv and argv[0] == "write":
        return write(argv[1:])
    make_parser().parse_args(argv)
    return 0


def lint(argv: list[str]) -> int:
    parser = CommandParser("rubrics lint", "Name what is wrong with each criterion, with counts.", LINT_EXAMPLE)
    parser.add_argument("examples", metavar="E", type=Path, help="example table (.parquet or .jsonl)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--fix", metavar="OUT", type=Path, help="write a new table with what is safe to mend mended")
    add_model_flags(parser)
    args = parser.parse_args(argv)
    if args.fix is not None:
        _check_out(args.examples, args.fix)
    asker = asker_of(args)
    from tqdm import tqdm

    from ...distill.lint.report import lint as run
    from ...verifier.tables import read_examples

    examples = tqdm(read_examples(args.examples, check_images=False), "lint", unit=" examples", disable=None)
    if asker and args.dry_run:
        by_rules = run(examples)
        by_id = {example.example_id: example for example in by_rules.examples}
        print(*asker.dry_run([(by_id[note.example_id], note) for note in by_rules.undecided]), sep="\n")
        return 0
    report = run(examples, asker, asker.model) if asker else run(examples)
    too_early = bool(asker and asker.status)
    fixed = None if args.fix is None or too_early else _fix(report, args.examples, args.fix)
    if args.json:
        print(json.dumps(report.as_json() | ({"fix": fixed} if fixed else {}), ensure_ascii=False))
    else:
        print(as_text(report))
        print(_fix_line(fixed), end="")
    if asker and too_early and args.fix:
        asker.lines.append(f"{args.fix} is not written yet")
    if asker and asker.lines:
        print(*asker.lines, sep="\n", file=sys.stderr if args.json else sys.stdout)
    return asker.status if asker else 0


def _check_out(table: Path, out: Path) -> None:
    if out.suffix not in (".jsonl", ".parquet"):
        raise InputError(f"--fix {out}: a table's name must end in .jsonl or .parquet")
    if out.is_dir():
        raise InputError(f"--fix {out} is a folder; give the name of a table")
    if out.resolve() == table.resolve():
        raise InputError(f"--fix {out} is the table that is read; give another name, so that both can be compared")


def _fix(report: Report, table: Path, out: Path) -> dict[str, Any]:
    from ...distill.lint.fix import extra_columns, mend
    from ...verifier.rundir import write_atomic
    from ...verifier.tables import write_examples

    examples, changes = mend(report)
    log = out.with_name(f"{out.stem}-changes.jsonl")
    if log.resolve() == table.resolve():
        raise InputError(f"--fix {out} would write its changes to {log}, the table that is read; give another name")
    lines = [json.dumps(dataclasses.asdict(change), ensure_ascii=False) + "\n" for change in changes]
    try:
        write_atomic(log, "".join(lines))
    except OSError as error:
        raise InputError(f"{log}: it cannot be written ({error.strerror})") from None
    write_examples(out, examples, check_images=False)
    fields = Counter(change.field for change in changes)
    mended = {(change.example_id, change.criterion_id, change.kind) for change in changes}
    left = sum((note.example_id, note.criterion_id, note.kind) not in mended for note in report.findings)
    return {
        "out": str(out),
        "changes": str(log),
        "changed": dict(fields),
        "left": left,
        "columns_left_out": extra_columns(table),
    }


def _fix_line(fixed: dict[str, Any] | None) -> str:
    if fixed is None:
        return ""
    changed = ", ".join(
        f"{n} {'taken out' if field == 'criterion' else field}" for field, n in fixed["changed"].items()
    )
    lines = [f"{fixed['out']}: {changed or 'nothing changed'}; {fixed['left']} findings left as they are"]
    lines.append(f"{fixed['changes']}: each change, with its reason")
    if fixed["columns_left_out"]:
        lines.append(f"columns that our tables do not have, left out: {', '.join(fixed['columns_left_out'])}")
    return "\n" + "\n".join(lines) + "\n"


def as_text(report: Report) -> str:
    """Every finding, then every doubt, then the counts."""
    found = report.as_json()
    lines = [_line(note, report.model) for note in (*report.findings, *report.undecided)]
    counts = report.counts()
    tables = [_table("kind", counts["kind"])] + [
        _table(name, counts[name]) for name in ("source", "dimension", "label")
    ]
    total = f"{found['faulty']} of {found['criteria']} criteria have a fault ({found['examples']} examples)"
    by_model, cleared = (sum(row[name] for row in counts["kind"].values()) for name in ("by_model", "cleared"))
    by = f"{report.model} decided {by_model + cleared} of them, {by_model} as faults; " if report.model else ""
    doubts = by_model + cleared + len(report.undecided)
    if doubts:
        total += f"\nrules left {doubts} doubts open; {by}undecided: {len(report.undecided)}"
    return "\n\n".join(["\n".join(lines), *tables, total]).lstrip("\n")


def _line(note: Note, model: str | None) -> str:
    nobody = f"undecided by rules{f' and {model}' if model else ''}"
    decided = f"{f'by {note.decided_by}' if note.decided_by else nobody}: {note.rule}"
    return f"{note.example_id} {note.criterion_id}: {note.kind} ({decided}): {note.reason}\n    {note.text}"


def _table(name: str, counts: dict[str, dict[str, int]]) -> str:
    columns = list(next(iter(counts.values()), {}))
    rows = [[name, *(column.replace("_", " ") for column in columns)]]
    rows += [[value, *(str(row[column] or "-") for column in columns)] for value, row in counts.items()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
