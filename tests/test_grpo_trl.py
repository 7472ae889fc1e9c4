"""The trainer inside TRL: every loss with an advantage per token against its formula written out token by token, several
uses of the same completions, accumulation, truncated completions, the frozen reference, and vLLM's path."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import pytest
import torch
from claimwise.distill.oracle import OracleJudge
from grpo_runs import (
    PLAIN_SGD,
    batches_of,
    logged,
    make_examples,
    policy,
    rubric_trainer,
    weights_of,
    write_down,
    written_completions,
)

IMAGE = OracleJudge("image")


@pytest.fixture(scope="module")
def examples():
    return make_examples(2)


@pytest.fixture(scope="module")
def completions(assets, examples):
    return written_completions(assets, examples)


def log_probabilities(model, batch):
    """(B, T) of the batch's completion tokens, from the logits of an untouched model."""
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
    fields = {key: batch[key] for key in ("pixel_values", "image_grid_thw", "mm_token_type_ids")}
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=mask, **fields).logits
    tokens = batch["completion_ids"].shape[1]
    chosen = batch["completion_ids"].unsqueeze(-1)
    return logits[:, -tokens - 1 : -1].log_softmax(-1).gather(-1, chosen).squeeze(-1)


def token_loss(kind, ratio, advantage, logp, args):
    """-J of one token, from the papers: the clipped surrogate, CISPO's clipped weight, SAPO's soft gate."""
    if kind == "cispo":
        return -min(ratio, args.epsilon_high or args.epsilon) * advantage * logp
    if kind == "sapo":
        heat = args.sapo_temperature_pos if advantage > 0 else args.sapo_temperature_neg
        return -4 / heat / (1 + math.exp(-heat * (ratio - 1))) * advantage
    clipped = min(max(ratio, 1 - args.epsilon), 1 + args.epsilon)
    return -min(ratio * advantage, clipped * advantage)


def loss_by_hand(trainer, batch, model, reference=None):
    args, kind = trainer.args, trainer.args.loss_type
    logp = log_probabilities(model, batch)
    old = batch.get("old_per_token_logps", logp)
    ref = log_probabilities(reference, batch) if reference is not None else None
    weight = batch.get("importance_sampling_ratio", torch.ones(1)).expand_as(logp)
    rows = []
    for b in range(len(logp)):
        row = []
        for t in range(int(batch["completion_mask"][b].sum())):
            ratio = math.exp(float(logp[b, t] - old[b, t]))
            loss = token_loss(kind, ratio, float(batch["advantages"][b, t]), float(logp[b, t]), args) * float(
                weight[b, t]
            )
            if ref is not None:
                gap = float(ref[b, t] - logp[b, t])
                loss += args.beta * ratio * (math.exp(gap) - gap - 1)  # TRL's default corrects for old completions
            row.append(loss)
        rows.append(row)
    everything = sum(map(sum, rows))
    if kind in ("grpo", "sapo"):  # the mean over responses of the mean over tokens
        return sum(sum(row) / max(len(row), 1) for row in rows) / len(rows)
    if kind == "dr_grpo":  # over a constant
        return everything / (len(rows) * args.max_completion_length)
    return everything / sum(map(len, rows))  # bnpo: the batch's tokens; dapo and cispo: the step's, here the same


def by_hand_while_training(assets, trainer):
    """Trains, and returns per micro-step (loss, loss by hand, largest |ratio - 1|)."""
    plain, start, rows = policy(assets).eval(), policy(assets).eval() if trainer.args.beta else None, []
    loss_of = trainer._compute_loss

    def compare(model, inputs):
        plain.load_state_dict(trainer.model.state_dict())
        loss = loss_of(model, inputs)
        expected = loss_by_hand(trainer, inputs, plain, start)
        gap = inputs.get("old_per_token_logps", 0) - log_probabilities(plain, inputs)
        moved = float((gap * inputs["completion_mask"]).abs().max()) if "old_per_token_logps" in inputs else 0.0
        rows.append((float(loss.detach()), expected, moved))
        return loss

    trainer._compute_loss = compare
    trainer.train()
    return rows


@pytest.mark.parametrize("loss_type", ["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo"])
def test_losses_are_their_formula_token_by_token(assets, tmp_path, examples, completions, loss_type):
    """Two updates on the same completions, so that ratios differ from one and some are clipped; beta 0.01 as in the
    paper, against the policy as it was at the start."""
    trainer = rubric_trainer(
        assets, tmp_path, examples, IMAGE,
        arm="prefix", loss_type=loss_type, num_iterations=2, learning_rate=3e-3, beta=0.01, lr_scheduler_type="constant",
    )  # fmt: skip
    rows = by_hand_while_training(assets, write_down(trainer, completions))
    assert len(rows) == 2 and rows[1][2] > 0.2  # beyond the clip range
    for loss, expected, _ in rows:
        assert loss == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_the_same_completions_keep_their_advantages(assets, tmp_path, examples, completions):
    trainer = write_down(rubric_trainer(assets, tmp_path, examples, IMAGE, num_iterations=2, max_steps=3), completions)
    seen = batches_of(trainer)
    trainer.train()
    first, second, third = (batch["advantages"] for batch in seen)
    assert torch.equal(first, second)
    assert not torch.equal(first, third)  # a new batch, shuffled anew
    assert "old_per_token_logps" in seen[0]


@pytest.mark.parametrize("loss_type", ["dapo", "grpo"])
def test_gradient_accumulation_gives_the_gradient_of_one_batch(assets, tmp_path, examples, completions, loss_type):
    ends = []
    for size, accumulation in ((8, 1), (2, 4)):
        trainer = rubric_trainer(
            assets, tmp_path / str(size), examples, IMAGE, loss_type=loss_type, match_rms=True,
            per_device_train_batch_size=size, gradient_accumulation_steps=accumulation, **PLAIN_SGD,
        )  # fmt: skip
        write_down(trainer, completions).train()
        ends.append(weights_of(trainer))
    start = policy(assets).state_dict()
    moved = max(float((ends[0][name] - start[name]).abs().max()) for name in start)
    apart = max(float((ends[0][name] - ends[1][name]).abs().max()) for name in start)
    assert moved > 1e-3 and apart < 1e-4 * moved


def test_truncated_completions_are_masked(assets, tmp_path, examples, completions):
    """The second of each group is cut off: no token of it bears loss, it counts in no root mean square, and yet it is
    judged and compared with."""
    trainer = rubric_trainer(
        assets, tmp_path, examples, IMAGE, mask_truncated_completions=True, match_rms=True, **PLAIN_SGD
    )
    rows = by_hand_while_training(assets, write_down(trainer, completions))
    batch = trainer._buffered_inputs[0]
    cut = [list(ids) for group in completions.values() for ids in group[1:2]]
    masked = [i for i, ids in enumerate(batch["completion_ids"].tolist()) if any(ids[: len(c)] == c for c in cut)]
    assert len(masked) == 2 and batch["completion_mask"][masked].sum() == 0
    assert batch["completion_mask"].sum(1).bool().sum() == 6
    bearing = batch["completion_mask"].bool()
    assert float(batch["advantages"][bearing].square().mean()) == pytest.approx(1.0, abs=1e-5)
    assert float(batch["advantages"][masked].abs().sum()) > 0
    assert rows[0][0] == pytest.approx(rows[0][1], rel=1e-4)
    assert logged(trainer, "completions/clipped_ratio") == [0.25]


def test_the_reference_is_the_policy_as_it_was(assets, tmp_path, examples, completions):
    """KL 0 at the first step, more at the next; without beta there is no reference."""
    trainer = rubric_trainer(assets, tmp_path / "a", examples, IMAGE, beta=0.01, learning_rate=3e-3, max_steps=3)
    write_down(trainer, completions).train()
    first, *later = logged(trainer, "kl")
    assert first == pytest.approx(0, abs=1e-6) and min(later) > 1e-4
    start = policy(assets).state_dict()
    assert all(torch.equal(value, start[name]) for name, value in trainer.ref_model.state_dict().items())
    without = rubric_trainer(assets, tmp_path / "b", examples, IMAGE, max_steps=1)
    write_down(without, completions).train()
    assert without.ref_model is None and not logged(without, "kl")


def test_a_batch_may_mix_examples_with_and_without_an_image(assets, tmp_path, examples, completions):
    """One of the two examples has none: the loss is still the formula on each one's own tokens."""
    mixed = [examples[0], dataclasses.replace(examples[1], images=())]
    trainer = rubric_trainer(assets, tmp_path, mixed, IMAGE, **PLAIN_SGD)
    rows = by_hand_while_training(assets, write_down(trainer, completions))
    batch = trainer._buffered_inputs[0]
    assert sorted(batch["num_images"]) == [0] * 4 + [1] * 4 and len(batch["image_grid_thw"]) == 4
    assert rows[0][0] == pytest.approx(rows[0][1], rel=1e-4)


class FakeVLLM:
    """Stands in for trl's VLLMGeneration: keeps its arguments, returns written completions with log-probabilities."""

    made: ClassVar[list] = []

    def __init__(self, **arguments):
        self.arguments, self.synced = arguments, 0
        self.vllm_client = self
        FakeVLLM.made.append(self)

    def get_server_info(self):
        return {"model_config": {"logprobs_mode": "processed_logprobs"}}

    def sync_weights(self):
        self.synced += 1

    def generate(self, prompts, images, num_generations, profiler=None):
        ids = self.next_ids(len(prompts), num_generations)
        return None, ids, [[[-0.3] for _ in own] for own in ids], None


@pytest.mark.parametrize("mode", ["server", "colocate"])
def test_vllm_takes_the_settings_and_its_completions_get_their_credit(
    assets, tmp_path, examples, completions, mode, monkeypatch
):
    """Nothing of ours asks who generated. TRL's correction for vLLM's log-probabilities weighs the loss as ever."""
    monkeypatch.setattr("trl.trainer.grpo_trainer.VLLMGeneration", FakeVLLM)
    trainer = rubric_trainer(
        assets, tmp_path, examples, IMAGE, use_vllm=True, vllm_mode=mode, vllm_server_base_url="http://localhost:8123",
        vllm_gpu_memory_utilization=0.4, vllm_importance_sampling_mode="token_truncate", **PLAIN_SGD,
    )  # fmt: skip
    engine = FakeVLLM.made[-1]
    assert (engine.arguments["mode"], engine.arguments["gpu_memory_utilization"]) == (mode, 0.4)
    assert engine.arguments["server_base_url"] == "http://localhost:8123"
    score = trainer._generate_and_score_completions

    def score_rows(rows):
        engine.next_ids = lambda count, group: [completions[r["example_id"]][i % group] for i, r in enumerate(rows)]
        return score(rows)

    trainer._generate_and_score_completions = score_rows
    rows = by_hand_while_training(assets, trainer)
    batch = trainer._buffered_inputs[0]
    assert engine.synced == 1 and batch["importance_sampling_ratio"].shape == batch["advantages"].shape
    assert rows[0][0] == pytest.approx(rows[0][1], rel=1e-4)
