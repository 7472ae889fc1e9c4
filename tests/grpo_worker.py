"""One training step under torchrun, for test_grpo_processes.py: writes the weights and what was logged.

torchrun --nproc-per-node N grpo_worker.py OUT.pt PER_DEVICE
"""

import dataclasses
import sys
from pathlib import Path

import torch
from claimwise.distill.oracle import OracleJudge
from claimwise.scripts.cli import leave_processes
from conftest import ASSETS
from grpo_runs import PLAIN_SGD, make_examples, rubric_trainer, weights_of, write_down, written_completions


class FailingOnSome(OracleJudge):
    """Fails on what a response holds, not on where it stands in a batch, so that processes do not matter."""

    def judge(self, items):
        length = {rollout.rollout_id: len(rollout.response) for _, rollout in items}
        return [
            _failed(v) if v.criterion_id == "c2" and length[v.rollout_id] % 3 == 0 else v for v in super().judge(items)
        ]


def _failed(verdict):
    return dataclasses.replace(verdict, verdict=None, p_yes=None, error="timed out")


def main(out: str, per_device: int) -> None:
    examples = make_examples(3)
    trainer = rubric_trainer(
        ASSETS, Path(out).with_suffix(""), examples, FailingOnSome("image"), OracleJudge("image"), match_rms=True,
        per_device_train_batch_size=per_device, use_cpu=True, sampled_verdicts=4, **PLAIN_SGD,
    )  # fmt: skip
    write_down(trainer, written_completions(ASSETS, examples)).train()
    if trainer.accelerator.is_main_process:
        trainer.in_loop.close()
        row = next(row for row in trainer.state.log_history if "reward" in row)
        advantages = list(trainer._logs["advantages"])
        weights = {name.removeprefix("module."): value for name, value in weights_of(trainer).items()}
        torch.save({"weights": weights, "row": row, "advantages": advantages}, out)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
    leave_processes()
