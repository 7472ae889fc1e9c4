"""`claimwise bench trainer`: its arithmetic, and one small run. No time is asserted."""

from __future__ import annotations

import json
import math
import time

import pytest
from claimwise.scripts import cli
from claimwise.scripts.benches import trainer as bench_trainer


def busy(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_what_runs_inside_a_part_is_not_counted_to_the_part_around_it():
    clock = bench_trainer.Clock()
    judge = clock.around("judge", lambda: busy(0.05))
    clock.restart()
    with clock.part("ours"):
        judge()
    seconds = clock.read()
    assert seconds["judge"] > 0.045 and seconds["ours"] < 0.02


def test_the_mean_ratio_and_its_interval():
    """Logs 0 and log 4: mean log 2, deviation log 4 / sqrt 2, error log 2; t of one degree of freedom is 12.706."""
    ratio, (low, high) = bench_trainer.mean_ratio([1.0, 4.0])
    assert ratio == pytest.approx(2)
    assert (math.log(low), math.log(high)) == pytest.approx(
        (math.log(2) * (1 - 12.7062), math.log(2) * 13.7062), abs=1e-3
    )


@pytest.mark.slow
def test_a_small_run(capsys):
    assert cli.main(["bench", "trainer", "--json", "--pairs", "2", "--steps", "2"]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(figures) == {
        "override_share", "overhead_vs_trl", "overhead_ci", "advantages_s", "max_loss_diff_answer_arm",
        "shared_base_extra_mb", "own_base_extra_mb",
    }  # fmt: skip
    assert figures["max_loss_diff_answer_arm"] == 0
    assert figures["shared_base_extra_mb"] < figures["own_base_extra_mb"] / 4
    assert 0 < figures["override_share"] < 1 and figures["advantages_s"] > 0
    low, high = figures["overhead_ci"]
    assert low < figures["overhead_vs_trl"] < high


def test_too_few_runs_are_refused(capsys):
    assert cli.main(["bench", "trainer", "--pairs", "1"]) == 2
    assert "an interval needs two runs" in capsys.readouterr().err
