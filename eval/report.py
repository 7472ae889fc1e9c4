"""One self-contained page for a run: pictures, figures, plots and credit, in one HTML file that loads nothing.

In: the folder of a run (see `report_data`). Out: `report.html`, the same bytes for the same run. A part that the run
does not have leaves its section out, with a sentence that says so.

    claimwise report runs/quickstart          or          write_report(Path("runs/quickstart"))
"""

from __future__ import annotations

import base64
import io
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from ..verifier.schema import GROUPS
from ..verifier.tables import atomic_write, load_image
from . import plots, report_figures
from .report_credit import Credit
from .report_data import RunFolder, read_run, series
from .report_figures import JUDGES, Comparison, Disagreement

LARGEST_PICTURE = 768  # pixels; larger ones are shrunk for the page
TINY_PICTURE = 128  # up to here every pixel is shown as a square
FIGURES_OF_THE_POLICY = {
    "digits": "Digits read right",
    "conclusion": "Conclusion follows",
    "answer": "Answer right",
}


class Picture(NamedTuple):
    """An image for the page: a data URI, its alternative text, whether to enlarge it pixel by pixel."""

    uri: str
    alt: str
    tiny: bool


class Piece(NamedTuple):
    """A stretch of a response; `judge` and `gold` say whose deciding sentence it belongs to."""

    text: str
    judge: bool
    gold: bool


def write_report(run: str | Path, out: str | Path | None = None) -> Path:
    """The page of the run, by default its report.html; the path. Raises InputError, and leaves no half a page."""
    run = Path(run)
    out = run / "report.html" if out is None else Path(out)
    page = render(read_run(run))
    with atomic_write(out) as handle:
        handle.write(page.encode())
    return out


def render(run: RunFolder) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"share": _share, "percent": _percent, "signed": _signed, "duration": _duration}
    return environment.get_template("report.html.j2").render(context(run))


def context(run: RunFolder) -> dict[str, Any]:
    """All that the template shows."""
    compared = report_figures.compare(run)
    gold = run.verdicts.get("gold-image", [])
    return {
        "name": run.path.resolve().name,
        "run": run,
        "judges": JUDGES,
        "gold": gold[0].judge if gold else None,
        "pairs": len(gold),
        "examples": len({verdict.example_id for verdict in gold}),
        "rows": report_figures.headline(run, compared),
        "policy": _policy(run),
        "in_loop": {key: run.figure("in_loop", key) for key in ("agreement", "kappa", "sampled")},
        "in_loop_groups": report_figures.in_loop_by_dimension(run.samples),
        "changes": {key: report_figures.change(run.log, key) for key in ("rubric/reward", "judge/agreement")},
        "credit": run.credit,
        "credit_picture": _credit_picture(run, run.credit),
        "dimensions": _dimension_plot(compared),
        "reliability": _reliability_plot(run),
        "confusions": {
            JUDGES[judge]: report_figures.confusion(gold, run.verdicts[judge]) for judge in JUDGES if judge in compared
        },
        "training": _training_plots(run),
        "disagreements": {
            kind: None if found is None else [(d, _picture_of(d), pieces(d)) for d in found]
            for kind, found in report_figures.disagreements(run).items()
        },
        "versions": sorted((str(key), str(value)) for key, value in run.entries("versions").items()),
        "seconds": [(str(key), run.figure("seconds", key)) for key in run.entries("seconds")],
        "seed": run.summary.get("seed"),
    }


def _policy(run: RunFolder) -> list[tuple[str, float | None, float | None]]:
    """(figure, before, after), those that are known."""
    rows = [
        (name, run.figure("policy", "before", key), run.figure("policy", "after", key))
        for key, name in FIGURES_OF_THE_POLICY.items()
    ]
    return [row for row in rows if row[1:] != (None, None)]


def _dimension_plot(compared: dict[str, Comparison]) -> plots.Plot | None:
    figures = {}
    for judge, comparison in compared.items():
        found = comparison.everything["by_dimension"]
        known = {g: (f["agreement"], f["agreement_ci"]) for g, f in found.items() if f["agreement"] is not None}
        if comparison.wrong is not None and (overall := comparison.wrong["overall"])["agreement"] is not None:
            known["wrong\ncriteria"] = overall["agreement"], overall["agreement_ci"]
        if known:
            figures[JUDGES[judge]] = known
    return plots.by_dimension(figures) if figures else None


def _reliability_plot(run: RunFolder) -> plots.Plot | None:
    gold = run.verdicts.get("gold-image", [])
    bins = {name: report_figures.reliability(gold, run.verdicts.get(judge, [])) for judge, name in JUDGES.items()}
    bins = {name: values for name, values in bins.items() if values}
    return plots.reliability(bins) if bins else None


def _training_plots(run: RunFolder) -> list[plots.Plot]:
    """Rewards and reading accuracy, in-loop agreement, located spans, fallbacks and vetoes: those that were logged."""
    located = {group: f"rubric/{group}/located" for group in GROUPS}
    accepted = {group: f"rubric/{group}/yes" for group in GROUPS}
    reward = {"rubric reward": "rubric/reward", "answer right": "rewards/answer_reward/mean"}
    if not series(run.log, "rubric/reward"):
        reward = {"reward": "reward", **reward}
    wanted: list[tuple[str, str, dict[str, str], str]] = [
        ("reward", "Reward and reading accuracy", {**reward, "digits read right": "rewards/digits_read/mean"}, "share"),
        ("inloop", "In-loop agreement", {"agreement": "judge/agreement", "kappa": "judge/kappa"}, "share"),
        ("accepted", "Verdicts that say yes", accepted, "share"),
        ("located", "Verdicts with a deciding sentence", located, "share"),
        ("fallbacks", "Fallbacks", {"verdicts without a span": "rubric/fallbacks"}, "verdicts a step"),
        ("vetoed", "Vetoed responses", {"vetoed by a pitfall": "rubric/vetoed"}, "share"),
    ]
    out = []
    for name, what, keys, unit in wanted:
        lines = {label: points for label, key in keys.items() if (points := series(run.log, key))}
        if lines:
            out.append(plots.over_steps(name, what, lines, unit))
    return out


def _credit_picture(run: RunFolder, credit: Credit | None) -> Picture | None:
    if credit is None:
        return None
    return picture(run.path / credit.image, f"The picture of example {credit.example_id}: {credit.question}")


def _picture_of(disagreement: Disagreement) -> list[Picture]:
    example = disagreement.example
    return [
        picture(image, f"The picture of example {example.example_id}: {example.question}") for image in example.images
    ]


def picture(image: Any, alt: str) -> Picture:
    """As PNG in a data URI, at most 768 pixels a side."""
    pixels = load_image(image)
    pixels.thumbnail((LARGEST_PICTURE, LARGEST_PICTURE))
    buffer = io.BytesIO()
    pixels.save(buffer, format="PNG")
    uri = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
    return Picture(uri, alt, max(pixels.size) <= TINY_PICTURE)


def pieces(disagreement: Disagreement) -> list[Piece]:
    """The response, cut where the judge's or gold's deciding sentence begins or ends."""
    text = disagreement.rollout.response
    judge, gold = (disagreement.by[name].span for name in (disagreement.judge, "gold-image"))
    cuts = sorted({0, len(text), *(end for span in (judge, gold) if span for end in span)})

    def inside(span: tuple[int, int] | None, start: int) -> bool:
        return span is not None and span[0] <= start < span[1]

    return [Piece(text[a:b], inside(judge, a), inside(gold, a)) for a, b in pairwise(cuts)]


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}".replace("-", "−")


def _percent(value: float) -> str:
    return f"{100 * value:.1f}%"


def _signed(value: float | None) -> str:
    return "–" if value is None else f"{value:+.3f}".replace("-", "−")


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
