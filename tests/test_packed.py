"""Packed judging equals judging one criterion at a time, and equals transformers' own forward without any packing."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from claimwise.verifier.judge import base_judge, load_judge
from claimwise.verifier.model import VisionLanguageModel
from claimwise.verifier.packed import answer_trees
from claimwise.verifier.tree import Tree, tree_mask
from judging import allowed_labels, content, farthest

MODES = ("image", "text")


@pytest.fixture(scope="module")
def verifier(assets) -> VisionLanguageModel:
    """The shipped verifier's model in float32."""
    return load_judge(assets / "verifier", "image", dtype=torch.float32, device="cpu").model


def test_a_token_sees_its_ancestors_only():
    # prefix of 2, branch 1 of 2, branch 2 of 1, padding
    mask = tree_mask(torch.tensor([[0, 0, 1, 1, 2, -1]]))[0, 0].int().tolist()
    assert mask[:5] == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 0, 0, 1, 0],  # the second branch does not see the first
    ]
    assert all(row[5] == 0 for row in mask[:5])  # nobody sees the padding
    assert mask[5][5] == 1  # which sees itself: a row without a key would be NaN


@pytest.mark.parametrize("mode", MODES)
def test_packed_equals_one_by_one(verifier, items, mode):
    judge = base_judge(verifier, mode, "verifier", readings=mode == "image")
    packed = judge.judge(items[:5])
    single = [
        judge.judge([(dataclasses.replace(example, criteria=(criterion,)), rollout)])[0]
        for example, rollout in items[:5]
        for criterion in example.criteria
    ]
    assert content(packed) == content(single) and farthest(packed, single) < 1e-4


@pytest.mark.parametrize("mode", MODES)
def test_packed_equals_a_plain_causal_forward(verifier, items, mode):
    """Positions by the model itself, no mask, no cache: the branch appended to the prefix."""
    example, rollout = items[0]
    branches = [verifier.encoder.branch(criterion.text) for criterion in example.criteria]
    tree = verifier.tree(example, rollout.response, branches, mode)
    answers = answer_trees(verifier, [tree], [allowed_labels(verifier, rollout.response)], readings=mode == "image")[0]
    for branch, answer in zip(branches, answers, strict=True):
        written = [answer.label_id]
        written += [*answer.reading_ids, verifier.encoder.reading_end_id] if mode == "image" else []
        ids = torch.tensor([tree.prefix + branch + written])
        vision = {}
        if mode == "image":
            kinds = (ids == verifier.encoder.image_id).int()
            vision = {
                "pixel_values": tree.pixel_values,
                "image_grid_thw": tree.image_grid_thw,
                "mm_token_type_ids": kinds,
            }
        with torch.no_grad():
            logits = verifier.model(input_ids=ids, **vision).logits[0, -1]
        wanted = float(logits[verifier.encoder.yes_id] - logits[verifier.encoder.no_id])
        assert answer.margin == pytest.approx(wanted, abs=1e-4)


def test_rows_with_and_without_an_image_in_one_batch(verifier, items):
    """ms-swift#9287: M-RoPE with fewer image grids than rows."""
    example, rollout = items[0]
    branches = [verifier.encoder.branch(criterion.text) for criterion in example.criteria]
    trees = [verifier.tree(example, rollout.response, branches, mode, system="Check.") for mode in MODES]
    allowed = [allowed_labels(verifier, rollout.response)] * 2
    both = answer_trees(verifier, trees, allowed, readings=False)
    for tree, row in zip(trees, both, strict=True):
        alone = answer_trees(verifier, [tree], allowed[:1], readings=False)[0]
        assert [a.margin for a in row] == pytest.approx([a.margin for a in alone], abs=1e-4)


def test_rows_that_do_not_branch_need_no_mask(verifier, items):
    """One criterion each, responses of different lengths: padding on the right, plain causal attention."""
    trees, allowed = [], []
    for example, rollout in items[:3]:
        branch = verifier.encoder.branch(example.criteria[0].text)
        trees.append(verifier.tree(example, rollout.response, [branch], "image"))
        allowed.append(allowed_labels(verifier, rollout.response))
    packed = verifier.pack(trees)
    assert packed.mask is None and len({len(tree) for tree in trees}) > 1
    together = answer_trees(verifier, trees, allowed, readings=True)
    for tree, labels, (answer,) in zip(trees, allowed, together, strict=True):
        twice = Tree(tree.prefix, tree.branches * 2, tree.pixel_values, tree.image_grid_thw)  # which needs one
        for alike in answer_trees(verifier, [twice], [labels], readings=True)[0]:
            assert answer.margin == pytest.approx(alike.margin, abs=1e-4)
            assert (answer.label_id, answer.reading_ids) == (alike.label_id, alike.reading_ids)


def test_trees_without_a_response(verifier, items):
    """An empty response has no sentence: the only label left is the one for none."""
    example, rollout = items[0]
    empty = dataclasses.replace(rollout, response="")
    verdicts = base_judge(verifier, "image", "verifier", readings=True).judge([(example, empty)])
    assert len(verdicts) == len(example.criteria)
    assert all(v.span is None and v.verdict is not None for v in verdicts)


def test_readings_are_at_most_eight_tokens(verifier, items):
    example, rollout = items[0]
    tree = verifier.tree(example, rollout.response, [verifier.encoder.branch("Anything at all.")] * 2, "image")
    assert isinstance(tree, Tree)
    answers = answer_trees(verifier, [tree], [[verifier.encoder.label_ids["-"]]], readings=True)[0]
    assert all(len(a.reading_ids) <= 8 and math.isfinite(a.margin) for a in answers)
