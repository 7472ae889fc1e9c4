"""The report of one or several runs: one self-contained page that loads nothing, the same as Markdown, and the figures.

In: folders of runs; what kind of run one is, its `run.json` says, or the files in it. Out: `report.html`, `report.md` and
`report.json`, the same bytes for the same runs.

    claimwise report runs/quickstart          or          write_report([Path("runs/quickstart")])
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..verifier.errors import InputError
from ..verifier.tables import atomic_write
from ..verifier.text import excerpt
from . import pages, plots
from .report_blocks import CreditView, Report, signed, three
from .report_data import read_object
from .report_distill import distill_report
from .report_quickstart import quickstart_report
from .report_study import gradients_report, study_report
from .report_text import as_markdown
from .report_train import train_report

KINDS: dict[str, tuple[str, Callable[[Path], Report]]] = {  # command of run.json -> what must be there, and its report
    "quickstart": ("summary.json", quickstart_report),
    "train": ("run.json", train_report),
    "distill": ("metrics.json", distill_report),
    "study arms": ("study.json", study_report),
    "study judges": ("study.json", study_report),
    "study order": ("study.json", study_report),
    "study gradients": ("gradients.json", gradients_report),
}


def write_report(runs: Sequence[str | Path], out: str | Path | None = None) -> Path:
    """The page's path: of a single run by default its report.html. Beside it the same name with .md and .json. Raises
    InputError, and leaves no half a page."""
    if out is None and len(runs) > 1:
        raise InputError(f"there are {len(runs)} runs; say with --out where their common page goes")
    page = Path(runs[0]) / "report.html" if out is None else Path(out)
    if page.suffix not in (".html", ".htm"):
        raise InputError(f"{page}: the page's name must end in .html; .md and .json are written beside it")
    reports = _apart([read_report(Path(run)) for run in runs])
    texts = {".json": as_json(reports), ".md": as_markdown(reports), page.suffix: render(reports)}
    for suffix, text in texts.items():
        with atomic_write(page.with_suffix(suffix)) as handle:
            handle.write(text.encode())
    return page


def read_report(folder: Path) -> Report:
    """Raises InputError for a folder that cannot be read, and for files that nobody's claimwise wrote so."""
    needed, make = KINDS[kind_of(folder)]
    if not (folder / needed).is_file():
        raise InputError(
            f"{folder} has no {needed}, so the run in it is not finished; the command that began it goes on"
        )
    try:
        return make(folder)
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{folder}: one of its files is not as claimwise writes it ({type(error).__name__}: {excerpt(error)}); the "
            "command that made the folder makes it anew"
        ) from error


def kind_of(folder: Path) -> str:
    """The command that made the folder."""
    if not folder.is_dir():
        raise InputError(f"{folder}: there is no such folder; give the folder of a run, such as runs/quickstart")
    if (folder / "run.json").is_file():
        command = read_object(folder / "run.json", "claimwise").get("command")
        if isinstance(command, str) and command in KINDS:
            return command
        raise InputError(f"{folder / 'run.json'}: there is no report of {command!r}; there is of {', '.join(KINDS)}")
    for command, (needed, _) in KINDS.items():
        if (folder / needed).is_file():
            return command
    raise InputError(f"{folder} holds no run: neither run.json nor summary.json, metrics.json or study.json; give the "
                     "folder of a quickstart, distillation, GRPO run or study")  # fmt: skip


def _apart(reports: list[Report]) -> list[Report]:
    """Runs of one name get their numbers."""
    from dataclasses import replace

    names = Counter(report.name for report in reports)
    return [
        replace(report, name=f"{report.name} ({number})") if names[report.name] > 1 else report
        for number, report in enumerate(reports, 1)
    ]


def as_json(reports: Sequence[Report]) -> str:
    runs = [{"name": report.name, "kind": report.kind, "figures": report.figures} for report in reports]
    return json.dumps({"runs": _finite(runs)}, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    """The same with null for every NaN, which a log may hold and JSON does not know."""
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def render(reports: Sequence[Report]) -> str:

    environment = pages.environment()
    shown = [
        len(block.credit.arms)
        for report in reports
        for section in report.sections
        for block in section.blocks
        if isinstance(block, CreditView)
    ]
    environment.filters |= {"share": three, "signed": signed, "scoped": plots.scoped}
    return environment.get_template("report.html.j2").render(reports=reports, most_arms=max(shown, default=0))
