"""One run of sampling: several policies and temperatures in one table, in an order and with seeds that do not depend on
interruptions.

    with PartFile("rollouts.parquet", plan.settings(examples)) as part:
        refused = roll_out(plan, examples, part, open_backend)
        write_rollouts("rollouts.parquet", part.finished(plan.jobs(examples)))
        part.remove()

Each finished response is a line of `rollouts.parquet.part` before the next is waited for. The same command reads it and
asks for the rest; a part file of other settings is refused.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ..verifier.errors import InputError
from ..verifier.schema import Example, Rollout
from .rollout_backends import Backend, Job, Refusal, Response

FORMAT = 1
_BEGINNING = b'{"part": '


@dataclass(frozen=True)
class Plan:
    """What is to be sampled. `policies` are (source, name) pairs: a folder, a Hub name or a server's model, and what the
    table calls it. `batch_size` is None where it does not bear on the responses."""

    policies: tuple[tuple[str, str], ...]
    temperatures: tuple[float, ...]
    samples: int
    max_new_tokens: int
    seed: int
    backend: str
    batch_size: int | None = None

    def __post_init__(self) -> None:
        names = [name for _, name in self.policies]
        if len(set(names)) < len(names):
            raise InputError(f"two policies have one name ({', '.join(names)}); give each its own with --name")
        if len(set(self.temperatures)) < len(self.temperatures):
            raise InputError(f"a temperature is there twice ({', '.join(f'{t:g}' for t in self.temperatures)})")
        if any(not (math.isfinite(temperature) and temperature >= 0) for temperature in self.temperatures):
            raise InputError("a temperature must be a number from 0 up")
        if self.samples < 1 or self.max_new_tokens < 1 or (self.batch_size is not None and self.batch_size < 1):
            raise InputError("samples, new tokens and the batch size must be at least 1")

    def settings(self, examples: Sequence[Example]) -> dict[str, Any]:
        """All that bears on the responses, as JSON. Where a server stands does not."""
        return {**json.loads(json.dumps(dataclasses.asdict(self))), "examples": _digest(examples)}

    def groups(self, examples: Sequence[Example]) -> Iterator[tuple[str, list[Job]]]:
        """(source, jobs) of every policy and temperature, in the order of the table."""
        for source, name in self.policies:
            for temperature in self.temperatures:
                label = f"{name}@{temperature:g}" if len(self.temperatures) > 1 else name
                jobs = [Job(e, label, i, temperature, self.seed) for e in examples for i in range(self.samples)]
                yield source, jobs

    def jobs(self, examples: Sequence[Example]) -> list[Job]:
        return [job for _, jobs in self.groups(examples) for job in jobs]


def _digest(examples: Sequence[Example]) -> str:
    """Identifies what the policies are asked: ids, questions, and the images by name and size."""
    digest = hashlib.sha256()
    for example in examples:
        images = [(image.name, image.stat().st_size) for image in example.images if isinstance(image, Path)]
        digest.update(json.dumps([example.example_id, example.question, images]).encode())
    return digest.hexdigest()[:16]


class PartFile:
    """The finished responses of a run that is not: `OUT.part`, a line of settings and then a line for each rollout.

    Raises InputError where the file is of other settings, is no such file, or is being written by another process.
    """

    def __init__(self, out: str | Path, settings: dict[str, Any]):
        self.path = Path(f"{out}.part")
        self.rows: dict[str, Rollout] = {}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("a+b", buffering=0)  # nothing is left to be written when a write has failed
        except OSError as error:
            raise InputError(f"{self.path}: it cannot be written ({error})") from None
        try:
            self._lock()
            self._read(settings)
        except InputError:
            self._file.close()
            raise

    def __enter__(self) -> PartFile:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.rows:
            self.path.unlink(missing_ok=True)  # no work is in it, and a mistyped policy would stay in the settings
        self._file.close()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # given back when the file is closed, or we die
        except OSError:
            raise InputError(f"{self.path}: another process writes it; wait for it, or give another --out") from None

    def _read(self, settings: dict[str, Any]) -> None:
        """Reads what is there and cuts off a last line that did not get whole; a file without rows is begun anew."""
        self._file.seek(0)
        content = self._file.read()
        *lines, torn = content.split(b"\n")
        if len(lines) < 2 and content[: len(_BEGINNING)] == _BEGINNING[: len(content)]:
            self._file.truncate(0)
            self._write({"part": FORMAT, "settings": settings})  # as _BEGINNING says
            return
        try:
            header = json.loads(lines[0])
            found = header["settings"] if header["part"] == FORMAT else None
            rows = [Rollout(**json.loads(line)) for line in lines[1:]]
        except (ValueError, LookupError, TypeError):
            raise InputError(f"{self.path} is no unfinished table of ours; remove it, or give another --out") from None
        _refuse_other(self.path, found or {}, settings)
        self.rows = {row.rollout_id: row for row in rows}
        if torn:
            self._file.truncate(self._file.tell() - len(torn))

    def add(self, rollout: Rollout) -> None:
        """Kept from here on, whatever ends the process."""
        self._write(dataclasses.asdict(rollout))
        self.rows[rollout.rollout_id] = rollout

    def _write(self, row: dict[str, Any]) -> None:
        try:
            line = json.dumps(row).encode() + b"\n"
            while line:
                line = line[self._file.write(line) :]
        except OSError as error:
            raise InputError(f"{self.path}: it cannot be written ({error}); the same command goes on") from None

    def finished(self, jobs: Iterable[Job]) -> list[Rollout]:
        """The rollouts that are there, in the order of the jobs."""
        return [self.rows[job.rollout_id] for job in jobs if job.rollout_id in self.rows]

    def remove(self) -> None:
        """Once the table is there."""
        self.path.unlink()


def _refuse_other(path: Path, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    differing = sorted(key for key in found.keys() | wanted.keys() if found.get(key) != wanted.get(key))
    if differing:
        what = ", ".join(f"{key} ({found.get(key)!r} there, {wanted.get(key)!r} now)" for key in differing)
        raise InputError(f"{path} was begun with other settings: {what}; give another --out, or remove it")


def roll_out(
    plan: Plan, examples: Sequence[Example], part: PartFile, open_backend: Callable[[str], Backend]
) -> list[tuple[Job, Refusal]]:
    """Samples what is missing in the part file; gives the jobs that have no response, and why. A policy is opened when
    its turn comes, and not at all where nothing of it is missing."""
    refused: list[tuple[Job, Refusal]] = []
    opened: tuple[str, Backend] | None = None
    for source, jobs in plan.groups(examples):
        known = sum(job.rollout_id in part.rows for job in jobs)
        if known == len(jobs):
            continue
        if opened is None or opened[0] != source:
            opened = None  # the last one's memory goes first
            opened = source, open_backend(source)
        what, own = f"sampling {jobs[0].policy}", {}
        with tqdm(total=len(jobs), initial=known, desc=what, unit="response", delay=1) as bar:
            opened[1].run(jobs, part.rows, partial(_keep, part, own, bar))
        refused += [(job, own[job.rollout_id]) for job in jobs if job.rollout_id in own]
    return refused


def _keep(part: PartFile, refused: dict[str, Refusal], bar: tqdm, job: Job, outcome: Response | Refusal) -> None:
    if isinstance(outcome, Refusal):
        refused[job.rollout_id] = outcome
        bar.set_postfix_str(f"{len(refused)} without a response", refresh=False)
    else:
        text = outcome.text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # no table takes half a pair
        finish = outcome.finish_reason
        part.add(Rollout(job.rollout_id, job.example.example_id, text, job.policy, job.index, finish))
    bar.update()
