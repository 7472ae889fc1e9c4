"""Sampled verdicts of a GRPO run: what one is, what many say, and the files that hold them.

In: verdicts of the judge beside the teacher's. Out: weighted figures, and under `in_loop/`, a row at a time, so that no
step waits for a long file:

    drawn.jsonl      what was drawn: step, weight, long, reward, and the judge's verdict
    samples.jsonl    the same with the teacher's verdict, as soon as it is there
    judge.jsonl  teacher.jsonl  rollouts.jsonl      the same as tables, which `claimwise agree` and `refresh` read
    escalated.jsonl  what the teacher was asked in the judge's place: step, and both verdicts; its rollouts are there too
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..verifier.rundir import write_atomic
from ..verifier.schema import SCHEMA_VERSION, Rollout, Verdict

Z = 1.959964  # of a 95% interval


@dataclass(frozen=True)
class Drawn:
    """A verdict of the judge that goes to the teacher. `weight` is one over its chance to be drawn; `long`: the response
    is longer than half of the step's; `reward` is the step's mean rubric reward, where known."""

    step: int
    weight: float
    judge: Verdict
    long: bool = False
    reward: float | None = None

    @property
    def key(self) -> tuple[int, str, str]:
        return self.step, *self.judge.key


@dataclass(frozen=True)
class Sample:
    """A verdict of the judge beside the teacher's; the rest as in `Drawn`."""

    step: int
    weight: float
    judge: Verdict
    teacher: Verdict
    long: bool = False
    reward: float | None = None

    @property
    def key(self) -> tuple[int, str, str]:
        return self.step, *self.judge.key


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


def agreement_interval(samples: Sequence[Sample]) -> tuple[float, float] | None:
    """Wilson's 95% interval of the weighted agreement, for display. A weighted sample counts as the smaller plain one of
    the same spread, (sum of w)^2 / sum of w^2 (Kish)."""
    weights = [s.weight for s in samples if s.teacher.verdict is not None]
    rate = weighted_agreement(samples)["agreement"]
    if rate is None:
        return None
    return wilson(rate, sum(weights) ** 2 / sum(w * w for w in weights))


def wilson(rate: float, count: float) -> tuple[float, float]:
    """Wilson's 95% interval of a rate among `count`, which need not be whole."""
    centre = (rate + Z * Z / (2 * count)) / (1 + Z * Z / count)
    half = Z / (1 + Z * Z / count) * (rate * (1 - rate) / count + (Z / (2 * count)) ** 2) ** 0.5
    return max(0.0, centre - half), min(1.0, centre + half)


class SampleFiles:
    """The files of a run's sampled verdicts."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._rollouts: set[str] = set()  # ids on file

    def read(self, before: float) -> tuple[list[Sample], list[Drawn], int]:
        """The samples of the steps before `before`, what was drawn in them and is still owed, and how many verdicts were
        escalated. The files are cut down to these: later steps are taken again. A last line that was cut off is left
        out."""
        drawn = [Drawn(**row) for row in self._rows("drawn.jsonl", ("judge",)) if row["step"] < before]
        samples = [Sample(**row) for row in self._rows("samples.jsonl", ("judge", "teacher")) if row["step"] < before]
        escalated = [row for row in _lines(self.folder / "escalated.jsonl") if row["step"] < before]
        answered = {sample.key for sample in samples}
        kept = {one.judge.rollout_id for one in drawn} | {row["judge"]["rollout_id"] for row in escalated}
        rollouts = [row for row in _lines(self.folder / "rollouts.jsonl") if row["rollout_id"] in kept]
        self._rollouts = {row["rollout_id"] for row in rollouts}
        if self.folder.is_dir():
            self.rewrite("drawn.jsonl", map(_row, drawn))
            self.rewrite("samples.jsonl", map(_row, samples))
            self.rewrite("judge.jsonl", (_table_row(sample.judge) for sample in samples))
            self.rewrite("teacher.jsonl", (_table_row(sample.teacher) for sample in samples))
            self.rewrite("rollouts.jsonl", rollouts)
            self.rewrite("escalated.jsonl", escalated)
        return samples, [one for one in drawn if one.key not in answered], len(escalated)

    def add_drawn(self, drawn: Sequence[Drawn], rollouts: Sequence[Rollout]) -> None:
        self.add_rollouts(rollouts)
        self.append("drawn.jsonl", map(_row, drawn))

    def add_rollouts(self, rollouts: Sequence[Rollout]) -> None:
        """Those that are not on file."""
        new = {r.rollout_id: r for r in rollouts if r.rollout_id not in self._rollouts}
        self._rollouts |= new.keys()
        self.append("rollouts.jsonl", map(_table_row, new.values()))

    def add_samples(self, samples: Sequence[Sample]) -> None:
        self.append("judge.jsonl", (_table_row(sample.judge) for sample in samples))
        self.append("teacher.jsonl", (_table_row(sample.teacher) for sample in samples))
        self.append("samples.jsonl", map(_row, samples))

    def append(self, name: str, rows: Iterable[dict[str, Any]]) -> None:
        text = _text(rows)
        if text:
            self.folder.mkdir(parents=True, exist_ok=True)
            with (self.folder / name).open("a", encoding="utf-8") as file:
                file.write(text)

    def rewrite(self, name: str, rows: Iterable[dict[str, Any]]) -> None:
        """The whole file, or none where there is no row."""
        text = _text(rows)
        if text:
            write_atomic(self.folder / name, text)
        else:
            (self.folder / name).unlink(missing_ok=True)

    def _rows(self, name: str, verdicts: Sequence[str]) -> list[dict[str, Any]]:
        rows = _lines(self.folder / name)
        return [{**row, **{side: Verdict(**row[side]) for side in verdicts}} for row in rows]


def _lines(path: Path) -> list[dict[str, Any]]:
    lines = path.read_text(encoding="utf-8").split("\n") if path.is_file() else [""]
    return [json.loads(line) for line in lines[:-1]]  # after the last line break there is nothing, or a broken row


def _row(one: Drawn | Sample) -> dict[str, Any]:
    return {key: vars(value) if isinstance(value, Verdict) else value for key, value in vars(one).items()}


def _table_row(row: Verdict | Rollout) -> dict[str, Any]:
    return {"schema_version": SCHEMA_VERSION, **vars(row)}


def _text(rows: Iterable[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)
