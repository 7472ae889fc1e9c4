"""What the tests run where vLLM is installed: `python vllm_worker.py TABLES ADAPTER POLICY OUT` judges the tables'
responses with the command and in bfloat16, and lets the policy sample, all with vLLM in this process."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from claimwise.distill.rollout_backends import VllmBackend
from claimwise.distill.rollout_run import Job, Plan
from claimwise.scripts.cli import main
from claimwise.verifier import load_judge
from claimwise.verifier.servable import servable
from claimwise.verifier.tables import pair_up, read_examples, read_rollouts, write_verdicts


def jobs_of(tables: Path, temperature: float) -> list[Job]:
    """Two responses to each of the examples in `asked.jsonl`."""
    return Plan((("p", "p"),), (temperature,), 2, 48, 1, "vllm").jobs(read_examples(tables / "asked.jsonl"))


def judge(tables: Path, adapter: str, out: Path) -> None:
    examples, rollouts = tables / "examples.jsonl", tables / "rollouts.jsonl"
    flags = ["--examples", examples, "--rollouts", rollouts, "--out", out / "float32.jsonl"]
    assert main(["judge", "--adapter", adapter, "--backend", "vllm", *map(str, flags)]) == 0
    pairs = pair_up(read_examples(examples), read_rollouts(rollouts))
    coarse = load_judge(adapter, "image", backend="vllm", dtype="bfloat16")
    write_verdicts(out / "bfloat16.jsonl", coarse.judge(pairs))


def sample(tables: Path, policy: str, out: Path) -> None:
    """Greedy responses, drawn ones, and every second of these drawn again."""
    (out / "policy").mkdir()
    path = servable(policy, out / "policy")  # with the stock processor, which is the one that vLLM knows
    backend = VllmBackend(path, 48, enforce_eager=True, block_size=32, dtype="float32")

    def run(temperature: float, done=()) -> dict[str, str]:
        found = {}
        jobs = jobs_of(tables, temperature)
        backend.run(jobs, done, lambda job, said: found.update({job.rollout_id: repr(said)}))
        return found

    drawn = run(1.0)
    found = {"greedy": run(0.0), "drawn": drawn, "again": run(1.0, done=list(drawn)[::2])}
    (out / "rollouts.json").write_text(json.dumps(found))


if __name__ == "__main__":
    tables, adapter, policy, out = sys.argv[1:]
    judge(Path(tables), adapter, Path(out))
    sample(Path(tables), policy, Path(out))
