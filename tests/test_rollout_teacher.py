"""`claimwise rollout --difficulty --teacher`: who decides which answer, and what stays undecided."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from claimwise.distill.ledger import Ledger
from claimwise.scripts.cli import main
from claimwise.verifier.schema import Criterion, Example
from claimwise.verifier.tables import read_examples, read_rollouts, write_examples
from servers import Call, Server, say, status

RIGHT, WRONG, UNCLEAR, VAGUE = "Answer: 7", "Answer: 8", "There are seven of them.", "There are some."
SAID = {
    "open": [UNCLEAR, VAGUE, *[WRONG] * 6],  # hard, or medium with UNCLEAR right
    "clear": [UNCLEAR, RIGHT, *[WRONG] * 6],  # medium either way
    "unknown": [RIGHT] * 8,  # no answer to ask about
    "easy": [*[RIGHT] * 7, UNCLEAR],
}


class Both:
    """A policy that says what SAID has, and a teacher that takes UNCLEAR for the answer."""

    def __init__(self) -> None:
        self.seeds: dict[str, list[int]] = {}
        self.teach = lambda call: say(json.dumps({"quote": "", "verdict": self.verdict(call)}), usage=(100, 10))

    def verdict(self, call: Call) -> str:
        assert call.question["criterion"] == "Gives the final answer 7."
        return "yes" if call.question["response"] == UNCLEAR else "no"

    def __call__(self, call: Call):
        if call.body["model"] == "teacher":
            return self.teach(call)
        name = call.body["messages"][0]["content"][-1]["text"]
        seeds = self.seeds.setdefault(name, [])
        seeds.append(call.body["seed"])
        return say(SAID[name][len(seeds) - 1])


@pytest.fixture
def table(tmp_path) -> Path:
    path, criteria = tmp_path / "examples.jsonl", (Criterion("c", "Says how many."),)
    write_examples(path, [Example(n, n, criteria, answer=None if n == "unknown" else "7") for n in SAID])
    return path


def command(server: Server, table: Path, *more: str) -> list[str]:
    policy = ["--server", server.url, "--policy", "tiny", "--in-flight", "1", "--samples", "8", "--difficulty"]
    out = ["--examples", str(table), "--out", str(table.parent / "r.jsonl")]
    return ["rollout", *policy, *out, "--teacher", server.url, "--teacher-model", "teacher", *more]


def asked(server: Server) -> list[str]:
    return [call.question["response"] for call in server.calls if call.body["model"] == "teacher"]


def rows_of(table: Path) -> dict[str, dict]:
    lines = (table.parent / "r-examples-counts.jsonl").read_text().splitlines()
    return {row["example_id"]: row for row in map(json.loads, lines)}


def test_only_what_rules_leave_open_and_what_matters(table, capsys):
    with Server(Both()) as server:
        assert main(command(server, table)) == 0
        assert asked(server) == [UNCLEAR, VAGUE, UNCLEAR]  # of "open" and "easy"; two questions are never the same
    said = capsys.readouterr().out
    assert "r-examples.jsonl: 0 hard, 2 medium, 0 simple, 1 all right, 1 open; left out as all right: easy" in said
    assert "decided by the teacher: 3 (teacher: 2 right, 1 wrong); still undecided: 9 (9 not asked: they bear" in said
    assert "this run: 3 asked, 0 known before" in said and "300 prompt and 30 completion tokens" in said
    rows = rows_of(table)
    assert [(row["right"], row["difficulty"]) for row in rows.values()] == [
        (1, "medium"),
        (1, "medium"),
        (0, None),
        (8, "all right"),
    ]
    by_teacher = [list(row["by_teacher"].values()) for row in rows.values()]
    assert by_teacher == [[True, False], [], [], [True]] and len(rows["clear"]["undecided"]) == 1
    assert [e.difficulty for e in read_examples(table.parent / "r-examples.jsonl")] == ["medium", "medium", None]
    assert len(read_rollouts(table.parent / "r.jsonl")) == 32 and not (table.parent / "r.jsonl.part").exists()


def test_what_the_teacher_cannot_say_is_never_wrong(table, capsys):
    both = Both()
    honest = both.teach
    both.teach = lambda call: say("Who knows?") if call.question["response"] == VAGUE else honest(call)
    with Server(both) as server:
        assert main(command(server, table)) == 0
        assert asked(server) == [UNCLEAR, VAGUE, VAGUE, UNCLEAR]  # once more what could not be read
    assert (
        "decided by the teacher: 2 (teacher: 2 right, 0 wrong); still undecided: 10 (9 not" in capsys.readouterr().out
    )
    rows = rows_of(table)
    assert (rows["open"]["right"], len(rows["open"]["undecided"]), rows["open"]["difficulty"]) == (1, 1, "medium")


def test_a_teacher_that_fails_costs_nothing_and_is_asked_again(table, capsys):
    both = Both()
    honest, both.teach = both.teach, lambda call: status(401, "no such key")
    with Server(both) as server:
        assert main(command(server, table)) == 2
        assert "nothing more is asked" in capsys.readouterr().err and len(asked(server)) == 1
        both.teach = lambda call: honest(call) if call.question["response"] == UNCLEAR else status(400, "too odd")
        assert main(command(server, table)) == 0
        assert "still undecided: 10" in capsys.readouterr().out and rows_of(table)["open"]["right"] == 1
        assert (table.parent / "r.jsonl.part").exists()  # one may be asked again
        both.teach = honest
        before = len(server.calls)
        assert main(command(server, table)) == 0
        assert "decided by the teacher: 3" in capsys.readouterr().out
        assert len(server.calls) == before + 1 and not (table.parent / "r.jsonl.part").exists()


def test_dry_run_and_budget(table, capsys):
    prices = ["--price-in", "1e4", "--price-out", "1e4"]  # an answer of 110 tokens costs 1.1
    folder = table.parent
    with Server(Both()) as server:
        assert main(command(server, table, *prices, "--dry-run")) == 0
        said = capsys.readouterr().out
        assert "3 calls: answers that no rule decides; 0 are answered already" in said and "cost: " in said
        assert not asked(server) and {p.name for p in folder.glob("r*")} <= {"r.jsonl.part", "r.jsonl.part.lock"}
        assert main(command(server, table, *prices, "--max-tokens", "20", "--budget", "0.5")) == 3
        said = capsys.readouterr().out
        assert "r-examples.jsonl: not written yet" in said and "the budget of 0.5 ended the run" in said
        assert not asked(server) and not (folder / "r-examples.jsonl").exists() and (folder / "r.jsonl").exists()
        assert main(command(server, table, *prices, "--max-tokens", "20", "--budget", "90")) == 0
    assert "decided by the teacher: 3" in capsys.readouterr().out and len(server.calls) == 32 + 3
    with Ledger(folder / "r-teacher.sqlite", write=False) as ledger:
        assert ledger.spent() == pytest.approx(3.3)


BAD = {
    "--teacher-model is missing": ["--teacher", "http://localhost:1/v1", "--difficulty"],
    "give --difficulty too": ["--teacher", "http://localhost:1/v1", "--teacher-model", "m"],
    "--teacher-model is for a teacher behind a server": ["--teacher-model", "m", "--difficulty"],
    "--dry-run is for a teacher behind a server": ["--dry-run", "--difficulty"],
    "is no address of a server": ["--teacher", "localhost", "--teacher-model", "m", "--difficulty"],
    "a budget needs both prices": ["--teacher", "http://h/v1", "--teacher-model", "m", "--difficulty", "--budget", "1"],
}


@pytest.mark.parametrize("told", BAD)
def test_flags_that_do_not_go_together(told, table, capsys):
    fixed = ["rollout", "--policy", "p", "--samples", "8", "--examples", str(table)]
    assert main([*fixed, "--out", str(table.parent / "r.jsonl"), *BAD[told]]) == 2
    assert told in capsys.readouterr().err
