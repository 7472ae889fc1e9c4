"""From counts of verdict pairs to figures: rates, kappa, AC1, F1, calibration error and spans; AUROC from ranks.

In: counts, one row per example or per bootstrap draw, with the columns below (A is the reference, B the other judge).
Out: each figure as numerator and denominator, so that what has no basis is known as such and never becomes NaN.

    agreement            share of equal verdicts
    balanced_accuracy    mean of the shares of A's yes and of A's no that B meets
    kappa, ac1           chance-corrected: (p_o - p_e) / (1 - p_e) with Cohen's p_e, the sum of products of the marginals,
                         or Gwet's, 2 q (1 - q) with q the mean share of yes (2008, doi 10.1348/000711006X126600)
    false_yes, false_no  share of yes in B among A's no, and of no in B among A's yes
    f1_yes, f1_no        2 TP / (2 TP + FP + FN) with yes, or no, as the class to find
    auroc                chance that B's P(yes) is higher for a yes of A than for a no, ties counting half
    ece                  calibration error of B's P(yes) against A's verdicts, 15 bins of equal width
    span_exact           share of B's spans that are A's, where A has one; span_iou: overlap over union in characters
    span_end_chars       mean distance of the spans' ends where both have one, in characters; span_end_tokens: in tokens
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Ratio = tuple[FloatArray, FloatArray]

# Columns of the counts: A and B both yes, A yes and B no, A no and B yes, both no; missing; where A has a span: pairs,
# equal spans, sum of overlaps; where both have one: pairs and sum of distances, in characters and in tokens; pairs where
# B gives P(yes); and per bin of P(yes) the sum of P(yes) less the number of A's yes.
YES_YES, YES_NO, NO_YES, NO_NO, MISSING_A, MISSING_B = range(6)
SPANS, EXACT, IOU, ENDS, END_CHARS, TOKEN_ENDS, END_TOKENS, WITH_P, FIRST_BIN = range(6, 15)
ECE_BINS = 15
COLUMNS = FIRST_BIN + ECE_BINS

METRICS = ("agreement", "balanced_accuracy", "kappa", "ac1", "false_yes", "false_no", "f1_yes", "f1_no", "auroc", "ece")
METRICS += ("span_exact", "span_iou", "span_end_chars", "span_end_tokens")
NO_SPANS = "the reference points at no sentence in these pairs"
NO_ENDS = "no pair has a span on both sides"


def ratios(counts_xc: FloatArray) -> dict[str, Ratio]:
    """Numerator and denominator, (...,) each, of every figure but AUROC; a denominator of 0: the figure has no basis."""
    yy, yn, ny, nn = (counts_xc[..., c] for c in (YES_YES, YES_NO, NO_YES, NO_NO))
    n, yes, no = yy + yn + ny + nn, yy + yn, ny + nn
    by_chance = yes * (yy + ny) + no * (yn + nn)  # n^2 times Cohen's p_e
    both_yes = 2 * yy + yn + ny
    gwet = both_yes * (2 * n - both_yes)  # 2 n^2 times Gwet's p_e
    gaps = np.abs(counts_xc[..., FIRST_BIN : FIRST_BIN + ECE_BINS]).sum(-1)
    return {
        "agreement": (yy + nn, n),
        "balanced_accuracy": (yy * no + nn * yes, 2 * yes * no),
        "kappa": ((yy + nn) * n - by_chance, n * n - by_chance),
        "ac1": (2 * n * (yy + nn) - gwet, 2 * n * n - gwet),
        "false_yes": (ny, no),
        "false_no": (yn, yes),
        "f1_yes": (2 * yy, both_yes),
        "f1_no": (2 * nn, 2 * nn + yn + ny),
        "ece": (gaps, counts_xc[..., WITH_P]),
        "span_exact": (counts_xc[..., EXACT], counts_xc[..., SPANS]),
        "span_iou": (counts_xc[..., IOU], counts_xc[..., SPANS]),
        "span_end_chars": (counts_xc[..., END_CHARS], counts_xc[..., ENDS]),
        "span_end_tokens": (counts_xc[..., END_TOKENS], counts_xc[..., TOKEN_ENDS]),
    }


def basis(counts_ec: FloatArray) -> dict[str, int]:
    """On how many examples each figure rests: those with a pair that it counts."""

    def examples(*columns: int) -> int:
        return int(counts_ec[:, columns].any(axis=1).sum())

    known, yes, no = examples(YES_YES, YES_NO, NO_YES, NO_NO), examples(YES_YES, YES_NO), examples(NO_YES, NO_NO)
    of = dict.fromkeys(METRICS, known)
    of |= {"balanced_accuracy": min(yes, no), "false_yes": no, "false_no": yes}
    of |= {"auroc": min(yes, no, examples(WITH_P)), "ece": examples(WITH_P)}
    of |= dict.fromkeys(("span_exact", "span_iou"), examples(SPANS))
    return of | {"span_end_chars": examples(ENDS), "span_end_tokens": examples(TOKEN_ENDS)}


def why_undefined(name: str, total_c: FloatArray) -> str:
    """The reason why a figure has no value, from the counts of all pairs."""
    yes, no = total_c[YES_YES] + total_c[YES_NO], total_c[NO_YES] + total_c[NO_NO]
    if yes + no == 0:
        return "no verdict is known on both sides"
    one_class = f"the reference never says {'no' if yes else 'yes'}"
    if name == "kappa":
        return "both judges are constant and alike"
    if name in ("f1_yes", "f1_no"):
        return f"neither judge ever says {name.removeprefix('f1_')}"
    if name in ("auroc", "ece") and not total_c[WITH_P]:
        return "the other table gives no P(yes)"
    if name in ("span_exact", "span_iou"):
        return NO_SPANS
    if name == "span_end_tokens" and total_c[ENDS]:
        return "no tokenizer was given"
    if name in ("span_end_chars", "span_end_tokens"):
        return NO_ENDS if total_c[SPANS] else NO_SPANS
    return one_class


def constant(total_c: FloatArray, yes_columns: tuple[int, int], no_columns: tuple[int, int]) -> str | None:
    """ "yes" or "no" where a judge says nothing else; None where it says both, or nothing at all."""
    yes, no = total_c[list(yes_columns)].sum(), total_c[list(no_columns)].sum()
    return None if bool(yes) == bool(no) else "yes" if yes else "no"


def span_iou(a: IntArray, b: IntArray) -> FloatArray:
    """(n,) intersection over union of half-open intervals (n, 2) in characters; 1 for equal ones, even if empty."""
    shared = np.maximum(0, np.minimum(a[:, 1], b[:, 1]) - np.maximum(a[:, 0], b[:, 0]))
    union = a[:, 1] - a[:, 0] + b[:, 1] - b[:, 0] - shared
    return np.where((a == b).all(axis=1), 1.0, shared / np.maximum(union, 1))


@dataclass(frozen=True, eq=False)
class Ranked:
    """The pairs in order of P(yes), made once and then weighed anew for each bootstrap draw."""

    yes_example: IntArray  # the example of each pair where A says yes, by rising P(yes)
    no_example: IntArray  # the same where A says no
    below: IntArray  # for each yes: the number of no with a lower P(yes), and with one that is not higher
    through: IntArray

    @classmethod
    def of(cls, p_yes: FloatArray, yes: NDArray[np.bool_], example: IntArray) -> Ranked:
        order = np.argsort(p_yes, kind="stable")
        p_yes, yes, example = p_yes[order], yes[order], example[order]
        sides = [np.searchsorted(p_yes[~yes], p_yes[yes], side) for side in ("left", "right")]
        return cls(example[yes], example[~yes], *sides)

    def auroc(self, weight_e: FloatArray) -> float | None:
        """Mann and Whitney's statistic with each pair counted as often as its example; None where no yes, or no no, is
        left. The weights are whole numbers, so the sums are exact."""
        yes, no = weight_e[self.yes_example], weight_e[self.no_example]
        no_before = np.concatenate([[0.0], np.cumsum(no)])
        of = 2 * yes.sum() * no_before[-1]
        return float(yes @ (no_before[self.below] + no_before[self.through]) / of) if of else None
