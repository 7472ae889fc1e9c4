"""claimwise study arms: what the arms of the credit differ in, and whether the spans matter.

In: a recipe that states settings and contrasts. Out: a folder with a file per run, `study.json` and `study.md`.
`judges` is the same with another recipe.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from ...verifier.errors import InputError
from ..parser import CommandParser

EXAMPLE = """examples:
  claimwise study arms --out runs/study-arms --jobs 2
  claimwise study arms --config scripts/recipes/study-arms-3x3.yaml --out runs/study-arms-3x3 --jobs 2

The recipe (scripts/recipes/study-arms.yaml) states settings, learning rates and contrasts before the runs. DIR holds a
file per run under runs/ and tuning/, study.json and study.md. The same command goes on where it was stopped; --report
writes the tables of what is finished and runs nothing. The second recipe is of pictures with nine digits and responses
twice as long; their start policy is made first, in about five minutes, and kept in DIR."""


def make_parser(name: str, description: str, example: str) -> CommandParser:
    parser = CommandParser(f"study {name}", description, example)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the study")
    parser.add_argument("--config", type=Path, metavar="FILE", help=f"another recipe (default: study-{name}.yaml)")
    parser.add_argument("--seeds", metavar="0-19", help="other seeds than the recipe's, as 0-4 or 0,3")
    parser.add_argument("--quick", action="store_true", help="two seeds and six steps, to see that it works")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes, one thread each (default: 1)")
    parser.add_argument("--report", action="store_true", help="the tables of what is finished; runs nothing")
    return parser


def main(argv: list[str]) -> int:
    what = "Train the digits policy under every arm with the same seeds, and compare the arms in pairs."
    args = make_parser("arms", what, EXAMPLE).parse_args(argv)
    return study("arms", args, {})


def open_study(args: argparse.Namespace, identity: Mapping[str, Any]) -> Path:
    """The folder of this very study; with --report one that is there already. Raises InputError otherwise."""
    from ...verifier.rundir import FILE, open_run

    if args.report and not (args.out / FILE).is_file():
        raise InputError(f"{args.out} holds no study to report; leave --report out to run it")
    return open_run(args.out, identity)


def study(name: str, args: argparse.Namespace, judges: Mapping[str, str]) -> int:
    """`judges`: where the verifiers of the recipe's judges lie."""
    from ...verifier.model import adapter_hash, base_hash
    from ...verifier.progress import only_our_bars
    from .plan import chosen_rates, planned, read_results, run_study
    from .report import write_study
    from .runs import grpo_recipe, judge_of
    from .settings import quick, read_settings
    from .worlds import POLICY

    if args.jobs < 1:
        raise InputError(f"--jobs is {args.jobs}; give 1 or more")
    only_our_bars()
    recipe = args.config or Path(str(resources.files("claimwise.scripts") / "recipes" / f"study-{name}.yaml"))
    settings = read_settings(recipe, args.seeds, f"study {name}")
    settings = quick(settings) if args.quick else settings
    unknown = sorted(set(settings.judges) - {"oracle"} - judges.keys())
    if unknown:
        raise InputError(f"the recipe has the judge {unknown[0]}, and no verifier is given for it; use study judges")
    for judge, folder in judges.items():
        judge_of(judge, folder)  # refuses an adapter of another base now, not after hours of tuning
    models = {"policy": base_hash(str(POLICY)), **{judge: adapter_hash(folder) for judge, folder in judges.items()}}
    grpo_hash = hashlib.sha256(grpo_recipe(settings).read_bytes()).hexdigest()[:16]
    identity = {**dataclasses.asdict(settings), "grpo_hash": grpo_hash, **{f"{k}_hash": v for k, v in models.items()}}
    out = open_study(args, {"command": f"study {name}", **identity})
    if not args.report:
        run_study(settings, out, judges, args.jobs)
    results = read_results(planned(settings), out)
    if not any(results.values()):
        raise InputError(f"{out} holds no finished run yet; leave --report out to make them")
    print(write_study(settings, out, results, chosen_rates(settings, out)))
    print(f"written to {out}/study.md and study.json")
    return 0
