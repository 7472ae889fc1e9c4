"""Packed judging: one forward pass over all criteria of a response, then label, reading and verdict of all of them
decoded together over the same KV cache, one token per criterion and pass.

In: trees that end in each criterion's opening of the verifier's turn. Out: per branch the label, the reading's token ids
and the logit margin of yes over no. Labels and readings are greedy; the label comes from the allowed ones only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch

from .last_layer import only_at
from .model import VisionLanguageModel
from .prompt import MAX_READING_TOKENS, longest_turn
from .shared_prefix import Opening, Past, go_on_from, nothing_yet
from .tree import PREFIX_SEGMENT, Tree, tree_mask


@dataclass
class Answer:
    """What the verifier wrote for one criterion. `margin` is the logit of yes less that of no."""

    label_id: int
    reading_ids: list[int] = field(default_factory=list)
    margin: float = float("nan")


@torch.inference_mode()
def answer_trees(
    model: VisionLanguageModel,
    trees: Sequence[Tree],
    allowed: Sequence[Sequence[int]],
    readings: bool,
    openings: Sequence[Opening] | None = None,
) -> list[list[Answer]]:
    """Answers of all branches of all trees in one packed batch. `allowed` has the label ids each tree may use; with
    `openings`, tree b goes on from `openings[b]`, else each tree is the whole prompt."""
    fed = longest_turn(readings) - 1  # the verdict is read and not fed
    room = max(map(len, trees)) + fed * max(len(tree.branches) for tree in trees)
    past = go_on_from(model, openings, room) if openings else nothing_yet(model, len(trees), room)
    decoder = Decoder(model, trees, past)
    label_bk = pick_labels(decoder.open(), allowed)
    labels = label_bk.tolist()
    answers = [[Answer(labels[b][k]) for k in range(len(tree.branches))] for b, tree in enumerate(trees)]
    logits = decoder.feed(label_bk)
    if readings:
        read_on(decoder, logits, answers, model.encoder.reading_end_id)
    else:
        judge_branches(decoder, logits, [(b, k) for b, row in enumerate(answers) for k in range(len(row))], answers)
    return answers


def pick_labels(logits_bkv: torch.Tensor, allowed: Sequence[Sequence[int]]) -> torch.Tensor:
    """(B, K) label ids: the most likely of those that the row allows."""
    picked = torch.zeros(logits_bkv.shape[:2], dtype=torch.long, device=logits_bkv.device)
    for row, ids in enumerate(allowed):
        choices = torch.tensor(ids, device=logits_bkv.device)
        picked[row] = choices[logits_bkv[row][:, choices].argmax(-1)]
    return picked


def read_on(
    decoder: Decoder, logits_bkv, answers: list[list[Answer]], end_id: int, limit: int = MAX_READING_TOKENS
) -> None:
    """Greedy readings of at most `limit` tokens; a branch whose `;` has been fed gives its verdict at that pass."""
    live = {(b, k) for b, row in enumerate(answers) for k in range(len(row))}
    while live:
        best = logits_bkv.argmax(-1).tolist()
        ended = []
        for b, k in live:
            answer = answers[b][k]
            if len(answer.reading_ids) == limit:
                best[b][k] = end_id  # the contract: no reading is longer
            if best[b][k] == end_id:
                ended.append((b, k))
            else:
                answer.reading_ids.append(best[b][k])
        logits_bkv = decoder.feed(torch.tensor(best, device=logits_bkv.device))
        judge_branches(decoder, logits_bkv, ended, answers)
        live.difference_update(ended)


def judge_branches(decoder: Decoder, logits_bkv, branches: Iterable[tuple[int, int]], answers) -> None:
    """Sets the margins of the branches (tree, criterion), of which the logits are those of the verdict."""
    margins = (logits_bkv[..., decoder.yes_id] - logits_bkv[..., decoder.no_id]).tolist()
    for b, k in branches:
        answers[b][k].margin = margins[b][k]


class Decoder:
    """One forward over the packed trees, then one token per branch and pass; a token sees its ancestors only."""

    def __init__(self, model: VisionLanguageModel, trees: Sequence[Tree], past: Past):
        self.backbone = model.backbone
        self.yes_id, self.no_id = model.encoder.yes_id, model.encoder.no_id
        self.packed = packed = model.pack(trees).to(self.backbone.device)
        device = packed.segment.device
        count = max(len(tree.branches) for tree in trees)
        ends = [  # last token of each branch; unused branches: token 0
            [start + len(branch) - 1 for start, branch in zip(starts, tree.branches, strict=True)]
            + [0] * (count - len(tree.branches))
            for tree, starts in zip(trees, packed.starts, strict=True)
        ]
        self.ends = torch.tensor(ends, dtype=torch.long, device=device)
        self.number = torch.arange(1, count + 1, device=device)  # the segment of branch k
        visible = (packed.segment[:, None, :] == PREFIX_SEGMENT) | (
            packed.segment[:, None, :] == self.number[None, :, None]
        )
        self.past = past
        packed.position_ids += past.following[None, :, None]
        self.visible = torch.cat([past.visible[:, None].expand(-1, count, -1), visible], dim=-1)  # (B, K, keys)
        self.positions = packed.position_ids.gather(2, self.ends.expand(3, -1, -1))  # (3, B, K): of each branch's last

    def _added(self, visible: torch.Tensor) -> torch.Tensor:
        """The mask as what is added to the scores: a boolean one is turned into this again in every layer."""
        dtype = self.backbone.get_input_embeddings().weight.dtype
        return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, float("-inf"))

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.backbone.get_output_embeddings()(hidden).float()

    def open(self) -> torch.Tensor:
        """(B, K, V): logits after each criterion."""
        inputs = self.packed.forward_inputs()
        if len(self.past):
            own = tree_mask(self.packed.segment)
            seen = self.past.visible[:, None, None].expand(-1, -1, own.shape[2], -1)
            inputs["attention_mask"] = torch.cat([seen, own], dim=-1)
        if inputs["attention_mask"] is not None:
            inputs["attention_mask"] = self._added(inputs["attention_mask"])
        with only_at(self.backbone, self.ends) if inputs["attention_mask"] is not None else nullcontext():
            hidden = self.backbone.model(**inputs, past_key_values=self.past.cache, use_cache=True).last_hidden_state
        return self._logits(hidden.gather(1, self.ends[..., None].expand(-1, -1, hidden.shape[-1])))

    def feed(self, ids_bk: torch.Tensor) -> torch.Tensor:
        """(B, K, V): logits after one more token of each branch."""
        own = torch.eye(len(self.number), dtype=torch.bool, device=ids_bk.device).expand(len(ids_bk), -1, -1)
        self.visible = torch.cat([self.visible, own], dim=-1)
        self.positions = self.positions + 1
        hidden = self.backbone.model(
            input_ids=ids_bk,
            attention_mask=self._added(self.visible[:, None]),
            position_ids=self.positions,
            past_key_values=self.past.cache,
            use_cache=True,
        ).last_hidden_state
        return self._logits(hidden)
