"""Counterfactual edits: each changes one thing, says so, and works on any English text."""

from __future__ import annotations

import random
import re
from collections import Counter

import pytest
from claimwise.distill.edits import (
    EDITS,
    change_number,
    change_relation,
    counterfactual,
    drop_sentence,
    negate,
    swap_numbers,
    truncate,
)
from claimwise.distill.rollouts import references, with_edits
from claimwise.verifier.schema import Criterion, Example, Rollout
from hypothesis import given, settings
from hypothesis import strategies as st

PLAIN = "The red car is above 3 boxes."
TWO = "The red car is above 3 boxes. There are 5 trees to the left."


def all_of(edit, text, seeds=200) -> set[str | None]:
    """Everything that the edit makes of the text."""
    return {edit(random.Random(seed), text) for seed in range(seeds)}


def test_a_number_becomes_another_digit():
    assert all_of(change_number, PLAIN) == {PLAIN.replace("3", str(d)) for d in (0, 1, 2, 4, 5, 6, 7, 8, 9)}
    # two numbers: one of them changes
    made = all_of(change_number, "Answer: 3 5", 400)
    assert made == {f"Answer: {d} 5" for d in "012456789"} | {f"Answer: 3 {d}" for d in "012346789"}


def test_a_relation_is_turned_round():
    assert all_of(change_relation, PLAIN) == {"The red car is below 3 boxes."}
    assert all_of(change_relation, "The top-left digit is 3.") == {
        "The bottom-left digit is 3.",
        "The top-right digit is 3.",
    }
    assert all_of(change_relation, "before the row") == {"after the row", "before the column"}


def test_one_sentence_is_negated():
    assert all_of(negate, PLAIN) == {"The red car is not above 3 boxes."}
    assert all_of(negate, TWO) == {TWO.replace("is", "is not"), TWO.replace("are", "are not")}


def test_two_numbers_are_exchanged():
    assert all_of(swap_numbers, TWO) == {"The red car is above 5 boxes. There are 3 trees to the left."}
    # 3 3 5: the two 3 are not exchanged with each other
    assert all_of(swap_numbers, "3 3 5") == {"5 3 3", "3 5 3"}


def test_a_sentence_is_dropped():
    first, second = "The red car is above 3 boxes. ", "There are 5 trees to the left."
    assert all_of(drop_sentence, TWO) == {first, second}


def test_a_response_is_cut_anywhere_inside():
    assert all_of(truncate, "abcd") == {"a", "ab", "abc"}


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (change_number, "The red car is above the boxes."),
        (change_number, "It costs 3.5 and 12 and x2."),  # neither parts of numbers nor of names
        (change_number, ""),
        (change_relation, "The red car has 3 boxes."),
        (change_relation, "The topmost leftover aboveground."),  # whole words only
        (change_relation, ""),
        (negate, "It is not so."),  # negated already
        (negate, "This island isn't big."),
        (negate, ""),
        (swap_numbers, PLAIN),  # one number
        (swap_numbers, "3 cats and 3 dogs"),  # alike
        (drop_sentence, PLAIN),  # one sentence
        (drop_sentence, ""),
        (truncate, "a"),
        (truncate, ""),
    ],
)
def test_none_where_nothing_applies(edit, text):
    assert all_of(edit, text, 20) == {None}


def test_no_edit_applies():
    assert counterfactual(random.Random(0), "") is None
    assert counterfactual(random.Random(0), "x") is None
    assert counterfactual(random.Random(0), "A cat.", ("number", "relation", "negation", "swap", "drop")) is None


def test_every_kind_is_drawn_and_named():
    """Six kinds apply to this text, each drawn first in a sixth of 600 seeds: 100, standard deviation 9."""
    kinds, possible = Counter(), {kind: all_of(edit, TWO, 600) for kind, edit in EDITS.items()}
    for seed in range(600):
        edited = counterfactual(random.Random(seed), TWO)
        assert edited is not None
        text, kind = edited
        kinds[kind] += 1
        assert text != TWO
        assert text in possible[kind]
    assert set(kinds) == set(EDITS) and min(kinds.values()) > 60


def test_only_the_kinds_asked_for():
    for seed in range(20):
        edited = counterfactual(random.Random(seed), TWO, ("negation", "drop"))
        assert edited is not None and edited[1] in ("negation", "drop")


texts = st.one_of(
    st.text(max_size=60),
    st.lists(st.sampled_from(["3", "3", "5", "is", "not", "top", "left.", "\n", "A cat", "!"]), max_size=12).map(
        " ".join
    ),
)


@settings(max_examples=200, deadline=None)
@given(texts, st.integers(0, 10**6))
def test_never_the_same_text_and_the_same_seed_the_same_edit(text, seed):
    for edit in EDITS.values():
        edited = edit(random.Random(seed), text)
        assert edited != text
        assert edited == edit(random.Random(seed), text)
    assert counterfactual(random.Random(seed), text) == counterfactual(random.Random(seed), text)


def rollouts(count: int, text: str = TWO) -> list[Rollout]:
    return [Rollout(f"r{i}", f"e{i}", text, "policy", i, "stop") for i in range(count)]


def test_edited_rollouts_say_what_was_changed():
    made = list(with_edits(rollouts(100), per_rollout=2, empty_share=0.0, seed=1))
    assert len(made) == 200 and len({r.rollout_id for r in made}) == 200
    assert {r.edit for r in made} == set(EDITS)
    assert all(re.fullmatch(rf"r\d+/{r.edit}-[01]", r.rollout_id) for r in made)
    assert all(r.response != TWO and r.policy == "policy" and f"e{r.sample_index}" == r.example_id for r in made)
    assert made == list(with_edits(rollouts(100), 2, 0.0, 1))
    assert made != list(with_edits(rollouts(100), 2, 0.0, 2))


def test_a_share_of_them_is_empty():
    """A tenth of 1,000: 100, standard deviation 9.5."""
    made = list(with_edits(rollouts(500), per_rollout=2, empty_share=0.1, seed=1))
    empty = [r for r in made if r.edit == "empty"]
    assert abs(len(empty) - 100) < 48
    assert all(r.response == "" for r in empty)
    assert {r.response for r in with_edits(rollouts(5), 1, 1.0, 1)} == {""}


def test_what_cannot_be_edited_is_left_out():
    assert list(with_edits(rollouts(3, "x"), per_rollout=4, empty_share=0.0, seed=0)) == []


def test_references_are_rollouts_where_there_are_any():
    criteria = (Criterion("c", "Says so."),)
    examples = [Example("a", "q", criteria, reference="It is so."), Example("b", "q", criteria)]
    assert references(examples) == [Rollout("a/reference", "a", "It is so.", "reference", 0, "stop")]
