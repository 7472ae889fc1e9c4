"""Agreement of two verdict tables: hand-worked numbers, scikit-learn, statsmodels, and the command."""

import json
import math
import time

import numpy as np
import pytest
from claimwise.eval.agreement import METRICS, agree, span_iou
from claimwise.scripts.cli import main
from claimwise.verifier.errors import InputError
from claimwise.verifier.schema import Criterion, Example, Verdict
from claimwise.verifier.tables import write_examples, write_verdicts
from sklearn.metrics import cohen_kappa_score
from statsmodels.stats.inter_rater import cohens_kappa

NAMES = {"y": True, "n": False, "-": None}


def table(answers, spans=None, per_example=2, dimensions="VF RC", judge="j"):
    """Verdicts from a string of y, n and - (missing), two rollouts of one criterion to an example."""
    rows = []
    for i, answer in enumerate(answers):
        span = (spans or {}).get(i, (None, None))
        error = "no answer" if answer == "-" else None
        group = dimensions.split()[i % len(dimensions.split())] if dimensions else None
        key = f"e{i // per_example}", f"r{i}", "c", judge, "text", NAMES[answer]
        rows.append(Verdict(*key, None, *span, error=error, dimension=group))
    return rows


def plain(figures):
    return {name: value for name, value in figures.items() if not name.endswith("_ci")}


def test_hand_worked():
    #           0123456789
    a = table("yyyynnnn-y", {0: (0, 10), 1: (10, 20), 4: (0, 4), 5: (3, 9), 8: (0, 5), 9: (0, 5)})
    b = table("yyynnnny--", {0: (0, 10), 1: (15, 25), 4: (9, 12), 6: (0, 3), 8: (0, 5), 9: (0, 5)}, judge="k")
    result = agree(a, b)
    # Known on both sides: 0-7. Both yes 3, yes/no 1 (row 3), no/yes 1 (row 7), both no 3. A and B half yes each:
    # expected .5, observed .75, kappa .5. Spans of A among them: rows 0, 1, 4, 5 with IoU 1, 5/15, 0, 0 (none in B).
    assert plain(result["overall"]) == pytest.approx(
        {
            "n": 8,
            "missing_a": 1,
            "missing_b": 2,
            "agreement": 0.75,
            "kappa": 0.5,
            "false_yes": 0.25,
            "false_no": 0.25,
            "span_exact": 0.25,
            "span_iou": (1 + 1 / 3) / 4,
        }
    )
    # VF is rows 0 2 4 6: yynn against yynn. RC is rows 1 3 5 7: yynn against ynny.
    assert list(result["by_dimension"]) == ["VF", "RC"]
    vf, rc = result["by_dimension"]["VF"], result["by_dimension"]["RC"]
    assert (vf["n"], vf["missing_a"], vf["missing_b"]) == (4, 1, 1) and (vf["agreement"], vf["kappa"]) == (1, 1)
    assert (rc["n"], rc["missing_b"], rc["agreement"], rc["kappa"]) == (4, 1, 0.5, 0)
    assert (rc["false_yes"], rc["false_no"]) == (0.5, 0.5)
    assert (vf["span_exact"], vf["span_iou"]) == (0.5, 0.5)
    assert set(result["overall"]) == {"n", "missing_a", "missing_b", *METRICS, *(f"{m}_ci" for m in METRICS)}


def test_kappa_is_that_of_others():
    rng = np.random.default_rng(3)
    a = rng.random(500) < 0.3
    b = np.where(rng.random(500) < 0.15, ~a, a)
    figures = agree(table(["ny"[int(x)] for x in a]), table(["ny"[int(x)] for x in b]))["overall"]
    matrix = [[(~a & ~b).sum(), (~a & b).sum()], [(a & ~b).sum(), (a & b).sum()]]
    assert figures["kappa"] == pytest.approx(cohen_kappa_score(a, b))
    assert figures["kappa"] == pytest.approx(cohens_kappa(np.array(matrix)).kappa)
    assert figures["false_yes"] == pytest.approx((~a & b).sum() / (~a).sum())


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        # Alike and constant: kappa is 0/0, and there is no "no" of A to get wrong.
        ("yyyy", "yyyy", {"agreement": 1, "kappa": None, "false_yes": None, "false_no": 0}),
        ("nnnn", "nnnn", {"agreement": 1, "kappa": None, "false_yes": 0, "false_no": None}),
        # Only one constant: observed equals expected.
        ("yyyy", "yyny", {"agreement": 0.75, "kappa": 0, "false_yes": None, "false_no": 0.25}),
        ("yyyy", "nnnn", {"agreement": 0, "kappa": 0, "false_yes": None, "false_no": 1}),
        ("yn", "ny", {"agreement": 0, "kappa": -1, "false_yes": 1, "false_no": 1}),
        ("y-y-", "-y-y", {"n": 0, "agreement": None, "kappa": None, "missing_a": 2, "missing_b": 2}),
        ("", "", {"n": 0, "agreement": None, "kappa": None, "span_iou": None}),
    ],
)
def test_without_a_basis_null_and_never_nan(a, b, expected):
    result = agree(table(a), table(b))
    assert {name: result["overall"][name] for name in expected} == expected
    json.dumps(result, allow_nan=False)
    for name in METRICS:
        assert (result["overall"][f"{name}_ci"] is None) >= (result["overall"][name] is None)


@pytest.mark.parametrize(
    ("a", "b", "iou"),
    [
        ((0, 10), (0, 10), 1),
        ((0, 10), (5, 15), 5 / 15),
        ((0, 10), (2, 4), 0.2),
        ((0, 10), (10, 20), 0),
        ((0, 10), None, 0),
        ((3, 3), (3, 3), 1),
        ((3, 3), (3, 4), 0),
        ((3, 3), (4, 4), 0),
    ],
)
def test_span_iou(a, b, iou):
    assert span_iou(a, b) == pytest.approx(iou)


def test_bootstrap_is_over_examples():
    # 40 examples of 25 verdicts each, all right or all wrong: the interval is that of 40 coins, not of 1,000.
    right = np.random.default_rng(0).random(40) < 0.5
    b = "".join(("y" if x else "n") * 25 for x in right)
    figures = agree(table("y" * 1000, per_example=25), table(b, per_example=25), draws=4000)["overall"]
    low, high = figures["agreement_ci"]
    p = right.mean()
    assert (high - low) / 2 == pytest.approx(1.96 * math.sqrt(p * (1 - p) / 40), rel=0.1)
    assert low < figures["agreement"] < high
    assert figures["kappa_ci"] is not None and figures["false_yes_ci"] is None


def test_bootstrap_is_that_of_a_plain_loop():
    rng = np.random.default_rng(5)
    a, b = (table(["-ny"[x] for x in rng.integers(0, 3, 60)], per_example=3) for _ in range(2))
    draws = np.random.default_rng(7)
    kappas = []
    for _ in range(200):
        picked = [k for e in draws.integers(20, size=20) for k in range(3 * e, 3 * e + 3)]
        known = [(a[k].verdict, b[k].verdict) for k in picked if None not in (a[k].verdict, b[k].verdict)]
        kappas.append(cohen_kappa_score(*zip(*known, strict=True)))
    assert agree(a, b, draws=200, seed=7)["overall"]["kappa_ci"] == pytest.approx(np.quantile(kappas, [0.025, 0.975]))


def test_same_seed_same_intervals_and_one_example_has_none():
    a, b = table("ynynynynyy" * 3), table("yynnyynnny" * 3)
    assert agree(a, b, seed=1) == agree(a, b, seed=1) != agree(a, b, seed=2)
    assert agree(a[:2], b[:2])["overall"]["agreement_ci"] is None


def test_order_of_rows_does_not_matter():
    a, b = table("ynyn--yn"), table("yynn-yny")
    assert agree(a, b) == agree(a, b[::-1])


def test_dimension_from_either_table_or_from_examples():
    a, b = table("ynyn", dimensions=""), table("ynyy", dimensions="")
    assert agree(a, b)["by_dimension"] == {} and agree(a, b)["overall"]["n"] == 4
    assert agree(a, table("ynyy", dimensions="IF"))["by_dimension"]["IF"]["n"] == 4
    given = agree(table("ynyn"), b, dimensions={("e0", "c"): "PITFALL", ("e1", "c"): None})["by_dimension"]
    assert list(given) == ["PITFALL"] and given["PITFALL"]["n"] == 2
    with pytest.raises(InputError, match="no criterion 'c' of example 'e1'"):
        agree(a, b, dimensions={("e0", "c"): "VF"})


def test_other_sets_are_refused():
    a = table("ynyn")
    with pytest.raises(InputError, match=r"'r2', criterion 'c' is in the reference table \(4 rows\) but not in"):
        agree(a, a[:2])
    with pytest.raises(InputError, match=r"'r1', criterion 'c' is in the other table .* but not in the reference"):
        agree(a[:1], a)
    with pytest.raises(InputError, match="twice"):
        agree(a, [*a, a[0]])
    with pytest.raises(InputError, match="rollout 'r1' belongs to example 'e0' in the reference table but to 'e1'"):
        agree(a[:2], table("yn", per_example=1))
    with pytest.raises(InputError, match="draws"):
        agree(a, a, draws=-1)


def test_a_hundred_thousand_verdicts():
    rng = np.random.default_rng(0)
    a, b = (table(["ny"[x] for x in rng.integers(0, 2, 100_000)], per_example=20) for _ in range(2))
    start = time.monotonic()
    agree(a, b)
    assert time.monotonic() - start < 15  # about 1 s on an idle core; a loop over verdicts would take minutes


def run(capsys, *argv):
    code = main(["agree", *map(str, argv)])
    out, err = capsys.readouterr()
    return code, out, err


def test_command(tmp_path, capsys):
    a, b = table("yyyynnnn-y", {0: (0, 10)}), table("yyynnnny--", judge="k")
    write_verdicts(tmp_path / "a.jsonl", a)
    write_verdicts(tmp_path / "b.parquet", b)
    paths = tmp_path / "a.jsonl", tmp_path / "b.parquet"
    code, out, _ = run(capsys, *paths, "--json", "--draws", 50, "--seed", 3)
    assert code == 0 and json.loads(out) == agree(a, b, draws=50, seed=3)
    _, out, _ = run(capsys, *paths)
    head, overall, vf, rc = out.splitlines()
    assert "missing A  missing B" in head and head.endswith("span iou")
    assert overall.startswith("overall  8") and "0.750 [" in overall and overall.rstrip().endswith("0.000")
    assert vf.startswith("VF") and rc.startswith("RC") and rc.endswith("-")


def test_command_takes_dimensions_from_examples(tmp_path, capsys):
    rows = table("ynyn", dimensions="")
    write_verdicts(tmp_path / "v.jsonl", rows)
    criterion = Criterion("c", "says 3", dimension="RC", label="PITFALL")
    write_examples(tmp_path / "e.jsonl", [Example(f"e{i}", "What?", (criterion,)) for i in range(2)])
    _, out, _ = run(capsys, tmp_path / "v.jsonl", tmp_path / "v.jsonl", "--examples", tmp_path / "e.jsonl", "--json")
    assert list(json.loads(out)["by_dimension"]) == ["PITFALL"]


def test_command_bad_input(tmp_path, capsys):
    write_verdicts(tmp_path / "a.jsonl", table("yn"))
    write_verdicts(tmp_path / "b.jsonl", table("yny"))
    (tmp_path / "new.jsonl").write_text('{"schema_version": 2}\n')
    for other, named in [
        ("b.jsonl", "'r2'"),
        ("no.jsonl", "no such file"),
        ("new.jsonl", "version 1"),
    ]:
        code, out, err = run(capsys, tmp_path / "a.jsonl", tmp_path / other)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert named in err and str(tmp_path / other) in err
    assert run(capsys, tmp_path / "a.jsonl", tmp_path / "a.jsonl", "--draws", -1)[0] == 2
