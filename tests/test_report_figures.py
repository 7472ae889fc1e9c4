"""The figures of a report, by hand."""

import json
from dataclasses import replace

import pytest
from claimwise.eval.report_credit import parse_credit
from claimwise.eval.report_data import SampledPair, read_run, series
from claimwise.eval.report_figures import (
    agreement_by_step,
    change_of,
    compare,
    confusion,
    disagreements,
    in_loop_by_dimension,
    reliability,
)
from claimwise.verifier.errors import InputError
from reporting import CREDIT, CRITERIA, make_run, verdict


def test_figures_by_hand(tmp_path):
    make_run(tmp_path)
    run = read_run(tmp_path)
    compared = compare(run)
    assert compared["image"].everything["overall"]["agreement"] == pytest.approx(34 / 36)
    assert compared["text"].wrong is not None and compared["text"].wrong["overall"]["n"] == 4
    assert confusion(run.verdicts["gold-image"], run.verdicts["image"]) == {
        "VF": {"both yes": 2, "false no": 0, "false yes": 1, "both no": 9, "missing": 0},
        "RC": {"both yes": 11, "false no": 1, "false yes": 0, "both no": 0, "missing": 0},
        "PITFALL": {"both yes": 0, "false no": 0, "false yes": 0, "both no": 12, "missing": 0},
    }
    # P(yes) .1 for 22 verdicts, of which 1 is yes in gold; .9 for 14, of which 13 are
    low, high = reliability(run.verdicts["gold-image"], run.verdicts["image"])
    assert low == pytest.approx((0.1, 1 / 22, 22)) and high == pytest.approx((0.9, 13 / 14, 14))
    found = {kind: [d.rollout.rollout_id for d in cases or []] for kind, cases in disagreements(run).items()}
    assert found == {"false yes": ["r07"], "false no": ["r08"], "text-only fooled": ["r00", "r03", "r01"]}


def test_missing_verdicts_are_counted_and_never_scored():
    criterion = CRITERIA[0]
    known = [verdict(n, criterion, "a", "image", True, 1.0, None) for n in range(2)]
    other = [known[0], replace(known[1], verdict=None, p_yes=None, error="no answer")]
    assert confusion(known, other)["VF"] == {"both yes": 1, "false no": 0, "false yes": 0, "both no": 0, "missing": 1}
    assert reliability(known, other) == [(1.0, 1.0, 1)]


def test_in_loop_rates_are_weighted():
    yes = verdict(0, CRITERIA[0], "a", "image", True, 1.0, None)
    no, unknown = replace(yes, verdict=False), replace(yes, verdict=None, error="no answer")
    pairs = [SampledPair(1, 3.0, yes, yes), SampledPair(1, 1.0, yes, no), SampledPair(2, 9.0, yes, unknown)]
    assert in_loop_by_dimension(pairs) == {"VF": {"sampled": 3, "unlike": 1, "agreement": 0.75}}


def test_agreement_by_step_is_weighted_over_a_window():
    yes = verdict(0, CRITERIA[0], "a", "image", True, 1.0, None)
    no = replace(yes, verdict=False)
    pairs = [SampledPair(0, 3.0, yes, yes), SampledPair(1, 1.0, yes, no), SampledPair(12, 2.0, yes, yes)]
    assert agreement_by_step(pairs) == [(1, 1.0), (2, 0.75), (13, 1.0)]


def test_the_log_as_series():
    log = [{"step": n, "x": n / 10, "y": float("nan") if n else 1} for n in range(8)]
    assert series(log, "y") == [(0, 1.0)]
    assert change_of([value for _, value in series(log, "x")]) == pytest.approx((0.05, 0.65))
    assert change_of([1.0] * 3) is None


def test_credit_is_cut_where_the_number_changes(tmp_path):
    credit = parse_credit(CREDIT, tmp_path / "credit.json")
    (response,) = credit.responses
    prefix, scalar = response.arms["prefix"], response.arms["scalar"]
    assert credit.arms == ["scalar", "prefix"] and list(prefix.parts) == ["answer", "format"]
    assert list(scalar.parts) == ["answer", "format", "rubric"] and list(prefix.criteria) == ["c1", "c2"]
    assert [(s.text, s.first, s.last) for s in prefix.stretches] == [("It is 3", 0, 2), (".<script>", 3, 4)]
    assert [s.shade for s in prefix.stretches] == [1.0, 0.5]
    assert [s.shade for s in scalar.stretches] == [0.25]  # the same scale under every arm
    assert [s.value for s in prefix.rubric_stretches] == [0.75, 0.0]
    with pytest.raises(InputError, match=r"credit.json: .*must be an object"):
        parse_credit([], tmp_path / "credit.json")


def test_a_criterion_may_be_named_like_a_part_of_the_reward(tmp_path):
    """Its term is its own, and counts in the rubric's part."""
    for name in ("answer", "format", "rubric"):
        renamed = json.loads(json.dumps(CREDIT).replace('"c1"', f'"{name}"'))
        credit = parse_credit(renamed, tmp_path / "credit.json")
        arm = credit.responses[0].arms["prefix"]
        assert (list(arm.parts), list(arm.criteria)) == (["answer", "format"], [name, "c2"])
        assert (arm.parts["answer"].added, arm.criteria[name].added) == (-0.25, 0.75)
        assert [s.value for s in arm.rubric_stretches] == [0.75, 0.0]
        assert list(credit.responses[0].arms["scalar"].parts) == ["answer", "format", "rubric"]


def test_terms_in_another_order_are_refused(tmp_path):
    turned = json.loads(json.dumps(CREDIT))
    turned["responses"][0]["arms"]["prefix"]["terms"].reverse()
    with pytest.raises(InputError, match=r"response 1: its terms must begin with answer and format"):
        parse_credit(turned, tmp_path / "credit.json")
