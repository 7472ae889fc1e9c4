"""The distillation loss on packed trees.

In: trees whose branches end in targets (label, reading, verdict) and the teacher's P(yes). Out: one number: cross-entropy
of label and reading tokens, plus the verdict's cross-entropy against the teacher's P(yes), over the yes and no logits
alone, weighted per criterion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from ..verifier.prompt import PromptEncoder
from ..verifier.tree import Packed, Tree


@dataclass
class Target:
    """What one branch should write: its token ids, the teacher's P(yes), a weight. The verdict is the last of the ids,
    or stands at `verdict_at`."""

    ids: list[int]
    p_yes: float
    weight: float = 1.0
    kind: str | None = None  # what figures are grouped by
    verdict_at: int = -1


@dataclass
class Targets:
    """Where in a packed batch which token is due. `rows` and `columns` are the positions whose logits are read."""

    token_rows: torch.Tensor
    token_columns: torch.Tensor
    token_ids: torch.Tensor
    verdict_rows: torch.Tensor
    verdict_columns: torch.Tensor
    p_yes: torch.Tensor
    weights: torch.Tensor  # one per verdict

    def to(self, device: torch.device | str) -> Targets:
        return Targets(**{name: value.to(device) for name, value in vars(self).items()})


def with_targets(tree: Tree, targets: Sequence[Target]) -> Tree:
    """The tree with each branch followed by what it should write, but for the last token, which is never read."""
    branches = [branch + target.ids[:-1] for branch, target in zip(tree.branches, targets, strict=True)]
    return Tree(tree.prefix, branches, tree.pixel_values, tree.image_grid_thw)


def locate(trees: Sequence[Tree], targets: Sequence[Sequence[Target]], packed: Packed) -> Targets:
    """The positions of the targets in `packed`, which holds `with_targets` of the given trees."""
    tokens, verdicts = [], []
    for row, (tree, row_targets) in enumerate(zip(trees, targets, strict=True)):
        for start, branch, target in zip(packed.starts[row], tree.branches, row_targets, strict=True):
            first = start + len(branch) - 1  # the position that predicts the label
            at = target.verdict_at % len(target.ids)
            tokens += [(row, first + i, token) for i, token in enumerate(target.ids) if i != at]
            verdicts.append((row, first + at, target.p_yes, target.weight))
    rows, columns, ids = map(torch.tensor, zip(*tokens, strict=True))
    verdict_rows, verdict_columns, p_yes, weights = map(torch.tensor, zip(*verdicts, strict=True))
    return Targets(rows, columns, ids, verdict_rows, verdict_columns, p_yes.float(), weights.float())


def read_logits(model, packed: Packed, targets: Targets) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits (tokens, V) and (verdicts, V) at the target positions, through the model's own forward."""
    columns = torch.unique(torch.cat([targets.token_columns, targets.verdict_columns]))
    logits = model(**packed.forward_inputs(), logits_to_keep=columns, use_cache=False).logits  # (B, columns, V)
    at_token = torch.searchsorted(columns, targets.token_columns)
    at_verdict = torch.searchsorted(columns, targets.verdict_columns)
    return logits[targets.token_rows, at_token], logits[targets.verdict_rows, at_verdict]


def margin(logits: torch.Tensor, encoder: PromptEncoder) -> torch.Tensor:
    """Logit of yes less logit of no: P(yes) = sigmoid(margin) over the two alone."""
    return logits[..., encoder.yes_id] - logits[..., encoder.no_id]


def distillation_loss(token_logits, verdict_margin, targets: Targets, counts=None) -> torch.Tensor:
    """Mean cross-entropy of label and reading tokens plus weighted mean cross-entropy of the verdicts.

    `counts` are the numbers of tokens and of verdicts to divide by; without it, the batch's own. Trees have unequal
    numbers of branches, so a step over several batches divides each by what all of them hold.
    """
    tokens, verdicts = (len(targets.token_ids), len(targets.weights)) if counts is None else counts
    pointing = F.cross_entropy(token_logits.float(), targets.token_ids, reduction="sum")
    judging = F.binary_cross_entropy_with_logits(
        verdict_margin.float(), targets.p_yes, weight=targets.weights, reduction="sum"
    )
    return pointing / tokens + judging / verdicts
