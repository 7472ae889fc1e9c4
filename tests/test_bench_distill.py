"""`claimwise bench distill`: its figures and what they are measured on, at sizes that take seconds; no time is tested."""

from __future__ import annotations

import json

import pytest
from claimwise.distill.config import DistillConfig
from claimwise.distill.train import TreeCollator, balance
from claimwise.scripts.benches.distill import CRITERIA, FULL, QUICK, labelled, one_by_one
from claimwise.scripts.benches.workload import Workload
from claimwise.scripts.cli import main


def test_the_figures(capsys):
    assert main(["bench", "distill", "--quick", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures.keys() == {"packed_vs_unpacked", "max_loss_diff"}
    assert figures["packed_vs_unpacked"] > 0 and 0 <= figures["max_loss_diff"] < 1e-4


def test_repeats_below_one_are_refused(capsys):
    assert main(["bench", "distill", "--repeats", "0"]) == 2
    assert "--repeats is 0; it must be at least 1" in capsys.readouterr().err


def test_the_shape_that_the_ratio_is_promised_for():
    """Seven criteria of 40 tokens behind 1,200 shared ones."""
    assert (CRITERIA, FULL.opening + FULL.response, FULL.criterion) == (7, 1200, 40)


def test_both_ways_train_on_the_same_targets():
    """Seven branches behind 160 tokens in one row; and one of them in each of seven rows."""
    work = Workload(QUICK, "cpu")
    item = labelled(work)[0]
    collator = TreeCollator(work.model, DistillConfig(report_to="none"), balance([item]))
    packed, apart = collator([item]), collator(one_by_one(item))
    assert [len(starts) for starts in packed["packed"].starts] == [7]
    assert [len(starts) for starts in apart["packed"].starts] == [1] * 7
    assert packed["packed"].starts[0][0] == 160 and {starts[0] for starts in apart["packed"].starts} == {160}
    for name in ("token_ids", "p_yes", "weights"):
        assert getattr(packed["targets"], name).tolist() == pytest.approx(getattr(apart["targets"], name).tolist())
