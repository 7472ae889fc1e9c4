"""A run whose judge is a cascade of a verifier that is never sure and the oracle; under torchrun, for
test_train_cascade.py, its main process prints how often the oracle was asked.

torchrun --nproc-per-node N cascade_worker.py FOLDER PER_DEVICE
"""

import dataclasses
import sys
from pathlib import Path
from random import Random

from claimwise.distill.oracle import OracleJudge
from claimwise.scripts.cli import leave_processes
from claimwise.trainer.cascade import RunCascade
from claimwise.verifier.cascade import Band
from conftest import ASSETS
from grpo_runs import make_examples, rubric_trainer, write_down, written_completions

CALLS = 20


class Unsure(OracleJudge):
    """A P(yes) that depends on response and criterion alone."""

    def judge(self, items):
        responses = {rollout.rollout_id: rollout.response for _, rollout in items}
        return [self._doubt(v, Random(f"{responses[v.rollout_id]}{v.criterion_id}")) for v in super().judge(items)]

    def _doubt(self, verdict, rng):
        p_yes = rng.random()
        return dataclasses.replace(verdict, judge="unsure", verdict=p_yes > 0.5, p_yes=p_yes)

    def __init__(self):
        super().__init__("image")
        self.name = "unsure"


class Counting(OracleJudge):
    """The oracle, which knows what it was asked."""

    def __init__(self):
        super().__init__("image")
        self.asked = []

    def judge(self, items):
        self.asked += [(rollout.response, c.text) for example, rollout in items for c in example.criteria]
        return super().judge(items)


def trained(folder, per_device, checkpoint=None, calls=CALLS, **settings):
    """A trainer after its steps on completions that are written down, and the oracle that it asked in the cascade."""
    examples, oracle = make_examples(4), Counting()
    cascade = RunCascade(Unsure(), oracle, Band(0.2, 0.8), calls, memory=Path(folder) / "cascade.jsonl")
    trainer = rubric_trainer(
        ASSETS, folder, examples, cascade, OracleJudge("image"), per_device_train_batch_size=per_device,
        use_cpu=True, sampled_verdicts=6, **{"max_steps": 2, **settings},
    )  # fmt: skip
    write_down(trainer, written_completions(ASSETS, examples)).train(resume_from_checkpoint=checkpoint)
    if trainer.in_loop is not None:
        trainer.in_loop.close()
    return trainer, oracle


def main(folder: str, per_device: int) -> None:
    trainer, oracle = trained(folder, per_device, max_steps=1)
    print(trainer.accelerator.is_main_process, len(oracle.asked))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
    leave_processes()
