"""claimwise label: a teacher's verdicts on rollouts, as a verdict table.

The teacher is the digits world's oracle, or a model behind any OpenAI-compatible server, whose answers go to a ledger
first; the table is what the ledger holds.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from ...verifier.errors import InputError
from ...verifier.rundir import keep_inputs
from ...verifier.schema import MODES, Mode
from ...verifier.tables import pair_up, read_examples, read_rollouts, write_verdicts
from ..parser import CommandParser
from ..teacher_flags import OUT_OF_BUDGET, add_flags, client_of, cost_lines, run_lines, settings_of

if TYPE_CHECKING:
    from ...distill.ledger import Ledger
    from ...distill.teacher import Teacher, TeacherSettings
    from ...verifier.streams import Pairs

EXAMPLE = """examples:
  claimwise label --teacher oracle --mode image --examples heldout/examples.parquet \\
      --rollouts heldout/rollouts.parquet --out gold-image.jsonl

  export OPENAI_API_KEY=...
  claimwise label --teacher http://localhost:8000/v1 --model Qwen3-VL-235B-A22B-Instruct --mode text,image \\
      --examples examples.parquet --rollouts rollouts.parquet --ledger teacher.sqlite --export verdicts.parquet

Stopped in any way, the same command goes on where it was: no question that has an answer is asked again. The exit
status is 3 where the budget ended the run first.
"""


def make_parser() -> CommandParser:
    parser = CommandParser("label", "Ask a teacher every criterion of every rollout and write its verdicts.", EXAMPLE)
    add, server = parser.add_argument, parser.add_argument_group("a teacher behind a server").add_argument
    add("--examples", required=True, help="example table (.parquet or .jsonl)")
    add("--rollouts", required=True, help="rollout table (.parquet or .jsonl)")
    add("--export", "--out", metavar="TABLE", help="verdict table to write (.jsonl or .parquet)")
    add(
        "--teacher",
        default="oracle",
        metavar="oracle|URL",
        help="oracle: the digits world's human labels; or a server that speaks OpenAI's chat API (its key is read from "
        "OPENAI_API_KEY)",
    )
    add("--mode", type=_modes, default=["image"], help="image, text, or text,image: does the teacher see the image")
    server("--model", help="the model's name on the server")
    server("--ledger", metavar="FILE", help="SQLite file that keeps every answer")
    server("--criteria-per-call", type=int, default=1, metavar="N", help="criteria asked in one call (default: 1)")
    add_flags(server, "512 a criterion")
    return parser


def _modes(text: str) -> list[Mode]:
    modes = [mode.strip() for mode in text.split(",")]
    if len(set(modes)) < len(modes) or not set(modes) <= set(MODES):
        raise argparse.ArgumentTypeError(f"{text!r} is not text, image, or text,image")
    return [mode for mode in MODES if mode in modes]  # pyright: ignore[reportReturnType]


def main(argv: list[str]) -> int:
    args = make_parser().parse_args(argv)
    if args.export and Path(args.export).suffix not in (".jsonl", ".parquet"):
        raise InputError(f"{args.export}: a table's name must end in .jsonl or .parquet")
    if args.export:
        keep_inputs((args.examples, args.rollouts), [args.export], "--export")
    if args.teacher == "oracle":
        for name in ("model", "ledger", "dry_run"):
            if getattr(args, name):
                flag = name.replace("_", "-")
                raise InputError(f"--{flag} is for a teacher behind a server; give its address with --teacher")
        return ask_oracle(args)
    for name in ("model", "ledger"):
        if not getattr(args, name):
            raise InputError(f"--{name} is missing; a teacher behind a server needs it")
    return ask_server(args)


def ask_oracle(args: argparse.Namespace) -> int:
    if not args.export:
        raise InputError("--out is missing; name the verdict table to write")
    pairs = pair_up(read_examples(args.examples), read_rollouts(args.rollouts))
    from ...distill.oracle import OracleJudge

    verdicts = [verdict for mode in args.mode for verdict in OracleJudge(mode).judge(pairs)]
    write_verdicts(args.export, verdicts)
    count = Counter(verdict.verdict for verdict in verdicts)
    print(f"{args.export}: {len(verdicts)} verdicts, {count[True]} yes, {count[False]} no, {count[None]} missing")
    return 0


def ask_server(args: argparse.Namespace) -> int:
    from ...distill.ledger import Ledger
    from ...distill.teacher import Teacher
    from ...verifier.streams import Pairs

    settings = settings_of(args, args.criteria_per_call, 512 * args.criteria_per_call)
    client = client_of(args, args.teacher)
    if args.dry_run:
        with Pairs(args.examples, args.rollouts, "image" in args.mode) as pairs:
            return dry_run(args, pairs, settings)
    with Ledger(args.ledger) as ledger, Pairs(args.examples, args.rollouts, "image" in args.mode) as pairs:
        teacher = Teacher(client, ledger, settings)
        asyncio.run(label(teacher, pairs, args.mode))
        print(summary(teacher, args.ledger))
        if args.export:
            export(args, pairs, ledger, settings.several)
    return OUT_OF_BUDGET if teacher.out_of_budget else 0


async def label(teacher: Teacher, pairs: Pairs, modes: list[Mode]) -> None:
    from ...distill.questions import sheets

    async with teacher.client as client:
        stream = sheets(pairs, modes, client.model, teacher.settings.several, teacher.ledger.image_digest)
        await teacher.label(stream, pairs.criteria * len(modes))


def summary(teacher: Teacher, ledger: str) -> str:
    """What the ledger holds of this model, what this run did, and what it cost."""
    found = teacher.ledger.figures(teacher.client.model)
    line = (
        f"{ledger}: {found['answers']} answers of {teacher.client.model}: {found['yes']} yes, {found['no']} no, "
        f"{found['missing']} missing for good; {found['p_yes']} with P(yes), {found['spans']} with a span"
    )
    return "\n".join([line, *run_lines(teacher, found)])


def export(args: argparse.Namespace, pairs: Pairs, ledger: Ledger, several: bool) -> None:
    """The table of all questions of these tables, in order: by rollout, mode, criterion."""
    from tqdm import tqdm

    from ...distill.questions import sheets, verdicts
    from ...verifier.streams import write_verdict_stream

    rows = verdicts(sheets(pairs, args.mode, args.model, several, ledger.image_digest), ledger, args.model, several)
    total = pairs.criteria * len(args.mode)
    count = write_verdict_stream(args.export, tqdm(rows, total=total, desc=args.export, unit="verdict"))
    print(f"{args.export}: {count} verdicts")


def dry_run(args: argparse.Namespace, pairs: Pairs, settings: TeacherSettings) -> int:
    from tqdm import tqdm

    from ...distill.estimate import answer_tokens, estimate, load_counter
    from ...distill.ledger import Ledger
    from ...distill.questions import sheets

    ledger = Ledger(args.ledger, write=False) if Path(args.ledger).is_file() else None
    digest = {"digest_of": ledger.image_digest} if ledger else {}
    counter, how = load_counter(args.model, args.processor)
    stream = sheets(pairs, args.mode, args.model, settings.several, **digest)
    bar = tqdm(stream, total=pairs.rollouts * len(args.mode), desc="counting", unit="response", leave=False)
    found = estimate(bar, ledger, counter, settings.criteria_per_call)
    per_verdict, source = answer_tokens(ledger, args.model)
    print(f"{'mode':<8}{'verdicts':>12}{'calls':>12}{'prompt tokens':>18}")
    for mode in args.mode:
        print(f"{mode:<8}{found.verdicts[mode]:>12,}{found.calls[mode]:>12,}{found.prompt_tokens[mode]:>18,}")
    print(f"{found.known:,} questions are answered already, or occur twice")
    each, verdicts = (per_verdict, "verdict", source), found.verdicts.total()
    print(*cost_lines(settings, found.prompt_tokens.total(), how, verdicts, each, found.calls.total()), sep="\n")
    return 0
