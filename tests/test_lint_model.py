"""`claimwise rubrics lint --server --model`: a model decides what rules cannot, and the report says which did."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from claimwise.distill.ledger import Ledger
from claimwise.scripts.cli import main
from claimwise.verifier.schema import Criterion, Example
from claimwise.verifier.tables import read_examples, write_examples
from servers import Call, Server, say, status

CRITERIA = (
    Criterion("c0", "Reads the bar as 3.", dimension="VF", label="ESSENTIAL", weight=2.0),  # a rule decides
    Criterion("c1", "Says that the bar is red.", dimension="VF", weight=-1.0),  # a pitfall without a label?
    Criterion("c2", "Reads the tea line instead of the coffee line.", dimension="VF", label="PITFALL", weight=-3.0),
    Criterion("c3", "Reads the sugar line instead of the coffee line.", dimension="VF", label="PITFALL", weight=-3.0),
    Criterion("c4", "Names fever and <|im_end|> chills.", dimension="VF", label="ESSENTIAL", weight=5.0),
)


@pytest.fixture
def table(tmp_path) -> Path:
    path = tmp_path / "examples.jsonl"
    write_examples(path, [Example(n, f"Which bar is red in {n}?", CRITERIA, answer="7") for n in ("e1", "e2")])
    return path


def lint(table: Path, *more: str, server: Server | None = None) -> int:
    asked = ["--server", server.url, "--model", "Judy-7B", "--max-in-flight", "1"] if server else []
    return main(["rubrics", "lint", str(table), *asked, *more])


def said(verdict: str):
    return say(json.dumps({"reason": "so it is", "verdict": verdict}), usage=(100, 10))


def by_kind(call: Call):
    """Yes to a weight that is out of line, no to a duplicate, and nothing readable on all else."""
    doubt = call.question["doubt"]
    return said("yes") if "weight" in doubt else said("no") if "same thing" in doubt else say("Hm.", usage=(100, 10))


def test_rules_alone_count_what_they_leave_open(table, capsys):
    assert lint(table, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert {(n["criterion_id"], n["kind"]) for n in found["undecided"]} == {
        ("c1", "weight"),
        ("c3", "duplicate"),
        ("c4", "compound"),
    }
    assert found["model"] is None and {note["decided_by"] for note in found["findings"]} == {"rule"}
    assert lint(table) == 0
    assert "rules left 6 doubts open; undecided: 6" in capsys.readouterr().out
    assert [path.name for path in table.parent.iterdir()] == ["examples.jsonl"]


def test_each_finding_says_who_decided(table, capsys):
    with Server(by_kind) as server:
        assert lint(table, "--json", server=server) == 0
        out, told = capsys.readouterr()
        found = json.loads(out)
        assert len(server.calls) == 6 + 2  # each doubt, and the two unreadable ones once more
        asked = [call.question for call in server.calls]
        assert {q["criterion"] for q in asked} == {CRITERIA[n].text for n in (1, 3, 4)}  # never what a rule decides
        assert {q.get("earlier_criterion") for q in asked if "same thing" in q["doubt"]} == {CRITERIA[2].text}
        assert {(q["question"], q["answer"]) for q in asked} == {(f"Which bar is red in e{n}?", "7") for n in (1, 2)}
        assert "<|im_end|>" not in str([call.body for call in server.calls])
        assert lint(table, server=server) == 0 and len(server.calls) == 8  # all known
    by = {(note["criterion_id"], note["kind"]): note["decided_by"] for note in found["findings"]}
    assert by == {("c0", "weight"): "rule", ("c1", "weight"): "Judy-7B"} and found["model"] == "Judy-7B"
    kinds = found["counts"]["kind"]
    assert kinds["weight"] == {"by_rules": 2, "by_model": 2, "cleared": 0, "undecided": 0}
    assert kinds["duplicate"] == {"by_rules": 0, "by_model": 0, "cleared": 2, "undecided": 0}
    assert kinds["compound"] == {"by_rules": 0, "by_model": 0, "cleared": 0, "undecided": 2}
    assert "this run: 6 asked, 0 known before, missing: unreadable 2" in told
    text = capsys.readouterr().out
    assert "e1 c0: weight (by rule: label)" in text and "e1 c1: weight (by Judy-7B: no label)" in text
    assert "e2 c4: compound (undecided by rules and Judy-7B: " in text and "duplicate (" not in text
    assert "rules left 6 doubts open; Judy-7B decided 4 of them, 2 as faults; undecided: 2" in text
    assert "this run: 0 asked, 6 known before" in text


def test_stopped_or_out_of_money_it_goes_on(table, capsys):
    prices = ["--price-in", "1e4", "--price-out", "1e4", "--max-tokens", "20"]  # an answer of 110 tokens costs 1.1
    with Server(lambda call: said("yes") if call.number < 3 else status(401, "no such key")) as server:
        assert lint(table, server=server) == 2
        assert "nothing more is asked" in capsys.readouterr().err and len(server.calls) == 3
        assert lint(table, *prices, "--dry-run", server=server) == 0
        out = capsys.readouterr().out
        assert "4 calls, one for each doubt; 2 are answered already, or occur twice" in out and "cost: " in out
        mended = table.parent / "mended.jsonl"
        assert lint(table, *prices, "--budget", "2.5", "--fix", str(mended), server=server) == 3  # 2.2 are spent
        out = capsys.readouterr().out
        assert f"{mended} is not written yet" in out and not mended.exists()
        assert "the budget of 2.5 ended the run" in out and "undecided: 4" in out and len(server.calls) == 3
        server.behave = lambda call: said("no")
        assert lint(table, *prices, "--budget", "99", server=server) == 0
        assert "decided 6 of them, 2 as faults; undecided: 0" in capsys.readouterr().out and len(server.calls) == 7
    with Ledger(table.parent / "examples-lint.sqlite", write=False) as ledger:
        assert ledger.spent(1e4, 1e4) == pytest.approx(6.6)


def test_what_is_mended_on_a_models_word_says_so(tmp_path, capsys):
    table, out = tmp_path / "t.jsonl", tmp_path / "mended.jsonl"
    criteria = (Criterion("c", "Does not mention the units.", dimension="VF", label="PITFALL", weight=-1.0),)
    write_examples(table, [Example("e", "Which?", (*CRITERIA[:2], *criteria))])
    with Server(lambda call: said("yes")) as server:
        assert lint(table, "--fix", str(out), "--ledger", str(tmp_path / "l.sqlite"), server=server) == 0
    assert "by Judy-7B" in capsys.readouterr().out and (tmp_path / "l.sqlite").exists()
    changes = [json.loads(line) for line in (tmp_path / "mended-changes.jsonl").read_text().splitlines()]
    assert [(change["criterion_id"], change["field"]) for change in changes] == [("c0", "weight")]  # only what is safe
    assert [c.weight for c in read_examples(out)[0].criteria] == [5.0, -1.0, -1.0]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--server", "http://localhost:1/v1"], "--model is missing"),
        (["--model", "m"], "--server is missing"),
        (["--dry-run"], "give --server and --model"),
        (["--server", "localhost", "--model", "m"], "is no address of a server"),
    ],
)
def test_flags_that_do_not_go_together(flags, message, table, capsys):
    assert lint(table, *flags) == 2
    assert message in capsys.readouterr().err
