"""Result files of VLMEvalKit and lmms-eval, read back into one table.

In: files, or folders that are searched. Out: `Found`: scores in percent by column (model and harness) and benchmark, and
the files that gave none, with the reason. The layouts, and what writes them:

    {model}_{task}_acc.csv                   `dump` of vlmeval/smp/file.py, all cells quoted, called by `evaluate` of
    {model}_{task}_{judge}_acc.csv           the dataset's class: ImageMCQDataset (columns of report_acc), CharXiv,
    {model}_{task}[_{judge}]_score.csv       MathVision (MATH_V_acc), MathVerse (MathVerse_acc), Dynamath, WeMath
                                             (cells such as "41.90%"), LogicVista (evaluate_logicvista), HallusionBench
                                             (Hallusion_rating)
    {date}_results.json                      EvaluationTracker.save_results_aggregated of
                                             lmms_eval/loggers/evaluation_tracker.py: {"results": {task: {"metric,filter":
                                             value}}, "model_name": ...}
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..verifier.errors import InputError
from ..verifier.text import clean
from .benchmark_tasks import ALIKE, BENCHMARKS, GROUPS, TITLES, Benchmark, Task

PATTERNS = ("*_acc.csv", "*_score.csv", "*results.json")
COPY = "_cotpost"  # VLMEvalKit's COT tasks leave their table twice


Wanted = tuple[Benchmark, Task, str]  # the last is the task's name in the file


class Unreadable(Exception):
    """Why a file gives no score."""


@dataclass(frozen=True)
class Opened:
    """A file: its column, what can be read there, where the values of a task stand, and tasks that are not known here."""

    column: str
    wanted: list[Wanted]
    values_of: Callable[[Task, str], Mapping[str, Any]]
    others: Sequence[str] = ()


@dataclass
class Found:
    """`scores`: column -> benchmark -> (percent, task's name, file). `unread`: file -> why it gave nothing."""

    scores: dict[str, dict[str, tuple[float, str, Path]]] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)

    def add(self, column: str, benchmark: Benchmark, score: float, name: str, path: Path) -> None:
        own = self.scores.setdefault(column, {})
        known = own.get(benchmark.name)
        if known is not None and abs(known[0] - score) > 1e-9:
            raise InputError(
                f"{known[2]} and {path} both have {benchmark.name} of {column}, {known[0]:.2f} and {score:.2f}; give the "
                "results of one run"
            )
        own[benchmark.name] = known or (score, name, path)


def read_results(paths: Sequence[Path]) -> Found:
    """Raises InputError for a path that is not there, for two results of one thing, and where nothing can be read."""
    found = Found()
    for path in _files(paths):
        try:
            opened = _open(path)
        except Unreadable as reason:
            found.unread[str(path)] = str(reason)
            continue
        for benchmark, task, name in opened.wanted:
            try:
                found.add(opened.column, benchmark, _score(opened.values_of(task, name), task), name, path)
            except Unreadable as reason:
                found.unread[f"{path} ({benchmark.name})"] = str(reason)
        found.unread |= {f"{path} ({name})": "no task of these benchmarks" for name in opened.others}
    if not found.scores:
        reasons = "; ".join(f"{path}: {why}" for path, why in list(found.unread.items())[:3])
        raise InputError(
            f"no score can be read from {', '.join(map(str, paths))}" + (f" ({reasons})" if reasons else "")
        )
    return found


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    """Each file once. Of files of one name the upper one counts: VLMEvalKit links to its last run from above the runs."""
    seen, kept = set(), list[Path]()
    for path in paths:
        if not path.exists():
            raise InputError(f"{path}: there is no such file or folder; give a harness's results")
        inside = [file for pattern in PATTERNS for file in path.rglob(pattern)] if path.is_dir() else [path]
        for file in sorted(inside, key=lambda file: (len(file.parts), file)):
            below = any(file.name == other.name and other.parent in file.parents for other in kept)
            if file.resolve() not in seen and not below:
                seen.add(file.resolve())
                kept.append(file)
    yield from kept


def _open(path: Path) -> Opened:
    if path.suffix == ".json":
        return _open_lmms_eval(path)
    if path.suffix == ".csv":
        return _open_vlmevalkit(path)
    raise Unreadable("no result is called so: VLMEvalKit's end in _acc.csv or _score.csv, lmms-eval's in _results.json")


def _tasks(harness: str) -> list[Wanted]:
    found = [(b, task) for b in BENCHMARKS if (task := b.task(harness)) is not None]
    return [(b, one, name) for b, task in found for one in (task, *task.also) for name in one.names]


def _open_vlmevalkit(path: Path) -> Opened:
    stem = path.stem.replace(COPY, "")
    named = [wanted for wanted in _tasks("vlmevalkit") if f"_{wanted[2]}_" in stem]
    alike = next((name for name in ALIKE if f"_{name}_" in stem), None)
    if alike or not named or not stem.endswith(("_acc", "_score")):
        raise Unreadable(f"no task of these benchmarks is in its name{f', but {alike}' if alike else ''}")
    longest = max((name for *_, name in named), key=len)  # MathVerse_MINI is in MathVerse_MINI_Vision_Only
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, ValueError, csv.Error) as error:
        raise Unreadable(f"it cannot be read ({error})") from None
    column = f"{clean(stem[: stem.rindex(f'_{longest}_')])} ({TITLES['vlmevalkit']})"
    return Opened(column, [wanted for wanted in named if wanted[2] == longest], lambda task, _: _row(task, rows))


def _open_lmms_eval(path: Path) -> Opened:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        model = content.get("model_name") or content.get("model_source") or path.parent.name
        values = {task: _metrics(own) for task, own in content["results"].items()}
    except (OSError, ValueError, LookupError, AttributeError, TypeError, RecursionError) as error:
        raise Unreadable(f"it is no result of lmms-eval ({error})") from None
    named = [wanted for wanted in _tasks("lmms-eval") if wanted[2] in values]
    if not named:
        raise Unreadable(f"no task of these benchmarks is in it, but {', '.join(values) or 'nothing'}")
    others = [task for task in values if task not in {name for *_, name in named}]
    return Opened(f"{clean(str(model))} ({TITLES['lmms-eval']})", named, lambda _, name: values[name], others)


def _metrics(values: Mapping[str, Any]) -> dict[str, Any]:
    """metric -> value, standard errors under names of their own; of several filters the first."""
    out: dict[str, Any] = {}
    for key, value in values.items():
        out.setdefault(key.partition(",")[0], value)
    return out


def _row(task: Task, rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The row that the score stands in: the one that says so, else an only one of data without such splits."""
    if task.row is None:
        found = rows
    else:
        column, said = task.row
        found = [row for row in rows if row.get(column) == said]
        if not found and len(rows) == 1 and rows[0].get(column) in (None, "none"):
            found = rows
    if len(found) != 1:
        where = f" with {task.row[1]!r} under {task.row[0]!r}" if task.row else ""
        raise Unreadable(f"of its {len(rows)} rows, {len(found)} could hold the score{where}")
    return found[0]


def _score(values: Mapping[str, Any], task: Task) -> float:
    """In percent. A cell may be a number or "41.90%"; a score out of 0..100 is another layout, and refused. So is one of
    1% or less, but for 0, where percents stand: it is a share."""
    numbers = []
    for name in task.values:
        try:
            numbers.append(float(str(values[name]).strip().removesuffix("%")))
        except (LookupError, ValueError):
            raise Unreadable(f"it has no number under {name!r}, but {values.get(name)!r}") from None
    score = task.to_percent * sum(numbers) / len(numbers)
    if not (math.isfinite(score) and 0 <= score <= 100 + 1e-9):
        raise Unreadable(f"{' and '.join(task.values)} give {score:g}%; that is another layout than the one known here")
    if task.to_percent == 1 and 0 < max(numbers) <= 1:
        raise Unreadable(f"{' and '.join(task.values)} give {score:g}%; percents should stand there, not shares")
    return score


def averages(scores: Mapping[str, tuple[float, str, Path]]) -> dict[str, tuple[float | None, int, int]]:
    """Per group (the mean, or None where a benchmark is missing; how many are there; how many there should be)."""
    out = {}
    for group in GROUPS:
        wanted = [benchmark.name for benchmark in BENCHMARKS if benchmark.group == group]
        there = [scores[name][0] for name in wanted if name in scores]
        out[group] = (sum(there) / len(there) if len(there) == len(wanted) else None, len(there), len(wanted))
    return out
