"""The report of a study: its tables and contrasts, curves over training, and what is shown and what not, in words.

In: the folder of `claimwise study`: `study.json` (arms, judges) or `gradients.json` (gradients). Out: `Report`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ..verifier.errors import InputError
from . import plots
from .report_blocks import Block, Cell, Columns, Drawing, Report, Section, Table, Text, cells, share, signed, three
from .report_data import read_object

CONTRAST_NAMES = {"snr": "SNR, ratio", "aligned": "cosine to the reference’s mean, ratio", "bias": "distance"}
TITLES = {"kl": "KL from the start"}
UNITS = {"kl": "nats a response", "tokens": "tokens a verdict"}
SHOWN_FROM = 0.05  # p after Holm's correction


def study_report(folder: Path) -> Report:
    return _checked(folder / "study.json", _study)


def gradients_report(folder: Path) -> Report:
    return _checked(folder / "gradients.json", _gradients)


def _checked(path: Path, make: Callable[[str, dict[str, Any]], Report]) -> Report:
    try:
        return make(path.parent.resolve().name, read_object(path, "claimwise study"))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: it is not as claimwise study writes it ({type(error).__name__}: {error})") from error


def _study(name: str, study: dict[str, Any]) -> Report:
    settings = study["settings"]
    lead = (
        f"{study['finished']} of {study['planned']} runs. {study['lead']} Compared: {settings['compare']}; contrasts and "
        "outcomes were stated before the runs."
    )
    sections = [
        Section(f"table{number}", f"{table['table']}, at {table['at']}", _table(settings, table))
        for number, table in enumerate(study["tables"], 1)
    ]
    sections.append(Section("curves", "Over training", _curves(settings, study["curves"])))
    rates = [_rates(study["learning_rates"])] if study["learning_rates"] else []
    sections.append(Section("made", "How it was made", [_settings(settings), *rates]))
    return Report(name, "study", lead, sections, study)


def _table(settings: Mapping[str, Any], table: Mapping[str, Any]) -> list[Block]:
    metrics = list(next(iter(table["means"].values()), ()))
    means = [
        [Cell(value, f"{table['seeds'][value]} seeds"), *(Cell(three(row[metric])) for metric in metrics)]
        for value, row in table["means"].items()
    ]
    contrasts = [
        [Cell(contrast), *(_difference(row[metric]) for metric in settings["metrics"])]
        for contrast, row in table["contrasts"].items()
    ]
    caption = "Paired differences over seeds, 95% intervals (Student’s t). * p < 0.05 after Holm’s correction over the "
    return [
        *(Text(str(sentence)) for sentence in table["words"]),
        Table("Means over seeds.", [settings["compare"], *metrics], means),
        Table(
            caption
            + f"{table['compared']} comparisons of this table; without * nothing is shown, and the interval says "
            "how large a difference might still be.",
            ["Contrast", *settings["metrics"]],
            contrasts,
        ),
    ]


def _difference(row: Mapping[str, Any]) -> Cell:
    if row["mean"] is None:
        return Cell("–")
    if row["low"] is None:
        return Cell(signed(row["mean"]), "one seed")
    star = "*" if row["p_holm"] is not None and row["p_holm"] < SHOWN_FROM else ""
    return Cell(signed(row["mean"]) + star, f"[{signed(row['low'])}, {signed(row['high'])}]")


def _curves(settings: Mapping[str, Any], curves: Mapping[str, Any]) -> list[Block]:
    """A plot of each outcome, and of what is told beside them, for each table."""
    steps, drawn = settings["evaluate_at"], []
    for number, (table, of_value) in enumerate(curves.items()):
        for place, metric in enumerate(dict.fromkeys(str(name) for curve in of_value.values() for name in curve)):
            lines = {
                value: [(step, mean) for step, mean in zip(steps, curve[metric], strict=True) if mean is not None]
                for value, curve in of_value.items()
            }
            lines = {value: points for value, points in lines.items() if points}
            if lines:
                title, unit = TITLES.get(metric, metric), UNITS.get(metric, "share")
                plot = plots.over_steps(f"curve{number}-{place}", title, lines, unit)
                drawn.append(Drawing(plot, f"{plot.title}: {table}"))
    return [Columns(drawn)] if drawn else [Text("No run is finished, so there are no curves.", "absent")]


def _settings(settings: Mapping[str, Any]) -> Table:
    rows = [cells(key, ", ".join(map(str, value)) if isinstance(value, list) else str(value))
            for key, value in settings.items()]  # fmt: skip
    return Table("The settings, stated before the runs.", ["Setting", "value"], rows)


def _rates(rates: Mapping[str, float]) -> Table:
    rows = [cells(key, f"{rate:g}") for key, rate in sorted(rates.items())]
    return Table(" ".join(["Learning rates.", *rates_differ(rates.values())]), ["Cell", "rate"], rows)


def rates_differ(rates: Iterable[float]) -> list[str]:
    """What that means for the contrasts, where it is so."""
    told = "They differ, so a contrast of two arms is one of their rates as well, at equal KL above all."
    return [told] if len(set(rates)) > 1 else []


def _gradients(name: str, told: dict[str, Any]) -> Report:
    settings, sample = told["settings"], told["sample"]
    recipe = settings["recipe"]
    lead = (
        f"{sample['responses']} responses of a frozen policy to {settings['groups']} pictures, of {sample['tokens'][0]} "
        f"to {sample['tokens'][-1]} tokens, {sample['answer']:.0%} of the answers right. All arms credit the same "
        f"responses. Figures are of one step of {recipe['step']} responses; brackets: 95%, bootstrapped over batches."
    )
    families = [family for family in recipe["families"] if family["name"] in told["families"]]
    tables: list[Block] = [
        _family(family, told["families"][family["name"]], recipe["reference"]) for family in families
    ]
    sections = [
        Section("contrasts", "Contrasts stated before the run", [_stated(told["contrasts"])]),
        Section("arms", "The arms", [_reading(recipe["reference"]), *tables]),
    ]
    if told["position"]:
        shares = [_positions(family, found, recipe["reference"]) for family, found in told["position"].items()]
        sections.append(Section("position", "By position in the response", shares))
    return Report(name, "study of gradients", lead, sections, told)


def _reading(reference: str) -> Text:
    return Text(
        f"Noise: variance of a step’s gradient, over that of {reference}. SNR: squared norm of the mean gradient over "
        f"its variance, both unbiased. Distance: norm of the difference to {reference}’s mean gradient over the norm of "
        "that, noise taken off; its upper end says how much could have hidden. Credit kept: tokens that the criteria’s "
        "terms still reach.",
        "soft",
    )


def _family(family: Mapping[str, Any], rows: Mapping[str, Any], reference: str) -> Table:
    which = f", criteria of {', '.join(family['dimensions'])} alone" if family.get("dimensions") else ""
    budget = "rubric alone" if family["budget"] == "0,0,1" else f"budget {family['budget']}"
    caption = f"{family['name']}: {budget}{which}, pitfalls {family['pitfalls']}, groups of {family['group']}."
    head = ["Arm", "credit kept", "noise", "SNR of a step", f"cosine to {reference}’s mean", "distance"]
    body = [
        [
            Cell(arm),
            Cell(f"{row['covered']:.0%}"),
            Cell("1") if arm == reference else share(row["noise"]["value"], row["noise"]["interval"]),
            *(share(row[key]["value"], row[key]["interval"]) for key in ("snr", "aligned")),
            Cell("–") if arm == reference else _distance(row["bias"]["value"], row["bias"]["interval"]),
        ]
        for arm, row in rows.items()
    ]
    return Table(caption, head, body)


def _distance(square: float | None, interval: Any) -> Cell:
    """Squared distances in, the square root of each out, 0 where it is negative."""

    def root(value: float | None) -> float | None:
        return None if value is None else math.sqrt(max(value, 0.0))

    return share(root(square), [root(end) for end in interval] if interval else None)


def _stated(rows: list[dict[str, Any]]) -> Table:
    body = [
        cells(
            row["family"],
            str(CONTRAST_NAMES.get(row["figure"], row["figure"])),
            f"{row['arm']} to {row['against']}",
            _estimate(row),
            _p(row["p"]),
            _p(row["p_holm"]),
            "yes" if row["shown"] else "no",
        )
        for row in rows
    ]
    return Table(
        "SNR and cosine: the ratio of two arms; distance: of their mean gradients. Shown: p < 0.05 after Holm’s "
        "correction over all rows.",
        ["Family", "figure", "contrast", "estimate", "p", "p (Holm)", "shown"],
        body,
    )


def _p(p: float | None) -> str:
    return "< 0.001" if p is not None and p < 0.001 else three(p)


def _estimate(row: Mapping[str, Any]) -> Cell:
    if row["figure"] == "bias":
        return _distance(row["estimate"], row["interval"])
    if row["estimate"] is None:
        return Cell("–")
    return share(math.exp(row["estimate"]), [math.exp(end) for end in row["interval"]] if row["interval"] else None)


def _positions(name: str, shares: Mapping[str, Any], reference: str) -> Table:
    parts = len(shares[reference]["noise"])
    head = ["Share", *(f"{k * 100 // parts}–{(k + 1) * 100 // parts}%" for k in range(parts)), "all"]
    rows = [
        [Cell(f"{what}, {arm}"), *(Cell(three(part)) for part in row[what]), Cell(three(sum(row[what])))]
        for what in ("noise", "signal")
        for arm, row in shares.items()
    ]
    return Table(f"{name}: share of {reference}’s noise and signal that falls on each part.", head, rows)
