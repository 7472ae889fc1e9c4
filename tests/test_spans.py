"""Character spans to tokens, what has no span, and offsets that cannot be used."""

import numpy as np
import pytest
from claimwise.trainer.credit import token_advantages
from claimwise.trainer.spans import token_intervals
from claimwise.verifier.errors import InputError
from credit_cases import FOUR, Z3_ONE, Z3_ZERO, criterion, response, same


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
