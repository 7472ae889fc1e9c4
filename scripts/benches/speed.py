"""The speed figures of `claimwise bench judge`: the packed judge against the ways it replaces.

In: shapes and a number of repeats. Out: ratios of seconds, each the median over the repeats; the greatest difference
between the yes-no logit margins of all ways; the median seconds for each number of criteria. On the CPU one thread works
and its processor time counts, which is wall-clock time less what other programs took; elsewhere it is wall-clock time.
Every way encodes text and picks labels, readings and verdicts with the same code; the vision tower's output is computed
beforehand for all of them. Readings run to their full eight tokens, as random weights write them: a trained verifier
decodes less.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch
from tqdm import tqdm

from ...verifier.errors import InputError
from ...verifier.judge import base_judge
from ...verifier.packed import answer_trees
from ...verifier.schema import Rollout
from .workload import Shape, Workload

CRITERIA = 7
Way = Callable[[], list[float]]  # judges, and gives the margins


@dataclass(frozen=True)
class Setting:
    """What is measured: `packed` for the ratios of packing, `depth` for those of the shared opening, `curve` for the
    numbers of criteria, from 1."""

    packed: Shape
    depth: Shape
    curve: tuple[int, ...]
    repeats: int


FULL = Setting(
    packed=Shape(width=256, layers=6, picture=(1024, 768), opening=900, response=300, criterion=40, responses=1),
    depth=Shape(width=512, layers=2, picture=(1024, 768), opening=900, response=300, criterion=40, responses=8),
    curve=(1, 2, 4, 8, 16, 32),
    repeats=5,
)
QUICK = Setting(
    packed=Shape(width=64, layers=2, picture=(64, 64), opening=120, response=40, criterion=10, responses=1),
    depth=Shape(width=64, layers=2, picture=(64, 64), opening=120, response=40, criterion=10, responses=3),
    curve=(1, 2, 4),
    repeats=1,
)


@dataclass
class Timer:
    """Times ways of doing the same, in turns."""

    clock: Callable[[], float]
    repeats: int
    bar: tqdm

    def interleave(self, ways: dict[str, Way]) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
        """Seconds of each way in each repeat, after a warm-up round, and the margins of the last."""
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        margins: dict[str, list[float]] = {}
        for repeat in range(self.repeats + 1):
            names = list(ways)
            for name in names if repeat % 2 else names[::-1]:  # neither way always follows the other
                start = self.clock()
                margins[name] = ways[name]()
                if repeat:
                    seconds[name].append(self.clock() - start)
                self.bar.update()
        return seconds, margins


def figures(args: argparse.Namespace) -> dict:
    if args.repeats < 1:
        raise InputError(f"--repeats is {args.repeats}; it must be at least 1")
    try:
        torch.zeros(1, device=args.device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"--device {args.device}: {reason}; take one that torch has here") from error
    setting = QUICK if args.quick else FULL
    repeats = setting.repeats if args.quick else args.repeats
    on_cpu = torch.device(args.device).type == "cpu"
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if on_cpu else threads)
    try:
        with tqdm(desc="judge speed", unit="call", total=_runs(setting, repeats)) as bar:
            timer = Timer(time.process_time if on_cpu else time.perf_counter, repeats, bar)
            packed, difference = _packing(setting, args.device, timer)
            depth, other = _depth(setting, args.device, timer)
    finally:
        torch.set_num_threads(threads)
    how = {"repeats": repeats, "device": args.device, "criteria": CRITERIA, "dtype": "float32"}
    how["clock"] = "processor seconds of one thread" if on_cpu else "wall-clock seconds"
    return {**packed, **depth, "max_logit_diff": max(difference, other), "speed_setting": asdict(setting) | how}


def _runs(setting: Setting, repeats: int) -> int:
    return (3 + len(setting.curve) + 2) * (repeats + 1)


def _packing(setting: Setting, device: str, timer: Timer) -> tuple[dict, float]:
    """One response: its criteria packed, one pass each, and as rows of a padded batch."""
    work = Workload(setting.packed, device)
    response = work.rollouts[0]
    ways: dict[str, Way] = {  # what is compared stands side by side
        "k1": lambda: judged(work, 1),
        "packed": lambda: judged(work, CRITERIA),
        "single": lambda: [margin for k in range(CRITERIA) for margin in whole_trees(work, [(response, [k])])],
        "batch": lambda: whole_trees(work, [(response, [k]) for k in range(CRITERIA)]),
    }
    for count in setting.curve[1:]:
        ways[f"k{count}"] = lambda count=count: judged(work, count)
    seconds, margins = timer.interleave(ways)
    ratios = {
        "packed_vs_single": median_ratio(seconds["single"], seconds["packed"]),
        "packed_vs_batch": median_ratio(seconds["batch"], seconds["packed"]),
        "k7_vs_k1": median_ratio(seconds["packed"], seconds["k1"]),
        "cost_curve": [[count, round(statistics.median(seconds[f"k{count}"]), 4)] for count in setting.curve],
    }
    return ratios, max(greatest_difference(margins["packed"], margins[name]) for name in ("single", "batch"))


def _depth(setting: Setting, device: str, timer: Timer) -> tuple[dict, float]:
    """Several responses to one example: the opening encoded once, and with each response."""
    work = Workload(setting.depth, device)
    everything = [(response, range(CRITERIA)) for response in work.rollouts]
    ways: dict[str, Way] = {
        "depth2": lambda: judged(work, CRITERIA),
        "depth1": lambda: whole_trees(work, everything),
    }
    seconds, margins = timer.interleave(ways)
    ratio = {"depth2_vs_depth1": median_ratio(seconds["depth1"], seconds["depth2"])}
    return ratio, greatest_difference(margins["depth1"], margins["depth2"])


def judged(work: Workload, count: int) -> list[float]:
    """Margins of the first `count` criteria of every response, by the judge as everyone uses it."""
    judge = base_judge(work.model, "image", "bench", readings=True)
    verdicts = judge.judge([(work.example(count), rollout) for rollout in work.rollouts])
    return [math.log(v.p_yes / (1 - v.p_yes)) for v in verdicts if v.p_yes is not None]


def whole_trees(work: Workload, rows: Sequence[tuple[Rollout, Sequence[int]]]) -> list[float]:
    """Margins with the whole prompt in each row: a response and the numbers of its criteria."""
    example, encoder = work.example(0), work.model.encoder
    trees, allowed = [], []
    for rollout, numbers in rows:
        branches = [encoder.branch(work.criteria[k].text) for k in numbers]
        trees.append(work.model.tree(example, rollout.response, branches, "image"))
        allowed.append(work.labels(rollout))
    return [answer.margin for row in answer_trees(work.model, trees, allowed, readings=True) for answer in row]


def median_ratio(slow: Sequence[float], fast: Sequence[float]) -> float:
    return round(statistics.median(a / b for a, b in zip(slow, fast, strict=True)), 3)


def greatest_difference(one: Sequence[float], other: Sequence[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))
