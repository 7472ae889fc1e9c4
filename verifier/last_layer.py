"""The last layer at the positions whose output is read alone: behind it nothing looks at the others.

In: a model and the positions. Out: within the context its last decoder layer keeps keys and values of all tokens as ever,
but attends from these positions and passes them alone through its MLP. What it gives elsewhere means nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

NAME = "claimwise_last_layer"


@contextmanager
def only_at(backbone: Any, positions_bk: torch.Tensor) -> Iterator[None]:
    """`positions_bk` (B, K) are the positions that count; one may stand there more than once. The model attends by
    scaled_dot_product_attention, as `load_model` has it."""
    layer = backbone.model.language_model.layers[-1]
    attention, config = layer.self_attn, layer.self_attn.config
    attention.config, attention.only_at = copy.copy(config), positions_bk
    attention.config._attn_implementation = NAME
    length = 0

    def narrow(module, args):
        nonlocal length
        length = args[0].shape[1]
        return (_at(args[0], positions_bk), *args[1:])

    def widen(module, args, output):
        return _spread(output, positions_bk, length)

    hooks = layer.mlp.register_forward_pre_hook(narrow), layer.mlp.register_forward_hook(widen)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        attention.config = config
        del attention.only_at


def _attend(module, query, key, value, attention_mask, **settings):
    """Stands in for transformers' own: query (B, heads, L, size), mask (B, 1, L, keys); gives (B, L, heads, size)."""
    length, positions = query.shape[2], module.only_at
    query = _at(query.transpose(1, 2), positions).transpose(1, 2)
    mask = _at(attention_mask.transpose(1, 2), positions).transpose(1, 2)
    found, weights = sdpa_attention_forward(module, query, key, value, mask, **settings)
    return _spread(found, positions, length), weights


AttentionInterface.register(NAME, _attend)


def _at(values: torch.Tensor, positions_bk: torch.Tensor) -> torch.Tensor:
    """(B, L, ...) at the positions: (B, K, ...)."""
    return values[torch.arange(len(values), device=values.device)[:, None], positions_bk]


def _spread(values: torch.Tensor, positions_bk: torch.Tensor, length: int) -> torch.Tensor:
    """The other way round, zeros elsewhere."""
    out = values.new_zeros(len(values), length, *values.shape[2:])
    out[torch.arange(len(values), device=values.device)[:, None], positions_bk] = values
    return out
