"""Which band of P(yes) a cascade gives to the teacher: chosen for a wanted agreement, and what each band costs.

In: the verdicts of teacher (the reference) and verifier on the same pairs of rollout and criterion. Out: the dictionary
that `claimwise cascade band --json` prints. Pure; nobody is asked anything.

Of n pairs that both judges know, a band holds k; the verifier answers the other n - k, r of them like the teacher:

    agreement   (r + c k) / n, with c the teacher's agreement with itself where it is asked again (1: it never wavers)
    coverage    (n - k) / n, what the verifier answers alone; calls per 1,000 verdicts are 1,000 k / n

Of all bands around 0.5 those stay that no band of as few calls beats (`frontier`). The cheapest is chosen whose lower
bound reaches the wanted agreement: the lesser of the lower ends of two 95% intervals, a bootstrap's over examples, and
Wilson's for the verifier's own answers, without which a band that holds every mistake of the sample would look faultless.
Choosing among many bands flatters the chosen one all the same, so it is measured on examples that had no part in that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..verifier.cascade import Band
from ..verifier.errors import InputError
from ..verifier.schema import Verdict
from .bootstrap import draw_weights
from .metrics import FloatArray, IntArray
from .pairs import BoolArray, Names, as_arrays, matched

SCHEMA_VERSION = 1
THRESHOLDS = 120  # to a side of 0.5, close together near it
Z = 1.959964  # of a 95% interval
SHOWN = (
    0,
    0.0025,
    0.005,
    0.01,
    0.02,
    0.03,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.5,
    0.75,
    1,
)  # shares asked, of the curve
EVERYTHING = Band(0.0, 1.0)


@dataclass(frozen=True, eq=False)
class Validation:
    """n pairs: the number of each one's example, the verifier's P(yes) (NaN: none, so never in a band), and whether it
    says what the teacher says."""

    example: IntArray
    p_yes: FloatArray
    right: BoolArray

    def __len__(self) -> int:
        return len(self.right)

    @property
    def examples(self) -> int:
        return len(np.unique(self.example))

    def part(self, chosen: BoolArray) -> Validation:
        return Validation(self.example[chosen], self.p_yes[chosen], self.right[chosen])


@dataclass(frozen=True)
class Point:
    """What a band brings; None: the verifier alone, which no band is, since each holds a P(yes) of 0.5. Intervals are
    95%, None where one example cannot give any; `lowest` is the lower bound that a choice goes by."""

    band: Band | None
    agreement: float
    agreement_ci: list[float] | None
    lowest: float
    coverage: float
    coverage_ci: list[float] | None
    calls: int

    def as_dict(self, price: float | None) -> dict[str, Any]:
        calls = 1000 * (1 - self.coverage)
        return {
            "low": None if self.band is None else self.band.low,
            "high": None if self.band is None else self.band.high,
            **{k: v for k, v in vars(self).items() if k not in ("band", "lowest")},
            "agreement_at_least": self.lowest,
            "calls_per_1000": calls,
            "cost_per_1000": None if price is None else price * calls,
        }


def choose_band(
    reference: Sequence[Verdict],
    verifier: Sequence[Verdict],
    wanted: float,
    share: float = 0.5,
    ceiling: float = 1.0,
    price: float | None = None,
    draws: int = 1000,
    seed: int = 0,
    names: Names = ("the teacher's table", "the verifier's table"),
) -> dict[str, Any]:
    """The band, chosen on that share of the examples and measured on the rest, with the curve; see above.

    Raises InputError where the tables do not judge the same pairs, a number is out of its range, the verifier gives no
    P(yes) or is not one judge, or no band reaches the agreement `wanted`.
    """
    _check(wanted, share, ceiling, price, draws, seed)
    pairs = as_arrays(matched(reference, verifier, names))
    everything = Validation(pairs.example, pairs.p_yes, pairs.a == pairs.b).part(pairs.known)
    by = _who(verifier, names[1])
    unrated = _unrated(everything, names[1])
    chosen_on, rest = split(everything, share, seed)
    points = measure(chosen_on, frontier(chosen_on, ceiling), ceiling, draws, seed)
    best = cheapest(points, wanted, chosen_on)
    judged = rest if len(rest) else chosen_on
    assert best.band is not None  # it is one of the frontier
    curve = measure(judged, [None, *_by_cost({*_thinned(points), best.band}, judged)], ceiling, draws, seed)
    of = {point.band: point.as_dict(price) for point in curve}
    return {
        "schema_version": SCHEMA_VERSION,
        "band": [best.band.low, best.band.high],
        "wanted": wanted,
        "ceiling": ceiling,
        "price": price,
        "verifier": by,
        "teacher": {name: sorted({getattr(v, name) for v in reference}) for name in ("judge", "mode")},
        "missing": {"teacher": int((pairs.a < 0).sum()), "verifier": int((pairs.b < 0).sum())},
        "unrated": unrated,
        "chosen_on": {"examples": chosen_on.examples, "verdicts": len(chosen_on), **best.as_dict(price)},
        "held_out": {"examples": rest.examples, "verdicts": len(rest), **of[best.band]} if len(rest) else None,
        "verifier_alone": of[None],
        "curve": list(of.values()),
    }


def _unrated(validation: Validation, name: str) -> int:
    """How many verdicts have no P(yes). Raises InputError where none has."""
    unrated = int(np.isnan(validation.p_yes).sum())
    if unrated == len(validation):
        raise InputError(f"{name} gives no P(yes) beside a verdict of the teacher; a band cannot be chosen")
    return unrated


def _by_cost(bands: Iterable[Band], judged: Validation) -> list[Band]:
    """By the verdicts that they give to the teacher, the narrower first."""
    return sorted(bands, key=lambda band: (int(_inside(judged, band).sum()), band.high - band.low))


def split(validation: Validation, share: float, seed: int) -> tuple[Validation, Validation]:
    """That share of the examples, drawn at random, and the others."""
    ids = np.unique(validation.example)
    if len(ids) < 4:
        raise InputError(f"the tables judge {len(ids)} examples that both judges know; a band needs at least 4")
    count = len(ids) if share == 1 else int(np.clip(round(share * len(ids)), 2, len(ids) - 2))
    mine = np.isin(validation.example, np.random.default_rng(seed).permutation(ids)[:count])
    return validation.part(mine), validation.part(~mine)


def frontier(validation: Validation, ceiling: float = 1.0) -> list[Band]:
    """The bands that no other band of as few calls beats, by rising calls, from the narrowest to the widest. From where
    more calls make nothing better in this sample, one band for each tenth more: with fewer verdicts of the verifier's
    own, less is left to chance."""
    rated = ~np.isnan(validation.p_yes)
    p, wrong = validation.p_yes[rated], ~validation.right[rated]
    order = np.argsort(p, kind="stable")
    p, wrong_before = p[order], np.concatenate([[0], np.cumsum(wrong[order])])
    lows = [0.5 - d for d in _distances(0.5 - p[p <= 0.5])]
    highs = [0.5 + d for d in _distances(p[p >= 0.5] - 0.5)]
    lows, highs = (
        sorted({_rounded(low) for low in lows}),
        sorted({float(f"{1 - _rounded(1 - high):.12g}") for high in highs}),
    )
    first_l, end_h = np.searchsorted(p, lows, "left"), np.searchsorted(p, highs, "right")
    calls_lh = end_h - first_l[:, None]
    wrong_lh = wrong_before[end_h] - wrong_before[first_l][:, None]
    gain_lh = wrong_lh - (1 - ceiling) * calls_lh  # mistakes made good, less what the teacher makes of its own
    gains, calls = gain_lh.ravel(), calls_lh.ravel()
    widths = (np.array(highs) - np.array(lows)[:, None]).ravel()
    best, last, kept = -np.inf, 0, []
    for index in np.lexsort((widths, -gains, calls)):  # of bands alike in this sample the narrowest: others hold more
        no_better = gains[index] > gains.max() - 1e-9 and calls[index] >= 1.1 * last + 1
        if gains[index] > best + 1e-9 or no_better:
            best, last = gains[index], calls[index]
            kept.append(Band(lows[index // len(highs)], highs[index % len(highs)]))
    return kept if kept[-1] == EVERYTHING else [*kept, EVERYTHING]


def _distances(distance_p: FloatArray) -> FloatArray:
    """Distances from 0.5 at which a band may end: 0, then about as many as THRESHOLDS of those that occur, and 0.5."""
    ordered = np.sort(distance_p)
    places = np.unique(np.geomspace(1, len(ordered), THRESHOLDS).round().astype(int)) - 1 if len(ordered) else []
    return np.unique(np.concatenate([[0.0], ordered[places], [0.5]]))


def _rounded(end: float) -> float:
    """To three digits, so that a band can be read and typed."""
    return float(f"{max(0.0, end):.3g}")


def measure(validation: Validation, bands: Sequence[Band | None], ceiling: float, draws: int, seed: int) -> list[Point]:
    """Each band on these pairs, all under the same bootstrap draws."""
    examples, row = np.unique(validation.example, return_inverse=True)
    inside_bp = np.array([_inside(validation, band) for band in bands])
    counts_xb, right_xb = (
        np.stack([np.bincount(row, of, minlength=len(examples)) for of in table_bp], axis=1)
        for table_bp in (inside_bp, ~inside_bp & validation.right)
    )
    size_x = np.bincount(row, minlength=len(examples)).astype(float)
    calls_db, agreed_db, size_d = [], [], []
    for weights_de in draw_weights(len(examples), draws if len(examples) > 1 else 0, seed):
        calls_db.append(weights_de @ counts_xb)
        agreed_db.append(weights_de @ right_xb + ceiling * calls_db[-1])
        size_d.append(weights_de @ size_x)
    n, points = len(validation), []
    drawn = [np.concatenate(of) for of in (calls_db, agreed_db, size_d)] if size_d else None
    for b, band in enumerate(bands):
        calls, right = int(counts_xb[:, b].sum()), float(right_xb[:, b].sum())
        own = (ceiling * calls + (n - calls) * wilson_lower(right, n - calls)) / n
        agreed = covered = None
        if drawn is not None:
            agreed, covered = drawn[1][:, b] / drawn[2], 1 - drawn[0][:, b] / drawn[2]
        low = own if agreed is None else min(own, float(np.quantile(agreed, 0.025)))
        agreement = (right + ceiling * calls) / n
        points.append(Point(band, agreement, _ci(agreed), low, 1 - calls / n, _ci(covered), calls))
    return points


def _ci(values_d: FloatArray | None) -> list[float] | None:
    return None if values_d is None else [float(end) for end in np.quantile(values_d, [0.025, 0.975])]


def wilson_lower(hits: float, count: float) -> float:
    """The lower end of Wilson's 95% interval of a rate; 1 of nothing."""
    if not count:
        return 1.0
    rate, z, zz = hits / count, Z, Z * Z / count
    return max(0.0, (rate + zz / 2 - z * math.sqrt(rate * (1 - rate) / count + zz / (4 * count))) / (1 + zz))


def cheapest(points: Sequence[Point], wanted: float, chosen_on: Validation) -> Point:
    """The first point whose lower bound reaches the agreement wanted."""
    for point in points:
        if point.lowest >= wanted:
            return point
    most = max(points, key=lambda point: point.lowest)
    raise InputError(
        f"no band reaches an agreement of {wanted:g} for certain on {len(chosen_on)} verdicts: the most is "
        f"{most.lowest:.4f} (lower 95% bound; {most.agreement:.4f} as measured) with {most.calls} of them asked; "
        "want less, or give more verdicts"
    )


def _inside(validation: Validation, band: Band | None) -> BoolArray:
    if band is None:
        return np.zeros(len(validation), dtype=bool)
    return (validation.p_yes >= band.low) & (validation.p_yes <= band.high)


def _thinned(points: Sequence[Point]) -> list[Band]:
    """The last band within each share of SHOWN."""
    within = [[p.band for p in points if p.band and p.calls and 1 - p.coverage <= share + 1e-9] for share in SHOWN]
    return [bands[-1] for bands in within if bands]


def _who(verdicts: Sequence[Verdict], name: str) -> dict[str, Any]:
    judges = {(v.judge, v.mode, v.prompt_hash) for v in verdicts}
    if len(judges) != 1:
        raise InputError(f"{name} holds verdicts of {len(judges)} judges or prompts; P(yes) of one judge makes a band")
    return dict(zip(("judge", "mode", "prompt_hash"), judges.pop(), strict=True))


def _check(wanted: float, share: float, ceiling: float, price: float | None, draws: int, seed: int) -> None:
    for name, value in (("agreement wanted", wanted), ("share of examples", share), ("ceiling", ceiling)):
        if not 0 < value <= 1:
            raise InputError(f"the {name} is {value}; it must be above 0 and at most 1")
    if price is not None and not 0 <= price < np.inf:
        raise InputError(f"the price of a call is {price}; it cannot be negative")
    if draws < 100 or seed < 0:
        raise InputError(f"draws is {draws} and seed {seed}; a bound needs at least 100 draws, and no negative seed")
