"""The distillation loss on packed trees: where which token is due, what it costs, and that neither gradient checkpointing
nor how a step is divided changes it."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from claimwise.distill.config import DistillConfig
from claimwise.distill.loss import Target, Targets, distillation_loss, locate, margin, read_logits, with_targets
from claimwise.distill.train import TreeCollator, add_adapter, balance
from claimwise.verifier.model import VisionLanguageModel, load_model
from claimwise.verifier.sentences import label_of, split_sentences
from claimwise.verifier.tree import Tree, pack
from distilling import MODES, training_items, uneven


@pytest.fixture(scope="module")
def vlm(tiny_base) -> VisionLanguageModel:
    model = load_model(tiny_base, dtype=torch.float32)
    model.model.eval()
    return model


def test_the_positions_of_the_targets():
    """Prefix 1 2 3, branches 10 11 and 20; what they should write: 5 6 then the verdict 7, and 8 then 9.

    column       0 1 2 | 3  4 5 6 | 7  8         the verdict itself is never read
    row 0        1 2 3 | 10 11 5 6 | 20 8        5 is due after 11 (column 4), 6 after 5, 7 after 6; 8 after 20, 9 after 8
    row 1        1     | 30 8                    one token of prefix; 8 is due after 30 (column 1), 9 after 8
    """
    trees = [Tree([1, 2, 3], [[10, 11], [20]]), Tree([1], [[30]])]
    targets = [[Target([5, 6, 7], 0.9, 2.0), Target([8, 9], 0.2)], [Target([8, 9], 1.0, 0.5)]]
    packed = pack([with_targets(*pair) for pair in zip(trees, targets, strict=True)], -1, 0, lambda **_: None)
    assert packed.input_ids.tolist() == [[1, 2, 3, 10, 11, 5, 6, 20, 8], [1, 30, 8, 0, 0, 0, 0, 0, 0]]
    found = locate(trees, targets, packed)
    assert found.token_rows.tolist() == [0, 0, 0, 1]
    assert found.token_columns.tolist() == [4, 5, 7, 1]
    assert found.token_ids.tolist() == [5, 6, 8, 8]
    assert found.verdict_rows.tolist() == [0, 0, 1]
    assert found.verdict_columns.tolist() == [6, 8, 2]
    assert found.p_yes.tolist() == pytest.approx([0.9, 0.2, 1.0])
    assert found.weights.tolist() == [2.0, 1.0, 0.5]


def test_targets_go_to_a_device_as_a_whole():
    """Their tensors meet the logits there; "meta" stands for any other device."""
    ones = torch.ones(2)
    moved = Targets(ones, ones, ones, ones, ones, ones, ones).to("meta")
    assert {value.device.type for value in vars(moved).values()} == {"meta"}


def plain_logits(vlm: VisionLanguageModel, tree: Tree, ids: list[int]) -> torch.Tensor:
    """(tokens, V): the model's own forward of one row, its own causal mask and positions."""
    vision = {}
    row = torch.tensor([ids])
    if tree.pixel_values is not None:
        kinds = (row == vlm.encoder.image_id).int()
        vision = {"pixel_values": tree.pixel_values, "image_grid_thw": tree.image_grid_thw, "mm_token_type_ids": kinds}
    with torch.no_grad():
        return vlm.model(input_ids=row, **vision).logits[0].double()


@pytest.mark.parametrize("mode", MODES)
def test_the_packed_loss_is_the_loss_branch_by_branch(vlm, tables, mode):
    """Mean cross-entropy of label and reading tokens, plus the mean over verdicts of weight times cross-entropy of
    the teacher's P(yes) against sigmoid(yes - no); soft P(yes) and one long reading among them."""
    items = training_items(tables, mode)
    items = [
        (
            e,
            r,
            [dataclasses.replace(v, p_yes=0.1 + 0.1 * i, reading=v.reading and "7 or 1") for i, v in enumerate(rows)],
        )
        for e, r, rows in items
    ]
    weights = balance(items)
    config = DistillConfig(mode=mode, report_to="none")
    batch = TreeCollator(vlm, config, weights)(items)
    with torch.no_grad():
        token_logits, verdict_logits = read_logits(vlm.model, batch["packed"], batch["targets"])
    packed = float(distillation_loss(token_logits, margin(verdict_logits, vlm.encoder), batch["targets"]))

    pointing, judging = [], []
    for example, rollout, rows in items:
        text = {criterion.id: criterion.text for criterion in example.criteria}
        for row in rows:
            branch = vlm.encoder.branch(text[row.criterion_id])
            tree = vlm.tree(example, rollout.response, [branch], mode)
            label = label_of(split_sentences(rollout.response), row.span)
            reading = (row.reading or "") if mode == "image" else None
            due = vlm.encoder.target(label, reading, bool(row.verdict))[:-1]
            logits = plain_logits(vlm, tree, tree.prefix + branch + due)
            after = len(tree.prefix) + len(branch) - 1
            log_p = logits.log_softmax(-1)
            pointing += [-float(log_p[after + i, token]) for i, token in enumerate(due)]
            yes = 1 / (1 + math.exp(-float(logits[-1, vlm.encoder.yes_id] - logits[-1, vlm.encoder.no_id])))
            loss = -row.p_yes * math.log(yes) - (1 - row.p_yes) * math.log(1 - yes)
            judging.append(weights[row.dimension, bool(row.verdict)] * loss)
    assert len(judging) == 21
    assert packed == pytest.approx(sum(pointing) / len(pointing) + sum(judging) / len(judging), abs=1e-4)


def verdict_loss_gradient(value: float, p_yes: float, weight: float) -> float:
    """d loss / d margin of a single verdict."""
    verdict_margin = torch.tensor([value], requires_grad=True)
    none = torch.zeros(1, dtype=torch.long)
    targets = Targets(none, none, none, none, none, torch.tensor([p_yes]), torch.tensor([weight]))
    distillation_loss(torch.zeros(1, 4), verdict_margin, targets).backward()
    assert verdict_margin.grad is not None
    return float(verdict_margin.grad)


@pytest.mark.parametrize("p", [0.02, 0.3, 0.5, 0.9])
def test_soft_labels_are_at_rest_at_the_teachers_p_yes(p):
    assert verdict_loss_gradient(math.log(p / (1 - p)), p, 2.0) == pytest.approx(0, abs=1e-6)


def test_soft_labels_pull_towards_the_teachers_p_yes():
    """At margin 0 P(yes) is .5: the gradient is weight x (.5 - p)."""
    assert verdict_loss_gradient(0.0, 0.9, 2.0) == pytest.approx(-0.8)
    assert verdict_loss_gradient(0.0, 0.1, 1.0) == pytest.approx(0.4)


def test_a_step_is_a_mean_over_all_its_batches():
    """Two batches. Tokens: one that costs ln 4, then three of ln 2. Verdicts at margin 0: one, then three, ln 2 each.
    The step: (ln 4 + 3 ln 2) / 4 + 4 ln 2 / 4 = 2.25 ln 2. The mean of the batches' own means would be 2.5 ln 2."""
    none = torch.zeros(1, dtype=torch.long)
    nothing = torch.tensor(-1e9)
    token_logits = torch.tensor([[0.0, 0, 0, 0]]), torch.tensor([[0.0, 0, nothing, nothing]] * 3)
    steps, alone = [], []
    for logits, count in zip(token_logits, (1, 3), strict=True):
        ones = torch.ones(count)
        targets = Targets(none, none, none.expand(count), none, none, ones, ones)
        steps.append(float(distillation_loss(logits, torch.zeros(count), targets, counts=(4, 4))))
        alone.append(float(distillation_loss(logits, torch.zeros(count), targets)))
    assert sum(steps) == pytest.approx(2.25 * math.log(2))
    assert sum(alone) / 2 == pytest.approx(2.5 * math.log(2))


def test_a_teacher_without_probabilities_counts_as_sure(vlm, tables):
    items = [
        (e, r, [dataclasses.replace(row, p_yes=None) for row in rows])
        for e, r, rows in training_items(tables, "image", 1)
    ]
    batch = TreeCollator(vlm, DistillConfig(report_to="none"), balance(items))(items)
    assert batch["targets"].p_yes.tolist() == [float(row.verdict) for *_, rows in items for row in rows]


def test_gradient_checkpointing_changes_nothing(tiny_base, tables):
    """With the packed mask and the image's features, under transformers' own defaults: a layer runs twice, the loss and
    the gradients of all 28 adapter matrices stay as they are."""
    vlm = load_model(tiny_base, dtype=torch.float32)
    add_adapter(vlm, DistillConfig(lora_r=4, report_to="none"))
    torch.manual_seed(0)
    trained = {name: weight for name, weight in vlm.model.named_parameters() if weight.requires_grad}
    for name, weight in trained.items():
        if "lora_B" in name:  # zero at the start, and with it the gradients of A
            torch.nn.init.normal_(weight, std=0.1)
    items = uneven(training_items(tables, "image", 4))
    batch = TreeCollator(vlm, DistillConfig(report_to="none"), balance(items))(items)
    runs = []
    vlm.backbone.model.language_model.layers[0].self_attn.register_forward_hook(lambda *_: runs.append(1))
    found = []
    for checkpointing in (False, True):
        if checkpointing:
            vlm.model.gradient_checkpointing_enable()
        vlm.model.train().zero_grad()
        token_logits, verdict_logits = read_logits(vlm.model, batch["packed"], batch["targets"])
        loss = distillation_loss(token_logits, margin(verdict_logits, vlm.encoder), batch["targets"])
        loss.backward()
        found.append((loss.detach(), {name: weight.grad.clone() for name, weight in trained.items()}))
    assert len(runs) == 1 + 2
    (plain, plain_gradients), (again, gradients) = found
    torch.testing.assert_close(again, plain, rtol=0, atol=0)
    assert len(gradients) == 28 and all(gradient.abs().max() > 0 for gradient in gradients.values())
    torch.testing.assert_close(gradients, plain_gradients, rtol=0, atol=1e-7)
