"""Packed trees: one row of tokens holds a prefix and all the criteria that branch from it.

In: prefix and branches as token ids. Out: ids, attention mask and positions for one forward pass in which every token
sees its ancestors only, so that the logits of a branch are those of prefix + branch alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

PAD_SEGMENT = -1
PREFIX_SEGMENT = 0


@dataclass
class Tree:
    """A prefix and the K branches below it, with the pixels of the images whose placeholders are in the prefix."""

    prefix: list[int]
    branches: list[list[int]]
    pixel_values: torch.Tensor | None = None  # (patches, patch size)
    image_grid_thw: torch.Tensor | None = None  # (images, 3)

    def __len__(self) -> int:
        return len(self.prefix) + sum(map(len, self.branches))


@dataclass
class Packed:
    """B trees as one batch of rows of L tokens; `segment` is 0 for the prefix, k for branch k, -1 for padding."""

    input_ids: torch.Tensor  # (B, L)
    segment: torch.Tensor  # (B, L)
    position_ids: torch.Tensor  # (3, B, L)
    starts: list[list[int]]  # starts[b][k]: index of the first token of branch k in row b
    vision: dict[str, torch.Tensor] = field(default_factory=dict)

    def to(self, device: torch.device) -> Packed:
        vision = {key: value.to(device) for key, value in self.vision.items()}
        tensors = (self.input_ids.to(device), self.segment.to(device), self.position_ids.to(device))
        return Packed(*tensors, self.starts, vision)

    @property
    def mask(self) -> torch.Tensor | None:
        """None where no row branches: plain causal attention, for which there are faster kernels."""
        return tree_mask(self.segment) if max(map(len, self.starts)) > 1 else None

    def forward_inputs(self) -> dict[str, Any]:
        return {
            "input_ids": self.input_ids,
            "attention_mask": self.mask,
            "position_ids": self.position_ids,
            **self.vision,
        }


def tree_mask(segment_bl: torch.Tensor) -> torch.Tensor:
    """(B, 1, L, L), true where the query may attend: earlier tokens of the prefix or of its own branch, and itself."""
    length = segment_bl.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=segment_bl.device).tril()
    key, query = segment_bl[:, None, None, :], segment_bl[:, None, :, None]
    return causal & ((key == PREFIX_SEGMENT) | (key == query))


def pack(trees: Sequence[Tree], image_id: int, pad_id: int, rope_index: Callable) -> Packed:
    """One padded batch. `rope_index` is the model's `get_rope_index`: Qwen2.5-VL and Qwen3-VL order M-RoPE
    differently, so the positions of the prefix are the model's own; each branch goes on from the prefix's last."""
    length = max(map(len, trees))
    ids, segments, offsets, starts = [], [], [], []
    for tree in trees:
        row_ids, row_starts = list(tree.prefix), []
        row_segments, row_offsets = [PREFIX_SEGMENT] * len(row_ids), [0] * len(row_ids)
        for number, branch in enumerate(tree.branches, start=1):
            row_starts.append(len(row_ids))
            row_ids += branch
            row_segments += [number] * len(branch)
            row_offsets += range(1, len(branch) + 1)
        padding = length - len(row_ids)
        ids.append(row_ids + [pad_id] * padding)
        segments.append(row_segments + [PAD_SEGMENT] * padding)
        offsets.append(row_offsets + [0] * padding)
        starts.append(row_starts)
    ids_bl, segment_bl, offset_bl = (torch.tensor(rows, dtype=torch.long) for rows in (ids, segments, offsets))
    vision = _vision(trees)
    if vision:
        vision["mm_token_type_ids"] = (ids_bl == image_id).int()
    positions = _positions(ids_bl, segment_bl, offset_bl, max(len(tree.prefix) for tree in trees), vision, rope_index)
    return Packed(ids_bl, segment_bl, positions, starts, vision)


def _vision(trees: Sequence[Tree]) -> dict[str, torch.Tensor]:
    pixels = [tree.pixel_values for tree in trees if tree.pixel_values is not None]
    grids = [tree.image_grid_thw for tree in trees if tree.image_grid_thw is not None]
    return {"pixel_values": torch.cat(pixels), "image_grid_thw": torch.cat(grids)} if pixels else {}


def _positions(ids_bl, segment_bl, offset_bl, prefix_length: int, vision, rope_index) -> torch.Tensor:
    """(3, B, L): the prefix as the model counts it; the nth token of every branch is n past the prefix's highest."""
    real_bl = segment_bl[:, :prefix_length] == PREFIX_SEGMENT
    if vision:
        positions, _ = rope_index(
            input_ids=ids_bl[:, :prefix_length],
            mm_token_type_ids=vision["mm_token_type_ids"][:, :prefix_length],
            image_grid_thw=vision["image_grid_thw"],
            attention_mask=real_bl.long(),
        )
    else:
        positions = torch.arange(prefix_length).expand(3, len(ids_bl), -1)
    highest_b = positions.masked_fill(~real_bl, -1).amax((0, 2)) if prefix_length else torch.full((len(ids_bl),), -1)
    out = (highest_b[:, None] + offset_bl) * (segment_bl > PREFIX_SEGMENT)
    out = out.expand(3, -1, -1).clone()
    out[:, :, :prefix_length] = torch.where(real_bl, positions, out[:, :, :prefix_length])
    return out
