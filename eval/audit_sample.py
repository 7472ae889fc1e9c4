"""Which pairs of a response and a criterion people are asked about: a stratified draw whose chances are known.

In: examples, rollouts, and the verdicts of one or two judges on them. Out: the drawn pairs, each with its stratum, the
judges' spans, and the chance that it had to be drawn; one over that chance undoes the sampling.

A stratum is a source, a difficulty, a dimension and each judge's verdict. A stratum of N pairs is expected to give
min(N, lambda sqrt(N)) of them, with lambda such that they add up to the number wanted (Bankier 1988, power allocation):
rare strata, where the judges differ say, are asked about more often than their share, without weights so unlike that a
few pairs decide every weighted figure. The pairs are then drawn systematically (Madow 1949): each with exactly its
chance, exactly as many as wanted, and every stratum with its expected number, rounded up or down.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..verifier.errors import InputError
from ..verifier.schema import Criterion, Example, Rollout, Verdict
from ..verifier.tables import pair_up
from .pairs import check_example

Span = tuple[int, int]
NONE = "none"  # of an example without source or difficulty, and of a criterion without dimension


@dataclass(frozen=True, eq=False)
class Pair:
    """A response and a criterion. `verdicts` has "yes", "no" or "missing" of each judge; `spans` the deciding sentences,
    in characters of the response, of those that point at one."""

    example: Example
    rollout: Rollout
    criterion: Criterion
    verdicts: tuple[str, ...]
    spans: tuple[Span, ...]

    @property
    def stratum(self) -> tuple[str, ...]:
        source, difficulty = self.example.source or NONE, self.example.difficulty or NONE
        return (source, difficulty, self.criterion.group or NONE, *self.verdicts)


@dataclass(frozen=True, eq=False)
class Drawn:
    """A pair, and the chance in (0, 1] that it had to be drawn."""

    pair: Pair
    chance: float

    @property
    def weight(self) -> float:
        return 1 / self.chance


def population(
    examples: Sequence[Example], rollouts: Sequence[Rollout], tables: Mapping[str, Sequence[Verdict]]
) -> tuple[list[Pair], dict[str, int], dict[str, int]]:
    """All pairs that every table judges (a missing verdict counts), by table how many it leaves out, and how many of its
    verdicts are on other responses or criteria than these. `tables` has the verdicts by name. Raises InputError where a
    table judges a pair twice, its example or span does not fit the response, or no pair is left."""
    judged = {name: _by_pair(verdicts, name) for name, verdicts in tables.items()}
    pairs: list[Pair] = []
    left_out = dict.fromkeys(tables, 0)
    items = pair_up(examples, rollouts)
    for example, rollout in items:
        for criterion in example.criteria:
            found = {name: by_pair.get((rollout.rollout_id, criterion.id)) for name, by_pair in judged.items()}
            verdicts = [verdict for verdict in found.values() if verdict is not None]
            for verdict in verdicts:
                check_example(verdict, rollout)
            if len(verdicts) < len(found):
                left_out |= {name: left_out[name] + (verdict is None) for name, verdict in found.items()}
                continue
            spans = tuple(dict.fromkeys(_span(verdict, rollout) for verdict in verdicts if verdict.span))
            pairs.append(Pair(example, rollout, criterion, tuple(map(_says, verdicts)), spans))
    if not pairs:
        raise InputError(
            f"no criterion of these rollouts is judged in {' and in '.join(tables)}; give verdicts on these rollouts"
        )
    there = {(rollout.rollout_id, criterion.id) for example, rollout in items for criterion in example.criteria}
    return pairs, left_out, {name: len(by_pair.keys() - there) for name, by_pair in judged.items()}


def _by_pair(verdicts: Sequence[Verdict], name: str) -> dict[tuple[str, str], Verdict]:
    by_pair = {verdict.key: verdict for verdict in verdicts}
    if len(by_pair) < len(verdicts):
        (rollout_id, criterion_id), _ = Counter(verdict.key for verdict in verdicts).most_common(1)[0]
        raise InputError(
            f"{name} judges a criterion of a rollout twice (rollout {rollout_id!r}, criterion {criterion_id!r}); keep "
            "one verdict for each, of one mode"
        )
    return by_pair


def _says(verdict: Verdict) -> str:
    return "missing" if verdict.verdict is None else "yes" if verdict.verdict else "no"


def _span(verdict: Verdict, rollout: Rollout) -> Span:
    start, end = verdict.span or (0, 0)
    if end > len(rollout.response):
        raise InputError(
            f"the span of rollout {rollout.rollout_id!r}, criterion {verdict.criterion_id!r} ends at {end}, but the "
            f"response has {len(rollout.response)} characters; give the rollouts that were judged"
        )
    return start, end


def allocate(sizes: Mapping[tuple[str, ...], int], count: int) -> dict[tuple[str, ...], float]:
    """How many pairs of each stratum are expected among `count`: min(N, lambda sqrt(N)); all where there are no more."""
    if count >= sum(sizes.values()):
        return {stratum: float(size) for stratum, size in sizes.items()}
    whole: set[tuple[str, ...]] = set()  # strata taken as a whole
    while True:
        rest = {stratum: size for stratum, size in sizes.items() if stratum not in whole}
        factor = (count - sum(sizes[stratum] for stratum in whole)) / sum(size**0.5 for size in rest.values())
        full = {stratum for stratum, size in rest.items() if factor * size**0.5 >= size}
        if not full:
            return {s: float(size) if s in whole else factor * size**0.5 for s, size in sizes.items()}
        whole |= full


def draw(pairs: Sequence[Pair], count: int, seed: int) -> list[Drawn]:
    """`count` of the pairs (all, where there are fewer), in random order. Raises InputError for a count below 1 or a
    negative seed."""
    if count < 1 or seed < 0:
        raise InputError(f"the count is {count} and the seed {seed}; draw at least 1 pair, with a seed of 0 or more")
    rng = np.random.default_rng(seed)
    strata: dict[tuple[str, ...], list[Pair]] = defaultdict(list)
    for pair in pairs:
        strata[pair.stratum].append(pair)
    expected = allocate({stratum: len(members) for stratum, members in strata.items()}, count)
    drawn: list[Drawn] = []
    open_: list[Drawn] = []  # pairs that may be drawn or not, stratum by stratum, in random order within each
    for stratum in sorted(strata):
        members, chance = strata[stratum], expected[stratum] / len(strata[stratum])
        shuffled = [Drawn(members[index], chance) for index in rng.permutation(len(members))]
        (drawn if chance >= 1 else open_).extend(shuffled)
    points = np.arange(min(count, len(pairs)) - len(drawn)) + rng.random()
    reached = np.cumsum([candidate.chance for candidate in open_])
    chosen = np.searchsorted(reached, points, side="right").clip(max=len(open_) - 1)
    drawn += [open_[index] for index in chosen]
    return [drawn[index] for index in rng.permutation(len(drawn))]


def effective_size(drawn: Sequence[Drawn]) -> float:
    """How many pairs of equal weight would tell as much as these (Kish): (sum of w)^2 / sum of w^2."""
    weights = np.array([one.weight for one in drawn])
    return float(weights.sum() ** 2 / (weights**2).sum())


def mark_tells(drawn: Sequence[Drawn]) -> dict[str, dict[str, int]]:
    """What the first judge says where some judge points at a sentence ("marked") and where none does ("unmarked")."""
    out: dict[str, dict[str, int]] = {"marked": Counter(), "unmarked": Counter()}
    for one in drawn:
        out["marked" if one.pair.spans else "unmarked"][one.pair.verdicts[0]] += 1
    return {name: dict(sorted(counts.items())) for name, counts in out.items()}
