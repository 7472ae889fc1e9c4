"""A learning curve in words, as a table, and as one self-contained page that loads nothing.

In: the dictionary of `learning_curve`, each point with its `share` ("1/16") and `examples` besides, and `steps`, the
optimizer steps of each point at most. Out: text for the screen, HTML.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import pages, plots
from .learning_curve import FIGURES


def sentences(curve: dict[str, Any]) -> list[str]:
    """What the next doubling of the verdicts is expected to bring, a sentence for each figure."""
    now = curve["points"][-1]["verdicts"]
    out = []
    for name in FIGURES:
        gain = curve["next_doubling"][name]
        if gain["gain"] is None:
            out.append(f"What more verdicts would bring in {name} is not known: {gain['why']}.")
            continue
        size = _with_interval(gain["gain"], gain["gain_ci"], "+.4f")
        if gain["method"] == "fit":
            out.append(f"From {now:,} verdicts to {2 * now:,}, {name} is expected to change by {size}.")
            continue
        less = " If it levels off, the next one brings less." if round(gain["gain"], 4) > 0 else ""
        why = f"no curve is fitted: {gain['why']}"
        out.append(f"The last doubling, to {now:,} verdicts, changed {name} by {size}; {why}.{less}")
    return out


def notes(curve: dict[str, Any]) -> list[str]:
    """How the figures came about, and what they leave out."""
    fitted = [
        f"{name}: a {fit['a']:.4f}, b {fit['b']:.4f}, c {fit['c']:.2f}."
        for name in FIGURES
        if (fit := curve["next_doubling"][name]["fit"])
    ]
    law = "The line is a - b (n / N)^-c, least squares, N the verdicts of the last point. " + " ".join(fitted)
    stopped = f"each kept its best adapter by validation kappa (patience {curve['patience']})"
    unstopped = "there was no early stopping (patience 0), so the last adapter of each is the one measured"
    chosen = "early stopping and temperature were" if curve["patience"] else "the temperature was"
    return [
        f"Each smaller set is part of the next, drawn by example. Every point had at most {curve['steps']:,} steps of "
        f"the same size, so that only the labels differ; {stopped if curve['patience'] else unstopped}.",
        f"Brackets: 95%, bootstrapped over the {curve['examples']:,} held-out examples, on which {chosen} "
        "chosen too. A gain that is fitted also counts how the points scatter round the curve; the "
        "last doubling's does not, and each point is one training with one seed.",
        *([law] if fitted else []),
    ]


def as_text(curve: dict[str, Any]) -> str:
    table = [["of the labels", "examples", "verdicts", *FIGURES]]
    for point in curve["points"]:
        figures = [_with_interval(point[name], point[f"{name}_ci"], ".3f") for name in FIGURES]
        table.append([point["share"], f"{point['examples']:,}", f"{point['verdicts']:,}", *figures])
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in table]
    return "\n".join([*lines, "", *sentences(curve)])


def as_page(curve: dict[str, Any]) -> str:
    return (
        pages.environment()
        .get_template("curve.html.j2")
        .render(
            curve=curve,
            figures=FIGURES,
            plot=_plot(curve),
            sentences=sentences(curve),
            notes=notes(curve),
            shown=lambda value: "-" if value is None else f"{value:.3f}",
        )
    )


def _plot(curve: dict[str, Any]) -> plots.Plot:
    points, lines, fits = curve["points"], {}, {}
    last = points[-1]["verdicts"]
    for name in FIGURES:
        known = [(point["verdicts"], point[name], point[f"{name}_ci"]) for point in points if point[name] is not None]
        if known:
            lines[name] = known
        if fit := curve["next_doubling"][name]["fit"]:
            fits[name] = _law(fit["a"], fit["b"], fit["c"], last)
    return plots.over_verdicts(lines, fits)


def _law(a: float, b: float, c: float, last: int):
    return lambda n_t: a - b * (np.asarray(n_t) / last) ** -c


def _with_interval(value: float | None, interval: list[float] | None, form: str) -> str:
    if value is None:
        return "-"
    return f"{value:{form}}" + (f" [{interval[0]:{form}}, {interval[1]:{form}}]" if interval else "")
