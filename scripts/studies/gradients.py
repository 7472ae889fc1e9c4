"""claimwise study gradients: what each arm's gradient estimates, and with how much noise, on a frozen policy.

In: settings, stated beforehand in recipes/study-gradients.yaml, a seed and a number of groups. Out, under DIR:
gradients.json and gradients.md; gram.npz with the inner products that they come from; while it runs, a file per batch.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...verifier.errors import InputError
from ...verifier.rundir import open_run, write_atomic
from ..parser import CommandParser

if TYPE_CHECKING:
    from .gradient_sample import Family

RECIPE = "study-gradients.yaml"
GROUPS, QUICK_GROUPS = 256, 64
COLUMNS = 1 << 15  # of the gradients, held at a time while the inner products are added up
EXAMPLE = """\
example:
  claimwise study gradients --out runs/study-gradients

Samples groups of responses from the shipped digits policy, once. Every arm credits the same responses; nothing is
trained. For each arm: the signal-to-noise ratio of one step's gradient, how far its mean lies from that of arm
`component`, and the cosine of one step with either mean. Settings and contrasts: scripts/recipes/study-gradients.yaml.
Stop it with Ctrl-C; the same command goes on. It needs 9 MB of disk per group until it has finished."""


def make_parser() -> CommandParser:
    parser = CommandParser("study gradients", "The gradients of all arms on one frozen policy.", EXAMPLE)
    parser.add_argument("--out", metavar="DIR", type=Path, required=True, help="folder of the results")
    parser.add_argument("--groups", type=int, metavar="N", help=f"pictures to sample responses to (default: {GROUPS})")
    parser.add_argument("--seed", type=int, default=0, help="of pictures and responses (default: 0)")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_GROUPS} groups, to see that it works")
    return parser


def main(argv: list[str]) -> int:
    args = make_parser().parse_args(argv)
    recipe = read_recipe()
    groups = check_groups(args, recipe)
    from ...trainer.credit import ARMS
    from .gradient_sample import Family

    families = [Family(**row) for row in recipe["families"]]
    unknown = sorted({arm for family in families for arm in family.arms} - set(ARMS))
    if unknown:
        raise InputError(f"{RECIPE}: there is no arm {', '.join(unknown)}; the arms are {', '.join(ARMS)}")
    settings = {"command": "study gradients", "groups": groups, "seed": args.seed, "recipe": recipe}
    out = open_run(args.out, settings)
    if not (out / "gradients.md").is_file():
        if not (out / "gram.npz").is_file():
            sample_gradients(out, recipe, families, groups // recipe["pictures"], args.seed)
            add_up(out, families)
        write_results(out, recipe, families, settings)
    print((out / "gradients.md").read_text(encoding="utf-8"))
    return 0


def read_recipe() -> dict[str, Any]:
    import yaml

    return yaml.safe_load((resources.files("claimwise.scripts") / "recipes" / RECIPE).read_text(encoding="utf-8"))


def check_groups(args: argparse.Namespace, recipe: dict[str, Any]) -> int:
    if args.quick and args.groups is not None:
        raise InputError("--quick and --groups both say how many groups; give one of them")
    groups = (QUICK_GROUPS if args.quick else GROUPS) if args.groups is None else args.groups
    pictures = recipe["pictures"]
    if groups < 4 * pictures or groups % pictures:
        raise InputError(
            f"--groups {groups}: it must be a multiple of {pictures}, a batch, and at least {4 * pictures}"
        )
    if args.seed < 0:
        raise InputError(f"--seed {args.seed}: it must be 0 or more")
    return groups


def sample_gradients(out: Path, recipe: dict[str, Any], families: Sequence[Family], batches: int, seed: int) -> None:
    """A file per batch, whatever was interrupted before: gradients first, then the rest, which marks it as finished."""
    import torch
    from tqdm import tqdm

    from ...distill.sampling import Sampler
    from ...verifier.model import load_model
    from ...verifier.progress import only_our_bars

    only_our_bars()
    policy = load_model(str(resources.files("claimwise.distill") / "assets" / "policy"), dtype=torch.float32)
    sampler = Sampler(policy, recipe["max_completion_length"])
    folder = out / "batches"
    folder.mkdir(exist_ok=True)
    missing = [k for k in range(batches) if not _marked(folder, k).is_file()]
    with tqdm(total=batches, initial=batches - len(missing), desc="gradients", unit="batch") as bar:
        for k in missing:
            _write_batch(folder, k, one_batch(sampler, recipe, families, seed, k))
            bar.update()


def one_batch(sampler, recipe: dict[str, Any], families: Sequence[Family], seed: int, number: int):
    """Pictures and responses depend on the seed and the number of the batch alone."""
    from ...distill.digits import make_example
    from .gradient_sample import batch_of, draw_groups

    rng, pictures = random.Random(f"gradients-{seed}-{number}"), recipe["pictures"]
    first = number * pictures
    examples = [make_example(rng, recipe["part"], first + i, wrong_share=0.0) for i in range(pictures)]
    groups = draw_groups(sampler, examples, recipe["responses"], rng.getrandbits(32), first)
    return batch_of(sampler.policy, groups, families, recipe["max_completion_length"])


def _marked(folder: Path, number: int) -> Path:
    return folder / f"{number:05d}.json"


def _write_batch(folder: Path, number: int, batch) -> None:
    np.save(folder / f"{number:05d}.npy", batch.gradients)
    rest = {"rms": batch.rms.tolist(), "covered": batch.covered.tolist(), **batch.figures}
    write_atomic(_marked(folder, number), json.dumps(rest))


def add_up(out: Path, families: Sequence[Family]) -> None:
    """gram.npz: per family the inner products (A, A, n, n) in float64, with what else is known of each batch; then the
    files of the batches go."""
    folder = out / "batches"
    marks = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    maps = [np.load(path, mmap_mode="r") for path in sorted(folder.glob("*.npy"))]
    kept: dict[str, np.ndarray] = {key: np.array([mark[key] for mark in marks]) for key in ("rms", "covered")}
    kept |= {key: np.concatenate([mark[key] for mark in marks]) for key in ("lengths", "answers")}
    first = 0
    for family in families:
        stop = first + len(family.columns)
        kept[f"gram/{family.name}"] = gram([rows[first:stop] for rows in maps])
        first = stop
    part = out / "gram.part.npz"
    np.savez(part, **kept)  # pyright: ignore[reportArgumentType]
    part.replace(out / "gram.npz")
    shutil.rmtree(folder)


def gram(batches: Sequence[np.ndarray]) -> np.ndarray:
    """(A, A, n, n) of n batches of gradients (A, D); a stretch of their columns at a time, added up in float64."""
    n, (arms, width) = len(batches), batches[0].shape
    total = np.zeros((arms * n, arms * n))
    for first in range(0, width, COLUMNS):
        rows = np.stack([batch[:, first : first + COLUMNS] for batch in batches], axis=1).reshape(arms * n, -1)
        total += rows @ rows.T
    return total.reshape(arms, n, arms, n).transpose(0, 2, 1, 3)


def write_results(out: Path, recipe: dict[str, Any], families: Sequence[Family], settings: dict[str, Any]) -> None:
    from .gradient_tables import as_markdown, results

    with np.load(out / "gram.npz") as found:
        told = results(dict(found), recipe, families, settings)
    write_atomic(out / "gradients.json", json.dumps(told, indent=2, allow_nan=False) + "\n")
    write_atomic(out / "gradients.md", as_markdown(told))
