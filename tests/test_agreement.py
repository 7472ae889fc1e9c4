"""Agreement of two verdict tables: hand-worked numbers, scikit-learn, statsmodels, and the command."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from claimwise.eval.agreement import METRICS, agree, ceiling
from claimwise.eval.slices import SLICES, labels_by
from claimwise.scripts.cli import main
from claimwise.verifier.errors import InputError
from claimwise.verifier.schema import Criterion, Example, Rollout, Verdict
from claimwise.verifier.tables import write_examples, write_rollouts, write_verdicts
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
    # Both have one in rows 0, 1 and 4, their ends 0, 5 and 8 characters apart. AC1: q = 1/2, so p_e = 1/2 too.
    numbers = {
        "n": 8,
        "missing_a": 1,
        "missing_b": 2,
        "agreement": 0.75,
        "balanced_accuracy": 0.75,
        "kappa": 0.5,
        "ac1": 0.5,
        "false_yes": 0.25,
        "false_no": 0.25,
        "f1_yes": 0.75,
        "f1_no": 0.75,
        "span_exact": 0.25,
        "span_iou": (1 + 1 / 3) / 4,
        "span_end_chars": 13 / 3,
    }
    assert {name: result["overall"][name] for name in numbers} == pytest.approx(numbers)
    nothing = {"always_a": None, "always_b": None, "auroc": None, "ece": None, "span_end_tokens": None}
    assert plain(result["overall"]).items() >= nothing.items()
    no_p = "the other table gives no P(yes)"
    assert result["overall"]["undefined"] == {"auroc": no_p, "ece": no_p, "span_end_tokens": "no tokenizer was given"}
    # VF is rows 0 2 4 6: yynn against yynn. RC is rows 1 3 5 7: yynn against ynny.
    assert list(result["by_dimension"]) == ["VF", "RC"]
    vf, rc = result["by_dimension"]["VF"], result["by_dimension"]["RC"]
    assert (vf["n"], vf["missing_a"], vf["missing_b"]) == (4, 1, 1) and (vf["agreement"], vf["kappa"]) == (1, 1)
    assert (rc["n"], rc["missing_b"], rc["agreement"], rc["kappa"]) == (4, 1, 0.5, 0)
    assert (rc["false_yes"], rc["false_no"]) == (0.5, 0.5)
    assert (vf["span_exact"], vf["span_iou"]) == (0.5, 0.5)
    counts = {"n", "missing_a", "missing_b", "always_a", "always_b", "undefined"}
    assert set(result["overall"]) == {*counts, *METRICS, *(f"{m}_ci" for m in METRICS)}


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
        assert (result["overall"][name] is None) == (name in result["overall"]["undefined"])
    for side, answers in (("always_a", a), ("always_b", b)):
        said = set() if "n" in expected else set(answers)  # with no pair known, a judge is not constant
        assert result["overall"][side] == {"y": "yes", "n": "no"}.get("".join(said))


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
    alone = agree(a[:2], b[:2])["overall"]
    assert alone["agreement_ci"] is None and alone["undefined"]["agreement_ci"] == "it rests on a single example"
    assert "agreement_ci" not in agree(a[:2], b[:2], draws=0)["overall"]["undefined"]  # nobody asked for it


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
    for one, other in ((a, [*a, a[0]]), ([a[0], a[0]], a[:2]), (a[:2], [a[0], a[0]])):
        with pytest.raises(InputError, match="twice"):
            agree(one, other)
    with pytest.raises(InputError, match="rollout 'r1' belongs to example 'e0' in the reference table but to 'e1'"):
        agree(a[:2], table("yn", per_example=1))
    with pytest.raises(InputError, match="draws"):
        agree(a, a, draws=-1)


def test_probabilities_and_distances_in_tokens():
    a = table("yynn", {0: (0, 10), 1: (0, 4), 2: (0, 4)}, per_example=1)
    b = [
        replace(v, p_yes=p, span_start=s and s[0], span_end=s and s[1])
        for v, p, s in zip(
            table("yyyn", per_example=1), (0.9, 0.6, 0.7, 0.2), ((0, 4), (0, 4), (4, 7), None), strict=True
        )
    ]
    offsets = {f"r{i}": [[0, 2], [2, 4], [4, 4], [4, 7], [7, 10]] for i in range(4)}
    found = agree(a, b, token_offsets=offsets)["overall"]
    # yes at .9 and .6, no at .7 and .2: three of four pairs right. Ends: token 4 against 1, equal, 1 against 3.
    assert found["auroc"] == 0.75 and found["ece"] == pytest.approx((0.1 + 0.4 + 0.7 + 0.2) / 4)
    assert found["span_end_tokens"] == pytest.approx((3 + 0 + 2) / 3) and found["span_end_chars"] == (6 + 0 + 3) / 3
    with pytest.raises(InputError, match="no rollout 'r0'"):
        agree(a, b, token_offsets={})


def small_world():
    criteria = (Criterion("c", "says 3", dimension="VF", label="ESSENTIAL"),)
    examples = [Example(f"e{i}", "What?", criteria, source="ab"[i], difficulty="hard") for i in range(2)]
    texts = ("a" * 10, "b" * 20, "c" * 30, "d" * 40)
    edits = (None, "number", "attack echo at c", "attack echo at c1")
    rollouts = [
        Rollout(f"r{i}", f"e{i // 2}", text, "pq"[i % 2], edit=edit)
        for i, (text, edit) in enumerate(zip(texts, edits, strict=True))
    ]
    return examples, rollouts


def test_breakdowns():
    result = agree(table("ynyn"), table("yyyn"), by=labels_by(SLICES, *small_world()))
    n = {family: {group: f["n"] for group, f in groups.items()} for family, groups in result.items() if "by_" in family}
    assert n.pop("by_dimension") == {"VF": 2, "RC": 2}
    assert n == {
        "by_label": {"ESSENTIAL": 4},
        "by_source": {"a": 2, "b": 2},
        "by_difficulty": {"hard": 4},
        # quartiles of 10, 20, 30 and 40 are 17.5, 25, 32.5 and 40
        "by_length": {"0-17 characters": 1, "18-25 characters": 1, "26-32 characters": 1, "33-40 characters": 1},
        "by_policy": {"p": 2, "q": 2},
        "by_slice": {"as sampled": 1, "attack echo": 2, "number": 1},
    }
    assert result["by_policy"]["q"]["agreement"] == 0.5 and result["by_slice"]["number"]["false_yes"] == 1


def test_an_interval_needs_two_examples_of_each_class():
    # A says yes in e0 only: no draw tells how P(yes) would rank another example's.
    a = table("yynnnn")
    b = [replace(v, p_yes=p) for v, p in zip(table("ynnnny"), (0.9, 0.4, 0.3, 0.1, 0.2, 0.6), strict=True)]
    found = agree(a, b)["overall"]
    assert found["auroc"] == 7 / 8
    for name in ("auroc", "balanced_accuracy", "false_no"):
        assert found[f"{name}_ci"] is None and found["undefined"][f"{name}_ci"] == "it rests on a single example"
    assert found["ece_ci"] is not None and found["false_yes_ci"] is not None


def test_breakdowns_need_their_tables():
    examples, rollouts = small_world()
    for name, tables, message in [
        ("colour", (examples, rollouts), "no breakdown by 'colour'"),
        ("label", (None, rollouts), "needs the examples table; give --examples"),
        ("policy", (examples, None), "needs the rollouts table; give --rollouts"),
    ]:
        with pytest.raises(InputError, match=message):
            labels_by([name], *tables)
    with pytest.raises(InputError, match="the rollouts table has no rollout 'r3'"):
        agree(table("ynyn"), table("yyyn"), by=labels_by(["policy"], examples, rollouts[:3]))
    elsewhere = [replace(r, example_id="e1") for r in rollouts]
    with pytest.raises(InputError, match="'r0' answers example 'e0', the rollouts table that it answers 'e1'"):
        agree(table("ynyn"), table("yyyn"), by=labels_by(["length"], examples, elsewhere))


def test_the_ceiling_may_cover_a_part():
    a = table("ynynynyn" * 5)
    again = [replace(v, verdict=not v.verdict) if i % 10 == 0 else v for i, v in enumerate(a[:20])]
    found = ceiling(a, again, names=("a", "again"), draws=0)
    assert found["overall"]["n"] == 20 and found["overall"]["agreement"] == 0.9
    # A teacher who says the likelier answer with chance q agrees with itself q^2 + (1 - q)^2 = .9 of the time.
    q = found["most_agreement"]
    assert q**2 + (1 - q) ** 2 == pytest.approx(0.9) and q > 0.9
    other_mode = [replace(v, mode="image") for v in again]
    assert ceiling(a, other_mode, names=("a", "again"), draws=0)["most_agreement"] is None
    with pytest.raises(InputError, match=r"'r9', criterion 'c' is in again \(1 rows\) but not in a"):
        ceiling(a[:2], a[9:10], names=("a", "again"), draws=0)


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
    assert code == 0 and json.loads(out) == {**agree(a, b, draws=50, seed=3), "adversarial": None}
    _, out, _ = run(capsys, *paths)
    head, overall, vf, rc, *more = out.splitlines()
    assert "missing A  missing B" in head and head.endswith("span iou")
    assert overall.startswith("overall  8") and "0.750 [" in overall and overall.rstrip().endswith("0.000")
    assert vf.startswith("VF") and rc.startswith("RC") and rc.endswith("-")
    assert "balanced accuracy" in more[1] and more[2].startswith("overall  0.750 [")
    assert "overall, VF, RC: no auroc, ece: the other table gives no P(yes)" in more
    assert any(line.startswith("adversarial slice: not measured; give --attacks") for line in more)


def test_command_takes_dimensions_from_examples(tmp_path, capsys):
    rows = table("ynyn", dimensions="")
    write_verdicts(tmp_path / "v.jsonl", rows)
    criterion = Criterion("c", "says 3", dimension="RC", label="PITFALL")
    write_examples(tmp_path / "e.jsonl", [Example(f"e{i}", "What?", (criterion,)) for i in range(2)])
    _, out, _ = run(capsys, tmp_path / "v.jsonl", tmp_path / "v.jsonl", "--examples", tmp_path / "e.jsonl", "--json")
    assert list(json.loads(out)["by_dimension"]) == ["PITFALL"]


def test_command_with_ceiling_and_breakdowns(tmp_path, capsys):
    examples, rollouts = small_world()
    write_examples(tmp_path / "e.jsonl", examples)
    write_rollouts(tmp_path / "r.jsonl", rollouts)
    for name, answers in (("a", "ynyn"), ("b", "yyyn"), ("again", "ynny")):
        write_verdicts(tmp_path / f"{name}.jsonl", table(answers, dimensions=""))
    more = "--by", "all", "--examples", tmp_path / "e.jsonl", "--rollouts", tmp_path / "r.jsonl"
    more = *more, "--ceiling", tmp_path / "again.jsonl"
    code, out, _ = run(capsys, tmp_path / "a.jsonl", tmp_path / "b.jsonl", *more, "--json")
    result = json.loads(out)
    assert code == 0 and {f"by_{name}" for name in SLICES} < result.keys()
    (top,) = result["ceiling"]
    assert (top["judge"], top["mode"], top["overall"]["agreement"]) == (["j"], ["text"], 0.5)
    assert top["by_source"]["a"]["agreement"] == 1 and top["by_source"]["b"]["agreement"] == 0
    _, out, _ = run(capsys, tmp_path / "a.jsonl", tmp_path / "b.jsonl", *more)
    lines = out.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("source: b"))
    assert lines[at + 1].startswith("  ceiling") and "0.000" in lines[at + 1]
    assert any(line.startswith("ceiling 1: ") and "4 of 4 pairs" in line for line in lines)


def test_quarters_of_length_are_those_of_the_responses_judged(tmp_path, capsys):
    examples, rollouts = small_world()
    write_examples(tmp_path / "e.jsonl", examples)
    unjudged = [Rollout(f"more{i}", "e0", "z" * 1000, "p") for i in range(50)]
    write_rollouts(tmp_path / "r.jsonl", [*unjudged, *rollouts])
    write_verdicts(tmp_path / "a.jsonl", table("ynyn"))
    argv = tmp_path / "a.jsonl", tmp_path / "a.jsonl", "--by", "length", "--rollouts", tmp_path / "r.jsonl", "--json"
    _, out, _ = run(capsys, *argv)
    assert [group["n"] for group in json.loads(out)["by_length"].values()] == [1, 1, 1, 1]


def test_what_was_asked_again_is_counted_whoever_answered(tmp_path, capsys):
    for name, answers in (("a", "ynyn"), ("b", "-y-n"), ("again", "yn--")):
        write_verdicts(tmp_path / f"{name}.jsonl", table(answers))
    write_verdicts(tmp_path / "none.jsonl", [])
    argv = tmp_path / "a.jsonl", tmp_path / "b.jsonl", "--ceiling", tmp_path / "again.jsonl"
    _, out, _ = run(capsys, *argv, "--ceiling", tmp_path / "none.jsonl")
    assert "again.jsonl, j in text mode, 4 of 4 pairs asked again" in out  # though B has verdicts on two of them
    assert "none.jsonl, empty, 0 of 4 pairs asked again" in out


def test_names_of_any_kind_keep_to_their_line(tmp_path, capsys):
    examples, rollouts = small_world()
    odd = "two\nlines\u2028three \x1b[31m"
    write_examples(tmp_path / "e.jsonl", [replace(e, source=f"{odd} {e.source}") for e in examples])
    write_rollouts(tmp_path / "r.jsonl", [replace(r, policy=odd) for r in rollouts])
    write_verdicts(tmp_path / "a.jsonl", table("ynyn", judge=odd, dimensions=""))
    argv = [tmp_path / "a.jsonl"] * 2
    more = "--by", "all", "--examples", tmp_path / "e.jsonl", "--rollouts", tmp_path / "r.jsonl"
    _, out, _ = run(capsys, *argv, *more, "--ceiling", tmp_path / "a.jsonl")
    assert "source: two lines three  [31m a  " in out and "\x1b" not in out and "\u2028" not in out
    assert not any(line.startswith("lines") for line in out.splitlines())


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
    for flags, named in [
        (("--draws", -1), "draws"),
        (("--seed", "few"), "--seed: it is 'few'; it must be a whole number"),
        (("--by", "colour"), "'colour' is not one of"),
        (("--by", "source"), "--examples"),
        (("--tokenizer", "x"), "--rollouts"),
        (("--ceiling", tmp_path / "b.jsonl"), "'r2'"),
    ]:
        code, out, err = run(capsys, tmp_path / "a.jsonl", tmp_path / "a.jsonl", *flags)
        assert (code, out, err.count("\n")) == (2, "", 1) and named in err
