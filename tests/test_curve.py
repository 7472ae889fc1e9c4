"""`claimwise distill --curve`: the sets drawn, the curve's figures and fit, and a whole run on a tiny base."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from claimwise.distill.config import DistillConfig
from claimwise.distill.curve import SHARES, nested, steps_of
from claimwise.eval.agreement import agree
from claimwise.eval.curve_page import as_text
from claimwise.eval.learning_curve import fit_power_law, learning_curve, next_doubling
from claimwise.scripts.cli import main
from claimwise.verifier.errors import InputError
from claimwise.verifier.judge import load_judge
from claimwise.verifier.schema import Verdict
from claimwise.verifier.tables import pair_up, read_examples, read_rollouts, read_verdicts
from distilling import contents, make_tables, settings
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import curve_fit
from transformers.trainer_callback import DefaultFlowCallback


def verdict(example: int, number: int, value: bool | None = True, judge: str = "teacher") -> Verdict:
    error = "timeout" if value is None else None
    return Verdict(f"e{example}", f"e{example}/r", f"c{number}", judge, "image", value, error=error)


@given(st.lists(st.integers(1, 4), min_size=16, max_size=40), st.integers(0, 5))
def test_sets_are_nested_by_example_and_just_large_enough(counts, seed):
    rows = [verdict(example, k) for example, n in enumerate(counts) for k in range(n)]
    try:
        sets = nested(rows, seed)
    except InputError:
        assert sum(counts) / min(SHARES[0], len(counts)) < 2 * max(counts)  # an example may fill two sixteenths
        return
    for share, small, large in zip(SHARES, sets, [*sets[1:], rows], strict=True):
        keys, chosen = {row.key for row in small}, {row.example_id for row in small}
        assert keys <= {row.key for row in large}
        assert small == [row for row in rows if row.example_id in chosen]  # whole examples, in the table's order
        assert len(rows) <= len(small) * share < len(rows) + max(counts) * share
    assert sets[-1] == rows


def test_missing_verdicts_are_not_counted_and_the_seed_draws():
    rows = [verdict(example, k, None if k else True) for example in range(64) for k in range(3)]
    sets = nested(rows, 0)
    assert [len(rows) for rows in sets] == [4, 8, 16, 32, 64]
    assert nested(rows, 0) == sets and nested(list(reversed(rows)), 0)[0] == sets[0][::-1]
    assert nested(rows, 1)[0] != sets[0]
    with pytest.raises(InputError, match=r"^8 examples have verdicts, too few to draw 1/16, 1/8, 1/4, 1/2 of them"):
        nested(rows[:24], 0)


N = np.array([500.0, 1000, 2000, 4000, 8000])


def test_an_exact_power_law_gives_its_gain():
    """y = .98 - .04 (n / 8000)^-1/2: at 16,000 verdicts .98 - .04 / sqrt(2); the gain is .04 (1 - 1 / sqrt(2))."""
    y = 0.98 - 0.04 * (N / 8000) ** -0.5
    draws = y + np.random.default_rng(0).normal(0, 0.003, (300, 5))
    found = next_doubling(N, y, draws)
    assert found["method"] == "fit" and found["gain"] == pytest.approx(0.0117157, rel=5e-3)
    assert found["fit"] == pytest.approx({"a": 0.98, "b": 0.04, "c": 0.5}, rel=0.01)  # c in steps of 1%
    assert found["gain_ci"][0] < 0.0117 < found["gain_ci"][1]
    still = next_doubling(N, y, np.tile(y, (50, 1)))  # no other draw would say otherwise
    assert still["gain_ci"] == pytest.approx([found["gain"]] * 2, rel=0.02)


@given(st.floats(0.7, 1), st.floats(0.001, 0.2), st.floats(0.08, 2), st.integers(0, 9))
def test_no_curve_nearby_is_closer_than_the_fit(a, b, c, seed):
    y = a - b * (N / N[-1]) ** -c + np.random.default_rng(seed).normal(0, 0.01, 5)
    found = [value[0] for value in fit_power_law(N, y[None])]

    def misses(a, b, c):
        return ((a - b * (N / N[-1]) ** -c - y) ** 2).sum()

    best, _ = curve_fit(lambda m, a, b: a - b * m ** -found[2], N / N[-1], y, (a, b))
    assert found[:2] == pytest.approx(list(best), abs=1e-5)
    for other in (found[2] * 1.03, found[2] / 1.03):
        if 0.05 <= other <= 3:
            a_b, _ = curve_fit(lambda m, a, b, c=other: a - b * m**-c, N / N[-1], y, (a, b))
            assert misses(*found) <= misses(*a_b, other) + 1e-9


def test_points_that_scatter_widen_the_interval():
    """The same draws, but the points lie off the curve: other trainings would have lain elsewhere."""
    y = 0.98 - 0.04 * (N / 8000) ** -0.5
    off = y + np.array([0.004, -0.004, 0.004, -0.004, 0.004])
    draws = np.random.default_rng(0).normal(0, 0.001, (300, 5))
    smooth, rough = next_doubling(N, y, y + draws), next_doubling(N, off, off + draws)
    width = {name: np.ptp(found["gain_ci"]) for name, found in (("smooth", smooth), ("rough", rough))}
    assert rough["method"] == "fit" and width["rough"] > 2 * width["smooth"]


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ([0.90, 0.92, 0.94, 0.96, 0.98], "the points show no levelling off"),  # as much with each doubling
        ([0.97, 0.96, 0.97, 0.96, 0.965], "the points show no steady rise"),
        ([0.60, 0.970, 0.971, 0.970, 0.971], "the points show no steady rise"),  # level from the second on
    ],
)
def test_what_is_no_such_curve_falls_back_to_the_last_doubling(values, why):
    y = np.array(values)
    draws = y + np.array([[-0.01], [0.0], [0.01]])  # all points move together: the difference is the same in each
    found = next_doubling(N, y, draws)
    last = values[-1] - values[-2]
    assert (found["method"], found["why"], found["fit"]) == ("last doubling", why, None)
    assert found["gain"] == pytest.approx(last) and found["gain_ci"] == pytest.approx([last, last])


def test_a_curve_that_the_draws_do_not_settle_falls_back_too():
    y = np.array([0.90, 0.93, 0.935, 0.945, 0.955])
    found = next_doubling(N, y, y + np.random.default_rng(0).normal(0, 0.02, (300, 5)))
    assert found["method"] == "last doubling" and "of the draws the points show no levelling off" in found["why"]
    few = next_doubling(N[:3], y[:3], y[None, :3])
    assert few["why"] == "a curve needs 4 points, here are 3" and few["gain"] == pytest.approx(0.005)
    unknown = next_doubling(N, np.array([np.nan, *y[1:]]), y[None])
    assert unknown["gain"] is None and unknown["why"] == "a point has no value"


def test_figures_and_intervals_are_those_of_agree():
    teacher = [verdict(e, k, (e + k) % 3 > 0) for e in range(12) for k in range(5)]
    judged = [
        [verdict(e, k, ((e + k) % 3 > 0) != ((e * 5 + k) % wrong == 0), "own") for e in range(12) for k in range(5)]
        for wrong in (3, 5, 9, 30)
    ]
    found = learning_curve(teacher, judged, [100, 200, 400, 800], draws=200, seed=3)
    for own, point in zip(judged, found["points"], strict=True):
        wanted = agree(teacher, own, draws=200, seed=3)["overall"]
        for name in ("agreement", "agreement_ci", "kappa", "kappa_ci"):
            assert point[name] == pytest.approx(wanted[name])
    assert found["examples"] == 12
    with pytest.raises(InputError, match="must have more and more verdicts"):
        learning_curve(teacher, judged[:2], [100, 100])


@pytest.fixture(scope="module")
def labels(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("curve")
    make_tables(folder / "train", "train", 20)
    make_tables(folder / "validation", "validation", 3)
    return folder


def test_every_point_has_the_steps_of_the_whole_run(tiny_base, labels, tmp_path):
    """40 responses in batches of 4 by 3: ten batches, four steps an epoch, one and a half epochs."""
    values = {**settings(tiny_base, labels, tmp_path / "out"), "gradient_accumulation_steps": 3}
    assert steps_of(DistillConfig(**values), 40) == 3  # max_steps
    assert steps_of(DistillConfig(**{**values, "max_steps": -1, "num_train_epochs": 1.5}), 40) == 6


@pytest.fixture(scope="module")
def begun() -> list[str]:
    """The points whose steps were begun, in order."""
    return []


@pytest.fixture(scope="module")
def drawn(tiny_base, labels, begun, tmp_path_factory) -> tuple[Path, list[str], dict]:
    """A curve that was stopped in its third point and gone on with: its folder, the command, what lay there between."""
    out = tmp_path_factory.mktemp("drawn") / "curve"
    values = {**settings(tiny_base, labels, out), "max_steps": 2}
    del values["output_dir"]
    command = ["distill", "--curve", str(out), *(part for k, v in values.items() for part in (f"--{k}", str(v)))]

    def on_step_begin(self, args, *_, **__):
        if len(begun) == 5:
            begun.append("stopped")
            raise KeyboardInterrupt
        begun.append(Path(args.output_dir).name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DefaultFlowCallback, "on_step_begin", on_step_begin)
        assert main(command) == 130 and not (out / "curve.json").exists()
        between = contents(out)
        assert main(command) == 0
    return out, command, between


@pytest.mark.slow
def test_a_stopped_curve_keeps_its_finished_points(drawn, begun, capsys):
    out, command, between = drawn
    done = ["1-16"] * 2 + ["1-8"] * 2
    assert begun == [*done, "1-4", "stopped", *["1-4"] * 2, *["1-2"] * 2, *["all"] * 2]
    after = contents(out)
    assert {name: after[name] for name in between} == between
    assert main([*command, "--learning_rate", "0.5"]) == 2
    assert "holds a different run: learning_rate (0.01 there, 0.5 now)" in capsys.readouterr().err
    assert contents(out) == after


@pytest.mark.slow
def test_a_point_is_what_its_verifier_says_of_the_held_out_rollouts(drawn, labels):
    out, held_out = drawn[0], labels / "validation"
    points = json.loads((out / "curve.json").read_text())["points"]
    assert [point["share"] for point in points] == ["1/16", "1/8", "1/4", "1/2", "all"]
    assert [point["verdicts"] for point in points] == [28, 42, 70, 140, 280]  # 14 an example
    assert [point["examples"] for point in points] == [2, 3, 5, 10, 20]
    rows = read_verdicts(out / "labels/1-4.parquet")
    assert len(rows) == 70 and len({row.example_id for row in rows}) == 5
    pairs = pair_up(read_examples(held_out / "examples.jsonl"), read_rollouts(held_out / "rollouts.jsonl"))
    own = load_judge(out / "points/1-4", "image").judge(pairs)
    wanted = agree(read_verdicts(held_out / "gold-image.jsonl"), own)["overall"]
    for name in ("agreement", "agreement_ci", "kappa"):
        assert points[2][name] == pytest.approx(wanted[name])


@pytest.mark.slow
def test_a_finished_curve_is_shown_again_on_screen_and_as_a_page(drawn, begun, capsys):
    out, command, _ = drawn
    steps = len(begun)
    assert main(command) == 0 and len(begun) == steps
    told, found = capsys.readouterr().out, json.loads((out / "curve.json").read_text())
    assert as_text(found) in told and f"{out}/curve.html: the curve as a page" in told
    page = (out / "curve.html").read_text()
    assert page.count("<svg") == 1 and "http" not in page.split("</style>")[1].replace("http://www.w3.org", "")
    assert f"{found['points'][-1]['agreement']:.3f}" in page and "<td>1/16</td>" in page
    assert "no early stopping (patience 0)" in page


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--curve"], "--curve needs the folder to write to"),
        (["--curve", "--mode", "image"], "--curve needs the folder to write to"),
        (["--curve=out", "--output_dir", "other"], "--curve names the folder of all points; leave --output_dir out"),
    ],
)
def test_wrong_flags_are_one_line(flags, told, capsys):
    assert main(["distill", *flags]) == 2
    assert capsys.readouterr().err == f"claimwise distill: {told}\n"
