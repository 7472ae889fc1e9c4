"""The ledger: written once, by one process, and readable whatever happened to the writer."""

import os
import signal
import sqlite3
import subprocess
import sys
import textwrap

import pytest
from claimwise.distill.ledger import Entry, Ledger
from claimwise.verifier.errors import InputError
from claimwise.verifier.image_digest import file_digest
from claimwise.verifier.quoting import Judgement
from servers import on_a_tiny_disk

YES = Judgement(True, 0.75, 3, 9, "exact", "it is", "a 3", None)
MISSING = Judgement(None, error="unreadable: no JSON")


def entry(key, judgement=YES, prompt=100, completion=7, cost=0.5):
    return Entry(key, judgement, prompt, completion, cost)


def write(ledger, *entries, model="m", mode="text"):
    ledger.write(entries, model, mode, "hash")


def test_what_is_written_is_read(tmp_path):
    with Ledger(tmp_path / "l.sqlite") as ledger:
        write(ledger, entry(b"a"), entry(b"b", MISSING))
        ledger.fail([entry(b"c", Judgement(None, error="timeout: no answer"), 0, 0, 0.0)], "m")
        assert [ledger.has(key) for key in (b"a", b"b", b"c", b"d")] == [True, True, False, False]
    with Ledger(tmp_path / "l.sqlite", write=False) as ledger:
        a, b, c, d = ledger.read([b"a", b"b", b"c", b"d"])
        assert a.judgement == YES and b.judgement == MISSING and c.judgement.error == "timeout: no answer" and d is None
        assert a.created_at and c.created_at is None
        assert ledger.figures("m") == {
            "answers": 2, "yes": 1, "no": 0, "missing": 1, "p_yes": 1, "spans": 1, "uncounted": 0,
            "prompt_tokens": 200, "completion_tokens": 14, "failures": 1,
        }  # fmt: skip
        assert ledger.figures("another")["answers"] == 0
    assert sorted(os.listdir(tmp_path)) == ["l.sqlite", "l.sqlite.lock"]


def test_a_verdict_is_written_once(tmp_path):
    with Ledger(tmp_path / "l.sqlite") as ledger:
        write(ledger, entry(b"a"))
        with pytest.raises(InputError, match="written twice"):
            write(ledger, entry(b"b"), entry(b"a", MISSING))
        assert ledger.read([b"a"])[0].judgement == YES and not ledger.has(b"b")  # all of a call, or nothing


def test_what_a_failure_cost_is_not_forgotten(tmp_path):
    with Ledger(tmp_path / "l.sqlite") as ledger:
        for _ in range(2):
            ledger.fail([entry(b"a", Judgement(None, error="server: down"), 10, 1, 0.25)], "m")
        assert ledger.spent() == 0.5
        write(ledger, entry(b"a"))
        assert ledger.spent() == 1.0 and ledger.figures("m")["failures"] == 0
        assert ledger.figures("m")["prompt_tokens"] == 120


def test_rows_without_a_price_count_at_the_price_of_today(tmp_path):
    with Ledger(tmp_path / "l.sqlite") as ledger:
        write(
            ledger, entry(b"a", cost=None), entry(b"b", cost=2.0), entry(b"c", prompt=None, completion=None, cost=None)
        )
        assert ledger.spent(1e4, 1e5) == pytest.approx(2.0 + 100 * 1e4 / 1e6 + 7 * 1e5 / 1e6)


def test_a_second_process_is_refused_and_readers_are_not(tmp_path):
    path = tmp_path / "l.sqlite"
    script = f"from claimwise.distill.ledger import Ledger; Ledger({str(path)!r})"
    with Ledger(path) as ledger:
        write(ledger, entry(b"a"))
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert done.returncode and "another process is writing this ledger; wait for it to end" in done.stderr
        with pytest.raises(InputError, match="another process"):
            Ledger(path)
        with Ledger(path, write=False) as reader:
            assert reader.has(b"a")
    subprocess.run([sys.executable, "-c", script], check=True)  # the lock goes with its holder


KILLED = """
    import os, sys
    from claimwise.distill.ledger import Entry, Ledger
    from claimwise.verifier.quoting import Judgement
    ledger = Ledger(sys.argv[1])
    for number in range(10**9):
        ledger.write([Entry(b"%d" % number, Judgement(True), 1, 1, None)], "m", "text", "h")
        os.write(1, b"%d\\n" % number)  # what has been told to be written, is
"""


def test_kill_9_loses_nothing(tmp_path):
    path = tmp_path / "l.sqlite"
    writer = subprocess.Popen([sys.executable, "-c", textwrap.dedent(KILLED), path], stdout=subprocess.PIPE)
    for _ in range(500):
        told = int(writer.stdout.readline())
    writer.send_signal(signal.SIGKILL)
    told = max([told, *map(int, writer.stdout.read().split(b"\n")[:-1])])
    writer.wait()
    writer.stdout.close()
    with Ledger(path, write=False) as ledger:
        assert all(ledger.has(b"%d" % number) for number in range(told + 1))
    with Ledger(path) as ledger:
        assert ledger.figures("m")["answers"] in (told + 1, told + 2)
        write(ledger, entry(b"after"))


FULL = """
    import os, resource, sys
    from claimwise.distill.ledger import Entry, Ledger
    from claimwise.verifier.errors import InputError
    from claimwise.verifier.quoting import Judgement
    path, room = sys.argv[1:]
    if room == "limit":
        resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, resource.RLIM_INFINITY))
    def rows(first):
        return [Entry(b"%d" % n, Judgement(True, quote="x" * 2000), 1, 1, None) for n in range(first, first + 10)]
    def make_room():
        if room == "limit":
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        else:
            os.remove(room)
    with Ledger(path) as ledger:
        try:
            for first in range(0, 10**6, 10):
                ledger.write(rows(first), "m", "text", "h")
        except InputError as error:
            print(error)
        assert ledger.has(b"%d" % (first - 1)) and not ledger.has(b"%d" % first)
        make_room()
        ledger.write(rows(first), "m", "text", "h")
    with Ledger(path) as ledger:
        assert ledger.figures("m")["answers"] == first + 10
        print(first)
"""


@pytest.mark.parametrize("room", ["a tiny disk", "limit"])
def test_a_full_disk_is_one_line_and_loses_nothing(tmp_path, room):
    command = [sys.executable, "-c", textwrap.dedent(FULL), tmp_path / "l.sqlite"]
    if room == "limit":
        done = subprocess.run([*command, "limit"], capture_output=True, text=True)
    else:
        done = on_a_tiny_disk(tmp_path, *command, tmp_path / "room")
    assert done.returncode == 0, done.stderr
    line, count = done.stdout.splitlines()
    assert "l.sqlite: the ledger cannot be used" in line and "make room" in line
    assert int(count) >= 50


def test_other_files_are_refused(tmp_path):
    (tmp_path / "text").write_text("no database, and long enough to be none for certain" * 20)
    with pytest.raises(InputError, match="cannot be used"):
        Ledger(tmp_path / "text")
    other = sqlite3.connect(tmp_path / "other.sqlite")
    other.execute("CREATE TABLE t (x)")
    other.close()
    with pytest.raises(InputError, match="no ledger of claimwise"):
        Ledger(tmp_path / "other.sqlite")
    with Ledger(tmp_path / "new.sqlite"):
        pass
    newer = sqlite3.connect(tmp_path / "new.sqlite")
    newer.execute("PRAGMA user_version = 9")
    newer.close()
    with pytest.raises(InputError, match="version 9"):
        Ledger(tmp_path / "new.sqlite")
    with pytest.raises(InputError, match="cannot be opened"):
        Ledger(tmp_path / "nowhere" / "l.sqlite")
    with pytest.raises(InputError, match="no such ledger"):
        Ledger(tmp_path / "none.sqlite", write=False)
    assert not (tmp_path / "none.sqlite").exists()


def test_an_image_is_read_again_only_when_it_changed(tmp_path, monkeypatch):
    image = tmp_path / "a.png"
    image.write_bytes(b"one")
    with Ledger(tmp_path / "l.sqlite") as ledger:
        first = ledger.image_digest(image)
        assert first == file_digest(image)
        with monkeypatch.context() as patch:
            patch.setattr("claimwise.distill.ledger.file_digest", lambda path: pytest.fail("read again"))
            assert ledger.image_digest(image) == first
        image.write_bytes(b"three")
        assert ledger.image_digest(image) == file_digest(image) != first
        with pytest.raises(InputError, match=r"b\.png"):
            ledger.image_digest(tmp_path / "b.png")
