"""Image and question are encoded once per example, and judging from there equals judging each criterion on its own."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from claimwise.verifier import judge as judge_module
from claimwise.verifier.batching import Row, batches, runs, siblings
from claimwise.verifier.judge import base_judge, load_judge
from claimwise.verifier.model import VisionLanguageModel, load_model
from claimwise.verifier.packed import answer_trees
from claimwise.verifier.schema import Example, Rollout
from claimwise.verifier.shared_prefix import Opening
from claimwise.verifier.tree import Tree
from hypothesis import given
from hypothesis import strategies as st
from judging import allowed_labels, content, farthest, margin, one_by_one, siblings_of, watched
from PIL import Image

MODES = ("image", "text")
EQUAL = 1e-5  # of margins in double precision, whose logits are rounded to float32 when they are read


@pytest.fixture(scope="module")
def base(assets) -> VisionLanguageModel:
    """The shipped base in double precision: what differs there differs by more than rounding."""
    return load_model(assets / "base", dtype=torch.float64)


@pytest.fixture(scope="module")
def family(items):
    """Three examples with four responses each."""
    return siblings_of(items[:3])


# --- exact ---


@pytest.mark.parametrize("mode", MODES)
def test_siblings_equal_one_by_one(base, family, mode):
    verdicts = base_judge(base, mode, "base", readings=mode == "image").judge(family)
    answers = one_by_one(base, family, mode)
    assert len(verdicts) == 3 * 4 * 7
    # a margin is the difference of two logits, each of which may differ by 1e-4
    assert max(abs(margin(v) - a.margin) for v, a in zip(verdicts, answers, strict=True)) < 2e-4
    assert [v.verdict for v in verdicts] == [a.margin > 0 for a in answers]


def test_in_float32_siblings_equal_one_by_one(assets, family):
    """The shipped verifier."""
    judge = load_judge(assets / "verifier", "image", dtype=torch.float32, device="cpu")
    judge.card.temperature = 1.0
    verdicts, answers = judge.judge(family), one_by_one(judge.model, family, "image")
    assert max(abs(margin(v) - a.margin) for v, a in zip(verdicts, answers, strict=True)) < 1e-4
    assert [v.verdict for v in verdicts] == [a.margin > 0 for a in answers]


def test_rows_fed_one_at_a_time_equal_rows_fed_together(base, family, monkeypatch):
    """On the CPU a batch is small, whatever the limit; a response that is longer has one of its own, whole."""
    with watched(base) as fed:
        together = base_judge(base, "image", "base", readings=True).judge(family)
    assert [rows for rows, *_ in fed.packs] == [12]
    monkeypatch.setattr(judge_module, "CPU_BATCH_TOKENS", 1)
    with watched(base) as fed:
        one_at_a_time = base_judge(base, "image", "base", readings=True).judge(family)
    assert [rows for rows, *_ in fed.packs] == [1] * 12
    assert farthest(together, one_at_a_time) < EQUAL


def test_in_bfloat16_the_verdicts_are_equal(assets, items):
    """Rounding differs with the shape of a batch, so one in 200 may differ: of these 56, none."""
    judge = load_judge(assets / "verifier", "image", dtype=torch.bfloat16, device="cpu")
    family = siblings_of(items[:2])
    verdicts, answers = judge.judge(family), one_by_one(judge.model, family, "image")
    assert [v.verdict for v in verdicts] == [a.margin > 0 for a in answers] and len(answers) == 56


def test_openings_of_different_lengths_share_a_batch(base, items):
    """One picture, two pictures, another question, and one without a picture."""
    example, rollout = items[0]
    longer = dataclasses.replace(example, question=f"{example.question} Look at each of the digits.")
    two = dataclasses.replace(example, images=(*example.images, *items[1][0].images))
    kinds = [(example, "image"), (two, "image"), (longer, "image"), (example, "text"), (example, "image")]
    branches = [base.encoder.branch(criterion.text) for criterion in example.criteria]
    own = base.tree(example, rollout.response, branches, "text").prefix[len(base.opening(example, "text")) :]
    openings = [Opening(base.opening(e, mode)) for e, mode in kinds[:4]]
    assert len({len(opening) for opening in openings}) == 4
    rows = [*openings, openings[0]]
    allowed = allowed_labels(base, rollout.response)
    together = answer_trees(base, [Tree(own, branches)] * 5, [allowed] * 5, True, rows)
    for (e, mode), answers in zip(kinds, together, strict=True):
        alone = answer_trees(base, [base.tree(e, rollout.response, branches, mode)], [allowed], True)[0]
        assert [a.margin for a in answers] == pytest.approx([a.margin for a in alone], abs=EQUAL)
        assert [(a.label_id, a.reading_ids) for a in answers] == [(a.label_id, a.reading_ids) for a in alone]
    assert together[0] == together[4] != together[1]  # the picture counts


# --- once ---


def test_an_example_is_encoded_once(base, items):
    """Four responses each to three examples: 12 rows go on from 3 openings, and the tower sees 3 pictures of 16 patches;
    a judge without sharing would show it 12."""
    family = siblings_of(items[:3])
    with watched(base) as fed:
        base_judge(base, "image", "base", readings=True).judge(family)
    lengths = {len(base.opening(example, "image")) for example, _ in family}
    assert fed.openings == [(3, max(lengths), 0)] and fed.patches == 3 * 16
    assert sum(rows for rows, *_ in fed.packs) == 12


def test_the_order_of_the_table_does_not_matter(base, items):
    """All first responses, then all second ones and so on: still 3 openings; the verdicts come in the table's order."""
    family = siblings_of(items[:3])
    table = sorted(family, key=lambda item: item[1].sample_index)
    judge = base_judge(base, "image", "base", readings=True)
    limit = 4 * max(len(base.tree(e, r.response, [], "image")) + 7 * 40 for e, r in family)
    judge.max_packed_tokens = limit  # an example at a time, or little more
    grouped = judge.judge(family)
    with watched(base) as fed:
        interleaved = judge.judge(table)
    assert len(fed.packs) > 1 and fed.patches == 3 * 16
    keys = [(rollout.rollout_id, c.id) for example, rollout in table for c in example.criteria]
    assert [v.key for v in interleaved] == keys
    by_key = {v.key: v for v in grouped}
    assert farthest(interleaved, [by_key[key] for key in keys]) < EQUAL


def test_the_cost_grows_with_the_criteria_alone(base, items):
    """Tokens fed for K criteria of one text: an opening, a response, and K times the same for each branch."""
    example, rollout = items[0]
    judge = base_judge(base, "text", "base", readings=False)

    def tokens(count: int) -> int:
        criteria = tuple(
            dataclasses.replace(example.criteria[0], id=str(k), text=f"The digit is {k % 10}{k // 10}.")
            for k in range(count)
        )
        with watched(base) as fed:
            judge.judge([(dataclasses.replace(example, criteria=criteria), rollout)])
        return sum(rows * length for rows, length, _ in fed.passes)

    costs = {count: tokens(count) for count in (1, 2, 8, 32)}
    shared = len(base.tree(example, rollout.response, [], "text"))
    each = costs[2] - costs[1]
    assert each == len(base.encoder.branch("The digit is 00.")) + 1  # and one token decoded: the label
    assert costs == {count: shared + count * each for count in costs}


# --- within max_packed_tokens ---


@pytest.mark.parametrize("room", [1.0, 2.5, 7.0])
def test_a_pack_is_bounded_and_nothing_is_cut(base, items, room):
    """`room` times the longest single response with its criteria: split by response; at 1.0 each stands alone."""
    family = siblings_of(items[:2])
    judge = base_judge(base, "image", "base", readings=True)
    whole = judge.judge(family)
    branches = [[base.encoder.branch(c.text) for c in example.criteria] for example, _ in family]
    lengths = [len(base.tree(e, r.response, b, "image")) for (e, r), b in zip(family, branches, strict=True)]
    judge.max_packed_tokens = int(room * max(lengths))
    with watched(base) as fed:
        split = judge.judge(family)
    assert content(split) == content(whole) and farthest(split, whole) < EQUAL
    assert fed.patches == 2 * 16  # encoded once though the siblings stand in several batches
    assert all(rows * (tokens + past) <= judge.max_packed_tokens for rows, tokens, past in [*fed.openings, *fed.packs])
    rows = sum(rows for rows, *_ in fed.packs)
    assert rows == 8 and len(fed.packs) > 1


def test_what_does_not_fit_alone_is_split_by_criterion(base, items):
    """Room for the response and its longest two criteria: at least four passes for seven, each criterion in one."""
    example, rollout = items[0]
    judge = base_judge(base, "image", "base", readings=True)
    whole = judge.judge([items[0]])
    lengths = sorted(len(base.encoder.branch(c.text)) for c in example.criteria)
    shared = len(base.tree(example, rollout.response, [], "image"))
    judge.max_packed_tokens = shared + sum(lengths[-2:])
    with watched(base) as fed:
        split = judge.judge([items[0]])
    assert content(split) == content(whole) and farthest(split, whole) < EQUAL
    opening = len(base.opening(example, "image"))
    assert fed.openings == [(1, opening, 0)]  # one for all passes
    own = shared - opening
    assert 2 <= len(fed.packs) <= 4 and sum(tokens - own for _, tokens, _ in fed.packs) == sum(lengths)


def test_a_criterion_that_does_not_fit_is_missing_with_its_length(base, items):
    """trl#5927: never cut. The longest needs one token more than there is; the others are judged as ever."""
    example, rollout = items[0]
    lengths = [
        len(base.tree(example, rollout.response, [base.encoder.branch(c.text)], "image")) for c in example.criteria
    ]
    needed = max(lengths)
    judge = base_judge(base, "image", "base", readings=True)
    whole = judge.judge(items)
    judge.max_packed_tokens = needed - 1
    told = f"context: the prompt needs {needed} tokens, max_packed_tokens is {needed - 1}"
    found = judge.judge([items[0]])
    assert [v.error for v in found] == [told if length == needed else None for length in lengths]
    for verdict, alone, length in zip(found, whole, lengths, strict=False):
        if length < needed:
            assert (verdict.verdict, verdict.span_start) == (alone.verdict, alone.span_start)
            assert verdict.p_yes == pytest.approx(alone.p_yes, abs=1e-4)
    judge.max_packed_tokens = needed
    assert not any(v.error for v in judge.judge([items[0]]))
    judge.max_packed_tokens = min(map(len, (base.tree(e, r.response, [], "image") for e, r in items)))
    assert all(v.error.startswith("context") and v.verdict is v.p_yes is None for v in judge.judge(items))


@pytest.mark.parametrize("readings", [True, False])
def test_what_does_not_fit_the_base_is_missing_as_it_is_in_vllm(base, items, monkeypatch, readings):
    """The turn counts: label, reading of eight and its end, verdict. By hand: 11 tokens, or 2."""
    example, rollout = items[0]
    lengths = [
        len(base.tree(example, rollout.response, [base.encoder.branch(c.text)], "image")) for c in example.criteria
    ]
    needed = max(lengths) + (11 if readings else 2)
    told = f"context: prompt and turn need {needed} tokens, the base has {needed - 1}"
    judge = base_judge(base, "image", "base", readings)
    monkeypatch.setattr(base.backbone.config.get_text_config(), "max_position_embeddings", needed - 1)
    assert [v.error for v in judge.judge([items[0]])] == [told if n == max(lengths) else None for n in lengths]
    monkeypatch.setattr(base.backbone.config.get_text_config(), "max_position_embeddings", needed)
    assert not any(v.error for v in judge.judge([items[0]]))


@given(st.lists(st.integers(1, 20), min_size=1), st.integers(20, 60))
def test_runs_hold_everything_in_order_and_fit(lengths, room):
    parts = runs(lengths, room)
    assert [length for part in parts for length in lengths[part]] == lengths
    sums = [sum(lengths[part]) for part in parts]
    assert all(0 < total <= room for total in sums)
    assert all(
        total + lengths[part.start] > room for total, part in zip(sums, parts[1:], strict=False)
    )  # none to spare


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=30), st.integers(18, 60))
def test_batches_hold_everything_in_order_and_fit(sizes, limit):
    rows = [Row(Opening(Tree([0] * a, [])), Tree([0] * b, []), [], []) for a, b in sizes]
    made = list(batches(rows, limit))
    assert [row for batch in made for row in batch] == rows

    def padded(batch) -> int:
        return len(batch) * (max(len(row.opening) for row in batch) + max(len(row.tree) for row in batch))

    assert all(batch and padded(batch) <= limit for batch in made)
    assert all(padded([*batch, following[0]]) > limit for batch, following in itertools.pairwise(made))


def test_siblings_have_images_and_question_in_common():
    picture, other = Image.new("RGB", (8, 8)), Image.new("RGB", (8, 8))
    examples = [
        Example("a", "What?", (), (picture,)),
        Example("b", "What?", (), (other,)),  # another picture object
        Example("c", "What?", (), (picture,)),  # another rubric of the same question
        Example("d", "Why?", (), (picture,)),
        Example("e", "What?", ()),
    ]
    items = [(example, Rollout("r", example.example_id, "", "p")) for example in [*examples, examples[0]]]
    assert siblings(items) == [[0, 2, 5], [1], [3], [4]]
