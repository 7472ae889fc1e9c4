"""The tables of a study: means, paired contrasts at equal steps (where policies are trained at equal KL too), and in
words what is shown and what not.

In: the settings and the results of the finished runs. Out: `study.json` (everything) and `study.md` (tables to quote).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from ...eval.paired import CONFIDENCE, Difference, at_level, compare, in_words, with_holm
from ...eval.report_study import rates_differ
from ...verifier.rundir import write_atomic
from .settings import numbers

Results = Mapping[str, Mapping[int, Mapping[str, Any]]]  # cell key -> seed -> result of the run
KL = "kl"
Values = dict[str, dict[int, dict[str, float | None]]]  # value of what is compared -> seed -> outcome


class Design(Protocol):
    """What the settings of a study say of its tables; they are a dataclass."""

    compare: str  # the field of a cell whose values the contrasts name
    metrics: list[str]
    contrasts: list[str]
    seeds: str
    evaluate_at: list[int]
    report_at: list[int]

    @property
    def beside(self) -> Sequence[str]:
        """What is told beside the metrics and not compared; `kl` asks for the table at equal KL."""
        ...

    @property
    def lead(self) -> str:
        """What a run is and what it is measured on."""
        ...

    def cells(self) -> Sequence[Any]: ...

    def pairs(self) -> Sequence[tuple[str, str]]: ...


def write_study(settings: Design, out: Path, results: Results, rates: Mapping[str, float]) -> str:
    """Writes both files; returns the text of `study.md`."""
    study = tabulate(settings, results, rates)
    write_atomic(out / "study.json", json.dumps(study, indent=1, allow_nan=False) + "\n")
    page = as_markdown(settings, study)
    write_atomic(out / "study.md", page)
    return page


def tabulate(settings: Design, results: Results, rates: Mapping[str, float]) -> dict[str, Any]:
    tables: dict[str, list[Any]] = {}
    for cell in settings.cells():
        tables.setdefault(cell.table(settings.compare), []).append(cell)
    seconds = [run["seconds"] for runs in results.values() for run in runs.values()]
    return {
        "settings": asdict(settings),  # pyright: ignore[reportArgumentType]
        "lead": settings.lead,
        "learning_rates": dict(rates),
        "finished": len(seconds),
        "planned": len(settings.cells()) * len(numbers(settings.seeds)),
        "seconds_a_run": round(sum(seconds) / len(seconds), 1) if seconds else None,
        "tables": [
            table
            for name, cells in tables.items()
            if any(results[cell.key] for cell in cells)
            for table in _tables_of(settings, name, cells, results)
        ],
        "curves": {
            name: {
                getattr(cell, settings.compare): _curve(settings, list(results[cell.key].values())) for cell in cells
            }
            for name, cells in tables.items()
        },
    }


def _tables_of(settings: Design, name: str, cells: Sequence[Any], results: Results) -> list[dict[str, Any]]:
    """A table for each step of `report_at`, and one at the KL that every run of the table came to, where there is one."""
    compared, metrics = settings.compare, settings.metrics
    points = {
        getattr(cell, compared): {seed: run["points"] for seed, run in results[cell.key].items()} for cell in cells
    }
    tables = []
    for step in settings.report_at:
        at = settings.evaluate_at.index(step)
        reached = {value: {seed: rows[at] for seed, rows in runs.items()} for value, runs in points.items()}
        tables.append(_table(settings, name, f"step {step}", reached, [*metrics, *settings.beside]))
    if KL not in settings.beside:
        return tables
    level = min(max(row[KL] for row in rows) for runs in points.values() for rows in runs.values())
    equal = {
        value: {seed: {m: _at_kl(level, rows, m) for m in metrics} for seed, rows in runs.items()}
        for value, runs in points.items()
    }
    return [*tables, _table(settings, name, f"KL {level:.2f}", equal, metrics)]


def _at_kl(level: float, rows: Sequence[Mapping[str, Any]], metric: str) -> float | None:
    known = [row for row in rows if row[metric] is not None]
    return at_level(level, [row[KL] for row in known], [row[metric] for row in known])


def _table(settings: Design, name: str, when: str, values: Values, shown: Sequence[str]) -> dict[str, Any]:
    """Holm's correction is over all contrasts and outcomes of the table."""
    differences = {
        (f"{a} - {b}", metric): _paired(values[a], values[b], metric)
        for a, b in settings.pairs()
        for metric in settings.metrics
    }
    corrected = with_holm(differences)
    contrasts = {
        contrast: {metric: corrected[contrast, metric] for metric in settings.metrics}
        for contrast in settings.contrasts
    }
    return {
        "table": name,
        "at": when,
        "means": {
            value: {m: _mean([row[m] for row in rows.values()]) for m in shown} for value, rows in values.items()
        },
        "seeds": {value: len(rows) for value, rows in values.items()},
        "contrasts": {c: {m: asdict(d) for m, d in row.items()} for c, row in contrasts.items()},
        "compared": sum(d.p is not None for d in corrected.values()),
        "words": [in_words(contrast, row) for contrast, row in contrasts.items()],
    }


def _paired(a: Mapping[int, Mapping], b: Mapping[int, Mapping], metric: str) -> Difference:
    seeds = sorted(a.keys() & b.keys())
    return compare([a[seed][metric] for seed in seeds], [b[seed][metric] for seed in seeds])


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _curve(settings: Design, runs: Sequence[Mapping[str, Any]]) -> dict[str, list[float | None]]:
    """Means over seeds at each evaluation."""
    names = [*settings.metrics, *settings.beside]
    return {n: [_mean([run["points"][i][n] for run in runs]) for i in range(len(settings.evaluate_at))] for n in names}


def as_markdown(settings: Design, study: Mapping[str, Any]) -> str:
    lines = [
        f"{study['finished']} of {study['planned']} runs. {settings.lead} Differences are paired over seeds, with "
        f"{CONFIDENCE:.0%} intervals (Student's t); * p < 0.05 after Holm's correction over the whole table. Without * "
        "nothing is shown: the interval says how large a difference might still be.",
        "",
    ]
    for table in study["tables"]:
        lines += _markdown_table(settings, table)
    rates = sorted(study["learning_rates"].items())
    if rates:
        told = "Learning rates: " + ", ".join(f"{key} {rate:g}" for key, rate in rates) + "."
        lines += [" ".join([told, *rates_differ(study["learning_rates"].values())])]
    return "\n".join(lines) + "\n"


def _markdown_table(settings: Design, table: Mapping[str, Any]) -> list[str]:
    seeds = sorted(set(table["seeds"].values()))
    count = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    names = list(next(iter(table["means"].values())))
    means = [[value, *(_number(row[name]) for name in names)] for value, row in table["means"].items()]
    contrasts = [
        [contrast, *(_difference(row[metric]) for metric in settings.metrics)]
        for contrast, row in table["contrasts"].items()
    ]
    return [
        f"### {table['table']}, at {table['at']} ({count} seeds)",
        "",
        *_rows([settings.compare, *names], means),
        "",
        *_rows(["contrast", *settings.metrics], contrasts),
        "",
        *(f"- {sentence}" for sentence in table["words"]),
        "",
    ]


def _rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _difference(row: Mapping[str, Any]) -> str:
    if row["mean"] is None:
        return "-"
    if row["low"] is None:
        return f"{row['mean']:+.3f} (one seed)"
    star = "*" if row["p_holm"] is not None and row["p_holm"] < 0.05 else ""
    return f"{row['mean']:+.3f}{star} ({row['low']:+.3f} to {row['high']:+.3f})"
