"""Two processes give the step of one: groups of four, of which the second of three lies in both processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from claimwise.verifier.tables import write_examples
from grpo_runs import make_examples, policy

HERE = Path(__file__).parent
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": ""}


def torchrun(processes, *command):
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    environment = {**ENVIRONMENT, "PYTHONPATH": str(HERE)}
    return subprocess.run([*launch, *command], env=environment, capture_output=True, text=True, timeout=300)


def step(folder, processes, per_device):
    out = folder / f"{processes}.pt"
    done = torchrun(processes, str(HERE / "grpo_worker.py"), str(out), str(per_device))
    assert done.returncode == 0, done.stderr[-3000:]
    return torch.load(out, weights_only=False)


@pytest.mark.slow
def test_two_processes_give_the_gradient_of_one(assets, tmp_path):
    """Plain SGD, so that the weights show the gradient. With missing verdicts and match_rms, whose root mean square goes
    over all processes. What is logged, and in which order, is the same too."""
    one, two = step(tmp_path, 1, 12), step(tmp_path, 2, 6)
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


@pytest.mark.slow
def test_the_command_in_two_processes(assets, tmp_path):
    write_examples(tmp_path / "examples.parquet", make_examples(4))
    flags = {
        "model": assets / "policy", "examples": tmp_path / "examples.parquet", "verifier": "oracle", "teacher": "oracle",
        "output_dir": tmp_path / "run", "max_steps": 1, "per_device_train_batch_size": 2, "num_generations": 4,
        "max_completion_length": 24, "bf16": "false", "gradient_checkpointing": "false", "use_cpu": "true",
        "report_to": "none", "sampled_verdicts": 4, "logging_steps": 1,
    }  # fmt: skip
    command = ["-m", "claimwise.scripts.cli", "train", *(x for k, v in flags.items() for x in (f"--{k}", str(v)))]
    done = torchrun(2, *command)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("policy after 1 steps of arm prefix") == 1
    assert json.loads((tmp_path / "run" / "finished.json").read_text())["sampled"] == 4
    assert len((tmp_path / "run" / "log.jsonl").read_text().splitlines()) == 1
    again = torchrun(2, *command[:-2], "--logging_steps", "1", "--beta", "0.5")
    assert again.returncode != 0 and "beta (0.0 there, 0.5 now)" in again.stderr
