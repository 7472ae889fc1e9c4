"""Two processes give the step of one: groups of four, of which the second of three lies in both processes."""

from __future__ import annotations

import json
from pathlib import Path

import grpo_worker
import pytest
import torch
from claimwise.verifier.tables import write_examples
from grpo_runs import make_examples, policy
from launches import together

HERE = Path(__file__).parent


@pytest.mark.slow
def test_two_processes_give_the_gradient_of_one(assets, tmp_path):
    """Plain SGD, so that the weights show the gradient. With missing verdicts and match_rms, whose root mean square goes
    over all processes. What is logged, and in which order, is the same too."""
    grpo_worker.main(str(tmp_path / "1.pt"), 12)
    for status, _, error in together(2, str(HERE / "grpo_worker.py"), str(tmp_path / "2.pt"), "6"):
        assert status == 0, error[-3000:]
    one, two = (torch.load(tmp_path / name, weights_only=False) for name in ("1.pt", "2.pt"))
    start = policy(assets).state_dict()
    moved = max(float((one["weights"][name] - start[name]).abs().max()) for name in start)
    apart = max(float((one["weights"][name] - two["weights"][name]).abs().max()) for name in start)
    assert moved > 1e-3 and apart < 1e-4 * moved
    assert two["advantages"] == pytest.approx(one["advantages"], abs=1e-6) and len(one["advantages"]) == 12
    assert max(map(abs, one["advantages"])) > 0.5
    same = [key for key in one["row"] if key.startswith(("rubric/", "advantage/", "answer/", "rewards/"))]
    assert len(same) > 40 and 0 < one["row"]["rubric/VF/missing"] < 1
    for key in same:
        assert two["row"][key] == pytest.approx(one["row"][key], abs=1e-6), key
    rows = [(tmp_path / name / "in_loop" / "samples.jsonl").read_text().splitlines() for name in ("1", "2")]
    assert len(rows[0]) == len(rows[1]) == 4  # only one process asks the teacher
    groups = [json.loads((tmp_path / name / "groups/step00000.json").read_text())["responses"] for name in ("1", "2")]
    for a, b in zip(*groups, strict=True):  # nor does more than one write the group that is kept
        assert a["response"] == b["response"]
        assert b["arms"]["prefix"]["advantages"] == pytest.approx(a["arms"]["prefix"]["advantages"], abs=2e-6)


@pytest.mark.slow
def test_the_command_in_two_processes(assets, tmp_path):
    """It evaluates too, on five examples, which two processes cannot share evenly."""
    write_examples(tmp_path / "examples.parquet", make_examples(4))
    write_examples(tmp_path / "held-out.parquet", make_examples(9)[4:])
    flags = {
        "model": assets / "policy", "examples": tmp_path / "examples.parquet", "verifier": "oracle", "teacher": "oracle",
        "output_dir": tmp_path / "run", "max_steps": 1, "per_device_train_batch_size": 2, "num_generations": 4,
        "max_completion_length": 24, "bf16": "false", "gradient_checkpointing": "false", "use_cpu": "true",
        "report_to": "none", "sampled_verdicts": 4, "logging_steps": 1, "eval_examples": tmp_path / "held-out.parquet",
        "eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 2, "num_generations_eval": 2,
    }  # fmt: skip
    command = [str(HERE / "command_worker.py"), "train", *(x for k, v in flags.items() for x in (f"--{k}", str(v)))]
    first, second = together(2, *command)
    assert first[0] == second[0] == 0, first[2][-3000:]
    assert (first[1] + second[1]).count("policy after 1 steps of arm prefix") == 1
    assert json.loads((tmp_path / "run" / "finished.json").read_text())["sampled"] == 4
    assert len((tmp_path / "run" / "log.jsonl").read_text().splitlines()) == 1
    evaluated = json.loads((tmp_path / "run" / "eval_log.jsonl").read_text())  # one row, whoever evaluated
    assert evaluated["step"] == 1 and evaluated["eval_rubric/VF/missing"] == 0
    refused = together(2, *command, "--beta", "0.5")
    assert all("threads left: []" in end[1] for end in (first, second, *refused))
    for status, _, error in refused:
        assert status == 2 and "beta (0.0 there, 0.5 now)" in error
