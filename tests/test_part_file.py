"""The part file of a run that was stopped: what is whole stays, what is torn goes, what is another's is refused."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from claimwise.verifier.errors import InputError
from claimwise.verifier.part_file import PartFile
from hypothesis import given, settings
from hypothesis import strategies as st


@dataclass(frozen=True)
class Row:
    name: str
    text: str


def opened(out: Path, seed: int = 0) -> PartFile[Row]:
    return PartFile(out, {"seed": seed, "pair": (1, 2)}, Row, "name")


def test_rows_are_there_again_and_the_last_of_a_name_counts(tmp_path):
    with opened(tmp_path / "t") as part:
        for row in (Row("a", "1"), Row("b", "2\u2028"), Row("a", "3")):
            part.add(row)
    with opened(tmp_path / "t") as part:
        assert list(part.rows.values()) == [Row("a", "3"), Row("b", "2\u2028")]
        part.remove()
    assert not list(tmp_path.iterdir())


def test_without_a_row_nothing_stays(tmp_path):
    with opened(tmp_path / "t"):
        pass
    assert not list(tmp_path.iterdir())


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(max_size=5), min_size=1, max_size=4), st.data())
def test_cut_off_anywhere_all_whole_rows_are_there_and_it_can_be_gone_on_with(tmp_path_factory, texts, data):
    out = tmp_path_factory.mktemp("cut") / "t"
    rows = [Row(str(k), text) for k, text in enumerate(texts)]
    with opened(out) as part:
        for row in rows:
            part.add(row)
    content = part.path.read_bytes()
    cut = data.draw(st.integers(0, len(content)))
    part.path.write_bytes(content[:cut])
    whole = max(0, content[:cut].count(b"\n") - 1)
    with opened(out) as part:
        assert list(part.rows.values()) == rows[:whole]
        for row in rows[whole:]:
            part.add(row)
    assert part.path.read_bytes() == content


@pytest.mark.parametrize(
    "content",
    [b"x\n", b"\x00\xff", b"[1]\n[2]\n", b'{"part": 2, "settings": {}}\n{}\n', b'{"seed": 0}\n{"name": "a"}\n'],
)
def test_what_is_no_part_of_ours_is_left_as_it_is(tmp_path, content):
    (tmp_path / "t.part").write_bytes(content)
    with pytest.raises(InputError, match=r"t\.part (is no unfinished table of ours|was begun with other settings)"):
        opened(tmp_path / "t")
    assert (tmp_path / "t.part").read_bytes() == content


def test_a_row_of_other_fields_is_refused(tmp_path):
    head = json.dumps({"part": 1, "settings": {"seed": 0, "pair": [1, 2]}})
    (tmp_path / "t.part").write_text(head + '\n{"name": "a"}\n')
    with pytest.raises(InputError, match="no unfinished table of ours"):
        opened(tmp_path / "t")


def test_other_settings_and_a_second_writer_are_refused(tmp_path):
    with opened(tmp_path / "t") as part:
        part.add(Row("a", "1"))
        with pytest.raises(InputError, match="another process writes it"):
            opened(tmp_path / "t")
    with pytest.raises(InputError, match=r"other settings: seed \(0 there, 1 now\); give another --out"):
        opened(tmp_path / "t", seed=1)
