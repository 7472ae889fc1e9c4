"""The verifier watched while it trains a policy: a sample of its verdicts goes to the teacher.

In: each step's verdicts. Out: rolling agreement and kappa, and `samples.jsonl`, a line per sampled verdict with its
weight. The sample is drawn by verdict (half yes, half no as far as they go), so overall rates weigh each sampled
verdict by the inverse of its chance to be drawn. The teacher answers in the background. A run that is gone on with
keeps the samples of the steps before the one that it starts from.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ..verifier.rundir import write_atomic
from ..verifier.schema import Example, Judge, Rollout, Verdict

Judged = tuple[Example, Rollout, Verdict]


@dataclass(frozen=True)
class Sample:
    """A verdict of the judge beside the teacher's. `weight` is one over its chance to be drawn."""

    step: int
    weight: float
    judge: Verdict
    teacher: Verdict


def draw(judged: Sequence[Judged], count: int, rng: random.Random) -> list[tuple[Judged, float]]:
    """Up to `count` known verdicts, half of them yes and half no as far as they go, each with its weight."""
    strata = [[j for j in judged if j[2].verdict is answer] for answer in (True, False)]
    quota = [min(len(strata[0]), (count + 1) // 2), 0]
    quota[1] = min(len(strata[1]), count - quota[0])
    quota[0] = min(len(strata[0]), count - quota[1])
    return [
        (drawn, len(stratum) / size)
        for stratum, size in zip(strata, quota, strict=True)
        for drawn in rng.sample(stratum, size)
    ]


def weighted_agreement(samples: Sequence[Sample]) -> dict[str, float | None]:
    """Agreement and Cohen's kappa over the known pairs, weighted; None where they are not defined."""
    cell = {(a, b): 0.0 for a in (True, False) for b in (True, False)}
    for s in samples:
        if s.teacher.verdict is not None:
            cell[s.teacher.verdict, bool(s.judge.verdict)] += s.weight
    total = sum(cell.values())
    if not total:
        return {"agreement": None, "kappa": None}
    agreement = (cell[True, True] + cell[False, False]) / total
    yes_a, yes_b = (cell[True, True] + cell[True, False]) / total, (cell[True, True] + cell[False, True]) / total
    chance = yes_a * yes_b + (1 - yes_a) * (1 - yes_b)
    return {"agreement": agreement, "kappa": (agreement - chance) / (1 - chance) if chance < 1 - 1e-12 else None}


class InLoopAgreement:
    """Draws from each step, asks the teacher in the background, keeps and writes what comes back."""

    def __init__(self, teacher: Judge, per_step: int, folder: Path, seed: int, window: int = 10):
        self.teacher, self.per_step, self.window, self.seed = teacher, per_step, window, seed
        self.path = folder / "samples.jsonl"
        self.samples = _read(self.path)
        self._started = False
        self._pool = ThreadPoolExecutor(1)
        self._pending: list[tuple[int, list[tuple[Judged, float]], Future]] = []

    def observe(self, step: int, judged: Sequence[Judged]) -> dict[str, float]:
        """Samples a step's verdicts and returns the rolling figures of what the teacher has answered so far."""
        if not self._started:
            self._start(step)
        drawn = draw(judged, self.per_step, random.Random(f"{self.seed}-{step}"))
        future = self._pool.submit(self._ask, [judged for judged, _ in drawn])
        self._pending.append((step, drawn, future))
        self.collect(wait=False)
        recent = [s for s in self.samples if s.step > step - self.window]
        figures = weighted_agreement(recent)
        return {f"judge/{key}": value for key, value in figures.items() if value is not None}

    def _start(self, step: int) -> None:
        """Forgets the samples of steps that are taken again after an interruption."""
        self._started = True
        self.samples = [sample for sample in self.samples if sample.step < step]
        if self.path.is_file():
            write_atomic(self.path, "".join(map(_line, self.samples)))

    def _ask(self, drawn: Sequence[Judged]) -> list[Verdict]:
        verdicts = []
        for example, rollout, verdict in drawn:
            criterion = next(c for c in example.criteria if c.id == verdict.criterion_id)
            verdicts += self.teacher.judge([(replace(example, criteria=(criterion,)), rollout)])
        return verdicts

    def collect(self, wait: bool) -> None:
        """Takes in what the teacher has answered; `wait` for all of it. A teacher's failure is raised here."""
        while self._pending and (wait or self._pending[0][2].done()):
            step, drawn, future = self._pending.pop(0)
            fresh = [
                Sample(step, weight, judged[2], teacher)
                for (judged, weight), teacher in zip(drawn, future.result(), strict=True)
            ]
            self.samples += fresh
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a") as file:
                file.writelines(map(_line, fresh))

    def close(self) -> dict[str, float | int | None]:
        """Waits for the teacher; overall weighted figures and the number of sampled verdicts."""
        try:
            self.collect(wait=True)
        finally:
            self._pool.shutdown(cancel_futures=True)
        return {**weighted_agreement(self.samples), "sampled": len(self.samples)}


def _line(sample: Sample) -> str:
    return json.dumps(asdict(sample)) + "\n"


def _read(path: Path) -> list[Sample]:
    """The samples of an earlier start; a last line that was cut off is left out."""
    lines = path.read_text().splitlines(keepends=True) if path.is_file() else []
    rows = [json.loads(line) for line in lines if line.endswith("\n")]
    return [Sample(r["step"], r["weight"], Verdict(**r["judge"]), Verdict(**r["teacher"])) for r in rows]
