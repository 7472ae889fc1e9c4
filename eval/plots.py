"""Plots as SVG to put into a page: they follow its light or dark scheme and its font, and load nothing.

In: named series of numbers. Out: `Plot`, with the text for those who cannot see it. Every series has a marker or a line
style of its own beside its colour. Lines take `currentColor`, series the page's variables --s0 .. --s6.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Colours that matplotlib writes and `_inline` replaces by what the page defines.
INK = "#0a0b0c"
SERIES = tuple(f"#0a0b{number}" for number in range(10, 17))
REPLACED = {INK: "currentColor", **{colour: f"var(--s{n})" for n, colour in enumerate(SERIES)}}
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (6, 1, 1, 1)), (0, (1, 3)), (0, (9, 3)))
SMOOTH_FROM = 20  # steps; fewer are drawn as they are
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "claimwise",  # the same input gives the same file
    "text.parse_math": False,  # a name may hold dollars
    "font.size": 9,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
}


@dataclass(frozen=True)
class Plot:
    title: str
    svg: str
    label: str  # what it shows, in words


Interval = Sequence[float] | None
Points = Sequence[tuple[int, float]]


def by_dimension(figures: Mapping[str, Mapping[str, tuple[float, Interval]]]) -> Plot:
    """Judge -> dimension -> (agreement, interval): a point each, with its interval."""
    groups = list(dict.fromkeys(group for values in figures.values() for group in values))

    def draw(axes: Axes) -> None:
        for n, (judge, values) in enumerate(figures.items()):
            shift = 0.2 * (n - (len(figures) - 1) / 2)
            x, y, low, high = [], [], [], []
            for group, (value, interval) in values.items():
                x.append(groups.index(group) + shift)
                y.append(value)
                low.append(max(0.0, value - interval[0]) if interval else 0.0)
                high.append(max(0.0, interval[1] - value) if interval else 0.0)
            axes.errorbar(x, y, [low, high], fmt=MARKERS[n], color=SERIES[n], label=judge, ms=6, lw=1.5, capsize=2)
        axes.set_xticks(range(len(groups)), groups)
        axes.set_ylim(-0.02, 1.03)
        axes.set_ylabel("agreement with gold")
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, borderaxespad=0, columnspacing=1)

    said = [
        f"{judge}: " + ", ".join(f"{g} {v:.3f}".replace("\n", " ") for g, (v, _) in values.items())
        for judge, values in figures.items()
    ]
    return _plot("dimensions", "Agreement with gold by dimension", said, draw)


def reliability(bins: Mapping[str, Sequence[tuple[float, float, int]]]) -> Plot:
    """Judge -> (mean P(yes), share of the reference's yes, pairs) of each bin; a point's area grows with its pairs."""
    largest = max(count for values in bins.values() for *_, count in values)

    def draw(axes: Axes) -> None:
        axes.plot([0, 1], [0, 1], color=INK, lw=0.8, ls=":", label="calibrated")
        for n, (judge, values) in enumerate(bins.items()):
            p, share, count = (list(column) for column in zip(*values, strict=True))
            axes.plot(p, share, color=SERIES[n], lw=1, ls=LINES[n], alpha=0.6)
            sizes = [12 + 90 * c / largest for c in count]
            axes.scatter(p, share, s=sizes, color=SERIES[n], marker=MARKERS[n], label=judge, alpha=0.8, linewidths=0)
        axes.set(xlim=(-0.04, 1.04), ylim=(-0.04, 1.04), xlabel="P(yes) of the judge", ylabel="share of yes, reference")
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0, columnspacing=1, markerscale=0.7)

    said = []
    for judge, values in bins.items():
        total = sum(count for *_, count in values)
        gap = sum(abs(p - share) * count for p, share, count in values) / total
        said.append(f"{judge}: mean gap to the diagonal {gap:.3f} over {total} verdicts")
    return _plot("reliability", "P(yes) against the reference’s share of yes", said, draw)


def over_steps(
    name: str,
    what: str,
    lines: Mapping[str, Points],
    unit: str = "share",
    band: Sequence[tuple[int, float, float]] = (),
    marks: Mapping[str, Sequence[int]] | None = None,
) -> Plot:
    """Line -> (step, value): each step thin, and from 20 steps on the mean of five in bold. A "share" lies in 0..1.

    `band`: (step, low, high), the interval of the first line. `marks`: what happened -> at which steps.
    """

    def draw(axes: Axes) -> None:
        if band:
            steps, low, high = zip(*band, strict=True)
            axes.fill_between(steps, low, high, color=SERIES[0], alpha=0.15, lw=0)
        for n, (label, points) in enumerate(lines.items()):
            steps, values = (np.array(column, dtype=float) for column in zip(*points, strict=True))
            smooth = _drawn(values)
            if len(values) >= SMOOTH_FROM:
                axes.plot(steps, values, color=SERIES[n], lw=0.8, alpha=0.35)
            every = max(1, len(steps) // 8)
            style = {"ls": LINES[n], "marker": MARKERS[n], "ms": 4, "markevery": every}
            axes.plot(steps, smooth, color=SERIES[n], label=label, **style)
        for n, (label, at) in enumerate((marks or {}).items()):
            for step in at:
                axes.axvline(step, color=INK, lw=1.2, ls=LINES[n + 1], label=label if step == at[0] else None)
        _axis_of_steps(axes, [step for points in lines.values() for step, _ in points], unit)
        axes.legend(
            loc="lower left", bbox_to_anchor=(0, 1), ncols=2 if len(lines) < 5 else 3, borderaxespad=0, columnspacing=1
        )

    said = [f"{label} from {_ends(points)}" for label, points in lines.items()]
    said += [f"{label} at step {', '.join(map(str, at))}" for label, at in (marks or {}).items()]
    return _plot(name, f"{what} over training steps", said, draw)


def _axis_of_steps(axes: Axes, steps: Sequence[int], unit: str) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set(xlabel="step", ylabel=unit)
    if unit == "share":
        axes.set_ylim(-0.02, 1.03)
    else:
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    if len(set(steps)) == 1:
        axes.set_xlim(steps[0] - 1, steps[0] + 1)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))


def over_verdicts(
    lines: Mapping[str, Sequence[tuple[int, float, Interval]]], fits: Mapping[str, Callable[[np.ndarray], np.ndarray]]
) -> Plot:
    """Figure -> (verdicts bought, value, interval) of each point, on an axis of doublings; a figure with a fit has it
    as a line that goes on to one more doubling."""
    bought = [n for n, *_ in next(iter(lines.values()))]

    def draw(axes: Axes) -> None:
        for n, (name, points) in enumerate(lines.items()):
            x, y = [point[0] * 2 ** (0.08 * n) for point in points], [point[1] for point in points]  # bars side by side
            ends = [interval or (value, value) for _, value, interval in points]
            low = [max(0.0, value - end[0]) for value, end in zip(y, ends, strict=True)]
            high = [max(0.0, end[1] - value) for value, end in zip(y, ends, strict=True)]
            axes.errorbar(x, y, [low, high], fmt=MARKERS[n], color=SERIES[n], label=name, ms=5, lw=1.5, capsize=2)
            if name in fits:
                n_t = np.geomspace(bought[0], 2 * bought[-1], 60)
                axes.plot(n_t, fits[name](n_t), LINES[n], color=SERIES[n], lw=1, alpha=0.7)
        axes.axvspan(bought[-1], 2 * bought[-1], color=INK, alpha=0.06, lw=0)
        axes.set_xscale("log", base=2)
        axes.set_xticks([*bought, 2 * bought[-1]], [f"{n:,}" for n in bought] + [f"{2 * bought[-1]:,}\n(next)"])
        axes.tick_params(axis="x", which="minor", length=0)
        axes.set(xlabel="verdicts bought")
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0, columnspacing=1)

    said = [
        f"{name}: " + ", ".join(f"{value:.3f} at {n:,} verdicts" for n, value, _ in points)
        for name, points in lines.items()
    ]
    return _plot("curve", "Agreement with the teacher against verdicts bought", said, draw)


def _ends(points: Points) -> str:
    values = _drawn(np.array([value for _, value in points]))
    return f"{values[0]:.3f} at step {points[0][0]} to {values[-1]:.3f} at step {points[-1][0]}"


def _drawn(values: np.ndarray) -> np.ndarray:
    """The bold line."""
    return _mean_of_five(values) if len(values) >= SMOOTH_FROM else values


def _mean_of_five(values: np.ndarray) -> np.ndarray:
    """Each value's mean with up to two on either side."""
    return np.array([values[max(0, i - 2) : i + 3].mean() for i in range(len(values))])


def _plot(name: str, title: str, said: Sequence[str], draw: Callable[[Any], None]) -> Plot:
    """4.4 inches wide: its text stays readable at the width of a phone."""
    import io

    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # whatever a person has set up, the same page
        matplotlib.rcParams.update(STYLE)
        figure = Figure(figsize=(4.4, 3.1), layout="constrained")
        axes = figure.add_subplot()
        axes.grid(axis="y", color=INK, alpha=0.15, lw=0.6)
        draw(axes)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None}, transparent=True)
    label = f"{title}. {'; '.join(said)}."
    return Plot(title, _inline(buffer.getvalue(), name, label), label)


def _inline(svg: str, name: str, label: str) -> str:
    """The svg element alone: no links, ids that no other plot of the page has, the page's colours and font."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = scoped(svg, name)
    svg = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", svg)
    for colour, name_on_page in REPLACED.items():
        svg = svg.replace(colour, name_on_page)
    view = re.search(r'viewBox="[^"]*"', svg)
    opening = f'<svg class="plot" role="img" aria-label="{html.escape(label)}" {view[0] if view else ""}>'
    return re.sub(r"<svg[^>]*>", lambda _: opening, svg, count=1)


def scoped(svg: str, name: str) -> str:
    """The same with a name before all ids, so that no two drawings of a page share one."""
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    return re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", svg)
