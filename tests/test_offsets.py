"""Offsets of tokens: the text is the tokenizer's own, the intervals tile it, and a split character goes with its first
byte."""

from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from claimwise.distill.tiny import build_tokenizer
from claimwise.trainer.offsets import byte_alphabet, text_and_offsets, token_bytes
from claimwise.verifier.errors import InputError
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models
from transformers import PreTrainedTokenizerFast


@cache
def tokenizer():
    """The digits world's, with tokens added as Qwen's are: some special, some not."""
    made = build_tokenizer()
    made.add_tokens(["<think>", "two words", "é", "日本"])
    made.add_tokens([AddedToken("<|object_ref_start|>", special=True)])  # special, but no named special token
    return made


def ids_of(data: bytes) -> list[int]:
    """A token per byte, as a policy may emit them in any order."""
    character_of = {byte: character for character, byte in byte_alphabet().items()}
    return tokenizer().convert_tokens_to_ids([character_of[byte] for byte in data])


def check(ids):
    text, offsets = text_and_offsets(tokenizer(), ids)
    assert text == tokenizer().decode(ids, skip_special_tokens=True)
    assert offsets.shape == (len(ids), 2) and offsets.dtype == np.int64
    bounds = offsets.tolist()
    assert all(start <= end for start, end in bounds)
    assert all(a[1] == b[0] for a, b in pairwise(bounds))
    if ids:
        assert (bounds[0][0], bounds[-1][1]) == (0, len(text))
    return text, bounds


def test_the_alphabet_is_a_bijection():
    assert sorted(byte_alphabet().values()) == list(range(256))
    assert byte_alphabet()["Ġ"] == ord(" ") and byte_alphabet()["Ċ"] == ord("\n")  # as in every vocabulary of Qwen


def test_words():
    ids = tokenizer()(" top left: 3.")["input_ids"]
    text, bounds = check(ids)
    assert text == " top left: 3."
    assert [text[a:b] for a, b in bounds] == [piece.decode() for piece in token_bytes(tokenizer(), ids)]


def test_a_character_over_several_tokens_goes_with_its_first_byte():
    assert check(ids_of("a你b".encode())) == ("a你b", [[0, 1], [1, 2], [2, 2], [2, 2], [2, 3]])
    assert check(ids_of("😀!".encode())) == ("😀!", [[0, 1], [1, 1], [1, 1], [1, 1], [1, 2]])  # one character, not two


def test_special_tokens_are_empty_wherever_they_stand():
    three, five = ids_of(b"35")
    end, pad = tokenizer().eos_token_id, tokenizer().pad_token_id
    unnamed = tokenizer().convert_tokens_to_ids("<|object_ref_start|>")
    assert check([end, three, unnamed, five, end, pad, pad]) == (
        "35",
        [[0, 0], [0, 1], [1, 1], [1, 2], [2, 2], [2, 2], [2, 2]],
    )
    first, *rest = ids_of("é".encode())
    assert check([first, end, *rest]) == ("é", [[0, 1], [1, 1], [1, 1]])  # inside a character


def test_added_tokens_that_are_not_special_are_text():
    added = tokenizer().convert_tokens_to_ids(["<think>", "two words", "日本"])
    assert check(added) == ("<think>two words日本", [[0, 7], [7, 16], [16, 18]])
    check(tokenizer().convert_tokens_to_ids(["é"]))  # the decoder takes it for the byte 0xE9


def test_no_tokens():
    assert check([]) == ("", [])
    assert check([tokenizer().eos_token_id]) == ("", [[0, 0]])


@pytest.mark.parametrize(
    ("data", "text", "starts"),
    [
        (b"\x80a", "\ufffda", [0, 1]),  # a continuation without a beginning
        (b"\xe4\xbd", "\ufffd", [0]),  # cut off: one mark for the bytes that belong together
        (b"\xe4\xbda", "\ufffda", [0, 2]),
        (b"\xff\xff", "\ufffd\ufffd", [0, 1]),
        (b"\xed\xa0\x80", "\ufffd\ufffd\ufffd", [0, 1, 2]),  # a surrogate is no UTF-8
        (b"\xf0\x9f\x98\xe4\xbd\xa0", "\ufffd你", [0, 3]),
        (b"\xc0\xaf", "\ufffd\ufffd", [0, 1]),  # overlong
    ],
)
def test_bytes_that_are_no_utf8(data, text, starts):
    found, bounds = check(ids_of(data))
    assert found == text
    assert [i for i, (start, end) in enumerate(bounds) if end > start] == starts


@settings(max_examples=200)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_any_text(text):
    ids = tokenizer()(text, add_special_tokens=False)["input_ids"]
    special = set(tokenizer().all_special_ids)
    found, bounds = check(ids)
    if special.isdisjoint(ids) and "é" not in text:
        assert found == text
        lengths = [len(piece) for piece in token_bytes(tokenizer(), ids)]
        token_of_byte = np.repeat(np.arange(len(ids)), lengths)
        first_bytes = np.cumsum([0, *(len(character.encode()) for character in text)])[:-1]
        owners = [next(t for t, (start, end) in enumerate(bounds) if start <= i < end) for i in range(len(text))]
        assert owners == token_of_byte[first_bytes.astype(int)].tolist()


@settings(max_examples=200)
@given(st.binary(max_size=40))
def test_any_bytes(data):
    check(ids_of(data))


@settings(max_examples=200)
@given(st.lists(st.integers(0, 500), max_size=30))
def test_any_tokens(ids):
    check(ids)


def test_another_kind_of_tokenizer_is_refused():
    words = Tokenizer(models.WordLevel({"▁the": 0, "cat": 1}, unk_token="cat"))
    other = PreTrainedTokenizerFast(tokenizer_object=words)
    with pytest.raises(InputError, match="'▁the' is not byte-level BPE"):
        text_and_offsets(other, [1, 0])
