"""The trainer on the shipped policy: arm `answer` is stock TRL to the last bit, the other arms use the credit's numbers,
a judge's failures are missing and not zero, and one prompt's group gives what `token_advantages` says."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest
import torch
from claimwise.distill.digits import make_example
from claimwise.distill.oracle import OracleJudge
from claimwise.trainer import RubricGRPOConfig, RubricGRPOTrainer
from claimwise.trainer.grpo import prompts_of
from claimwise.trainer.rewards import answer_reward, format_reward
from claimwise.verifier import InputError
from claimwise.verifier.processor import load_processor
from transformers import AutoModelForImageTextToText
from trl import GRPOConfig, GRPOTrainer

COMMON = {
    "per_device_train_batch_size": 8,
    "num_generations": 4,
    "max_completion_length": 48,
    "learning_rate": 3e-4,
    "max_steps": 2,
    "bf16": False,
    "gradient_checkpointing": False,
    "report_to": "none",
    "save_strategy": "no",
    "logging_steps": 1,
    "seed": 5,
    "disable_tqdm": True,
}


@pytest.fixture(scope="module")
def examples():
    rng = random.Random(4)
    return [make_example(rng, "train", number) for number in range(8)]


def policy(assets):
    return AutoModelForImageTextToText.from_pretrained(assets / "policy", dtype=torch.float32)


def rubric_trainer(assets, tmp_path, examples, judge=None, teacher=None, **settings):
    config = RubricGRPOConfig(output_dir=str(tmp_path), **{**COMMON, **settings})
    return RubricGRPOTrainer(
        policy(assets), config, examples, judge, teacher, processing_class=load_processor(assets / "policy")
    )


def losses_and_weights(trainer):
    trainer.train()
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    return losses, {name: value.clone() for name, value in trainer.model.state_dict().items()}


def test_arm_answer_is_stock_trl(assets, tmp_path, examples):
    """Same losses and same weights as GRPOTrainer with the rewards weighted b_ans + b_rub and b_fmt."""
    # Each is made and trained before the next: both seed the one random generator when made.
    judge = OracleJudge("image")
    our_losses, our_weights = losses_and_weights(
        rubric_trainer(assets, tmp_path / "a", examples, judge, arm="answer", budget="0.5,0.2,0.3")
    )
    losses, weights = losses_and_weights(
        GRPOTrainer(
            policy(assets),
            [answer_reward, format_reward],
            GRPOConfig(output_dir=str(tmp_path / "b"), reward_weights=[0.8, 0.2], **COMMON),
            prompts_of(examples),
            processing_class=load_processor(assets / "policy"),
        )
    )
    assert our_losses == losses and len(losses) == 2
    assert all(torch.equal(our_weights[name], weights[name]) for name in weights)


@pytest.mark.parametrize("arm", ["scalar", "component", "prefix", "span"])
def test_the_loss_gets_the_credit(assets, tmp_path, examples, arm, monkeypatch):
    """The advantages that reach TRL's loss are those of `token_advantages` on the same completions."""
    trainer = rubric_trainer(assets, tmp_path, examples, OracleJudge("image"), arm=arm, max_steps=1)
    seen, credits = [], []
    original_loss, original_credit = trainer._compute_loss, trainer._credit
    monkeypatch.setattr(trainer, "_compute_loss", lambda m, i: seen.append(i) or original_loss(m, i))
    monkeypatch.setattr(trainer, "_credit", lambda *a: credits.append(original_credit(*a)) or credits[-1])
    trainer.train()
    batch = seen[0]
    assert batch["advantages"].shape == batch["completion_ids"].shape
    expected = [row for group in credits[0] for row in group.advantages]
    # TRL shuffles the generation batch before the loss: compare as sets of rows
    rows = sorted(
        tuple(np.round(row.numpy()[: int(mask.sum())], 5))
        for row, mask in zip(batch["advantages"], batch["completion_mask"], strict=True)
    )
    assert rows == sorted(tuple(np.round(row.astype(np.float32), 5)) for row in expected)
    assert float((batch["advantages"] * (1 - batch["completion_mask"])).abs().sum()) == 0
    assert any(row.std() > 1e-6 for row in expected) == (arm in ("prefix", "span"))


def test_match_rms_makes_the_root_mean_square_one(assets, tmp_path, examples, monkeypatch):
    trainer = rubric_trainer(assets, tmp_path, examples, OracleJudge("image"), match_rms=True, max_steps=1)
    seen, original = [], trainer._compute_loss
    monkeypatch.setattr(trainer, "_compute_loss", lambda m, i: seen.append(i) or original(m, i))
    trainer.train()
    mask = seen[0]["completion_mask"].bool()
    assert float(seen[0]["advantages"][mask].square().mean()) == pytest.approx(1.0, abs=1e-5)


class Failing:
    """A judge of which every `every`-th verdict fails."""

    name, mode = "failing", "image"

    def __init__(self, every: int):
        self.every, self.oracle = every, OracleJudge("image")

    def judge(self, items):
        return [
            dataclasses.replace(v, verdict=None, p_yes=None, error="timed out") if i % self.every == 0 else v
            for i, v in enumerate(self.oracle.judge(items))
        ]


def test_a_judge_that_fails_a_tenth_trains_on(assets, tmp_path, examples):
    trainer = rubric_trainer(assets, tmp_path, examples, Failing(10))
    trainer.train()
    row = next(row for row in trainer.state.log_history if "rubric/VF/missing" in row)
    assert 0 < row["rubric/VF/missing"] < 0.3
    assert np.isfinite(row["rubric/reward"])


def test_a_judge_that_fails_mostly_stops_the_run_with_the_reason(assets, tmp_path, examples):
    trainer = rubric_trainer(assets, tmp_path, examples, Failing(1), max_missing=0.5)
    with pytest.raises(InputError, match=r"step 0: 56 of 56 verdicts are missing.*timed out"):
        trainer.train()


def test_agreement_is_tracked_while_training(assets, tmp_path, examples):
    trainer = rubric_trainer(
        assets, tmp_path, examples, OracleJudge("text"), OracleJudge("image"), sampled_verdicts=6, max_steps=2
    )
    trainer.train()
    figures = trainer.in_loop.close()
    assert figures["sampled"] == 12
    assert 0.5 < figures["agreement"] <= 1
    assert len((tmp_path / "in_loop" / "samples.jsonl").read_text().splitlines()) == 12


def test_the_batch_logs_the_advantages_that_are_used(assets, tmp_path, examples):
    trainer = rubric_trainer(assets, tmp_path, examples, OracleJudge("image"), max_steps=1)
    credits, original = [], trainer._credit
    trainer._credit = lambda *a: credits.append(original(*a)) or credits[-1]
    trainer.train()
    means = [float(row.mean()) for group in credits[-1] for row in group.advantages]
    assert list(trainer._logs["advantages"])[-len(means) :] == pytest.approx(means)


@pytest.mark.parametrize(
    "settings, reason",
    [
        ({"importance_sampling_level": "sequence"}, "one per sequence"),
        ({"off_policy_mask_threshold": 0.5}, "whole sequences"),
        ({"loss_type": "vespo"}, "whole sequences"),
        ({"loss_type": "luspo"}, "not shown right"),
        ({"scale_rewards": "batch"}, "standardised within its group"),
        ({"multi_objective_aggregation": "normalize_then_sum"}, "the arm says"),
        ({"reward_weights": [1.0, 1.0]}, "the budget weighs"),
        ({"arm": "prefixes"}, "must be one of"),
        ({"budget": "1,1,1"}, "sum to 1"),
        ({"max_missing": 2.0}, "a share"),
    ],
)
def test_what_cannot_take_advantages_per_token_is_refused(tmp_path, settings, reason):
    with pytest.raises(InputError, match=reason):
        RubricGRPOConfig(output_dir=str(tmp_path), **{**COMMON, **settings})


def test_an_example_without_weight_is_refused_at_start(assets, tmp_path, examples):
    weightless = dataclasses.replace(
        examples[0], criteria=tuple(dataclasses.replace(c, weight=0.0) for c in examples[0].criteria)
    )
    with pytest.raises(InputError, match=weightless.example_id):
        rubric_trainer(assets, tmp_path, [weightless, *examples[1:]], OracleJudge("image"))


def test_an_arm_with_a_rubric_needs_a_judge(assets, tmp_path, examples):
    with pytest.raises(InputError, match="needs a judge"):
        rubric_trainer(assets, tmp_path, examples)
