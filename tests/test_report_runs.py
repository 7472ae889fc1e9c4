"""Reports of distillations and studies, and of several runs on one page."""

from __future__ import annotations

import json
import math

import pytest
from claimwise.distill.validation import figures
from claimwise.eval.report import write_report
from claimwise.scripts.cli import main
from claimwise.scripts.studies.report import write_study
from claimwise.scripts.studies.settings import StudySettings
from claimwise.verifier.tables import write_verdicts
from reporting import Page, gold, judged, make_run


def make_distillation(folder):
    """Of 36 verdicts the verifier gets one of c1 and one of c2 wrong."""
    folder.mkdir()
    teacher = gold("image")
    own = judged(teacher, "small", "image", {("r07", "c1"), ("r08", "c2")})
    write_verdicts(folder / "validation_teacher.jsonl", teacher)
    write_verdicts(folder / "validation.jsonl", own)
    (folder / "metrics.json").write_text(json.dumps(figures(teacher, own, 1.25)))
    (folder / "run.json").write_text(json.dumps({"command": "distill", "mode": "image", "name": "small"}))
    log = [
        {"step": 10, "loss": 2.0},
        {"step": 10, "eval_kappa": 0.5, "eval_agreement": 0.75},
        {"step": 20, "loss": 1.0},
    ]
    (folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in log))
    return folder


def make_study(folder, rates=(3e-4, 3e-4)):
    """Two seeds of two arms, the outcome of prefix always .1 higher."""
    folder.mkdir()
    settings = StudySettings(
        compare="arm", arms=["component", "prefix"], judges=["oracle"], budgets=["paper"], match_rms=[False],
        metrics=["digits"], contrasts=["prefix - component"], seeds="0,1", steps=2, evaluate_at=[0, 2], report_at=[2],
    )  # fmt: skip
    results = {
        cell.key: {
            seed: {
                "seconds": 1.0,
                "points": [
                    {"step": step, "kl": float(step), "digits": 0.5 + 0.1 * seed + 0.1 * (cell.arm == "prefix")}
                    for step in (0, 2)
                ],
            }
            for seed in (0, 1)
        }
        for cell in settings.cells()
    }
    write_study(settings, folder, results, {cell.key: rate for cell, rate in zip(settings.cells(), rates, strict=True)})
    (folder / "run.json").write_text('{"command": "study arms"}')
    return folder


def figure(value, low, high):
    return {"value": value, "interval": [low, high]}


def make_gradients(folder):
    folder.mkdir()
    arm = {"covered": 0.57, "noise": figure(0.64, 0.5, 0.8), "snr": figure(0.44, 0.3, 0.5)}
    arm |= {"aligned": figure(0.55, 0.5, 0.6), "bias": figure(0.0049, -0.01, 0.0225)}
    told = {
        "settings": {
            "groups": 32,
            "seed": 0,
            "recipe": {
                "reference": "component",
                "step": 64,
                "families": [{"name": "rubric", "budget": "0,0,1", "pitfalls": "veto", "group": 8}],
            },
        },
        "sample": {"responses": 256, "tokens": [39, 42, 45], "answer": 0.44},
        "families": {"rubric": {"component": arm, "prefix": arm}},
        "position": {"position": {"component": {"noise": [0.4, 0.6], "signal": [0.5, 0.5]}}},
        "contrasts": [
            {"family": "rubric", "figure": "bias", "arm": "prefix", "against": "component", "estimate": 0.0049,
             "interval": [-0.01, 0.0225], "p": 0.00001, "p_holm": 0.2, "shown": False},
            {"family": "rubric", "figure": "snr", "arm": "prefix", "against": "component", "estimate": 0.0,
             "interval": None, "p": 0.5, "p_holm": 1.0, "shown": False},
        ],
    }  # fmt: skip
    (folder / "gradients.json").write_text(json.dumps(told))
    return folder


def page_of(*runs, out=None):
    return Page(write_report(runs, out).read_text())


def test_a_distillation(tmp_path):
    page = page_of(make_distillation(tmp_path / "verifier"))
    agreement = page.section("agreement")
    assert "Verdicts 36 12 12 12" in agreement and "Agreement 0.944 [" in agreement  # all, VF, RC, PITFALL
    assert "temperature 1.25" in agreement and "Adversarial slice: not measured" in agreement
    found = page.section("reliability")
    assert "VF 2 0 1 9 0" in found and "RC 11 1 0 0 0" in found  # both yes, false no, false yes, both no, missing
    labels = [attrs["aria-label"] for attrs in page.of("svg")]
    assert any("Loss over training steps. loss from 2.000 at step 10 to 1.000 at step 20" in label for label in labels)
    assert any("kappa from 0.500 at step 10" in label for label in labels)
    assert any("mean gap to the diagonal" in label and "36 verdicts" in label for label in labels)


@pytest.mark.parametrize(
    ("missing", "section", "said"),
    [
        ("log.jsonl", "training", "log.jsonl is not in this folder"),
        (
            "validation_teacher.jsonl",
            "reliability",
            "validation_teacher.jsonl or validation.jsonl is not in this folder",
        ),
        ("run.json", "made", "run.json is not in this folder"),
    ],
)
def test_what_a_distillation_lacks_is_said(tmp_path, missing, section, said):
    run = make_distillation(tmp_path / "verifier")
    (run / missing).unlink()
    assert said in page_of(run).section(section)


def test_a_study_shows_its_contrasts_and_what_is_not_shown(tmp_path):
    page = page_of(make_study(tmp_path / "study"))
    assert "4 of 4 runs. 2 GRPO steps each" in page.text
    table = page.section("table1")
    assert "prefix 2 seeds 0.650 2.000" in table and "component 2 seeds 0.550 2.000" in table
    assert "prefix - component +0.100 [+0.100, +0.100]" in table and "a null result" in table
    labels = [attrs["aria-label"] for attrs in page.of("svg")]
    assert any("component from 0.550 at step 0 to 0.550 at step 2; prefix from 0.650" in label for label in labels)
    assert len(labels) == 2 and "KL from the start" in labels[1]


@pytest.mark.parametrize(("rates", "told"), [((3e-4, 3e-4), False), ((3e-4, 6e-4), True)])
def test_rates_that_differ_are_said_to(tmp_path, rates, told):
    folder = make_study(tmp_path / "study", rates)
    for text in (page_of(folder).text, (folder / "study.md").read_text()):
        assert ("one of their rates as well" in text) == told


def test_a_study_of_gradients(tmp_path):
    page = page_of(make_gradients(tmp_path / "gradients"))
    contrasts = page.section("contrasts")
    # the roots of the squared distances, 0 where noise made it negative; the SNR's logarithm back to a ratio
    assert "distance prefix to component 0.070 [0.000, 0.150] < 0.001 0.200 no" in contrasts
    assert "SNR, ratio prefix to component 1.000 0.500 1.000 no" in contrasts
    arms = page.section("arms")
    assert "component 57% 1 0.440 [0.300, 0.500] 0.550 [0.500, 0.600] –" in arms
    assert "prefix 57% 0.640 [0.500, 0.800]" in arms
    assert "noise, component 0.400 0.600 1.000" in page.section("position")


def test_several_runs_stand_on_one_page(tmp_path):
    (tmp_path / "run").mkdir()
    make_run(tmp_path / "run")
    runs = [tmp_path / "run", make_distillation(tmp_path / "a"), make_study(tmp_path / "study"), tmp_path / "run"]
    page = page_of(*runs, out=tmp_path / "page.html")
    links = [attrs["href"] for attrs in page.of("a")]
    ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert links[:4] == ["#r1", "#r2", "#r3", "#r4"] and len(ids) == len(set(ids))
    assert {link[1:] for link in links} <= set(ids)
    assert {a["xlink:href"][1:] for _, a in page.elements if "xlink:href" in a} <= set(ids)
    assert {attrs["name"] for attrs in page.of("input")} == {"r1-arm", "r4-arm"}  # each group has a switch of its own
    assert "run (1) (quickstart) a (distillation) study (study) run (4) (quickstart)" in page.text
    found = json.loads((tmp_path / "page.json").read_text())["runs"]
    assert [run["kind"] for run in found] == ["quickstart", "distillation", "study", "quickstart"]
    assert (tmp_path / "page.md").read_text().count("\n# ") == 3


def test_several_runs_need_a_place(tmp_path, capsys):
    runs = [str(make_distillation(tmp_path / "a")), str(make_study(tmp_path / "b"))]
    assert main(["report", *runs]) == 2
    assert "say with --out" in capsys.readouterr().err
    (tmp_path / "b/study.json").unlink()
    assert main(["report", *runs, "--out", str(tmp_path / "page.html")]) == 2
    error = capsys.readouterr().err
    assert "has no study.json, so the run in it is not finished" in error and error.count("\n") == 1
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("name", ["study.json", "gradients.json"])
def test_a_broken_study_is_one_line(tmp_path, name, capsys):
    (tmp_path / name).write_text('{"settings": {}}')
    assert main(["report", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert f"{name}: it is not as claimwise study writes it" in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("make", "name", "keys", "value"),
    [
        (make_distillation, "metrics.json", ("kappa_ci",), []),
        (make_distillation, "metrics.json", ("kappa_ci",), ["low", "high"]),
        (make_distillation, "metrics.json", ("by_dimension", "VF"), ""),
        (make_distillation, "metrics.json", ("agreement",), 10**400),
        (make_distillation, "run.json", ("command",), ["distill"]),
        (make_study, "study.json", ("tables", 0, "means"), 3),
        (make_gradients, "gradients.json", ("contrasts", 0, "interval"), [0.5]),
        (make_gradients, "gradients.json", ("contrasts", 0, "p"), 10**400),
    ],
)
def test_files_that_are_not_as_they_are_written_are_one_line(tmp_path, make, name, keys, value, capsys):
    folder = make(tmp_path / "run")
    spoil(folder / name, keys, value)
    assert main(["report", str(folder)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"claimwise report: {folder}") and error.count("\n") == 1 and len(error) < 600
    assert not list(folder.glob("report.*"))


def spoil(path, keys, value):
    found = at = json.loads(path.read_text())
    for key in keys[:-1]:
        at = at[key]
    at[keys[-1]] = value
    path.write_text(json.dumps(found))


@pytest.mark.parametrize(
    ("make", "name", "keys"),
    [
        (make_distillation, "metrics.json", ("kappa_ci", 0)),
        (make_distillation, "metrics.json", ("by_dimension", "VF", "auroc")),
        (make_distillation, "run.json", ("mode",)),
        (make_study, "study.json", ("tables", 0, "means", "prefix", "digits")),
        (make_gradients, "gradients.json", ("families", "rubric", "prefix", "snr", "value")),
    ],
)
def test_what_is_not_a_number_is_unknown(tmp_path, make, name, keys):
    folder = make(tmp_path / "run")
    for value in (math.nan, math.inf):
        spoil(folder / name, keys, value)  # as Python's json writes it: NaN, Infinity
        text = write_report([folder]).read_text()
        assert not {"nan", "inf", "[nan,", "nan]"} & set(Page(text).text.lower().split())
        assert not any(word in (folder / "report.json").read_text() for word in ("NaN", "Infinity"))


def test_a_name_with_dollars_is_drawn_as_it_is(tmp_path):
    folder = make_study(tmp_path / "study")
    found = json.loads((folder / "study.json").read_text())
    for curve in found["curves"].values():
        curve["$\\frac{a$"] = curve.pop("prefix")
    (folder / "study.json").write_text(json.dumps(found))
    assert ">$\\frac{a$</text>" in write_report([folder]).read_text()
