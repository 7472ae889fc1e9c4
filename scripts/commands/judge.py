"""claimwise judge: a verifier's verdicts on rollouts, as a verdict table."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...verifier.errors import InputError
from ...verifier.rundir import keep_inputs
from ...verifier.schema import Example, Rollout, Verdict
from ...verifier.tables import check_out, pair_up, read_examples, read_rollouts, write_rollouts, write_verdicts
from ..judging import Watched, finish_part, status_of
from ..parser import CommandParser

EXAMPLE = """example:
  claimwise judge --adapter runs/quickstart/verifier-image --examples runs/quickstart/heldout/examples.parquet \\
      --rollouts runs/quickstart/heldout/rollouts.parquet --out verdicts.jsonl

  claimwise judge --adapter runs/quickstart/verifier-image --examples runs/quickstart/heldout/examples.parquet \\
      --adversarial --out attacks.jsonl        # is it talked into yes; the attacks go to attacks-rollouts.jsonl

  claimwise judge --adapter runs/verifier --server http://127.0.0.1:8000/v1 ...      # where claimwise serve runs
  claimwise judge --server http://localhost:8000/v1 --model Qwen3-VL-235B-A22B-Instruct ...      # untrained, by quoting
  claimwise judge --adapter runs/verifier --cascade cascade.json --teacher http://localhost:8000/v1 \\
      --teacher-model Qwen3-VL-235B-A22B-Instruct --ledger teacher.sqlite --max-calls 5000 ...

Judges: --adapter alone runs the verifier here in transformers, with --backend vllm in vLLM here, with --server behind a
vLLM server; --server and --model without an adapter ask any model behind an OpenAI-compatible server, its key read from
OPENAI_API_KEY; --adapter oracle is the digits world's own labelling. With --cascade the teacher judges again what the
verifier is not sure of (claimwise cascade judge has more flags for that). Stopped in any way, the same command goes on:
what is judged waits in OUT.part.

Exit status: 3 where a server failed on some questions; the table has the reasons, and the same command asks those again.
"""
CLIENT = ("max_in_flight", "timeout", "max_tokens", "price_in", "price_out", "budget")  # flags of cascade judge


def make_parser() -> CommandParser:
    parser = CommandParser(
        "judge",
        "Let a distilled verifier answer every criterion of every rollout.",
        EXAMPLE,
    )
    parser.add_argument("--adapter", metavar="DIR|oracle", help="a verifier's folder, as claimwise distill writes it")
    parser.add_argument("--backend", choices=["transformers", "vllm"], default="transformers", help="what runs it here")
    parser.add_argument("--server", metavar="URL", help="the server that runs it")
    parser.add_argument("--model", help="its name on the server, where not the adapter's own")
    parser.add_argument("--examples", required=True, help="example table (.parquet or .jsonl)")
    parser.add_argument("--rollouts", help="rollout table (.parquet or .jsonl); none with --adversarial")
    parser.add_argument("--adversarial", action="store_true", help="judge the adversarial suite made on the examples")
    parser.add_argument("--seed", type=int, help="with --adversarial: another seed, other attacks (default: 0)")
    parser.add_argument("--out", required=True, help="verdict table to write (.jsonl or .parquet)")
    parser.add_argument("--mode", choices=["text", "image"], help="is the image shown; refuses a verifier of the other")
    parser.add_argument("--base", help="the base model, where not the one that the adapter names")
    parser.add_argument("--max-packed-tokens", type=int, default=16384, help="bound of one pass (default: 16384)")
    cascade = parser.add_argument_group("the verifier first, a teacher where it is not sure").add_argument
    cascade("--cascade", type=Path, metavar="FILE.json", help="where that is, as claimwise cascade band wrote it")
    cascade("--teacher", metavar="oracle|URL", help="oracle: the digits world's human labels; or a server")
    cascade("--teacher-model", metavar="NAME", help="the teacher's name on its server")
    cascade("--ledger", metavar="FILE", help="SQLite file that keeps every answer of a teacher behind a server")
    cascade("--max-calls", type=int, metavar="N", help="verdicts that the teacher is asked for, at most (default: all)")
    return parser


def main(argv: list[str]) -> int:
    args = make_parser().parse_args(argv)
    _check_cascade(args)
    if args.adversarial is (args.rollouts is not None):
        raise InputError("give either --rollouts or --adversarial, which makes its own")
    if args.seed is not None and not args.adversarial:
        raise InputError("--seed is for the attacks of --adversarial; give that, or leave it out")
    _check_out(args)
    mode = args.mode
    if args.adapter not in (None, "oracle"):
        from ...verifier.adapter import read_card

        mode = read_card(args.adapter).mode  # refuse before torch is loaded
        if args.mode not in (None, mode):
            raise InputError(f"{args.adapter} is a verifier for {mode} mode; it cannot judge in {args.mode} mode")
    examples = read_examples(args.examples, check_images=mode != "text")  # nobody looks at them there
    if args.adversarial:
        attack(args, examples)
    else:
        judge_pairs(args, pair_up(examples, read_rollouts(args.rollouts)))
    return status_of(Path(args.out))


def attack(args: argparse.Namespace, examples: list[Example]) -> None:
    """Judges the adversarial suite, and says how often it was talked into yes."""
    from ...distill.attacks import KINDS, aimed, attack_figures, attacks

    rollouts = attacks(examples, tuple(KINDS), args.seed or 0, len(KINDS))
    if not rollouts:
        raise InputError(f"{args.examples}: no example has a criterion that an attack could aim at")
    found = attack_figures(rollouts, judge_pairs(args, aimed(examples, rollouts), rollouts))
    low, high = found["false_yes_ci"]
    told = f"false yes: {found['false_yes']:.3f} of {found['n']} attacks (95%: {low:.3f} to {high:.3f})"
    told += f", {found['missing']} missing" if found["missing"] else ""
    spared = len(examples) - len({rollout.example_id for rollout in rollouts})
    told += f"; {spared} examples have no criterion to aim at" if spared else ""
    print(f"{told}; by kind:")
    print("\n".join(f"  {kind:<14} {share:.3f}" for kind, share in found["by_kind"].items()))


def _check_out(args: argparse.Namespace) -> None:
    """Refuses what could not be written, or would be written over what is read or is somebody's, before any work."""
    out = Path(args.out)
    check_out(out)
    written = [out, beside(out)] if args.adversarial else [out]
    keep_inputs([path for path in (args.examples, args.rollouts, args.ledger) if path], written, "--out")
    if args.adversarial:
        check_out(beside(out))
    if args.adversarial and beside(out).is_file():
        from ...distill.attacks import kind_of

        if not all(map(kind_of, read_rollouts(beside(out)))):
            raise InputError(f"{beside(out)} holds other responses and would be overwritten; give another --out")


def _check_cascade(args: argparse.Namespace) -> None:
    given = {name: getattr(args, name) for name in ("teacher", "teacher_model", "ledger", "max_calls")}
    if args.cascade is None:
        for name in (name for name, value in given.items() if value is not None):
            raise InputError(f"--{name.replace('_', '-')} is for a cascade; give its band with --cascade FILE.json")
        return
    if args.adapter in (None, "oracle") or args.teacher is None:
        raise InputError(
            "--cascade needs a verifier with --adapter DIR, and a teacher with --teacher oracle or its URL"
        )
    for name in ("teacher_model", "ledger"):
        if (given[name] is None) is not (args.teacher == "oracle"):
            raise InputError(
                f"--{name.replace('_', '-')} is what a teacher behind a server needs, and the oracle does not"
            )


def beside(verdicts: Path) -> Path:
    """Where the attacks stand whose verdicts go to that table."""
    return verdicts.with_name(f"{verdicts.stem}-rollouts{verdicts.suffix}")


def judge_pairs(
    args: argparse.Namespace, pairs: list[tuple[Example, Rollout]], attacks: Sequence[Rollout] = ()
) -> list[Verdict]:
    """The verdicts, which are written to the table as well; the attacks that they are on, to the one beside it."""
    if args.cascade is not None:
        return _by_cascade(args, pairs, attacks)
    judge = open_judge(args)
    verdicts = Watched(judge, Path(args.out)).judge(pairs)
    _write(args, verdicts, attacks)
    print(f"{args.out}: {summary(verdicts, judge.name, getattr(judge, 'repeats', 0))}")
    return verdicts


def _by_cascade(
    args: argparse.Namespace, pairs: list[tuple[Example, Rollout]], attacks: Sequence[Rollout]
) -> list[Verdict]:
    from ...verifier.cascade import band_for
    from .cascade_run import as_text, make_parser, open_cascade

    band = band_for(args.cascade, args.adapter)
    client = {name: make_parser().get_default(name) for name in CLIENT}
    teacher = {"verifier_model": args.model, "model": args.teacher_model, "mode": None}  # as the verifier
    with open_cascade(argparse.Namespace(**{**client, **vars(args), **teacher}), band) as cascade:
        verdicts = cascade.judge(pairs)
    _write(args, verdicts, attacks)
    print(as_text(args.out, cascade, verdicts, None))
    return verdicts


def _write(args: argparse.Namespace, verdicts: list[Verdict], attacks: Sequence[Rollout]) -> None:
    """The attacks first: where verdicts are, there is what they are on. Stopped in between, the part is still there."""
    refuse_all_missing(verdicts)
    if attacks:
        write_rollouts(beside(Path(args.out)), attacks)
    write_verdicts(args.out, verdicts)
    finish_part(Path(args.out), verdicts)


def refuse_all_missing(verdicts: list[Verdict]) -> None:
    """A judge that answers nothing has failed, and its table may take the place of a good one."""
    if verdicts and all(verdict.verdict is None for verdict in verdicts):
        raise InputError(
            f"none of {len(verdicts)} criteria was judged ({_kinds(verdicts)}), so nothing is written; the first: "
            f"{verdicts[0].error}"
        )


def open_judge(args: argparse.Namespace) -> Any:
    if args.adapter is None and args.server is None:
        raise InputError("nobody is to judge; give --adapter, or --server and --model")
    if args.adapter == "oracle":
        _refuse_of_oracle(args)
        from ...distill.oracle import OracleJudge

        return OracleJudge(args.mode or "image")
    from ...verifier.judge import load_judge

    where = {name: getattr(args, name) for name in ("max_packed_tokens", "backend", "server", "model")}
    return load_judge(args.adapter, args.mode, args.base, **where)


def _refuse_of_oracle(args: argparse.Namespace) -> None:
    for name in ("backend", "server", "model", "base", "max_packed_tokens"):
        if getattr(args, name) != make_parser().get_default(name):
            raise InputError(f"--{name.replace('_', '-')} is for a verifier, and the oracle is none; leave it out")


def summary(verdicts: list[Verdict], name: str, repeats: int) -> str:
    yes, no = (sum(verdict.verdict is answer for verdict in verdicts) for answer in (True, False))
    told = f"{len(verdicts)} verdicts by {name}, {yes} yes, {no} no"
    if missing := len(verdicts) - yes - no:
        told += f", {missing} missing ({_kinds(verdicts)}; the table has the reasons)"
    return told + (f"; {repeats} repeat a question and were not judged again" if repeats else "")


def _kinds(verdicts: list[Verdict]) -> str:
    """Why verdicts are missing, in one word each."""
    reasons = Counter(str(verdict.error).partition(":")[0] for verdict in verdicts if verdict.verdict is None)
    return ", ".join(f"{count} {kind}" for kind, count in reasons.most_common())
