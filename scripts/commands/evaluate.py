"""claimwise evaluate: how good policies are on held-out rubric data: right answers, criteria that hold, and right answers
beside a claim about the image that fails.

In: policies, examples, and a verifier. Out: a folder with rollouts.parquet, verdicts.jsonl, answers.jsonl and the figures
of `eval.policy` as evaluation.json and evaluation.md.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...verifier.errors import InputError
from ...verifier.part_file import part_of
from ...verifier.rundir import FILE, open_run, write_atomic
from ...verifier.tables import pair_up, read_examples, read_rollouts, write_rollouts
from ..parser import CommandParser

if TYPE_CHECKING:
    from ...distill.rollout_run import Plan
    from ...verifier.schema import Example, Rollout

EXAMPLE = """examples:
  claimwise evaluate runs/policy --examples heldout/examples.parquet --verifier runs/verifier --out runs/evaluation
  claimwise evaluate runs/sft runs/answer-only runs/rubric --examples heldout/examples.parquet --verifier runs/verifier \\
      --samples 4 --agreement agree.json --out runs/evaluation

The headline is the share of responses whose answer is right although a criterion of visual faithfulness failed. Several
policies are compared on the same examples, each with the first. Brackets: 95% intervals, bootstrapped over examples.
Nothing missing is scored. Stopped in any way, the same command goes on where it was.
"""


def make_parser() -> CommandParser:
    parser = CommandParser("evaluate", "Sample policies on held-out rubric data, judge and compare them.", EXAMPLE)
    add = parser.add_argument
    add("policies", nargs="+", metavar="POLICY", help="a folder, a Hub name, or a model of --server")
    add("--examples", required=True, help="held-out example table (.parquet or .jsonl)")
    add("--out", required=True, metavar="DIR", help="folder for the tables and figures")
    add("--verifier", required=True, metavar="DIR|oracle|URL", help="who judges: a verifier's folder, the digits "
        "world's human labels, or a server that speaks OpenAI's chat API (a call for each criterion; its key is read "
        "from OPENAI_API_KEY)")  # fmt: skip
    add("--verifier-base", metavar="DIR", help="the verifier's base model, where not the one that it names")
    add("--verifier-model", metavar="NAME", help="with an URL: the model's name there")
    add("--verifier-server", metavar="URL", help="with a DIR: the server of claimwise serve that runs it")
    add(
        "--name", action="append", help="a policy's name in the tables, one for each (default: the last part of POLICY)"
    )
    add("--samples", type=int, default=4, help="responses per example (default: 4)")
    add("--temperature", type=float, default=1.0, help="0 is greedy (default: 1)")
    add("--max-new-tokens", type=int, default=1024, help="length limit (default: 1024)")
    add("--backend", choices=("transformers", "vllm"), help="what runs the policies here (default: transformers)")
    add("--engine", nargs="+", default=[], metavar="KEY=VALUE", help="settings of vLLM's engine")
    add("--server", metavar="URL", help="sample from this OpenAI-compatible server instead")
    add("--key-env", default="OPENAI_API_KEY", help="variable that holds its key (default: OPENAI_API_KEY)")
    add("--in-flight", type=int, default=32, help="requests to a server at once (default: 32)")
    add("--timeout", type=float, default=600.0, help="seconds until a request is given up (default: 600)")
    add("--batch-size", type=int, default=64, help="responses at once with transformers (default: 64)")
    add("--max-failed", type=float, default=0.0, metavar="SHARE", help="go on if at most this share of the responses "
        "is not to be had (default: 0)")  # fmt: skip
    add("--agreement", metavar="FILE", help="what claimwise agree --json printed for this verifier: pass rates without "
        "its errors, and what its false noes alone would make of the headline")  # fmt: skip
    parser.add_draws("the sampling and of the bootstrap")
    add("--json", action="store_true", help="print the figures as one JSON object")
    return parser


def main(argv: list[str]) -> int:
    args = make_parser().parse_args(argv)
    _check(args)
    rates = _rates(args.agreement)
    examples = read_examples(args.examples)
    if not examples:
        raise InputError(f"{args.examples} holds no example; there is nothing to evaluate on")
    plan = _plan(args)
    out = open_run(args.out, _settings(args, plan, examples))
    rollouts = _sample(args, plan, examples, out)
    if rollouts is None:
        return 1
    from ...eval.policy import evaluate
    from ..evaluation import judge_all
    from ..evaluation_text import as_markdown, as_text

    judged = judge_all(out, pair_up(examples, rollouts), lambda: _judge(args))
    of = {name: [row for row in judged if row.rollout.policy == name] for _, name in plan.policies}
    found = evaluate(of, args.draws, args.seed, rates)
    result = {"settings": _told(args, judged, args.samples * len(examples)), **found}
    write_atomic(out / "evaluation.json", json.dumps(result, indent=2, allow_nan=False) + "\n")
    write_atomic(out / "evaluation.md", as_markdown(result))
    print(json.dumps(result, allow_nan=False) if args.json else f"{as_text(result)}\n\nwritten to {out}/")
    return 0


def _check(args: argparse.Namespace) -> None:
    """Raises InputError for what would fail only when all is sampled."""
    if args.server and args.backend:
        raise InputError("--server and --backend exclude each other; give one of them")
    if args.engine and args.backend != "vllm":
        raise InputError("--engine holds settings of vLLM; give --backend vllm too, or leave it out")
    if args.name and len(args.name) != len(args.policies):
        raise InputError(
            f"there are {len(args.policies)} policies but {len(args.name)} names; give one --name for each"
        )
    if not 0 <= args.max_failed < 1:
        raise InputError("--max-failed must be a share from 0 to below 1")
    for name in ("verifier_server", "verifier_base"):
        if getattr(args, name) and (_behind_server(args) or args.verifier == "oracle"):
            flag = name.replace("_", "-")
            raise InputError(f"--{flag} is for a verifier's folder; give that with --verifier, or leave it out")
    if _behind_server(args) != bool(args.verifier_model):
        raise InputError(
            "--verifier URL and --verifier-model, its model's name there, go together; give both or neither"
        )
    if not _behind_server(args) and args.verifier != "oracle":
        from ...verifier.adapter import read_card

        read_card(args.verifier)


def _behind_server(args: argparse.Namespace) -> bool:
    return args.verifier.startswith(("http://", "https://"))


def _judge(args: argparse.Namespace) -> Any:
    if args.verifier == "oracle":
        from ...distill.oracle import OracleJudge

        return OracleJudge("image")
    from ...verifier.judge import load_judge
    from ...verifier.progress import only_our_bars

    only_our_bars()
    asking = {"max_in_flight": args.in_flight, "timeout_s": args.timeout}
    if _behind_server(args):
        return load_judge(None, "image", server=args.verifier, model=args.verifier_model, **asking)
    if args.verifier_server:
        return load_judge(args.verifier, base=args.verifier_base, server=args.verifier_server, **asking)
    return load_judge(args.verifier, base=args.verifier_base)


def _rates(path: str | None) -> dict[str, Any] | None:
    if path is None:
        return None
    from ...eval.policy import judge_errors

    try:
        return judge_errors(json.loads(Path(path).read_text(encoding="utf-8")))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is not what claimwise agree --json prints ({error}); give that file") from None


def _plan(args: argparse.Namespace) -> Plan:
    from ...distill.rollout_run import Plan

    names = args.name or [policy.rstrip("/").rpartition("/")[2] for policy in args.policies]
    sources = [p if args.server or not Path(p).exists() else str(Path(p).resolve()) for p in args.policies]
    return Plan(
        policies=tuple(zip(sources, names, strict=True)),
        temperatures=(args.temperature,),
        samples=args.samples,
        max_new_tokens=args.max_new_tokens,
        seed=args.seed,
        backend="server" if args.server else args.backend or "transformers",
        batch_size=None if args.server or args.backend == "vllm" else args.batch_size,
    )


def _settings(args: argparse.Namespace, plan: Plan, examples: Sequence[Example]) -> dict[str, Any]:
    """All that bears on the tables; what only bears on the figures is left out, which are made anew each time."""
    verifier = "oracle" if args.verifier == "oracle" else str(Path(args.verifier).resolve())
    rubrics = repr([(example.answer, example.criteria) for example in examples])
    return {
        "command": "evaluate",
        **plan.settings(examples),
        "rubrics": hashlib.sha256(rubrics.encode()).hexdigest()[:16],
        "verifier": "server" if _behind_server(args) else verifier,  # where it stands does not matter
        **_verifier_of(args),
        "verifier_base": args.verifier_base,
        "verifier_model": args.verifier_model,
    }


def _verifier_of(args: argparse.Namespace) -> dict[str, Any]:
    """What tells a verifier from another in the same folder."""
    if _behind_server(args) or args.verifier == "oracle":
        return {}
    from ...verifier.adapter import read_card
    from ...verifier.model import adapter_hash

    return {"adapter": adapter_hash(args.verifier), "temperature": read_card(args.verifier).temperature}


def _sample(args: argparse.Namespace, plan: Plan, examples: Sequence[Example], out: Path) -> list[Rollout] | None:
    """The rollouts, sampled now or by an earlier start; None where too many are not to be had, which is told."""
    table = out / "rollouts.parquet"
    if table.is_file():
        return read_rollouts(table)
    from ...distill.rollout_run import finished, open_part, roll_out
    from .rollout import _failure, _opener, _reasons

    try:
        with open_part(table, plan, examples) as part:
            refused = roll_out(plan, examples, part, _opener(args))
            jobs = plan.jobs(examples)
            if len(refused) > args.max_failed * len(jobs):
                print(f"claimwise evaluate: {_failure(table, part.path, refused, len(jobs))}", file=sys.stderr)
                return None
            if refused:
                print(_reasons(refused, len(jobs)), file=sys.stderr)
            rollouts = finished(part, jobs)
            write_rollouts(table, rollouts)
            part.remove()
    except InputError:
        if not part_of(table).exists():
            (out / FILE).unlink()  # nothing was sampled: a mistyped policy would stay in the settings
        raise
    return rollouts


def _told(args: argparse.Namespace, judged: Sequence[Any], wanted: int) -> dict[str, Any]:
    """What a reader of the figures must know. `wanted`: responses of each policy."""
    verdicts = [verdict for row in judged for verdict in row.verdicts]
    judges, modes = (sorted({getattr(v, name) for v in verdicts}) for name in ("judge", "mode"))
    return {
        "examples": args.examples,
        "samples": args.samples,
        "responses_wanted": wanted,
        "temperature": args.temperature,
        "max_new_tokens": args.max_new_tokens,
        "judge": ", ".join(judges),
        "mode": ", ".join(modes),
        "draws": args.draws,
        "seed": args.seed,
    }
