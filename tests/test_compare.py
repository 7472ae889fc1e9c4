"""Two judges pair by pair: hand-worked tables, statsmodels, what is said about them, and the command on the shipped
verifier."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from claimwise.distill.oracle import OracleJudge
from claimwise.eval.compare import CONTRADICTED, NOT_CONTRADICTED, compare, mcnemar, what_it_tells
from claimwise.scripts.cli import main
from claimwise.verifier.errors import InputError
from claimwise.verifier.schema import Verdict
from claimwise.verifier.tables import write_examples, write_rollouts, write_verdicts
from statsmodels.stats.contingency_tables import mcnemar as statsmodels_mcnemar
from statsmodels.stats.multitest import multipletests

NAMES = {"y": True, "n": False, "-": None}


def table(answers, judge="j", mode="image", per_example=2, dimensions="VF RC"):
    groups = dimensions.split()
    return [
        Verdict(
            f"e{i // per_example}", f"r{i}", "c", judge, mode, NAMES[answer],
            error="no answer" if answer == "-" else None, dimension=groups[i % len(groups)],
        )
        for i, answer in enumerate(answers)
    ]  # fmt: skip


def test_hand_worked():
    #                 0123456789
    a, b, truth = table("yyyynnnny-"), table("ynnnynyny" + "y"), table("yyynnynny" + "y")
    result = compare(a, b, truth, {("r3", "c"), ("r4", "c")})
    assert list(result["slices"]) == ["overall", "VF", "RC", CONTRADICTED, NOT_CONTRADICTED] and result["examples"] == 5
    overall = result["slices"]["overall"]
    assert overall["missing"] == 1
    # A right in 0 1 2 4 6 7 8, B right in 0 3 7 8.
    right = overall["right"]
    assert [right[k] for k in ("n", "both", "only_a", "only_b", "neither")] == [9, 3, 4, 1, 1]
    assert (right["rate_a"], right["rate_b"]) == (7 / 9, 4 / 9) and right["difference"] == pytest.approx(-3 / 9)
    assert right["difference_ci"][0] <= -3 / 9 <= right["difference_ci"][1]
    assert right["mcnemar_p"] == pytest.approx(12 / 32)  # five coins, at most one head or at most one tail
    # The reference's no: 3 4 6 7. A says yes in 3, B in 4 and 6.
    false_yes = overall["false_yes"]
    assert [false_yes[k] for k in ("n", "both", "only_a", "only_b", "neither")] == [4, 0, 1, 2, 1]
    assert overall["says_yes"]["both"] == 2 and overall["says_yes"]["only_a"] == 3
    against = result["slices"][CONTRADICTED]["right"]
    assert [against[k] for k in ("n", "both", "only_a", "only_b", "neither")] == [2, 0, 1, 1, 0]
    json.dumps(result, allow_nan=False)


def test_a_reference_that_is_missing_in_one_mode_tells_no_slice():
    a, b, truth = table("yyyynn--"), table("ynynnn-y"), table("ynynynyn")
    contradicted, untold = {("r0", "c")}, {("r1", "c"), ("r2", "c")}
    result = compare(a, b, truth, contradicted, untold=untold)
    assert [result["slices"][name]["right"]["n"] for name in ("overall", CONTRADICTED, NOT_CONTRADICTED)] == [6, 1, 3]
    assert (result["examples"], result["untold"]) == (3, 2)  # of e3 no pair counts
    said = "\n".join(what_it_tells(result, ("image", "text"), True))
    assert "6 pairs come from 3 examples" in said and "Of 2 pairs the reference is missing in one of the modes" in said


def test_without_a_reference_only_what_they_say():
    result = compare(table("yynn"), table("ynny"))
    assert list(result["slices"]["overall"]) == ["missing", "says_yes"]
    assert CONTRADICTED not in result["slices"]
    with pytest.raises(InputError, match="'r3'"):
        compare(table("yynn"), table("ynn"))
    with pytest.raises(InputError, match="gold"):
        compare(table("yynn"), table("ynny"), table("yyn"), names=("a", "b", "gold"))


@pytest.mark.parametrize(("only_a", "only_b"), [(0, 1), (3, 3), (1, 9), (12, 30)])
def test_mcnemar_is_that_of_statsmodels(only_a, only_b):
    other = statsmodels_mcnemar([[5, only_a], [only_b, 7]], exact=True).pvalue
    assert mcnemar(only_a, only_b) == pytest.approx(min(1, other))


def test_no_discordant_pair_has_no_p():
    assert mcnemar(0, 0) is None
    right = compare(table("yy"), table("yy"), table("yy"))["slices"]["overall"]["right"]
    assert right["mcnemar_p"] is None and right["holm_p"] is None and right["difference"] == 0
    assert compare([], [])["slices"]["overall"]["says_yes"]["rate_a"] is None


def test_holm_is_that_of_statsmodels():
    rng = np.random.default_rng(0)
    answers = ["".join("ny"[int(x)] for x in rng.random(200) < p) for p in (0.5, 0.7, 0.6)]
    a, b, truth = (table(text, per_example=4, dimensions="VF RC IF") for text in answers)
    slices = compare(a, b, truth, draws=0)["slices"]
    tables = [slice_["right"] for slice_ in slices.values()]
    expected = multipletests([t["mcnemar_p"] for t in tables], method="holm")[1]
    assert [t["holm_p"] for t in tables] == pytest.approx(list(expected))


def test_intervals_are_over_examples():
    # 40 examples of 25 alike verdicts: the interval is that of 40 coins, far wider than McNemar's 1,000 would have it.
    heads = np.random.default_rng(1).random(40) < 0.5
    a = table("y" * 1000, per_example=25)
    b = table("".join(("n" if x else "y") * 25 for x in heads), per_example=25)
    found = compare(a, b, a)["slices"]["overall"]["right"]
    low, high = found["difference_ci"]
    p = heads.mean()
    assert found["difference"] == pytest.approx(-p)
    assert (high - low) / 2 == pytest.approx(1.96 * (p * (1 - p) / 40) ** 0.5, rel=0.15)


def tells(a, b, truth, contradicted=None, modes=("image", "text")):
    return "\n".join(what_it_tells(compare(a, b, truth, contradicted), modes, truth is not None))


def test_what_it_tells():
    truth = table("yn" * 40)
    assert "not which of them is right" in tells(truth, truth, None)
    worse = table("yn" * 20 + "ny" * 20)
    assert "overall: A is right more often than B, by 0.500" in tells(truth, worse, truth)
    assert "overall: B is right more often than A, by 0.500" in tells(worse, truth, truth)
    slightly = [replace(v, verdict=not v.verdict) if i in (0, 2) else v for i, v in enumerate(truth)]
    assert "overall: no difference is shown (2 pairs set A and B apart)" in tells(truth, slightly, truth)
    alike = tells(truth, truth, truth)
    assert "overall: no difference is shown (0 pairs set A and B apart); how large a one could hide" in alike
    assert "-0.000" not in alike
    assert "are not told apart" in tells(truth, worse, truth)
    assert "are not told apart" not in tells(truth, worse, truth, modes=("image", "image"))


def test_does_hiding_the_image_lower_false_yes():
    truth, fooled = table("n" * 60), table("ny" * 30)
    for a, b, modes, effect in [
        (fooled, truth, ("image", "text"), "it lowers false yes, by -0.500"),
        (truth, fooled, ("image", "text"), "it raises false yes, by +0.500"),
        (truth, fooled, ("text", "image"), "it lowers false yes, by -0.500"),
        (truth, truth, ("image", "text"), "it leaves false yes where it was, as far as these pairs show, by +0.000"),
    ]:
        said = tells(a, b, truth, set(), modes)
        assert f"{effect} [" in said and "Over the 60 no" in said
    assert "cannot be told" in tells(table("yy"), table("yn"), table("yy"), set())  # the reference never says no


@pytest.fixture
def world(tmp_path, items):
    """Four examples of the digits world with their responses, and the oracle's tables in both modes."""
    examples, rollouts = [e for e, _ in items[:4]], [r for _, r in items[:4]]
    write_examples(tmp_path / "e.parquet", examples)
    write_rollouts(tmp_path / "r.parquet", rollouts)
    for mode in ("image", "text"):
        write_verdicts(tmp_path / f"{mode}.jsonl", OracleJudge(mode).judge(items[:4]))
    return tmp_path


def run(capsys, *argv):
    code = main(["compare", *map(str, argv)])
    return code, *capsys.readouterr()


@pytest.mark.slow
def test_one_verifier_with_and_without_the_image(world, assets, capsys, monkeypatch):
    argv = ["--adapter", assets / "verifier", "--examples", world / "e.parquet", "--rollouts", world / "r.parquet"]
    argv += ["--out", world / "out", "--reference", world / "image.jsonl", "--text-reference", world / "text.jsonl"]
    code, out, _ = run(capsys, *argv, "--json")
    result = json.loads(out.splitlines()[-1])
    assert code == 0 and (result["a"]["mode"], result["b"]["mode"]) == ("image", "text")
    assert result["b"]["judge"].endswith("image hidden") and result["a"]["verdicts"] == result["b"]["verdicts"] == 28
    assert result["a"]["verdicts_per_second"] > 0
    # An image of four visual tokens between its two marks: six tokens a response, 6 / 7 of one for each verdict; the
    # system text of image mode is longer too.
    assert result["a"]["tokens_per_verdict"] > result["b"]["tokens_per_verdict"] + 6 / 7
    assert result["slices"]["overall"]["right"]["n"] == 28
    monkeypatch.setattr("claimwise.verifier.judge.load_judge", None)  # the tables are there: nobody judges again
    code, again, _ = run(capsys, *argv, "--json")
    assert code == 0 and json.loads(again) == result
    code, _, err = run(capsys, *argv[:3], world / "e2.parquet", *argv[4:])
    assert code == 2 and "no such file" in err
    write_examples(world / "e2.parquet", [])
    code, _, err = run(capsys, *argv[:3], world / "e2.parquet", "--rollouts", world / "e2.parquet", *argv[6:])
    assert code == 2 and "out holds a different run" in err


def test_two_tables(world, capsys):
    code, out, _ = run(capsys, world / "image.jsonl", world / "text.jsonl", "--reference", world / "image.jsonl")
    assert code == 0 and "not measured" in out and "McNemar p" in out and "right (has the reference's verdict)" in out


def test_bad_input(world, capsys):
    image, text = world / "image.jsonl", world / "text.jsonl"
    for argv, named in [
        ([], "two verdict tables or --adapter"),
        ([image], "1 tables"),
        ([image, text, "--adapter", "x"], "either"),
        (["--adapter", "x"], "--examples"),
        (["--adapter", "x", "y", "z"], "3 verifiers"),
        ([image, text, "--text-reference", text], "--reference"),
        ([image, text, "--reference", text, "--text-reference", image], "in text mode"),
        ([image, text, "--draws", -1], "--draws"),
        ([image, world / "no.jsonl"], "no such file"),
    ]:
        code, out, err = run(capsys, *argv)
        assert (code, out, err.count("\n")) == (2, "", 1) and named in err
