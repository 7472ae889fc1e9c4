"""What all responses to an example share, encoded once: keys and values that every response's tree goes on from.

In: openings (system text, images, question) as trees without branches. Out: a KV cache for a batch of trees, one row per
tree, in which each row holds its own example's opening.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import Cache
from transformers.cache_utils import DynamicLayer

from .model import VisionLanguageModel
from .tree import PREFIX_SEGMENT, Tree

States = tuple[torch.Tensor, torch.Tensor]


@dataclass
class Opening:
    """An example's opening of L tokens; once encoded, its keys and values per layer, (heads, L, head size) each, and the
    position that follows it."""

    tree: Tree
    layers: list[States] = field(default_factory=list)
    following: int = 0

    def __len__(self) -> int:
        return len(self.tree)


@dataclass
class Past:
    """What a batch of B trees goes on from: a cache of padded openings, which of its L keys each row may see, and the
    position of each row's next token."""

    cache: Cache
    visible: torch.Tensor  # (B, L)
    following: torch.Tensor  # (B,)

    def __len__(self) -> int:
        return self.visible.shape[1]


class _RoomyLayer(DynamicLayer):
    """Keys and values in a buffer of a given length: the stock layer copies all of them for every token decoded."""

    def __init__(self, length: int):
        super().__init__()
        self.length = length

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.buffers = [states.new_empty(*states.shape[:2], self.length, states.shape[3])
                        for states in (key_states, value_states)]  # fmt: skip
        self.keys, self.values = (buffer[:, :, :0] for buffer in self.buffers)
        self.is_initialized = True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs) -> States:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start = self.get_seq_length()
        end = start + key_states.shape[2]
        for buffer, states in zip(self.buffers, (key_states, value_states), strict=True):
            buffer[:, :, start:end] = states
        self.keys, self.values = states = self.buffers[0][:, :, :end], self.buffers[1][:, :, :end]
        return states


def _empty_cache(model: VisionLanguageModel, length: int) -> Cache:
    count = model.backbone.config.get_text_config().num_hidden_layers
    return Cache(layers=[_RoomyLayer(length) for _ in range(count)])


def nothing_yet(model: VisionLanguageModel, rows: int, room: int) -> Past:
    """An empty cache with room for `room` tokens a row."""
    device = model.backbone.device
    visible = torch.zeros(rows, 0, dtype=torch.bool, device=device)
    return Past(_empty_cache(model, room), visible, torch.zeros(rows, dtype=torch.long, device=device))


def go_on_from(model: VisionLanguageModel, openings: Sequence[Opening], room: int) -> Past:
    """The cache of a batch whose row b goes on from `openings[b]`, with room for `room` tokens more. An opening may stand
    in several rows and batches; it is encoded when it first comes."""
    _encode(model, list({id(opening): opening for opening in openings if not opening.layers}.values()))
    device, longest = model.backbone.device, max(map(len, openings))
    cache = _empty_cache(model, longest + room)
    for index in range(len(openings[0].layers)):
        keys, values = zip(*(opening.layers[index] for opening in openings), strict=True)
        cache.update(_stack(keys, longest), _stack(values, longest), index)
    lengths = torch.tensor([len(opening) for opening in openings], device=device)
    visible = torch.arange(longest, device=device) < lengths[:, None]
    return Past(cache, visible, torch.tensor([opening.following for opening in openings], device=device))


def _encode(model: VisionLanguageModel, openings: Sequence[Opening]) -> None:
    """One causal forward pass over a padded batch; padding stands on the right, where no token looks."""
    if not openings:
        return
    packed = model.pack([opening.tree for opening in openings]).to(model.backbone.device)
    cache = _empty_cache(model, packed.input_ids.shape[1])
    model.backbone.model(**packed.forward_inputs(), past_key_values=cache, use_cache=True)
    real = packed.segment == PREFIX_SEGMENT
    following = (packed.position_ids.amax(0) * real).amax(1) + 1
    layers: list[Any] = list(cache.layers)
    for row, opening in enumerate(openings):
        size = len(opening)
        opening.layers = [(layer.keys[row, :, :size], layer.values[row, :, :size]) for layer in layers]
        opening.following = int(following[row])
        opening.tree.pixel_values = None  # they have done their work


def _stack(states: Sequence[torch.Tensor], length: int) -> torch.Tensor:
    """(rows, heads, length, head size), zeros behind the shorter ones: masked keys must be finite all the same."""
    return torch.stack([torch.nn.functional.pad(part, (0, 0, 0, length - part.shape[1])) for part in states])
