"""`claimwise judge` and `claimwise cascade judge`, stopped: what is judged is kept, and the same command goes on."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from claimwise.scripts.cli import main
from claimwise.verifier.adapter import read_card
from claimwise.verifier.judge import PackedJudge
from claimwise.verifier.tables import read_examples, read_rollouts, read_verdicts, write_examples, write_rollouts
from judging import content
from servers import Server, say, status
from test_judge_command import judge_flags, refused


@pytest.fixture
def passes(monkeypatch) -> Iterator[list[int]]:
    """Rows of each pass so far, one a pass; once `passes.limit` have been made, Ctrl-C."""

    class Passes(list):
        limit = 10**9

    made, answer = Passes(), PackedJudge._answer

    def counted(self, batch):
        if len(made) == made.limit:
            raise KeyboardInterrupt
        made.append(len(batch))
        return answer(self, batch)

    monkeypatch.setattr("claimwise.verifier.judge.check_effect", lambda *_: None)  # it judges too
    monkeypatch.setattr(PackedJudge, "_answer", counted)
    yield made


def small_passes(world: Path, out: Path) -> list[str]:
    return [*judge_flags(world / "image", world / "validation", out), "--max-packed-tokens", "400"]


def count_of(part: Path) -> int:
    return len(part.read_text().splitlines()) - 1


@pytest.mark.parametrize("cascade", [False, True])
def test_the_same_command_goes_on_and_ends_the_same(world, tmp_path, passes, capsys, cascade):
    whole, out = tmp_path / "whole.jsonl", tmp_path / "v.jsonl"
    more = ["--low", "0.2", "--high", "0.8", "--teacher", "oracle"] if cascade else []

    def run(to: Path) -> int:
        argv = [*small_passes(world, to), *more]
        return main(["cascade", *argv] if cascade else argv)

    assert run(whole) == 0
    total, passes.limit = sum(passes), 2
    assert len(passes) > 2
    passes.clear()
    assert run(out) == 130 and "stopped; the same command goes on from here" in capsys.readouterr().err
    part = tmp_path / "v.jsonl.part"
    kept = sum(passes)
    assert not out.exists() and count_of(part) == kept
    with part.open("a") as file:
        file.write('{"rollout_id": "cut o')
    passes.clear()
    passes.limit = 10**9
    assert run(out) == 0 and sum(passes) == total - kept
    assert sorted(path.name for path in tmp_path.iterdir()) == ["v.jsonl", "whole.jsonl"]
    for found, wanted in zip(read_verdicts(out), read_verdicts(whole), strict=True):
        assert content([found]) == content([wanted]) or found.p_yes == pytest.approx(wanted.p_yes, abs=1e-4)
        assert (found.key, found.verdict, found.judge) == (wanted.key, wanted.verdict, wanted.judge)


def test_other_responses_or_another_judge_do_not_go_on_there(world, tmp_path, passes, capsys):
    tables = shutil.copytree(world / "validation", tmp_path / "tables")
    passes.limit = 2
    argv = [*judge_flags(world / "image", tables, tmp_path / "v.jsonl"), "--max-packed-tokens", "400"]
    assert main(argv) == 130
    part, passes.limit = (tmp_path / "v.jsonl.part").read_bytes(), 10**9
    capsys.readouterr()
    text = [word if word != str(world / "image") else str(world / "text") for word in argv]
    line = refused(text, capsys)
    assert (
        "v.jsonl.part was begun with other settings: adapter (" in line and "mode ('image' there, 'text' now)" in line
    )
    rollouts = read_rollouts(tables / "rollouts.jsonl")
    write_rollouts(tables / "rollouts.jsonl", rollouts[1:])
    assert "other settings: responses (" in refused(argv, capsys)
    assert (tmp_path / "v.jsonl.part").read_bytes() == part and not (tmp_path / "v.jsonl").exists()


def picture_replaced(tables: Path, adapter: Path) -> None:
    first, other, *_ = sorted((tables / "images").iterdir())
    shutil.copy(other, first)


def temperature_changed(tables: Path, adapter: Path) -> None:
    dataclasses.replace(read_card(adapter), temperature=9.0).write(adapter)


def criterion_rewritten(tables: Path, adapter: Path) -> None:
    """The first of each example."""
    examples = read_examples(tables / "examples.jsonl")
    for k, example in enumerate(examples):
        first, *others = example.criteria
        first = dataclasses.replace(first, text=f"{first.text} Really.")
        examples[k] = dataclasses.replace(example, criteria=(first, *others))
    write_examples(tables / "examples.jsonl", examples)


@pytest.mark.parametrize(
    ("change", "what"),
    [(picture_replaced, "responses"), (temperature_changed, "temperature"), (criterion_rewritten, "responses")],
)
@pytest.mark.parametrize("adversarial", [False, True])
def test_what_was_changed_under_the_same_name_does_not_go_on_there(
    world, tmp_path, passes, capsys, change, what, adversarial
):
    tables, adapter = (shutil.copytree(world / name, tmp_path / name) for name in ("validation", "image"))
    argv = small_passes(tmp_path, tmp_path / "v.jsonl")
    if adversarial:
        at = argv.index("--rollouts")
        argv = [*argv[:at], *argv[at + 2 :], "--adversarial"]
    argv += ["--base", str(base_of(world / "image"))]
    passes.limit = 2
    assert main(argv) == 130
    capsys.readouterr()
    change(tables, adapter)
    passes.limit = 10**9
    assert f"other settings: {what} (" in refused(argv, capsys)


def base_of(adapter: Path) -> Path:
    return (adapter / read_card(adapter).base).resolve()


def test_what_a_server_fails_on_is_asked_again_by_the_same_command(world, tmp_path, capsys):
    """It fails on one criterion; the table has the others, and the part stays until it has them all."""
    tables, asked = world / "validation", []
    failing = read_examples(tables / "examples.jsonl")[0].criteria[0].text

    def fails_on_one(call):
        asked.append(call)
        return status(500) if call.question["criterion"] == failing else say('{"quote": "", "verdict": "no"}')

    argv = ["judge", "--mode", "text", "--examples", str(tables / "examples.jsonl"), "--model", "m"]
    argv += ["--rollouts", str(tables / "rollouts.jsonl"), "--out", str(tmp_path / "v.jsonl"), "--server"]
    with Server(fails_on_one) as server:
        assert main([*argv, server.url]) == 3
        told, warned = capsys.readouterr()
    failed = sum(v.verdict is None for v in read_verdicts(tmp_path / "v.jsonl"))
    assert failed and f"{failed} missing ({failed} server" in told
    assert f"the server failed on {failed}: the same command asks for them again" in warned
    rest: list[object] = []
    with Server(lambda call: rest.append(call) or say('{"quote": "", "verdict": "no"}')) as server:
        assert main([*argv, server.url]) == 0
    assert 0 < len(rest) < len(asked) / 2 and not (tmp_path / "v.jsonl.part").exists()
    assert all(v.verdict is False for v in read_verdicts(tmp_path / "v.jsonl"))


def test_a_server_that_refuses_half_way_costs_what_is_left(world, tmp_path, capsys):
    """The key is withdrawn after some answers; with a good one the rest is asked, and nothing twice."""
    tables, asked = world / "validation", []

    def withdrawn(call):
        asked.append(call)
        return (
            say('{"quote": "", "verdict": "no"}') if len(asked) <= 20 else dataclasses.replace(status(401), wait_s=0.5)
        )

    argv = ["judge", "--mode", "text", "--examples", str(tables / "examples.jsonl"), "--model", "m"]
    argv += ["--rollouts", str(tables / "rollouts.jsonl"), "--out", str(tmp_path / "v.jsonl"), "--server"]
    with Server(withdrawn) as server:
        assert "401" in refused([*argv, server.url], capsys)
    kept = count_of(tmp_path / "v.jsonl.part")
    assert 1 <= kept <= 2
    rest: list[object] = []
    with Server(lambda call: rest.append(call) or say('{"quote": "", "verdict": "no"}')) as server:
        assert main([*argv, server.url]) == 0
    verdicts = read_verdicts(tmp_path / "v.jsonl")
    assert len(rest) <= len(verdicts) - 7 * kept and all(v.verdict is False for v in verdicts)
