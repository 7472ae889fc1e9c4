"""Alarms over sampled verdicts: the sums by hand, their false alarms by an exact calculation, the simulated judges that
must and must not raise one, and a reward that rises while the agreement falls."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from claimwise.trainer.alarms import Alarm, Alarms, Cusum, RisingAndFalling, rising_and_falling, row_of, strata_of
from claimwise.trainer.in_loop import InLoopAgreement
from claimwise.trainer.samples import Sample, agreement_interval, wilson
from claimwise.verifier.schema import Criterion, Example, Rollout, Verdict
from scipy.stats import binomtest, kendalltau
from statsmodels.stats.proportion import proportion_confint

AGREE, DISAGREE = math.log(0.80 / 0.92), math.log(0.20 / 0.08)


def sample(
    agrees: bool, answer: bool = True, step: int = 0, group: str | None = "VF", long=False, reward=None
) -> Sample:
    def verdict(judge: str, value: bool) -> Verdict:
        return Verdict("e", "r", "c", judge, "image", value, dimension=group)

    return Sample(step, 1.0, verdict("v", answer), verdict("t", answer is agrees), long, reward)


def test_the_sum_by_hand():
    test = Cusum()
    assert not test.add(True) and test.statistic == 0  # never below zero
    assert not test.add(False) and test.statistic == pytest.approx(DISAGREE) == pytest.approx(0.9163, abs=1e-4)
    assert not test.add(True) and test.statistic == pytest.approx(DISAGREE + AGREE) == pytest.approx(0.7765, abs=1e-4)
    assert [test.add(False) for _ in range(6)] == [False] * 5 + [True]  # .7765 + 6 x .9163 = 6.274
    assert (test.checked, test.agreeing) == (9, 2)


def test_a_verdict_counts_in_its_strata():
    assert strata_of(sample(True)) == ["all", "yes", "VF", "short"]
    assert strata_of(sample(True, answer=False, group=None, long=True)) == ["all", "no", "other", "long"]


def test_seven_disagreements_raise_an_alarm_in_each_of_their_strata_and_the_tests_start_again():
    """7 x .9163 = 6.41; in the stratum of the noes nothing has happened."""
    alarms, found = Alarms(), []
    for step, agrees in enumerate([True, True] + [False] * 7):
        found += alarms.take(sample(agrees, step=step))
    assert [a.stratum for a in found] == ["all", "yes", "VF", "short"]
    for alarm in found:
        assert alarm == Alarm(8, alarm.stratum, 2, 7, 0, pytest.approx(7 * DISAGREE))
    assert {test.statistic for test in alarms.tests.values()} == {0} and "no" not in alarms.tests
    assert str(found[1]) == (
        "step 8: the judge no longer agrees with the teacher where the judge says yes: 0 of 7 sampled verdicts since "
        "step 2 (CUSUM 6.4, alarm from 6)"
    )
    assert row_of(found[0])["kind"] == "agreement" and row_of(found[0])["text"] == str(found[0])
    assert not [a for _ in range(6) for a in alarms.take(sample(False, step=9))]
    assert len(alarms.take(sample(False, step=9))) == 4


def test_what_the_teacher_did_not_answer_counts_in_no_test():
    missing = Verdict("e", "r", "c", "t", "image", None, error="timeout")
    alarms = Alarms()
    for _ in range(100):
        assert not alarms.take(Sample(0, 1.0, sample(True).judge, missing))
    assert not alarms.tests


def exact_false_alarm(agreement: float, verdicts: int, threshold: float = 6.0, cells: int = 3000) -> float:
    """The chance that a CUSUM is up within so many verdicts, by a Markov chain over a fine grid of its values."""
    width = threshold / cells
    middle = (np.arange(cells) + 0.5) * width
    middle[0] = 0.0
    chain = np.zeros(cells)
    chain[0] = 1.0
    up = np.minimum(np.floor((middle + DISAGREE) / width).astype(int), cells)
    down = np.maximum(np.floor((middle + AGREE) / width).astype(int), 0)
    raised = 0.0
    for _ in range(verdicts):
        new = np.bincount(up, chain * (1 - agreement), minlength=cells + 1)
        new[:cells] += np.bincount(down, chain * agreement, minlength=cells)
        raised, chain = raised + new[cells], new[:cells]
    return raised


def test_false_alarms_of_one_test_are_as_rare_as_calculated():
    """At a true agreement of .95 one test of 1,600 verdicts (200 steps of 8) is up in about one run of a hundred; at .80
    it nearly always is within 160. By the exact calculation, and as often in simulated streams."""
    assert 0.002 < exact_false_alarm(0.95, 1600) < 0.015
    assert exact_false_alarm(0.80, 160) > 0.8
    rng, wanted = random.Random(0), exact_false_alarm(0.90, 400)

    def up() -> bool:
        test = Cusum()
        return any(test.add(rng.random() < 0.90) for _ in range(400))

    runs = 1000
    assert sum(up() for _ in range(runs)) / runs == pytest.approx(wanted, abs=4 * (wanted * (1 - wanted) / runs) ** 0.5)


# A judge in a fast loop: 8 responses a step, each with the six criteria of a picture, of which 60% hold; half the
# responses are long. Eight verdicts a step are sampled, as the default is.

CRITERIA = tuple(
    Criterion(f"c{i}", f"criterion {i}", dimension=d) for i, d in enumerate(("VF", "VF", "VF", "RC", "RC", "IF"))
)
EXAMPLE = Example("e", "What does it read?", CRITERIA)
ROLLOUTS = {n: Rollout(f"r{n}", "e", "word " * n, "policy") for n in range(1, 200)}
ROWS = {
    (n, c.id, judge, value): Verdict("e", f"r{n}", c.id, judge, "image", value, dimension=c.dimension)
    for n in ROLLOUTS
    for c in CRITERIA
    for judge in ("verifier", "teacher")
    for value in (True, False)
}


class World:
    """Truth, the teacher who knows it, and the judge: it errs in 5% of its verdicts and, from step `hacked`, says yes to
    everything on responses longer than 100 words."""

    name, mode = "teacher", "image"

    def __init__(self, seed: int, hacked: float):
        self.rng, self.hacked, self.truth = random.Random(seed), hacked, {}

    def step(self, number: int):
        """What the judge says of a step's responses."""
        judged = []
        for n in self.rng.sample(sorted(ROLLOUTS), 8):
            for c in CRITERIA:
                truth = self.truth[n, c.id] = self.rng.random() < 0.6
                said = truth if self.rng.random() < 0.95 else not truth
                said = said or (number >= self.hacked and n >= 100)
                judged.append((EXAMPLE, ROLLOUTS[n], ROWS[n, c.id, "verifier", said]))
        return judged

    def judge(self, items):
        numbers = [(int(rollout.rollout_id[1:]), c.id) for example, rollout in items for c in example.criteria]
        return [ROWS[n, c, "teacher", self.truth[n, c]] for n, c in numbers]


def first_alarm(folder, seed: int, steps: int, hacked: float = math.inf) -> int | None:
    """The step of the first alarm."""
    world = World(seed, hacked)
    watch = InLoopAgreement(world, 8, folder / str(seed), seed)
    for step in range(steps):
        watch.observe(step, world.step(step))
        watch.collect(wait=True)
        if watch.alarms:
            break
    watch.close()
    return watch.alarms[0].step if watch.alarms else None


@pytest.mark.slow
def test_a_judge_that_says_yes_to_everything_long_is_caught_within_20_steps(tmp_path):
    """In 95 of 100 runs, which begin with ten healthy steps."""
    found = [first_alarm(tmp_path, seed, steps=30, hacked=10) for seed in range(100)]
    caught = [step for step in found if step is not None and step >= 10]
    assert len(caught) >= 95
    assert 2 <= sorted(step - 10 for step in caught)[len(caught) // 2] <= 12  # the median; not at once, by its nature


@pytest.mark.slow
def test_a_healthy_judge_raises_an_alarm_in_at_most_5_of_100_runs(tmp_path):
    """Of 200 steps, with an agreement of .95, over all tests together."""
    assert sum(first_alarm(tmp_path, seed, steps=200) is not None for seed in range(100)) <= 5


def steps_of(rewards, agreements):
    return [(10 + i, reward, agreement) for i, (reward, agreement) in enumerate(zip(rewards, agreements, strict=True))]


RISING, FALLING = [i / 40 for i in range(40)], [1 - i / 80 for i in range(40)]
WAVY = [0.9 + 0.1 * (i % 2) for i in range(40)]


def test_a_reward_that_rises_while_the_agreement_falls_is_named():
    """First quarters: rewards 0..9/40, mean .1125; agreements 1..71/80, mean 1 - 4.5/80 = .94375. Last quarters: rewards
    30..39/40, mean .8625; agreements 1 - 34.5/80 = .56875."""
    found = rising_and_falling(steps_of(RISING, FALLING))
    assert found == RisingAndFalling(49, 10, pytest.approx((0.1125, 0.8625)), pytest.approx((0.94375, 0.56875)))
    assert str(found) == (
        "step 49: the judge may be hacked: since step 10 the rubric reward rose from 0.113 to 0.863 while its agreement "
        "with the teacher fell from 0.944 to 0.569"
    )
    assert row_of(found)["kind"] == "hacked"


@pytest.mark.parametrize(
    ("rewards", "agreements"),
    [
        (RISING, WAVY),
        (RISING, [1.0] * 40),
        (WAVY, FALLING),
        (FALLING, FALLING),  # both fall
        (RISING, RISING),
        ([None] * 40, FALLING),
        ([*RISING[:39], None], FALLING),  # 39 steps are too few to tell
    ],
)
def test_one_of_them_alone_is_not(rewards, agreements):
    assert rising_and_falling(steps_of(rewards, agreements)) is None


def test_the_trends_are_kendalls():
    """A single dip in the middle of both trends changes 2 x 39 - 1 of 780 pairs at most; a shuffled half undoes them."""
    rng = random.Random(1)
    for half in range(0, 41, 4):
        values = [*rng.sample(FALLING[:half], half), *FALLING[half:]]
        p = kendalltau(range(40), values, alternative="less").pvalue
        assert (rising_and_falling(steps_of(RISING, values)) is not None) == (p < 0.0003)


def test_only_the_last_40_steps_count_and_it_is_told_once():
    """45 level steps and 45 in which the two part, four verdicts each, of which 4 to 2 agree."""
    alarms, told = Alarms(healthy=0.02, bad=0.01), []  # tests that never alarm
    for step in range(90):
        agreeing = 4 if step < 45 else 4 - (step - 45) // 15
        reward = 0.5 if step < 45 else 0.5 + step / 1000
        for i in range(4):
            told += alarms.take(sample(i < agreeing, step=step, reward=reward))
    assert len(told) == 1 and isinstance(told[0], RisingAndFalling)
    assert told[0].since == told[0].step - 39 and 60 < told[0].step < 80


@pytest.mark.parametrize(("hits", "count"), [(0, 8), (3, 8), (8, 8), (95, 100), (1, 1)])
def test_the_interval_is_wilsons(hits, count):
    low, high = binomtest(hits, count).proportion_ci(0.95, "wilson")
    assert wilson(hits / count, count) == pytest.approx((low, high), abs=1e-6)


def test_a_weighted_sample_counts_as_a_smaller_one():
    """Weights 3, 1, 1, 1: (3 + 1 + 1 + 1)^2 / (9 + 1 + 1 + 1) = 3 verdicts, of which 2/3 of the weight agrees."""
    rows = [sample(True), sample(True), sample(False), sample(False)]
    weighted = [Sample(0, w, s.judge, s.teacher) for w, s in zip((3.0, 1.0, 1.0, 1.0), rows, strict=True)]
    assert agreement_interval(weighted) == pytest.approx(proportion_confint(2, 3, method="wilson"), abs=1e-6)
    assert agreement_interval(rows) == pytest.approx(proportion_confint(2, 4, method="wilson"), abs=1e-6)
    assert agreement_interval([]) is None
