"""The last layer at some positions alone: the same there, the same keys and values, and as before afterwards."""

from __future__ import annotations

import random

import pytest
import torch
from claimwise.distill.loss import with_targets
from claimwise.distill.pretrain import claim_task
from claimwise.verifier.last_layer import only_at
from transformers import DynamicCache


@pytest.fixture(scope="module")
def inputs(base):
    """Two trees of other lengths, so that one is padded."""
    rng = random.Random(8)
    trees = [with_targets(*claim_task(base, rng, branches)) for branches in (9, 4)]
    packed = base.pack(trees)
    mask = torch.zeros(packed.mask.shape).masked_fill_(~packed.mask, float("-inf"))
    return {**packed.forward_inputs(), "attention_mask": mask}


@torch.no_grad()
def run(base, inputs):
    cache = DynamicCache(config=base.model.config.text_config)
    hidden = base.model.model(**inputs, past_key_values=cache, use_cache=True).last_hidden_state
    return hidden, cache


def test_it_is_the_same_there_and_for_what_comes_later(base, inputs):
    """Positions in any order, one of them twice, other ones in each row."""
    positions = torch.tensor([[90, 12, 90, 101], [5, 80, 0, 33]])
    hidden, cache = run(base, inputs)
    with only_at(base.model, positions):
        narrow, narrow_cache = run(base, inputs)
    rows = torch.arange(2)[:, None]
    torch.testing.assert_close(narrow[rows, positions], hidden[rows, positions], atol=1e-5, rtol=1e-5)
    assert not torch.allclose(narrow[:, 1:5], hidden[:, 1:5], atol=0.1)  # it did leave the others out
    for one, other in zip(narrow_cache.layers, cache.layers, strict=True):
        torch.testing.assert_close(one.keys, other.keys)
        torch.testing.assert_close(one.values, other.values)


def test_afterwards_the_model_is_as_before(base, inputs):
    """Also where the pass fails."""
    before, _ = run(base, inputs)
    layer = base.model.model.language_model.layers[-1]
    config = layer.self_attn.config
    with pytest.raises(RuntimeError), only_at(base.model, torch.tensor([[10], [10]])):
        raise RuntimeError
    assert layer.self_attn.config is config and not layer.mlp._forward_hooks and not layer.mlp._forward_pre_hooks
    assert torch.equal(run(base, inputs)[0], before)
