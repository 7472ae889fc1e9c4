"""The report of a quickstart: what it holds is on the page, escaped and self-contained; what it lacks is said."""

import json
import re
import shutil

import pytest
from claimwise.eval.report import write_report
from claimwise.scripts.cli import main
from claimwise.verifier.schema import Rollout
from claimwise.verifier.tables import write_rollouts, write_verdicts
from reporting import Page, gold, make_run


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    folder.mkdir()
    make_run(folder)
    return folder


@pytest.fixture(scope="module")
def page(made):
    return Page(write_report([made], made.parent / "page.html").read_text())


@pytest.fixture
def run(made, tmp_path):
    """A copy to take things away from."""
    return shutil.copytree(made, tmp_path / "run")


def test_results_show_the_summary_and_the_intervals_of_the_tables(page):
    results = page.section("results")
    assert "Agreement n = 36 0.944 [" in results
    assert "Agreement, VF n = 12 0.917 [" in results and "Agreement, PITFALL n = 12 1.000 [" in results
    assert "wrong criteria n = 4 1.000 [1.000, 1.000] 0.000 [0.000, 0.000]" in results
    assert "−0.111" in results and "0.123" in results and "0.987" in results
    assert "Digits read right 0.576 0.893 +0.317" in results
    assert "Answer right 0.295 – –" in results
    assert "3 0 0.951" in results
    assert "prefix 0.951 [0.914, 0.982] 0.931 0.027" in results and "mean of 24 groups" in results
    assert "Recall 9 of 10 0.900 [0.600, 0.980] Precision 9 of 11 0.818" in results
    assert "agrees with oracle-image on 94.4%" in page.text
    made = page.section("made")
    assert "Seed 17" in made and "distill 1 min 23 s" in made and "grpo 7.2 s" in made and "torch 2.13.0" in made


def test_the_adversarial_slice_stands_in_the_report(page):
    attacks = page.section("attacks")
    assert "image-aware 40 judged and 1 missing" in attacks
    assert "all 0.075 [0.026, 0.199] echo 0.250 hedge 0.000" in attacks
    assert "under attack 0.075 [0.026, 0.199]" in page.section("results")


def test_tokens_are_coloured_by_credit_and_verdicts_listed(page):
    coloured = [(attrs.get("class"), attrs["title"]) for attrs in page.of("span") if "title" in attrs]
    scalar = [("minus", "−0.125, tokens 1–5"), ("plus", "+0.125, tokens 1–5")]
    prefix = [("plus", "+0.500, tokens 1–3"), ("minus", "−0.250, tokens 4–5")]
    assert coloured == [*scalar, *prefix, ("plus", "+0.750, tokens 1–3"), (None, "+0.000, tokens 4–5")]
    assert '>It is 3</span><sub>+0.500</sub><span class="minus"' in page.source
    assert ">.&lt;script&gt;</span><sub>−0.250</sub>" in page.source
    switch = [attrs for attrs in page.of("input") if attrs["type"] == "radio"]
    assert [("checked" in attrs, attrs["name"]) for attrs in switch] == [(False, "arm"), (True, "arm")]
    assert [attrs["for"] for attrs in page.of("label")] == [attrs["id"] for attrs in switch]
    credit = page.section("credit")
    assert "✓ yes States that the top <b>digit</b> is 3." in credit
    assert "It is 3" in credit and "The judge reads in the picture: three" in credit
    assert "adds +0.750 to tokens 1–3" in credit
    assert (
        "? missing The conclusion follows." in credit and "no deciding sentence" in credit and "timed <out>" in credit
    )
    assert "Not credited" in credit  # the pitfall
    assert (
        "Counts in the rubric as a whole" in credit and "The rubric adds +0.125 to tokens 1–5" in credit
    )  # arm scalar
    assert "less likely, −0.500" in credit and "rubric –" in credit


def test_disagreements_of_each_kind_are_shown_with_picture_and_sentence(page):
    shown = page.section("disagreements")
    assert "r07" in shown and "r08" in shown
    assert "None among the held-out verdicts" not in shown
    assert len([a for a in page.of("img") if a["src"].startswith("data:image/png;base64,")]) == 1 + 1 + 1 + 3
    assert '<mark class="gold">The top digit is 3. </mark>' in page.source


def test_everything_is_escaped(page, made):
    assert not page.of("script") and not page.of("b")
    assert "<script>alert(1)</script>" in page.text and "<script" not in page.source
    text = (made.parent / "page.md").read_text()
    assert r"\<script\>alert(1)" in text and not re.search(r"(?<!\\)<", text)


def test_nothing_is_loaded_from_elsewhere(page):
    assert "://" not in page.source and "@import" not in page.source
    assert not {"link", "script", "iframe", "object", "embed", "base"} & {tag for tag, _ in page.elements}
    for _, attrs in page.elements:
        for name in ("src", "href", "xlink:href", "srcset", "action"):
            assert attrs.get(name, "#").startswith(("#", "data:image/png;base64,"))
    assert page.source.count("url(") == page.source.count("url(#")
    assert "default-src 'none'" in next(a["content"] for a in page.of("meta") if "http-equiv" in a)


def test_pictures_and_plots_have_alternative_text(page):
    images, plots = page.of("img"), page.of("svg")
    assert all(a["alt"] and a["class"] == "tiny" for a in images)
    assert len(plots) == 6 and all(a["role"] == "img" and len(a["aria-label"]) > 20 for a in plots)
    assert any("image-aware: VF 0.917" in a["aria-label"] and "wrong criteria 1.000" in a["aria-label"] for a in plots)
    ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    references = {a["xlink:href"] for _, a in page.elements if "xlink:href" in a}
    assert references <= {f"#{name}" for name in ids}


def test_light_dark_and_phone(page):
    assert "prefers-color-scheme: dark" in page.source
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in page.of("meta")
    svgs = page.source[page.source.index("<svg") :]
    assert "currentColor" in svgs and "var(--s0)" in svgs and "#0a0b" not in svgs
    assert "image-rendering: pixelated" in page.source


def test_the_same_run_gives_the_same_page(made, page, tmp_path):
    assert write_report([str(made)], tmp_path / "page.html").read_text() == page.source
    for suffix in (".md", ".json"):
        assert (tmp_path / "page").with_suffix(suffix).read_bytes() == (made.parent / "page").with_suffix(
            suffix
        ).read_bytes()


@pytest.mark.parametrize(
    ("missing", "section", "said"),
    [
        ("credit.json", "credit", "credit.json is not in this run"),
        ("policy/log.jsonl", "training", "policy/log.jsonl is not in this run"),
        ("policy/in_loop/samples.jsonl", "results", "samples.jsonl is not in this run"),
        ("verdicts/text.jsonl", "agreement", "verdicts/text.jsonl is not in this run"),
        ("verdicts/base.jsonl", "agreement", "verdicts/base.jsonl is not in this run"),
        ("verdicts/gold-text.jsonl", "agreement", "verdicts/gold-text.jsonl is not in this run"),
        ("verdicts/gold-image.jsonl", "agreement", "verdicts/gold-image.jsonl"),
        ("heldout/rollouts.parquet", "disagreements", "heldout/rollouts.parquet"),
    ],
)
def test_a_missing_part_is_said(run, missing, section, said):
    (run / missing).unlink()
    assert said in Page(write_report([run]).read_text()).section(section)


def test_a_summary_alone_gives_a_page(tmp_path):
    (tmp_path / "summary.json").write_text('{"verifier": {"image": null}, "policy": {}, "seed": null}')
    page = Page(write_report([tmp_path]).read_text())
    assert "no figures of a verifier" in page.section("results") and "not recorded" in page.section("made")


@pytest.mark.parametrize("there", ["run.json", "nothing"])
def test_an_unknown_folder_is_one_clear_line(tmp_path, there, capsys):
    if there == "run.json":
        (tmp_path / there).write_text('{"command": "label"}')
    assert main(["report", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert (
        error.count("\n") == 1 and ("there is no report of 'label'" if there == "run.json" else "holds no run") in error
    )


def edit(path, change):
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def merge_last_tokens(response):
    response["token_offsets"] = [*response["token_offsets"][:-2], [7, 16]]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda run: (run / "summary.json").unlink(), "holds no run"),
        (lambda run: shutil.rmtree(run), "there is no such folder"),
        (lambda run: (run / "summary.json").write_text("{"), "summary.json: it is not JSON"),
        (lambda run: (run / "summary.json").write_text("[]"), "summary.json: it is no object"),
        (lambda run: edit(run / "summary.json", lambda s: s.update(policy=3)), "key 'policy' is 3"),
        (
            lambda run: edit(run / "summary.json", lambda s: s["in_loop"].update(kappa="x")),
            "key 'in_loop.kappa' is 'x'",
        ),
        (lambda run: (run / "policy/log.jsonl").write_text('{"step": 1}\n{}\n'), "log.jsonl, row 2: key 'step'"),
        (lambda run: (run / "policy/in_loop/samples.jsonl").write_text("{}"), "samples.jsonl, row 1: it needs 'step'"),
        (lambda run: (run / "credit.png").write_bytes(b""), "credit.png: the file is empty"),
        (lambda run: edit(run / "credit.json", lambda c: c.pop("arm")), "credit.json: key 'arm'"),
        (
            lambda run: edit(run / "credit.json", lambda c: c["responses"][0]["arms"].pop("prefix")),
            "response 1: it has no credit of arm 'prefix'",
        ),
        (
            lambda run: edit(run / "credit.json", lambda c: c["responses"][0]["token_offsets"].pop()),
            "response 1: the characters of its token_offsets are not those of its response",
        ),
        (
            lambda run: edit(run / "credit.json", lambda c: c["responses"][0]["token_offsets"].pop(1)),
            "response 1: the characters of its token_offsets are not those of its response",
        ),
        (
            lambda run: edit(run / "credit.json", lambda c: merge_last_tokens(c["responses"][0])),
            "4 tokens and 5 advantages",
        ),
        (
            lambda run: edit(run / "credit.json", lambda c: c["responses"][0]["verdicts"]["c1"].update(span=[0, 99])),
            "response 1: the span of 'c1' is [0, 99], outside its response",
        ),
        (lambda run: (run / "verdicts/image.jsonl").write_text("{}\n"), "image.jsonl, row 1: key 'example_id'"),
        (lambda run: write_verdicts(run / "verdicts/text.jsonl", gold("text")[1:]), "criterion 'c1' is in"),
        (
            lambda run: write_rollouts(
                run / "heldout/rollouts.parquet", [Rollout(f"r{n:02d}", f"e{n // 3}", "3", "policy") for n in range(12)]
            ),
            "lies outside rollout 'r00'",
        ),
    ],
)
def test_bad_input_is_one_line_and_leaves_no_page(run, spoil, said, capsys):
    spoil(run)
    assert main(["report", str(run)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("claimwise report: ") and error.count("\n") == 1 and said in error
    assert not (run / "report.html").exists()


def test_the_command_writes_where_it_is_told(run, capsys):
    assert main(["report", str(run), "--out", str(run / "new/page.html")]) == 0
    assert sorted(p.name for p in (run / "new").iterdir()) == ["page.html", "page.json", "page.md"]
    assert not (run / "report.html").exists()
    assert "page.html" in capsys.readouterr().out
    (run / "verdicts/page.html").mkdir()
    assert main(["report", str(run), "--out", str(run / "verdicts/page.html")]) == 2  # a folder
    assert "cannot be written" in capsys.readouterr().err
    assert main(["report", str(run), "--out", str(run / "page")]) == 2
    assert "must end in .html" in capsys.readouterr().err


def test_the_figures_and_the_text_lie_beside_the_page(made, page):
    (run,) = json.loads((made.parent / "page.json").read_text())["runs"]
    assert run["name"] == "run" and run["kind"] == "quickstart"
    assert run["figures"]["summary"]["in_loop"]["agreement"] == 0.951
    assert run["figures"]["agreement"]["image"]["overall"]["agreement"] == pytest.approx(34 / 36)
    assert run["figures"]["log"][2]["judge/agreement"] is None  # no NaN
    text = (made.parent / "page.md").read_text()
    assert "| Agreement n = 36 | 0.944 \\[" in text and "| echo | 0.250 |" in text
    assert "| c1 | – | +0.750 to 1–3 |" in text  # what the criterion adds, by arm
    assert "decided by “It is 3.”, reads three" in text


def test_help_has_an_example(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["report", "--help"])
    assert stopped.value.code == 0 and "claimwise report runs/quickstart" in capsys.readouterr().out
