"""Token ids to text and the characters of each token, for byte-level BPE (the tokenizers of the Qwen-VL family).

In: ids of a completion. Out: its text without special tokens, and half-open character intervals of that very text. A
character split over tokens belongs to the token that holds its first byte; the others, and special tokens, have an
empty interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from ..verifier.errors import InputError


@cache
def byte_alphabet() -> dict[str, int]:
    """The printable character that byte-level BPE writes for each byte, and back (GPT-2's table)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(byte): byte for byte in printable}
    hidden = [byte for byte in range(256) if byte not in printable]
    return table | {chr(256 + i): byte for i, byte in enumerate(hidden)}


def token_bytes(tokenizer, ids: Sequence[int]) -> list[bytes]:
    """The bytes that each token writes, as the tokenizer's own decoder has them; none for special and unknown ids.
    Raises InputError for another kind of tokenizer."""
    added = tokenizer.added_tokens_decoder
    table, out = byte_alphabet(), []
    for index, token in zip(ids, tokenizer.convert_ids_to_tokens(list(ids)), strict=True):
        if token is None or (index in added and added[index].special):
            out.append(b"")
        elif all(character in table for character in token):  # added tokens too: the decoder makes no difference
            out.append(bytes(table[character] for character in token))
        elif index in added:
            out.append(token.encode())
        else:
            raise InputError(f"token {token!r} is not byte-level BPE; the trainer needs a tokenizer of the Qwen family")
    return out


def text_and_offsets(tokenizer, ids: Sequence[int]) -> tuple[str, np.ndarray]:
    """The text and (T, 2) character offsets. Bytes that are no UTF-8 become U+FFFD, as in any lossy decoding."""
    return texts_and_offsets(tokenizer, [ids])[0]


def texts_and_offsets(tokenizer, batch: Sequence[Sequence[int]]) -> list[tuple[str, np.ndarray]]:
    """The same of several completions; each token of the vocabulary is looked up once."""
    different = sorted({index for ids in batch for index in ids})
    piece_of = dict(zip(different, token_bytes(tokenizer, different), strict=True))
    return [_text_and_offsets([piece_of[index] for index in ids]) for ids in batch]


def _text_and_offsets(pieces: Sequence[bytes]) -> tuple[str, np.ndarray]:
    data = b"".join(pieces)
    text = data.decode("utf-8", errors="replace")
    starts = _character_starts(data)  # byte index at which each character begins
    ends = np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
    begun = np.searchsorted(starts, ends)  # characters begun before each token's end
    return text, np.stack([np.concatenate([[0], begun])[:-1], begun], axis=1).astype(np.int64)


def _character_starts(data: bytes) -> np.ndarray:
    """The byte at which each character of `data.decode(errors="replace")` begins."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return _starts_in_malformed(data)
    return np.flatnonzero((np.frombuffer(data, dtype=np.uint8) & 0xC0) != 0x80)  # all but the bytes that continue one


def _starts_in_malformed(data: bytes) -> np.ndarray:
    starts: list[int] = []
    position = 0
    while position < len(data):
        try:
            good, stop, resume = data[position:].decode("utf-8"), len(data), len(data)
        except UnicodeDecodeError as error:
            good = data[position : position + error.start].decode("utf-8")
            stop, resume = position + error.start, position + error.end
        at = position
        for character in good:
            starts.append(at)
            at += len(character.encode())
        if stop < resume:
            starts.append(stop)  # one U+FFFD for the whole malformed part
        position = resume
    return np.array(starts, dtype=np.int64)
