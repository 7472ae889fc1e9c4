"""`claimwise cascade judge`: verdicts on rollouts by a verifier, and by a teacher where the verifier is uncertain.

In: a verifier, a teacher, a band, tables of examples and rollouts. Out: one verdict table, each row as the judge gave it
that answered, and what that took.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...verifier.adapter import read_card
from ...verifier.cascade import Band, CascadeJudge, Tally, band_for
from ...verifier.errors import InputError
from ...verifier.rundir import keep_inputs
from ...verifier.schema import Mode, Verdict
from ..judging import Watched, finish_part, status_of
from ..parser import CommandParser
from ..teacher_flags import add_judging_flags, check_judging_flags

EXAMPLE = """example:
  claimwise cascade judge --adapter runs/verifier --band cascade.json --examples examples.parquet \\
      --rollouts rollouts.parquet --out verdicts.jsonl --teacher http://localhost:8000/v1 \\
      --model Qwen3-VL-235B-A22B-Instruct --ledger teacher.sqlite --max-calls 5000

  claimwise cascade judge --adapter runs/quickstart/verifier-image --low 0.3 --high 0.8 --teacher oracle \\
      --examples runs/quickstart/heldout/examples.parquet --rollouts runs/quickstart/heldout/rollouts.parquet \\
      --out verdicts.jsonl

The least certain verdicts go first, so that --max-calls and --budget leave the surest to the verifier; --max-calls 0 only
counts. Where the teacher has no answer, the verifier's verdict stands. Whose a row is stands in it: judge, mode, p_yes
and prompt_hash are those of the one that answered. What a teacher behind a server says is in the ledger at once, and the
verifier's verdicts wait in OUT.part, so the same command goes on where it stopped and asks nothing twice.

Exit status: 3 where the verifier's server failed on some questions; the same command asks those again."""


def make_parser() -> CommandParser:
    parser = CommandParser("cascade judge", "Let a verifier judge, and a teacher where it is uncertain.", EXAMPLE)
    add = parser.add_argument
    add("--adapter", required=True, metavar="DIR", help="the verifier's folder, as claimwise distill writes it")
    add("--backend", choices=["transformers", "vllm"], default="transformers", help="what runs it here")
    add("--server", metavar="URL", help="the server that runs it (claimwise serve)")
    add("--base", help="its base model, where not the one that the adapter names")
    add("--max-packed-tokens", type=int, default=16384, help="bound of one pass (default: 16384)")
    add("--band", type=Path, metavar="FILE.json", help="what goes to the teacher, as claimwise cascade band wrote it")
    add("--low", type=float, metavar="P", help="without --band: the least P(yes) that goes to the teacher (0..0.5)")
    add("--high", type=float, metavar="P", help="and the greatest (0.5..1)")
    add("--examples", required=True, help="example table (.parquet or .jsonl)")
    add("--rollouts", required=True, help="rollout table (.parquet or .jsonl)")
    add("--out", type=Path, required=True, metavar="TABLE", help="verdict table to write (.jsonl or .parquet)")
    add("--teacher", required=True, metavar="oracle|URL", help="oracle: the digits world's human labels; or a server")
    add("--mode", choices=["text", "image"], help="does the teacher see the image (default: as the verifier)")
    add("--max-calls", type=int, metavar="N", help="verdicts that the teacher is asked for, at most (default: all)")
    add("--json", action="store_true", help="print what it took as one JSON object")
    add_judging_flags(parser)
    return parser


def main(argv: list[str]) -> int:
    args = make_parser().parse_args(argv)
    _check(args)
    band = band_for(args.band, args.adapter) if args.band else Band(args.low, args.high)
    from ...verifier.tables import pair_up, read_examples, read_rollouts, write_verdicts
    from .judge import refuse_all_missing

    looks = (args.mode or read_card(args.adapter).mode) != "text"  # where the teacher does not, no verifier does
    pairs = pair_up(read_examples(args.examples, check_images=looks), read_rollouts(args.rollouts))
    with open_cascade(args, band) as cascade:
        verdicts = cascade.judge(pairs)
        cost = None if args.price_in is None and args.price_out is None else _cost(cascade.teacher)
    refuse_all_missing(verdicts)
    write_verdicts(args.out, verdicts)
    finish_part(args.out, verdicts)
    print(json.dumps(figures(cascade, verdicts, cost)) if args.json else as_text(args.out, cascade, verdicts, cost))
    return status_of(args.out)


def _check(args: argparse.Namespace) -> None:
    if (args.low is None) != (args.high is None) or (args.band is None) == (args.low is None):
        raise InputError("which verdicts go to the teacher? give --band FILE.json, or both --low and --high")
    from ...verifier.tables import check_out

    keep_inputs([path for path in (args.examples, args.rollouts, args.ledger) if path], [args.out], "--out")
    check_out(args.out)
    check_judging_flags(args)


@contextmanager
def open_cascade(args: argparse.Namespace, band: Band) -> Iterator[CascadeJudge]:
    """The cascade of the flags, whose verifier shows how far it is. `claimwise judge` has the most used of them."""
    from .judge import open_judge

    own = {name: getattr(args, name) for name in ("adapter", "backend", "server", "base", "max_packed_tokens")}
    first = open_judge(argparse.Namespace(**own, mode=None, model=getattr(args, "verifier_model", None)))
    with open_teacher(args, args.mode or first.mode) as teacher:
        yield CascadeJudge(Watched(first, Path(args.out)), teacher, band, args.max_calls)


@contextmanager
def open_teacher(args: argparse.Namespace, mode: Mode) -> Iterator[Any]:
    if args.teacher == "oracle":
        from ...distill.oracle import OracleJudge

        yield OracleJudge(mode)
        return
    from ...distill.ledger import Ledger
    from ...distill.teacher import TeacherSettings
    from ..ledger_teacher import LedgerTeacher

    settings = TeacherSettings(1, args.max_tokens, args.price_in, args.price_out, args.budget)
    client = {"max_in_flight": args.max_in_flight, "timeout_s": args.timeout}
    with Ledger(args.ledger) as ledger:
        yield LedgerTeacher(args.teacher, args.model, mode, ledger, settings, **client)


def _cost(teacher: Any) -> float:
    """What all in the ledger cost."""
    return teacher.ledger.spent(teacher.settings.price_in or 0.0, teacher.settings.price_out or 0.0)


def figures(cascade: CascadeJudge, verdicts: Sequence[Verdict], cost: float | None) -> dict[str, Any]:
    """`coverage`: the share of the known verdicts that are the verifier's own."""
    tally = cascade.tally
    known = tally.verdicts - tally.missing
    return {
        **{name: value for name, value in vars(tally).items() if name != "price"},
        "band": [cascade.band.low, cascade.band.high],
        "coverage": 1 - tally.answered / known if known else None,
        "by_judge": Counter(verdict.judge for verdict in verdicts),
        "spent": cost,
    }


def as_text(out: Path, cascade: CascadeJudge, verdicts: Sequence[Verdict], cost: float | None) -> str:
    tally, last = cascade.tally, getattr(cascade.teacher, "last", None)
    answers = Counter(verdict.verdict for verdict in verdicts)
    lines = [
        f"{out}: {len(verdicts)} verdicts, {answers[True]} yes, {answers[False]} no, {answers[None]} missing; "
        + ", ".join(f"{count} by {name}" for name, count in Counter(v.judge for v in verdicts).most_common()),
        f"uncertain (P(yes) {cascade.band.low:.12g} to {cascade.band.high:.12g}): {tally.uncertain}; {_fate(tally)}",
    ]
    if tally.unrated:
        lines.append(f"{tally.unrated} verdicts of {cascade.first.name} are without P(yes) and stand")
    if last is not None and last.known:
        lines.append(f"{last.known} questions were known to the ledger and not asked again")
    if cost is not None:
        lines.append(f"all that the ledger holds has cost {cost:.6g}")
    return "\n".join(lines)


def _fate(tally: Tally) -> str:
    """What became of the uncertain ones."""
    told = [f"{tally.answered} answered by the teacher with {tally.calls} questions"]
    if tally.failed:
        kinds = ", ".join(f"{kind} {count}" for kind, count in tally.failed.most_common())
        told.append(f"{tally.failed.total()} without an answer ({kinds})")
    if tally.over_budget:
        told.append(f"{tally.over_budget} beyond the budget")
    kept = " and ".join(told[1:])
    return told[0] + (f"; {kept}: the verifier's verdicts stand" if kept else "")
