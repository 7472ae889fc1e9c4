"""The report of a distillation: loss and validation curves, agreement with the teacher, reliability, confusion.

In: the output folder of `claimwise distill`. Out: `Report`. `metrics.json` must be there; what else is missing is said in
its place.

    metrics.json  run.json  log.jsonl (else the last checkpoint's)  validation.jsonl  validation_teacher.jsonl
    before.jsonl (of a verifier that was trained on: its verdicts before)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..verifier.errors import InputError
from ..verifier.schema import GROUPS, Verdict
from ..verifier.tables import read_verdicts
from . import plots, report_figures
from .agreement import agree
from .report_blocks import Block, Cell, Columns, Drawing, Heading, Report, Section, Table, Text, cells, percent, share
from .report_cases import NOT_ATTACKED, confusion_table, reliability_block
from .report_data import is_number, read_history, read_object, series

FIGURES = {
    "agreement": "Agreement",
    "balanced_accuracy": "Balanced accuracy",
    "kappa": "Cohen’s kappa",
    "ac1": "Gwet’s AC1",
    "false_yes": "False yes",
    "false_no": "False no",
    "auroc": "AUROC",
    "ece": "Calibration error (ECE)",
    "span_exact": "Span exact",
}
OWN, TEACHER, BEFORE = "validation.jsonl", "validation_teacher.jsonl", "before.jsonl"


def distill_report(folder: Path) -> Report:
    metrics = read_object(folder / "metrics.json", "claimwise distill")
    settings = read_object(folder / "run.json", "claimwise distill") if (folder / "run.json").exists() else {}
    log = read_history(folder)
    tables = {name: read_verdicts(folder / name) for name in (OWN, TEACHER, BEFORE) if (folder / name).exists()}
    judges = {name: tables[key] for name, key in (("verifier", OWN), ("before", BEFORE)) if key in tables}
    counts = {name: report_figures.confusion(tables[TEACHER], own) for name, own in judges.items() if TEACHER in tables}
    sections = [
        Section("agreement", "Agreement with the teacher", _agreement(folder, metrics, tables)),
        Section("reliability", "Reliability and confusion", _reliability(tables, judges, counts)),
        Section("training", "Training", _training(log)),
        Section("made", "How it was made", [_settings(settings)]),
    ]
    figures = {"metrics": metrics, "settings": settings, "confusion": counts, "log": log}
    return Report(folder.resolve().name, "distillation", _lead(metrics, settings), sections, figures)


def _figure(folder: Path, figures: dict[str, Any], key: str) -> Cell:
    value, interval = figures.get(key), figures.get(f"{key}_ci")
    if not (value is None or is_number(value)) or not isinstance(interval, list | None):
        raise InputError(f"{folder / 'metrics.json'}: key {key!r} is {value!r}; it must be a number or null")
    return share(value, interval)


def _lead(metrics: dict[str, Any], settings: dict[str, Any]) -> str:
    mode = f" in {settings['mode']} mode" if settings.get("mode") else ""
    lead = f"A verifier{mode}, distilled from {metrics.get('teacher') or 'a teacher'}"
    if is_number(metrics.get("agreement")):
        lead += f": they agree on {percent(metrics['agreement'])} of {metrics.get('n')} verdicts on held-out rollouts"
    return lead + "."


def _agreement(folder: Path, metrics: dict[str, Any], tables: dict[str, list[Verdict]]) -> list[Block]:
    groups = metrics.get("by_dimension") or {}
    named = [group for group in (*GROUPS, "other") if group in groups]
    columns = {"all": metrics, **{group: groups[group] for group in named}}
    before = {}
    if BEFORE in tables and TEACHER in tables:
        before = agree(tables[TEACHER], tables[BEFORE], names=(str(folder / TEACHER), str(folder / BEFORE)))["overall"]
        columns["all, before"] = before
    rows = [[Cell("Verdicts"), *cells(*(figures.get("n", "–") for figures in columns.values()))]]
    rows += [
        [Cell(name), *(_figure(folder, figures, key) for figures in columns.values())] for key, name in FIGURES.items()
    ]
    temperature = metrics.get("temperature")
    caption = "The verifier against the teacher on the validation rollouts. Brackets: 95%, bootstrapped over examples."
    return [
        Table(caption, ["Figure", *columns], rows, wide=True),
        Text(
            f"{metrics.get('missing_a', 0)} of the teacher’s verdicts and {metrics.get('missing_b', 0)} of the "
            "verifier’s are missing; they are never scored."
            + (f" P(yes) is at temperature {temperature:.2f}, fitted on these rollouts." if temperature else ""),
            "soft",
        ),
        Text(NOT_ATTACKED, "absent"),
    ]


def _reliability(
    tables: dict[str, list[Verdict]], judges: dict[str, list[Verdict]], counts: dict[str, dict[str, dict[str, int]]]
) -> list[Block]:
    if TEACHER not in tables or OWN not in tables:
        return [
            Text(f"{TEACHER} or {OWN} is not in this folder, so neither reliability nor confusion is shown.", "absent")
        ]
    bins = {name: report_figures.reliability(tables[TEACHER], own) for name, own in judges.items()}
    bins = {name: values for name, values in bins.items() if values}
    return [
        Columns([reliability_block(bins)]),
        Heading("Confusion by dimension"),
        Columns([confusion_table(f"{name}: number of verdicts. Missing ones are never scored.", found)
                 for name, found in counts.items()]),
    ]  # fmt: skip


def _training(log: list[dict[str, Any]]) -> list[Block]:
    lines = {"loss": series(log, "loss")}
    validation = {
        name: points
        for name, key in (("kappa", "eval_kappa"), ("agreement", "eval_agreement"), ("span exact", "eval_span_exact"))
        if (points := series(log, key))
    }
    drawn = [plots.over_steps("loss", "Loss", lines, "loss")] if lines["loss"] else []
    if validation:
        drawn.append(plots.over_steps("validation", "Validation", validation))
    blocks: list[Block] = []
    if drawn:
        blocks.append(Columns([Drawing(plot, plot.title) for plot in drawn]))
    if not lines["loss"]:
        blocks.append(Text("log.jsonl is not in this folder, so the loss is not drawn.", "absent"))
    if lines["loss"] and not validation:
        blocks.append(Text("There was no evaluation on the way (eval_steps), so only the end is measured.", "absent"))
    return blocks


def _settings(settings: dict[str, Any]) -> Block:
    rows = [cells(key, str(value)) for key, value in settings.items() if key != "command" and value not in (None, "")]
    if not rows:
        return Text("run.json is not in this folder, so its settings are not shown.", "absent")
    return Table("The settings of the run (run.json).", ["Setting", "value"], rows)
