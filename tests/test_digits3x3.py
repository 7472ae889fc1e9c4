"""The digits world with nine digits in a picture: gold and scores by hand, examples, responses, oracle, tiny models."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from claimwise.distill.digits import (
    asked_line,
    digit_image,
    draw_indices,
    gold,
    labels_of,
    make_example,
    respond,
    score_policy,
    truth_of,
    understand,
)
from claimwise.distill.grids import THREE, TWO, grid_of
from claimwise.distill.oracle import OracleJudge
from claimwise.distill.tiny import build_model, build_processor, build_tokenizer
from claimwise.verifier.schema import Criterion, Rollout
from hypothesis import given, settings
from hypothesis import strategies as st

# The picture shows   7 0 2
#                     3 5 8
#                     1 6 4
TRUTH = (7, 0, 2, 3, 5, 8, 1, 6, 4)
RIGHT = (
    "At the top-centre I see 0. The centre digit is 5. The digit at the bottom-centre is 6. The top-left digit is 7. "
    "At the top-right I see 2. The middle-left digit is 3. The middle-right digit is 8. The bottom-left digit is 1. "
    "The digit at the bottom-right is 4. So the middle column reads 0 5 6.\nAnswer: 0 5 6"
)
CONCLUSION = "So the middle column reads 0 5 6."
WRONG = RIGHT.replace("centre digit is 5", "centre digit is 9").replace("0 5 6", "0 9 6")  # misread, else consistent
LUCKY = RIGHT.replace("centre digit is 5", "centre digit is 9")  # the answer is right against its own reading
SILENT = RIGHT.replace(" The centre digit is 5.", "")
CORRECTED = WRONG.replace(" So the", " At the centre I see 5. So the")
TURNED = RIGHT.replace("middle column", "middle row")
SHORT = RIGHT.replace("reads 0 5 6", "reads 0 5")
FOLLOWS = "The conclusion agrees with the digits that were read."
REPEATS = "The final answer repeats the conclusion."
LINE = "The conclusion is about the middle column."

# claim, response, yes in text mode, yes in image mode, the sentence that decides (None: none does)
GOLD = [
    ("Reads the centre digit as 5.", RIGHT, True, True, "The centre digit is 5."),
    ("Reads the centre digit as 5.", WRONG, False, False, "The centre digit is 9."),
    ("Reads the centre digit as 5.", SILENT, False, False, None),  # top-centre and bottom-centre are other places
    ("Reads the centre digit as 5.", CORRECTED, True, True, "At the centre I see 5."),
    ("Reads the centre digit as 9.", WRONG, True, False, "The centre digit is 9."),
    ("States that the top-centre digit is 0.", RIGHT, True, True, "At the top-centre I see 0."),
    ("States that the bottom-centre digit is 6.", RIGHT, True, True, "The digit at the bottom-centre is 6."),
    ("Reads the bottom-right digit as 4.", RIGHT, True, True, "The digit at the bottom-right is 4."),
    ("Wrongly reads the centre digit as 9.", WRONG, True, True, "The centre digit is 9."),
    ("Wrongly reads the centre digit as 9.", RIGHT, False, False, "The centre digit is 5."),
    (FOLLOWS, RIGHT, True, True, CONCLUSION),
    (FOLLOWS, WRONG, True, True, "So the middle column reads 0 9 6."),
    (FOLLOWS, LUCKY, False, False, CONCLUSION),
    (FOLLOWS, SILENT, False, False, CONCLUSION),
    (FOLLOWS, TURNED, False, False, "So the middle row reads 0 5 6."),  # 3 5 8 was read there
    (FOLLOWS, SHORT, False, False, None),  # two digits conclude nothing of three
    (REPEATS, RIGHT, True, True, "Answer: 0 5 6"),
    (REPEATS, WRONG.replace("Answer: 0 9", "Answer: 0 5"), False, False, "Answer: 0 5 6"),
    (REPEATS, RIGHT.replace("Answer: 0 5 6", "Answer: 0 5"), False, False, "Answer: 0 5"),
    (LINE, RIGHT, True, True, CONCLUSION),
    (LINE, TURNED, False, False, "So the middle row reads 0 5 6."),
]


@pytest.mark.parametrize(("claim", "response", "text", "image", "sentence"), GOLD)
def test_gold_by_hand(claim, response, text, image, sentence):
    found = gold(Criterion("c", claim), response, TRUTH)
    assert (found.text, found.image) == (text, image)
    assert (response[slice(*found.span)] if found.span else None) == sentence
    shown = [str(digit) for name, digit in zip(THREE.positions, TRUTH, strict=True) if f" {name} digit " in claim]
    assert [found.reading] == (shown or [None])


@pytest.mark.parametrize(
    ("response", "digits", "conclusion", "answer"),
    [
        (RIGHT, 1, 1, 1),
        (WRONG, 8 / 9, 1, 0),
        (LUCKY, 8 / 9, 0, 1),
        (SILENT, 8 / 9, 0, 1),
        (TURNED, 1, 0, 1),
        (SHORT, 1, 0, 1),
        ("", 0, 0, 0),
    ],
)
def test_scores_by_hand(response, digits, conclusion, answer):
    example = replace(
        make_example(random.Random(0), "test", 0, grid=THREE),
        example_id="digits-test-0-" + "".join(map(str, TRUTH)),
        question="What does the middle column read?",
    )
    assert score_policy(response, example) == pytest.approx(
        {"digits": digits, "conclusion": conclusion, "answer": answer}
    )


def test_an_example_is_a_picture_of_nine_and_reads_them_all():
    asked = set()
    for number in range(60):
        example = make_example(random.Random(number), "train", number, wrong_share=0.0, grid=THREE)
        truth, line = truth_of(example), asked_line(example.question)
        asked.add(line)
        assert example.images[0].size == (96, 96) and len(truth) == 9 and grid_of(truth) is THREE
        assert Counter(c.group for c in example.criteria) == {"VF": 9, "RC": 2, "IF": 1, "PITFALL": 2}
        assert len({c.id for c in example.criteria}) == 14
        assert example.answer == " ".join(str(truth[p]) for p in THREE.lines[line])
        for place, criterion in enumerate(example.criteria[:9]):
            assert criterion.text.endswith(f" {THREE.positions[place]} digit is {truth[place]}.") or (
                criterion.text == f"Reads the {THREE.positions[place]} digit as {truth[place]}."
            )
            assert criterion.weight == (5 if place in THREE.lines[line] else 4)
        # what a careful annotator writes: the reference meets all of it and commits no pitfall
        assert [gold(c, example.reference, truth).image for c in example.criteria] == [True] * 12 + [False] * 2
        assert score_policy(example.reference, example) == {"digits": 1, "conclusion": 1, "answer": 1}
    assert asked == set(THREE.lines)


def test_the_picture_shows_its_digits_row_by_row():
    example = make_example(random.Random(5), "test", 0, grid=THREE)
    indices = draw_indices(random.Random(5), "test", 9)
    assert labels_of(indices) == truth_of(example)
    for place, index in enumerate(indices):
        x, y = 32 * (place % 3), 32 * (place // 3)
        part = example.images[0].crop((x, y, x + 32, y + 32)).convert("L")
        assert part.tobytes() == digit_image(index).tobytes()


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.tuples(*[st.integers(0, 9)] * 9), st.sampled_from(sorted(THREE.lines)))
def test_what_is_said_is_understood(seed, told, line):
    said = understand(respond(random.Random(seed), told, line), THREE)
    assert {place: digit for place, (digit, _) in said.reads.items()} == dict(enumerate(told))
    concluded = tuple(told[p] for p in THREE.lines[line])
    assert said.conclusion is not None and said.answer is not None
    assert said.conclusion[:2] == (line, concluded) and said.answer[0] == concluded


def test_orders_differ_and_slips_change_one_digit_of_the_conclusion():
    firsts = {next(iter(understand(respond(random.Random(i), TRUTH, "top row"), THREE).reads)) for i in range(200)}
    assert firsts == set(range(9))
    slipped = 0
    for seed in range(100):
        said = understand(respond(random.Random(seed), TRUTH, "top row", slip=0.5), THREE)
        assert said.conclusion is not None
        wrong = sum(a != b for a, b in zip(said.conclusion[1], TRUTH[:3], strict=True))
        assert wrong in (0, 1)
        slipped += wrong
    assert 30 < slipped < 70


def test_the_oracle_judges_nine_digits():
    example = make_example(random.Random(2), "validation", 0, wrong_share=0.0, grid=THREE)
    truth = truth_of(example)
    told = [(truth[0] + 1) % 10, *truth[1:]]
    response = respond(random.Random(1), told, asked_line(example.question))
    verdicts = OracleJudge("image").judge([(example, Rollout("r", example.example_id, response, "policy"))])
    assert [v.verdict for v in verdicts[:9]] == [False] + [True] * 8
    for place, verdict in enumerate(verdicts[:9]):
        assert verdict.reading == str(truth[place])
        sentence = response[verdict.span_start : verdict.span_end].lower()
        assert f"the {THREE.positions[place]} " in sentence and sentence.endswith(f" {told[place]}.")


def test_every_digit_has_its_visual_token_and_every_place_its_own():
    processor, tokenizer = build_processor(THREE), build_tokenizer(THREE)
    example = make_example(random.Random(0), "train", 0, grid=THREE)
    features = processor.image_processor(images=list(example.images), return_tensors="pt")
    assert features["image_grid_thw"].tolist() == [[1, 6, 6]]  # merged two by two
    assert build_model(processor, 32, 1, 0.06, THREE).config.vision_config.num_position_embeddings == 36
    for place in THREE.positions:
        assert len(tokenizer(f" {place}")["input_ids"]) == 1
    lengths = [
        len(tokenizer(respond(random.Random(i), TRUTH, line))["input_ids"]) for i in range(200) for line in THREE.lines
    ]
    assert min(lengths) > 65 and max(lengths) < 96


def test_the_shipped_world_is_as_before(assets):
    """Its tokenizer is the shipped one and knows no place of the other grid; its pictures stay four tokens."""
    made = build_tokenizer().backend_tokenizer.to_str()
    assert made == build_tokenizer(TWO).backend_tokenizer.to_str() and "centre" not in made
    example = make_example(random.Random(0), "train", 0)
    assert example.images[0].size == (64, 64) and len(truth_of(example)) == 4
    assert build_processor().image_processor(images=list(example.images))["image_grid_thw"].tolist() == [[1, 4, 4]]
