"""The results of the study of gradients, and its tables as Markdown.

In: inner products of gradients per family of arms, and the study's settings. Out: `results`, JSON; `as_markdown` of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...eval.paired import Difference, with_holm
from .gradient_figures import contrast, position_shares, table
from .gradient_sample import Family

NAMES = {"snr": "SNR, ratio", "aligned": "cosine to the reference's mean, ratio", "bias": "distance, %"}


def results(
    found: dict[str, np.ndarray], recipe: dict[str, Any], families: Sequence[Family], settings
) -> dict[str, Any]:
    """`found` is gram.npz. Holm's correction is over all contrasts of the recipe."""
    told: dict[str, Any] = {"settings": settings, "sample": _sample(found), "families": {}, "position": {}}
    columns = [(family.name, arm) for family in families for arm, _ in family.columns]
    seed, draws, reference = settings["seed"], recipe["draws"], recipe["reference"]
    for family in families:
        gram = found[f"gram/{family.name}"]
        own = [k for k, (name, _) in enumerate(columns) if name == family.name]
        if family.parts > 1:
            told["position"][family.name] = dict(position_shares(gram, family.columns, reference))
            continue
        arms = list(family.arms)
        rows = table(gram, found["rms"][:, own].T, arms, reference, _scale(recipe, family), draws, seed)
        for arm, k in zip(arms, own, strict=True):
            rows[arm] |= {"rms": float(found["rms"][:, k].mean()), "covered": float(found["covered"][:, k].mean())}
        told["families"][family.name] = rows
    told["contrasts"] = _contrasts(found, recipe, families, seed)
    return told


def _scale(recipe: dict[str, Any], family: Family) -> float:
    """Noise of a step over that of a batch: it has another number of groups."""
    return recipe["pictures"] * family.group / recipe["step"]


def _sample(found: dict[str, np.ndarray]) -> dict[str, Any]:
    lengths = found["lengths"]
    quantiles = [int(q) for q in np.quantile(lengths, [0.05, 0.5, 0.95])]
    return {"responses": len(lengths), "tokens": quantiles, "answer": float(np.mean(found["answers"].astype(float)))}


def _contrasts(
    found: dict[str, np.ndarray], recipe: dict[str, Any], families: Sequence[Family], seed: int
) -> list[dict]:
    by_name, rows = {family.name: family for family in families}, []
    for stated in recipe["contrasts"]:
        family = by_name[stated["family"]]
        arms = list(family.arms)
        pair = arms.index(stated["arm"]), arms.index(stated["against"])
        gram, at = found[f"gram/{family.name}"], arms.index(recipe["reference"])
        scale = _scale(recipe, family)
        rows.append({**stated, **contrast(gram, pair, stated["figure"], at, recipe["draws"], seed, scale)})
    corrected = with_holm({k: Difference(0, row["estimate"], p=row["p"]) for k, row in enumerate(rows)})
    return [{**row, "p_holm": corrected[k].p_holm, "shown": corrected[k].shown} for k, row in enumerate(rows)]


def as_markdown(told: dict[str, Any]) -> str:
    return "\n".join(_lines(told)) + "\n"


def _lines(told: dict[str, Any]) -> Iterator[str]:
    settings, sample, recipe = told["settings"], told["sample"], told["settings"]["recipe"]
    low, middle, high = sample["tokens"]
    yield f"`claimwise study gradients --groups {settings['groups']} --seed {settings['seed']} --out DIR`"
    yield ""
    yield (
        f"{sample['responses']} responses of the frozen digits policy to {settings['groups']} pictures, {low}-{high} "
        f"tokens (5-95%, median {middle}), {sample['answer']:.0%} of the answers right. All arms credit the same "
        f"responses; the oracle judges. Figures are of one step of {recipe['step']} responses; in brackets 95% by "
        f"bootstrap over batches of {recipe['pictures']} pictures."
    )
    for family in recipe["families"]:
        if family["name"] in told["families"]:
            yield from ("", f"**{_title(family)}**", "", *_arms(told["families"][family["name"]], recipe["reference"]))
    for name, shares in told["position"].items():
        family = next(f for f in recipe["families"] if f["name"] == name)
        yield from ("", f"**By position in the response** ({_title(family)})", "")
        yield from _positions(shares, recipe["reference"])
    yield from ("", "**Contrasts stated before the run**", "", *_told_contrasts(told["contrasts"]))
    yield from ("", *_reading(recipe))


def _title(family: dict[str, Any]) -> str:
    which = f", criteria of {', '.join(family['dimensions'])} alone" if family.get("dimensions") else ""
    budget = "rubric alone" if family["budget"] == "0,0,1" else f"budget {family['budget']}"
    return f"{family['name']}: {budget}{which}, pitfalls {family['pitfalls']}, groups of {family['group']}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _arms(rows: dict[str, Any], reference: str) -> Iterator[str]:
    head = [
        "arm",
        "credit kept",
        f"noise over {reference}'s",
        "SNR of a step",
        "cosine to its own mean",
        f"to {reference}'s mean",
    ]
    head += ["distance of the means, % of the norm", "p", "angle of the means", "norm", "norm at equal RMS"]
    yield from _table(
        [*head, "SNR at equal RMS"],
        [
            [
                arm,
                f"{row['covered']:.0%}",
                "1" if arm == reference else _with_interval(row["noise"]),
                _with_interval(row["snr"]),
                _value(row["own"]["value"]),
                _with_interval(row["aligned"]),
                *(
                    ["-"] * 3
                    if arm == reference
                    else [_distance(row["bias"]), _p(row["bias_p"]), _angle(row["cosine"])]
                ),
                _value(row["norm"]["value"]),
                _value(row["matched_norm"]["value"]),
                _value(row["matched_snr"]["value"]),
            ]
            for arm, row in rows.items()
        ],
    )
    seen = ", ".join(f"{arm} {_value(row['halves'])}" for arm, row in rows.items())
    yield ""
    yield f"Uncorrected cosine of an arm's mean on half of the batches with {reference}'s on the other half: {seen}."


def _positions(shares: dict[str, Any], reference: str) -> Iterator[str]:
    parts = len(shares[reference]["noise"])
    head = [f"share of {reference}'s", *(f"{k * 100 // parts}-{(k + 1) * 100 // parts}%" for k in range(parts)), "all"]
    rows = [
        [f"{name}, {arm}", *(f"{share:.3f}" for share in row[name]), f"{sum(row[name]):.3f}"]
        for name in ("noise", "signal")
        for arm, row in shares.items()
    ]
    yield from _table(head, rows)


def _told_contrasts(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield from _table(
        ["family", "figure", "contrast", "estimate", "p", "p (Holm)", "shown"],
        [
            [
                row["family"],
                NAMES[row["figure"]],
                f"{row['arm']} to {row['against']}",
                _estimate(row),
                _p(row["p"]),
                _p(row["p_holm"]),
                "yes" if row["shown"] else "no",
            ]
            for row in rows
        ],
    )


def _estimate(row: dict[str, Any]) -> str:
    figure = {"value": row["estimate"], "interval": row["interval"]}
    if row["figure"] == "bias":
        return _distance(figure)
    if row["estimate"] is None:
        return "-"
    ends = [math.exp(end) for end in row["interval"] or ()]
    return _with_interval({"value": math.exp(row["estimate"]), "interval": ends})


def _reading(recipe: dict[str, Any]) -> Iterator[str]:
    yield (
        "Noise: variance of a step's gradient, all parameters together; a step draws its pictures anew, and no credit "
        "takes that part away. SNR: squared norm of the mean gradient over it, both unbiased. Distance: norm of the "
        f"difference to {recipe['reference']}'s mean gradient over the norm of that, noise taken off; 0 where what is "
        "left is negative; its upper end says how much could have hidden. p: one-sided, by random signs. Credit kept: "
        "tokens that the criteria's terms still reach, weighted by what they add. An unbiased arm with less noise is "
        "better credit; a biased one aims at something else, whatever its SNR: see its cosine to "
        f"{recipe['reference']}'s mean."
    )
    yield ""
    yield (
        "What this does not say: it is one policy at one moment, of 0.44M parameters, with responses of nearly one "
        "length that state each fact once, and an oracle as judge. Plain gradients, not Adam's steps. Where a response "
        "goes on for hundreds of tokens after the deciding sentence there is more noise to save, and where a later "
        "sentence can change a verdict there is more bias; how much of either an 8B model has is not measured here."
    )


def _value(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _with_interval(figure: dict[str, Any]) -> str:
    ends = figure["interval"]
    return _value(figure["value"]) + (f" [{_value(ends[0])}, {_value(ends[1])}]" if ends else "")


def _distance(figure: dict[str, Any]) -> str:
    def percent(square: float) -> str:
        return f"{100 * math.sqrt(max(square, 0.0)):.1f}"

    ends = figure["interval"]
    return percent(figure["value"]) + (f" [{percent(ends[0])}, {percent(ends[1])}]" if ends else "")


def _angle(figure: dict[str, Any]) -> str:
    def degrees(cosine: float) -> str:
        return f"{math.degrees(math.acos(min(1.0, max(-1.0, cosine)))):.1f}°"

    if figure["value"] is None:
        return "-"
    ends = figure["interval"]
    return degrees(figure["value"]) + (f" [{degrees(ends[1])}, {degrees(ends[0])}]" if ends else "")


def _p(p: float | None) -> str:
    return "-" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"
