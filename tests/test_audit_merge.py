"""People's exports merged: alpha against Krippendorff's own examples, weighted agreement by hand and against the truth of
everything that could have been drawn, tables, quality, and bad exports."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from auditing import sample_flags, tables, write_tables
from claimwise.eval.alpha import alpha, columns
from claimwise.eval.audit_exports import Answer, Asked, Person, slug_of
from claimwise.eval.audit_merge import among_people, majority, quality_of, summary_of, table_of, with_judge
from claimwise.eval.audit_sample import draw, population
from claimwise.scripts.cli import main
from claimwise.verifier.errors import InputError
from claimwise.verifier.schema import Verdict
from claimwise.verifier.tables import read_verdicts, write_examples, write_rollouts, write_verdicts
from hypothesis import given
from hypothesis import strategies as st


def alpha_of(*rows):
    """Of the values of each person, "." being missing."""
    values = sorted({value for row in rows for value in row} - {"."})
    counts = np.array([[sum(v == value for v in unit) for value in values] for unit in zip(*rows, strict=True)])
    numerator, denominator = alpha(columns(counts).sum(0))
    return numerator / denominator


@pytest.mark.parametrize(
    ("rows", "published"),
    [  # Krippendorff 2011, "Computing Krippendorff's Alpha-Reliability", sections A, B and C
        (("0100000010", "1110010000"), 0.095),
        (("aabbdcccedda", "babbbccceddd"), 0.692),
        (("123321412...", "1233224125.3", ".3332342251.", "12332441251."), 0.743),
    ],
)
def test_alpha_as_published(rows, published):
    assert alpha_of(*rows) == pytest.approx(published, abs=5e-4)


@given(st.lists(st.lists(st.sampled_from("yn."), min_size=3, max_size=3), min_size=2, max_size=20))
def test_alpha_is_one_less_observed_over_expected(units):
    """Pair by pair, from the definition: each unit's ordered pairs of values count 1 / (m - 1)."""
    known = [[v for v in unit if v != "."] for unit in units]
    known = [unit for unit in known if len(unit) > 1]
    values = [value for unit in known for value in unit]
    if len(set(values)) < 2:
        return
    observed = sum(
        (u[i] != u[j]) / (len(u) - 1) for u in known for i in range(len(u)) for j in range(len(u)) if i != j
    ) / len(values)
    n = len(values)
    expected = sum(values[i] != values[j] for i in range(n) for j in range(n)) / (n * (n - 1))
    assert alpha_of(*zip(*units, strict=True)) == pytest.approx(1 - observed / expected)


# Four pairs of two examples, two of them with four times the weight of the others.
ASKED = [
    Asked("p1", "e1", "r1", "c1", "VF", 4.0),
    Asked("p2", "e1", "r1", "c2", "RC", 1.0),
    Asked("p3", "e2", "r2", "c1", "VF", 4.0),
    Asked("p4", "e2", "r2", "c2", "RC", 1.0),
]


def person(name, *verdicts, quality=None):
    """One answer per pair; "y>n": yes before the marks, no after; ">y": only after them."""
    said = {"y": "yes", "n": "no", "?": "cannot tell", "": None}
    answers = {}
    for one, verdict in zip(ASKED, verdicts, strict=True):
        blind, _, last = verdict.rpartition(">")
        rated = (quality or {}).get(one.id, {})
        if verdict or rated:
            answers[one.id] = Answer(said[last], said[blind if ">" in verdict else last], None, rated)
    return Person(name, slug_of(name), answers)


def judge(*verdicts):
    """ "y", "n" or "?", a verdict that is missing, of each pair."""
    said = [(one, {"y": True, "n": False, "?": None}[v]) for one, v in zip(ASKED, verdicts, strict=True)]
    return [
        Verdict(one.example_id, one.rollout_id, one.criterion_id, "j", "image", v, error="?" if v is None else None)
        for one, v in said
    ]


def test_tables_and_majority():
    people = [person("A", "y", "?", "n", ""), person("B", "y>n", "n", "y", "?"), person("C", "n", "n", ">y", "")]
    rows = [table_of(one, ASKED) for one in people]
    assert [[v.verdict for v in row] for row in rows] == [
        [True, None, False, None],
        [True, False, True, None],
        [False, False, True, None],
    ]
    assert [v.error for v in rows[0]] == [None, "cannot tell", None, "not answered"]
    most = majority(rows, ASKED)
    assert [v.verdict for v in most] == [True, False, True, None]
    assert most[3].error == "nobody could tell" and (most[0].judge, most[0].dimension) == ("people", "VF")
    assert majority(rows[:2], ASKED)[2].error == "a tie, 1 to 1"
    assert majority([rows[0], rows[2]], ASKED)[3].error == "not answered"
    counts = {"answered": 4, "cannot_tell": 1, "unanswered": 0, "hinted": 0, "changed": 1}
    assert summary_of(people[1], ASKED) == {"name": "B", **counts}
    assert summary_of(people[2], ASKED)["hinted"] == 1


def test_alpha_among_people_raw_and_weighted():
    """Two people, alike on p1 and p2, unlike on p3 and p4: yes 4, no 4 of 8; O = 2 (1 + 1) = 4.
    Raw: 1 - 7 * 4 / (64 - 32) = 0.125. Weights 1.6, 0.4, 1.6, 0.4: O = 2 (1.6 + 0.4) = 4, yes 2 * 1.6 + 1.6 + 0.4 = 5.2,
    no 2.8: 1 - 7 * 4 / (64 - 27.04 - 7.84) = 1 - 28 / 29.12."""
    people = [person("A", "y", "n", "y", "y"), person("B", "y", "n", "n", "n")]
    found = among_people([table_of(one, ASKED) for one in people], ASKED, draws=200)
    assert found["raw"]["overall"]["alpha"] == pytest.approx(0.125)
    assert found["weighted"]["overall"]["alpha"] == pytest.approx(1 - 28 / 29.12)
    assert found["raw"]["overall"]["pairs"] == 4
    low, high = found["raw"]["overall"]["alpha_ci"]
    assert low <= 0.125 <= high <= 1
    # one example of the two, drawn twice: all alike (1), or all unlike: yes 4, no 4, O = 8: 1 - 7 * 8 / 32
    assert (low, high) == (pytest.approx(-0.75), pytest.approx(1))
    rc = found["raw"]["by_dimension"]["RC"]  # n n and y n: yes 1, no 3, O = 2: 1 - 3 * 2 / (16 - 10)
    assert rc["alpha"] == pytest.approx(0.0)


def test_alpha_without_a_basis():
    alone = among_people([table_of(person("A", "y", "n", "y", "y"), ASKED)], ASKED)
    assert alone["raw"]["overall"]["alpha"] is None
    assert alone["raw"]["overall"]["undefined"] == "no pair has a verdict of two people"
    alike = among_people([table_of(person(name, "y", "y", "y", "y"), ASKED) for name in "AB"], ASKED)
    assert alike["weighted"]["overall"]["undefined"] == "all answers are the same"


def test_weighted_agreement_by_hand():
    """People y n y y, judge y n n y: weights 4 1 4 1. Agreement raw 3/4, weighted 6/10; false no raw 1/3, weighted 4/9.
    Kappa weighted: p_e = .9 * .5 + .1 * .5 = .5, (.6 - .5) / .5 = .2."""
    found = with_judge(table_of(person("A", "y", "n", "y", "y"), ASKED), judge(*"ynny"), ASKED, "j.jsonl", 100)
    raw, weighted = found["raw"]["overall"], found["weighted"]["overall"]
    assert (raw["agreement"], weighted["agreement"]) == (0.75, pytest.approx(0.6))
    assert (raw["false_no"], weighted["false_no"]) == (pytest.approx(1 / 3), pytest.approx(4 / 9))
    assert weighted["kappa"] == pytest.approx(0.2)
    assert weighted["effective_n"] == pytest.approx(100 / 34)
    assert weighted["agreement_ci"] == [pytest.approx(0.2), pytest.approx(1.0)]  # e2 twice, e1 twice
    assert found["weighted"]["by_dimension"]["VF"]["agreement"] == 0.5
    assert weighted["false_yes_ci"] is None  # it rests on one example
    assert found["weighted"]["by_dimension"]["VF"]["undefined"]["false_yes"] == "the reference never says no"


def test_missing_verdicts_are_counted_and_not_scored():
    found = with_judge(table_of(person("A", "y", "?", "y", ""), ASKED), judge(*"yn?y"), ASKED, "j.jsonl", 0)
    overall = found["raw"]["overall"]
    assert (overall["n"], overall["missing_a"], overall["missing_b"]) == (1, 2, 1)
    assert (found["weighted"]["overall"]["n"], found["weighted"]["overall"]["agreement"]) == (1, 1.0)
    nothing = with_judge(table_of(person("A", "", "", "", ""), ASKED), judge(*"ynyy"), ASKED, "j.jsonl", 10)
    assert nothing["weighted"]["overall"]["undefined"]["agreement"] == "no verdict is known on both sides"
    with pytest.raises(InputError, match=r"j\.jsonl has no verdict on 1 of the 4 pairs, the first being rollout 'r2'"):
        with_judge(table_of(person("A", "y", "n", "y", "y"), ASKED), judge(*"ynyy")[:3], ASKED, "j.jsonl")


def test_weights_undo_the_sampling():
    """People are judge A, and judge B is wrong once in 48: over many draws of 10 the weighted disagreement is 1 in 46 of
    the known pairs, while the raw one is several times that, for the rare stratum is drawn on purpose."""
    examples, rollouts, a, b = tables()
    everything, *_ = population(examples, rollouts, {"A": a, "B": b})
    people, other = {v.key: v for v in a}, {v.key: v for v in b}
    raw, unlike, of = [], [], []
    for seed in range(1500):
        for one in (drawn := draw(everything, 10, seed)):
            key = one.pair.rollout.rollout_id, one.pair.criterion.id
            if people[key].verdict is not None:
                differ = people[key].verdict != other[key].verdict
                unlike.append(one.weight * differ)
                of.append(one.weight)
                raw.append(differ)
        assert len(drawn) == 10
    truth = np.mean([people[k].verdict != other[k].verdict for k in people if people[k].verdict is not None])
    assert sum(unlike) / sum(of) == pytest.approx(truth, rel=0.1)
    assert np.mean(raw) > 1.5 * truth


def test_quality():
    good, bad = {"true": "yes", "redundant": "no"}, {"true": "no", "redundant": "yes", "atomic": "yes"}
    people = [
        person("A", "y", "", "", "", quality={"p1": good, "p2": bad}),
        person("B", "", "", "", "", quality={"p1": bad, "p2": {"true": "cannot tell"}}),
        person("C", "", "", "", "", quality={"p1": good}),
    ]
    found = quality_of(people, ASKED)
    assert found["criteria"] == 2
    assert found["answers"]["true"] == {"yes": 2, "no": 2, "cannot tell": 1}
    assert found["answers"]["redundant"] == {"no": 2, "yes": 2}
    # p1: two of three find it good; p2: one says it is false, the other cannot tell
    assert found["faulty"] == [{"example_id": "e1", "criterion_id": "c2", "faults": ["true", "redundant"]}]


@pytest.fixture
def folder(tmp_path, capsys):
    assert main(sample_flags(write_tables(tmp_path), tmp_path / "page.html")) == 0
    capsys.readouterr()
    return tmp_path


def export(folder, name, change=None, file=None):
    """An export in which everybody says yes; `change` edits it."""
    rows = [json.loads(line) for line in (folder / "page.key.jsonl").read_text().split("\n") if line]
    quality = {"true": "yes"}
    answer = {"verdict": "yes", "blind": "yes", "marked": False, "at": "2026-11-29T10:00:00Z", "quality": quality}
    found = {"format": "claimwise-audit", "version": 1, "page": rows[0]["page"], "annotator": name}
    found["answers"] = [{"id": row["id"], **answer} for row in rows]
    if change:
        change(found)
    path = folder / f"{file or slug_of(name)}.json"
    path.write_text(json.dumps(found))
    return path


def merge(folder, *exports):
    return main(["audit", "merge", f"{folder}/page.key.jsonl", *map(str, exports), "--out", f"{folder}/people.jsonl"])


def test_command(folder, capsys):
    paths = [export(folder, name) for name in ("Ada", "Émile Zola")]
    judges = ["--verdicts", f"{folder}/a.jsonl", "--verdicts", f"{folder}/b.jsonl"]
    assert main(["audit", "merge", f"{folder}/page.key.jsonl", *map(str, paths), *judges, "--json"]) == 2  # no --out
    assert merge(folder, *paths, *judges, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert [name.rpartition("/")[2] for name in said["tables"]] == [
        "people.jsonl",
        "people.ada.jsonl",
        "people.émile-zola.jsonl",
    ]
    assert [len(read_verdicts(path)) for path in said["tables"]] == [12] * 3
    assert read_verdicts(said["tables"][1])[0].created_at == "2026-11-29T10:00:00Z"
    assert said["majority"] == {"known": 12, "missing": {}}
    assert said["alpha"]["raw"]["overall"]["undefined"] == "all answers are the same"
    assert [found["judge"] for found in said["judges"]] == [["judge-a"], ["judge-b"]]
    assert merge(folder, *paths, *judges) == 0
    text = capsys.readouterr().out
    assert "- (all answers are the same)" in text and "judge-b (" in text and "nan" not in text.lower()


def without(name):
    return lambda found: found.pop(name)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda found: found.update(page="0" * 32), "it belongs to another page"),
        (lambda found: found["answers"][3].update(id="p0099"), "pair 'p0099': the page has no such pair"),
        (lambda found: found["answers"][3].update(id="p0001"), "pair 'p0001': answers it twice"),
        (lambda found: found["answers"].append(7), "pair 'None'"),
        (
            lambda found: found["answers"][0].update(verdict="maybe"),
            "pair p0001: the answer is 'maybe'; it must be",
        ),
        (lambda found: found["answers"][0].update(quality={"true": "often"}), "quality 'true' is 'often'"),
        (lambda found: found["answers"][0].update(quality={"nice": "yes"}), "quality 'nice' is 'yes'"),
        (lambda found: found.update(version=2), "its version is 2; this claimwise reads version 1"),
        (without("format"), "it is no export of an audit's page"),
        (without("annotator"), "it names no person"),
        (without("answers"), "has no list of answers"),
        (lambda found: found.update(annotator="ADA"), "are both by 'ADA'; give one export for each person"),
    ],
)
def test_bad_exports(folder, capsys, change, error):
    assert merge(folder, export(folder, "Ada"), export(folder, "Grace", change)) == 2
    said = capsys.readouterr().err
    assert error in said and "grace.json" in said and said.count("\n") == 1
    assert not list(folder.glob("people*"))


@pytest.mark.parametrize("name", ["x" * 61, "half \ud800"])
def test_a_name_that_no_table_can_bear_leaves_no_table(folder, capsys, name):
    assert merge(folder, export(folder, "Ada"), export(folder, name, file="other")) == 2
    said = capsys.readouterr().err
    assert "other.json: the person's name" in said and said.count("\n") == 1 and not list(folder.glob("people*"))


def test_ids_and_names_with_line_breaks(tmp_path, capsys):
    odd = "e\u20280\x85 <b>"
    examples, rollouts, a, b = tables()
    odd_ids = {name: f"{name} {odd}" for name in (e.example_id for e in examples)}
    write_examples(tmp_path / "examples.parquet", [replace(e, example_id=odd_ids[e.example_id]) for e in examples])
    write_rollouts(tmp_path / "rollouts.parquet", [replace(r, example_id=odd_ids[r.example_id]) for r in rollouts])
    for name, rows in (("a", a), ("b", b)):
        rows = [replace(v, example_id=odd_ids[v.example_id], judge=f"{v.judge}\n{odd}") for v in rows]
        write_verdicts(tmp_path / f"{name}.jsonl", rows)
    assert main(sample_flags(tmp_path, tmp_path / "page.html")) == 0
    assert merge(tmp_path, export(tmp_path, "Ada\nL."), "--verdicts", f"{tmp_path}/a.jsonl") == 0
    assert len(read_verdicts(tmp_path / "people.ada-l.jsonl")) == 12
    out = capsys.readouterr().out
    assert "Ada L.: 12 of 12" in out and "judge-a e 0  <b> (" in out


def test_what_is_read_is_not_written_over(folder, capsys):
    ada, key = export(folder, "Ada"), folder / "page.key.jsonl"
    before = key.read_bytes()
    for out, lost in (("page.key.jsonl", "page.key.jsonl"), ("a.jsonl", "a.jsonl"), ("a.parquet", "a.ada.parquet")):
        write_verdicts(folder / "a.ada.parquet", [])
        judges = ["--verdicts", f"{folder}/a.jsonl", "--verdicts", f"{folder}/a.ada.parquet"]
        argv = ["audit", "merge", f"{folder}/page.key.jsonl", str(ada), *judges, "--out", f"{folder}/{out}"]
        assert main(argv) == 2
        assert f"{lost} is read here and would be overwritten" in capsys.readouterr().err
    assert key.read_bytes() == before


def test_broken_files(folder, capsys):
    broken = folder / "broken.json"
    for content, error in (
        (b"{", "it is not JSON"),
        (b"\xff\xfe", "broken.json: it is not UTF-8 text"),
        (b"[1]", "it is no export"),
    ):
        broken.write_bytes(content)
        assert merge(folder, broken) == 2
        assert error in capsys.readouterr().err
    assert merge(folder, folder / "none.json") == 2
    assert "none.json: it cannot be read (No such file" in capsys.readouterr().err
    key = folder / "page.key.jsonl"
    rows = key.read_text().splitlines()
    first = json.loads(rows[0])
    for lines, error in (
        ([*rows, "{"], "row 13: it is no row of a key"),
        ([json.dumps(first | {"weight": 0.5})], "the weight is 0.5"),
        ([rows[0], rows[0]], "its rows are not those of one page, each once"),
        ([rows[0], json.dumps(first | {"page": "x", "id": "y"})], "its rows are not those of one page"),
        ([], "its rows are not those of one page"),
        (["[]"], "row 1: it is no row of a key"),
    ):
        key.write_text("\n".join(lines))
        assert merge(folder, broken) == 2
        assert error in capsys.readouterr().err
