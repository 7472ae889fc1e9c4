"""Asking a teacher behind a server: sheets of questions in, verdicts (or rubrics: `rubric_writer`) in the ledger out.

    teacher = Teacher(client, ledger, TeacherSettings(price_in=0.5, price_out=2.0, budget=100.0))
    asyncio.run(teacher.label(sheets(pairs, ["text", "image"], model, several=False)))

As many questions are in memory as calls are in flight. Every answer is in the ledger before the next question is taken,
so that whatever ends the run, the same command goes on. A question that brings no answer, or none that can be read, is
counted, and missing with its reason.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from tqdm import tqdm

from ..verifier.asking import Answered, Outcome, image_url, not_asked
from ..verifier.chat import ChatClient
from ..verifier.chat_errors import FATAL, ChatError
from ..verifier.errors import InputError
from .ledger import Entry, Ledger
from .questions import Questions
from .spending import Budget, cost_of, prompt_bound

REFUSED_AT_FIRST = 3  # refusals in a row, before the first answer, that end a run: no question can be that unlucky
GO_ON = "the same command goes on"


@dataclass(frozen=True)
class TeacherSettings:
    """Prices are money per million tokens, `budget` the same money for everything in the ledger; None: not known, not
    bounded. `max_tokens` bounds one answer."""

    criteria_per_call: int = 1
    max_tokens: int = 512
    price_in: float | None = None
    price_out: float | None = None
    budget: float | None = None

    def __post_init__(self) -> None:
        if self.criteria_per_call < 1 or self.max_tokens < 1:
            raise InputError("criteria per call and tokens of an answer must be at least 1")
        if any(value is not None and not value >= 0 for value in (self.price_in, self.price_out, self.budget)):
            raise InputError("prices and the budget cannot be negative")
        if self.budget is not None and None in (self.price_in, self.price_out):
            raise InputError("a budget needs both prices; give --price-in and --price-out, per million tokens")

    @property
    def several(self) -> bool:
        return self.criteria_per_call > 1

    def cost(self, prompt_tokens: int | None, completion_tokens: int | None) -> float | None:
        return cost_of(prompt_tokens, completion_tokens, self.price_in, self.price_out)


@dataclass(frozen=True)
class Call:
    """Some questions of a sheet, by number; `worst` is what asking twice can cost."""

    sheet: Questions
    places: list[int]
    prompt_bound: int
    worst: float

    @property
    def keys(self) -> list[bytes]:
        return [self.sheet.keys[place] for place in self.places]


class Teacher:
    """One run of asking. `asked` counts questions that this run brought to an end, `known` those it found known,
    `missing` reasons by kind; `out_of_budget` says that the budget ended the run."""

    def __init__(self, client: ChatClient, ledger: Ledger, settings: TeacherSettings):
        self.client, self.ledger, self.settings = client, ledger, settings
        self.budget = Budget(settings.budget, ledger.spent(settings.price_in or 0.0, settings.price_out or 0.0))
        self.asked = self.known = 0
        self.missing: Counter[str] = Counter()
        self.out_of_budget = False
        self._image_url = lru_cache(8)(image_url)
        self._pending: set[bytes] = set()
        self._stop: InputError | None = None
        self._failed_in_row, self._failure, self._answering, self._told = 0, ChatError("", ""), False, 0
        self._bar = tqdm(disable=True)

    async def label(self, stream: Iterable[Questions], total: int | None = None, unit: str = "verdict") -> None:
        """Asks everything that the ledger does not know. Raises InputError, with all answers that came in the ledger,
        when the server refuses the key or the model, answers nothing or fails call after call, or the ledger cannot be
        written. One question that the server always fails on is missing, the first one too."""
        calls = self._calls(stream)
        with tqdm(total=total, desc=self.client.model, unit=unit, smoothing=0.05) as self._bar:
            await self._work(calls, alone=True)
            workers = [asyncio.create_task(self._work(calls)) for _ in range(self.client.max_in_flight)]
            try:
                await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
            finally:  # on Ctrl-C too, before the client is closed
                for worker in workers:
                    worker.cancel()
                ends = await asyncio.gather(*workers, return_exceptions=True)
        if self._failed_in_row and not (self._answering or self.known):
            self._give_up()
        stop = next((end for end in ends if isinstance(end, Exception)), self._stop)
        if stop is not None:
            raise stop

    def _calls(self, stream: Iterable[Questions]) -> Iterator[Call | None]:
        """Calls for what is not known; None now and then, so that known questions do not hold up answers."""
        size = self.settings.criteria_per_call
        for number, sheet in enumerate(stream):
            new = [place for place, key in enumerate(sheet.keys) if self._is_new(key)]
            for first in range(0, len(new), size):
                yield self._call(sheet, new[first : first + size])
            if number % 100 == 99:
                yield None

    def _is_new(self, key: bytes) -> bool:
        if key in self._pending or self.ledger.has(key):
            self.known += 1
            self._bar.initial += 1  # does not count in the rate
            self._bar.n += 1
            return False
        self._pending.add(key)
        return True

    def _call(self, sheet: Questions, places: list[int]) -> Call:
        settings = self.settings
        if settings.budget is None:
            return Call(sheet, places, 0, 0.0)
        bound = prompt_bound(sheet.prompt_text(places, settings.several), sheet.images)
        worst = settings.cost(round(bound * self.budget.stretch), settings.max_tokens) or 0.0
        return Call(sheet, places, bound, 2 * worst)

    async def _work(self, calls: Iterator[Call | None], alone: bool = False) -> None:
        """Takes calls until there are no more; `alone`, until the first is answered or the server failed on it."""
        for call in calls:
            if call is None:
                await asyncio.sleep(0)
                continue
            if self._stop is not None or self.out_of_budget:
                return
            if not await self.budget.hold(call.worst):
                self.out_of_budget = True
                return
            cost = 0.0
            try:
                if self._stop is None:  # it may have come while this call waited
                    outcome = await self._outcome(call)
                    cost = self._cost(call, outcome)
                    self._store(call, outcome, cost)
            finally:
                await self.budget.settle(call.worst, cost)
            if alone and (self._answering or self._failure.kind == "server"):
                return

    async def _outcome(self, call: Call) -> Outcome:
        if call.sheet.mode == "image" and not call.sheet.images:
            return not_asked(len(call.places), ChatError("image", "the example has none; ask in text mode"))
        try:
            images = [self._image_url(image) for image in call.sheet.images]
        except InputError as error:
            return not_asked(len(call.places), ChatError("image", str(error)))
        settings = self.settings
        return await call.sheet.ask(self.client, call.places, images, settings.several, settings.max_tokens)

    def _store(self, call: Call, outcome: Outcome, cost: float) -> None:
        """What was answered, and what is missing for good, to the answers; the rest to the failures."""
        answers, failures = [], []
        for key, answered in zip(call.keys, outcome.answered, strict=True):
            entry, last_word = self._entry(key, answered, outcome.failure)
            (answers if last_word else failures).append(entry)
            if entry.judgement.error is not None:
                self.missing[str(entry.judgement.error).partition(":")[0]] += 1
        model, sheet = self.client.model, call.sheet
        if answers:
            self.ledger.write(answers, model, sheet.mode, sheet.prompt_hash(self.settings.several))
        if failures:
            self.ledger.fail(failures, model)
        self._pending.difference_update(call.keys)
        self.asked += len(call.keys)
        self._judge_server(outcome.failure, len(answers))
        self._show(len(call.keys), self.budget.spent + cost)

    def _entry(self, key: bytes, answered: Answered, failure: ChatError | None) -> tuple[Entry, bool]:
        """The entry, and whether the question is done with: it is answered, was read in vain twice or does not fit."""
        judged = answered.judgement
        if judged.error is not None and failure is not None:
            judged = replace(judged, error=str(failure))
        last_word = judged.error is None or failure is None or failure.kind == "context"
        tokens = (answered.prompt_tokens, answered.completion_tokens)
        return Entry(key, judged, *tokens, self.settings.cost(*tokens)), last_word

    def _judge_server(self, failure: ChatError | None, answers: int) -> None:
        """Ends the run where going on would only fail again."""
        if answers:
            self._answering, self._failed_in_row = True, 0
        if failure is None or failure.kind in ("context", "image"):
            return
        self._failed_in_row, self._failure = self._failed_in_row + 1, failure
        too_many = 2 * self.client.max_in_flight if self._answering else REFUSED_AT_FIRST
        if self.client.given_up or (self._failed_in_row >= too_many and (self._answering or failure.kind == "refused")):
            self._give_up()

    def _give_up(self) -> None:
        failure, count = self._failure, self._failed_in_row
        if failure.kind in FATAL:
            told, what = failure.message, "that"
        else:
            told = f"{count} calls in a row failed, the last with" if count > 1 else "the first call failed:"
            told, what = f"{told} {failure.message}", "the server"
        self._stop = self._stop or InputError(f"{told}; nothing more is asked. Mend {what}, then {GO_ON}")

    def _cost(self, call: Call, outcome: Outcome) -> float:
        """What the call cost; a lost one as much as it can."""
        costs = [self.settings.cost(a.prompt_tokens, a.completion_tokens) for a in outcome.answered]
        if self.settings.budget is not None and None in costs:
            text = "the server does not say how many tokens it used, so no budget can be kept; leave --budget out"
            self._stop = self._stop or InputError(text)
        prompt_tokens = sum(answered.prompt_tokens or 0 for answered in outcome.answered)
        self.budget.learn(prompt_tokens / max(1, outcome.asks), call.prompt_bound)
        return sum(cost or 0.0 for cost in costs) + outcome.lost * call.worst / 2

    def _show(self, count: int, spent: float) -> None:
        errors = self.client.errors + Counter({kind: n for kind, n in self.missing.items() if kind == "unreadable"})
        told = [f"errors {' '.join(f'{kind}:{n}' for kind, n in errors.most_common())}"] if errors else []
        if self.settings.price_in is not None or self.settings.price_out is not None:
            told.append(f"spent {spent:.4g}")
        for change in self.client.adapted[self._told :]:
            self._bar.write(f"{self.client.model}: {change}")
        self._told = len(self.client.adapted)
        self._bar.set_postfix_str(", ".join(told), refresh=False)
        self._bar.update(count)
