"""The ceiling in three ways, by the commands that make it: a teacher behind a server asked again, in other words and in
the other mode, each beside every figure of `claimwise agree`."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import pytest
from claimwise.scripts.cli import main
from claimwise.verifier.schema import Criterion, Example, Rollout
from claimwise.verifier.tables import read_verdicts, write_examples, write_rollouts
from PIL import Image
from servers import Server, say

CRITERIA = tuple(
    Criterion(f"c{n}", f"It says {n}.", dimension=("VF", "RC")[n % 2], label="ESSENTIAL") for n in range(4)
)
EXAMPLES = [Example(f"e{n}", "What?", CRITERIA, (Image.new("RGB", (64, 64), (n, 9, 9)),)) for n in range(10)]
ROLLOUTS = [Rollout(f"r{n}", f"e{n % 10}", f"It says {n % 3}. It says {n % 4}.", "p") for n in range(20)]


def moody(time):
    """A teacher that answers about one question in ten the other way, another one each `time` and in other words."""

    def answer(call):
        question = call.question
        text = question["criterion"].replace("The response states", "It says")
        seed = json.dumps([time, call.body["messages"]])
        slips = hashlib.sha256(seed.encode()).digest()[0] < 26
        holds = (text in question["response"]) ^ slips
        return say(json.dumps({"quote": text if holds else "", "verdict": "yes" if holds else "no"}))

    return answer


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """Verdicts at first, again, in other words, and in image mode."""
    folder = tmp_path_factory.mktemp("teacher")
    said = [replace(c, text=c.text.replace("It says", "The response states")) for c in CRITERIA]
    write_examples(folder / "e.parquet", EXAMPLES)
    write_examples(folder / "in-other-words.parquet", [replace(e, criteria=tuple(said)) for e in EXAMPLES])
    write_rollouts(folder / "r.jsonl", ROLLOUTS)
    for time, (name, examples, mode) in enumerate(
        [("first", "e", "text"), ("again", "e", "text"), ("words", "in-other-words", "text"), ("mode", "e", "image")]
    ):
        with Server(moody(time)) as server:
            argv = ["label", "--teacher", server.url, "--model", "m", "--mode", mode, "--out", folder / f"{name}.jsonl"]
            argv += ["--ledger", folder / f"{name}.sqlite", "--rollouts", folder / "r.jsonl"]
            assert main([*map(str, argv), "--examples", str(folder / f"{examples}.parquet")]) == 0
    return folder


def test_three_ceilings_stand_beside_every_figure(tables, capsys):
    argv = ["agree", *(str(tables / f"{name}.jsonl") for name in ("first", "again"))]
    for name in ("again", "words", "mode"):
        argv += ["--ceiling", str(tables / f"{name}.jsonl")]
    argv += ["--by", "all", "--examples", str(tables / "e.parquet"), "--rollouts", str(tables / "r.jsonl")]
    argv += ["--draws", "50"]
    assert main([*argv, "--json"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    ceilings = result["ceiling"]
    first = {v.key: v.verdict for v in read_verdicts(tables / "first.jsonl")}
    for found, name in zip(ceilings, ("again", "words", "mode"), strict=True):
        other = {v.key: v.verdict for v in read_verdicts(tables / f"{name}.jsonl")}
        alike = sum(other[key] == verdict for key, verdict in first.items()) / len(first)
        assert found["overall"]["agreement"] == pytest.approx(alike) and 0.6 < alike < 1
        assert found["overall"]["n"] == 80 and found.keys() >= {"by_dimension", "by_label", "by_length", "by_policy"}
    assert [found["mode"] for found in ceilings] == [["text"], ["text"], ["image"]]
    assert [found["most_agreement"] is None for found in ceilings] == [False, False, True]  # the mode: another question
    assert main(argv) == 0
    lines = capsys.readouterr().out.splitlines()
    for start in ("overall", "VF", "RC", "label: ESSENTIAL", "policy: p"):
        at = next(i for i, line in enumerate(lines) if line.startswith(start))
        assert [lines[at + k].split()[:2] for k in (1, 2, 3)] == [["ceiling", str(k)] for k in (1, 2, 3)]
