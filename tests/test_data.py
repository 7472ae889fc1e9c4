"""`claimwise data convert`: what it writes, leaves out and splits, and how it goes on when stopped."""

import io
import json
import os
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from claimwise.distill import convert as convert_module
from claimwise.distill.alone import alone
from claimwise.distill.convert import convert
from claimwise.distill.layouts import find_fields
from claimwise.distill.sources import open_source
from claimwise.verifier.tables import read_examples
from converting import RUBRIC, encoded, picture, rejected, row, run, write_lines


def many(folder, number=60):
    """Rows with two questions an image, and every kind of row that is left out."""
    rows = []
    for n in range(number):
        path = folder / f"img/{n // 2}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(n // 2).save(path)
        rows.append(row(n, image=f"img/{n // 2}.png", rs_score=f"{n % 8}/8"))
    return rows


def test_convert_names_every_row_that_is_left_out(tmp_path, capsys):
    rows = many(tmp_path)
    rows[7] |= {"rs_score": "8/8"}
    rows[9] = {**rows[8], "uid": "again"}
    (tmp_path / "copy.jpg").write_bytes(encoded(picture(6), "JPEG", quality=95))
    rows[20] = {**rows[12], "uid": "near", "image": "copy.jpg"}
    rows[21] = {**rows[12], "uid": "another answer", "answer": "4"}
    rows[30] |= {"uid": "u2"}
    rows[40] |= {"rubrics": []}
    rows[50] = "{not JSON"
    rows[51] = [1, 2]
    source = write_lines(tmp_path / "rows.jsonl", rows)
    out = tmp_path / "out"
    assert run("convert", source, out) == 2
    err = capsys.readouterr().err.splitlines()[-1]
    assert "4 of 60 rows (6.7%) were refused" in err and "line 31" in err and str(out / "rejected.jsonl") in err
    assert sorted(p.name for p in out.iterdir()) == [".part", "rejected.jsonl"]
    assert run("convert", source, out, "--max-rejected", "0.1") == 0
    assert [(r["row"], r["kind"], r["reason"].partition(" (")[0]) for r in rejected(out)] == [
        (8, "filtered", "solved by every sample"),
        (10, "filtered", "duplicate of 'u8'"),
        (21, "filtered", "near duplicate of 'u12'"),
        (31, "refused", "example_id 'u2' is already in row 3; it must be unique"),
        (41, "refused", "criteria are empty"),
        (51, "refused", "it is not JSON"),
        (52, "refused", "it is [1, 2]; it must be an object"),
    ]
    assert rejected(out)[0]["where"] == "rows.jsonl, line 8" and rejected(out)[0]["example_id"] == "u7"
    text = capsys.readouterr().out
    assert "53 examples, 53 criteria, 28 images" in text
    assert "60 read, 4 refused, 3 filtered (" in text and "near duplicate 1" in text
    assert sorted(p.name for p in out.iterdir()) == ["examples.parquet", "images", "rejected.jsonl", "run.json"]
    examples = read_examples(out / "examples.parquet")
    assert len(examples) == 53 and {e.difficulty for e in examples} == {"hard", "medium", "simple"}
    assert len(list((out / "images").iterdir())) == 28  # one for two rows; two pairs have none


def test_filtered_rows_do_not_count_against_the_limit(tmp_path):
    rows = [row(n % 2) for n in range(50)]
    assert run("convert", write_lines(tmp_path / "r.jsonl", rows), tmp_path / "out", "--max-rejected", "0") == 0
    assert len(rejected(tmp_path / "out")) == 48 and len(read_examples(tmp_path / "out/examples.parquet")) == 2


def test_one_percent_is_allowed_and_no_more(tmp_path):
    rows = [row(n, **({"question": None} if n == 5 else {})) for n in range(100)]
    assert run("convert", write_lines(tmp_path / "r.jsonl", rows), tmp_path / "a") == 0
    assert run("convert", write_lines(tmp_path / "r.jsonl", rows[:99]), tmp_path / "b") == 2


def test_splits_and_their_proof(tmp_path, capsys):
    rows = many(tmp_path, 200)
    for n in range(0, 200, 20):
        rows[n]["question"] = "What  IS it?"  # one question for ten images
    source = write_lines(tmp_path / "rows.jsonl", rows)
    splits = ["--split", "train=0.8,validation=0.1,test=0.1"]
    assert run("convert", source, tmp_path / "out", *splits) == 0
    text = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "train 160 80 151" in lines and "validation 20 10 20" in lines and "test 20 10 20" in lines
    for pair in ("train, validation", "train, test", "validation, test"):
        assert f"{pair} 0 0 0" in lines
    seen = {}
    for name in ("train", "validation", "test"):
        for example in read_examples(tmp_path / f"out/{name}.parquet"):
            for key in (example.question.casefold().split()[-1], example.images[0].name):
                assert seen.setdefault(key, name) == name or key == "it?"
    assert len(read_examples(tmp_path / "out/examples.parquet")) == 200
    assert run("convert", source, tmp_path / "again", *splits) == 0
    assert run("convert", source, tmp_path / "other", *splits, "--seed", "1") == 0
    tests = [[e.example_id for e in read_examples(tmp_path / f"{n}/test.parquet")] for n in ("out", "again", "other")]
    assert tests[0] == tests[1] != tests[2]


def test_rows_that_hang_together_whole_are_no_splits(tmp_path, capsys):
    source = write_lines(tmp_path / "r.jsonl", [row(n, question="What?", answer=str(n)) for n in range(9)])
    assert run("convert", source, tmp_path / "out", "--split", "a=0.5,b=0.5") == 2
    assert "'b' would be empty: 9 examples hang together" in capsys.readouterr().err
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [".part", "rejected.jsonl"]
    assert run("convert", source, tmp_path / "out") == 0


@pytest.mark.parametrize(
    "split", ["a", "a=0.5", "a=0.5,b=0.6", "a=1,a=0", "a=x,b=1", "examples=1", "../a=1", "a=0.5,a=0.5"]
)
def test_splits_that_cannot_be(tmp_path, split, capsys):
    assert run("convert", write_lines(tmp_path / "r.jsonl", [row(1)]), tmp_path / "out", "--split", split) == 2
    assert repr(split) in capsys.readouterr().err and not (tmp_path / "out").exists()


# Stopping and going on.


def stopped(source, after):
    def read(start):
        for raw in source.read(start):
            if raw.number > after:
                raise KeyboardInterrupt
            yield raw

    return replace(source, read=read)


def test_a_stopped_run_goes_on_and_ends_alike(tmp_path, monkeypatch):
    monkeypatch.setattr(convert_module, "CHUNK", 7)
    rows = many(tmp_path)
    rows[3] |= {"question": None}
    rows[41] = {**rows[2], "uid": "again"}  # a duplicate of a row before the stop
    rows[45] |= {"uid": "u0"}
    source = open_source(str(write_lines(tmp_path / "rows.jsonl", rows)))
    fields = find_fields(rows, {})
    shares = {"train": 0.8, "test": 0.2}
    for after in (0, 20, 30):
        with pytest.raises(KeyboardInterrupt):
            convert(stopped(source, after), fields, tmp_path / "broken", 0.1, shares)
        assert [p.name for p in (tmp_path / "broken").iterdir()] == [".part"]
    started = []
    watched = replace(source, read=lambda start: started.append(start) or source.read(start))
    (tmp_path / "broken/.part/images/killed.tmp").touch()
    work, _ = convert(watched, fields, tmp_path / "broken", 0.1, shares)
    assert started == [28] and work.rows == 60  # four chunks of seven were whole
    convert(source, fields, tmp_path / "whole", 0.1, shares)
    for name in ("examples.parquet", "train.parquet", "test.parquet"):
        assert pq.read_table(tmp_path / f"broken/{name}") == pq.read_table(tmp_path / f"whole/{name}")
    for name in ("rejected.jsonl", "run.json"):
        assert (tmp_path / f"broken/{name}").read_text() == (tmp_path / f"whole/{name}").read_text()
    assert sorted(os.listdir(tmp_path / "broken/images")) == sorted(os.listdir(tmp_path / "whole/images"))


@pytest.mark.parametrize("moves", range(4))
def test_stopped_amid_the_last_moves(tmp_path, monkeypatch, moves):
    source = write_lines(tmp_path / "rows.jsonl", many(tmp_path, 20))
    splits = ["--split", "a=0.5,b=0.5"]
    move, moved = os.replace, []

    def stop(old, new):
        if new.parent.name == "out":
            if len(moved) == moves:
                raise KeyboardInterrupt
            moved.append(new)
        move(old, new)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", stop)
        assert run("convert", source, tmp_path / "out", *splits) == 130
    assert run("convert", source, tmp_path / "out", *splits) == 0
    assert len(read_examples(tmp_path / "out/examples.parquet")) == 20
    assert len(read_examples(tmp_path / "out/a.parquet")) == 10 and not (tmp_path / "out/.part").exists()


def test_another_mapping_begins_again_and_a_finished_table_stays(tmp_path, capsys):
    source = write_lines(tmp_path / "r.jsonl", [row(n, gold=str(n), rubrics=[] if n else RUBRIC) for n in range(3)])
    out = tmp_path / "out"
    assert run("convert", source, out) == 2
    assert run("convert", source, out, "--map", "answer=gold", "--max-rejected", "0.7") == 0
    assert read_examples(out / "examples.parquet")[0].answer == "0"
    capsys.readouterr()
    assert run("convert", source, out, "--map", "answer=gold") == 0
    assert "holds this very table already" in capsys.readouterr().out
    assert run("convert", source, out) == 2
    assert "holds a different run: columns" in capsys.readouterr().err
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/letter.txt").touch()
    assert run("convert", source, tmp_path / "mine") == 2
    assert "is not empty" in capsys.readouterr().err and os.listdir(tmp_path / "mine") == ["letter.txt"]


def test_a_full_disk_is_no_fault_of_the_rows(tmp_path, monkeypatch, capsys):
    source = write_lines(tmp_path / "rows.jsonl", many(tmp_path, 4))

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("pathlib.Path.write_bytes", full)
        assert run("convert", source, tmp_path / "out") == 2
    assert "cannot be written (No space left on device); make room" in capsys.readouterr().err
    assert run("convert", source, tmp_path / "out") == 0
    assert rejected(tmp_path / "out") == []


def test_a_mended_image_is_read_anew(tmp_path):
    source = write_lines(tmp_path / "rows.jsonl", [row(1, image="a.png"), row(2)])
    assert run("convert", source, tmp_path / "out") == 2
    picture(1).save(tmp_path / "a.png")
    assert run("convert", source, tmp_path / "out") == 0
    assert len(read_examples(tmp_path / "out/examples.parquet")[0].images) == 1 and rejected(tmp_path / "out") == []


def test_out_must_be_a_folder(tmp_path, capsys):
    source = write_lines(tmp_path / "rows.jsonl", [row(1)])
    assert run("convert", source, source) == 2
    assert f"{source} is no folder" in capsys.readouterr().err and json.loads(source.read_text()) == row(1)


def test_halves_of_surrogate_pairs_can_be_told(tmp_path, monkeypatch):
    """What no file and no screen can hold, wherever a row may have it."""
    rubric = [{"description": "x", "type": "\ud800 style", "weight": 2}]
    rows = [row(1, image="\ud800.png"), row(2, question="\udc00?"), row(3, **{"\ud800": "\ud800"}, rubrics=rubric)]
    source = write_lines(tmp_path / "rows.jsonl", rows)
    screen = io.BytesIO()  # as strict as a real one, which pytest's is not
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(screen, "utf-8", write_through=True))
    assert run("inspect", source) == 0
    assert run("convert", source, tmp_path / "out", "--max-rejected", "0.7") == 0
    said = screen.getvalue().decode()
    assert "there is no file" in said and "other dimension: ? style 1" in said
    assert [entry["row"] for entry in rejected(tmp_path / "out")] == [1, 2]


def test_two_processes_do_not_write_one_table(tmp_path, capsys):
    source = write_lines(tmp_path / "rows.jsonl", [row(1)])
    (tmp_path / "out").mkdir()
    with alone(tmp_path / "out"):
        assert run("convert", source, tmp_path / "out") == 2
    assert "another process writes it; wait for it to end" in capsys.readouterr().err
    assert os.listdir(tmp_path / "out") == []
    assert run("convert", source, tmp_path / "out") == 0
