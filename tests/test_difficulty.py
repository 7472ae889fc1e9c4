"""Difficulty by counting right answers among eight; what no rule decides is never wrong."""

from __future__ import annotations

import pytest
from claimwise.eval.difficulty import EASY, Rated, counts, gives_answer, kept, rate
from claimwise.verifier.schema import Criterion, Example, Rollout

GIVEN = [
    # response, answer, does it give the answer?
    ("Answer: B", "B", True),
    ("Answer: C", "B", False),
    ("\\boxed{\\frac12}", "0.5", True),
    ("Answer: 500 cm", "5 m", True),
    ("B", "B", True),  # the whole response is the answer
    ("It must be B.", "B", None),  # nothing is marked as final
    ("Answer: the bar is red, I think", "red", None),  # more words, the answer among them
    ("Answer: red or blue", "red", False),  # candidates
    ("Answer: the cat sits there", "a cat on a mat", None),  # free text
    ("", "B", False),
    ("Answer: B", None, None),
    ("Answer: B", " ", None),
]


@pytest.mark.parametrize(("response", "answer", "right"), GIVEN)
def test_gives_answer(response, answer, right):
    assert gives_answer(response, answer) is right


def example(name: str, answer: str | None = "7") -> Example:
    return Example(name, "How many?", (Criterion("c", "Says how many."),), answer=answer)


def responses(name: str, *texts: str) -> list[Rollout]:
    return [Rollout(f"{name}-{i}", name, text, "p", i) for i, text in enumerate(texts)]


RIGHT, WRONG, UNCLEAR = "Answer: 7", "Answer: 8", "There are seven of them."


@pytest.mark.parametrize(
    ("right", "difficulty"),
    [(0, "hard"), (1, "medium"), (5, "medium"), (6, "simple"), (7, "simple"), (8, EASY)],
)
def test_of_eight(right, difficulty):
    rated = rate([example("e")], responses("e", *[RIGHT] * right, *[WRONG] * (8 - right)))
    assert [(row.right, row.difficulty) for row in rated] == [(right, difficulty)]
    assert [e.difficulty for e in kept(rated)] == ([] if right == 8 else [difficulty])


def test_only_the_first_eight_count():
    rated = rate([example("e")], responses("e", *[WRONG] * 8, *[RIGHT] * 8))
    assert rated[0].difficulty == "hard"


@pytest.mark.parametrize(
    ("right", "unclear", "difficulty"),
    [
        (0, 1, None),  # hard or medium
        (1, 4, "medium"),  # 1 to 5, whichever they are
        (1, 5, None),
        (6, 1, "simple"),
        (6, 2, None),  # simple or left out
        (0, 8, None),
    ],
)
def test_the_undecided_leave_the_difficulty_open_where_they_could_change_it(right, unclear, difficulty):
    texts = [RIGHT] * right + [UNCLEAR] * unclear
    rated = rate([example("e")], responses("e", *texts, *[WRONG] * (8 - len(texts))))
    assert rated[0].difficulty == difficulty
    assert len(rated[0].undecided) == unclear
    assert [e.difficulty for e in kept(rated)] == [difficulty]


def test_missing_responses_are_not_wrong_either():
    rated = rate([example("e"), example("none")], responses("e", *[RIGHT] * 2, *[WRONG] * 4))
    assert [(row.missing, row.difficulty) for row in rated] == [(2, "medium"), (8, None)]


def test_decide_is_asked_only_what_rules_leave_open_and_what_matters():
    examples = [example("open"), example("clear"), example("unknown", answer=None), example("easy")]
    rollouts = responses("open", UNCLEAR, "Seven.", *[WRONG] * 6) + responses("clear", UNCLEAR, RIGHT, *[WRONG] * 6)
    rollouts += responses("unknown", *[RIGHT] * 8) + responses("easy", *[RIGHT] * 7, "seven")
    asked = []

    def decide(pairs):
        asked.extend(rollout.rollout_id for _, rollout in pairs)
        return [None if rollout.response == "Seven." else True for _, rollout in pairs]

    rated = rate(examples, rollouts, decide)
    assert asked == ["open-0", "open-1", "easy-7"]  # "clear" is medium either way, "unknown" has no answer to ask about
    assert [(row.right, len(row.undecided), row.difficulty) for row in rated] == [
        (1, 1, "medium"),  # 1 or 2
        (1, 1, "medium"),
        (0, 8, None),
        (8, 0, EASY),
    ]
    assert counts(rated) == {"hard": 0, "medium": 2, "simple": 0, EASY: 1, "open": 1, "undecided": 10}
    assert [e.example_id for e in kept(rated)] == ["open", "clear", "unknown"]


def test_decide_may_say_no():
    rated = rate([example("e")], responses("e", UNCLEAR, *[WRONG] * 7), lambda pairs: [False] * len(pairs))
    assert rated == [Rated(example("e"), 0, ())] and rated[0].difficulty == "hard"
