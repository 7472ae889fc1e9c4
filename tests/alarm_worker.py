"""A run whose judge says yes to everything; under torchrun, for test_in_loop_actions.py, it prints its error, or the
share of yes that it was trained on at last.

torchrun --nproc-per-node N alarm_worker.py FOLDER ACTION
"""

import dataclasses
import sys

from claimwise.distill.oracle import OracleJudge
from claimwise.scripts.cli import leave_processes
from claimwise.trainer import RubricGRPOConfig, run
from claimwise.trainer.grpo import RubricGRPOTrainer
from claimwise.verifier import InputError
from conftest import ASSETS
from grpo_runs import COMMON, make_examples


class Yes(OracleJudge):
    """Says yes to everything, though never sure."""

    def judge(self, items):
        return [dataclasses.replace(v, judge="yes", verdict=True, p_yes=0.6) for v in super().judge(items)]


def grpo(assets, folder, examples, **settings):
    """Eight responses a step, with a sample of 24 verdicts."""
    values = {**COMMON, "max_steps": 4, "sampled_verdicts": 24, "max_completion_length": 24, **settings}
    config = RubricGRPOConfig(model=str(assets / "policy"), output_dir=str(folder), verifier="ADAPTER", **values)
    return run.train(config, examples, Yes("image"), OracleJudge("image"))


def main(folder: str, action: str) -> None:
    shares, credit = [], RubricGRPOTrainer._credit

    def noting(self, everyone, *rest):
        verdicts = [v.verdict for judgement in everyone for v in judgement.verdicts]
        shares.append(sum(verdicts) / len(verdicts))
        return credit(self, everyone, *rest)

    RubricGRPOTrainer._credit = noting
    try:
        grpo(ASSETS, folder, make_examples(), on_alarm=action, max_steps=3, per_device_train_batch_size=4, use_cpu=True)
    except InputError as error:
        print(error)
    else:
        print("share of yes", shares[-1])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
    leave_processes()
