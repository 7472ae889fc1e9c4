"""A run that is gone on with ends where the run that was never stopped ends, to the last bit."""

from __future__ import annotations

import pytest
import torch
from claimwise.distill.oracle import OracleJudge
from claimwise.verifier import InputError
from grpo_runs import logged, make_examples, rubric_trainer, weights_of

SETTINGS = {"max_steps": 5, "save_strategy": "steps", "save_steps": 1, "per_device_train_batch_size": 8}


def run(assets, folder, examples, checkpoint=None, **settings):
    trainer = rubric_trainer(assets, folder, examples, OracleJudge("image"), **{**SETTINGS, **settings})
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    return trainer


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "checkpoint"),
    [
        # 4 examples, two a step: a second epoch begins at step 2, a third at step 4
        ({}, 1),
        ({}, 2),
        ({}, 3),
        # each batch serves two updates: the checkpoint of step 3 falls between them
        ({"num_iterations": 2, "learning_rate": 3e-3}, 3),
        # and with accumulation: four micro-steps of one generation, two of which make an update
        ({"steps_per_generation": 4, "gradient_accumulation_steps": 2, "per_device_train_batch_size": 2}, 3),
    ],
)
def test_resuming_continues_the_same_trajectory(assets, tmp_path, settings, checkpoint):
    examples = make_examples(4)
    whole = run(assets, tmp_path / "whole", examples, **settings)
    resumed = run(assets, tmp_path / "b", examples, tmp_path / "whole" / f"checkpoint-{checkpoint}", **settings)
    assert logged(resumed, "loss") == logged(whole, "loss") and len(logged(whole, "loss")) == 5
    assert logged(resumed, "rubric/reward") == logged(whole, "rubric/reward")
    one, other = weights_of(whole), weights_of(resumed)
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_checkpoint_without_its_completions_is_refused_where_they_are_needed(assets, tmp_path):
    examples = make_examples(4)
    settings = {"max_steps": 2, "num_iterations": 2, "per_device_train_batch_size": 4}
    run(assets, tmp_path / "a", examples, **settings)
    for step in (1, 2):
        (tmp_path / "a" / f"checkpoint-{step}" / "completions_0.pt").unlink()
    with pytest.raises(InputError, match="falls between two uses of the same completions"):
        run(assets, tmp_path / "b", examples, tmp_path / "a" / "checkpoint-1", **settings)
    run(assets, tmp_path / "c", examples, tmp_path / "a" / "checkpoint-2", **{**settings, "max_steps": 3})
