"""What a cascade costs for which agreement: in words, as a table, and as one self-contained page that loads nothing.

In: the dictionary of `cascade_band.choose_band`. Out: text for the screen, HTML.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..verifier.text import one_line
from . import pages, plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TICKS = (0, 1, 10, 100, 1000)  # calls per 1,000 verdicts


def sentences(found: dict[str, Any]) -> list[str]:
    """The band, how it was chosen, and what it does on examples that had no part in that."""
    chosen, rest, alone = found["chosen_on"], found["held_out"], found["verifier_alone"]
    out = [
        f"The teacher ({', '.join(found['teacher']['judge'])}) is asked where P(yes) of {found['verifier']['judge']} is "
        f"{_band(chosen)}, both ends included.",
        f"Chosen on {chosen['examples']:,} examples, {chosen['verdicts']:,} verdicts: agreement "
        f"{_interval(chosen, 'agreement')}, lower bound {chosen['agreement_at_least']:.4f} where {found['wanted']:g} "
        "is wanted.",
    ]
    if rest is None:
        out.append("Chosen and measured on the same examples: expect a little less on others.")
        rest = chosen
    else:
        out.append(
            f"On the other {rest['examples']:,} examples, {rest['verdicts']:,} verdicts: agreement "
            f"{_interval(rest, 'agreement')}; the verifier alone {_interval(alone, 'agreement')}."
        )
    cost = "" if rest["cost_per_1000"] is None else f", {rest['cost_per_1000']:.4g} in money"
    out.append(
        f"The verifier answers {_interval(rest, 'coverage')} of the verdicts alone; 1,000 verdicts take "
        f"{rest['calls_per_1000']:.1f} calls{cost}."
    )
    return out


def notes(found: dict[str, Any]) -> list[str]:
    """What the figures rest on, and what they leave out."""
    where = "examples that the band was not chosen on" if found["held_out"] else "the examples that it was chosen on"
    out = [f"Curve and last figures: {where}. Brackets: 95%, bootstrapped over examples."]
    if found["ceiling"] < 1:
        out.append(f"A verdict of the teacher counts as agreeing with a chance of {found['ceiling']:g}.")
    missing = found["missing"]
    if missing["teacher"] or missing["verifier"]:
        out.append(
            f"Missing verdicts: {missing['teacher']} of the teacher, {missing['verifier']} of the verifier; they are not "
            "counted, and what the verifier cannot judge does not go to the teacher."
        )
    if found["unrated"]:
        out.append(f"{found['unrated']} verdicts of the verifier are without P(yes); they stand.")
    return out


def as_text(found: dict[str, Any]) -> str:
    table = [["P(yes) asked", "agreement", "coverage", "calls per 1,000", "cost per 1,000", ""]]
    table += [[*_row(point), "<- chosen" if _chosen(point, found) else ""] for point in found["curve"]]
    if found["price"] is None:
        table = [[*row[:4], row[5]] for row in table]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in table]
    return "\n".join(map(one_line, [*sentences(found), "", *lines, "", *notes(found)]))


def _row(point: dict[str, Any]) -> list[str]:
    cost = "" if point["cost_per_1000"] is None else f"{point['cost_per_1000']:.4g}"
    figures = [_interval(point, name) for name in ("agreement", "coverage")]
    return ["none" if point["low"] is None else _band(point), *figures, f"{point['calls_per_1000']:.1f}", cost]


def _chosen(point: dict[str, Any], found: dict[str, Any]) -> bool:
    return [point["low"], point["high"]] == found["band"]


def _band(point: dict[str, Any]) -> str:
    return f"{point['low']:.12g} to {point['high']:.12g}"


def _interval(point: dict[str, Any], name: str) -> str:
    ends = point[f"{name}_ci"]
    return f"{point[name]:.4f}" + (f" [{ends[0]:.4f}, {ends[1]:.4f}]" if ends else "")


def as_page(found: dict[str, Any]) -> str:
    return (
        pages.environment()
        .get_template("cascade.html.j2")
        .render(
            sentences=sentences(found),
            notes=notes(found),
            plot=plot(found),
            priced=found["price"] is not None,
            rows=[(_row(point), _chosen(point, found)) for point in found["curve"]],
        )
    )


def plot(found: dict[str, Any]) -> plots.Plot:
    """Agreement with its interval against calls per 1,000 verdicts, with coverage on the upper axis and, where a price
    is known, cost beside the calls."""
    points, price = found["curve"], found["price"]

    def draw(axes: Axes) -> None:
        x, y = [point["calls_per_1000"] for point in points], [point["agreement"] for point in points]
        lows, highs = zip(*(point["agreement_ci"] or [point["agreement"]] * 2 for point in points), strict=True)
        axes.plot(x, y, "o-", color=plots.SERIES[0], ms=4, lw=1.2, label="cascade")
        axes.fill_between(x, lows, highs, color=plots.SERIES[0], alpha=0.15, lw=0)
        mine = next(point for point in points if _chosen(point, found))
        style = {"ms": 8, "ls": "", "color": plots.SERIES[1]}
        axes.plot(mine["calls_per_1000"], mine["agreement"], "s", label="chosen", **style)
        axes.axhline(found["wanted"], color=plots.INK, lw=0.8, ls=":", label="wanted")
        labels = [str(tick) if price is None else f"{tick}\n{tick * price:.3g}" for tick in TICKS]
        above = axes.twiny()
        for one in (axes, above):
            one.set_xscale("symlog", linthresh=1)
            one.set_xlim(-0.2, 1300)
            one.minorticks_off()
        axes.set_xticks(TICKS, labels)
        axes.set(xlabel=f"calls{'' if price is None else ', and cost,'} per 1,000 verdicts", ylabel="agreement")
        above.set_xticks(TICKS, [f"{1 - tick / 1000:.4g}" for tick in TICKS])
        above.set_xlabel("coverage: answered by the verifier alone")
        above.spines["top"].set_visible(False)
        axes.legend(loc="lower right")

    said = [f"{p['agreement']:.4f} with {p['calls_per_1000']:.1f} calls per 1,000 verdicts" for p in points]
    return plots._plot("cascade", "Agreement with the teacher against coverage and cost", said, draw)
