"""Tables: what is written is read back, and bad input is one line that names file, row and key."""

import dataclasses
import json
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from claimwise.verifier import tables
from claimwise.verifier.errors import InputError
from claimwise.verifier.schema import Criterion, Example, Rollout, Verdict
from claimwise.verifier.tables import (
    load_image,
    pair_up,
    read_examples,
    read_rollouts,
    read_verdicts,
    write_examples,
    write_rollouts,
    write_verdicts,
)
from PIL import Image

SUFFIXES = [".jsonl", ".parquet"]
CRITERIA = (
    Criterion("c1", "The response says 3.", title="Three", dimension="VF", label="ESSENTIAL", weight=5),
    Criterion("c2", "Says nothing.", label="PITFALL", weight=-1, yes_means="avoided"),
)
ROLLOUTS = [
    Rollout("r1", "e1", "It is 3.\nSo\u2028 the ﬁrst is “3”.", "base", 0, "stop"),
    Rollout("r2", "e1", "", "base", 1, None, edit="3 -> 4"),
]
VERDICTS = [
    Verdict("e1", "r1", "c1", "oracle", "image", True, 0.9, 0, 9, "pointer", "3", None, "ab", "2026-01-01", "VF"),
    Verdict("e1", "r1", "c2", "oracle", "image", None, error="no answer", dimension="PITFALL"),
    Verdict("e1", "r2", "c1", "oracle", "image", False),
]
ROW = {"example_id": "e1", "rollout_id": "r1", "criterion_id": "c1", "judge": "j", "mode": "text", "verdict": True}


def picture(value=200):
    return Image.new("RGB", (4, 4), (value, 0, 0))


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_rollouts_and_verdicts_round_trip(tmp_path, suffix):
    write_rollouts(tmp_path / f"new/r{suffix}", ROLLOUTS)
    write_verdicts(tmp_path / f"new/v{suffix}", VERDICTS)
    assert read_rollouts(tmp_path / f"new/r{suffix}") == ROLLOUTS
    assert read_verdicts(tmp_path / f"new/v{suffix}") == VERDICTS
    assert sorted(os.listdir(tmp_path / "new")) == [f"r{suffix}", f"v{suffix}"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_examples_round_trip_with_images(tmp_path, suffix):
    (tmp_path / "raw").mkdir()
    picture(50).save(tmp_path / "raw/given.png")
    images = (picture(), tmp_path / "raw/given.png")
    examples = [
        Example("a/b", "What?", CRITERIA, images, "It is 3.", "3", "digits", "1/8"),
        Example("a_b", "And?", CRITERIA, (picture(10),)),
        Example("bare", "No image?", CRITERIA[:1]),
    ]
    path = tmp_path / f"set/examples{suffix}"
    write_examples(path, examples)
    back = read_examples(path)
    assert [dataclasses.replace(e, images=()) for e in back] == [dataclasses.replace(e, images=()) for e in examples]
    assert [len(e.images) for e in back] == [2, 1, 0]
    pixels = [load_image(image).getpixel((0, 0)) for e in back for image in e.images]
    assert pixels == [(200, 0, 0), (50, 0, 0), (10, 0, 0)]  # "a/b" and "a_b" do not share a file
    assert all(image.is_absolute() for e in back for image in e.images)


def test_a_set_may_be_moved(tmp_path):
    write_examples(tmp_path / "one/e.jsonl", [Example("e1", "What?", CRITERIA, (picture(),))])
    assert json.loads((tmp_path / "one/e.jsonl").read_text())["images"] == ["images/e1-0.png"]
    (tmp_path / "one").rename(tmp_path / "two")
    assert load_image(read_examples(tmp_path / "two/e.jsonl")[0].images[0]).size == (4, 4)


def test_path_images_are_found_through_a_linked_folder(tmp_path):
    (tmp_path / "deep/er").mkdir(parents=True)
    picture().save(tmp_path / "p.png")
    (tmp_path / "link").symlink_to(tmp_path / "deep/er")
    write_examples(tmp_path / "link/e.jsonl", [Example("e1", "What?", CRITERIA, (tmp_path / "p.png",))])
    assert read_examples(tmp_path / "link/e.jsonl")[0].images == (tmp_path.resolve() / "p.png",)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_datasets_loads_what_is_written(tmp_path, suffix):
    import datasets

    write_verdicts(tmp_path / f"v{suffix}", VERDICTS)
    write_examples(tmp_path / f"e{suffix}", [Example("e1", "What?", CRITERIA, (picture(),))])
    kind = {".jsonl": "json", ".parquet": "parquet"}[suffix]
    for name in ("v", "e"):
        data = datasets.load_dataset(
            kind, data_files=str(tmp_path / f"{name}{suffix}"), split="train", cache_dir=str(tmp_path / "cache")
        )
        data.to_parquet(str(tmp_path / f"{name}-again.parquet"))
    assert set(data.column_names) == {"schema_version", *tables.EXAMPLES}
    assert len(read_verdicts(tmp_path / "v-again.parquet")) == 3
    assert read_examples(tmp_path / "e-again.parquet")[0].criteria == CRITERIA


def test_numbers_of_numpy_are_written_as_numbers(tmp_path):
    row = dataclasses.replace(VERDICTS[0], p_yes=np.float32(0.5), verdict=np.bool_(True), span_end=np.int64(9))
    write_verdicts(tmp_path / "v.jsonl", [row])
    assert read_verdicts(tmp_path / "v.jsonl") == [dataclasses.replace(VERDICTS[0], p_yes=0.5)]


def test_a_parquet_table_of_pandas_has_floats_for_whole_numbers(tmp_path):
    columns = {name: [value] * 2 for name, value in ROW.items()} | {"rollout_id": ["r1", "r2"]}
    columns |= {"span_start": [0.0, None], "span_end": [3.0, None], "unknown": [1, 2]}
    pq.write_table(pa.table(columns), tmp_path / "v.parquet")
    assert [v.span for v in read_verdicts(tmp_path / "v.parquet")] == [(0, 3), None]


def test_absent_optional_columns_version_and_blank_lines(tmp_path):
    path = write_lines(tmp_path / "v.jsonl", [ROW])
    path.write_text("\ufeff" + path.read_text() + "\n\n")
    assert read_verdicts(path) == [Verdict("e1", "r1", "c1", "j", "text", True)]
    (tmp_path / "none.jsonl").touch()
    assert read_verdicts(tmp_path / "none.jsonl") == []


# A second row, and what the one line must name besides the file and "row 2".
BAD_VERDICTS = [
    ({"mode": None}, "key 'mode' is null"),
    ({"p_yes": "0.5"}, "key 'p_yes' is the string '0.5'"),
    ({"p_yes": 1.5}, "p_yes"),
    ({"p_yes": float("nan")}, "key 'p_yes'"),
    ({"p_yes": 10**400}, "key 'p_yes'"),
    ({"p_yes": True}, "key 'p_yes'"),
    ({"verdict": "yes"}, "key 'verdict' is the string 'yes'"),
    ({"verdict": 1}, "key 'verdict'"),
    ({"verdict": None}, "error"),
    ({"mode": "video"}, "mode"),
    ({"match": "approximate"}, "match"),
    ({"dimension": "XX"}, "dimension"),
    ({"span_start": 1}, "only one end"),
    ({"span_start": 3, "span_end": 2}, "3..2"),
    ({"span_start": -1, "span_end": 2}, "-1..2"),
    ({"span_start": 0.5, "span_end": 2}, "key 'span_start'"),
    ({"span_start": 10**30, "span_end": 10**30}, "key 'span_start'"),
    ({"rollout_id": ""}, "key 'rollout_id'"),
    ({"rollout_id": 7}, "key 'rollout_id' is the number 7"),
    ({"judge": "\ud800"}, "key 'judge'"),
    ({"schema_version": 2}, "'schema_version' is 2, but this claimwise reads version 1"),
    ({"rollout_id": "r1"}, "rollout_id 'r1', criterion_id 'c1' is already in row 1"),
]


@pytest.mark.parametrize(("change", "named"), BAD_VERDICTS)
def test_a_bad_verdict_is_named(tmp_path, change, named):
    path = write_lines(tmp_path / "v.jsonl", [ROW, {**ROW, "rollout_id": "r2", **change}])
    with pytest.raises(InputError) as error:
        read_verdicts(path)
    assert f"{path}, row 2: " in str(error.value) and named in str(error.value)
    assert "\n" not in str(error.value) and len(str(error.value)) < 400


@pytest.mark.parametrize("key", list(ROW))
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_missing_field_is_named(tmp_path, key, suffix):
    row = {name: value for name, value in ROW.items() if name != key}
    path = tmp_path / f"v{suffix}"
    write_lines(path, [row]) if suffix == ".jsonl" else pq.write_table(pa.Table.from_pylist([row]), path)
    with pytest.raises(InputError, match=f"row 1: key '{key}' is missing"):
        read_verdicts(path)


def test_another_version_in_parquet(tmp_path):
    pq.write_table(pa.Table.from_pylist([{**ROW, "schema_version": 3}]), tmp_path / "v.parquet")
    with pytest.raises(InputError, match=r"v\.parquet, row 1: .*is 3, .*version 1"):
        read_verdicts(tmp_path / "v.parquet")


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b'{"a": 1', "row 1: it is not JSON"),
        (b"[1, 2]\n", "row 1: it is the list"),
        (b"\xff\xfe", "row 1: it is not JSON"),
        (b"[" * 100_000, "row 1: it is not JSON"),
        (b"1" * 5000, "row 1: it is not JSON"),
        (b"null", "row 1: it is of type NoneType"),
    ],
)
def test_what_is_not_a_table_of_lines(tmp_path, content, named):
    (tmp_path / "r.jsonl").write_bytes(content)
    with pytest.raises(InputError, match=named):
        read_rollouts(tmp_path / "r.jsonl")


def test_files_that_are_no_tables(tmp_path):
    (tmp_path / "r.parquet").write_bytes(b"PAR1 no")
    (tmp_path / "empty.parquet").touch()
    (tmp_path / "folder.jsonl").mkdir()
    for name, named in [
        ("r.parquet", "cannot be read as Parquet"),
        ("empty.parquet", "cannot be read as Parquet"),
        ("folder.jsonl", "there is no such file"),
        ("absent.jsonl", "there is no such file"),
        ("r.csv", "must end in .jsonl or .parquet"),
    ]:
        with pytest.raises(InputError, match=named) as error:
            read_rollouts(tmp_path / name)
        assert str(tmp_path / name) in str(error.value)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"criteria": []}, "at least one criterion"),
        ({"criteria": None}, "key 'criteria' is null"),
        ({"criteria": [{"id": "c1"}]}, "criterion 1: key 'text' is missing"),
        ({"criteria": ["says 3"]}, "criterion 1: it is the string"),
        ({"criteria": [{"id": "c1", "text": "x", "weight": "5"}]}, "criterion 1: key 'weight'"),
        ({"criteria": [{"id": "c1", "text": "x", "dimension": "Visual"}]}, "dimension"),
        ({"criteria": [{"id": "c1", "text": "x"}] * 2}, "names a criterion twice"),
        ({"images": ["no.png"]}, "there is no file .*no.png"),
        ({"images": "no.png"}, "key 'images' is the string"),
        ({"images": [3]}, "key 'images' is the number 3"),
        ({"question": None}, "key 'question' is null"),
        ({"example_id": "e1"}, "example_id 'e1' is already in row 1"),
    ],
)
def test_a_bad_example_is_named(tmp_path, change, named):
    good = {"example_id": "e1", "question": "What?", "criteria": [{"id": "c1", "text": "says 3", "more": 1}]}
    path = write_lines(tmp_path / "e.jsonl", [good, {**good, "example_id": "e2", **change}])
    with pytest.raises(InputError, match=f"e.jsonl, row 2: .*{named}"):
        read_examples(path)


def test_writers_refuse_what_readers_would(tmp_path):
    for write, rows, named in [
        (write_rollouts, [ROLLOUTS[0]] * 2, "rollout_id 'r1' is already in row 1"),
        (write_verdicts, [VERDICTS[0]] * 2, "criterion_id 'c1' is already in row 1"),
        (write_examples, [Example("e1", "What?", ())], "at least one criterion"),
        (write_examples, [Example("e1", "What?", CRITERIA, (picture(),))] * 2, "example_id 'e1'"),
        (write_rollouts, [Rollout("r", "e", "half \ud800", "p")], "surrogate"),
        (write_examples, [Example("e1", "What?", CRITERIA, (tmp_path / "no.png",))], "no image file"),
    ]:
        with pytest.raises(InputError, match=named):
            write(tmp_path / "out/t.jsonl", rows)
    assert not (tmp_path / "out").exists()
    with pytest.raises(InputError, match=r"must end in \.jsonl or \.parquet"):
        write_rollouts(tmp_path / "r.csv", ROLLOUTS)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_write_that_is_stopped_leaves_the_old_table(tmp_path, suffix, monkeypatch):
    path = tmp_path / f"r{suffix}"
    write_rollouts(path, ROLLOUTS)

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", stop)
    with pytest.raises(KeyboardInterrupt):
        write_rollouts(path, ROLLOUTS[:1])
    assert read_rollouts(path) == ROLLOUTS and os.listdir(tmp_path) == [path.name]


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be written"):
        write_rollouts(tmp_path / "file/r.jsonl", ROLLOUTS)


def test_images_that_cannot_be_read(tmp_path):
    (tmp_path / "empty.png").touch()
    (tmp_path / "text.png").write_text("no picture")
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "whole.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "whole.png").read_bytes()[:2000])
    for name, named in [("no", "no such file"), ("empty", "is empty"), ("text", "cannot be"), ("cut", "cannot be")]:
        with pytest.raises(InputError, match=named) as error:
            load_image(tmp_path / f"{name}.png")
        assert str(tmp_path / f"{name}.png") in str(error.value)
    with pytest.raises(InputError, match="no pixels"):
        load_image(Image.new("RGB", (0, 3)))
    assert load_image(Image.new("L", (2, 3), 7)).getpixel((0, 0)) == (7, 7, 7)


def test_pair_up_names_the_first_rollout_without_example():
    example = Example("e1", "What?", CRITERIA)
    assert pair_up([example], ROLLOUTS) == [(example, ROLLOUTS[0]), (example, ROLLOUTS[1])]
    with pytest.raises(InputError, match="rollout 'r9' answers example 'e9'"):
        pair_up([example], [*ROLLOUTS, Rollout("r9", "e9", "x", "p"), Rollout("r8", "e8", "x", "p")])
