"""A quote in a response: exact, casefold, fuzzy, none; and the command."""

import json
import subprocess
import sys

import pytest
from claimwise.scripts.cli import main
from claimwise.verifier.align import Alignment, align
from claimwise.verifier.sentences import split_sentences, trim, widen
from hypothesis import given
from hypothesis import strategies as st
from rapidfuzz.fuzz import partial_ratio_alignment

RESPONSE = "The top row reads 3 and 5. Their sum is 8.\nSo the answer is 8."
#           0         10        20     27 (Their)      43 (So)            63


@pytest.mark.parametrize(
    ("response", "quote", "match", "text", "sentence"),
    [
        (RESPONSE, "sum is 8", "exact", "sum is 8", (27, 42)),
        (RESPONSE, "8", "exact", "8", (27, 42)),  # the first of two
        (RESPONSE, " Their sum", "exact", " Their sum", (27, 42)),  # its space ends the sentence before
        (RESPONSE, "3 and 5. Their sum", "exact", "3 and 5. Their sum", (0, 42)),
        (RESPONSE, RESPONSE, "exact", RESPONSE, (0, 62)),
        (RESPONSE, "THE TOP  ROW", "casefold", "The top row", (0, 26)),
        (RESPONSE, "is 8. so the", "casefold", "is 8.\nSo the", (27, 62)),  # a line break is white space
        (RESPONSE, "\tSo the answer ", "casefold", "So the answer", (43, 62)),
        ("one  \r\n  two", "One Two", "casefold", "one  \r\n  two", (0, 12)),
        # Casefolding changes lengths; offsets are still the response's.
        ("Straße İzmir ﬁnal word", "STRASSE", "casefold", "Straße", (0, 22)),
        ("Straße İzmir ﬁnal word", "i̇zmir", "casefold", "İzmir", (0, 22)),
        ("Straße İzmir ﬁnal word", "FINAL WORD", "casefold", "ﬁnal word", (0, 22)),
        ("Straße İzmir ﬁnal word", "strass", "casefold", "Straß", (0, 22)),  # half of "ß" takes the whole
        ("ΣΊΣΥΦΟΣ pushes", "σίσυφος", "casefold", "ΣΊΣΥΦΟΣ", (0, 14)),
        (RESPONSE, "Their some is 8", "fuzzy", " Their sum is 8", (27, 42)),  # the window is as long as the quote
        ("x", "", "none", None, None),
        ("a b", " ", "none", None, None),
        ("", "a", "none", None, None),
        (" \n", "a", "none", None, None),
        (RESPONSE, "QQQQ", "none", None, None),
    ],
)
def test_hand_worked(response, quote, match, text, sentence):
    found = align(response, quote)
    assert (found.match, found.text) == (match, text)
    assert (None if sentence is None else (found.sentence_start, found.sentence_end)) == sentence
    assert match == "none" or response[found.start : found.end] == text
    if match == "none":
        assert found == Alignment("none")


def test_first_occurrence_and_score():
    assert align("an ox, an ox", "ox") == Alignment("exact", 3, 5, "ox", 100.0, 0, 12)
    assert align("An Ox, An Ox", "OX") == Alignment("casefold", 3, 5, "Ox", 100.0, 0, 12)


@pytest.mark.parametrize("quote", ["Their sum was 8", "So answer is 8", RESPONSE + " And more besides, said twice."])
def test_fuzzy_is_rapidfuzz_with_cutoff_60(quote):
    best = partial_ratio_alignment(quote, RESPONSE, score_cutoff=60)
    found = align(RESPONSE, quote)
    assert best is not None
    assert (found.match, found.start, found.end, found.score) == ("fuzzy", best.dest_start, best.dest_end, best.score)


@given(st.text(), st.integers(0), st.integers(1))
def test_any_piece_of_a_response_is_found_verbatim(response, start, length):
    start = start % (len(response) + 1)
    quote = response[start : start + length]
    found = align(response, quote)
    if not quote.strip():
        assert found.match == "none"
    else:
        assert (found.match, found.start) == ("exact", response.find(quote)) and found.text == quote


@given(st.text(alphabet="aAßİﬁΣς\u0130\u0149 \n\t.bB", max_size=20), st.text(max_size=8))
def test_a_piece_in_other_case_and_spacing_is_found(response, other):
    quote = response.casefold().replace(" ", " \n ")
    for found in (align(response, quote), align(response, other)):
        if found.match == "none":
            continue
        assert found.text == response[found.start : found.end] != ""
        assert found.sentence_end is not None and found.sentence_end - found.sentence_start > 0
        widened = widen(split_sentences(response), (found.sentence_start, found.sentence_end))
        assert (found.sentence_start, found.sentence_end) == trim(response, widened)
    assert not quote.strip() or align(response, quote).match in ("exact", "casefold")


def run(capsys, *argv):
    code = main(["align", *map(str, argv)])
    out, err = capsys.readouterr()
    return code, out, err


def test_command_json(tmp_path, capsys):
    path = tmp_path / "r.txt"
    path.write_bytes("Ein Maß.\r\nZwei  Maß.".encode())  # line ends count as they are
    code, out, _ = run(capsys, "--response-file", path, "--quote", "ZWEI MASS", "--json")
    assert code == 0 and json.loads(out) == {
        "match": "casefold",
        "start": 10,
        "end": 19,
        "text": "Zwei  Maß",
        "score": 100.0,
        "sentence_start": 10,
        "sentence_end": 20,
    }
    _, out, _ = run(capsys, "--response-file", path, "--quote", "", "--json")
    assert json.loads(out) == {
        "match": "none",
        **dict.fromkeys(["start", "end", "text", "score", "sentence_start", "sentence_end"]),
    }


def test_command_text(tmp_path, capsys):
    path = tmp_path / "r.txt"
    path.write_text(RESPONSE)
    _, out, _ = run(capsys, "--response-file", path, "--quote", "sum is")
    assert out == "exact match: characters 33-39, sentence 27-42\nTheir [[sum is]] 8.\n"
    _, out, _ = run(capsys, "--response-file", path, "--quote", "Their some is 8")
    assert out.startswith("fuzzy match: ") and "score 86.7\n" in out
    assert run(capsys, "--response-file", path, "--quote", "QQQQ")[1] == "no match\n"


def test_command_bad_input(tmp_path, capsys):
    (tmp_path / "latin.txt").write_bytes("Maß".encode("latin-1"))
    for path, named in [
        (tmp_path / "no.txt", "no such file"),
        (tmp_path / "latin.txt", "byte 2 is not UTF-8"),
        (tmp_path, "cannot be read"),
    ]:
        code, out, err = run(capsys, "--response-file", path, "--quote", "x")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert named in err and str(path) in err


@pytest.mark.parametrize("command", ["align", "agree"])
def test_help_shows_an_example(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0 and f"\n  claimwise {command} " in capsys.readouterr().out


def test_light_commands_do_not_load_torch(tmp_path):
    (tmp_path / "r.txt").write_text(RESPONSE)
    row = {"example_id": "e", "rollout_id": "r", "criterion_id": "c", "judge": "j", "mode": "text", "verdict": True}
    (tmp_path / "v.jsonl").write_text(json.dumps(row) + "\n")
    script = f"""
import sys
from claimwise.scripts.cli import main
assert main(["align", "--response-file", {str(tmp_path / "r.txt")!r}, "--quote", "their some"]) == 0
assert main(["agree", {str(tmp_path / "v.jsonl")!r}, {str(tmp_path / "v.jsonl")!r}, "--json"]) == 0
assert not {{"torch", "transformers", "datasets"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
