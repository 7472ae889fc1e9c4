"""What is logged of a step's credit, by numbers worked out by hand; the log holds the advantages that are used."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from claimwise.distill.oracle import OracleJudge
from claimwise.trainer.credit import matched, token_advantages
from claimwise.trainer.credit_log import credit_figures, verdict_figures
from claimwise.trainer.judging import Judgement
from claimwise.verifier.schema import Criterion, Rollout, Verdict
from credit_cases import Z2, response
from grpo_runs import PLAIN_SGD, Failing, logged, make_examples, rubric_trainer, write_down, written_completions

# Ten tokens of one character each: one token in each decile.
TEN = [[i, i + 1] for i in range(10)]
CRITERIA = [
    Criterion("v1", "", dimension="VF", label="ESSENTIAL", weight=2),
    Criterion("v2", "", dimension="VF", label="ESSENTIAL", weight=1),
    Criterion("r1", "", dimension="RC", label="ESSENTIAL", weight=1),
    Criterion("p1", "", dimension="VF", label="PITFALL", weight=-1),
]
GROUP = [
    response(1, offsets=TEN, v1=(True, (0, 3)), v2=(True, (0, 5)), r1=(True, None), p1=(False, (1, 2))),
    response(0, offsets=TEN, v1=(False, (3, 4)), v2=(True, None), r1=None, p1=None),
]
ALL = [np.ones(10, dtype=bool)] * 2


def judgement(number, **verdicts):
    """Verdicts as v1=True, or v1=(True, (0, 3)) with a span."""
    rows = []
    for criterion in CRITERIA:
        verdict, span = v if isinstance(v := verdicts[criterion.id], tuple) else (v, None)
        start, end = span or (None, None)
        error = "timed out" if verdict is None else None
        names = ("e", f"r{number}", criterion.id, "judge", "image")
        rows.append(Verdict(*names, verdict, None, start, end, error=error, dimension=criterion.group))
    return Judgement(Rollout(f"r{number}", "e", "0123456789", "policy"), np.array(TEN), rows)


def test_rates_of_the_verdicts():
    first = judgement(0, v1=(True, (0, 3)), v2=(True, (0, 5)), r1=True, p1=(False, (1, 2)))
    second = judgement(1, v1=(False, (3, 4)), v2=True, r1=None, p1=None)
    figures = verdict_figures([first, second])
    assert figures["rubric/VF/yes"] == 3 / 4 and figures["rubric/VF/located"] == 3 / 4
    assert (figures["rubric/RC/yes"], figures["rubric/RC/located"], figures["rubric/RC/missing"]) == (1, 0, 0.5)
    assert (figures["rubric/PITFALL/yes"], figures["rubric/PITFALL/missing"]) == (0, 0.5)
    assert figures["answer/by_judge"] == 0


def test_figures_of_the_credit():
    """Budget 0.5/0/0.5, rho 1/2, 1/4, 1/4. Only v1 has spread: 0.25 Z2 on tokens 0-2 and -0.25 Z2 on tokens 0-3."""
    credit = token_advantages(CRITERIA, GROUP, arm="prefix")
    figures = credit_figures([credit], credit.advantages, ALL)
    assert figures["rubric/reward"] == pytest.approx((1 + (0 + 0.25 + 0.25)) / 2)  # the missing r1 takes the mean, 1
    assert (figures["rubric/vetoed"], figures["rubric/fallbacks"], figures["answer/missing"]) == (0, 2, 0)
    # the answer has 0.5 Z2 on every token; the rubric's squares are 7 x 0.25^2 of 20
    assert figures["rubric/to_answer_rms"] == pytest.approx(math.sqrt(7 * 0.0625 / 20) / 0.5)
    assert figures["rubric/VF/to_answer_rms"] == pytest.approx(figures["rubric/to_answer_rms"])
    assert figures["rubric/RC/to_answer_rms"] == 0
    assert (figures["rubric/VF/no_spread"], figures["rubric/RC/no_spread"]) == (0.5, 1)
    assert (figures["rubric/VF/fallbacks"], figures["rubric/RC/fallbacks"]) == (1, 1)
    assert not any(key.startswith("rubric/PITFALL") for key in figures)  # not credited: it vetoes
    vf = [figures[f"rubric/VF/advantage/decile_{d:02d}"] for d in range(1, 11)]
    assert vf == pytest.approx([0, 0, 0, -0.125 * Z2, *[0] * 6], abs=1e-12)
    both = [figures[f"advantage/decile_{d:02d}"] for d in range(1, 11)]
    assert both == pytest.approx(vf, abs=1e-12)  # the answers cancel


def test_a_criterion_may_be_named_like_a_part_of_the_reward():
    """The same figures as with other names, and its own term alone."""
    names = {"v1": "answer", "v2": "format", "r1": "rubric", "p1": "advantage"}
    criteria = [dataclasses.replace(c, id=names[c.id]) for c in CRITERIA]
    group = [dataclasses.replace(r, verdicts={names[k]: v for k, v in r.verdicts.items()}) for r in GROUP]
    for arm in ("prefix", "scalar"):
        one, other = (token_advantages(c, g, arm=arm) for c, g in ((CRITERIA, GROUP), (criteria, group)))
        figures = [credit_figures([credit], credit.advantages, ALL) for credit in (one, other)]
        np.testing.assert_equal(*figures)  # NaN included
    other = token_advantages(criteria, group, arm="prefix")
    for row, wanted in zip(other.added_by({"answer"}), ([0.25 * Z2] * 3, [-0.25 * Z2] * 4), strict=True):
        assert row.tolist() == pytest.approx([*wanted, *[0] * (10 - len(wanted))])


@pytest.mark.parametrize("arm", ["component", "prefix", "span"])
def test_the_parts_make_up_the_whole_as_it_was_used(arm):
    """Also where the batch was divided by its root mean square. The answer's part is 0.5 z(a), +-0.5 Z2 before that."""
    plain = token_advantages(CRITERIA, GROUP, arm=arm)
    masks = [ALL[0], np.arange(10) < 6]
    (credit,) = matched([plain], masks)
    bearing = np.concatenate([a[mask] for a, mask in zip(credit.advantages, masks, strict=True)])
    assert np.mean(bearing**2) == pytest.approx(1) and credit.divisor != 1
    figures = credit_figures([credit], credit.advantages, masks)
    for d in range(1, 11):
        own = sum(figures[f"rubric/{name}/advantage/decile_{d:02d}"] for name in ("VF", "RC"))
        answer = 0.0 if d <= 6 else 0.5 * Z2  # from the seventh tenth on the first response is alone
        assert figures[f"advantage/decile_{d:02d}"] == pytest.approx(own + answer / credit.divisor)
    before = credit_figures([plain], plain.advantages, masks)
    assert figures["rubric/VF/to_answer_rms"] == before["rubric/VF/to_answer_rms"]


def test_tokens_without_loss_are_no_part_of_the_deciles():
    credit = token_advantages(CRITERIA, GROUP, arm="prefix")
    figures = credit_figures([credit], credit.advantages, [ALL[0], ~ALL[1]])
    assert figures["advantage/decile_01"] == pytest.approx(0.75 * Z2)
    assert figures["advantage/decile_10"] == pytest.approx(0.5 * Z2)
    none = credit_figures([credit], credit.advantages, [~ALL[0], ~ALL[1]])
    assert math.isnan(none["advantage/decile_01"])


def test_short_responses_reach_into_some_deciles_only():
    """Two tokens: the first and the sixth tenth."""
    group = [response(1, offsets=TEN[:2], v1=True), response(0, offsets=TEN[:2], v1=False)]
    credit = token_advantages(CRITERIA[:1], group, arm="component")
    figures = credit_figures([credit], [np.array([1.0, 2.0]), np.array([3.0, 4.0])], [np.ones(2, dtype=bool)] * 2)
    means = [figures[f"advantage/decile_{d:02d}"] for d in range(1, 11)]
    assert means[0] == 2 and means[5] == 3 and sum(map(math.isnan, means)) == 8


def test_arms_that_credit_the_rubric_as_a_whole_have_no_share_by_dimension():
    credit = token_advantages(CRITERIA, GROUP, arm="scalar-z")
    figures = credit_figures([credit], credit.advantages, ALL)
    assert "rubric/VF/no_spread" in figures and "rubric/VF/to_answer_rms" not in figures
    assert figures["rubric/to_answer_rms"] == pytest.approx(1, abs=1e-3)  # z(a) and z(R) at equal budgets


@pytest.mark.parametrize("arm", ["prefix", "answer"])
def test_the_log_holds_the_advantages_that_are_used(assets, tmp_path, arm):
    """In TRL's table of completions, in the order of the completions, and in the deciles."""
    examples = make_examples(2)
    trainer = rubric_trainer(assets, tmp_path, examples, Failing(lambda i: i % 7 == 3), arm=arm, **PLAIN_SGD)
    completions = written_completions(assets, examples)
    used, use = [], trainer._use
    trainer._use = lambda *a: used.append(use(*a)) or used[-1]
    write_down(trainer, completions).train()
    rows, table = used[0], list(trainer._logs["advantages"])
    assert table == pytest.approx([float(row.mean()) for row in rows], abs=1e-6)
    first = [row["example_id"] for row in trainer.rows_now]
    lengths = [len(completions[name][i % 4]) for i, name in enumerate(first)]
    assert [len(row) for row in rows] == lengths
    front = np.concatenate([row[: math.ceil(len(row) / 10)] for row in rows])
    assert logged(trainer, "advantage/decile_01") == pytest.approx([front.mean()], abs=1e-6)


def test_everything_promised_is_logged(assets, tmp_path):
    trainer = rubric_trainer(assets, tmp_path, make_examples(2), OracleJudge("image"), max_steps=1)
    trainer.train()
    row = next(row for row in trainer.state.log_history if "reward" in row)
    for dimension in ("VF", "RC", "IF"):
        for figure in ("yes", "located", "missing", "no_spread", "fallbacks", "to_answer_rms", "advantage/decile_10"):
            assert f"rubric/{dimension}/{figure}" in row
    assert {"rubric/PITFALL/yes", "rubric/to_answer_rms", "advantage/decile_01", "rubric/reward"} <= set(row)
