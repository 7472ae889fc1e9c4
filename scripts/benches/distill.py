"""claimwise bench distill: training on packed trees against training on the same criteria one by one.

In: flags. Out: `packed_vs_unpacked`, criteria per second (forward, backward and optimizer step) on trees of seven
branches over the same on trees of one, whichever way of those is faster: a padded batch of seven, or seven batches
behind one step; and `max_loss_diff`, the greatest difference between the losses of the same responses. Trees, collator,
loss and step are those of `claimwise distill`, in float32.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Sequence
from tempfile import TemporaryDirectory
from typing import Any

import torch
from tqdm import tqdm

from ...distill.config import DistillConfig
from ...distill.train import Item, VerifierTrainer, add_adapter
from ...verifier.errors import InputError
from ...verifier.schema import Verdict
from ...verifier.sentences import split_sentences, trim
from .speed import Timer, greatest_difference, median_ratio
from .workload import Shape, Workload

DESCRIPTION = """Measure distillation: criteria per second of training on packed trees (one response with its seven
criteria of 40 tokens behind 1,200 shared ones) over training on each criterion behind its own copy of the response, and
the greatest difference between the losses of both. The ratio is a median over interleaved repeats; on the CPU it is of
one thread's processor time, so that other work on the machine does not count. The model has random weights."""
EXAMPLE = """examples:
  claimwise bench distill --json
  claimwise bench distill --quick        # a tiny model, once: does it run?
"""
CRITERIA = 7
FULL = Shape(width=256, layers=6, picture=(64, 64), opening=900, response=300, criterion=40, responses=4)
QUICK = Shape(width=64, layers=2, picture=(64, 64), opening=120, response=40, criterion=10, responses=2)


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=5, help="interleaved repeats (default: 5)")
    parser.add_argument("--quick", action="store_true", help="tiny shapes, one repeat; its ratio means nothing")


def measure(args: argparse.Namespace) -> dict:
    if args.repeats < 1:
        raise InputError(f"--repeats is {args.repeats}; it must be at least 1")
    threads = torch.get_num_threads()
    try:
        with TemporaryDirectory() as folder:
            return _measure(QUICK if args.quick else FULL, 1 if args.quick else args.repeats, folder)
    finally:
        torch.set_num_threads(threads)


def _measure(shape: Shape, repeats: int, folder: str) -> dict:
    work = Workload(shape, "cpu")
    items = labelled(work)
    trainer, clock = _trainer(work, items, folder), time.perf_counter
    if trainer.args.device.type == "cpu":
        torch.set_num_threads(1)
        clock = time.process_time
    ways = {
        "packed": _steps(trainer, [items[:1]]),
        "single": _steps(trainer, [[one] for one in one_by_one(items[0])]),
        "batch": _steps(trainer, [one_by_one(items[0])]),
    }
    with tqdm(desc="distilling", unit="step", total=len(ways) * (repeats + 1)) as bar:
        seconds, _ = Timer(clock, repeats, bar).interleave(ways)
    ratio = min(median_ratio(seconds[name], seconds["packed"]) for name in ("single", "batch"))
    together = [loss_of(trainer, [[item]]) for item in items]
    apart = [loss_of(trainer, [[one] for one in one_by_one(item)]) for item in items]
    return {"packed_vs_unpacked": ratio, "max_loss_diff": greatest_difference(together, apart)}


def labelled(work: Workload) -> list[Item]:
    """Each response with a made-up teacher's verdicts on seven criteria."""
    rng, items = random.Random(0), []
    for rollout in work.rollouts:
        example, sentences = work.example(CRITERIA), split_sentences(rollout.response)
        rows = []
        for criterion in example.criteria:
            start, end = trim(rollout.response, rng.choice(sentences))
            p_yes = rng.random()
            rows.append(
                Verdict(
                    example.example_id, rollout.rollout_id, criterion.id, "bench", "image", p_yes > 0.5, p_yes=p_yes,
                    span_start=start, span_end=end, match="exact", reading=str(rng.randrange(10)),
                )
            )  # fmt: skip
        items.append((example, rollout, rows))
    return items


def one_by_one(item: Item) -> list[Item]:
    """The same response once for each of its verdicts: trees of one branch."""
    example, rollout, rows = item
    return [(example, rollout, [row]) for row in rows]


def _trainer(work: Workload, items: list[Item], folder: str) -> VerifierTrainer:
    config = DistillConfig(output_dir=folder, learning_rate=1e-3, report_to="none")
    add_adapter(work.model, config)
    trainer = VerifierTrainer(work.model, config, items, items)
    trainer.create_optimizer()
    return trainer


def _prepared(trainer: Any, batches: Sequence[list[Item]]):
    """Batches as the collator makes them, and the numbers of tokens and verdicts that their losses are divided by."""
    collated = [trainer.data_collator(batch) for batch in batches]
    return trainer.get_batch_samples(iter(collated), len(collated), trainer.args.device)


def _steps(trainer: Any, batches: Sequence[list[Item]]) -> Callable[[], list[float]]:
    """What makes one optimizer step on the batches; collating them is not part of it."""
    prepared, counts = _prepared(trainer, batches)

    def step() -> list[float]:
        losses = [trainer.training_step(trainer.model, batch, counts) for batch in prepared]
        trainer.optimizer.step()
        trainer.model.zero_grad()
        return [float(sum(losses))]  # waits for a GPU too

    return step


@torch.no_grad()
def loss_of(trainer: Any, batches: Sequence[list[Item]]) -> float:
    """The loss of a step on the batches."""
    prepared, counts = _prepared(trainer, batches)
    return sum(float(trainer.compute_loss(trainer.model, batch, num_items_in_batch=counts)) for batch in prepared)
