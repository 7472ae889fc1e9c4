"""The policies from which the runs of a study start, one for each world.

In: the names of the worlds, and the study's folder. Out: the folder of each start policy: the shipped one for 2x2; for
the others one that is made once and kept in the study's folder: for 3x3 from scratch, in about five minutes; for
2x2-swapping from the shipped one, in seconds.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path

import torch
from tqdm import tqdm

from ...distill import tiny
from ...distill.fitting import fit
from ...distill.grids import TWO, Grid
from ...distill.pretrain import Stage, batches, count
from ...verifier.model import VisionLanguageModel, load_model
from ..make_digits import save
from .metrics import CONFUSED
from .settings import SWAPPING, WORLDS

POLICY = resources.files("claimwise.distill") / "assets" / "policy"
SHIPPED = "2x2"
SEED = 7
# It learns where a digit stands, to say so, and to conclude; and is then made to misread, as the shipped policy was.
STAGES = (
    Stage(250, glances=24, answers=2, probes=0, claims=0),
    Stage(450, glances=4, readings=16, answers=4, probes=0, claims=0),
    Stage(500, glances=0, readings=4, answers=16, probes=0, claims=0, misread=0.15),
)
NOISY_STAGES = (Stage(12, glances=0, answers=16, probes=0, claims=0, misread=0.35),)
SWAPPING_STAGES = (Stage(60, glances=0, answers=32, probes=0, claims=0, misread=0.35, mistaken=CONFUSED),)


def start_policies(worlds: Iterable[str], out: Path) -> dict[str, str]:
    """The folder of each world's start policy; what is not there yet is made."""
    return {world: str(POLICY) if world == SHIPPED else str(_made(world, out)) for world in worlds}


def _made(world: str, out: Path) -> Path:
    folder, part = out / f"policy-{world}", out / f"policy-{world}.part"
    if not folder.is_dir():
        shutil.rmtree(part, ignore_errors=True)
        if world == SWAPPING:
            make_swapping(part)
        else:
            make_policy(part, WORLDS[world])
        part.rename(folder)
    return folder


def make_swapping(folder: Path) -> None:
    """The shipped policy, shown answers that take every misread 4 for a 9 and 9 for a 4, until half of its own do."""
    model = load_model(str(POLICY), dtype=torch.float32)
    with tqdm(total=count(SWAPPING_STAGES), desc="start policy", unit="step") as bar:
        _fit(model, SWAPPING_STAGES, SEED + 2, 1e-3, TWO, bar)
    save(model, folder)


def make_policy(folder: Path, grid: Grid) -> None:
    """A policy from scratch, by its seed, that reads nine digits and misreads some: about .6 are read right."""
    torch.manual_seed(SEED)
    processor = tiny.build_processor(grid)
    model = VisionLanguageModel(tiny.build_model(processor, 64, 2, 0.06, grid), processor, str(folder))
    with tqdm(total=count((*STAGES, *NOISY_STAGES)), desc="start policy", unit="step") as bar:
        _fit(model, STAGES, SEED, 3e-3, grid, bar)
        _fit(model, NOISY_STAGES, SEED + 1, 1e-3, grid, bar)
    save(model, folder)


def _fit(model: VisionLanguageModel, stages: Sequence[Stage], seed: int, peak: float, grid: Grid, bar: tqdm) -> None:
    def report(step: int, loss: float, seconds: float) -> None:
        bar.set_postfix(loss=f"{loss:.3f}")
        bar.update()

    fit(model, batches(model, seed, stages, grid), count(stages), peak, 1, report)
