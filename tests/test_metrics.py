"""Figures from counts and ranks: against scikit-learn, a published table, hand-worked numbers, and plain loops."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn.metrics as sk
from claimwise.eval import metrics
from claimwise.eval.bootstrap import Clustered, draw_weights, interval, resample
from claimwise.eval.calibration import expected_calibration_error
from claimwise.eval.metrics import Ranked, constant, ratios, span_iou, why_undefined
from claimwise.eval.pairs import Pairs, count
from hypothesis import given
from hypothesis import strategies as st

NO_SPAN = -1


def pairs_of(a, b, p=None, example=None):
    n = len(a)
    example = np.arange(n) if example is None else np.asarray(example)
    none = np.full((n, 2), NO_SPAN)
    p = np.full(n, np.nan) if p is None else np.asarray(p, dtype=float)
    codes = (np.asarray(x, dtype=np.int64) for x in (a, b))
    return Pairs(example, int(example.max(initial=-1)) + 1, *codes, p, none, none, np.full(n, np.nan))


def values(pairs):
    total = count(pairs).counts_xc.sum(0)
    return {name: value / of if of else None for name, (value, of) in ratios(total).items()}


def noisy(seed, n=400, yes=0.3, slip=0.2):
    rng = np.random.default_rng(seed)
    a = (rng.random(n) < yes).astype(int)
    b = np.where(rng.random(n) < slip, 1 - a, a)
    return a, b, np.round(np.clip(0.3 + 0.4 * b + rng.normal(0, 0.25, n), 0, 1), 2)  # rounded: many ties


@pytest.mark.parametrize("seed", range(3))
def test_figures_are_scikit_learns(seed):
    a, b, p = noisy(seed)
    pairs = pairs_of(a, b, p)
    found = values(pairs)
    assert found["agreement"] == pytest.approx(sk.accuracy_score(a, b))
    assert found["balanced_accuracy"] == pytest.approx(sk.balanced_accuracy_score(a, b))
    assert found["kappa"] == pytest.approx(sk.cohen_kappa_score(a, b))
    assert found["f1_yes"] == pytest.approx(sk.f1_score(a, b))
    assert found["f1_no"] == pytest.approx(sk.f1_score(a, b, pos_label=0))
    assert found["false_yes"] == pytest.approx(1 - sk.recall_score(a, b, pos_label=0))
    assert found["false_no"] == pytest.approx(1 - sk.recall_score(a, b))
    assert found["ece"] == pytest.approx(expected_calibration_error(p, a == 1))
    assert count(pairs).ranked.auroc(np.ones(pairs.examples)) == pytest.approx(sk.roc_auc_score(a, p))


def test_gwets_coefficient_of_a_published_table():
    # 118 both yes, 5 and 2 unlike, none both no: kappa -0.023 beside AC1 0.941 (Gwet's paradox; Wongpakaran 2013).
    found = values(pairs_of([1] * 123 + [0] * 2, [1] * 118 + [0] * 5 + [1] * 2))
    assert found["kappa"] == pytest.approx(-0.0234, abs=1e-4)
    assert found["ac1"] == pytest.approx(0.9408, abs=1e-4)


def test_gwet_by_hand():
    # 3 both yes, 1 yes/no, 0 no/yes, 4 both no: q = (4 + 3) / 16, p_e = 2 q (1 - q) = .4921875, p_o = .875.
    found = values(pairs_of([1, 1, 1, 1, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0, 0, 0]))
    assert found["ac1"] == pytest.approx((0.875 - 0.4921875) / (1 - 0.4921875))
    assert values(pairs_of([1, 1], [1, 1]))["ac1"] == 1  # where kappa is undefined


def test_auroc_by_hand():
    # yes at .9 and .5, no at .5, .1, .1: 6 pairs of pairs, five right and one tied.
    ranked = Ranked.of(np.array([0.9, 0.5, 0.5, 0.1, 0.1]), np.array([1, 1, 0, 0, 0], bool), np.arange(5))
    assert ranked.auroc(np.ones(5)) == 5.5 / 6
    assert ranked.auroc(np.array([1, 0, 1, 1, 1])) == 1
    assert ranked.auroc(np.array([0, 1, 2, 0, 0])) == 0.5
    assert ranked.auroc(np.array([1, 1, 0, 0, 0])) is None  # no "no" is left
    assert Ranked.of(np.zeros(0), np.zeros(0, bool), np.zeros(0, int)).auroc(np.ones(3)) is None


def test_weighted_auroc_is_that_of_repeated_pairs():
    a, _, p = noisy(4, 120)
    example = np.arange(120) // 4
    weights = np.random.default_rng(1).multinomial(30, np.full(30, 1 / 30))
    again = np.repeat(np.arange(120), weights[example])
    assert Ranked.of(p, a == 1, example).auroc(weights) == pytest.approx(sk.roc_auc_score(a[again], p[again]))


def test_the_bootstrap_is_that_of_a_plain_loop():
    a, b, p = noisy(6, 120)
    example = np.arange(120) // 4
    group = np.arange(120) % 3 == 0
    drawn = resample([count(pairs_of(a, b, p, example), chosen) for chosen in (None, group)], 30, 40, 9, rank_draws=15)
    rng = np.random.default_rng(9)
    for d in range(40):
        picked = np.concatenate([np.flatnonzero(example == e) for e in rng.integers(30, size=30)])
        for one, rows in zip(drawn, (picked, picked[group[picked]]), strict=True):
            value, of = ratios(one.counts_dc[d])["f1_yes"]
            assert value / of == pytest.approx(sk.f1_score(a[rows], b[rows]))
            gaps, known = ratios(one.counts_dc[d])["ece"]
            assert gaps / known == pytest.approx(expected_calibration_error(p[rows], a[rows] == 1))
            if d < 15:
                assert one.auroc_r[d] == pytest.approx(sk.roc_auc_score(a[rows], p[rows]))
        assert len(one.auroc_r) == 15


def test_each_draw_takes_as_many_examples_as_there_are():
    batches = list(draw_weights(7, 50, 0))
    assert sum(map(len, batches)) == 50 and all((batch.sum(1) == 7).all() for batch in batches)
    assert list(draw_weights(0, 50, 0)) == []


def test_draws_without_a_value_are_left_out_of_the_interval():
    assert interval(np.array([np.nan, 0.5, np.nan, 0.5])) == [0.5, 0.5]
    assert interval(np.array([np.nan])) is None and interval(np.zeros(0)) is None


def test_examples_that_a_group_lacks_are_not_needed():
    counts = np.array([[1.0, 2.0], [3.0, 4.0]])
    (drawn,) = resample([Clustered(np.array([2, 5]), counts)], 6, 8, 3)
    weights = np.concatenate(list(draw_weights(6, 8, 3)))
    assert drawn.counts_dc == pytest.approx(weights[:, [2, 5]] @ counts)


@pytest.mark.parametrize(
    ("a", "b", "iou"),
    [
        ((0, 10), (0, 10), 1),
        ((0, 10), (5, 15), 5 / 15),
        ((0, 10), (2, 4), 0.2),
        ((0, 10), (10, 20), 0),
        ((3, 3), (3, 3), 1),
        ((3, 3), (3, 4), 0),
        ((3, 3), (4, 4), 0),
    ],
)
def test_span_iou(a, b, iou):
    assert span_iou(np.array([a]), np.array([b])) == pytest.approx([iou])


@pytest.mark.parametrize(
    ("name", "counts", "reason"),
    [
        ("agreement", {}, "no verdict is known on both sides"),
        ("kappa", {metrics.YES_YES: 3}, "both judges are constant and alike"),
        ("balanced_accuracy", {metrics.YES_YES: 3}, "the reference never says no"),
        ("false_no", {metrics.NO_NO: 3}, "the reference never says yes"),
        ("f1_no", {metrics.YES_YES: 3}, "neither judge ever says no"),
        ("auroc", {metrics.YES_YES: 3, metrics.NO_NO: 1}, "the other table gives no P(yes)"),
        ("auroc", {metrics.YES_YES: 3, metrics.WITH_P: 3}, "the reference never says no"),
        ("span_iou", {metrics.YES_YES: 3}, metrics.NO_SPANS),
        ("span_end_chars", {metrics.YES_YES: 3, metrics.SPANS: 2}, metrics.NO_ENDS),
        ("span_end_tokens", {metrics.YES_YES: 3, metrics.SPANS: 2, metrics.ENDS: 2}, "no tokenizer was given"),
    ],
)
def test_reasons(name, counts, reason):
    total = np.zeros(metrics.COLUMNS)
    total[list(counts)] = list(counts.values())
    assert why_undefined(name, total) == reason


def test_a_constant_judge_is_named():
    total = np.zeros(metrics.COLUMNS)
    columns = (metrics.YES_YES, metrics.NO_YES), (metrics.YES_NO, metrics.NO_NO)
    assert constant(total, *columns) is None
    total[metrics.NO_YES] = 2
    assert constant(total, *columns) == "yes"
    total[metrics.NO_NO] = 1
    assert constant(total, *columns) is None


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.floats(0, 1)), min_size=1, max_size=40))
def test_bounds_and_symmetry(rows):
    a, b, p = (np.array(column) for column in zip(*rows, strict=True))
    here, there = values(pairs_of(a, b, p)), values(pairs_of(b, a, p))
    for name, value in here.items():
        assert value is None or -1 <= value <= 1 + 1e-12, name
    for name in ("agreement", "kappa", "ac1", "f1_yes", "f1_no"):
        assert here[name] == there[name] or here[name] == pytest.approx(there[name])
    ranked = Ranked.of(p, a, np.arange(len(a)))
    flipped = Ranked.of(p, ~a, np.arange(len(a)))
    one = np.ones(len(a))
    if a.any() and not a.all():
        assert ranked.auroc(one) + flipped.auroc(one) == pytest.approx(1)
    else:
        assert ranked.auroc(one) is None
