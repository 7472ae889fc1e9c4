"""`claimwise data`: what inspect shows, what convert writes, and every way in which a row or a file can be wrong."""

import base64
import io
import json
import os
import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from claimwise.distill import convert as convert_module
from claimwise.distill.convert import convert
from claimwise.distill.layouts import find_fields
from claimwise.distill.pictures import read_picture
from claimwise.distill.sources import open_source
from claimwise.scripts.cli import main
from claimwise.verifier.errors import InputError
from claimwise.verifier.tables import load_image, read_examples
from PIL import Image

RUBRIC = [{"title": "Three", "description": "It says 3.", "type": "VF", "weight": 5}]


def picture(number, size=(32, 24)):
    values = np.random.default_rng(number).integers(0, 256, (*size[::-1], 3), dtype=np.uint8)
    return Image.fromarray(values)


def encoded(image, kind="PNG", **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def row(number, **change):
    return {"uid": f"u{number}", "question": f"What is {number}?", "rubrics": RUBRIC, "answer": "3", **change}


def write_lines(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows), encoding="utf-8")
    return path


def run(*argv):
    return main(["data", *map(str, argv)])


def rejected(out):
    return [json.loads(line) for line in (out / "rejected.jsonl").read_text().splitlines()]


def one(tmp_path, *argv, **change):
    """The example, or the reason, that one row with these values comes to."""
    source = write_lines(tmp_path / "one.jsonl", [row(1, **change)])
    out = tmp_path / "one"
    if run("convert", source, out, *argv):
        return rejected(out)[0]["reason"]
    return read_examples(out / "examples.parquet")[0]


# Forms of an image. Each is the picture of number 1, of 32 x 24 pixels.


def forms(folder):
    data = encoded(picture(1))
    (folder / "img").mkdir()
    (folder / "img/a.png").write_bytes(data)
    (folder / "bare").write_bytes(data)
    text = base64.b64encode(data).decode()
    return {
        "path": "img/a.png",
        "path without a suffix": "bare",
        "absolute path": str(folder / "img/a.png"),
        "base64": text,
        "base64 in lines": "\n".join(text[i : i + 76] for i in range(0, len(text), 76)),
        "data URL": f"data:image/png;base64,{text}",
        "object with path": {"path": "img/a.png", "bytes": None},
        "list": ["img/a.png"],
        "JSON list": '["img/a.png"]',
    }


def test_every_form_of_an_image_in_json(tmp_path):
    for name, value in forms(tmp_path).items():
        source = write_lines(tmp_path / "rows.jsonl", [row(1, image=value)])
        out = tmp_path / name
        assert run("convert", source, out) == 0, name
        (image,) = read_examples(out / "examples.parquet")[0].images
        assert image.parent == out / "images" and image.read_bytes() == encoded(picture(1)), name


def test_bytes_and_objects_in_parquet(tmp_path):
    data = encoded(picture(1))
    for name, value in {
        "bytes": data,
        "object": {"bytes": data, "path": "a.png"},
        "several": [{"bytes": data, "path": None}, {"bytes": encoded(picture(2)), "path": None}],
    }.items():
        pq.write_table(pa.Table.from_pylist([row(1, image=value)]), tmp_path / "rows.parquet")
        assert run("convert", tmp_path / "rows.parquet", tmp_path / name) == 0
        images = read_examples(tmp_path / name / "examples.parquet")[0].images
        wanted = [picture(1), picture(2)] if name == "several" else [picture(1)]
        assert [load_image(image).tobytes() for image in images] == [image.tobytes() for image in wanted]


def test_a_pil_image():
    taken = read_picture(picture(1), None)
    assert taken.name.endswith(".png") and taken.image.tobytes() == picture(1).tobytes()
    with pytest.raises(InputError, match=r"no pixels \(0 x 3\)"):
        read_picture(Image.new("RGB", (0, 3)), None)


def test_file_name_beside_the_data(tmp_path):
    """The layout of an image folder: metadata.jsonl with `file_name`, images beside it."""
    for n in range(2):
        (tmp_path / "set/deep").mkdir(parents=True, exist_ok=True)
        picture(n).save(tmp_path / f"set/deep/{n}.png")
    rows = [row(n, file_name=f"deep/{n}.png") for n in range(2)]
    write_lines(tmp_path / "set/metadata.jsonl", rows)
    assert run("convert", tmp_path / "set", tmp_path / "out") == 0
    examples = read_examples(tmp_path / "out/examples.parquet")
    assert [load_image(e.images[0]).tobytes() for e in examples] == [picture(n).tobytes() for n in range(2)]


def test_what_is_stored_as_it_is_and_what_becomes_png(tmp_path):
    sideways = Image.Exif()
    sideways[0x0112] = 6
    for name, data, kind, size in [
        ("jpeg", encoded(picture(1), "JPEG"), ".jpg", (32, 24)),
        ("webp", encoded(picture(1), "WEBP"), ".webp", (32, 24)),
        ("gif", encoded(picture(1), "GIF"), ".png", (32, 24)),
        ("bmp", encoded(picture(1), "BMP"), ".png", (32, 24)),
        ("turned", encoded(picture(1), "JPEG", exif=sideways), ".png", (24, 32)),
        ("grey", encoded(picture(1).convert("L")), ".png", (32, 24)),
        ("clear", encoded(picture(1).convert("RGBA")), ".png", (32, 24)),
    ]:
        taken = read_picture(data, None)
        path = taken.store(tmp_path)
        assert (path.suffix, load_image(path).size) == (kind, size), name
        assert (path.read_bytes() == data) == (name in ("jpeg", "webp", "grey", "clear")), name
    assert {path.suffix for path in tmp_path.iterdir()} <= {".jpg", ".webp", ".png"}  # nothing half-written


CUT = encoded(picture(1, (200, 200)))[:5000]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("gone.png", "image 1: there is no file .*gone.png"),
        (["ok.png", "gone.png"], "image 2: there is no file"),
        (["ok.png", None], "image 2: it is null"),
        ("empty.png", "image 1: it is empty"),
        ("text.png", "image 1: its 10 bytes are no image"),
        ("cut.png", "image 1: it is broken"),
        ("https://example.org/a.png", "image 1: https://example.org/a.png is a URL"),
        ("data:image/png;base64,%%%", "image 1: it begins with 'data:image/png;base64,%%%', but no base64"),
        ("data:image/png,raw", "no base64 follows"),
        ("x" * 2000, "image 1: its 1500 bytes are no image"),
        ("%" * 2000, "string of 2000 characters is neither"),
        (base64.b64encode(CUT).decode(), "image 1: it is broken"),
        (7, "image 1: it is integer 7"),
        ({"width": 3}, "image 1: it is object {width}"),
        ({"path": "gone.png"}, "there is no file"),
        ({"path": None, "bytes": ""}, "image 1: it is null"),
        ("folder", "there is no file"),
        ("nul\0", "there is no file"),
    ],
)
def test_images_that_cannot_be_used(tmp_path, value, reason, capsys):
    picture(1).save(tmp_path / "ok.png")
    (tmp_path / "empty.png").touch()
    (tmp_path / "text.png").write_text("no picture")
    (tmp_path / "cut.png").write_bytes(CUT)
    (tmp_path / "folder").mkdir()
    source = write_lines(tmp_path / "rows.jsonl", [row(1, image=value)])
    assert run("convert", source, tmp_path / "out") == 2
    (entry,) = rejected(tmp_path / "out")
    assert re.search(reason, entry["reason"]) and (entry["row"], entry["example_id"]) == (1, "u1")
    assert entry["reason"] in capsys.readouterr().err


# What convert writes.


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


# Files and folders.


def test_parquet_json_and_lines_give_the_same(tmp_path):
    rows = [row(n, answer="2026-01-01", reference=None) for n in range(30)]
    write_lines(tmp_path / "a.jsonl", rows)
    (tmp_path / "b.json").write_text(json.dumps(rows, indent=1))
    write_lines(tmp_path / "c.json", rows)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "d.parquet", row_group_size=7)
    tables = []
    for name in ("a.jsonl", "b.json", "c.json", "d.parquet"):
        assert run("convert", tmp_path / name, tmp_path / f"out-{name}") == 0
        tables.append(read_examples(tmp_path / f"out-{name}/examples.parquet"))
        assert [raw.number for raw in open_source(str(tmp_path / name)).read(25)] == [26, 27, 28, 29, 30]
    assert tables[0] == tables[1] == tables[2] == tables[3]
    assert tables[0][0].answer == "2026-01-01"  # a string, not a time


def test_a_json_list_is_read_piece_by_piece(tmp_path, monkeypatch):
    monkeypatch.setattr("claimwise.distill.sources._PIECE", 16)
    rows = [{**row(n), "numbers": [n, n / 2], "text": 'a "quoted" ] and, \\ {' * n} for n in range(20)]
    (tmp_path / "r.json").write_text("\ufeff \n" + json.dumps(rows, indent=3) + "\n", encoding="utf-8")
    assert [raw.values for raw in open_source(str(tmp_path / "r.json")).read(0)] == rows


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("r.json", '[{"a": 1}, {"a": ', "r.json, row 2: it is not JSON"),
        ("r.json", '[{"a": 1} {"a": 2}]', "r.json, row 1: it is not JSON"),
        ("r.json", '{"data":\n[{"a": 1}]}', "must hold a list of objects"),
        ("r.json", "", "must hold a list of objects"),
        ("r.jsonl", "", "r.jsonl: it has none"),
        ("r.jsonl", "\n\n", "r.jsonl: it has none"),
        ("r.jsonl", "[]\n3", "none of the first 2 can be read; r.jsonl, line 1: it is []"),
        ("r.parquet", "PAR1 no", "cannot be read as Parquet"),
        ("r.csv", "a,b", "must end in .parquet, .jsonl, .json"),
        ("folder/readme.txt", "x", "holds no file that ends in"),
        ("r.jsonl", json.dumps({"schema_version": 1, "question": "?"}), "a table of ours already"),
        ("r.jsonl", json.dumps({"frage": "?"}), "--map question=NAME"),
    ],
)
@pytest.mark.parametrize("action", ["inspect", "convert"])
def test_files_that_cannot_be_read(tmp_path, name, content, named, action, capsys):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(content)
    source = tmp_path / name.split("/")[0]
    status = run(action, source, *([tmp_path / "out"] if action == "convert" else []))
    said = capsys.readouterr()
    if action == "inspect" and "--map" in named:  # inspect is there to look at just that
        assert status == 0 and named in said.out
    else:
        assert status == 2 and named in said.err and not (tmp_path / "out").exists()


def test_folders_and_their_parts(tmp_path, capsys):
    for part in ("train-00000", "train-00001", "test"):
        pq.write_table(pa.Table.from_pylist([row(part)]), tmp_path / f"{part}.parquet")
    write_lines(tmp_path / "dataset_info.json", [{"a": 1}])
    assert run("convert", tmp_path, tmp_path / "out") == 2
    assert "has the parts test, train; choose one with --part NAME" in capsys.readouterr().err
    assert run("convert", tmp_path, tmp_path / "out", "--part", "train") == 0
    ids = [e.example_id for e in read_examples(tmp_path / "out/examples.parquet")]
    assert ids == ["utrain-00000", "utrain-00001"]
    for argv, named in [
        (["--part", "dev"], "has no such part; it has test, train"),
        (["--subset", "x"], "is local"),
    ]:
        assert run("inspect", tmp_path, *argv) == 2 and named in capsys.readouterr().err
    assert run("inspect", tmp_path / "test.parquet", "--part", "test") == 2
    assert run("inspect", "no/such/folder/at/all") == 2
    assert "there is no such file or folder" in capsys.readouterr().err


def test_a_column_that_comes_late_stops_the_run(tmp_path, capsys):
    source = write_lines(tmp_path / "r.jsonl", [*(row(n) for n in range(30)), row(30, image="a.png")])
    assert run("convert", source, tmp_path / "out") == 2
    assert "row 31 has the column 'image'" in capsys.readouterr().err
    assert run("convert", source, tmp_path / "out", "--map", "images=") == 0
    assert len(read_examples(tmp_path / "out/examples.parquet")) == 31
    picture(1).save(tmp_path / "a.png")
    assert run("convert", source, tmp_path / "with", "--map", "images=image") == 0
    assert [len(e.images) for e in read_examples(tmp_path / "with/examples.parquet")] == [0] * 30 + [1]


# What inspect shows.


def test_inspect(tmp_path, capsys):
    picture(1).save(tmp_path / "a.png")
    rows = [
        row(1, image="a.png", prompt="unused", original_id="1", rs_score="3/8", note="n" * 500),
        row(2, rubrics="[]"),
    ]
    rows[0]["rubrics"] = [*RUBRIC, {"description": "Pitfall: lies.", "weight": -1, "type": "style"}]
    assert run("inspect", write_lines(tmp_path / "r.jsonl", rows)) == 0
    text = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert f"{tmp_path / 'r.jsonl'}: JSON Lines: r.jsonl; 2 rows" in lines and "layout: V-Rubrics" in lines
    assert any(line.startswith("image string images PNG 32x24, ") for line in lines)
    assert "question question prompt is there too; --map question=NAME takes another" in lines
    assert "reference - none of reference, reference_response, reference_answer, response, solution" in lines
    assert "criterion: text description" in lines and max(map(len, text.splitlines())) < 200
    assert (
        "of the first 2 rows, 1 would be refused (images aside)" in lines
        and "r.jsonl, line 2: criteria are empty" in lines
    )
    assert "labels: ESSENTIAL 1, PITFALL 1" in lines and "dimensions: VF 1, none 1, 'style' (read as none) 1" in lines
    assert "yes to a pitfall: committed" in lines
    assert (
        run("inspect", tmp_path / "r.jsonl", "--map", "question=prompt", "answer=", "--pitfall-yes-means", "avoided")
        == 0
    )
    text = capsys.readouterr().out
    assert "left out by --map" in text and "yes to a pitfall: avoided" in text


def test_help_and_wrong_flags(capsys):
    for argv in (["convert"], ["inspect", "a", "b"], ["look"], [], ["convert", "a", "b", "--max-rejected", "2"]):
        assert run(*argv) == 2
        assert capsys.readouterr().err.startswith("claimwise data: ")
    for action in ("inspect", "convert"):
        with pytest.raises(SystemExit) as stop:
            run(action, "--help")
        assert stop.value.code == 0 and f"claimwise data {action} " in capsys.readouterr().out
