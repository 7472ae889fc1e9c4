"""One run of sampling: several policies and temperatures in one table, in an order and with seeds that do not depend on
interruptions.

    with open_part("rollouts.parquet", plan, examples) as part:
        refused = roll_out(plan, examples, part, open_backend)
        write_rollouts("rollouts.parquet", finished(part, plan.jobs(examples)))
        part.remove()

Each finished response is a line of `rollouts.parquet.part` before the next is waited for. The same command reads it and
asks for the rest.
"""

from __future__ import annotations

import dataclasses
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
from ..verifier.image_digest import stored_digest
from ..verifier.part_file import PartFile
from ..verifier.schema import Example, Rollout
from .rollout_backends import Backend, Job, Refusal, Response


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
        weights = [_weights(Path(source)) for source, _ in self.policies]
        told = {**dataclasses.asdict(self), "weights": weights, "examples": _digest(examples)}
        return json.loads(json.dumps(told))

    def groups(self, examples: Sequence[Example]) -> Iterator[tuple[str, list[Job]]]:
        """(source, jobs) of every policy and temperature, in the order of the table."""
        for source, name in self.policies:
            for temperature in self.temperatures:
                label = f"{name}@{temperature:g}" if len(self.temperatures) > 1 else name
                jobs = [Job(e, label, i, temperature, self.seed) for e in examples for i in range(self.samples)]
                yield source, jobs

    def jobs(self, examples: Sequence[Example]) -> list[Job]:
        return [job for _, jobs in self.groups(examples) for job in jobs]


def _weights(folder: Path) -> str:
    """What changes whenever somebody writes a policy's weights anew; to read them all would take as long as to load
    them."""
    files = [(file.name, file.stat()) for file in sorted(folder.glob("*.safetensors"))]
    about = repr([(name, found.st_size, found.st_mtime_ns) for name, found in files])
    return hashlib.sha256(about.encode()).hexdigest()[:16] if files else ""


def _digest(examples: Sequence[Example]) -> str:
    """Identifies what the policies are asked: ids, questions and images."""
    digest = hashlib.sha256()
    for example in examples:
        images = [stored_digest(image) for image in example.images]
        digest.update(json.dumps([example.example_id, example.question, images]).encode())
    return digest.hexdigest()[:16]


def open_part(out: str | Path, plan: Plan, examples: Sequence[Example]) -> PartFile[Rollout]:
    return PartFile(out, plan.settings(examples), Rollout, "rollout_id")


def finished(part: PartFile[Rollout], jobs: Iterable[Job]) -> list[Rollout]:
    """The rollouts that are there, in the order of the jobs."""
    return [part.rows[job.rollout_id] for job in jobs if job.rollout_id in part.rows]


def roll_out(
    plan: Plan, examples: Sequence[Example], part: PartFile[Rollout], open_backend: Callable[[str], Backend]
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


def _keep(
    part: PartFile[Rollout], refused: dict[str, Refusal], bar: tqdm, job: Job, outcome: Response | Refusal
) -> None:
    if isinstance(outcome, Refusal):
        refused[job.rollout_id] = outcome
        bar.set_postfix_str(f"{len(refused)} without a response", refresh=False)
    else:
        text = outcome.text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # no table takes half a pair
        finish = outcome.finish_reason
        part.add(Rollout(job.rollout_id, job.example.example_id, text, job.policy, job.index, finish))
    bar.update()
