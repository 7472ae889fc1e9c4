"""The verifier watched while it trains a policy: a sample of its verdicts goes to the teacher.

In: each step's verdicts. Out: rolling agreement and kappa, alarms where they fall, and the files of `samples`. The sample
is drawn by verdict (half yes, half no as far as they go), so overall rates weigh each sampled verdict by the inverse of
its chance to be drawn. What the teacher has answered itself, in a cascade, is counted and not drawn: it would agree with
itself. The teacher answers in the background and holds up no step. A run that is gone on with keeps the samples of the
steps before the one that it starts from, asks again for what the teacher still owed on them, and so comes to the same
alarms.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from itertools import takewhile
from pathlib import Path
from statistics import median
from typing import Any

from tqdm import tqdm

from ..verifier.cascade import Band, uncertain
from ..verifier.schema import Example, Judge, Verdict
from ..verifier.tables import read_rollouts
from .alarms import BAD, HEALTHY, Alarm, Alarms, RisingAndFalling, row_of
from .background import BackgroundTeacher, Judged
from .samples import Drawn, Sample, SampleFiles, agreement_interval, weighted_agreement

__all__ = ["InLoopAgreement", "Judged", "Sample", "draw", "weighted_agreement"]

GIVE_UP = 3  # steps in a row on which the teacher knows nothing, after which a run at its end waits for no more


def draw(judged: Sequence[Judged], count: int, rng: random.Random) -> list[tuple[Judged, float]]:
    """Up to `count` known verdicts, half of them yes and half no as far as they go, each with its weight."""
    strata = [[j for j in judged if j[2].verdict is answer] for answer in (True, False)]
    quota = [min(len(strata[0]), (count + 1) // 2), 0]
    quota[1] = min(len(strata[1]), count - quota[0])
    quota[0] = min(len(strata[0]), count - quota[1])
    return [
        (drawn, len(stratum) / size)
        for stratum, size in zip(strata, quota, strict=True)
        for drawn in rng.sample(stratum, size)
    ]


class InLoopAgreement:
    """Draws from each step, asks the teacher in the background, keeps and writes what comes back.

    `examples` by id are needed to ask again for what an interrupted run was owed. `cascade`: the judge leaves some of its
    verdicts to this teacher. `alarms` are all so far; `healthy` and `bad` are the agreements that their tests tell apart.
    """

    def __init__(
        self,
        teacher: Judge,
        per_step: int,
        folder: Path,
        seed: int,
        window: int = 10,
        examples: Mapping[str, Example] | None = None,
        healthy: float = HEALTHY,
        bad: float = BAD,
        cascade: bool = False,
    ):
        self.teacher, self.per_step, self.window, self.seed = BackgroundTeacher(teacher), per_step, window, seed
        self.files, self.folder, self.examples = SampleFiles(folder), folder, examples or {}
        self.samples: list[Sample] = []
        self.alarms: list[Alarm | RisingAndFalling] = []
        self.escalated, self.cascade = 0, cascade
        self._tests, self._told, self._started = Alarms(healthy, bad), 0, False
        self._pending: list[tuple[list[Drawn], Future[list[Verdict]]]] = []

    def start(self, step: float) -> None:
        """Before step `step`: takes up what an earlier start left, and forgets the steps that are taken again."""
        if self._started:
            return
        self._started = True
        samples, owed, self.escalated = self.files.read(step)
        self.files.rewrite("alarms.jsonl", ()) if self.folder.is_dir() else None
        self._take(samples)
        self._ask_again(owed)

    def observe(self, step: int, judged: Sequence[Judged], reward: float | None = None) -> dict[str, float]:
        """Samples a step's verdicts and returns the rolling figures of what the teacher has answered so far. `reward`:
        the step's mean rubric reward."""
        self.start(step)
        own = [one for one in judged if not self._by_teacher(one[2])]
        drawn = draw(own, self.per_step, random.Random(f"{self.seed}-{step}"))
        if drawn:
            middle = median(len(rollout.response) for _, rollout, _ in judged)
            rows = [Drawn(step, w, v, len(r.response) > middle, reward) for (_, r, v), w in drawn]
            chosen = [one for one, _ in drawn]
            self.files.add_drawn(rows, [rollout for _, rollout, _ in chosen])
            self._pending.append((rows, self.teacher.ask(chosen)))
        self.collect(wait=False)
        by_teacher = {"judge/by_teacher": 1 - len(own) / len(judged)} if self.cascade and judged else {}
        return self._figures(step) | by_teacher

    def _by_teacher(self, verdict: Verdict) -> bool:
        """Whether the teacher itself has given it, in a cascade."""
        return self.cascade and verdict.judge == self.teacher.teacher.name

    def _figures(self, step: int) -> dict[str, float]:
        recent = list(takewhile(lambda s: s.step > step - self.window, reversed(self.samples)))
        figures = {**weighted_agreement(recent)}
        if (interval := agreement_interval(recent)) is not None:
            figures |= dict(zip(("agreement_low", "agreement_high"), interval, strict=True))
        if recent:
            figures["teacher_missing"] = sum(s.teacher.verdict is None for s in recent) / len(recent)
            figures["alarms"] = len(self.alarms)
            figures |= {f"cusum/{name}": test.statistic for name, test in self._tests.tests.items()}
        return {f"judge/{key}": value for key, value in figures.items() if value is not None}

    def collect(self, wait: bool) -> None:
        """Takes in what the teacher has answered; `wait` for all of it."""
        while self._pending and (wait or self._pending[0][1].done()):
            self._take_first()

    def _take_first(self) -> list[Sample]:
        """Takes in the earliest that is owed, when it is there."""
        drawn, future = self._pending[0]
        fresh = [_answered(one, verdict) for one, verdict in zip(drawn, future.result(), strict=True)]
        self._pending.pop(0)
        self.files.add_samples(fresh)
        self._take(fresh)
        return fresh

    def _take(self, samples: Sequence[Sample]) -> None:
        """The samples, and the alarms that they bring, in their order."""
        self.samples += samples
        self._raise([alarm for sample in samples for alarm in self._tests.take(sample)])

    def _raise(self, alarms: Sequence[Alarm | RisingAndFalling]) -> None:
        self.alarms += alarms
        self.files.append("alarms.jsonl", map(row_of, alarms))

    def take_alarms(self) -> list[Alarm | RisingAndFalling]:
        """Those that have come since the last call, in a run that is gone on with also those of before."""
        new = self.alarms[self._told :]
        self._told = len(self.alarms)
        return new

    def escalate(self, step: int, judged: Sequence[Judged], budget: int, band: float) -> dict[int, Verdict]:
        """Once there is an alarm: the teacher's verdicts in place of the uncertain ones, by number. Uncertain is a P(yes)
        within `band` of 0.5; the least certain first where the rest of the `budget` (verdicts in the whole run) is less.
        Where the teacher has none, the judge's stands. Waits for the teacher."""
        self.start(step)
        self.collect(wait=False)
        if not any(isinstance(alarm, Alarm) for alarm in self.alarms):
            return {}
        near = uncertain([verdict for *_, verdict in judged], Band(0.5 - band, 0.5 + band))
        chosen = [i for i in near if not self._by_teacher(judged[i][2])][: max(0, budget - self.escalated)]
        if not chosen:
            return {}
        asked = [judged[i] for i in chosen]
        answers = self.teacher.ask(asked, urgent=True).result()
        self.escalated += len(chosen)
        self.files.add_rollouts([rollout for _, rollout, _ in asked])
        rows = (
            {"step": step, "judge": vars(one[2]), "teacher": vars(v)} for one, v in zip(asked, answers, strict=True)
        )
        self.files.append("escalated.jsonl", rows)
        return {i: verdict for i, verdict in zip(chosen, answers, strict=True) if verdict.verdict is not None}

    def _ask_again(self, owed: Sequence[Drawn]) -> None:
        """What was drawn before an interruption and never answered, a step at a time as at first."""
        rollouts = {r.rollout_id: r for r in read_rollouts(self.folder / "rollouts.jsonl")} if owed else {}
        for step in sorted({one.step for one in owed}):
            rows = [one for one in owed if one.step == step]
            chosen = []
            for one in rows:
                rollout = rollouts[one.judge.rollout_id]
                example = self.examples.get(rollout.example_id) or Example(rollout.example_id, "", ())  # gone since
                chosen.append((example, rollout, one.judge))
            self._pending.append((rows, self.teacher.ask(chosen)))

    def close(self) -> dict[str, Any]:
        """Waits for what the teacher owes, with a bar; overall weighted figures and the number of sampled verdicts. After
        three steps in a row on which the teacher knows nothing the rest is missing."""
        self.start(float("inf"))
        try:
            self._wait()
        finally:
            for _, future in self._pending:
                future.cancel()
            self.teacher.close()
        self._raise(self._tests.end_step())
        missing = sum(sample.teacher.verdict is None for sample in self.samples)
        return {
            **weighted_agreement(self.samples),
            "agreement_ci": agreement_interval(self.samples),
            "sampled": len(self.samples),
            "teacher_missing": missing,
            "escalated": self.escalated,
            "alarms": [str(alarm) for alarm in self.alarms],
        }

    def _wait(self) -> None:
        self.collect(wait=False)
        owed, silent = sum(len(drawn) for drawn, _ in self._pending), 0
        with tqdm(total=owed, desc="the teacher's last verdicts", unit="verdict", disable=not owed) as bar:
            while self._pending:
                fresh = self._take_first()
                silent = 0 if any(sample.teacher.verdict is not None for sample in fresh) else silent + 1
                bar.update(len(fresh))
                if silent == GIVE_UP:
                    self._pending = [(rows, self._given_up(rows, future)) for rows, future in self._pending]

    def _given_up(self, drawn: Sequence[Drawn], future: Future[list[Verdict]]) -> Future[list[Verdict]]:
        """Missing verdicts in place of those whose turn has not come."""
        if not future.cancel():
            return future
        reason = f"not asked: the teacher had no answer to {GIVE_UP} steps in a row"
        answered: Future[list[Verdict]] = Future()
        answered.set_result(self.teacher.missing([one.judge for one in drawn], reason))
        return answered


def _answered(one: Drawn, teacher: Verdict) -> Sample:
    return Sample(one.step, one.weight, one.judge, teacher, one.long, one.reward)
