"""Character spans of a response, mapped to its tokens.

In: one half-open character interval per token, (T, 2), in order; and spans, half-open too. Out: the first and the last
token that share a character with a span.

Neighbours may leave gaps or overlap: under byte-level BPE all tokens of one split character may carry its whole
interval. A token with an empty interval (end of sequence, a byte inside a character) goes with its predecessor,
wherever the interval lies: tokenizers give special tokens (0, 0). Empty intervals at the very start have no predecessor
and go with the first token that is not empty.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..verifier.errors import InputError

Span = tuple[int, int]


@dataclass(frozen=True, eq=False)
class TokenIntervals:
    """The tokens of a response: starts and ends (T,), both non-decreasing, empty intervals replaced; and the number of
    characters, which is where the last token ends."""

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    characters: int

    def __len__(self) -> int:
        return len(self.starts)

    def locate(self, span: Span) -> Span | None:
        """First and last token (both inclusive) that share a character with the span. None where none does: the span is
        empty, or lies in a gap between tokens."""
        start, end = span
        first = int(self.ends.searchsorted(start, side="right"))
        last = int(self.starts.searchsorted(end, side="left")) - 1
        return (first, last) if start < end and first <= last else None


def token_intervals(token_offsets: ArrayLike) -> TokenIntervals:
    """Raises InputError where the offsets are not pairs of integers, are negative, end before they start or go
    backwards."""
    try:
        offsets = np.asarray(token_offsets)
    except ValueError as error:  # lists of different lengths
        raise InputError("token_offsets must be a list of pairs [start, end], one for every token") from error
    if offsets.shape == (0,):
        offsets = np.zeros((0, 2), dtype=np.int64)
    if offsets.ndim != 2 or offsets.shape[1] != 2 or offsets.dtype.kind not in "iu":
        raise InputError("token_offsets must be a list of pairs [start, end] of integers, one for every token")
    starts, ends = offsets.T.astype(np.int64, order="C")
    characters = int(ends.max(initial=0))
    _refuse((starts < 0) | (ends < starts), starts, ends, "each must be 0 <= start <= end")
    starts, ends = _replace_empty(starts, ends)
    backwards = np.zeros(len(starts), dtype=bool)
    backwards[1:] = (np.diff(starts) < 0) | (np.diff(ends) < 0)
    _refuse(backwards, starts, ends, "it goes backwards; give the tokens in the order of the response")
    return TokenIntervals(starts, ends, characters)


def _refuse(bad: NDArray[np.bool_], starts: NDArray[np.int64], ends: NDArray[np.int64], why: str) -> None:
    if bad.any():
        t = int(bad.argmax())
        raise InputError(f"token_offsets[{t}] is [{starts[t]}, {ends[t]}]; {why}")


def _replace_empty(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    filled = ends > starts
    if filled.all():
        return starts, ends
    if not filled.any():  # no token has a character: [0, 0) everywhere, which no span shares anything with
        return np.zeros_like(starts), np.zeros_like(ends)
    stands_for = np.maximum.accumulate(np.where(filled, np.arange(len(starts)), filled.argmax()))
    return starts[stands_for], ends[stands_for]
