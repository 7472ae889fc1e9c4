"""A question asked again costs no pass, and its verdict is the same; any other question is another one."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch
from claimwise.verifier.cache import Desk, VerdictCache, question_keys
from claimwise.verifier.cascade import Band, CascadeJudge
from claimwise.verifier.judge import PackedJudge, base_judge, load_judge
from claimwise.verifier.model import VisionLanguageModel, load_model
from claimwise.verifier.schema import Rollout
from claimwise.verifier.tables import load_image
from hypothesis import given
from hypothesis import strategies as st
from judging import content, farthest, said, siblings_of, watched
from PIL import Image


@pytest.fixture(scope="module")
def loaded(assets):
    return load_judge(assets / "verifier", "image", dtype=torch.float32, device="cpu")


@pytest.fixture
def judge(loaded):
    """The shipped verifier with a memory of its own."""
    return PackedJudge(loaded.model, loaded.card, cache=VerdictCache(), adapter=loaded.adapter)


def renamed(items, suffix):
    return [(e, dataclasses.replace(r, rollout_id=f"{r.rollout_id}{suffix}")) for e, r in items]


# --- keys ---

ASKED = {
    "judge": ("adapter", "base"),
    "images": ("i1",),
    "question": "What?",
    "response": "It is 3.",
    "criterion": "3?",
}


def key_of(judge, images, question, response, criterion) -> bytes:
    return question_keys(judge, images, question, response, [criterion])[0]


@pytest.mark.parametrize(
    "change",
    [
        {"judge": ("other", "base")},
        {"judge": ("adapter", "other")},
        {"judge": ("adapterbase",)},
        {"images": ("i2",)},
        {"images": ()},
        {"images": ("i1", "i1")},
        {"question": "What? "},
        {"response": "It is 3"},
        {"response": "It is 3.\ud800"},
        {"criterion": "3? "},
        {"response": 'It is 3."', "criterion": '"3?'},  # what moves from one part to the next
    ],
)
def test_any_other_content_is_another_question(change):
    assert key_of(**ASKED) == key_of(**ASKED) != key_of(**{**ASKED, **change})


@given(st.lists(st.tuples(st.text(max_size=3), st.text(max_size=3), st.text(max_size=3)), unique=True, min_size=2))
def test_no_two_questions_share_a_key(asked):
    assert len({question_keys((), (), *parts[:2], [parts[2]])[0] for parts in asked}) == len(asked)


def test_a_key_per_criterion():
    keys = question_keys((), (), "q", "r", ["a", "b", "a"])
    assert keys[0] == keys[2] != keys[1]


# --- the table ---


def test_the_least_recently_asked_goes_first():
    cache: VerdictCache[int] = VerdictCache(capacity=2)
    cache.put(b"a", 1)
    cache.put(b"b", 2)
    assert cache.get(b"a") == 1  # so b is the older now
    cache.put(b"c", 3)
    assert (cache.get(b"a"), cache.get(b"b"), cache.get(b"c"), len(cache)) == (1, None, 3, 2)
    cache.clear()
    assert cache.get(b"a") is None and len(cache) == 0


@given(st.lists(st.lists(st.integers(0, 5), max_size=4), max_size=8), st.integers(0, 3))
def test_everyone_gets_their_answer_and_none_is_asked_for_twice(questions, capacity):
    """Also where the table is too small to remember any of it."""
    desk: Desk[str] = Desk([len(own) for own in questions], VerdictCache(capacity))
    asked = []
    for item, own in enumerate(questions):
        asked += [own[k] for k in desk.ask(item, [bytes([q]) for q in own])]
    assert sorted(asked) == sorted({q for own in questions for q in own})
    for question in reversed(asked):
        desk.take(bytes([question]), f"answer {question}")
    assert desk.answers == [[f"answer {q}" for q in own] for own in questions]
    assert desk.repeats == sum(map(len, questions)) - len(asked)


# --- the judge ---


def test_the_same_questions_again_cost_no_pass(loaded, items):
    """A judge from a folder remembers by itself."""
    judge = loaded
    first = judge.judge(items[:3])
    assert judge.repeats == 0
    with watched(judge.model) as fed:
        again = judge.judge(renamed(items[:3], "+"))
    assert fed.passes == [] and fed.patches == 0 and judge.repeats == 21
    assert [dataclasses.replace(v, rollout_id=v.rollout_id[:-1]) for v in said(again)] == said(first)


def test_memory_changes_no_verdict(judge, items, assets):
    """A policy late in training: of 24 responses many are alike, and steps repeat. A judge that remembers says what one
    without memory says of each."""
    rng = random.Random(4)
    family = siblings_of(items[:3])
    steps = [renamed(rng.choices(family, k=8), f"/{step}") for step in range(3)]
    fresh = PackedJudge(judge.model, judge.card)
    for step in steps:
        step = renamed(step, "")
        assert fresh.cache is None
        own = judge.judge(step)
        alone = [verdict for item in step for verdict in fresh.judge([item])]
        assert content(own) == content(alone) and farthest(own, alone) < 1e-4
    assert judge.repeats > 7 * 8


def test_alike_responses_in_a_call_are_judged_once(base, items):
    """Also without a memory: eight rollouts of one text make one row. Everyone gets a verdict of their own."""
    example, rollout = items[0]
    eight = [(example, dataclasses.replace(rollout, rollout_id=f"r{n}", sample_index=n)) for n in range(8)]
    judge = base_judge(base, "image", "base", readings=True)
    with watched(base) as fed:
        verdicts = judge.judge(eight)
    assert [rows for rows, *_ in fed.packs] == [1] and judge.repeats == 7 * 7
    assert [v.rollout_id for v in verdicts] == [f"r{n}" for n in range(8) for _ in range(7)]
    assert len({(v.criterion_id, v.p_yes, v.span, v.reading) for v in verdicts}) == 7
    assert judge.judge(eight[:1])[0].rollout_id == "r0"


def test_a_call_without_memory_asks_nothing_twice_however_far_apart(base, items):
    """The same picture as two objects, so not siblings, and a batch for each response."""
    (example, rollout), other = items[0], items[1]
    copied = dataclasses.replace(example, images=(example.images[0].copy(),))
    judge = base_judge(base, "image", "base", readings=True)
    judge.max_packed_tokens = max(len(base.tree(e, r.response, [], "image")) + 7 * 30 for e, r in items[:2])
    with watched(base) as fed:
        verdicts = judge.judge([(example, rollout), other, (copied, rollout)])
    assert sum(rows for rows, *_ in fed.packs) == len(fed.packs) == 2 and judge.repeats == 7
    assert said(verdicts[:7]) == said(verdicts[14:])
    assert judge.cache is None


def test_a_new_criterion_is_all_that_a_known_response_costs(judge, items):
    example, rollout = items[0]
    judge.judge([(dataclasses.replace(example, criteria=example.criteria[:6]), rollout)])
    with watched(judge.model) as fed:
        verdicts = judge.judge([(example, rollout)])
    own = len(judge.model.tree(example, rollout.response, [], "image")) - len(judge.model.opening(example, "image"))
    assert fed.packs[0][:2] == (1, own + len(judge.model.encoder.branch(example.criteria[6].text)))
    whole = PackedJudge(judge.model, judge.card).judge([(example, rollout)])
    assert content(verdicts) == content(whole) and farthest(verdicts, whole) < 1e-4


def test_another_picture_under_the_same_names_is_another_question(judge, items):
    example, rollout = items[0]
    turned = dataclasses.replace(example, images=(example.images[0].rotate(180),))
    copied = dataclasses.replace(example, images=(example.images[0].copy(),))
    judge.judge([(example, rollout)])
    with watched(judge.model) as fed:
        same = judge.judge([(copied, rollout)])
    assert fed.passes == []
    assert said(same) == said(judge.judge([(example, rollout)]))
    with watched(judge.model) as fed:
        judge.judge([(turned, rollout)])
    assert fed.patches == 16


def test_judges_that_share_a_memory_do_not_answer_for_each_other(judge, items):
    """Another adapter, another mode, another precision: each asks its own model."""
    text = dataclasses.replace(judge.card, mode="text", readings=False, prompt_hash="text")
    others = [
        PackedJudge(judge.model, judge.card, cache=judge.cache, adapter="another"),
        PackedJudge(judge.model, text, cache=judge.cache, adapter=judge.adapter),
    ]
    judge.judge(items[:1])
    for other in others:
        with watched(judge.model) as fed:
            other.judge(items[:1])
        assert fed.packs and other.repeats == 0
    assert judge.cache is not None and len(judge.cache) == 21


def test_a_judge_of_a_model_in_training_does_not_remember(items, assets):
    """What `claimwise distill` evaluates with: after a step the same question gets another answer."""
    model = load_model(assets / "base", dtype=torch.float32)
    judge = base_judge(model, "image", "base", readings=True)
    before = judge.judge(items[:1])
    with torch.no_grad():
        model.backbone.model.language_model.norm.weight.mul_(1.5)
    assert farthest(judge.judge(items[:1]), before) > 0.01


def test_a_cleared_memory_asks_again(judge, items):
    judge.judge(items[:1])
    judge.cache.clear()
    with watched(judge.model) as fed:
        judge.judge(items[:1])
    assert len(fed.packs) == 1


def test_pictures_in_memory_are_told_apart_by_their_pixels(base):
    white, black = Image.new("RGB", (64, 64), "white"), Image.new("RGB", (64, 64))
    assert base.picture(white).digest == base.picture(white.copy()).digest != base.picture(black).digest
    wide, tall = Image.new("RGB", (64, 32)), Image.new("RGB", (32, 64))
    assert base.picture(wide).digest != base.picture(tall).digest


@pytest.mark.parametrize("in_memory", [False, True])
def test_a_picture_changed_in_place_is_another_question(judge, items, tmp_path, in_memory):
    """By the verifier, and by the teacher of a cascade. Verdicts as a judge gives them that has not seen the first."""
    example, rollout = items[0]
    other = load_image(items[1][0].images[0])
    file = tmp_path / "picture.png"
    load_image(example.images[0]).save(file)
    picture = load_image(file) if in_memory else file
    pair = (dataclasses.replace(example, images=(picture,)), rollout)
    cascade = CascadeJudge(judge, PackedJudge(judge.model, judge.card), Band(0.0, 1.0))
    first = cascade.judge([pair])
    if in_memory:
        picture.paste(other)
    else:
        other.save(file)
    fresh = base_of_its_own(judge).judge([pair])
    assert farthest(judge.judge([pair]), fresh) < 1e-4 < farthest(first, fresh)
    assert farthest(cascade.judge([pair]), fresh) < 1e-4 and cascade.tally.repeats == 0


def base_of_its_own(judge: PackedJudge) -> PackedJudge:
    """The same verifier without memories."""
    return PackedJudge(VisionLanguageModel(judge.model.model, judge.model.processor, judge.model.path), judge.card)


def test_the_patches_of_pictures_are_kept_within_a_bound(base, monkeypatch):
    """Room for two of three pictures: the first is made again, and is the same; the last is kept whatever its size."""
    pictures = [Image.new("RGB", (64, 64), colour) for colour in ("white", "red", "black")]
    model = VisionLanguageModel(base.model, base.processor, base.path)
    size = base.picture(pictures[0]).pixels.nbytes
    monkeypatch.setattr("claimwise.verifier.model.IMAGE_CACHE_BYTES", 2 * size)
    first, *_, last = [model.picture(picture) for picture in pictures]
    assert model.picture(pictures[2]) is last
    again = model.picture(pictures[0])
    assert again is not first and again.digest == first.digest and torch.equal(again.pixels, first.pixels)
    monkeypatch.setattr("claimwise.verifier.model.IMAGE_CACHE_BYTES", 1)
    kept = model.picture(pictures[1])
    assert model.picture(pictures[1]) is kept


def test_a_response_of_nothing_and_a_rubric_of_nothing(judge, items):
    example, _ = items[0]
    empty = Rollout("r", example.example_id, "", "p")
    bare = dataclasses.replace(example, criteria=())
    assert [len(row) for row in judge.judge_each([(bare, empty), (example, empty), (bare, empty)])] == [0, 7, 0]
