"""Training of the digits world's tiny models from scratch, on steps of packed trees.

In: a model, and the batches of (tree, targets) of each step. Out: the model trained, in place.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence

import torch

from ..verifier.model import VisionLanguageModel
from ..verifier.tree import Packed, Tree
from .loss import Target, Targets, distillation_loss, locate, margin, read_logits, with_targets

Batch = Sequence[tuple[Tree, list[Target]]]


def pack_with_targets(model: VisionLanguageModel, batch: Batch) -> tuple[Packed, Targets]:
    """The batch packed, each branch with what it should write, and where in it which token is due."""
    trees, targets = zip(*batch, strict=True)
    packed = model.pack([with_targets(*pair) for pair in batch])
    return packed, locate(trees, targets, packed)


def loss_of(model: VisionLanguageModel, batch: Batch) -> torch.Tensor:
    """The distillation loss of one batch."""
    packed, found = pack_with_targets(model, batch)
    token_logits, verdict_logits = read_logits(model.model, packed, found)
    return distillation_loss(token_logits, margin(verdict_logits, model.encoder), found)


def fit(
    model: VisionLanguageModel,
    steps: Iterable[Sequence[Batch]],
    count: int,
    peak: float,
    every: int,
    report: Callable[[int, float, float], None],
    slow: Callable[[str], bool] | None = None,
    loss: Callable[[VisionLanguageModel, Batch], torch.Tensor] = loss_of,
) -> None:
    """AdamW over `count` steps, 100 of them warm-up, then a cosine to a twentieth of `peak`; `report(step, loss,
    seconds)` every so many. Parameters whose names `slow` picks learn at a fifth of the rate; `loss` is a batch's."""
    named = list(model.model.named_parameters())
    groups = [
        {"params": [p for name, p in named if bool(slow and slow(name)) is is_slow], "scale": 0.2 if is_slow else 1.0}
        for is_slow in (False, True)
    ]
    optimizer = torch.optim.AdamW(groups, peak, betas=(0.9, 0.98), weight_decay=0.01)
    running, started = 0.0, time.time()
    for step, batches in enumerate(steps, start=1):
        rate = min(step / 100, 0.05 + 0.95 * (1 + math.cos(math.pi * step / count)) / 2)
        for group in optimizer.param_groups:
            group["lr"] = peak * rate * group["scale"]
        model.model.train()
        for batch in batches:
            step_loss = loss(model, batch)
            step_loss.backward()
            running += step_loss.item() / every
        torch.nn.utils.clip_grad_norm_(model.model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % every == 0:
            report(step, running, time.time() - started)
            running = 0.0
