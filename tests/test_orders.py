"""The orders in which a verifier can write: their targets token by token, where the loss reads them, and that what is
taught in an order is written in it."""

from __future__ import annotations

import random

import pytest
import torch
from claimwise.distill import digits, orders, tiny
from claimwise.distill.fitting import fit
from claimwise.distill.loss import Target, locate, with_targets
from claimwise.verifier.model import VisionLanguageModel
from claimwise.verifier.schema import Criterion, Example
from claimwise.verifier.tree import Tree, pack

RESPONSE = "The top-left digit is 4. At the top-right I see 7.\nAnswer: 4 7"
CRITERIA = (
    Criterion("c1", "Reads the top-left digit as 4.", dimension="VF"),
    Criterion("c2", "States that the bottom-left digit is 1.", dimension="VF"),
    Criterion("c3", "Gives a final answer of two digits.", dimension="IF"),
)
EXAMPLE = Example("digits-test-00000-4812", "What does the top row read?", CRITERIA)  # 7 is wrong, 1 is not read


@pytest.fixture(scope="module")
def model() -> VisionLanguageModel:
    torch.manual_seed(0)
    processor = tiny.build_processor()
    return VisionLanguageModel(tiny.build_model(processor, 64, 2, 0.06), processor, "tiny")


@pytest.mark.parametrize(
    "order, written",
    [
        ("verdict", [" yes A", " no -", " yes C"]),
        ("label", [" A yes", " - no", " C yes"]),
        ("reading", [" A 4; yes", " - 1; no", " C; yes"]),
        ("quote", [" The top-left digit is 4.; yes", "; no", " Answer: 4 7; yes"]),
    ],
)
def test_what_each_order_writes(model, order, written):
    targets = orders.targets_of(model.encoder, EXAMPLE, RESPONSE, order)
    decode = model.processor.tokenizer.decode
    assert [decode(target.ids) for target in targets] == written
    assert [target.p_yes for target in targets] == [1.0, 0.0, 1.0]
    verdicts = [decode([target.ids[target.verdict_at]]) for target in targets]
    assert verdicts == [" yes", " no", " yes"]


def test_a_verdict_that_comes_first_is_due_right_behind_the_criterion():
    """Prefix 1 2, branch 10 11, which should write the verdict 7 and then 5: the verdict is due after 11 (column 3), 5
    after 7 (column 4), which is the last token that is read."""
    tree, targets = Tree([1, 2], [[10, 11]]), [Target([7, 5], 0.9, verdict_at=0)]
    packed = pack([with_targets(tree, targets)], -1, 0, lambda **_: None)
    found = locate([tree], [targets], packed)
    assert packed.input_ids.tolist() == [[1, 2, 10, 11, 7]]
    assert (found.verdict_columns.tolist(), found.token_columns.tolist(), found.token_ids.tolist()) == ([3], [4], [5])


@pytest.mark.parametrize("order", orders.ORDERS)
def test_what_is_taught_is_written(order):
    """A response learned by heart."""
    torch.manual_seed(0)
    processor = tiny.build_processor()
    model = VisionLanguageModel(tiny.build_model(processor, 64, 2, 0.06), processor, "tiny")
    rng = random.Random(5)
    pairs = [orders.draw_pair(rng, "validation", number) for number in range(1)]
    batch = [(orders.tree_of(model, *pair), orders.targets_of(model.encoder, *pair, order)) for pair in pairs]
    fit(model, [[batch]] * 140, 140, 4e-3, 140, lambda *_: None)
    tokens = {"verdict": 2, "label": 2}
    for (example, response), targets, row in zip(
        pairs, (pair[1] for pair in batch), orders.write(model, pairs, order), strict=True
    ):
        for criterion, target, written in zip(example.criteria, targets, row, strict=True):
            gold = digits.gold(criterion, response, digits.truth_of(example))
            assert (written.verdict, written.span) == (gold.image, gold.span)
            assert written.tokens == tokens.get(order, len(target.ids))


def test_an_untrained_quote_ends_at_its_limit(model):
    """Nothing is waited for that never comes, and a quote that is nowhere in the response has no span."""
    rows = orders.write(model, [(EXAMPLE_WITH_PICTURE, RESPONSE)], "quote")
    assert {written.tokens for written in rows[0]} <= set(range(2, orders.MAX_QUOTE_TOKENS + 3))


EXAMPLE_WITH_PICTURE = digits.make_example(random.Random(0), "test", 0)


def test_drawn_pairs_hang_on_the_seed_and_are_of_every_kind():
    pairs = [orders.draw_pair(random.Random(n), "train", n) for n in range(60)]
    again = [orders.draw_pair(random.Random(n), "train", n) for n in range(60)]
    assert [r for _, r in pairs] == [r for _, r in again]
    assert all(a.images[0].tobytes() == b.images[0].tobytes() for (a, _), (b, _) in zip(pairs, again, strict=True))
    golds = [digits.gold(c, r, digits.truth_of(e)) for e, r in pairs for c in e.criteria]
    for share in (
        sum(g.image for g in golds),
        sum(g.text != g.image for g in golds),
        sum(g.span is None for g in golds),
    ):
        assert 0.005 < share / len(golds) < 0.75
