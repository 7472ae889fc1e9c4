"""The folder of a quickstart, read for its report and checked; and what the folders of other runs are read with.

In: the folder of a run. Out: `RunFolder`. `summary.json` must be there; of the other files each may be missing, and the
report then says so in place of that section. What is there but cannot be used is one InputError that names file and
key.

    summary.json   verdicts/{gold-image,gold-text,image,text,base}.jsonl   heldout/{examples,rollouts}.parquet
    policy/log.jsonl   policy/in_loop/samples.jsonl   credit.json (see `report_credit`)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..verifier.columns import VERDICTS, checked_values
from ..verifier.errors import InputError
from ..verifier.schema import Example, Rollout, Verdict
from ..verifier.tables import read_examples, read_rollouts, read_verdicts
from .report_credit import Credit, parse_credit

LARGEST = 2.0**1023  # a whole number in JSON may exceed what a float holds
TABLES = ("gold-image", "gold-text", "image", "text", "base")


@dataclass(frozen=True)
class SampledPair:
    """A verdict of the judge while it trained the policy, beside the teacher's. `weight`: one over its chance to be
    drawn."""

    step: int
    weight: float
    judge: Verdict
    teacher: Verdict


@dataclass(frozen=True)
class RunFolder:
    path: Path
    summary: dict[str, Any]
    verdicts: dict[str, list[Verdict]]  # by name of `TABLES`, those that exist
    examples: dict[str, Example]  # by id, like the rollouts; empty where the tables do not exist
    rollouts: dict[str, Rollout]
    log: list[dict[str, Any]]  # by step, each step once
    samples: list[SampledPair]
    credit: Credit | None

    def figure(self, *keys: str) -> float | None:
        """A number of the summary, or None where it is null or absent. InputError where it is anything else."""
        value: Any = self.summary
        for depth, key in enumerate(keys):
            if not isinstance(value, dict):
                raise self._bad(keys[:depth], value, "an object or null")
            value = value.get(key)
            if value is None:
                return None
        if not is_number(value):
            raise self._bad(keys, value, "a finite number or null")
        return float(value)

    def interval(self, *keys: str) -> list[float] | None:
        """The two ends of an interval of the summary, None where it is absent or of no use."""
        value: Any = self.summary
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        known = isinstance(value, list) and len(value) == 2 and all(map(is_number, value))
        return [float(end) for end in value] if known else None

    def entries(self, key: str) -> dict[str, Any]:
        """An object of the summary, such as "versions"; empty where it is null or absent."""
        value = self.summary.get(key)
        if not isinstance(value, dict | None):
            raise self._bad((key,), value, "an object or null")
        return value or {}

    def table_path(self, name: str) -> Path:
        return table_path(self.path, name)

    def _bad(self, keys: tuple[str, ...], value: object, wanted: str) -> InputError:
        return InputError(f"{self.path / 'summary.json'}: key {'.'.join(keys)!r} is {value!r}; it must be {wanted}")


def read_run(run: Path) -> RunFolder:
    summary = read_object(run / "summary.json", "claimwise quickstart")
    examples, rollouts = run / "heldout/examples.parquet", run / "heldout/rollouts.parquet"
    credit = run / "credit.json"
    data = RunFolder(
        path=run,
        summary=summary,
        verdicts={name: read_verdicts(path) for name in TABLES if (path := table_path(run, name)).exists()},
        examples={e.example_id: e for e in read_examples(examples)} if examples.exists() else {},
        rollouts={r.rollout_id: r for r in read_rollouts(rollouts)} if rollouts.exists() else {},
        log=read_log(run / "policy/log.jsonl"),
        samples=list(read_samples(run / "policy/in_loop/samples.jsonl")),
        credit=parse_credit(read_json(credit), credit) if credit.exists() else None,
    )
    for name, verdicts in data.verdicts.items():
        check_spans(table_path(run, name), verdicts, data.rollouts, "heldout/rollouts.parquet")
    return data


def check_spans(path: Path, verdicts: Iterable[Verdict], rollouts: Mapping[str, Rollout], table: str) -> None:
    """Refuses a span outside its response. `table`: how the error calls the rollouts."""
    for verdict in verdicts:
        rollout = rollouts.get(verdict.rollout_id)
        if rollout and verdict.span and verdict.span[1] > len(rollout.response):
            raise InputError(
                f"{path}: the span {verdict.span[0]}..{verdict.span[1]} of criterion {verdict.criterion_id!r} lies "
                f"outside rollout {verdict.rollout_id!r}, which has {len(rollout.response)} characters; {table} must be "
                "the one that was judged"
            )


def table_path(run: Path, name: str) -> Path:
    return run / "verdicts" / f"{name}.jsonl"


def series(log: Sequence[Mapping[str, Any]], key: str) -> list[tuple[int, float]]:
    """(step, value) where a row of the log has a finite number; a step without one is left out."""
    return [(row["step"], float(row[key])) for row in log if is_number(row.get(key))]


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST  # NaN is not less


def read_log(path: Path) -> list[dict[str, Any]]:
    by_step: dict[int, dict[str, Any]] = {}
    for number, row in json_lines(path):
        if type(row.get("step")) is not int:
            raise InputError(f"{path}, row {number}: key 'step' is {row.get('step')!r}; it must be a whole number")
        by_step[row["step"]] = {**by_step.get(row["step"], {}), **row}  # an evaluation's row, or a step taken again
    return [by_step[step] for step in sorted(by_step)]


def read_history(folder: Path) -> list[dict[str, Any]]:
    """The log of a training run; of one that is not finished, what its last checkpoint has."""
    if (folder / "log.jsonl").exists():
        return read_log(folder / "log.jsonl")
    states = list(folder.glob("checkpoint-*/trainer_state.json"))
    if not states:
        return []
    last = max(states, key=lambda path: (len(path.parent.name), path.parent.name))
    rows: dict[int, dict[str, Any]] = {}
    for row in read_object(last, "the trainer").get("log_history", []):
        rows[row["step"]] = {**rows.get(row["step"], {}), **row}
    return [rows[step] for step in sorted(rows)]


def read_samples(path: Path) -> Iterator[SampledPair]:
    for number, row in json_lines(path):
        try:
            if type(row.get("step")) is not int or not is_number(row.get("weight")) or row["weight"] <= 0:
                raise InputError("it needs 'step', a whole number, and 'weight', a positive number")
            pair = [_verdict(row, side) for side in ("judge", "teacher")]
        except InputError as error:
            raise InputError(f"{path}, row {number}: {error}") from None
        yield SampledPair(row["step"], float(row["weight"]), *pair)


def _verdict(row: dict[str, Any], side: str) -> Verdict:
    if not isinstance(row.get(side), dict):
        raise InputError(f"key {side!r} is {row.get(side)!r}; it must be a verdict row")
    return Verdict(**checked_values(row[side], VERDICTS))


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Numbered objects of a JSONL file, none where there is no file."""
    if not path.exists():
        return
    for number, line in enumerate(_text(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = _loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}, row {number}: it is not JSON ({error}); give one object a line") from None
        if not isinstance(row, dict):
            raise InputError(f"{path}, row {number}: it is no object; give one object a line")
        yield number, row


def read_object(path: Path, maker: str) -> dict[str, Any]:
    """A JSON object that `maker` writes."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise InputError(f"{path}: it is no object; {maker} writes it")
    return value


def read_json(path: Path) -> Any:
    try:
        return _loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: it is not JSON ({error})") from None


def _loads(text: str) -> Any:
    """NaN and Infinity, which Python's json writes for a figure without a basis, are null."""
    return json.loads(text, parse_constant=lambda _: None)


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: it cannot be read ({error})") from None
