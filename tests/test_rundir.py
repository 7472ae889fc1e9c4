"""Output folders: a run finds its own again, another run is refused and leaves everything as it is."""

import json
import os
from pathlib import Path

import pytest
from claimwise.verifier.errors import InputError
from claimwise.verifier.rundir import FILE, open_run, write_atomic

SETTINGS = {"command": "distill", "seed": 0, "rates": (1e-6, 0.5), "base": Path("base"), "name": "é"}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def refused(folder, settings=SETTINGS) -> str:
    with pytest.raises(InputError) as error:
        open_run(folder, settings)
    message = str(error.value)
    assert "\n" not in message and str(folder) in message
    return message


@pytest.mark.parametrize("as_what", [str, Path])
def test_a_new_folder_is_made_with_its_parents(tmp_path, as_what):
    folder = open_run(as_what(tmp_path / "a" / "b"), SETTINGS)
    assert folder == tmp_path / "a" / "b"
    recorded = json.loads((folder / FILE).read_text())
    assert recorded == {"command": "distill", "seed": 0, "rates": [1e-6, 0.5], "base": "base", "name": "é"}
    assert list(contents(tmp_path)) == [f"a/b/{FILE}"]


def test_an_empty_folder_is_taken(tmp_path):
    assert (open_run(tmp_path, SETTINGS) / FILE).is_file()


def test_the_same_run_goes_on(tmp_path):
    """Tuples and paths, which the record holds as lists and text, are no difference."""
    open_run(tmp_path, SETTINGS)
    (tmp_path / "checkpoint").write_text("half way")
    before = contents(tmp_path)
    assert open_run(tmp_path, dict(reversed(SETTINGS.items()))) == tmp_path
    assert contents(tmp_path) == before


def test_a_different_run_is_named_and_not_touched(tmp_path):
    open_run(tmp_path, SETTINGS)
    (tmp_path / "checkpoint").write_text("half way")
    before = contents(tmp_path)
    message = refused(tmp_path, {**SETTINGS, "seed": 1})
    assert "holds a different run: seed (0 there, 1 now);" in message
    without = {key: value for key, value in SETTINGS.items() if key != "base"}
    assert "base ('base' there, None now)" in refused(tmp_path, without)
    assert "extra (None there, 1 now)" in refused(tmp_path, {**SETTINGS, "extra": 1})
    many = refused(tmp_path, {"command": "train"})  # command, base, name, rates and seed differ
    assert "base" in many and "and 2 more" in many
    assert contents(tmp_path) == before


def test_a_folder_of_something_else_is_not_touched(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    before = contents(tmp_path)
    assert "not empty and no run of ours" in refused(tmp_path)
    assert contents(tmp_path) == before


def test_a_file_is_no_folder(tmp_path):
    path = tmp_path / "out"
    path.write_text("text")
    assert "is a file" in refused(path)
    assert "cannot be used (Not a directory)" in refused(path / "below")
    assert path.read_text() == "text"


@pytest.mark.parametrize("record", [b"", b"{", b"[1]", b"\xff"])
def test_a_record_of_something_else(tmp_path, record):
    (tmp_path / FILE).write_bytes(record)
    assert "is no record of a run of ours" in refused(tmp_path)
    assert contents(tmp_path) == {FILE: record}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(tmp_path):
    tmp_path.chmod(0o500)
    assert "Permission denied" in refused(tmp_path / "out")


def test_stopped_while_the_record_was_written(tmp_path, monkeypatch):
    """The same command goes on, although the folder is not empty."""

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", stop)
        with pytest.raises(KeyboardInterrupt):
            open_run(tmp_path, SETTINGS)
    assert list(contents(tmp_path)) == [FILE + ".part"]
    assert list(contents(open_run(tmp_path, SETTINGS))) == [FILE]


def test_write_atomic(tmp_path, monkeypatch):
    path = tmp_path / "deep" / "metrics.json"
    write_atomic(path, "ein\r\nPäckchen\n")
    assert path.read_bytes() == "ein\r\nPäckchen\n".encode()
    with pytest.raises(UnicodeEncodeError):
        write_atomic(path, "half \ud800")
    assert path.read_text(encoding="utf-8").startswith("ein")  # the old text, whole
    write_atomic(path, "new")
    assert contents(tmp_path) == {"deep/metrics.json": b"new"}
