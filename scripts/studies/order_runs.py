"""One run of `claimwise study order`: a tiny verifier from scratch in one order with one seed.

In: a task and the settings. Out: its outcomes at each evaluation, on held-out responses that all runs share.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ...distill import digits, orders, pretrain, tiny
from ...distill.fitting import Batch, fit
from ...verifier.model import VisionLanguageModel
from ...verifier.schema import Example, Mode
from .order import METRICS, OrderSettings, Task

MODES: tuple[Mode, ...] = ("image", "text")
BATCH = 50  # responses that are judged together
LOOKING_FIRST = 200  # steps whose probes only look up, and compare nothing yet


def carry_out(task: Task, settings: OrderSettings) -> dict[str, Any]:
    started, points = time.monotonic(), []
    torch.manual_seed(task.seed)
    processor = tiny.build_processor()
    network = tiny.build_model(processor, settings.hidden_size, settings.layers, 0.06)
    model = VisionLanguageModel(network, processor, task.order)
    rng = random.Random("order-held-out")
    held_out = [orders.draw_pair(rng, "test", number) for number in range(settings.test_responses)]

    def report(step: int, loss: float, seconds: float) -> None:
        if step in settings.evaluate_at:
            points.append({"step": step, "loss": loss, **measure(model, held_out, task.order)})

    fit(model, steps(model, settings, task), settings.steps, settings.learning_rate, 1, report)
    seconds = round(time.monotonic() - started, 1)
    return {"order": task.order, "seed": task.seed, "seconds": seconds, "points": points}


def steps(model: VisionLanguageModel, settings: OrderSettings, task: Task) -> Iterator[list[Batch]]:
    """The batches of each step. Pictures, responses and all but the targets of the criteria hang on the seed alone. Every
    other response comes without its picture: that a sentence says what a criterion asks is learned there first."""
    rng = random.Random(f"order-{task.seed}")
    for step in range(settings.steps):
        pairs = [orders.draw_pair(rng, "train", step) for _ in range(settings.responses)]
        judged = [_judged(model, pair, task.order, MODES[place % len(MODES)]) for place, pair in enumerate(pairs)]
        looked = [pretrain.glance_task(model, rng) for _ in range(settings.glances)]
        answered = [pretrain.answer_task(model, rng) for _ in range(settings.answers)]
        probed = [pretrain.probe_task(model, rng, step >= LOOKING_FIRST) for _ in range(settings.probes)]
        yield [batch for batch in (looked, answered, probed, judged) if batch]


def _judged(model: VisionLanguageModel, pair: tuple[Example, str], order: str, mode: Mode):
    return orders.tree_of(model, *pair, mode), orders.targets_of(model.encoder, *pair, order, mode)


def measure(model: VisionLanguageModel, held_out: Sequence[tuple[Example, str]], order: str) -> dict[str, float | None]:
    """Shares of the verdicts that agree with people's labels, all and by dimension; of the spans that do; and the mean
    number of tokens written for a verdict. "wrong criteria" are those on which text and image differ."""
    right: dict[str, list[float]] = defaultdict(list)
    for first in range(0, len(held_out), BATCH):
        pairs = held_out[first : first + BATCH]
        for (example, response), row in zip(pairs, orders.write(model, pairs, order), strict=True):
            truth = digits.truth_of(example)
            for criterion, written in zip(example.criteria, row, strict=True):
                gold = digits.gold(criterion, response, truth)
                names = ["agreement", str(criterion.group), *["wrong criteria"] * (gold.text != gold.image)]
                for name in names:
                    right[name].append(written.verdict == gold.image)
                right["span"].append(written.span == gold.span)
                right["tokens"].append(written.tokens)
    return {name: sum(right[name]) / len(right[name]) if right[name] else None for name in (*METRICS, "tokens")}
