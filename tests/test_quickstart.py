"""The whole of `claimwise quickstart` in small: a few pictures and four steps of each training, through every stage."""

from __future__ import annotations

import contextlib
import io
import json
import re

import pytest
from claimwise.eval.agreement import agree
from claimwise.scripts import cli, quickstart
from claimwise.verifier.tables import read_verdicts

SMALL = {"train": ("train", 24, 1), "validation": ("validation", 8, 1), "heldout": ("test", 8, 1)}


@pytest.fixture(scope="module")
def small():
    """Shrinks the run: the code path is the product's, only counts and steps differ."""
    with pytest.MonkeyPatch.context() as patch:
        argv = quickstart._argv
        patch.setattr(quickstart, "PARTS", SMALL)
        patch.setattr(quickstart, "POLICY_EXAMPLES", 16)
        patch.setattr(quickstart, "POLICY_TESTS", 24)
        patch.setattr(quickstart, "_argv", lambda recipe, flags: argv(recipe, {**flags, "max_steps": "3"}))
        yield patch


@pytest.fixture(scope="module")
def finished(small, tmp_path_factory):
    """A run that was stopped with Ctrl-C in the middle and went on."""
    out = tmp_path_factory.mktemp("runs") / "quickstart"

    def stopped(run):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quickstart, "judge_heldout", stopped)
        assert cli.main(["quickstart", "--out", str(out), "--seed", "3"]) == 130
    assert not (out / "summary.json").exists()
    before = (out / "heldout" / "rollouts.parquet").stat().st_mtime_ns
    assert cli.main(["quickstart", "--out", str(out), "--seed", "3"]) == 0
    assert (out / "heldout" / "rollouts.parquet").stat().st_mtime_ns == before  # gone on with, not begun again
    return out


def without_times(summary: dict) -> dict:
    return {key: value for key, value in summary.items() if key != "seconds"}


@pytest.mark.slow
def test_the_summary_has_what_was_promised(finished):
    summary = json.loads((finished / "summary.json").read_text())
    for mode in ("image", "text"):
        figures = summary["verifier"][mode]
        assert set(figures["by_dimension"]) == {"VF", "RC", "IF", "PITFALL"}
        assert {"agreement", "kappa", "wrong_criteria_agreement", "span_exact_given_yes", "ece"} <= set(figures)
        assert figures["attacks"]["n"] >= 30 and figures["attacks"]["missing"] == 0
        assert len(read_verdicts(finished / "verdicts" / f"attacks-{mode}.jsonl")) == figures["attacks"]["n"]
    assert set(summary["verifier"]["base"]) == {"agreement", "kappa"}
    assert set(summary["policy"]["before"]) == set(summary["policy"]["after"]) == {"digits", "conclusion", "answer"}
    assert {"agreement", "kappa", "sampled", "alarms", "teacher_missing"} <= set(summary["in_loop"])
    assert summary["in_loop"]["sampled"] == 3 * 16
    assert set(summary["fidelity"]) == {"scalar", "scalar-z", "component", "prefix", "span"}
    prefix = summary["fidelity"]["prefix"]
    assert 0 < prefix["groups"] <= 24 and {"cosine", "cosine_ci", "sign", "best_changes", "coin_flip"} <= set(prefix)
    assert summary["criteria_audit"]["gold"]["wrong"] > 0
    assert summary["seed"] == 3 and {"torch", "trl"} <= set(summary["versions"]) and summary["seconds"]["train"] > 0


@pytest.mark.slow
def test_the_summary_is_what_agree_says_of_the_tables(finished, capsys):
    summary = json.loads((finished / "summary.json").read_text())
    gold = str(finished / "verdicts" / "gold-image.jsonl")
    for name in ("image", "text", "base"):
        table = str(finished / "verdicts" / f"{name}.jsonl")
        assert cli.main(["agree", gold, table, "--json"]) == 0
        overall = json.loads(capsys.readouterr().out)["overall"]
        assert summary["verifier"][name]["agreement"] == pytest.approx(overall["agreement"])
        assert summary["verifier"][name]["kappa"] == pytest.approx(overall["kappa"])


@pytest.mark.slow
def test_wrong_criteria_are_where_the_golds_differ(finished):
    text, image = (read_verdicts(finished / "verdicts" / f"gold-{mode}.jsonl") for mode in ("text", "image"))
    wrong = sum(a.verdict != b.verdict for a, b in zip(text, image, strict=True))
    assert 0 < wrong == json.loads((finished / "summary.json").read_text())["verifier"]["image"]["wrong_criteria"]
    assert agree(text, image, draws=0)["overall"]["n"] == len(text)


@pytest.mark.slow
def test_the_report_shows_the_credit(finished):
    page = (finished / "report.html").read_text()
    credit = json.loads((finished / "credit.json").read_text())
    assert credit["question"] in page and "Who gets the credit" in page
    assert (finished / "report.md").is_file() and (finished / "report.json").is_file()
    for response in credit["responses"]:
        assert list(response["arms"]) == ["answer", "scalar", "scalar-z", "component", "prefix", "span"]
        for arm in response["arms"].values():
            assert len(response["token_offsets"]) == len(arm["advantages"])
        for verdict in response["verdicts"].values():
            if verdict["span"]:
                start, end = verdict["span"]
                assert response["response"][start:end].strip()


@pytest.fixture(scope="module")
def again(small, tmp_path_factory):
    """The same run once more, without a stop, and what it wrote to the screen."""
    out, screen = tmp_path_factory.mktemp("runs") / "again", io.StringIO()
    with contextlib.redirect_stderr(screen):
        assert cli.main(["quickstart", "--out", str(out), "--seed", "3"]) == 0
    return out, screen.getvalue()


@pytest.mark.slow
def test_the_same_seed_gives_the_same_summary(finished, again):
    first, second = (json.loads((p / "summary.json").read_text()) for p in (finished, again[0]))
    assert without_times(first) == without_times(second)


@pytest.mark.slow
@pytest.mark.parametrize(
    "work",
    [
        "sampling policy",
        "distilling verifier-image",
        "distilling verifier-text",
        "judging base",
        "GRPO prefix",
        "auditing",
    ],
)
def test_everything_long_shows_its_progress_and_the_time_that_is_left(again, work):
    lines = [line for line in re.split(r"[\r\n]", again[1]) if line.startswith(work)]
    assert any(re.search(r"100%.*\[\d\d:\d\d<\d\d:\d\d", line) for line in lines), lines
    assert any(re.search(r"\b0%.*\[\d\d:\d\d<", line) for line in lines), lines


@pytest.mark.slow
def test_another_seed_in_the_same_folder_is_refused(finished, capsys):
    before = sorted(path.name for path in finished.iterdir())
    assert cli.main(["quickstart", "--out", str(finished), "--seed", "4"]) == 2
    message = capsys.readouterr().err
    assert "seed (3 there, 4 now)" in message and message.count("\n") == 1
    assert sorted(path.name for path in finished.iterdir()) == before
