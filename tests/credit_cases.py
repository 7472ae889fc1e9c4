"""What the tests of the credit share: criteria and responses in one line, and random groups for the laws."""

from __future__ import annotations

import math

import numpy as np
from claimwise.trainer.credit import ARMS, BUDGETS, PITFALLS, PLACEBO, ScoredResponse
from claimwise.verifier.schema import Criterion
from hypothesis import settings
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


# random groups

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


REAL_ARMS = [arm for arm in ARMS if arm != PLACEBO]  # the placebo has laws of its own: tests/test_credit_shuffled.py
arms, settings_of_pitfalls = st.sampled_from(REAL_ARMS), st.sampled_from(PITFALLS)
budgets = st.sampled_from([*BUDGETS, (0.0, 0.5, 0.5), (0.0, 0.0, 1.0), (1.0, 0.0, 0.0)])
law = settings(max_examples=60)


def close(one, other):
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-9)
