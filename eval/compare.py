"""Two judges on the same items, pair by pair: who says yes, who is right, and what the data can tell about it.

In: two verdict tables (the same verifier with and without the image, or two verifiers), perhaps a reference, perhaps the
pairs whose criterion contradicts the image. Out: per slice up to three paired tables, each a `paired` dictionary:

    says_yes    A and B both say yes, only A, only B, neither
    right       the same for "has the reference's verdict"
    false_yes   the same for "says yes", over the reference's no

    n, both, only_a, only_b, neither    counts of pairs known to A, B and, where there is one, the reference
    rate_a, rate_b, difference          shares, and B's less A's, with an interval from a bootstrap over examples
    mcnemar_p                           exact two-sided McNemar test (McNemar 1947): a sign test of the discordant pairs
    holm_p                              corrected for the number of slices (Holm 1979)

McNemar's test takes pairs for independent; verdicts on one example are not, so where the two part, trust the interval.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from ..verifier.schema import GROUPS, Verdict
from .bootstrap import Clustered, ratio_interval, resample
from .metrics import IntArray
from .pairs import MISSING, BoolArray, as_arrays, matched

CONTRADICTED, NOT_CONTRADICTED = "criterion contradicts the image", "text and image allow the same"
N, ONLY_A, ONLY_B = range(3)
Key = tuple[str, str]  # of a pair: rollout and criterion


def compare(
    a: Sequence[Verdict],
    b: Sequence[Verdict],
    reference: Sequence[Verdict] | None = None,
    contradicted: Collection[Key] | None = None,
    draws: int = 1000,
    seed: int = 0,
    names: tuple[str, str, str] = ("table A", "table B", "the reference"),
    untold: Collection[Key] = (),
) -> dict[str, Any]:
    """{"slices": {name: {"missing": n, "says_yes": paired, "right": paired, "false_yes": paired}}, "examples": how many
    the counted pairs come from, "untold": n}; `right` and `false_yes` with a reference only. `contradicted` are the keys
    of pairs whose text-mode and image-mode reference differ, `untold` those of which one of the two is missing: they are
    in neither of these slices. Raises InputError where the tables do not judge the same pairs."""
    rows = matched(a, b, names[:2])
    pairs = as_arrays(rows)
    truth = np.full(len(rows), MISSING)
    if reference is not None:
        truth = as_arrays(matched(a, reference, (names[0], names[2]))).b
    found: dict[str, dict[str, Any]] = {}
    counted = pairs.known & ((truth != MISSING) | (reference is None))
    for name, chosen in _slices(rows, contradicted, untold).items():
        known = chosen & counted
        found[name] = {"missing": int((chosen & ~known).sum())}
        views = {"says_yes": (known, pairs.a == 1, pairs.b == 1)}
        if reference is not None:
            views["right"] = known, pairs.a == truth, pairs.b == truth
            views["false_yes"] = known & (truth == 0), pairs.a == 1, pairs.b == 1
        for view, (where, of_a, of_b) in views.items():
            found[name][view] = paired(of_a[where], of_b[where], pairs.example[where], pairs.examples, draws, seed)
    for view in ("says_yes", "right", "false_yes"):
        _correct([slice_[view] for slice_ in found.values() if view in slice_])
    examples = len(np.unique(pairs.example[counted]))
    return {"slices": found, "examples": examples, "untold": sum(a.key in untold for a, _ in rows)}


def _slices(
    rows: Sequence[tuple[Verdict, Verdict]], contradicted: Collection[Key] | None, untold: Collection[Key]
) -> dict[str, BoolArray]:
    out = {"overall": np.ones(len(rows), dtype=bool)}
    group_of = np.array([a.dimension or b.dimension for a, b in rows], dtype=object)
    out |= {group: mask for group in GROUPS if (mask := group_of == group).any()}
    if contradicted is not None:
        against = np.array([a.key in contradicted for a, _ in rows], dtype=bool)
        told = np.array([a.key not in untold for a, _ in rows], dtype=bool)
        out |= {CONTRADICTED: against & told, NOT_CONTRADICTED: ~against & told}
    return out


def paired(a: BoolArray, b: BoolArray, example: IntArray, examples: int, draws: int, seed: int) -> dict[str, Any]:
    """The paired table of two answers (n,) each, with its difference and its test; nulls where nothing is counted."""
    only_a, only_b = int((a & ~b).sum()), int((~a & b).sum())
    n = len(a)
    out: dict[str, Any] = {"n": n, "both": int((a & b).sum()), "only_a": only_a, "only_b": only_b}
    out |= {"neither": n - out["both"] - only_a - only_b, "rate_a": None, "rate_b": None, "difference": None}
    out |= {"difference_ci": None, "mcnemar_p": mcnemar(only_a, only_b), "holm_p": None}
    if not n:
        return out
    out |= {
        "rate_a": (out["both"] + only_a) / n,
        "rate_b": (out["both"] + only_b) / n,
        "difference": (only_b - only_a) / n,
    }
    examples_x, row_p = np.unique(example, return_inverse=True)
    masks = (np.ones(n, dtype=bool), a & ~b, ~a & b)
    counts_xc = np.stack([np.bincount(row_p[mask], minlength=len(examples_x)) for mask in masks], axis=1).astype(float)
    if len(examples_x) > 1:
        drawn_dc = resample([Clustered(examples_x, counts_xc)], examples, draws, seed)[0].counts_dc
        out["difference_ci"] = ratio_interval(drawn_dc[:, ONLY_B] - drawn_dc[:, ONLY_A], drawn_dc[:, N])
    return out


def mcnemar(only_a: int, only_b: int) -> float | None:
    """Exact two-sided p of as uneven a split of the discordant pairs under a fair coin; None where there is none."""
    from scipy.stats import binomtest

    return float(binomtest(only_a, only_a + only_b, 0.5).pvalue) if only_a + only_b else None


def _correct(tables: Sequence[dict[str, Any]]) -> None:
    """Fills in `holm_p`: the k-th smallest of m p-values times m - k + 1, never falling, at most 1."""
    tested = sorted((table for table in tables if table["mcnemar_p"] is not None), key=lambda table: table["mcnemar_p"])
    least = 0.0
    for k, table in enumerate(tested):
        least = max(least, min(1.0, table["mcnemar_p"] * (len(tested) - k)))
        table["holm_p"] = least


def what_it_tells(result: dict[str, Any], modes: tuple[str, str], with_reference: bool) -> list[str]:
    """Sentences on what the tables show and what they cannot, from the counts at hand. `modes` are A's and B's."""
    slices = result["slices"]
    out = [
        f"{slices['overall']['says_yes']['n']} pairs come from {result['examples']} examples. McNemar's p takes pairs "
        "for independent, the intervals do not: where the two part, trust the intervals."
    ]
    if not with_reference:
        return [*out, "Without a reference this says how often A and B differ, not which of them is right."]
    out += [_difference(name, slice_["right"]) for name, slice_ in slices.items()]
    if result["untold"]:
        out.append(
            f"Of {result['untold']} pairs the reference is missing in one of the modes: whether their criterion "
            "contradicts the image is not known, and they are in neither of these slices."
        )
    if set(modes) == {"image", "text"}:
        out += _on_modes(slices, "AB"[modes.index("text")])
    return [
        *out,
        "No response here was made to please either judge: what a policy would learn to exploit, no fixed set can tell.",
    ]


def _difference(name: str, right: dict[str, Any]) -> str:
    ci = right["difference_ci"]
    if right["n"] == 0:
        return f"{name}: nothing to compare."
    if ci is None:
        return f"{name}: all pairs come from one example, or no interval was asked for; nothing about other examples."
    if ci[0] <= 0 <= ci[1]:
        apart, most = right["only_a"] + right["only_b"], max(-ci[0], ci[1])
        hidden = f"one of up to {most:.3f} could hide here" if apart else "how large a one could hide, they cannot tell"
        return f"{name}: no difference is shown ({apart} pairs set A and B apart); {hidden}."
    better, worse = ("B", "A") if ci[0] > 0 else ("A", "B")
    low, high = sorted(map(abs, ci))
    by = f"{abs(right['difference']):.3f} [{low:.3f}, {high:.3f}]"
    return f"{name}: {better} is right more often than {worse}, by {by}."


def _on_modes(slices: dict[str, Any], blind: str) -> list[str]:
    if CONTRADICTED not in slices:
        return [
            "Pairs whose criterion contradicts the image are not told apart (that takes references in both modes), so "
            "what seeing the image adds and what it costs are mixed in these figures."
        ]
    out = [
        f"{slices[CONTRADICTED]['right']['n']} pairs contradict the image. There {blind}, which does not see it, answers "
        "another question than a reference in image mode: the slice shows what hiding the image costs."
    ]
    hidden = slices[NOT_CONTRADICTED]["false_yes"]
    if hidden["difference_ci"] is None:
        return [*out, "Whether hiding the image lowers false yes (arXiv 2605.30244) cannot be told from these pairs."]
    sign = 1 if blind == "B" else -1
    low, high = sorted(sign * end for end in hidden["difference_ci"])
    effect = (
        "it lowers false yes"
        if high < 0
        else "it raises false yes"
        if low > 0
        else "it leaves false yes where it was, as far as these pairs show"
    )
    return [
        *out,
        "Does hiding the image lower false yes (arXiv 2605.30244)? Over the "
        f"{hidden['n']} no of the reference where the image changes nothing, {effect}, by "
        f"{sign * hidden['difference']:+.3f} [{low:+.3f}, {high:+.3f}] (text less image).",
    ]
