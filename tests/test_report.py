"""The report: what a run holds is on the page, escaped and self-contained; what it lacks is said."""

import json
import shutil
from dataclasses import asdict, replace
from html.parser import HTMLParser

import pytest
from claimwise.eval.report import write_report
from claimwise.eval.report_credit import parse_credit
from claimwise.eval.report_data import SampledPair, read_run, series
from claimwise.eval.report_figures import change, compare, confusion, disagreements, in_loop_by_dimension, reliability
from claimwise.scripts.cli import main
from claimwise.verifier.errors import InputError
from claimwise.verifier.schema import Criterion, Example, Rollout, Verdict
from claimwise.verifier.tables import write_examples, write_rollouts, write_verdicts
from PIL import Image

CRITERIA = (
    Criterion("c1", "States that the top <b>digit</b> is 3.", dimension="VF", label="ESSENTIAL", weight=5),
    Criterion("c2", "The conclusion follows.", dimension="RC", label="IMPORTANT", weight=3),
    Criterion("c3", "Misreads the digit as 4.", dimension="VF", label="PITFALL", weight=-3),
)
EVIL = "The top digit is 3. <script>alert(1)</script> So it reads 3."
TEXT = "The top digit is 3. So it reads 3."
FIRST = (0, 20)  # "The top digit is 3. "


def gold(mode):
    """Of 12 rollouts c1 holds in the first half, c2 always, c3 never. c1 of examples 0 and 1 is wrong: the text alone
    says yes, the picture no."""
    rows = []
    for n in range(12):
        for criterion in CRITERIA:
            yes = {"c1": n < 6, "c2": True, "c3": False}[criterion.id]
            if criterion.id == "c1" and mode == "image" and n < 6:
                yes = n % 3 == 2  # rollouts 2 and 5
            span = FIRST if criterion.id == "c1" else None
            rows.append(verdict(n, criterion, f"oracle-{mode}", mode, yes, float(yes), span))
    return rows


def verdict(n, criterion, judge, mode, yes, p_yes, span):
    start, end = span or (None, None)
    return Verdict(
        example_id=f"e{n // 3}",
        rollout_id=f"r{n:02d}",
        criterion_id=criterion.id,
        judge=judge,
        mode=mode,
        verdict=yes,
        p_yes=p_yes,
        span_start=start,
        span_end=end,
        match="pointer" if span else "none",
        reading="3" if mode == "image" and criterion.id == "c1" else None,
        dimension=criterion.group,
    )


def judged(rows, judge, mode, flips=()):
    """A judge that answers as `rows` do, P(yes) .9 or .1, but for the flipped (rollout, criterion)."""
    out = []
    for v in rows:
        yes = v.verdict ^ (v.key in flips)
        out.append(replace(v, judge=judge, mode=mode, verdict=yes, p_yes=0.9 if yes else 0.1))
    return out


CREDIT = {
    "arm": "prefix",
    "budget": "paper",
    "example_id": "e0",
    "question": "What is at the top?",
    "image": "credit.png",
    "criteria": [
        {"id": c.id, "text": c.text, "dimension": c.dimension, "label": c.label, "weight": c.weight} for c in CRITERIA
    ],
    "responses": [
        {
            "tokens": ["It", " is", " 3", ".", "<script>"],
            "advantages": [0.5, 0.5, 0.5, -0.25, -0.25],
            "terms": [
                {"name": "answer", "added": -0.25, "first": 0, "last": 4},
                {"name": "format", "added": 0.0, "first": 0, "last": 4},
                {"name": "c1", "added": 0.75, "first": 0, "last": 2},
                {"name": "c2", "added": 0.0, "first": 0, "last": 4},
            ],
            "rewards": {"answer": 0.0, "format": 1.0, "rubric": None, "vetoed": False},
            "verdicts": [
                {"criterion_id": "c1", "verdict": True, "span": [0, 8], "reading": "three"},
                {"criterion_id": "c2", "verdict": None, "span": None, "reading": None},
            ],
        }
    ],
}
SUMMARY = {
    "verifier": {
        "image": {
            "agreement": 0.944,
            "kappa": 0.888,
            "by_dimension": {"VF": {"agreement": 0.917}, "RC": {"agreement": 0.917}, "IF": {"agreement": None}},
            "wrong_criteria_agreement": 1.0,
            "span_exact_given_yes": 0.987,
            "ece": 0.123,
        },
        "text": {"agreement": 0.889, "wrong_criteria_agreement": 0.0},
        "base": {"agreement": 0.444, "kappa": -0.111},
    },
    "policy": {
        "before": {"digits": 0.576, "conclusion": 0.5, "answer": 0.295},
        "after": {"digits": 0.893, "conclusion": 0.75, "answer": None},
    },
    "in_loop": {"agreement": 0.951, "kappa": 0.9, "sampled": 3},
    "seconds": {"distill": 83.2, "grpo": 7.25},
    "versions": {"torch": "2.13.0", "claimwise": "0.1.0"},
    "seed": 17,
}


def make_run(folder):
    pictures = [Image.new("RGB", (64, 64), (60 * n, 20, 90)) for n in range(2)]
    examples = [Example(f"e{n}", f"What is at the top of {n}?", CRITERIA, (pictures[n % 2],)) for n in range(4)]
    write_examples(folder / "heldout/examples.parquet", examples)
    rollouts = [Rollout(f"r{n:02d}", f"e{n // 3}", EVIL if n < 9 else TEXT, "policy", n % 3) for n in range(12)]
    write_rollouts(folder / "heldout/rollouts.parquet", rollouts)
    tables = {
        "gold-image": gold("image"),
        "gold-text": gold("text"),
        "image": judged(gold("image"), "verifier", "image", {("r07", "c1"), ("r08", "c2")}),
        "text": judged(gold("text"), "verifier-text", "text"),
        "base": judged(gold("image"), "base", "image", {(f"r{n:02d}", "c2") for n in range(10)}),
    }
    for name, rows in tables.items():
        write_verdicts(folder / f"verdicts/{name}.jsonl", rows)
    (folder / "summary.json").write_text(json.dumps(SUMMARY))
    pictures[0].save(folder / "credit.png")
    (folder / "credit.json").write_text(json.dumps(CREDIT))
    log = [
        {
            "step": n,
            "rubric/reward": 0.3 + n / 40,
            "rewards/digits_read/mean": 0.5 + n / 50,
            "rubric/VF/located": 1.0,
            "rubric/fallbacks": 2.0,
            "judge/agreement": float("nan") if n == 3 else 0.95,  # what json.dumps writes for a figure without basis
        }
        for n in range(1, 9)
    ]
    (folder / "policy/in_loop").mkdir(parents=True)
    (folder / "policy/log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in log))
    samples = zip(tables["image"][:3], tables["gold-image"][:3], strict=True)
    (folder / "policy/in_loop/samples.jsonl").write_text(
        "".join(
            json.dumps({"step": 1, "weight": 2.0, "judge": asdict(a), "teacher": asdict(b)}) + "\n" for a, b in samples
        )
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    folder.mkdir()
    make_run(folder)
    return folder


@pytest.fixture(scope="module")
def page(made):
    return Page(write_report(made, made.parent / "page.html").read_text())


@pytest.fixture
def run(made, tmp_path):
    """A copy to take things away from."""
    return shutil.copytree(made, tmp_path / "run")


class Page(HTMLParser):
    """Elements with their attributes, the visible text by section, and a check that what is opened is closed."""

    VOID = ("meta", "img", "br", "link")

    def __init__(self, source):
        super().__init__()
        self.source, self.elements, self.open, self.sections, self.text = source, [], [], {}, ""
        self.feed(source)
        self.close()
        assert not self.open
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append((tag, dict(attrs)))

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open[-1][0] == tag
        self.open.pop()
        if tag in ("td", "th"):
            self.handle_data(" ")

    def handle_data(self, data):
        if self.open and self.open[-1][0] != "style":
            self.text += data
            for tag, attrs in self.open:
                if tag == "section":
                    self.sections[attrs["id"]] = self.sections.get(attrs["id"], "") + data

    def section(self, name):
        return " ".join(self.sections[name].split())

    def of(self, tag):
        return [attrs for name, attrs in self.elements if name == tag]


def test_results_show_the_summary_and_the_intervals_of_the_tables(page):
    results = page.section("results")
    assert "Agreement n = 36 0.944 [" in results
    assert "Agreement, VF n = 12 0.917 [" in results and "Agreement, PITFALL n = 12 1.000 [" in results
    assert "wrong criteria n = 4 1.000 [1.000, 1.000] 0.000 [0.000, 0.000]" in results
    assert "−0.111" in results and "0.123" in results and "0.987" in results
    assert "Digits read right 0.576 0.893 +0.317" in results
    assert "Answer right 0.295 – –" in results
    assert "3 0 0.951" in results
    assert "agrees with oracle-image on 94.4%" in page.text
    made = page.section("made")
    assert "Seed 17" in made and "distill 1 min 23 s" in made and "grpo 7.2 s" in made and "torch 2.13.0" in made


def test_tokens_are_coloured_by_credit_and_verdicts_listed(page):
    coloured = [(attrs.get("class"), attrs["title"]) for attrs in page.of("span") if "title" in attrs]
    advantages = [("plus", "+0.500")] * 3 + [("minus", "−0.250")] * 2
    assert coloured == advantages + [("plus", "+0.750")] * 3 + [(None, "+0.000")] * 2
    credit = page.section("credit")
    assert "✓ yes States that the top <b>digit</b> is 3." in credit
    assert "It is 3" in credit and "The judge reads in the picture: three" in credit
    assert "adds +0.750 to tokens 1–3" in credit
    assert "? missing The conclusion follows." in credit and "no deciding sentence" in credit
    assert "Not credited" in credit  # the pitfall
    assert "less likely, −0.500" in credit and "rubric –" in credit


def test_disagreements_of_each_kind_are_shown_with_picture_and_sentence(page):
    shown = page.section("disagreements")
    assert "r07" in shown and "r08" in shown
    assert "None among the held-out verdicts" not in shown
    assert len([a for a in page.of("img") if a["src"].startswith("data:image/png;base64,")]) == 1 + 1 + 1 + 3
    assert '<mark class="gold">The top digit is 3. </mark>' in page.source


def test_everything_is_escaped(page):
    assert not page.of("script") and not page.of("b")
    assert "<script>alert(1)</script>" in page.text and "<script" not in page.source


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
    assert write_report(str(made), tmp_path / "again.html").read_text() == page.source


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
    assert said in Page(write_report(run).read_text()).section(section)


def test_a_summary_alone_gives_a_page(tmp_path):
    (tmp_path / "summary.json").write_text('{"verifier": {"image": null}, "policy": {}, "seed": null}')
    page = Page(write_report(tmp_path).read_text())
    assert "no figures of a verifier" in page.section("results") and "not recorded" in page.section("made")


def edit(path, change):
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda run: (run / "summary.json").unlink(), "has no summary.json"),
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
            lambda run: edit(run / "credit.json", lambda c: c["responses"][0]["tokens"].pop()),
            "4 tokens and 5 advantages",
        ),
        (
            lambda run: edit(run / "credit.json", lambda c: c["responses"][0]["verdicts"][0].update(span=[0, 99])),
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
    assert (run / "new/page.html").is_file() and not (run / "report.html").exists()
    assert "page.html" in capsys.readouterr().out
    assert main(["report", str(run), "--out", str(run / "verdicts")]) == 2  # a folder
    assert "cannot be written" in capsys.readouterr().err


def test_help_has_an_example(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["report", "--help"])
    assert stopped.value.code == 0 and "claimwise report runs/quickstart" in capsys.readouterr().out


def test_figures_by_hand(made):
    run = read_run(made)
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


def test_the_log_as_series():
    log = [{"step": n, "x": n / 10, "y": float("nan") if n else 1} for n in range(8)]
    assert series(log, "y") == [(0, 1.0)]
    assert change(log, "x") == pytest.approx((0.05, 0.65)) and change(log, "y") is None


def test_credit_is_cut_where_the_number_changes(tmp_path):
    (response,) = parse_credit(CREDIT, tmp_path / "credit.json").responses
    assert [[token.text for token in run] for run in response.runs] == [["It", " is", " 3"], [".", "<script>"]]
    assert [run[0].shade for run in response.runs] == [1.0, 0.5]
    assert [run[0].value for run in response.rubric_runs] == [0.75, 0.0]
    with pytest.raises(InputError, match=r"credit.json: .*must be an object"):
        parse_credit([], tmp_path / "credit.json")
