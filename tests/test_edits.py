"""Counterfactual edits: each changes one thing, says so, and works on any English text."""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter

import pytest
from claimwise.distill.edits import (
    ALL_EDITS,
    COLOURS,
    EDITS,
    affirm,
    change_colour,
    change_number,
    change_relation,
    counterfactual,
    describe_change,
    drop_sentence,
    negate,
    swap_entities,
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


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("It costs 12.", r"It costs [1-9]\d\."),  # no 0 in front
        ("It costs $1,250.50 now.", r"It costs \$[1-9],\d{3}\.\d\d now\."),  # separators and decimals stay
        ("It fell by 0.5% then.", r"It fell by \d\.\d% then\."),
        ("At -40 degrees", r"At -[1-9]\d degrees"),
        ("In 2023, twice", r"In [1-9]\d{3}, twice"),
    ],
)
def test_any_number_keeps_its_form_and_changes_in_one_digit(text, form):
    made = all_of(change_number, text, 300)
    assert len(made) > 9
    for new in made:
        assert re.fullmatch(form, new) and sum(a != b for a, b in zip(text, new, strict=True)) == 1


def test_a_relation_is_turned_round():
    assert all_of(change_relation, PLAIN) == {"The red car is below 3 boxes."}
    assert all_of(change_relation, "Left of it, MORE are taller.") == {
        "Right of it, MORE are taller.",
        "Left of it, LESS are taller.",
        "Left of it, MORE are shorter.",
    }
    assert all_of(change_relation, "The top-left digit is 3.") == {
        "The bottom-left digit is 3.",
        "The top-right digit is 3.",
    }
    assert all_of(change_relation, "before the row") == {"after the row", "before the column"}


def test_one_sentence_is_negated():
    assert all_of(negate, PLAIN) == {"The red car is not above 3 boxes."}
    assert all_of(negate, TWO) == {TWO.replace("is", "is not"), TWO.replace("are", "are not")}
    assert all_of(negate, "It can't be; it will.") == {"It can't be; it will not."}


def test_a_negation_is_taken_away():
    assert all_of(affirm, "It is not red. It isn't blue. It cannot be, it can't.") == {
        "It is red. It isn't blue. It cannot be, it can't.",
        "It is not red. It is blue. It cannot be, it can't.",
        "It is not red. It isn't blue. It can be, it can't.",
        "It is not red. It isn't blue. It cannot be, it can.",
    }


def test_a_colour_becomes_another():
    assert all_of(change_colour, "The red car.", 400) == {f"The {c} car." for c in COLOURS if c != "red"}
    assert all_of(change_colour, "Gray.", 400) == {f"{c.capitalize()}." for c in COLOURS if c != "grey"}


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("Here Anna Lee met Bob.", {"Here Bob met Anna Lee."}),
        ('It says "exit" over “no entry”.', {'It says "no entry" over “exit”.'}),
        (
            "The dog sees the cat and the cat.",
            {"The cat sees the dog and the cat.", "The cat sees the cat and the dog."},
        ),
        ("Anna met Bob.", {None}),  # the first word of a sentence is capitalised whatever it is
        ("The top row, the left column.", {None}),  # relations have an edit of their own
        ("Then Anna and Anna saw the dog.", {None}),
    ],
)
def test_two_entities_are_exchanged(text, made):
    assert all_of(swap_entities, text) == made


def test_two_numbers_are_exchanged():
    assert all_of(swap_numbers, TWO) == {"The red car is above 5 boxes. There are 3 trees to the left."}
    # 3 3 5: the two 3 are not exchanged with each other
    assert all_of(swap_numbers, "3 3 5") == {"5 3 3", "3 5 3"}
    assert all_of(swap_numbers, "from 1,250 to 12.5%") == {"from 12.5 to 1,250%"}
    assert all_of(swap_numbers, "3 and 3.0") == {None}  # the same number


def test_a_sentence_is_dropped():
    first, second = "The red car is above 3 boxes. ", "There are 5 trees to the left."
    assert all_of(drop_sentence, TWO) == {first, second}


def test_a_response_is_cut_anywhere_inside():
    assert all_of(truncate, "abcd") == {"a", "ab", "abc"}


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (change_number, "The red car is above the boxes."),
        (change_number, "Version 1.2.3 of x2 with 3D."),  # neither parts of numbers nor of names
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


def test_draws_for_single_digits_are_those_that_made_the_shipped_models():
    """The result of 60 seeds on a digits response, before edits knew more than single digits, in a hash."""
    text = "The top-left digit is 3. At the top-right I see 5. So the top row reads 3 5.\nAnswer: 3 5"
    made = [counterfactual(random.Random(seed), text) for seed in range(60)]
    assert hashlib.sha256(repr(made).encode()).hexdigest()[:16] == "4e0e88a52e4b2282"


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


def test_general_kinds_are_drawn_beside_the_others():
    text = "The red car of Anna is not left of 12 boxes, says Bob. There are 5."
    kinds = Counter(counterfactual(random.Random(seed), text, tuple(ALL_EDITS))[1] for seed in range(900))
    assert set(kinds) == set(ALL_EDITS) and min(kinds.values()) > 60  # 100 expected, standard deviation 9.4


CHANGES = [
    ("Answer: 3 5", "Answer: 8 5", "3 -> 8 at 8"),
    ("It is 12.50%.", "It is 17.50%.", "12.50 -> 17.50 at 6"),
    ("It is red.", "It is not red.", "nothing -> not at 6"),
    ("The top-left one.", "The top-right one.", "top-left -> top-right at 4"),
    ("A 3 and a 5.", "A 5 and a 3.", "3 -> 5 at 2, 5 -> 3 at 10"),
    ("One. Two. Three.", "One. Three.", "Two. -> nothing at 5"),
    ("One two", "One t", "two -> t at 4"),
    ("One.", "", "One. -> nothing at 0"),
    ("a" * 80 + " b", "c", f"{'a' * 40}... (82 characters) -> c at 0"),
    ("a\n\nb", "a\nb", r"'\n\n' -> '\n' at 1"),
]


@pytest.mark.parametrize(("before", "after", "told"), CHANGES)
def test_what_was_changed_is_told(before, after, told):
    assert describe_change(before, after) == told


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


@settings(max_examples=200)
@given(texts, st.integers(0, 10**6))
def test_never_the_same_text_and_the_same_seed_the_same_edit(text, seed):
    for edit in ALL_EDITS.values():
        edited = edit(random.Random(seed), text)
        assert edited != text
        assert edited == edit(random.Random(seed), text)
    assert counterfactual(random.Random(seed), text) == counterfactual(random.Random(seed), text)


def rollouts(count: int, text: str = TWO) -> list[Rollout]:
    return [Rollout(f"r{i}", f"e{i}", text, "policy", i, "stop") for i in range(count)]


def kind_of(rollout: Rollout) -> str:
    return (rollout.edit or "").partition(":")[0]


def test_edited_rollouts_say_what_was_changed():
    made = list(with_edits(rollouts(100), per_rollout=2, empty_share=0.0, seed=1))
    assert len(made) == 200 and len({r.rollout_id for r in made}) == 200
    assert {kind_of(r) for r in made} == set(EDITS)
    assert all(re.fullmatch(rf"r\d+/{kind_of(r)}-[01]", r.rollout_id) for r in made)
    assert all(r.edit == f"{kind_of(r)}: {describe_change(TWO, r.response)}" for r in made)
    assert all(r.response != TWO and r.policy == "policy" and f"e{r.sample_index}" == r.example_id for r in made)
    assert made == list(with_edits(rollouts(100), 2, 0.0, 1))
    assert made != list(with_edits(rollouts(100), 2, 0.0, 2))


def test_a_share_of_them_is_empty():
    """A tenth of 1,000: 100, standard deviation 9.5."""
    made = list(with_edits(rollouts(500), per_rollout=2, empty_share=0.1, seed=1))
    empty = [r for r in made if kind_of(r) == "empty"]
    assert abs(len(empty) - 100) < 48
    assert all(r.response == "" for r in empty)
    assert {r.response for r in with_edits(rollouts(5), 1, 1.0, 1)} == {""}
    assert list(with_edits(rollouts(5, ""), 1, 1.0, 1)) == []  # what is empty cannot be emptied


def test_what_cannot_be_edited_is_left_out():
    assert list(with_edits(rollouts(3, "x"), per_rollout=4, empty_share=0.0, seed=0)) == []


def test_references_are_rollouts_where_there_are_any():
    criteria = (Criterion("c", "Says so."),)
    examples = [Example("a", "q", criteria, reference="It is so."), Example("b", "q", criteria)]
    assert references(examples) == [Rollout("a/reference", "a", "It is so.", "reference", 0, "stop")]
