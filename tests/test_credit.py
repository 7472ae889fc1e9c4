"""The credit, by numbers worked out by hand: arms and budgets, missing values, ties, sums, match_rms, bad input."""

import math

import numpy as np
import pytest
from claimwise.trainer.credit import ARMS, BUDGETS, token_advantages
from claimwise.verifier.errors import InputError
from credit_cases import FOUR, Z2, advantages, criterion, response, same


def test_worked_case_of_the_design():
    """chart_02501_3c2e6864: weights 5,5,4,4,5,3 (26), only the fifth holds: R_rub = 5/26; the answer is right, so the
    semantic reward is 0.5 x 1 + 0.5 x 5/26 = 0.5962."""
    criteria = [criterion(f"c{j}", weight) for j, weight in enumerate((5, 5, 4, 4, 5, 3), 1)]
    held = {f"c{j}": j == 5 for j in range(1, 7)}
    nothing = dict.fromkeys(held, False)
    credit = token_advantages(criteria, [response(1, **held), response(0, **nothing)], arm="scalar")
    first = credit.rewards[0]
    assert first.rubric == pytest.approx(5 / 26)
    budget = BUDGETS["paper"]
    assert budget.answer * first.answer + budget.rubric * first.rubric == pytest.approx(0.5962, abs=5e-5)
    # sums 31/52 and 0: deviation 31/104, std = (31/52) sqrt(1/2)
    z = (31 / 104) / (31 / 52 * math.sqrt(0.5) + 1e-4)
    same(credit, [[z] * 5, [-z] * 5])
    # the fifth alone has spread: 0.5 z(a) + 0.5 (5/26) z(s_5)
    component = 0.5 * Z2 + 0.5 * 5 / 26 * Z2
    credit = token_advantages(criteria, [response(1, **held), response(0, **nothing)], arm="component")
    same(credit, [[component] * 5, [-component] * 5])


# arms


# c1 (weight 3) holds for the first response only, decided by token 1; c2 (weight 1) for the second only, by token 2 and
# by tokens 2-3. Answers 1, 0; formats 0, 1. Every z is +-Z2.
TWO = [criterion("c1", 3), criterion("c2", 1)]
PAIR = [
    response(1, 0.0, c1=(True, (3, 6)), c2=(False, (7, 8))),
    response(0, 1.0, c1=(False, (4, 5)), c2=(True, (6, 12))),
]
R = 0.75 - 0.25  # R_rub is 3/4 and 1/4


ZR = (R / 2) / (R * math.sqrt(0.5) + 1e-4)


def z_of(difference):
    """z of the higher of two values that differ by this much."""
    return (difference / 2) / (difference * math.sqrt(0.5) + 1e-4)


@pytest.mark.parametrize(
    ("budget", "arm", "first"),
    [
        # a + 0 f: 1 and 0
        ("paper", "answer", [z_of(1)] * 5),
        # 0.5 + 0.5 x 0.75 = 0.875 and 0.5 x 0.25 = 0.125
        ("paper", "scalar", [z_of(0.75)] * 5),
        ("paper", "scalar-z", [0.5 * Z2 + 0.5 * ZR] * 5),
        # 0.5 (3/4 - 1/4) = 0.25
        ("paper", "component", [0.75 * Z2] * 5),
        # c1 to token 1, c2 to token 2: 0.375 - 0.125, the same, -0.125, nothing
        ("paper", "prefix", [0.75 * Z2, 0.75 * Z2, 0.375 * Z2, 0.5 * Z2, 0.5 * Z2]),
        ("paper", "span", [0.5 * Z2, 0.875 * Z2, 0.375 * Z2, 0.5 * Z2, 0.5 * Z2]),
        # 0.9 a + 0.1 f: 0.9 and 0.1
        ("release-sequence", "answer", [z_of(0.8)] * 5),
        # 0.1 + 0.8 x 0.75 = 0.7 and 0.1 + 0.8 x 0.25 = 0.3
        ("release-sequence", "scalar", [z_of(0.4)] * 5),
        ("release-sequence", "scalar-z", [0.1 * Z2 - 0.1 * Z2 + 0.8 * ZR] * 5),
        ("release-sequence", "component", [0.4 * Z2] * 5),
        # answer and format cancel; c1 0.6, c2 -0.2
        ("release-sequence", "prefix", [0.4 * Z2, 0.4 * Z2, -0.2 * Z2, 0, 0]),
        ("release-sequence", "span", [0, 0.6 * Z2, -0.2 * Z2, 0, 0]),
        # 0.95 a + 0.05 f: 0.95 and 0.05
        ("release-prefix", "answer", [z_of(0.90)] * 5),
        # 0.5 + 0.45 x 0.75 = 0.8375 and 0.05 + 0.45 x 0.25 = 0.1625
        ("release-prefix", "scalar", [z_of(0.675)] * 5),
        ("release-prefix", "scalar-z", [0.5 * Z2 - 0.05 * Z2 + 0.45 * ZR] * 5),
        # 0.45 (3/4 - 1/4) = 0.225
        ("release-prefix", "component", [(0.45 + 0.225) * Z2] * 5),
        # c1 0.3375, c2 -0.1125
        ("release-prefix", "prefix", [0.675 * Z2, 0.675 * Z2, (0.45 - 0.1125) * Z2, 0.45 * Z2, 0.45 * Z2]),
        ("release-prefix", "span", [0.45 * Z2, (0.45 + 0.3375) * Z2, (0.45 - 0.1125) * Z2, 0.45 * Z2, 0.45 * Z2]),
    ],
)
def test_arms_and_budgets(budget, arm, first):
    credit = token_advantages(TWO, PAIR, arm=arm, budget=budget)
    second = [-a for a in first]
    if arm in ("prefix", "span"):  # c2's span ends with the last token, and the end of sequence goes with it
        second[3:] = [second[2]] * 2
    same(credit, [first, second])
    assert (credit.fallbacks, credit.missing) == (0, 0)


def test_parts_add_up_to_the_advantage_in_every_arm():
    for arm in ARMS:
        credit = token_advantages(TWO, PAIR, arm=arm, budget="release-prefix")
        for g, advantage in enumerate(credit.advantages):
            total = np.zeros(5)
            for term in credit.terms:
                total[term.first_g[g] : term.last_g[g] + 1] += term.added_g[g]
            np.testing.assert_allclose(total, advantage, atol=1e-12)
    # one token in five of the first, three in five of the second: the answer's part is everywhere 0.5 Z2
    assert credit.rms["answer"] == pytest.approx(0.5 * Z2)
    squares = [0, 0.3375**2, 0.1125**2, 0, 0, 0, 0.3375**2, 0.1125**2, 0.1125**2, 0.1125**2]
    assert credit.rms["rubric"] == pytest.approx(Z2 * math.sqrt(sum(squares) / 10))


def test_unknown_arm_and_pitfall_setting():
    with pytest.raises(InputError, match="arm is 'suffix'"):
        token_advantages(TWO, PAIR, arm="suffix")
    with pytest.raises(InputError, match="pitfalls is 'on'"):
        token_advantages(TWO, PAIR, pitfalls="on")


# z: missing and ties


def test_missing_verdict_gets_zero_and_changes_no_other_z():
    """c1 known as 1, 0 of three responses: Z2, -Z2, and 0 for the missing one."""
    group = [response(c1=True), response(c1=False), response(c1=None)]
    credit = token_advantages([criterion("c1")], group, arm="component", budget=(0, 0, 1))
    same(credit, [[Z2] * 5, [-Z2] * 5, [0] * 5])
    assert (credit.missing, credit.fallbacks) == (1, 2)
    assert [r.rubric for r in credit.rewards] == [1, 0, None]


# Answers 1, 0, missing and c1 yes at token 0, missing, no at token 1. z(a) is Z2, -Z2, 0 and z(s) is Z2, 0, -Z2.
THREE = [response(1, c1=(True, (0, 3))), response(0, c1=(None, (0, 3))), response(None, c1=(False, (3, 6)))]
# Sums 0.5 a + 0.5 R, a missing part at its mean 1/2: 1, 1/4, 1/4; deviations 1/2, -1/4, -1/4, squares 3/8.
S3 = math.sqrt(3 / 16) + 1e-4


@pytest.mark.parametrize(
    ("arm", "rows"),
    [
        ("answer", [[Z2] * 5, [-Z2] * 5, [0] * 5]),
        ("scalar", [[0.5 / S3] * 5, [-0.25 / S3] * 5, [-0.25 / S3] * 5]),
        ("scalar-z", [[Z2] * 5, [-Z2 / 2] * 5, [-Z2 / 2] * 5]),
        ("component", [[Z2] * 5, [-Z2 / 2] * 5, [-Z2 / 2] * 5]),
        ("prefix", [[Z2, *[Z2 / 2] * 4], [-Z2 / 2] * 5, [-Z2 / 2, -Z2 / 2, 0, 0, 0]]),
        ("span", [[Z2, *[Z2 / 2] * 4], [-Z2 / 2] * 5, [0, -Z2 / 2, 0, 0, 0]]),
    ],
)
def test_missing_values_in_every_arm(arm, rows):
    credit = token_advantages([criterion("c1")], THREE, arm=arm)
    same(credit, rows)
    assert (credit.missing, credit.fallbacks) == (1, 0)


def test_a_missing_format_counts_neither_way():
    """Formats 1, 0, missing and nothing else: z is Z2, -Z2, 0 in every arm with a budget for it."""
    group = [response(None, f, c1=None) for f in (1.0, 0.0, None)]
    for arm in ARMS:
        same(token_advantages([criterion("c1")], group, arm=arm, budget=(0, 1, 0)), [[Z2] * 5, [-Z2] * 5, [0] * 5])


def test_no_entry_is_missing():
    credit = token_advantages([criterion("c1"), criterion("p1", -1, "PITFALL")], [response(c1=True), response()])
    assert credit.missing == 3  # c1 of the second, p1 of both


@pytest.mark.parametrize("values", [(1, 1, 1), (0, 0, 0), (1, None, None), (None, None, None)])
@pytest.mark.parametrize("arm", ARMS)
def test_ties_and_single_known_values_give_exactly_zero(values, arm):
    group = [response(a, c1=None if a is None else bool(a)) for a in values]
    credit = token_advantages([criterion("c1")], group, arm=arm, match_rms=True)
    assert advantages(credit) == [[0.0] * 5] * 3
    assert credit.divisor == 1


def test_rewards_that_are_equal_but_for_rounding_are_a_tie():
    """0.1 three times against 0.3 once is 0.30000000000000004 against 0.3."""
    criteria = [criterion(f"c{j}", w) for j, w in enumerate((0.1, 0.1, 0.1, 0.3, 0.4))]
    yes = dict.fromkeys(("c0", "c1", "c2"), True) | dict.fromkeys(("c3", "c4"), False)
    no = {name: not verdict for name, verdict in yes.items()} | {"c4": False}
    credit = token_advantages(criteria, [response(**yes), response(**no)], arm="scalar")
    assert advantages(credit) == [[0.0] * 5] * 2


# sums with missing parts


def test_missing_part_of_a_sum_takes_the_mean_of_its_known_values():
    """c1 is 1, 0, missing (mean 1/2), c2 is 1, 1, 0: R = 1, 1/2, 1/4. Answers 1, missing (mean 1/2), 0:
    sums 0.5 a + 0.5 R = 1, 1/2, 1/8; mean 13/24, deviations 11/24, -1/24, -10/24, squares 121 + 1 + 100 = 222."""
    group = [response(1, c1=True, c2=True), response(None, c1=False, c2=True), response(0, c1=None, c2=False)]
    credit = token_advantages([criterion("c1"), criterion("c2")], group, arm="scalar")
    assert [r.rubric for r in credit.rewards] == pytest.approx([1, 0.5, 0.25])
    scale = math.sqrt(222 / 2) / 24 + 1e-4
    same(credit, [[11 / 24 / scale] * 5, [-1 / 24 / scale] * 5, [-10 / 24 / scale] * 5])
    # arm answer: a is 1, missing, 0 and the only part: its sum is missing, so z = 0
    same(token_advantages([criterion("c1"), criterion("c2")], group, arm="answer"), [[Z2] * 5, [0] * 5, [-Z2] * 5])


def test_part_unknown_for_the_whole_group_is_dropped():
    """No answer and no c2 anywhere: the sums are 0.5 x 1/2 s_1 = 1/4 and 0, d = 1/4."""
    group = [response(c1=True), response(c1=False)]
    credit = token_advantages([criterion("c1"), criterion("c2")], group, arm="scalar")
    z = 0.125 / (0.25 * math.sqrt(0.5) + 1e-4)
    same(credit, [[z] * 5, [-z] * 5])
    assert [r.rubric for r in credit.rewards] == [0.5, 0]


def test_sum_is_missing_with_every_part_of_non_zero_budget_missing():
    """The format has no budget, so it cannot make the third response's sum known."""
    group = [response(1, c1=True), response(0, c1=False), response(None, 1.0)]
    same(token_advantages([criterion("c1")], group, arm="scalar"), [[Z2] * 5, [-Z2] * 5, [0] * 5])
    # with a budget it does: 0.1 f + the means of a (1/2) and R (1/2); f is known nowhere else and counts 1 everywhere,
    # so the sums are 1.0, 0.1, 0.55: deviations 0.45, -0.45, 0, std 0.45
    z = 0.45 / (0.45 + 1e-4)
    same(
        token_advantages([criterion("c1")], group, arm="scalar", budget="release-sequence"),
        [[z] * 5, [-z] * 5, [0] * 5],
    )


def test_zero_weight_does_not_make_a_rubric_known():
    group = [response(c1=True, c2=True), response(c1=None, c2=True)]
    credit = token_advantages([criterion("c1"), criterion("c2", 0)], group)
    assert [r.rubric for r in credit.rewards] == [1, None]


def test_empty_response_counts_in_the_group_and_gets_no_advantages():
    group = [response(1, offsets=[], c1=True), response(0, c1=False)]
    credit = token_advantages([criterion("c1")], group, match_rms=True)
    assert advantages(credit)[0] == []
    assert credit.advantages[1] == pytest.approx([-1] * 5)


# match_rms


def test_match_rms():
    """+-Z2 on the first token of each response, +-Z2/2 on its other four: mean square (2 + 8/4) / 10 Z2^2."""
    group = [response(1, c1=(True, (0, 3))), response(0, c1=(False, (0, 3)))]
    plain = token_advantages([criterion("c1")], group)
    same(plain, [[Z2, *[Z2 / 2] * 4], [-Z2, *[-Z2 / 2] * 4]])
    rms = Z2 * math.sqrt((2 * 1 + 8 * 0.25) / 10)
    matched = token_advantages([criterion("c1")], group, match_rms=True)
    assert matched.divisor == matched.rms["advantage"] == pytest.approx(rms)
    same(matched, [[Z2 / rms, *[Z2 / 2 / rms] * 4], [-Z2 / rms, *[-Z2 / 2 / rms] * 4]])


# bad groups


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ([response(c1=True)], "at least two"),
        ([response(c1=True), response(c9=True)], r"responses\[1\]: a verdict on criterion 'c9'"),
        ([response(c1=True), response(c1=(True, (0, 13)))], r"responses\[1\]: the span of criterion 'c1' is 0..13"),
        ([response(c1=True), response(c1=(True, (4, 3)))], "4..3"),
        ([response(c1=True), response(c1=(True, (-1, 3)))], "-1..3"),
        ([response(c1=True), response(0.5)], r"responses\[1\]: answer is 0.5"),
        ([response(c1=True), response(1, 1.5)], r"responses\[1\]: format is 1.5"),
        ([response(c1=True), response(1, math.nan)], "format is nan"),
        ([response(c1=True), response(c1=1)], "verdict of criterion 'c1' is 1"),
        ([response(c1=True), response(offsets=[[3, 1]])], r"responses\[1\]: token_offsets\[0\]"),
    ],
)
def test_groups_that_cannot_be_used(group, message):
    with pytest.raises(InputError, match=message):
        token_advantages([criterion("c1")], group)


def test_criterion_named_twice():
    with pytest.raises(InputError, match="'c1' is named twice"):
        token_advantages([criterion("c1"), criterion("c1")], [response(), response()])


def test_input_is_left_alone():
    offsets = np.array(FOUR)
    group = [response(1, offsets=offsets, c1=True, p1=(True, (0, 3))), response(0, offsets=offsets, c1=None)]
    token_advantages([criterion("c1"), criterion("p1", -1, "PITFALL")], group)
    assert offsets.tolist() == FOUR
    assert group[0].verdicts["c1"] == (True, None)
