"""A slimmer model from a trained one: what of it stays the same, and that it learns."""

from __future__ import annotations

import random

import pytest
import torch
from claimwise.distill import pretrain, tiny
from claimwise.distill.fitting import fit, loss_of
from claimwise.distill.slimming import Following, Slim, principal_directions, slimmed
from claimwise.verifier.model import VisionLanguageModel


def heads(*layers: str) -> tuple:
    """Of layer 0 the heads in the first word, of layer 1 those in the second ..."""
    return tuple(tuple((layer, int(head)) for head in word) for layer, word in enumerate(layers))


ALL = Slim(64, 192, (0, 1, 2), heads("01", "01", "01"))


def make_model(hidden: int = 64, layers: int = 3) -> VisionLanguageModel:
    torch.manual_seed(3)
    processor = tiny.build_processor()
    return VisionLanguageModel(tiny.build_model(processor, hidden, layers, 0.06), processor, "wide")


@pytest.fixture(scope="module")
def batch():
    model, rng = make_model(), random.Random(4)
    return [pretrain.claim_task(model, rng) for _ in range(3)]


def test_all_of_a_model_stays_itself(batch):
    """In other directions, but each layer is given the same; then the loss is the tasks' alone. A gain of the last norm
    has no place in other directions (embeddings are tied), but where it is the same for all."""
    wide = make_model()
    model, directions = slimmed(wide, ALL, [batch])
    assert torch.allclose(directions.T @ directions, torch.eye(64), atol=1e-5)
    assert loss_of(model, batch).item() == pytest.approx(loss_of(wide, batch).item(), abs=1e-4)
    assert Following(wide, ALL, directions)(model, batch).item() == pytest.approx(loss_of(wide, batch).item(), abs=1e-4)


@torch.no_grad()
def test_what_lies_in_half_of_the_stream_is_kept_by_half_of_it(batch):
    """A model of 128 that writes into 64 directions alone, with gains of its own: a slim one of 64 gives each layer the
    same, though a norm of 64 divides by another root mean square."""
    wide, (basis, _) = make_model(128, 2), torch.linalg.qr(torch.randn(128, 64))
    onto = basis @ basis.T
    for name, weight in wide.model.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight")) or ("merger" in name and "linear_fc2" in name):
            weight.copy_(onto @ weight)
        elif name.endswith("embed_tokens.weight"):
            weight.copy_(weight @ onto)
        elif name.endswith("layernorm.weight"):
            weight.copy_(torch.rand(128) + 0.5)
    slim = Slim(64, 384, (0, 1), heads("0123", "0123"))
    model, directions = slimmed(wide, slim, [batch])
    assert torch.allclose(directions @ directions.T, onto, atol=1e-3)
    far = Following(wide, slim, directions, weight=1.0)(model, batch) - loss_of(model, batch)
    assert far.item() == pytest.approx(0, abs=1e-4)


def test_only_the_heads_that_stay_count(batch):
    """Silencing the other heads of the wide model changes the slim one's inputs by nothing."""
    wide, slim = make_model(128, 2), Slim(128, 384, (0, 1), heads("13", "02"))
    model, directions = slimmed(wide, slim, [batch])
    with torch.no_grad():
        for layer, silent in zip(wide.model.model.language_model.layers, ((0, 2), (1, 3)), strict=True):
            for head in silent:
                layer.self_attn.o_proj.weight[:, 32 * head : 32 * head + 32] = 0
    far = Following(wide, slim, directions, weight=1.0)(model, batch) - loss_of(model, batch)
    assert far.item() == pytest.approx(0, abs=1e-4)


def test_padding_is_not_followed(batch):
    """Short and long trees together, or each by itself: the same distance, weighted by their tokens."""
    wide, slim = make_model(128, 2), Slim(64, 192, (0, 1), heads("01", "01"))
    rng = random.Random(5)
    both = [pretrain.claim_task(wide, rng), pretrain.glance_task(wide, rng)]
    model, directions = slimmed(wide, slim, [batch])
    follow = Following(wide, slim, directions, weight=1.0)
    sizes = [len(model.pack([tree]).input_ids[0]) for tree, _ in both]

    def far(items) -> float:
        return (follow(model, items) - loss_of(model, items)).item()

    parts = [far([item]) for item in both]
    assert sizes[0] > 3 * sizes[1]
    fed = [sum(len(b) + len(t.ids) - 1 for b, t in zip(tree.branches, targets, strict=True)) for tree, targets in both]
    counts = [len(tree.prefix) + size for (tree, _), size in zip(both, fed, strict=True)]
    mean = sum(part * count for part, count in zip(parts, counts, strict=True)) / sum(counts)
    assert far(both) == pytest.approx(mean, rel=1e-4)


def test_it_learns_and_the_wide_one_stays(batch):
    wide, slim = make_model(128, 2), Slim(64, 128, (1,), (((1, 0), (0, 3)),))
    before = {name: value.clone() for name, value in wide.model.state_dict().items()}
    model, directions = slimmed(wide, slim, [batch])
    text = model.model.config.text_config
    assert (text.hidden_size, text.intermediate_size, text.num_hidden_layers, text.num_attention_heads) == (
        64,
        128,
        1,
        2,
    )
    follow, losses = Following(wide, slim, directions), []
    fit(model, [[batch]] * 12, 12, 3e-3, 4, lambda step, loss, seconds: losses.append(loss), loss=follow)
    assert losses[-1] < losses[0] - 0.5
    assert all(torch.equal(value, before[name]) for name, value in wide.model.state_dict().items())


def test_the_directions_are_those_of_most_of_the_stream(batch):
    wide = make_model()
    few, more = (principal_directions(wide, [batch], width) for width in (8, 16))
    assert few.shape == (64, 8)
    assert torch.linalg.matrix_norm(few - more @ (more.T @ few)).item() < 1e-3  # the few are among the more
