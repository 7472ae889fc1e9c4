"""What is stock TRL by another name: arm `answer`, to the last bit, and `component` before TRL's whitening."""

from __future__ import annotations

import pytest
import torch
from claimwise.distill.oracle import OracleJudge
from claimwise.trainer import answer_reward, format_reward, prompts_of
from claimwise.verifier.processor import load_processor
from claimwise.verifier.schema import Rollout
from grpo_runs import (
    COMMON,
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
from trl import GRPOConfig, GRPOTrainer

IMAGE = OracleJudge("image")


@pytest.fixture(scope="module")
def examples():
    return make_examples()


@pytest.fixture(scope="module")
def completions(assets, examples):
    return written_completions(assets, examples)


def losses_and_weights(trainer):
    trainer.train()
    return logged(trainer, "loss"), weights_of(trainer)


def stock_trainer(assets, folder, examples, weights, more=(), **settings):
    return GRPOTrainer(
        policy(assets),
        [answer_reward, format_reward, *more],
        GRPOConfig(output_dir=str(folder), reward_weights=weights, **{**COMMON, **settings}),
        prompts_of(examples),
        processing_class=load_processor(assets / "policy"),
    )


def test_arm_answer_is_stock_trl(assets, tmp_path, examples):
    """Same losses and same weights as GRPOTrainer with the rewards weighted b_ans + b_rub and b_fmt."""
    # Each is made and trained before the next: both seed the one random generator when made.
    ours = rubric_trainer(assets, tmp_path / "a", examples, IMAGE, arm="answer", budget="0.5,0.2,0.3")
    our_losses, our_weights = losses_and_weights(ours)
    losses, weights = losses_and_weights(stock_trainer(assets, tmp_path / "b", examples, [0.8, 0.2]))
    assert our_losses == losses and len(losses) == 2
    assert all(torch.equal(our_weights[name], weights[name]) for name in weights)
    start = policy(assets).state_dict()
    assert not all(torch.equal(weights[name], start[name]) for name in start)


def test_arm_answer_is_stock_trl_over_several_updates(assets, tmp_path, examples, completions):
    """Two uses of each batch, accumulation, a reference, truncated completions masked."""
    uses = {"num_iterations": 2, "gradient_accumulation_steps": 2, "per_device_train_batch_size": 4, "beta": 0.01}
    uses |= {"mask_truncated_completions": True, "learning_rate": 3e-3, "max_steps": 3}
    ours = rubric_trainer(assets, tmp_path / "a", examples, IMAGE, arm="answer", budget="release-prefix", **uses)
    our_losses, our_weights = losses_and_weights(write_down(ours, completions))
    stock = stock_trainer(assets, tmp_path / "b", examples, [0.95, 0.05], **uses)
    losses, weights = losses_and_weights(write_down(stock, completions))
    assert our_losses == losses and len(losses) == 3
    assert all(torch.equal(our_weights[name], weights[name]) for name in weights)


def of_criterion(j, examples):
    """The oracle's verdict on criterion j as a reward function; of a pitfall the contrary."""
    by_id = {example.example_id: example for example in examples}

    def reward(completions, example_id, **kwargs):
        items = [
            (by_id[e], Rollout("r", e, c[-1]["content"], "p")) for e, c in zip(example_id, completions, strict=True)
        ]
        rows = [IMAGE.judge([item])[j] for item in items]
        return [float(v.verdict != by_id[v.example_id].criteria[j].is_pitfall) for v in rows]

    reward.__name__ = f"criterion_{j}"
    return reward


def test_component_is_normalize_then_sum_before_its_whitening(assets, tmp_path, examples, completions):
    """TRL's own code, with a reward for the answer, the format and each of the seven criteria, whose weights are 5, 5, 4,
    5, 3, 2 and 3 in every example. TRL then takes the batch's mean away and divides by its deviation + 1e-4."""
    weights = [abs(c.weight) for c in examples[0].criteria]
    assert weights == [5, 5, 4, 5, 3, 2, 3] and all([abs(c.weight) for c in e.criteria] == weights for e in examples)
    budget = [0.5, 0.2, *(0.3 * w / 27 for w in weights)]
    more = [of_criterion(j, examples) for j in range(7)]
    settings = {"multi_objective_aggregation": "normalize_then_sum", **PLAIN_SGD}
    stock = stock_trainer(assets, tmp_path / "b", examples, budget, more, **settings)
    stock_seen = batches_of(write_down(stock, completions))
    stock.train()
    settings = {"arm": "component", "budget": "0.5,0.2,0.3", "pitfalls": "criterion", **PLAIN_SGD}
    ours = rubric_trainer(assets, tmp_path / "a", examples, IMAGE, **settings)
    seen = batches_of(write_down(ours, completions))
    ours.train()
    component = seen[0]["advantages"][:, 0]
    whitened = (component - component.mean()) / (component.std() + 1e-4)
    assert float(component.abs().max()) > 0.5
    assert torch.equal(seen[0]["completion_ids"], stock_seen[0]["completion_ids"])  # shuffled alike
    assert torch.allclose(whitened, stock_seen[0]["advantages"], atol=1e-5)
