"""claimwise rollout: responses of one or several policies, with counterfactual, truncated and empty ones beside them, and
the difficulty of the examples by answer checking."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...verifier.errors import InputError
from ...verifier.part_file import part_of
from ...verifier.tables import read_examples, write_rollouts
from .. import rating
from ..parser import CommandParser

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...distill.rollout_backends import Backend, Job, Refusal
    from ...distill.rollout_run import Plan
    from ...distill.teacher import TeacherSettings

EXAMPLE = """example:
  claimwise rollout --policy runs/policy --examples heldout/examples.parquet --samples 4 --edits 2 --out rollouts.parquet
  claimwise rollout --server http://localhost:8000/v1 --policy Qwen/Qwen2.5-VL-7B-Instruct --temperature 0.7 1 \\
      --examples examples.parquet --samples 8 --difficulty --out rollouts.parquet \\
      --teacher http://localhost:8001/v1 --teacher-model Qwen3-VL-235B-A22B-Instruct

stopped by Ctrl-C or anything else, the same command goes on: finished responses wait in rollouts.parquet.part,
the teacher's answers in its ledger. The exit status is 3 where the budget ended the teacher's work first.
"""
TABLES = (".jsonl", ".parquet")


def make_parser() -> CommandParser:
    parser = CommandParser("rollout", "Sample responses from policies and write them as one rollout table.", EXAMPLE)
    add = parser.add_argument
    add("--policy", required=True, action="append", help="a folder, a Hub name, or a server's model; may be repeated")
    add("--examples", required=True, help="example table (.parquet or .jsonl)")
    add("--out", required=True, help="rollout table to write (.parquet or .jsonl)")
    add("--name", action="append", help='a policy\'s name in the table, one for each (default: "policy", or if several '
        "the last part of what --policy says)")  # fmt: skip
    add("--backend", choices=("transformers", "vllm"), help="what runs the policies here (default: transformers)")
    add("--engine", nargs="+", default=[], metavar="KEY=VALUE", help="settings of vLLM's engine, such as "
        "max_model_len=8192 tensor_parallel_size=2")  # fmt: skip
    add("--server", metavar="URL", help="ask this OpenAI-compatible server instead, such as http://localhost:8000/v1")
    add("--key-env", default="OPENAI_API_KEY", help="variable that holds the server's key (default: OPENAI_API_KEY)")
    add("--in-flight", type=int, default=32, help="requests to a server at once (default: 32)")
    add("--timeout", type=float, default=600.0, help="seconds until a request is given up (default: 600)")
    add("--samples", type=int, default=4, help="responses per example, policy and temperature (default: 4)")
    add("--temperature", type=float, nargs="+", default=[1.0], help="one or several, 0 is greedy (default: 1); with "
        "several, the policy's name in the table gets it behind an @")  # fmt: skip
    add("--max-new-tokens", type=int, default=1024, help="length limit (default: 1024)")
    add("--batch-size", type=int, default=64, help="responses at once with transformers; another size gives other "
        "responses (default: 64)")  # fmt: skip
    add("--max-failed", type=float, default=0.0, metavar="SHARE", help="write the table if at most this share of the "
        "responses is not to be had (default: 0)")  # fmt: skip
    add("--edits", type=int, default=0, help="counterfactuals per response (default: 0)")
    add("--empty-share", type=float, default=0.02, help="share of them that is empty (default: 0.02)")
    add("--references", action="store_true", help="the reference responses too, edited as well")
    add("--difficulty", action="store_true", help="rate the examples by the answers of the first policy's first 8 "
        "responses, and leave out those it gets right 8 times; needs --samples 8 or more")  # fmt: skip
    add("--difficulty-out", metavar="TABLE", help="the rated example table (default: beside --out, "
        "<its name>-examples)")  # fmt: skip
    add("--seed", type=int, default=0, help="the same seed gives the same rollouts (default: 0)")
    rating.add_flags(parser)
    return parser


def main(argv: list[str]) -> int:
    args = make_parser().parse_args(argv)
    out = Path(args.out)
    ledger = Path(args.ledger or out.with_name(f"{out.stem}-teacher.sqlite"))
    rated_out = Path(args.difficulty_out or out.with_name(f"{out.stem}-examples{out.suffix}"))
    settings = _check(args, out, rated_out)
    examples = read_examples(args.examples)
    if not examples:
        raise InputError(f"{args.examples} holds no example; there is nothing to sample")
    from ...distill.edits import ALL_EDITS
    from ...distill.rollout_run import finished, open_part, roll_out
    from ...distill.rollouts import references, with_edits

    plan = _plan(args)
    with open_part(out, plan, examples) as part:
        refused = roll_out(plan, examples, part, _opener(args))
        wanted = plan.jobs(examples)
        if len(refused) > args.max_failed * len(wanted):
            print(f"claimwise rollout: {_failure(out, part.path, refused, len(wanted))}", file=sys.stderr)
            return 1
        sampled = finished(part, wanted)
        of_first = [row for row in sampled if row.policy == wanted[0].policy]
        if args.dry_run and settings is not None:
            print(*rating.dry_run(args, ledger, examples, of_first, settings), sep="\n")
            return 0
        originals = sampled + (references(examples) if args.references else [])
        edited = list(with_edits(originals, args.edits, args.empty_share, args.seed, tuple(ALL_EDITS)))
        write_rollouts(out, originals + edited)
        print(f"{out}: {len(originals + edited)} rollouts of {len(examples)} examples, {len(edited)} of them edited")
        if refused:
            print(f"  {_reasons(refused, len(wanted))}")
        status, more = 0, False
        if args.difficulty or args.difficulty_out:
            status, more = rating.rate_and_write(args, ledger, rated_out, examples, of_first, settings)
        if not more:
            part.remove()
    return status


def _check(args, out: Path, rated_out: Path) -> TeacherSettings | None:
    """The teacher's settings, if there is one. Raises InputError for what would fail only when all is sampled, or would
    overwrite a table."""
    difficulty = args.difficulty or args.difficulty_out
    for path in (out, rated_out) if difficulty else (out,):
        if path.suffix not in TABLES:
            raise InputError(f"{path}: a table's name must end in {' or '.join(TABLES)}")
        if path.exists() and not part_of(out).exists():
            raise InputError(f"{path} is there already; remove it, or give another name")
    if difficulty and rated_out.resolve() == out.resolve():
        raise InputError(f"--difficulty-out {rated_out} is the rollout table; give another name")
    if difficulty and args.samples < 8:
        raise InputError(f"--difficulty counts right answers among 8 responses; --samples is {args.samples}, give 8")
    if args.server and args.backend:
        raise InputError("--server and --backend exclude each other; give one of them")
    if args.engine and args.backend != "vllm":
        raise InputError("--engine holds settings of vLLM; give --backend vllm too, or leave it out")
    if args.edits < 0 or not 0 <= args.empty_share <= 1 or not 0 <= args.max_failed <= 1:
        raise InputError("--edits must be 0 or more, --empty-share and --max-failed shares from 0 to 1")
    if args.name and len(args.name) != len(args.policy):
        raise InputError(f"there are {len(args.policy)} policies but {len(args.name)} names; give one --name for each")
    return rating.check_flags(args, bool(difficulty))


def _plan(args) -> Plan:
    from ...distill.rollout_run import Plan

    several = [policy.rstrip("/").rpartition("/")[2] for policy in args.policy]
    names = args.name or (several if len(several) > 1 else ["policy"])
    return Plan(
        policies=tuple(zip(args.policy, names, strict=True)),
        temperatures=tuple(args.temperature),
        samples=args.samples,
        max_new_tokens=args.max_new_tokens,
        seed=args.seed,
        backend="server" if args.server else args.backend or "transformers",
        batch_size=None if args.server or args.backend == "vllm" else args.batch_size,
    )


def _opener(args) -> Callable[[str], Backend]:
    """What makes a policy ready to sample, when its turn comes."""
    from ...distill.rollout_backends import TransformersBackend, VllmBackend

    if args.server:
        from ...distill.rollout_server import ServerBackend

        return lambda model: ServerBackend(
            args.server, model, args.max_new_tokens, args.key_env, args.in_flight, args.timeout
        )
    from ...verifier.progress import only_our_bars

    only_our_bars()
    if args.backend == "vllm":
        return lambda path: VllmBackend(path, args.max_new_tokens, **_engine(args.engine))
    return lambda path: TransformersBackend(path, args.max_new_tokens, args.batch_size)


def _engine(pairs: Sequence[str]) -> dict[str, Any]:
    """KEY=VALUE pairs, the values as JSON where they are."""
    out = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign:
            raise InputError(f"--engine takes KEY=VALUE, such as max_model_len=8192, and not {pair!r}")
        try:
            out[key] = json.loads(value)
        except ValueError:
            out[key] = value
    return out


def _failure(out: Path, part: Path, refused: Sequence[tuple[Job, Refusal]], wanted: int) -> str:
    told = f"{out} is not written: {_reasons(refused, wanted)}."
    if len(refused) == wanted:
        return f"{told} Mend that; the same command begins again"
    share = min(1.0, 1.01 * len(refused) / wanted)  # rounded, it must suffice
    kept = f"The others are kept in {part.name}, and the same command asks for the missing ones only"
    return f"{told} {kept}; --max-failed {share:.3g} goes without them"


def _reasons(refused: Sequence[tuple[Job, Refusal]], wanted: int) -> str:
    """How many are missing, by kind, and which."""
    kinds = ", ".join(f"{n} {kind}" for kind, n in Counter(refusal.kind for _, refusal in refused).most_common())
    names = ", ".join(job.rollout_id for job, _ in refused[:5]) + (", ..." if len(refused) > 5 else "")
    job, first = refused[0]
    return f"{len(refused)} of {wanted} responses are missing ({kinds}): {names}; {job.rollout_id}: {first.reason}"
