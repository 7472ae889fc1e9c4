"""The digits world: the gold of every kind of criterion by hand, examples, responses, figures, the oracle."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from claimwise.distill.digits import (
    DIMENSION,
    LINES,
    POSITIONS,
    digit_image,
    draw_indices,
    gold,
    labels_of,
    make_example,
    respond,
    score_policy,
    split_digits,
    truth_of,
    understand,
    verdict_of,
)
from claimwise.distill.edits import counterfactual
from claimwise.distill.oracle import OracleJudge, reading_monitor
from claimwise.verifier.errors import InputError
from claimwise.verifier.schema import Criterion, Example, Rollout
from hypothesis import given, settings
from hypothesis import strategies as st

# The picture shows   7 0
#                     3 5
TRUTH = (7, 0, 3, 5)
RIGHT = (
    "The top-left digit is 7. At the top-right I see 0. The digit at the bottom-left is 3. "
    "The bottom-right digit is 5. So the top row reads 7 0.\nAnswer: 7 0"
)
WRONG = RIGHT.replace("left digit is 7", "left digit is 1").replace("7 0", "1 0")  # reads 1 for 7, else consistent
NEGATED = RIGHT.replace("The top-left digit is 7.", "The top-left digit is not 7.")
CONTRADICTED = RIGHT.replace(" So the", " The top-left digit is 1. So the")
CORRECTED = WRONG.replace(" So the", " At the top-left I see 7. So the")
SILENT = RIGHT.replace("The top-left digit is 7. ", "")
RELATION = RIGHT.replace("The top-left digit is 7", "The bottom-left digit is 7")  # said again, rightly, further on
TURNED = RIGHT.replace("the top row reads", "the bottom row reads")
UNLIKE = RIGHT.replace("Answer: 7 0", "Answer: 0 7")
SHORT = RIGHT.replace("Answer: 7 0", "Answer: 7")
BARE = RIGHT.replace("Answer: 7 0", "Answer:")
CUT = RIGHT[: RIGHT.index(" reads 7 0")]  # a length limit, inside the conclusion
NOT_CONCLUDED = RIGHT.replace(" So the top row reads 7 0.", " So the top row is not 7 0.")

READS_7 = "Reads the top-left digit as 7."
STATES_7 = "States that the top-left digit is 7."
READS_1 = "Reads the top-left digit as 1."  # wrong on purpose: the picture shows 7
PITFALL_1 = "Wrongly reads the top-left digit as 1."
PITFALL_7 = "Wrongly reads the top-left digit as 7."  # not one: the picture shows 7
FOLLOWS = "The conclusion agrees with the digits that were read."
REPEATS = "The final answer repeats the conclusion."
TWO = "Gives a final answer of two digits."
LINE = "The conclusion is about the top row."

# claim, response, yes in text mode, yes in image mode, the sentence that decides (None: none does)
GOLD = [
    # readings
    (READS_7, RIGHT, True, True, "The top-left digit is 7."),
    (STATES_7, RIGHT, True, True, "The top-left digit is 7."),
    ("Reads the top-right digit as 0.", RIGHT, True, True, "At the top-right I see 0."),
    ("States that the bottom-left digit is 3.", RIGHT, True, True, "The digit at the bottom-left is 3."),
    (READS_7, WRONG, False, False, "The top-left digit is 1."),
    (READS_7, SILENT, False, False, None),
    (READS_7, NEGATED, False, False, "The top-left digit is not 7."),
    (READS_1, NEGATED, False, False, "The top-left digit is not 7."),
    (READS_7, CONTRADICTED, False, False, "The top-left digit is 1."),  # the last sentence counts
    (READS_7, CORRECTED, True, True, "At the top-left I see 7."),
    (READS_7, RELATION, False, False, None),
    ("Reads the bottom-left digit as 7.", RELATION, False, False, "The digit at the bottom-left is 3."),
    (READS_7, CUT, True, True, "The top-left digit is 7."),
    (READS_7, "  \n The top-left digit is 7. \n\n", True, True, "The top-left digit is 7."),  # without the white space
    (READS_7, "The top-left digit is", False, False, None),
    (READS_7, "The top-left digit is 7", True, True, "The top-left digit is 7"),  # cut before the full stop
    (READS_7, "", False, False, None),
    (READS_7, "It is a nice picture.", False, False, None),
    # a criterion that is wrong on purpose: met by the text, contradicted by the picture
    (READS_1, WRONG, True, False, "The top-left digit is 1."),
    (READS_1, RIGHT, False, False, "The top-left digit is 7."),
    (READS_1, CONTRADICTED, True, False, "The top-left digit is 1."),
    # pitfalls: yes means that the failure is committed, in image mode that it is one
    (PITFALL_1, WRONG, True, True, "The top-left digit is 1."),
    (PITFALL_1, RIGHT, False, False, "The top-left digit is 7."),
    (PITFALL_1, SILENT, False, False, None),
    (PITFALL_1, CORRECTED, False, False, "At the top-left I see 7."),
    (PITFALL_7, RIGHT, True, False, "The top-left digit is 7."),
    (PITFALL_7, WRONG, False, False, "The top-left digit is 1."),
    # the conclusion follows from the response's own readings, whatever the picture shows
    (FOLLOWS, RIGHT, True, True, "So the top row reads 7 0."),
    (FOLLOWS, WRONG, True, True, "So the top row reads 1 0."),
    (FOLLOWS, CONTRADICTED, False, False, "So the top row reads 7 0."),
    (FOLLOWS, NEGATED, False, False, "So the top row reads 7 0."),
    (FOLLOWS, SILENT, False, False, "So the top row reads 7 0."),
    (FOLLOWS, TURNED, False, False, "So the bottom row reads 7 0."),  # 3 5 was read there
    (FOLLOWS, CUT, False, False, None),
    (FOLLOWS, NOT_CONCLUDED, False, False, None),
    (FOLLOWS, "", False, False, None),
    # the answer repeats the conclusion
    (REPEATS, RIGHT, True, True, "Answer: 7 0"),
    (REPEATS, UNLIKE, False, False, "Answer: 0 7"),
    (REPEATS, SHORT, False, False, "Answer: 7"),
    (REPEATS, NOT_CONCLUDED, False, False, "Answer: 7 0"),
    (REPEATS, CUT, False, False, None),
    # the answer has two digits
    (TWO, RIGHT, True, True, "Answer: 7 0"),
    (TWO, UNLIKE, True, True, "Answer: 0 7"),
    (TWO, SHORT, False, False, "Answer: 7"),
    (TWO, BARE, False, False, "Answer:"),
    (TWO, CUT, False, False, None),
    # the conclusion is about the line that was asked for
    (LINE, RIGHT, True, True, "So the top row reads 7 0."),
    (LINE, TURNED, False, False, "So the bottom row reads 7 0."),
    ("The conclusion is about the bottom row.", TURNED, True, True, "So the bottom row reads 7 0."),
    (LINE, CUT, False, False, None),
    (LINE, "", False, False, None),
]


@pytest.mark.parametrize(("claim", "response", "text", "image", "sentence"), GOLD)
def test_gold_by_hand(claim, response, text, image, sentence):
    found = gold(Criterion("c", claim), response, TRUTH)
    assert (found.text, found.image) == (text, image)
    assert (verdict_of(found, "text"), verdict_of(found, "image")) == (text, image)
    assert (response[slice(*found.span)] if found.span else None) == sentence


@pytest.mark.parametrize("response", [RIGHT, WRONG, SILENT, NEGATED, ""])
def test_the_reading_is_what_the_picture_shows_whatever_was_said(response):
    """Of the four places the criteria on the top-left and bottom-right digits: 7 and 5."""
    for claim in (READS_7, READS_1, PITFALL_1, PITFALL_7):
        assert gold(Criterion("c", claim), response, TRUTH).reading == "7"
    assert gold(Criterion("c", "Reads the bottom-right digit as 9."), response, TRUTH).reading == "5"
    for claim in (FOLLOWS, REPEATS, TWO, LINE):  # not about the image
        assert gold(Criterion("c", claim), response, TRUTH).reading is None


def test_only_readings_and_pitfalls_need_the_picture():
    """Another truth changes the image mode of the former and nothing of the latter."""
    for claim, response, *_ in GOLD:
        here, there = (gold(Criterion("c", claim), response, truth) for truth in (TRUTH, (1, 1, 1, 1)))
        assert here.text == there.text and here.span == there.span
        if here.reading is None:
            assert here == there


def test_the_digits_of_the_parts_are_disjoint_and_whole():
    parts = {part: set(split_digits(part).tolist()) for part in ("train", "validation", "test")}
    assert {part: len(found) for part, found in parts.items()} == {"train": 1197, "validation": 200, "test": 400}
    assert len(set.union(*parts.values())) == 1197 + 200 + 400 == 1797  # so no two share a digit
    for part, found in parts.items():
        assert set(draw_indices(random.Random(3), part)) <= found


def test_the_human_labels_belong_to_the_pictures():
    """UCI's first ten digits are 0 to 9 in order; a picture of a 0 has a dark middle and one of a 1 a bright one."""
    assert labels_of(range(10)) == tuple(range(10))
    middle = {i: digit_image(i).getpixel((16, 16)) for i in (0, 1)}
    assert middle[0] < 40 and middle[1] > 180


def test_an_example_is_a_picture_and_seven_criteria():
    for number in range(60):
        example = make_example(random.Random(number), "train", number)
        truth = truth_of(example)
        line = next(line for line in LINES if line in example.question)
        assert example.images[0].size == (64, 64) and example.images[0].mode == "RGB"
        assert [c.id for c in example.criteria] == [f"c{j}" for j in range(1, 8)]
        groups = Counter(c.group for c in example.criteria)
        assert groups == {"VF": 3, "RC": 2, "IF": 1, "PITFALL": 1}
        assert all((c.weight < 0) == c.is_pitfall for c in example.criteria)
        assert example.answer == " ".join(str(truth[p]) for p in LINES[line])
        # the asked two places come first, a third one after
        places = [next(p for p, name in enumerate(POSITIONS) if name in c.text) for c in example.criteria[:3]]
        assert tuple(places[:2]) == LINES[line] and places[2] not in places[:2]


def test_the_picture_shows_its_digits_in_order():
    example = make_example(random.Random(5), "test", 0)
    indices = draw_indices(random.Random(5), "test")
    assert labels_of(indices) == truth_of(example)
    for place, index in enumerate(indices):
        x, y = 32 * (place % 2), 32 * (place // 2)
        part = example.images[0].crop((x, y, x + 32, y + 32)).convert("L")
        assert part.tobytes() == digit_image(index).tobytes()


def test_the_same_seed_gives_the_same_example():
    one, two, other = (make_example(random.Random(seed), "train", 1) for seed in (8, 8, 9))
    assert (one.criteria, one.question, one.reference) == (two.criteria, two.question, two.reference)
    assert one.images[0].tobytes() == two.images[0].tobytes() != other.images[0].tobytes()


def test_the_share_of_wrong_criteria_is_as_asked():
    """Of 1,600 criteria on the picture a fifth is wrong: 320 with a standard deviation of 16 (taken as independent)."""
    wrong = {0.0: 0, 0.2: 0, 1.0: 0}
    for share in wrong:
        for number in range(400):
            example = make_example(random.Random(number), "train", number, share)
            truth = truth_of(example)
            for criterion in (example.criteria[i] for i in (0, 1, 2, 6)):
                # said by a response that does what the criterion says: does the picture allow it?
                place, digit = next(p for p in POSITIONS if p in criterion.text), criterion.text[-2]
                found = gold(criterion, f"The {place} digit is {digit}.", truth)
                assert found.text
                wrong[share] += not found.image
    assert wrong[0.0] == 0 and wrong[1.0] == 1600
    assert abs(wrong[0.2] - 320) < 5 * 16


def test_reference_and_rubric_share_the_annotators_mistakes():
    """The reference meets every criterion but the pitfall in text mode; it fails the wrong ones in image mode."""
    failed = 0
    for number in range(50):
        example = make_example(random.Random(number), "train", number)
        found = [gold(c, example.reference, truth_of(example)) for c in example.criteria]
        assert all(g.text for g in found[:6])
        failed += sum(not g.image for g in found[:3])
    assert failed > 10  # of 150, a fifth


digit = st.integers(0, 9)


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.tuples(digit, digit, digit, digit), st.sampled_from(sorted(LINES)))
def test_what_is_said_is_understood(seed, told, line):
    response = respond(random.Random(seed), told, line)
    said = understand(response)
    assert {place: value for place, (value, _) in said.reads.items()} == dict(enumerate(told))
    concluded = tuple(told[p] for p in LINES[line])
    assert said.conclusion is not None and said.answer is not None
    assert said.conclusion[:2] == (line, concluded)
    assert said.answer[0] == concluded
    spans = [span for _, span in said.reads.values()] + [said.conclusion[2], said.answer[1]]
    # each sentence says one thing, and is pointed at whole, without the white space behind it
    assert " ".join(response[slice(*span)] for span in sorted(spans)) == response.replace("\n", " ")


def test_wording_and_order_vary():
    said = [respond(random.Random(seed), TRUTH, "top row") for seed in range(200)]
    assert len(set(said)) > 150
    # each place opens a quarter of the responses: 50 of 200, standard deviation 6
    first = Counter(min(understand(r).reads.items(), key=lambda item: item[1][1])[0] for r in said)
    assert set(first) == {0, 1, 2, 3} and min(first.values()) > 20


def example_of(question="What does the top row read?", criteria=(), truth="7035"):
    return Example(f"digits-test-00001-{truth}", question, tuple(criteria))


@pytest.mark.parametrize(
    ("response", "question", "digits", "conclusion", "answer"),
    [
        (RIGHT, "What does the top row read?", 1, 1, 1),
        (WRONG, "What does the top row read?", 0.75, 1, 0),  # consistent, but 1 is not 7
        (RIGHT, "What does the bottom row read?", 1, 1, 0),  # right digits for another line
        (SILENT, "What does the top row read?", 0.75, 0, 1),
        (CONTRADICTED, "What does the top row read?", 0.75, 0, 1),
        (NEGATED, "What does the top row read?", 0.75, 0, 1),
        (UNLIKE, "What does the top row read?", 1, 1, 0),
        (CUT, "What does the top row read?", 1, 0, 0),
        ("", "What does the top row read?", 0, 0, 0),
    ],
)
def test_the_policys_figures_by_hand(response, question, digits, conclusion, answer):
    assert score_policy(response, example_of(question)) == {
        "digits": digits,
        "conclusion": conclusion,
        "answer": answer,
    }


@pytest.mark.parametrize("question", ["What do you see?", "What does the middle row read?", ""])
def test_no_answer_is_right_or_wrong_where_no_line_of_the_picture_is_asked_for(question):
    """What is read can be told all the same: nine digits have a middle row, four have none."""
    example = example_of(question)
    with pytest.raises(InputError, match="asks for no row or column of the digits world's pictures"):
        score_policy(RIGHT, example)
    completions = [[{"content": text}] for text in (RIGHT, WRONG, "")]
    assert reading_monitor([example])(completions, [example.example_id] * 3) == [1, 0.75, 0]


def oracle_items():
    criteria = [
        Criterion("a", READS_7, dimension="VF", weight=5),
        Criterion("b", READS_1, dimension="VF", weight=5),
        Criterion("c", FOLLOWS, dimension="RC"),
        Criterion("d", PITFALL_1, dimension="VF", label="PITFALL", weight=-3),
    ]
    example = example_of(criteria=criteria)
    return [(example, Rollout(name, example.example_id, text, "policy")) for name, text in (("r", RIGHT), ("w", WRONG))]


def test_the_oracle_in_both_modes():
    text, image = (OracleJudge(mode).judge(oracle_items()) for mode in ("text", "image"))
    keys = [(rollout, criterion) for rollout in "rw" for criterion in "abcd"]
    assert [v.key for v in text] == [v.key for v in image] == keys  # items first, then criteria
    assert [v.verdict for v in text] == [True, False, True, False, False, True, True, True]
    assert [v.verdict for v in image] == [True, False, True, False, False, False, True, True]
    assert [v.dimension for v in image] == ["VF", "VF", "RC", "PITFALL"] * 2
    assert [v.reading for v in image] == ["7", "7", "", "7"] * 2
    assert all(v.reading is None for v in text)
    assert {(v.judge, v.mode) for v in text} == {("oracle-text", "text")}
    assert {(v.judge, v.mode) for v in image} == {("oracle-image", "image")}
    first, conclusion = "The top-left digit is 7.", "So the top row reads 7 0."
    assert [RIGHT[slice(*v.span)] for v in image[:4]] == [first, first, conclusion, first]
    assert all(v.p_yes == float(v.verdict) and v.match == "exact" and v.created_at for v in text + image)


def test_the_oracle_points_nowhere_where_nothing_is_said():
    example, rollout = oracle_items()[0]
    empty = Rollout("e", example.example_id, "", "policy")
    verdicts = OracleJudge("image").judge([(example, empty)])
    assert [(v.verdict, v.span, v.match) for v in verdicts] == [(False, None, "none")] * 4
    assert rollout.response  # the example is the same, so only the response decides


@pytest.mark.parametrize("name", ["chart_02501_3c2e6864", "digits-test-00001-70", "7035x", ""])
def test_the_oracle_refuses_another_world(name):
    example = Example(name, "What does the top row read?", (Criterion("a", READS_7),))
    with pytest.raises(InputError, match=r"is not of the digits world, so the oracle cannot judge it"):
        OracleJudge("image").judge([(example, Rollout("r", name, RIGHT, "policy"))])


def test_both_verdicts_occur_for_every_kind_of_criterion():
    """And so do wrong criteria: pairs that the two modes answer differently."""
    seen: dict[str, Counter] = {kind: Counter() for kind in DIMENSION}
    rng, differing = random.Random(0), 0
    for number in range(300):
        example = make_example(rng, "train", number)
        assert example.reference is not None
        edited = counterfactual(rng, example.reference)
        assert edited is not None
        for criterion in example.criteria:
            found = gold(criterion, edited[0], truth_of(example))
            seen[criterion.title or ""].update([("text", found.text), ("image", found.image)])
            differing += found.text != found.image
    for kind, counts in seen.items():
        for mode in ("text", "image"):
            assert min(counts[mode, True], counts[mode, False]) >= 5, (kind, mode, counts)
    assert differing > 60  # a fifth of 900 readings, less those that the edit took away
