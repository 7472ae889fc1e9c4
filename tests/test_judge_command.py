"""From rollouts to verdicts by commands: rollout, label, distill, judge, and what they refuse."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections import Counter
from pathlib import Path

import datasets
import pytest
from claimwise.scripts.cli import main
from claimwise.verifier.schema import Rollout
from claimwise.verifier.tables import read_examples, read_rollouts, read_verdicts, write_examples, write_rollouts
from distilling import settings
from judging import content
from servers import Server, say


def judge_flags(adapter: Path, tables: Path, out: Path) -> list[str]:
    examples, rollouts = str(tables / "examples.jsonl"), str(tables / "rollouts.jsonl")
    return ["judge", "--adapter", str(adapter), "--examples", examples, "--rollouts", rollouts, "--out", str(out)]


def load_table(path: Path, cache: Path) -> datasets.Dataset:
    kind = {".jsonl": "json", ".parquet": "parquet"}[path.suffix]
    return datasets.load_dataset(kind, data_files=str(path), split="train", cache_dir=str(cache))


def refused(argv: list[str], capsys) -> str:
    """The one line that the command ends with; above it there are progress bars at most."""
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert "Traceback" not in err and not out
    lines = err.splitlines()
    assert sum(line.startswith("claimwise ") for line in lines) == 1
    assert lines[-1].startswith(f"claimwise {argv[0]}: ")
    return lines[-1]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the file is empty"),
        (b"no picture", "it cannot be read as an image"),
        (None, "it cannot be read as an image"),
    ],
)
def test_a_broken_picture_is_one_line_and_mended_the_command_goes_on(world, tmp_path, capsys, content, reason):
    """The last example's, so that others are judged before; None: a picture cut in half."""
    shutil.copytree(world / "validation", tmp_path / "tables")
    image = sorted((tmp_path / "tables/images").iterdir())[-1]
    whole = image.read_bytes()
    image.write_bytes(whole[:400] if content is None else content)
    (tmp_path / "out").mkdir()
    line = refused(judge_flags(world / "image", tmp_path / "tables", tmp_path / "out/v.jsonl"), capsys)
    assert f"image {image}: {reason}" in line and "replace it or drop its row" in line
    assert [path.name for path in (tmp_path / "out").iterdir()] == []
    image.write_bytes(whole)
    assert main(judge_flags(world / "image", tmp_path / "tables", tmp_path / "out/v.jsonl")) == 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["v.jsonl"]
    # in text mode nobody looks at it, nor misses it
    image.unlink()
    flags = judge_flags(world / "text", tmp_path / "tables", tmp_path / "out/v.jsonl")
    assert main(flags) == 0
    assert main(["cascade", *flags, "--low", "0", "--high", "1", "--teacher", "oracle"]) == 0
    capsys.readouterr()
    assert f"there is no file {image}" in refused([*flags, "--adapter", str(world / "image")], capsys)


def test_what_the_judge_command_refuses(world, tmp_path, capsys):
    flags = judge_flags(world / "image", world / "validation", tmp_path / "v.jsonl")
    cases = {
        "is a verifier for image mode; it cannot judge in text mode": [*flags, "--mode", "text"],
        "tokens, max_packed_tokens is 20": [*flags, "--max-packed-tokens", "20"],
        "there is no adapter folder": judge_flags(world / "none", world / "validation", tmp_path / "v.jsonl"),
        "examples.jsonl: there is no such file": judge_flags(world / "image", world / "none", tmp_path / "v.jsonl"),
        "is no folder, nor found on the Hub": [*flags, "--base", "no/such-base"],
    }
    for told, argv in cases.items():
        assert told in refused(argv, capsys)
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (
            ["--adapter", "oracle", "--server", "http://nowhere:1/v1"],
            "--server is for a verifier, and the oracle is none",
        ),
        (["--adapter", "oracle", "--model", "m"], "--model is for a verifier, and the oracle is none"),
        (["--adapter", "oracle", "--base", "b"], "--base is for a verifier, and the oracle is none"),
        (["--adapter", "oracle", "--backend", "vllm"], "--backend is for a verifier, and the oracle is none"),
        (
            ["--adapter", "oracle", "--max-packed-tokens", "9"],
            "--max-packed-tokens is for a verifier, and the oracle is",
        ),
        (["--adapter", "oracle", "--seed", "0"], "--seed is for the attacks of --adversarial"),
        (
            ["--server", "http://nowhere:1/v1", "--model", "m", "--base", "b"],
            "base = 'b': only the verifier of an adapter",
        ),
        (
            ["--server", "http://nowhere:1/v1", "--model", "m", "--max-packed-tokens", "9"],
            "max_packed_tokens = 9: only a",
        ),
        (["--server", "http://nowhere:1/v1", "--model", "m", "--backend", "vllm"], "server or in vLLM here; give one"),
    ],
)
def test_no_flag_is_ignored(world, tmp_path, capsys, more, told):
    flags = judge_flags(world / "image", world / "validation", tmp_path / "v.jsonl")[3:]
    assert told in refused(["judge", *flags, *more], capsys)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("cascade", [False, True])
def test_where_no_table_can_be_written_nobody_judges(world, tmp_path, capsys, monkeypatch, cascade):
    """Not the wrong name, a folder, a place below a file; nor what is read, by whatever path. All before the work."""
    shutil.copytree(world / "validation", tmp_path / "tables")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.jsonl").mkdir()
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "tables/rollouts.jsonl")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    more = ["--low", "0", "--high", "1", "--teacher", "oracle"] if cascade else []
    cases = {
        "v.csv": "a table's name must end in .jsonl or .parquet",
        "folder.jsonl": "it cannot be written (it is a folder)",
        "tables/rollouts.jsonl/v.jsonl": "it cannot be written (nothing can be written to",
        "tables/../tables/rollouts.jsonl": "is read here and would be overwritten; give another --out",
        "tables/examples.jsonl": "is read here and would be overwritten",
        "link.jsonl": "is read here and would be overwritten",
    }
    for out, told in cases.items():
        argv = [*judge_flags(world / "image", tmp_path / "tables", Path(out)), *more]
        line = refused(["cascade", *argv] if cascade else argv, capsys)
        assert told in line and out in line
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_judge_that_answers_nothing_leaves_the_table_of_one_that_did(world, tmp_path, capsys):
    tables, out = world / "validation", tmp_path / "v.jsonl"
    flags = ["judge", "--mode", "text", "--examples", str(tables / "examples.jsonl"), "--out", str(out)]
    flags += ["--rollouts", str(tables / "rollouts.jsonl"), "--model", "m", "--server"]
    with Server() as server:
        assert main([*flags, server.url]) == 0
    before = out.read_bytes()
    with Server(lambda call: say("no idea")) as server:
        capsys.readouterr()
        line = refused([*flags, server.url], capsys)
    assert "none of 56 criteria was judged (56 unreadable), so nothing is written; the first: unreadable: " in line
    assert out.read_bytes() == before


@pytest.mark.parametrize(("has", "asked"), [("image", "text"), ("text", "image")])
def test_a_cascade_too_refuses_a_verifier_of_the_other_mode(world, tmp_path, capsys, has, asked):
    band = {"schema_version": 1, "band": [0.0, 1.0], "verifier": {"judge": f"verifier-{has}"}}
    (tmp_path / "c.json").write_text(json.dumps(band))
    flags = judge_flags(world / has, world / "validation", tmp_path / "v.jsonl")
    flags += ["--cascade", str(tmp_path / "c.json"), "--teacher", "oracle", "--max-calls", "2"]
    assert f"is a verifier for {has} mode; it cannot judge in {asked} mode" in refused(
        [*flags, "--mode", asked], capsys
    )
    assert main([*flags, "--mode", has]) == 0
    assert {v.mode for v in read_verdicts(tmp_path / "v.jsonl")} == {has}


def test_a_cascade_by_the_judge_command(world, tmp_path, capsys):
    """The table is that of `claimwise cascade judge`; a server's answers are in the ledger."""
    band = {"schema_version": 1, "band": [0.0, 1.0], "verifier": {"judge": "verifier-image", "mode": "image"}}
    file = tmp_path / "c.json"
    file.write_text(json.dumps(band))
    flags = judge_flags(world / "image", world / "validation", tmp_path / "v.jsonl")
    oracle = ["--teacher", "oracle", "--max-calls", "5"]
    assert main([*flags, "--cascade", str(file), *oracle]) == 0
    said = capsys.readouterr().out
    assert "5 by oracle-image" in said and "5 answered by the teacher with 5 questions" in said
    other = judge_flags(world / "image", world / "validation", tmp_path / "w.jsonl")
    assert main(["cascade", *other, "--band", str(file), *oracle]) == 0
    verdicts = read_verdicts(tmp_path / "v.jsonl")
    assert content(verdicts) == content(read_verdicts(tmp_path / "w.jsonl"))
    assert Counter(v.judge for v in verdicts)["oracle-image"] == 5
    with Server() as server:
        teacher = ["--teacher", server.url, "--teacher-model", "m", "--ledger", str(tmp_path / "l.sqlite")]
        for calls in (3, 3, 4):
            assert main([*flags, "--cascade", str(file), *teacher, "--max-calls", str(calls)]) == 0
            assert len(server.calls) == calls
            assert Counter(v.judge for v in read_verdicts(tmp_path / "v.jsonl"))["m"] == calls
    capsys.readouterr()
    (tmp_path / "other.json").write_text(json.dumps({**band, "verifier": {"judge": "v"}}))
    cases = {
        "was chosen for a verifier with judge 'v'": ["--cascade", str(tmp_path / "other.json"), *oracle],
        "--max-calls is for a cascade": ["--max-calls", "3"],
        "and a teacher with --teacher oracle or its URL": ["--cascade", str(file)],
        "--teacher-model is what a teacher behind a server needs": ["--cascade", str(file), "--teacher", server.url],
        "--ledger is what a teacher behind a server needs": ["--cascade", str(file), *oracle, "--ledger", "l.sqlite"],
    }
    for told, more in cases.items():
        assert told in refused([*flags, *more], capsys)


def test_from_rollouts_to_verdicts_by_commands(world, tmp_path, capsys):
    """rollout, label, distill, judge; each table loads with datasets."""
    examples, out = world / "validation/examples.jsonl", tmp_path / "out"
    rollouts, gold = out / "rollouts.parquet", out / "gold.jsonl"
    common = ["--examples", str(examples), "--rollouts", str(rollouts)]

    rollout = ["rollout", "--policy", str(world / "base"), "--examples", str(examples), "--out", str(rollouts)]
    assert main([*rollout, "--samples", "1", "--max-new-tokens", "12", "--references", "--edits", "1"]) == 0
    # 4 sampled, 4 references, and an edited one of each (of a sampled one only where an edit applies)
    table = load_table(rollouts, tmp_path / "cache")
    assert 12 <= len(table) <= 16 and table["policy"][:8] == ["policy"] * 4 + ["reference"] * 4
    assert (
        f"{rollouts}: {len(table)} rollouts of 4 examples, {len(table) - 8} of them edited" in capsys.readouterr().out
    )

    assert main(["label", "--teacher", "oracle", "--mode", "image", *common, "--out", str(gold)]) == 0
    labelled = load_table(gold, tmp_path / "cache")
    assert len(labelled) == 7 * len(table)
    counts = {answer: labelled["verdict"].count(answer) for answer in (True, False)}
    told = f"{gold}: {len(labelled)} verdicts, {counts[True]} yes, {counts[False]} no, 0 missing"
    assert told in capsys.readouterr().out

    recipe = tmp_path / "recipe.yaml"
    values = {k: v for k, v in settings(world / "base", world, out).items() if "_dir" not in k and k not in
              ("examples", "rollouts", "verdicts")}  # fmt: skip
    recipe.write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in values.items()))
    flags = [*common, "--verdicts", str(gold), "--output_dir", str(out / "verifier")]
    assert main(["distill", "--config", str(recipe), *flags, "--max_steps", "2"]) == 0
    assert f"{out / 'verifier'}: verifier for image mode" in capsys.readouterr().out
    assert json.loads((out / "verifier/run.json").read_text())["max_steps"] == 2  # the flag wins over the recipe's 3

    judged = ["judge", "--adapter", str(out / "verifier"), *common, "--mode", "image", "--out"]
    assert main([*judged, str(out / "own.jsonl")]) == 0
    verdicts = read_verdicts(out / "own.jsonl")
    assert [v.key for v in verdicts] == [v.key for v in read_verdicts(gold)]
    own = load_table(out / "own.jsonl", tmp_path / "cache")
    assert set(own["judge"]) == {"verifier-image"} and set(own["mode"]) == {"image"}
    yes = own["verdict"].count(True)
    told = f"{out / 'own.jsonl'}: {len(own)} verdicts by verifier-image, {yes} yes, {len(own) - yes} no"
    assert told in capsys.readouterr().out
    assert not [path for path in out.rglob("*") if path.name.endswith((".tmp", ".part"))]


def test_the_same_seed_gives_the_same_rollouts(world, tmp_path):
    base, examples = str(world / "base"), str(world / "validation/examples.jsonl")
    flags = [
        "rollout",
        "--policy",
        base,
        "--examples",
        examples,
        "--samples",
        "2",
        "--max-new-tokens",
        "8",
        "--edits",
        "1",
    ]
    for name, seed in (("one", "7"), ("two", "7"), ("other", "8")):
        assert main([*flags, "--seed", seed, "--out", str(tmp_path / f"{name}.jsonl")]) == 0
    one, two, other = ((tmp_path / f"{name}.jsonl").read_bytes() for name in ("one", "two", "other"))
    assert one == two != other
    rows = read_rollouts(tmp_path / "one.jsonl")
    sampled = [row for row in rows if row.edit is None]
    assert [(r.example_id, r.sample_index) for r in sampled] == [
        (e.example_id, i) for e in read_examples(examples) for i in (0, 1)
    ]
    assert len({r.response for r in sampled}) == 8  # at temperature 1 siblings differ
    assert all(r.finish_reason in ("stop", "length") for r in rows)


def test_greedy_rollouts_do_not_depend_on_the_seed(world, tmp_path):
    base, examples = str(world / "base"), str(world / "validation/examples.jsonl")
    flags = ["rollout", "--policy", base, "--examples", examples, "--samples", "1", "--max-new-tokens", "8"]
    for seed in ("1", "2"):
        out = str(tmp_path / f"{seed}.jsonl")
        assert main([*flags, "--temperature", "0", "--seed", seed, "--out", out]) == 0
    assert (tmp_path / "1.jsonl").read_bytes() == (tmp_path / "2.jsonl").read_bytes()


def test_the_oracle_labels_only_its_own_world(world, tmp_path, capsys):
    example = read_examples(world / "validation/examples.jsonl")[0]
    write_examples(tmp_path / "examples.jsonl", [dataclasses.replace(example, example_id="chart_1", images=())])
    write_rollouts(tmp_path / "rollouts.jsonl", [Rollout("r", "chart_1", "It is 7.", "policy")])
    flags = ["label", "--examples", str(tmp_path / "examples.jsonl"), "--rollouts", str(tmp_path / "rollouts.jsonl")]
    told = "example 'chart_1' is not of the digits world, so the oracle cannot judge it"
    assert told in refused([*flags, "--out", str(tmp_path / "v.jsonl")], capsys)
    assert not (tmp_path / "v.jsonl").exists()
