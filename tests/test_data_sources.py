"""`claimwise data` and the files that rows come from: formats, folders, late columns, and what inspect shows of them."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from claimwise.distill.sources import open_source
from claimwise.verifier.tables import read_examples
from converting import RUBRIC, picture, rejected, row, run, write_lines


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


def test_a_list_that_goes_on_behind_its_end(tmp_path, capsys):
    for n, more in enumerate(["\n" + json.dumps([row(2)]), "}", "\n \n"]):
        (tmp_path / f"{n}.json").write_text(json.dumps([row(1)]) + more)
        assert run("convert", tmp_path / f"{n}.json", tmp_path / f"out{n}") == (2 if more.strip() else 0)
        assert ("behind the list there is more" in capsys.readouterr().err) == bool(more.strip())


def test_a_value_that_python_cannot_hold_costs_its_row_alone(tmp_path):
    seen = pa.array([0, 2**62, 5], pa.timestamp("us"))  # the second is in the year 148,108
    table = pa.Table.from_pylist([row(n) for n in range(3)]).append_column("seen", seen)
    pq.write_table(table, tmp_path / "rows.parquet")
    assert run("convert", tmp_path / "rows.parquet", tmp_path / "out", "--max-rejected", "0.4") == 0
    assert [e.example_id for e in read_examples(tmp_path / "out/examples.parquet")] == ["u0", "u2"]
    (left_out,) = rejected(tmp_path / "out")
    assert (left_out["where"], left_out["kind"]) == ("rows.parquet, row 2", "refused")
    assert left_out["reason"] == "it cannot be read (date value out of range)"


def test_tables_of_another_kind_are_named(tmp_path, capsys):
    pq.write_table(pa.Table.from_pylist([row(1)]), tmp_path / "a.parquet")
    write_lines(tmp_path / "b.jsonl", [row(2)])
    for argv in (["inspect", tmp_path], ["convert", tmp_path, tmp_path / "out"]):
        assert run(*argv) == 0
        assert f"{tmp_path}: Parquet: a.parquet (not read: b.jsonl)" in capsys.readouterr().out


def test_what_was_converted_into_the_source_is_no_data(tmp_path):
    source = write_lines(tmp_path / "rows.jsonl", [row(1), row(2, question=None)])
    assert run("convert", tmp_path, tmp_path / "one") == 2  # leaves rejected.jsonl
    assert run("convert", tmp_path, tmp_path / "two", "--max-rejected", "0.5") == 0
    assert run("convert", tmp_path, tmp_path / "two", "--max-rejected", "0.5") == 0
    assert run("inspect", tmp_path) == run("inspect", source) == 0
    assert run("inspect", tmp_path / "two") == 2  # that is a table of ours


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"image": None, "images": ["a.png"]}, "has the images not in the column 'image' but in 'images'"),
        ({"image": {"bytes": None, "path": None}, "file_name": "a.png"}, "'image' but in 'file_name'"),
        ({"answer": "", "final_answer": "7"}, "--map answer=answer or --map answer=final_answer"),
        (
            {"rubrics": [{"description": "x", "points": -5}]},
            "weight not in the criterion key 'weight' but in 'points'",
        ),
    ],
)
@pytest.mark.parametrize("late", [False, True])
def test_what_stands_under_another_alias_is_not_lost(tmp_path, change, named, late, capsys):
    picture(1).save(tmp_path / "a.png")
    rows = [row(n, image="a.png") for n in range(30 if late else 1)]
    rows.append(row(99, **change))
    source = write_lines(tmp_path / "r.jsonl", rows)
    assert run("convert", source, tmp_path / "out") == 2
    assert f"row {len(rows)} has" in (said := capsys.readouterr().err) and named in said
    if not late:
        assert run("inspect", source) == 0 and named in capsys.readouterr().out
    maps = [f"{field}={column}" for field, column in (("images", "image"), ("answer", "answer"), ("weight", "weight"))]
    assert run("convert", source, tmp_path / "out", "--map", *maps) == 0  # said, it is done
