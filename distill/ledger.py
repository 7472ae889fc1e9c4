"""The ledger of a teacher's answers: an SQLite file with one row for each distinct question, written when its answer is
there. An answer is a verdict (mode text or image; mode lint, on a doubt about a criterion) or a rubric (mode rubric;
`quote` has it as JSON, the verdict is null).

    with Ledger("teacher.sqlite") as ledger:
        ledger.write([Entry(key, judgement, 900, 40, 0.0003)], "Qwen3-VL-235B-A22B", "text", digest)
        known = ledger.read([key])

In: entries by key, the hash of everything that the teacher was asked. Out: the same, by key. Each `write` is one
transaction in WAL mode: a process that is killed loses nothing that was written. One process writes at a time; a second
is refused. Questions that brought no answer are kept apart, with their reason, and are asked again by the next run.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from ..verifier.errors import InputError
from ..verifier.image_digest import file_digest
from ..verifier.quoting import Judgement
from ..verifier.schema import MODES

APPLICATION_ID, VERSION = 0x636C6D77, 1  # "clmw": an SQLite file of ours, and the layout below
_LAYOUT = """
CREATE TABLE answers (
    key BLOB NOT NULL UNIQUE, model TEXT NOT NULL, mode TEXT NOT NULL, prompt_hash TEXT NOT NULL,
    verdict INTEGER, p_yes REAL, span_start INTEGER, span_end INTEGER, match TEXT NOT NULL, quote TEXT NOT NULL,
    reading TEXT, error TEXT, prompt_tokens INTEGER, completion_tokens INTEGER, cost REAL, created_at TEXT NOT NULL);
CREATE TABLE failures (
    key BLOB PRIMARY KEY, model TEXT NOT NULL, error TEXT NOT NULL, prompt_tokens INTEGER, completion_tokens INTEGER,
    cost REAL, created_at TEXT NOT NULL);
CREATE TABLE images (path TEXT PRIMARY KEY, size INTEGER NOT NULL, changed_ns INTEGER NOT NULL, digest TEXT NOT NULL);
"""
_READ = """SELECT key, verdict, p_yes, span_start, span_end, match, quote, reading, error, created_at
FROM answers WHERE key IN """


@dataclass(frozen=True)
class Entry:
    """A question's key, its outcome and what it cost. Tokens are None where the server counts none, `cost` where no price
    is known. For a failure `judgement.error` is the reason."""

    key: bytes
    judgement: Judgement
    prompt_tokens: int | None
    completion_tokens: int | None
    cost: float | None


@dataclass(frozen=True)
class Stored:
    """A judgement as the ledger has it; of a failure, the reason and no time."""

    judgement: Judgement
    created_at: str | None


class Ledger:
    """Opens the file, or makes it; with `write=False` it must exist and is only read, beside a writer too.

    Raises InputError, as every method does, for a file that is not ours, that another process writes, or that cannot be
    read or written (a full disk).
    """

    def __init__(self, path: str | Path, write: bool = True):
        self.path = Path(path)
        self._lock = _lock(self.path) if write else None
        if not write and not self.path.is_file():
            raise InputError(f"{path}: there is no such ledger")
        try:
            with self._clear():
                self._db = sqlite3.connect(_address(self.path, write), uri=True, timeout=10)
                self._db.execute("PRAGMA cache_size = -32000")  # 32 MB
                self._check(write)
        except InputError:
            self.close()
            raise

    def _check(self, write: bool) -> None:
        found = [self._db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")]
        empty = not self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if write and empty and found == [0, 0]:
            self._db.execute("PRAGMA journal_mode = WAL")
            header = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION};"
            self._db.executescript(f"BEGIN; {_LAYOUT} {header} COMMIT;")
        elif found[0] != APPLICATION_ID:
            raise InputError(f"{self.path} is no ledger of claimwise; give another file")
        elif found[1] != VERSION:
            raise InputError(f"{self.path} is a ledger of version {found[1]}, this claimwise has {VERSION}")
        # NORMAL: what is written survives the death of the process; the loss of power may cost the last rows.
        self._db.execute("PRAGMA synchronous = NORMAL")

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if hasattr(self, "_db"):
            self._db.close()
        if self._lock is not None:
            self._lock.close()

    def has(self, key: bytes) -> bool:
        """Whether the question is answered, or read in vain twice: it is not asked again."""
        with self._clear():
            return self._db.execute("SELECT 1 FROM answers WHERE key = ?", (key,)).fetchone() is not None

    def write(self, entries: Sequence[Entry], model: str, mode: str, prompt_hash: str) -> None:
        """Answers, in one transaction; each key once for ever. What an earlier failure of a key cost is added."""
        now = _now()
        with self._transaction():
            for entry in entries:
                j, spent = entry.judgement, self._spent_in_vain(entry)
                self._db.execute("DELETE FROM failures WHERE key = ?", (entry.key,))
                row = (entry.key, model, mode, prompt_hash, j.verdict, j.p_yes, j.span_start, j.span_end, j.match)
                row += (j.quote, j.reading, j.error, *spent, now)
                self._db.execute(f"INSERT INTO answers VALUES ({', '.join('?' * len(row))})", row)

    def fail(self, entries: Sequence[Entry], model: str) -> None:
        """Questions that brought no answer, with the reason in `judgement.error`; the next run asks them again."""
        now = _now()
        with self._transaction():
            for entry in entries:
                row = (entry.key, model, entry.judgement.error, *self._spent_in_vain(entry), now)
                self._db.execute("REPLACE INTO failures VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    def _spent_in_vain(self, entry: Entry) -> tuple[int | None, int | None, float | None]:
        """Tokens and cost of the entry with those of an earlier failure."""
        query = """SELECT prompt_tokens + ?, completion_tokens + ?, cost + ? FROM failures WHERE key = ?"""
        now = (entry.prompt_tokens, entry.completion_tokens, entry.cost)
        return self._db.execute(query, (*now, entry.key)).fetchone() or now

    def read(self, keys: Sequence[bytes]) -> list[Stored | None]:
        """What is known of each key: an answer, else the last failure, else None."""
        some = f"({', '.join('?' * len(keys))})"  # together they are read twice as fast as one by one
        with self._clear():
            known = {row[0]: Stored(_judgement(*row[1:9]), row[9]) for row in self._db.execute(_READ + some, keys)}
            if len(known) < len(keys):
                failed = self._db.execute(f"SELECT key, error FROM failures WHERE key IN {some}", keys)
                known = {key: Stored(Judgement(None, error=error), None) for key, error in failed} | known
        return [known.get(key) for key in keys]

    def spent(self, price_in: float = 0.0, price_out: float = 0.0) -> float:
        """Cost of everything in the ledger; rows written without prices count at these, in money per million tokens."""
        cost = "coalesce(cost, (coalesce(prompt_tokens, 0) * ? + coalesce(completion_tokens, 0) * ?) / 1e6)"
        query = f"SELECT total({cost}) FROM (SELECT * FROM (SELECT prompt_tokens, completion_tokens, cost FROM answers"
        query += " UNION ALL SELECT prompt_tokens, completion_tokens, cost FROM failures))"
        with self._clear():
            return self._db.execute(query, (price_in, price_out)).fetchone()[0]

    def figures(self, model: str, modes: Sequence[str] = MODES) -> dict[str, Any]:
        """Counts of one model's rows in these modes: `answers`, `yes`, `no`, `missing` (for a reason), `p_yes`,
        `spans`, `uncounted` (without tokens), and sums of `prompt_tokens` and `completion_tokens`; `failures` of any."""
        query = f"""SELECT count(*), count(verdict = 1 OR NULL), count(verdict = 0 OR NULL), count(error),
            count(p_yes), count(span_start), count(*) - count(prompt_tokens + completion_tokens),
            sum(prompt_tokens), sum(completion_tokens)
            FROM answers WHERE model = ? AND mode IN ({", ".join("?" * len(modes))})"""
        names = ("answers", "yes", "no", "missing", "p_yes", "spans", "uncounted")
        names += ("prompt_tokens", "completion_tokens")
        with self._clear():
            row = self._db.execute(query, (model, *modes)).fetchone()
            failed = self._db.execute("SELECT count(*) FROM failures WHERE model = ?", (model,)).fetchone()[0]
        return {name: value or 0 for name, value in zip(names, row, strict=True)} | {"failures": failed}

    def image_digest(self, path: Path) -> str:
        """SHA-256 of a file, computed once for as long as its size and time of change stay."""
        try:
            about = path.stat()
        except OSError as error:
            raise InputError(f"{path}: it cannot be read ({error.strerror})") from None
        with self._clear():
            query = "SELECT digest FROM images WHERE path = ? AND size = ? AND changed_ns = ?"
            row = self._db.execute(query, (str(path), about.st_size, about.st_mtime_ns)).fetchone()
        if row is not None:
            return row[0]
        digest = file_digest(path)
        if self._lock is not None:
            with self._transaction():
                row = (str(path), about.st_size, about.st_mtime_ns, digest)
                self._db.execute("REPLACE INTO images VALUES (?, ?, ?, ?)", row)
        return digest

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._clear(), self._db:
            yield

    @contextmanager
    def _clear(self) -> Iterator[None]:
        """SQLite's errors as one line."""
        try:
            yield
        except sqlite3.IntegrityError as error:
            raise InputError(f"{self.path}: a verdict would be written twice ({error})") from error
        except sqlite3.Error as error:
            raise InputError(
                f"{self.path}: the ledger cannot be used ({error}); what is in it stays. If the disk is full, make room; "
                "then the same command goes on"
            ) from error


def _judgement(verdict: int | None, *rest: Any) -> Judgement:
    return Judgement(None if verdict is None else bool(verdict), *rest)


def _address(path: Path, write: bool) -> str:
    """A reader of a ledger that nobody has open leaves no files of SQLite's beside it."""
    still = not write and not Path(f"{path}-wal").exists()
    return f"{path.resolve().as_uri()}?mode={'rwc' if write else 'ro'}{'&immutable=1' if still else ''}"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _lock(path: Path) -> IO[str]:
    """A lock that ends with this process, however it ends. It lies beside the ledger: SQLite's own locks on the file are
    lost when another handle on it is closed."""
    try:
        lock = open(f"{path}.lock", "a+", encoding="utf-8")  # noqa: SIM115 - stays open as long as the ledger
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InputError(
            f"{path}: another process is writing this ledger; wait for it to end, or give another ledger"
        ) from None
    except OSError as error:
        raise InputError(f"{path}: the ledger cannot be opened ({os.strerror(error.errno or 0)})") from None
    return lock
