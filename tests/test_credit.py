"""The credit: numbers worked out by hand, a slow reference written from the text, and the laws."""

import math

import numpy as np
import pytest
from claimwise.trainer.credit import (
    ARMS,
    BUDGETS,
    PITFALLS,
    Budget,
    ScoredResponse,
    criterion_weights,
    resolve_budget,
    token_advantages,
)
from claimwise.trainer.spans import token_intervals
from claimwise.verifier.errors import InputError
from claimwise.verifier.schema import Criterion
from hypothesis import given, settings
from hypothesis import strategies as st

# Two known values 1 and 0: mean 1/2, std with Bessel sqrt(1/2), z = +-(1/2) / (sqrt(1/2) + 1e-4) = +-0.7070068.
Z2 = 0.5 / (math.sqrt(0.5) + 1e-4)
# Three known values 1, 0, 0: mean 1/3, squares 4/9 + 1/9 + 1/9 = 2/3, std sqrt(2/3 / 2) = sqrt(1/3).
Z3_ONE, Z3_ZERO = (2 / 3) / (math.sqrt(1 / 3) + 1e-4), (-1 / 3) / (math.sqrt(1 / 3) + 1e-4)

# Four tokens of three characters, then the end of sequence.
FOUR = [[0, 3], [3, 6], [6, 9], [9, 12], [12, 12]]


def criterion(name, weight=1.0, label="ESSENTIAL", **more):
    return Criterion(name, "", label=label, weight=weight, **more)


def response(answer=None, format=None, offsets=FOUR, **verdicts):
    """Verdicts as c1=True, or c1=(True, (0, 3)) with a span."""
    pairs = {name: v if isinstance(v, tuple) else (v, None) for name, v in verdicts.items()}
    return ScoredResponse(offsets, answer, format, pairs)


def advantages(credit):
    return [advantage.tolist() for advantage in credit.advantages]


def same(credit, expected):
    assert len(credit.advantages) == len(expected)
    for advantage, row in zip(credit.advantages, expected, strict=True):
        np.testing.assert_allclose(advantage, row, rtol=0, atol=1e-12)


# weights and budgets


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


def test_weights_leave_pitfalls_out_unless_they_are_credited():
    criteria = [criterion("c1", 5), criterion("c2", -3), criterion("p1", -2, "PITFALL")]
    for setting in ("veto", "veto-answer", "off"):
        assert criterion_weights(criteria, setting) == pytest.approx({"c1": 5 / 8, "c2": 3 / 8})
    assert criterion_weights(criteria, "criterion") == pytest.approx({"c1": 0.5, "c2": 0.3, "p1": 0.2})


@pytest.mark.parametrize("weights", [(), (0.0, 0.0)])
def test_weights_that_cannot_be_used(weights):
    criteria = [criterion(f"c{j}", weight) for j, weight in enumerate(weights)]
    with pytest.raises(InputError, match="weight"):
        criterion_weights(criteria)


def test_huge_weights_do_not_overflow():
    assert criterion_weights([criterion("a", 1.5e308), criterion("b", 1.5e308)]) == {"a": 0.5, "b": 0.5}


def test_budgets():
    assert resolve_budget("paper") == (0.5, 0, 0.5)
    assert resolve_budget("release-sequence") == (0.10, 0.10, 0.80)
    assert resolve_budget("release-prefix") == (0.50, 0.05, 0.45)
    assert resolve_budget("0.2,0.3,0.5") == resolve_budget((0.2, 0.3, 0.5)) == Budget(0.2, 0.3, 0.5)
    assert resolve_budget((0.2, 0.3, 0.5 + 5e-7))


@pytest.mark.parametrize(
    "budget", ["release", "0.5,0.5", (0.5, 0.5), (0.5, 0.0, 0.6), (-0.5, 0.5, 1.0), (math.nan, 0.5, 0.5), "a,b,c", None]
)
def test_budgets_that_cannot_be_used(budget):
    with pytest.raises(InputError, match="budget"):
        resolve_budget(budget)


# arms


# c1 (weight 3) holds for the first response only, decided by token 1; c2 (weight 1) for the second only, by token 2 and
# by tokens 2-3. Answers 1, 0; formats 0, 1. Every z is +-Z2.
TWO = [criterion("c1", 3), criterion("c2", 1)]
PAIR = [
    response(1, 0.0, c1=(True, (3, 6)), c2=(False, (7, 8))),
    response(0, 1.0, c1=(False, (4, 5)), c2=(True, (6, 12))),
]
R = 0.75 - 0.25  # R_rub is 3/4 and 1/4


@pytest.mark.parametrize(
    ("arm", "first"),
    [
        # sums (0.5 + 0.45) a + 0.05 f = 0.95 and 0.05: a difference d gives z = (d/2) / (d sqrt(1/2) + 1e-4)
        ("answer", [0.45 / (0.90 * math.sqrt(0.5) + 1e-4)] * 5),
        # 0.5 + 0.45 x 0.75 = 0.8375 and 0.05 + 0.45 x 0.25 = 0.1625: d = 0.675
        ("scalar", [0.3375 / (0.675 * math.sqrt(0.5) + 1e-4)] * 5),
        # 0.5 z(a) + 0.05 z(f) + 0.45 z(R)
        ("scalar-z", [0.5 * Z2 - 0.05 * Z2 + 0.45 * (R / 2) / (R * math.sqrt(0.5) + 1e-4)] * 5),
        # 0.45 (3/4 Z2 - 1/4 Z2) = 0.225 Z2
        ("component", [(0.45 + 0.225) * Z2] * 5),
        # c1 to token 1, c2 to token 2: 0.3375 - 0.1125, the same, -0.1125, nothing
        ("prefix", [0.675 * Z2, 0.675 * Z2, (0.45 - 0.1125) * Z2, 0.45 * Z2, 0.45 * Z2]),
        ("span", [0.45 * Z2, (0.45 + 0.3375) * Z2, (0.45 - 0.1125) * Z2, 0.45 * Z2, 0.45 * Z2]),
    ],
)
def test_arms(arm, first):
    credit = token_advantages(TWO, PAIR, arm=arm, budget="release-prefix")
    second = [-a for a in first]
    if arm == "prefix":  # c2's span ends with the last token, and the end of sequence goes with it
        second = [-0.675 * Z2, -0.675 * Z2, -(0.45 - 0.1125) * Z2, -(0.45 - 0.1125) * Z2, -(0.45 - 0.1125) * Z2]
    if arm == "span":
        second = [-0.45 * Z2, -(0.45 + 0.3375) * Z2, *[-(0.45 - 0.1125) * Z2] * 3]
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


# pitfalls

WITH_PITFALLS = [criterion("c1", 3), criterion("c2", 1), criterion("p1", -4, "PITFALL"), criterion("p2", -1, "PITFALL")]


def pitfall_group(first=None, second=None):
    """The second response commits p1 and p2, at the spans given; c2 is missing there, c1 holds."""
    return [
        response(1, c1=(True, (0, 3)), c2=(True, (0, 12)), p1=False, p2=None),
        response(1, c1=(True, (0, 12)), c2=(None, (0, 12)), p1=(True, first), p2=(True, second)),
    ]


def test_veto_takes_everything_and_moves_the_spans_to_the_failure():
    """p2 at token 1, p1 at token 2: c1 and c2 fail from token 1 to token 2. Every z is +-Z2, missing c2 included."""
    credit = token_advantages(WITH_PITFALLS, pitfall_group((6, 8), (4, 5)), arm="span")
    same(credit, [[Z2, *[0.5 * Z2 + 0.125 * Z2] * 4], [-0.5 * Z2, -Z2, -Z2, -0.5 * Z2, -0.5 * Z2]])
    assert (credit.missing, credit.fallbacks) == (2, 0)
    first, second = credit.rewards
    assert (first.answer, first.rubric, first.vetoed) == (1, 1, False)
    assert (second.answer, second.rubric, second.vetoed) == (0, 0, True)
    prefix = token_advantages(WITH_PITFALLS, pitfall_group((6, 8), (4, 5)), arm="prefix")
    assert prefix.advantages[1] == pytest.approx([-Z2] * 3 + [-0.5 * Z2] * 2)


def test_veto_without_a_span_blames_the_whole_response():
    credit = token_advantages(WITH_PITFALLS, pitfall_group(), arm="span")
    assert credit.advantages[1] == pytest.approx([-Z2] * 5)
    assert credit.fallbacks == 2  # both credited criteria of the vetoed response, the missing one is known now


def test_veto_goes_by_the_pitfalls_that_have_a_span():
    credit = token_advantages(WITH_PITFALLS, pitfall_group(None, (4, 5)), arm="span")
    assert credit.advantages[1] == pytest.approx([-0.5 * Z2, -Z2, *[-0.5 * Z2] * 3])
    assert credit.fallbacks == 0


def test_veto_answer_leaves_the_criteria():
    """c1 holds in both: no spread. c2 has one known value. Only the answer differs."""
    credit = token_advantages(WITH_PITFALLS, pitfall_group((6, 8), (4, 5)), pitfalls="veto-answer")
    same(credit, [[0.5 * Z2] * 5, [-0.5 * Z2] * 5])
    second = credit.rewards[1]
    assert (second.answer, second.rubric, second.vetoed) == (0, 1, True)


def test_veto_makes_a_missing_answer_wrong():
    group = [response(1, c1=True, p1=False), response(None, c1=True, p1=True)]
    for setting in ("veto", "veto-answer"):
        assert token_advantages(WITH_PITFALLS, group, pitfalls=setting).rewards[1].answer == 0


def test_pitfalls_off_count_as_missing_only():
    credit = token_advantages(WITH_PITFALLS, pitfall_group((6, 8), (4, 5)), pitfalls="off")
    same(credit, [[0] * 5, [0] * 5])
    assert (credit.missing, credit.rewards[1].vetoed, credit.rewards[1].answer) == (2, False, 1)


def test_pitfall_as_a_criterion():
    """Weights 3, 1, 4, 1 of 9. p1: good in the first response (no span, a fallback), bad in the second at token 2, so
    +-Z2; p2 is known once, c1 has no spread."""
    credit = token_advantages(WITH_PITFALLS, pitfall_group((6, 8), (4, 5)), pitfalls="criterion", arm="span")
    share = 0.5 * 4 / 9 * Z2
    same(credit, [[share] * 5, [0, 0, -share, 0, 0]])
    assert (credit.missing, credit.fallbacks) == (2, 1)
    # R = 3/9 + 1/9 + 4/9 + p2's mean (0) and 3/9 + c2's mean 1/9
    assert [r.rubric for r in credit.rewards] == pytest.approx([8 / 9, 4 / 9])
    assert not credit.rewards[1].vetoed


@pytest.mark.parametrize("setting", PITFALLS)
def test_avoided_reads_a_pitfall_the_other_way_round(setting):
    committed = [criterion("c1"), criterion("p1", -1, "PITFALL")]
    avoided = [criterion("c1"), criterion("p1", -1, "PITFALL", yes_means="avoided")]
    group = [response(1, c1=True, p1=(True, (0, 3))), response(1, c1=True, p1=False), response(0, c1=False)]
    turned = [response(1, c1=True, p1=(False, (0, 3))), response(1, c1=True, p1=True), response(0, c1=False)]
    one, other = (token_advantages(c, g, pitfalls=setting) for c, g in ((committed, group), (avoided, turned)))
    assert advantages(one) == advantages(other)
    assert one.rewards == other.rewards


def test_missing_pitfall_vetoes_nothing():
    group = [response(1, c1=True, p1=None), response(0, c1=False, p1=False)]
    credit = token_advantages([criterion("c1"), criterion("p1", -1, "PITFALL")], group)
    assert not credit.rewards[0].vetoed
    assert credit.missing == 1


# spans and tokens


@pytest.mark.parametrize(
    ("offsets", "span", "tokens"),
    [
        (FOUR, (0, 3), (0, 0)),
        (FOUR, (2, 4), (0, 1)),  # one character of each
        (FOUR, (3, 3), None),  # an empty span shares no character
        (FOUR, (4, 4), None),
        (FOUR, (9, 12), (3, 4)),  # the end of sequence goes with the last token
        (FOUR, (0, 12), (0, 4)),
        ([[0, 3], [3, 6], [0, 0]], (3, 6), (1, 2)),  # special tokens as Hugging Face tokenizers give them
        ([[0, 0], [0, 3], [3, 6]], (0, 1), (0, 1)),  # a leading empty token goes with the first that is not
        ([[0, 0], [0, 3], [3, 6]], (3, 4), (2, 2)),
        ([[0, 1], [1, 1], [1, 1], [1, 2]], (0, 1), (0, 2)),  # one character in three tokens: the rest empty, ...
        ([[0, 1], [0, 1], [0, 1], [1, 2]], (0, 1), (0, 2)),  # ... or all with its interval
        ([[0, 1], [0, 1], [0, 1], [1, 2]], (1, 2), (3, 3)),
        ([[0, 3], [4, 7]], (3, 4), None),  # between tokens
        ([[0, 3], [4, 7]], (3, 5), (1, 1)),
        ([[0, 3], [4, 7]], (2, 4), (0, 0)),
        ([[3, 3], [3, 3]], (0, 3), None),  # nothing but empty tokens
        ([], (0, 0), None),
    ],
)
def test_spans_to_tokens(offsets, span, tokens):
    for form in (offsets, np.array(offsets, dtype=np.int32).reshape(-1, 2)):
        assert token_intervals(form).locate(span) == tokens


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([[0, 3], [3]], "pairs"),
        ([0, 3], "pairs"),
        ([[]], "pairs"),
        ([[0, 1, 2]], "pairs"),
        ([[0.0, 1.0]], "integers"),
        ([["a", "b"]], "integers"),
        ([[0, 10**30]], "integers"),
        ([[0, 3], [-1, 3]], r"token_offsets\[1\] is \[-1, 3\]"),
        ([[0, 3], [5, 4]], r"token_offsets\[1\] is \[5, 4\]"),
        ([[3, 6], [0, 3]], "backwards"),
        ([[0, 6], [3, 5]], "backwards"),
        ([[3, 6], [6, 6], [0, 3]], r"token_offsets\[2\] is \[0, 3\]; it goes backwards"),
    ],
)
def test_malformed_offsets(offsets, message):
    with pytest.raises(InputError, match=message):
        token_intervals(offsets)


def test_no_span_covers_the_response_and_is_counted():
    """Only known verdicts of credited criteria count: not the missing one, not the pitfall's. A span that touches no
    token points at nothing and counts too."""
    criteria = [criterion("c1"), criterion("p1", -1, "PITFALL")]
    group = [
        response(c1=True, p1=False),
        response(c1=(False, (3, 3))),
        response(c1=(None, (0, 3)), p1=False),
        response(c1=(False, (0, 3)), p1=False),
    ]
    credit = token_advantages(criteria, group, arm="span", budget=(0, 0, 1))
    assert credit.fallbacks == 2
    same(credit, [[Z3_ONE] * 5, [Z3_ZERO] * 5, [0] * 5, [Z3_ZERO, 0, 0, 0, 0]])


def test_span_beside_a_missing_verdict_is_ignored():
    group = [response(c1=(None, (90, 99))), response(c1=True)]
    assert token_advantages([criterion("c1")], group).missing == 1


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


# laws

WEIGHTS = st.floats(0.125, 8)


@st.composite
def offsets(draw):
    widths = draw(st.lists(st.integers(0, 3), max_size=6))
    ends = np.cumsum(widths, dtype=int).tolist()
    return [[end - width, end] for end, width in zip(ends, widths, strict=True)]


@st.composite
def judged(draw, length, spans=True):
    verdict = draw(st.sampled_from([True, False, None]))
    if not spans or draw(st.booleans()):
        return verdict, None
    start = draw(st.integers(0, length))
    return verdict, (start, draw(st.integers(start, length)))


@st.composite
def groups(draw, spans=True, pitfalls=True):
    labels = ["ESSENTIAL", "IMPORTANT", *(["PITFALL"] if pitfalls else [])]
    criteria = [criterion("c0", draw(WEIGHTS))]
    for j in range(draw(st.integers(0, 3))):
        label = draw(st.sampled_from(labels))
        criteria.append(Criterion(f"c{j + 1}", "", label=label, weight=draw(WEIGHTS)))
    responses = []
    for _ in range(draw(st.integers(2, 5))):
        tokens = draw(offsets())
        length = tokens[-1][1] if tokens else 0
        verdicts = {c.id: draw(judged(length, spans)) for c in criteria}
        answer, format = draw(st.sampled_from([0, 1, None])), draw(st.sampled_from([0.0, 0.5, 1.0, None]))
        responses.append(ScoredResponse(tokens, answer, format, verdicts))
    return criteria, responses


arms, settings_of_pitfalls = st.sampled_from(ARMS), st.sampled_from(PITFALLS)
budgets = st.sampled_from([*BUDGETS, (0.0, 0.5, 0.5), (0.0, 0.0, 1.0), (1.0, 0.0, 0.0)])
law = settings(max_examples=60, deadline=None)


def close(one, other):
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-9)


def reference(criteria, responses, arm, budget, pitfalls):
    """The definition once more, value by value, without arrays: slow, and written from the text alone."""
    b_ans, b_fmt, b_rub = BUDGETS[budget] if isinstance(budget, str) else budget
    credited = [c for c in criteria if pitfalls == "criterion" or c.label != "PITFALL"]
    rho = {c.id: abs(c.weight) / sum(abs(c.weight) for c in credited) for c in credited}

    def z(values):
        known = [v for v in values if v is not None]
        if len(known) < 2 or max(known) - min(known) < 1e-12:
            return [0.0] * len(values)
        mean = sum(known) / len(known)
        std = math.sqrt(sum((v - mean) ** 2 for v in known) / (len(known) - 1))
        return [0.0 if v is None else (v - mean) / (std + 1e-4) for v in values]

    def total(parts):
        """parts: (share, values); the sum for each response."""
        parts = [(share, values) for share, values in parts if share > 0]
        sums = []
        for g in range(len(responses)):
            if all(values[g] is None for _, values in parts):
                sums.append(None)
                continue
            s = 0.0
            for share, values in parts:
                known = [v for v in values if v is not None]
                if known:
                    s += share * (sum(known) / len(known) if values[g] is None else values[g])
            sums.append(s)
        return sums

    def tokens_of(response, span):
        """The tokens that share a character with the span, an empty one going with its predecessor."""
        touched = []
        for t, (start, end) in enumerate(response.token_offsets):
            if start == end:
                touched.append(t > 0 and touched[t - 1])
            else:
                touched.append(any(span[0] <= c < span[1] for c in range(start, end)))
        for t, (start, end) in enumerate(response.token_offsets):  # leading ones go with the first that is not empty
            if start != end:
                touched[:t] = [touched[t]] * t
                break
        return [t for t, touch in enumerate(touched) if touch]

    a, f = [r.answer for r in responses], [r.format for r in responses]
    s = {c.id: [] for c in credited}
    covered = {c.id: [] for c in credited}
    for g, r in enumerate(responses):
        confirmed = [c for c in criteria if c.label == "PITFALL" and r.verdicts[c.id][0]]
        for c in credited:
            verdict, span = r.verdicts[c.id]
            s[c.id].append(None if verdict is None else float(verdict != (c.label == "PITFALL")))
            covered[c.id].append(tokens_of(r, span) if span else [])
        if confirmed and pitfalls in ("veto", "veto-answer"):
            a[g] = 0
        if confirmed and pitfalls == "veto":
            blamed = [t for c in confirmed if r.verdicts[c.id][1] for t in tokens_of(r, r.verdicts[c.id][1])]
            for c in credited:
                s[c.id][g] = 0.0
                covered[c.id][g] = list(range(min(blamed), max(blamed) + 1)) if blamed else []
    rubric = total([(rho[c.id], s[c.id]) for c in credited])
    out = []
    for g, r in enumerate(responses):
        row = []
        for t in range(len(r.token_offsets)):
            if arm == "answer":
                row.append(z(total([(b_ans + b_rub, a), (b_fmt, f)]))[g])
            elif arm == "scalar":
                row.append(z(total([(b_ans, a), (b_fmt, f), (b_rub, rubric)]))[g])
            elif arm == "scalar-z":
                row.append(b_ans * z(a)[g] + b_fmt * z(f)[g] + b_rub * z(rubric)[g])
            else:
                value = b_ans * z(a)[g] + b_fmt * z(f)[g]
                for c in credited:
                    where = covered[c.id][g] or range(len(r.token_offsets))
                    if arm == "component" or (t <= max(where) and (arm == "prefix" or t >= min(where))):
                        value += b_rub * rho[c.id] * z(s[c.id])[g]
                row.append(value)
        out.append(row)
    return out


@settings(max_examples=250, deadline=None)
@given(groups(), arms, budgets, settings_of_pitfalls)
def test_equals_the_slow_reference(group, arm, budget, pitfalls):
    credit = token_advantages(*group, arm=arm, budget=budget, pitfalls=pitfalls)
    close(credit.advantages, reference(*group, arm, budget, pitfalls))


@law
@given(groups(), arms, settings_of_pitfalls, st.sampled_from([0.5, 3.0, 1000.0]))
def test_scaling_all_weights_changes_nothing(group, arm, pitfalls, factor):
    criteria, responses = group
    scaled = [Criterion(c.id, "", label=c.label, weight=c.weight * factor) for c in criteria]
    one, other = (token_advantages(c, responses, arm=arm, pitfalls=pitfalls) for c in (criteria, scaled))
    close(one.advantages, other.advantages)


@law
@given(groups(), arms, settings_of_pitfalls, st.booleans(), st.randoms(use_true_random=False))
def test_permuting_responses_permutes_advantages(group, arm, pitfalls, match_rms, random):
    criteria, responses = group
    order = list(range(len(responses)))
    random.shuffle(order)
    one, other = (
        token_advantages(criteria, r, arm=arm, pitfalls=pitfalls, match_rms=match_rms)
        for r in (responses, [responses[g] for g in order])
    )
    close([one.advantages[g] for g in order], other.advantages)
    assert (one.fallbacks, one.missing) == (other.fallbacks, other.missing)


@law
@given(groups(), settings_of_pitfalls, st.data())
def test_missing_verdict_never_changes_another_component(group, pitfalls, data):
    criteria, responses = group
    g = data.draw(st.integers(0, len(responses) - 1))
    lost = data.draw(st.sampled_from([c for c in criteria if c.label != "PITFALL"])).id
    r = responses[g]
    less = [*responses]
    less[g] = ScoredResponse(r.token_offsets, r.answer, r.format, {**r.verdicts, lost: (None, None)})
    before, after = (token_advantages(criteria, group, pitfalls=pitfalls) for group in (responses, less))
    for one, other in zip(before.terms, after.terms, strict=True):
        if one.name != lost:
            assert one.z_g.tolist() == other.z_g.tolist()
            assert one.last_g.tolist() == other.last_g.tolist()


@law
@given(groups(spans=False), settings_of_pitfalls)
def test_without_spans_prefix_span_and_component_are_equal(group, pitfalls):
    component, *others = (
        token_advantages(*group, arm=arm, pitfalls=pitfalls) for arm in ("component", "prefix", "span")
    )
    assert all(advantages(other) == advantages(component) for other in others)


@law
@given(groups(spans=False), settings_of_pitfalls, st.data())
def test_with_spans_that_reach_the_end_prefix_equals_component(group, pitfalls, data):
    criteria, responses = group
    reaching = []
    for r in responses:
        end = r.token_offsets[-1][1] if r.token_offsets else 0
        verdicts = {name: (v, (data.draw(st.integers(0, end)), end)) for name, (v, _) in r.verdicts.items()}
        reaching.append(ScoredResponse(r.token_offsets, r.answer, r.format, verdicts))
    prefix, component = (
        token_advantages(criteria, reaching, arm=arm, pitfalls=pitfalls) for arm in ("prefix", "component")
    )
    assert advantages(prefix) == advantages(component)


@law
@given(groups(), st.data())
def test_a_vetoed_response_earns_nothing_whatever_else_was_said(group, data):
    criteria, responses = group
    criteria = [*criteria, criterion("veto", -1, "PITFALL")]
    r = responses[0]
    length = r.token_offsets[-1][1] if r.token_offsets else 0
    said = [
        {c.id: data.draw(judged(length)) if c.label != "PITFALL" else (None, None) for c in criteria} for _ in range(2)
    ]
    outcomes = []
    for verdicts, answer in zip(said, (0, 1), strict=True):
        vetoed = ScoredResponse(r.token_offsets, answer, r.format, {**verdicts, "veto": (True, None)})
        outcomes.append(token_advantages(criteria, [vetoed, *responses[1:]]))
    assert advantages(outcomes[0]) == advantages(outcomes[1])
    assert outcomes[0].rewards[0].rubric == outcomes[0].rewards[0].answer == 0


@law
@given(groups(pitfalls=False), arms)
def test_without_pitfalls_the_setting_does_not_matter(group, arm):
    first, *others = (token_advantages(*group, arm=arm, pitfalls=setting) for setting in PITFALLS)
    assert all(advantages(other) == advantages(first) for other in others)


@law
@given(groups(), arms, settings_of_pitfalls)
def test_matched_advantages_have_unit_rms_or_are_left_alone(group, arm, pitfalls):
    plain, matched = (token_advantages(*group, arm=arm, pitfalls=pitfalls, match_rms=m) for m in (False, True))
    values = np.concatenate(matched.advantages)
    if plain.rms["advantage"] >= 1e-8:
        assert np.sqrt(np.mean(values**2)) == pytest.approx(1)
    else:
        assert advantages(plain) == advantages(matched)


def test_input_is_left_alone():
    offsets = np.array(FOUR)
    group = [response(1, offsets=offsets, c1=True, p1=(True, (0, 3))), response(0, offsets=offsets, c1=None)]
    token_advantages([criterion("c1"), criterion("p1", -1, "PITFALL")], group)
    assert offsets.tolist() == FOUR
    assert group[0].verdicts["c1"] == (True, None)
