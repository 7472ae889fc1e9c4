"""The verifier as a judge: a distilled adapter loaded again, what it refuses, and the commands end to end."""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import shutil
from pathlib import Path

import datasets
import pytest
import torch
from claimwise.distill.config import DistillConfig
from claimwise.distill.run import distill
from claimwise.scripts.cli import main
from claimwise.verifier import InputError, load_judge
from claimwise.verifier.judge import base_judge
from claimwise.verifier.model import load_model
from claimwise.verifier.prompt import prompt_hash
from claimwise.verifier.schema import Rollout
from claimwise.verifier.sentences import split_sentences, trim
from claimwise.verifier.tables import (
    pair_up,
    read_examples,
    read_rollouts,
    read_verdicts,
    write_examples,
    write_rollouts,
)
from safetensors.torch import load_file, save_file
from test_distill import make_base, make_tables, settings


@pytest.fixture(scope="session")
def world(tmp_path_factory) -> Path:
    """A folder with base/, train/, validation/ and the distilled verifiers image/ and text/; tests change copies."""
    folder = tmp_path_factory.mktemp("judge")
    base = make_base(folder / "base")
    make_tables(folder / "train", "train", 8)
    make_tables(folder / "validation", "validation", 4)
    for mode in ("image", "text"):
        distill(DistillConfig(**{**settings(base, folder, folder / mode, mode), "max_steps": 6}))
    return folder


@pytest.fixture(scope="session")
def pairs(world):
    held_out = world / "validation"
    return pair_up(read_examples(held_out / "examples.jsonl"), read_rollouts(held_out / "rollouts.jsonl"))


@pytest.fixture(scope="module")
def judge(world):
    return load_judge(world / "image", mode="image")


@pytest.fixture
def adapter(world, tmp_path) -> Path:
    """A copy of the image verifier, to be spoilt."""
    shutil.copytree(world / "image", tmp_path / "adapter")
    return tmp_path / "adapter"


def edit_card(folder: Path, **changes) -> None:
    card = json.loads((folder / "verifier.json").read_text())
    (folder / "verifier.json").write_text(json.dumps({**card, **changes}))


def margin(verdict) -> float:
    return math.log(verdict.p_yes / (1 - verdict.p_yes))


# --- verdicts ---


@pytest.mark.parametrize("mode", ["image", "text"])
def test_verdict_rows_are_complete(world, pairs, mode):
    verdicts = load_judge(world / mode).judge(pairs)
    assert len(pairs) == 8 and len(verdicts) == 8 * 7
    for verdict in verdicts:
        assert (verdict.judge, verdict.mode, verdict.error) == (f"verifier-{mode}", mode, None)
        assert verdict.prompt_hash == prompt_hash(mode, mode == "image")
        assert datetime.datetime.fromisoformat(verdict.created_at or "").tzinfo is not None
        assert verdict.verdict is (verdict.p_yes > 0.5) and 0 < verdict.p_yes < 1
        assert (verdict.reading is None) == (mode == "text")
    assert [v.dimension for v in verdicts] == [c.group for example, _ in pairs for c in example.criteria]
    assert {v.dimension for v in verdicts} == {"VF", "RC", "IF", "PITFALL"}


def test_the_order_is_items_then_criteria(judge, pairs):
    keys = [(rollout.rollout_id, c.id) for example, rollout in pairs for c in example.criteria]
    assert [v.key for v in judge.judge(pairs)] == keys
    assert [v.key for v in judge.judge(pairs[::-1])] == [key for i in range(8) for key in keys[7 * (7 - i) :][:7]]
    assert judge.judge([]) == []


def test_spans_are_sentences_of_the_response(judge, pairs):
    response_of = {rollout.rollout_id: rollout.response for _, rollout in pairs}
    verdicts = judge.judge(pairs)
    pointed = [v for v in verdicts if v.span is not None]
    assert len(pointed) > 10  # this verifier points
    for verdict in pointed:
        response = response_of[verdict.rollout_id]
        assert verdict.span in [trim(response, sentence) for sentence in split_sentences(response)]
        assert verdict.match == "pointer"
    assert all(v.match == "none" for v in verdicts if v.span is None)


def test_an_empty_response_is_judged_and_points_nowhere(judge, pairs):
    example = pairs[0][0]
    verdicts = judge.judge([(example, Rollout("empty", example.example_id, "", "policy"))])
    assert [(v.span, v.match) for v in verdicts] == [(None, "none")] * 7
    assert all(v.verdict is not None for v in verdicts)


def test_items_come_as_they_are_ready(judge, world, pairs):
    """A list per item, in order, and the same verdicts as in one go, even where each response takes two passes."""
    whole = judge.judge(pairs)
    small = load_judge(world / "image", max_packed_tokens=200)
    branches = [judge.model.encoder.branch(c.text) for c in pairs[0][0].criteria]
    assert len(judge.model.tree(pairs[0][0], pairs[0][1].response, branches, "image")) > 200  # so it takes two passes
    for each in (judge.judge_each(pairs), small.judge_each(pairs)):
        first = next(each)
        assert [v.key for v in first] == [v.key for v in whole[:7]]
        rows = [first, *each]
        assert [len(row) for row in rows] == [7] * 8
        got = [v for row in rows for v in row]
        assert [(v.key, v.verdict, v.span, v.reading) for v in got] == [
            (v.key, v.verdict, v.span, v.reading) for v in whole
        ]
        assert max(abs(margin(a) - margin(b)) for a, b in zip(got, whole, strict=True)) < 1e-3


def test_the_adapter_changes_what_the_base_says(adapter, world, pairs):
    """An adapter that loads without effect is vllm#39369; here it must show, at the base's own temperature."""
    edit_card(adapter, temperature=1.0)
    base = base_judge(load_model(world / "base", dtype=torch.float32), "image", "base", readings=True)
    own, bare = load_judge(adapter).judge(pairs), base.judge(pairs)
    assert [v.key for v in own] == [v.key for v in bare]
    assert sum(abs(margin(a) - margin(b)) > 0.01 for a, b in zip(own, bare, strict=True)) > 28  # more than half
    assert {v.judge for v in bare} == {"base"}


def test_the_same_verifier_says_the_same_again(world, judge, pairs):
    def said(verdicts):
        return [dataclasses.replace(v, created_at=None) for v in verdicts]

    assert said(load_judge(world / "image").judge(pairs)) == said(judge.judge(pairs))


def test_the_temperature_is_the_cards(adapter, pairs):
    """P(yes) = sigmoid(margin / T): at T = 4 the logit is half of that at T = 2, and the verdicts are the same."""
    said = {}
    for temperature in (2.0, 4.0):
        edit_card(adapter, temperature=temperature)
        said[temperature] = load_judge(adapter).judge(pairs[:2])
    for warm, hot in zip(said[2.0], said[4.0], strict=True):
        assert margin(warm) == pytest.approx(2 * margin(hot), abs=1e-6)
        assert warm.verdict == hot.verdict


def test_text_mode_judges_without_pictures(world, pairs):
    judge = load_judge(world / "text", mode="text")
    bare = [(dataclasses.replace(example, images=()), rollout) for example, rollout in pairs]
    assert [v.p_yes for v in judge.judge(bare)] == [v.p_yes for v in judge.judge(pairs)]


# --- what is refused ---


def test_another_base_is_refused(world, tmp_path):
    """One weight of a copy changed by a hair."""
    shutil.copytree(world / "base", tmp_path / "other")
    file = tmp_path / "other/model.safetensors"
    weights = load_file(file)
    next(iter(weights.values())).view(-1)[0] += 1e-3
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(InputError) as refusal:
        load_judge(world / "image", base=tmp_path / "other")
    assert f"{world / 'image'}: the adapter was trained on base " in str(refusal.value)
    assert f"but {tmp_path / 'other'} is " in str(refusal.value)


def test_the_same_base_elsewhere_will_do(world, adapter, pairs, tmp_path, judge):
    """Given by hand, or named relative to the adapter's folder."""
    shutil.copytree(world / "base", tmp_path / "copy")
    wanted = [v.p_yes for v in judge.judge(pairs[:1])]
    assert [v.p_yes for v in load_judge(adapter, base=tmp_path / "copy").judge(pairs[:1])] == wanted
    edit_card(adapter, base="../copy")
    assert [v.p_yes for v in load_judge(adapter).judge(pairs[:1])] == wanted


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"prompt_hash": "0123456789abcdef"},
            "the adapter was trained on prompt 0123456789abcdef, this version writes",
        ),
        ({"readings": False}, "the adapter was trained on prompt"),  # the shorter form is another prompt
        ({"mode": "text"}, "the adapter was trained on prompt"),
        ({"schema_version": 2}, "is of schema version 2, this is 1; distil it again"),
        ({"schema_version": 2, "a_later_field": 1}, "is of schema version 2, this is 1; distil it again"),
        ({"base_hash": "0123456789abcdef"}, "the adapter was trained on base 0123456789abcdef, but"),
        ({"base": "no/such-base"}, "the base model 'no/such-base' is no folder, nor found on the Hub"),
        ({"mode": "video"}, "is not what claimwise distill writes"),
        ({"unknown": 1}, "is not what claimwise distill writes"),
    ],
)
def test_a_card_of_another_adapter_is_refused(adapter, changes, told):
    edit_card(adapter, **changes)
    with pytest.raises(InputError) as refusal:
        load_judge(adapter)
    assert told in str(refusal.value) and "\n" not in str(refusal.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "[1]", "null", '"image"'])
def test_a_card_that_is_none_is_refused(adapter, text):
    (adapter / "verifier.json").write_text(text)
    with pytest.raises(InputError, match=r"verifier\.json"):
        load_judge(adapter)


def test_a_folder_without_a_card_is_refused(adapter):
    """So is the folder of a run that has not ended, and a plain peft adapter."""
    (adapter / "verifier.json").unlink()
    with pytest.raises(InputError, match=r"has no verifier\.json; give a folder that claimwise distill wrote"):
        load_judge(adapter)
    with pytest.raises(InputError, match=r"there is no adapter folder .*/no-such; claimwise distill makes one"):
        load_judge(adapter / "no-such")


@pytest.mark.parametrize(("has", "asked"), [("image", "text"), ("text", "image")])
def test_the_other_mode_is_refused(world, has, asked):
    with pytest.raises(InputError, match=f"is a verifier for {has} mode; it cannot judge in {asked} mode"):
        load_judge(world / has, mode=asked)


def test_an_example_without_a_picture_is_refused_in_image_mode(judge, pairs):
    example, rollout = pairs[0]
    with pytest.raises(InputError, match=r"has no image; judge it in text mode"):
        judge.judge([(dataclasses.replace(example, images=()), rollout)])


# --- the commands ---


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
def test_a_broken_picture_is_one_line_and_leaves_nothing(world, tmp_path, capsys, content, reason):
    """The last example's, so that others are judged before; None: a picture cut in half."""
    shutil.copytree(world / "validation", tmp_path / "tables")
    image = sorted((tmp_path / "tables/images").iterdir())[-1]
    image.write_bytes(image.read_bytes()[:400] if content is None else content)
    (tmp_path / "out").mkdir()
    line = refused(judge_flags(world / "image", tmp_path / "tables", tmp_path / "out/v.jsonl"), capsys)
    assert f"image {image}: {reason}" in line and "replace it or drop its row" in line
    assert list((tmp_path / "out").iterdir()) == []
    # in text mode nobody looks at it
    assert main(judge_flags(world / "text", tmp_path / "tables", tmp_path / "out/v.jsonl")) == 0


def test_what_the_judge_command_refuses(world, tmp_path, capsys):
    flags = judge_flags(world / "image", world / "validation", tmp_path / "v.jsonl")
    cases = {
        "is a verifier for image mode; it cannot judge in text mode": [*flags, "--mode", "text"],
        "more than max_packed_tokens = 20": [*flags, "--max-packed-tokens", "20"],
        "there is no adapter folder": judge_flags(world / "none", world / "validation", tmp_path / "v.jsonl"),
        "examples.jsonl: there is no such file": judge_flags(world / "image", world / "none", tmp_path / "v.jsonl"),
        "is no folder, nor found on the Hub": [*flags, "--base", "no/such-base"],
        "must end in .jsonl or .parquet": judge_flags(world / "image", world / "validation", tmp_path / "v.csv"),
    }
    for told, argv in cases.items():
        assert told in refused(argv, capsys)
        assert list(tmp_path.iterdir()) == []


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
