"""The split of a response: lossless for any text, at most 52, labelled; and widening."""

import pytest
from claimwise.verifier.sentences import LABELS, MAX_SENTENCES, label_of, split_sentences, trim, widen
from hypothesis import given
from hypothesis import strategies as st

ENDS = st.text(alphabet="a .!?\n\r。！“”」)… 5\u2028\u200d")  # what the split looks at, and little else


@given(st.one_of(st.text(), ENDS))
def test_lossless(text):
    sentences = split_sentences(text)
    assert "".join(text[a:b] for a, b in sentences) == text
    assert all(a < b for a, b in sentences) and len(sentences) <= MAX_SENTENCES
    assert [b for _, b in sentences[:-1]] == [a for a, _ in sentences[1:]]


@pytest.mark.parametrize("count", [51, 52, 53, 103, 104, 500])
def test_at_most_52_merged_evenly(count):
    text = "".join(f"Sentence {i}. " for i in range(count))
    pieces = [text[a:b] for a, b in split_sentences(text)]
    assert "".join(pieces) == text and len(pieces) == min(count, 52)
    sizes = [piece.count("Sentence") for piece in pieces]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("", []),
        ("  ", ["  "]),
        ("One", ["One"]),
        ("One. Two.", ["One. ", "Two."]),
        ("It is 3.5 cm. Yes", ["It is 3.5 cm. ", "Yes"]),
        ('He said "3." Then', ['He said "3." ', "Then"]),
        ("Really?! Yes... no", ["Really?! ", "Yes... ", "no"]),
        ("\n\nOne\n\n- two\r\n- three", ["\n\nOne\n\n", "- two\r\n", "- three"]),
        ("是三。对！“好。”完", ["是三。", "对！", "“好。”", "完"]),
    ],
)
def test_pieces(text, pieces):
    assert [text[a:b] for a, b in split_sentences(text)] == pieces


def test_labels_are_52_letters():
    assert len(set(LABELS)) == MAX_SENTENCES == 52
    assert (LABELS[0], LABELS[25], LABELS[26], LABELS[51]) == ("A", "Z", "a", "z")


@pytest.mark.parametrize(
    ("span", "widened", "label"),
    [
        ((0, 5), (0, 5), "A"),
        ((1, 2), (0, 5), "A"),
        ((5, 6), (5, 9), "B"),  # half open: touches nothing of A
        ((4, 6), (0, 9), "B"),  # the last that it touches
        ((0, 20), (0, 20), "C"),
        ((5, 5), (5, 9), "B"),  # empty: the sentence it lies in
        ((20, 20), (9, 20), "C"),
    ],
)
def test_widen_and_label(span, widened, label):
    sentences = [(0, 5), (5, 9), (9, 20)]
    assert widen(sentences, span) == widened
    assert label_of(sentences, span) == label


def test_no_span_and_no_sentence_have_no_label():
    assert label_of([(0, 5)], None) == "-" == label_of([], (0, 0))


@given(st.text(min_size=1), st.data())
def test_widening_a_sentence_gives_itself(text, data):
    sentences = split_sentences(text)
    sentence = data.draw(st.sampled_from(sentences))
    assert widen(sentences, sentence) == sentence
    assert label_of(sentences, sentence) == LABELS[sentences.index(sentence)]


@pytest.mark.parametrize("piece", [".", "?!", '."', "。", "\n", " \n", ". "])
def test_a_degenerate_response_is_split_in_linear_time(piece):
    text = piece * 100_000  # seconds to minutes if the search for a sentence's end went back and forth
    assert "".join(text[a:b] for a, b in split_sentences(text)) == text


@pytest.mark.parametrize(
    ("text", "span", "trimmed"),
    [
        ("One. Two.", (0, 5), (0, 4)),  # the space behind a sentence is no part of it
        (" One.\n", (0, 6), (1, 5)),
        ("a b", (0, 3), (0, 3)),
        ("  \n", (0, 3), (0, 3)),  # white space alone stays
        ("", (0, 0), (0, 0)),
    ],
)
def test_trim(text, span, trimmed):
    assert trim(text, span) == trimmed
