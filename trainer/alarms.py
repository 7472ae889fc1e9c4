"""When a judge has got worse: sequential tests on the teacher's word, and a reward that rises while it falls.

In: sampled verdicts in the order in which they were drawn. Out: alarms. Nothing but the stream decides, so a run that is
gone on with stands where it stood.

One Bernoulli CUSUM (Page 1954) for all sampled verdicts, and one per stratum: the judge's yes and its no, each group of
criteria, and the longer and the shorter half of a step's responses. An agreement adds log(bad / healthy), a disagreement
log((1 - bad) / (1 - healthy)), and the sum never falls below zero; at 6 it is an alarm, and starts again. With eight
verdicts a step, 600 simulated runs of 200 steps at a true agreement of .95 gave an alarm of any of these tests in 3% of
the runs; an "interval under the floor" would have alarmed on most of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .samples import Sample, weighted_agreement

HEALTHY, BAD, THRESHOLD = 0.92, 0.80, 6.0
TREND_STEPS, TREND_P = 40, 0.0003
_NAMES = {
    "all": "on all sampled verdicts",
    "yes": "where the judge says yes",
    "no": "where the judge says no",
    "long": "on the longer half of the responses",
    "short": "on the shorter half of the responses",
}


@dataclass(frozen=True)
class Alarm:
    """`stratum` agrees too little: `agreeing` of the `checked` verdicts since step `since`, when its test last stood at
    zero; `step` is that of the last of them."""

    step: int
    stratum: str
    since: int
    checked: int
    agreeing: int
    statistic: float

    def __str__(self) -> str:
        where = _NAMES.get(self.stratum, f"on criteria of the group {self.stratum}")
        return (
            f"step {self.step}: the judge no longer agrees with the teacher {where}: {self.agreeing} of {self.checked} "
            f"sampled verdicts since step {self.since} (CUSUM {self.statistic:.1f}, alarm from {THRESHOLD:g})"
        )


@dataclass(frozen=True)
class RisingAndFalling:
    """The sign of a hacked judge, between the steps `since` and `step`: means over the first and the last quarter."""

    step: int
    since: int
    reward: tuple[float, float]
    agreement: tuple[float, float]

    def __str__(self) -> str:
        return (
            f"step {self.step}: the judge may be hacked: since step {self.since} the rubric reward rose from "
            f"{self.reward[0]:.3f} to {self.reward[1]:.3f} while its agreement with the teacher fell from "
            f"{self.agreement[0]:.3f} to {self.agreement[1]:.3f}"
        )


def row_of(alarm: Alarm | RisingAndFalling) -> dict[str, Any]:
    """As a line of alarms.jsonl; `text` says it all in one sentence."""
    return {"kind": "agreement" if isinstance(alarm, Alarm) else "hacked", **asdict(alarm), "text": str(alarm)}


def strata_of(sample: Sample) -> list[str]:
    """The tests that a sampled verdict counts in."""
    answer, group = "yes" if sample.judge.verdict else "no", sample.judge.dimension or "other"
    return ["all", answer, group, "long" if sample.long else "short"]


@dataclass
class Cusum:
    """The running test of one stratum."""

    healthy: float = HEALTHY
    bad: float = BAD
    statistic: float = 0.0
    since: int = 0
    checked: int = 0
    agreeing: int = 0

    def add(self, agrees: bool) -> bool:
        """Whether this verdict brings the alarm."""
        ratio = self.bad / self.healthy if agrees else (1 - self.bad) / (1 - self.healthy)
        self.statistic = max(0.0, self.statistic + math.log(ratio))
        self.checked, self.agreeing = self.checked + 1, self.agreeing + agrees
        return self.statistic >= THRESHOLD

    def restart(self) -> None:
        self.statistic, self.checked, self.agreeing = 0.0, 0, 0


@dataclass
class Alarms:
    """All tests of a run, fed one sampled verdict after the other."""

    healthy: float = HEALTHY
    bad: float = BAD
    tests: dict[str, Cusum] = field(default_factory=dict)
    _steps: list[tuple[int, float | None, float]] = field(default_factory=list)  # step, reward, agreement
    _step: list[Sample] = field(default_factory=list)  # the samples of the step that is not over
    _hacked: bool = False

    def take(self, sample: Sample) -> list[Alarm | RisingAndFalling]:
        """The alarms that this verdict brings. One that the teacher did not answer brings none."""
        found = self.end_step() if self._step and self._step[-1].step != sample.step else []
        self._step.append(sample)
        if sample.teacher.verdict is None:
            return found
        agrees = sample.teacher.verdict is sample.judge.verdict
        for name in strata_of(sample):
            test = self.tests.setdefault(name, Cusum(self.healthy, self.bad))
            if not test.statistic:
                test.restart()
                test.since = sample.step
            if test.add(agrees):
                found.append(Alarm(sample.step, name, test.since, test.checked, test.agreeing, test.statistic))
                test.restart()
        return found

    def end_step(self) -> list[Alarm | RisingAndFalling]:
        """Closes the step that the last samples are of: whether reward and agreement part, told once when it begins."""
        agreement = weighted_agreement(self._step)["agreement"]
        if agreement is not None:
            self._steps = [*self._steps, (self._step[-1].step, self._step[-1].reward, agreement)][-TREND_STEPS:]
        self._step = []
        found = rising_and_falling(self._steps)
        news: list[Alarm | RisingAndFalling] = [found] if found and not self._hacked else []
        self._hacked = found is not None
        return news


def rising_and_falling(steps: Sequence[tuple[int, float | None, float]]) -> RisingAndFalling | None:
    """Whether over the last 40 steps (step, reward, agreement), steps without a reward left out, the reward rises and
    the agreement falls, each by Kendall's rank correlation with the step (the Mann-Kendall trend test), one-sided at
    .0003. With fewer steps than that there is no telling. While the reward rises all the time and the agreement stays at
    .95, one of a hundred simulated runs of 200 steps comes to be named (8 verdicts a step, all windows)."""
    known = [(step, reward, agreement) for step, reward, agreement in steps if reward is not None][-TREND_STEPS:]
    if len(known) < TREND_STEPS:
        return None
    at, rewards, agreements = zip(*known, strict=True)
    if not (_trend(agreements, "less") and _trend(rewards, "greater")):
        return None
    quarter = TREND_STEPS // 4

    def ends(values: Sequence[float]) -> tuple[float, float]:
        return sum(values[:quarter]) / quarter, sum(values[-quarter:]) / quarter

    return RisingAndFalling(at[-1], at[0], ends(rewards), ends(agreements))


def _trend(values: Sequence[float], direction: str) -> bool:
    from scipy.stats import kendalltau

    if len(set(values)) == 1:
        return False
    found: Any = kendalltau(range(len(values)), values, alternative=direction)
    return bool(found.pvalue < TREND_P)
