"""`claimwise audit criteria`: is each criterion true of its image at all?

In: examples with their rubrics, and a judge that sees the image. Out: a summary with the most suspicious criteria, each
beside what the judge read in the image; with --out all of them, ranked, as JSONL (see `eval.criteria_audit`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...verifier.errors import InputError
from ...verifier.image_digest import stored_digest
from ...verifier.part_file import PartFile, remove_part
from ...verifier.schema import Example
from ...verifier.tables import atomic_write, read_examples
from ...verifier.text import one_line
from ..parser import CommandParser
from ..teacher_flags import OUT_OF_BUDGET, add_judging_flags, check_judging_flags

if TYPE_CHECKING:
    from ...eval.criteria_audit import Ask, Finding

AT_ONCE = 64  # examples between two writes of what is done
EPILOG = """example:
  claimwise audit criteria --adapter runs/quickstart/verifier-image \\
      --examples runs/quickstart/heldout/examples.parquet --out suspects.jsonl --gold oracle

  claimwise audit criteria --teacher http://localhost:8000/v1 --model Qwen3-VL-235B-A22B-Instruct \\
      --ledger teacher.sqlite --examples examples.parquet --out suspects.jsonl

Each example's reference is judged by its criteria. One that the reference does not meet is asked again of the reference
with the criterion's own claim in place of the sentence that the judge pointed at: a "no" that points at it can only come
from the image, and makes the criterion suspicious. --gold oracle: in the digits world some criteria are wrong on purpose;
how many of them are found, and how many of those found are wrong. Stopped with --out, the same command goes on;
what a teacher behind a server says is in its ledger at once and never asked again. The exit status is 3 where the budget
ended first: what it did not reach is not decided."""


def make_parser() -> CommandParser:
    parser = CommandParser("audit criteria", "Ask a judge whether each criterion is true of its image at all.", EPILOG)
    who = parser.add_mutually_exclusive_group(required=True)
    who.add_argument("--adapter", metavar="DIR", help="a verifier that sees the image")
    who.add_argument("--teacher", metavar="oracle|URL", help="oracle: the digits world's human labels; or a server")
    parser.add_argument("--base", help="the base model, where not the one that the adapter names")
    parser.add_argument("--examples", type=Path, required=True, metavar="E", help="the examples whose rubrics to audit")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="write every criterion, ranked, one JSON object a line"
    )
    parser.add_argument("--gold", choices=["oracle"], help="precision and recall against the digits world's truth")
    parser.add_argument("--top", type=int, default=20, metavar="N", help="suspicious criteria to show (default 20)")
    parser.add_argument("--max-packed-tokens", type=int, default=16384, help="bound of one pass (default: 16384)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_judging_flags(parser)
    return parser


def main(argv: list[str] | None = None) -> int:
    args = make_parser().parse_args(argv)
    _check(args)
    examples = read_examples(args.examples)
    without = [e.example_id for e in examples if not e.images]
    if without:
        raise InputError(
            f"{args.examples}: example {without[0]!r} has no image ({len(without)} in all); drop them first"
        )
    from ...eval.criteria_audit import audit, score, summarise

    images = [stored_digest(image) for example in examples for image in example.images]
    with _open(args) as (judge, who):
        settings = {
            "command": "audit criteria",
            **who,
            "examples": str(args.examples.resolve()),
            "count": len(examples),
            "content": hashlib.sha256(repr(examples).encode()).hexdigest()[:16],
            "images": hashlib.sha256(repr(images).encode()).hexdigest()[:16],
        }
        with open_part(args.out, settings) if args.out else nullcontext() as part:
            findings = audit_all(examples, judge.judge, part)
        last = getattr(judge, "last", None)
    result = summarise(findings)
    if args.gold:
        result["gold"] = score(findings, audit(examples, oracle()))
    rows = [{"rank": rank, **asdict(finding)} for rank, finding in enumerate(findings, start=1)]
    if args.out is not None:
        with atomic_write(args.out) as file:
            file.write("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())
        remove_part(args.out)
    result["top"] = [row for row in rows if row["suspicious"]][: args.top]
    print(json.dumps(result, allow_nan=False) if args.json else as_text(result, args.out))
    return OUT_OF_BUDGET if last is not None and last.out_of_budget else 0


def _check(args) -> None:
    if args.top < 0:
        raise InputError(f"--top is {args.top}; it cannot be negative")
    if args.out is not None and args.out.is_dir():
        raise InputError(f"--out is {args.out}, a folder; give the name of a file")
    check_judging_flags(args)


@contextmanager
def _open(args) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The judge, and what tells it from another."""
    if args.teacher is None:
        yield _verifier(args)
        return
    from .cascade_run import open_teacher

    with open_teacher(args, "image") as teacher:
        yield teacher, {"teacher": args.teacher, "model": args.model}


def oracle() -> Ask:
    from ...distill.oracle import OracleJudge

    return OracleJudge("image").judge


def _verifier(args) -> tuple[Any, dict[str, Any]]:
    from ...verifier.adapter import read_card

    card = read_card(args.adapter)
    if card.mode != "image":  # before torch is loaded
        raise InputError(f"{args.adapter} is a verifier for text mode, which does not see the image; give another")
    from ...verifier.judge import load_judge
    from ...verifier.progress import only_our_bars

    only_our_bars()
    judge = load_judge(args.adapter, "image", args.base, args.max_packed_tokens)
    return judge, {"adapter": judge.adapter, "base_hash": card.base_hash, "temperature": card.temperature}


@dataclass(frozen=True)
class Audited:
    """All findings on one example."""

    example_id: str
    findings: list[Finding]


def open_part(out: Path, settings: dict[str, Any]) -> PartFile[Audited]:
    from ...eval.criteria_audit import Finding

    def read(example_id: str, findings: list[dict[str, Any]]) -> Audited:
        return Audited(example_id, [Finding(**row) for row in findings])

    return PartFile(out, settings, read, "example_id")


def audit_all(examples: Sequence[Example], ask: Ask, part: PartFile[Audited] | None = None) -> list[Finding]:
    """Findings on all examples, with a progress bar. `part` keeps those of the examples that are done, and is gone on
    with."""
    from tqdm import tqdm

    from ...eval.criteria_audit import audit, ranked

    findings = {row.example_id: row.findings for row in part.rows.values()} if part is not None else {}
    left = [example for example in examples if example.example_id not in findings]
    with tqdm(total=len(examples), initial=len(findings), desc="auditing", unit="example") as bar:
        for first in range(0, len(left), AT_ONCE):
            batch = left[first : first + AT_ONCE]
            fresh = audit(batch, ask)
            for example in batch:
                own = [finding for finding in fresh if finding.example_id == example.example_id]
                findings[example.example_id] = own
                if part is not None:
                    part.add(Audited(example.example_id, own))
            bar.update(len(batch))
    return ranked([finding for own in findings.values() for finding in own])


def as_text(result: dict[str, Any], out: Path | None) -> str:
    lines = [f"{result['suspicious']} of {result['decided']} criteria about the image are suspicious"]
    lines += [
        f"  {group}: {n['suspicious']} of {n['decided']}" for group, n in result["by_dimension"].items() if n["decided"]
    ]
    lines += [f"{count} not decided: {reason}" for reason, count in result["undecided"].items()]
    if gold := result.get("gold"):
        found = f"{gold['found']} of {gold['wrong']} wrong criteria found, {gold['flagged']} flagged"
        lines.append(f"against the human labels: {found}")
        lines.append(f"  recall {_share(gold, 'recall')}, precision {_share(gold, 'precision')}")
    if result["top"]:
        lines += ["", "P(no)  the image shows  criterion"]
    for row in result["top"]:
        where = f"({row['example_id']} {row['criterion_id']})"
        lines.append(f"{row['suspicion']:.3f}  {row['reading'] or '-':<15}  {row['text']}  {where}")
    if out is not None:
        lines += ["", f"{out}: all {result['criteria']} criteria, the most suspicious first"]
    return "\n".join(map(one_line, lines))


def _share(gold: dict[str, Any], name: str) -> str:
    if gold[name] is None:
        return f"undefined ({gold['undefined'][name]})"
    low, high = gold[f"{name}_ci"]
    return f"{gold[name]:.3f} [{low:.3f}, {high:.3f}]"
