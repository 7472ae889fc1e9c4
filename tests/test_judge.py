"""The verifier as a judge: a distilled adapter loaded again, and what it refuses."""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from claimwise.distill.oracle import OracleJudge
from claimwise.verifier import InputError, load_judge
from claimwise.verifier.judge import PackedJudge, base_judge
from claimwise.verifier.model import load_model
from claimwise.verifier.packed import answer_trees
from claimwise.verifier.processor import load_processor
from claimwise.verifier.prompt import prompt_hash
from claimwise.verifier.schema import Rollout
from claimwise.verifier.sentences import split_sentences, trim
from claimwise.verifier.server_judge import ServerJudge
from claimwise.verifier.tables import (
    pair_up,
    read_examples,
    read_rollouts,
)
from judging import content, farthest, margin, said
from PIL import Image
from safetensors.torch import load_file, save_file


@pytest.fixture(scope="session")
def pairs(world):
    held_out = world / "validation"
    return pair_up(read_examples(held_out / "examples.jsonl"), read_rollouts(held_out / "rollouts.jsonl"))


@pytest.fixture(scope="module")
def judge(world):
    """Without a memory, so that each call goes through the model."""
    loaded = load_judge(world / "image", mode="image")
    return PackedJudge(loaded.model, loaded.card)


@pytest.fixture
def adapter(world, tmp_path) -> Path:
    """A copy of the image verifier, to be spoilt."""
    shutil.copytree(world / "image", tmp_path / "adapter")
    return tmp_path / "adapter"


def edit_card(folder: Path, **changes) -> None:
    card = json.loads((folder / "verifier.json").read_text())
    (folder / "verifier.json").write_text(json.dumps({**card, **changes}))


BOUNDS = (0, -1, 0.5, math.nan, "many", None)
DEVICES = ("quantum", "cuda:99", "meta", "", 3.5)


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


class Table:
    """What can be gone through, and no more."""

    def __init__(self, pairs):
        self.pairs = pairs

    def __iter__(self):
        return iter(self.pairs)


@pytest.mark.parametrize("given", [iter, tuple, Table, lambda pairs: zip(*zip(*pairs, strict=True), strict=True)])
def test_items_come_in_whatever_can_be_gone_through(judge, pairs, given):
    wanted, oracle = judge.judge(pairs[:2]), OracleJudge("text")
    assert [v.key for v in oracle.judge(given(pairs[:2]))] == [v.key for v in wanted]
    assert said(judge.judge(given(pairs[:2]))) == said(wanted)


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
        assert content(got) == content(whole) and farthest(got, whole) < 1e-3


def test_the_adapter_changes_what_the_base_says(adapter, world, pairs):
    """An adapter that loads without effect is vllm#39369; here it must show, at the base's own temperature."""
    edit_card(adapter, temperature=1.0)
    base = base_judge(load_model(world / "base", dtype=torch.float32), "image", "base", readings=True)
    own, bare = load_judge(adapter).judge(pairs), base.judge(pairs)
    assert [v.key for v in own] == [v.key for v in bare]
    assert sum(abs(margin(a) - margin(b)) > 0.01 for a, b in zip(own, bare, strict=True)) > 28  # more than half
    assert {v.judge for v in bare} == {"base"}


def test_the_same_verifier_says_the_same_again(world, judge, pairs):
    assert said(load_judge(world / "image").judge(pairs)) == said(judge.judge(pairs))


def test_the_temperature_is_the_cards(adapter, pairs):
    """P(yes) = sigmoid(margin / T): at T = 4 the logit is half of that at T = 2, and the verdicts are the same."""
    verdicts = {}
    for temperature in (2.0, 4.0):
        edit_card(adapter, temperature=temperature)
        verdicts[temperature] = load_judge(adapter).judge(pairs[:2])
    for warm, hot in zip(verdicts[2.0], verdicts[4.0], strict=True):
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
        ({"name": 5}, "is not what claimwise distill writes (name or base is no text)"),
        ({"base": None}, "is not what claimwise distill writes (name or base is no text)"),
        ({"temperature": True}, "it must be a number above 0"),
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


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"mode": "video"}, "there is no mode 'video'; take text or image"),
        ({"dtype": "float99"}, "there is no dtype 'float99'; take auto, "),
        ({"backend": "ollama"}, "there is no backend 'ollama'"),
        ({"backend": "vllm", "device": "cpu"}, "device = 'cpu': only a verifier in transformers takes that"),
        ({"server": "http://localhost:1/v1", "device": "cpu"}, "device = 'cpu': only a verifier in transformers"),
        ({"server": "http://localhost:1/v1", "dtype": "float32"}, "dtype = 'float32': only a verifier that runs here"),
        (
            {"server": "http://localhost:1/v1", "max_packed_tokens": 99},
            "max_packed_tokens = 99: only a verifier in trans",
        ),
        ({"backend": "vllm", "max_packed_tokens": 99}, "max_packed_tokens = 99: only a verifier in transformers takes"),
        ({"backend": "vllm", "model": "m"}, "model = 'm': only a judge behind a server takes that"),
        ({"server": "http://localhost:1/v1", "backend": "vllm"}, "either behind a server or in vLLM here"),
        ({"server": "localhost"}, "'localhost' is no address of a server"),
        ({"server": "http://ann:secret@localhost:1/v1"}, "http://localhost:1/v1/models does not say which models"),
        ({"model": "m"}, "model = 'm': only a judge behind a server takes that"),
        ({"max_in_flight": 3}, "max_in_flight: only a server or vLLM takes that"),
        ({"server": "http://localhost:1/v1", "in_flight": 3}, "in_flight: a judge behind a server has no such setting"),
        (
            {"server": "http://localhost:1/v1", "max_tokens": 3},
            "max_tokens: a judge behind a server has no such setting",
        ),
        *(({"max_packed_tokens": value}, f"max_packed_tokens is {value!r}; it must be") for value in BOUNDS),
        *(({"device": value}, f"device = {value!r} is not to be had here (") for value in DEVICES),
        *(({"dtype": value}, f"there is no dtype {value!r}; take auto, ") for value in (16, "int8", torch.int8, "nn")),
    ],
)
def test_settings_that_no_judge_follows_are_refused(world, settings, told):
    with pytest.raises(InputError) as refusal:
        load_judge(world / "image", **settings)
    assert told in str(refusal.value) and "secret" not in str(refusal.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"mode": "video"},
        {"dtype": "float32"},
        {"device": "cpu"},
        {"base": "nothing-here"},
        {"max_packed_tokens": -1},
        {"backend": "vllm"},
        {"in_flight": 3},
        {"url": "http://localhost:2/v1"},
    ],
)
def test_nor_does_a_judge_that_quotes(settings):
    with pytest.raises(InputError, match="vLLM" if "backend" in settings else f"{next(iter(settings))}"):
        load_judge(None, server="http://localhost:1/v1", model="m", **settings)


@pytest.mark.parametrize("size", [(1, 1), (3, 64), (64, 3), (199, 1), (1200, 900)])
def test_pictures_of_any_size_are_judged(judge, pairs, size):
    example, rollout = pairs[0]
    shown = dataclasses.replace(example, images=(Image.new("RGB", size, "red"),))
    assert all(0 < v.p_yes < 1 for v in judge.judge([(shown, rollout)]))


@pytest.mark.parametrize("image", [None, np.zeros((8, 8, 3), np.uint8), b"\x89PNG", 7])
def test_what_is_no_picture_is_refused(world, judge, pairs, image):
    example, rollout = pairs[0]
    shown = dataclasses.replace(example, images=(image,))
    processor = load_processor(world / "base")
    quoting = load_judge(None, server="http://localhost:1/v1", model="m")
    for one in (judge, ServerJudge(judge.card, processor, "", "http://localhost:1/v1", "m"), quoting):
        with pytest.raises(InputError, match=f"is of type {type(image).__name__}; it must be a path or a PIL image"):
            one.judge([(shown, rollout)])


@pytest.mark.parametrize("size", [(201, 1), (1, 1000)])
@pytest.mark.parametrize("from_file", [True, False])
def test_a_picture_that_the_model_cannot_be_shown_is_named(world, judge, pairs, tmp_path, size, from_file):
    """Qwen's processor refuses what is over 200 times as wide as it is high; by an engine's judge it is refused too."""
    picture = Image.new("RGB", size)
    picture.save(tmp_path / "thin.png")
    example, rollout = pairs[0]
    shown = dataclasses.replace(example, images=(tmp_path / "thin.png" if from_file else picture,))
    processor = load_processor(world / "base")
    for one in (judge, ServerJudge(judge.card, processor, "", "http://localhost:1/v1", "m")):
        with pytest.raises(InputError, match=r"the model cannot be shown it .*; replace it or drop its row") as refusal:
            one.judge([(shown, rollout)])
        assert (f"image {tmp_path / 'thin.png'}: " in str(refusal.value)) is from_file


def test_a_margin_that_is_no_number_is_a_missing_verdict(judge, pairs, monkeypatch):
    def overflown(*args):
        answers = answer_trees(*args)
        answers[0][2].margin = float("nan")
        return answers

    monkeypatch.setattr("claimwise.verifier.judge.answer_trees", overflown)
    verdicts = judge.judge(pairs[:1])
    assert [v.verdict is None for v in verdicts] == [False, False, True, False, False, False, False]
    assert (verdicts[2].p_yes, verdicts[2].span) == (None, None) and str(verdicts[2].error).startswith("nan: ")


def test_an_example_without_a_picture_is_refused_in_image_mode(judge, pairs):
    example, rollout = pairs[0]
    with pytest.raises(InputError, match=r"has no image; judge it in text mode"):
        judge.judge([(dataclasses.replace(example, images=()), rollout)])
