"""A cascade: the verifier judges everything, the teacher again where the verifier is uncertain, within a budget.

In: two judges, a band of P(yes), the most calls or money that may be spent. Out: verdicts, each row as the judge gave it
that answered: its `judge`, `mode`, `prompt_hash` and `p_yes` are that judge's own, so one table shows who said what and
is read like any other.

    band = band_for("cascade.json", "runs/verifier")      # or Band(0.08, 0.9)
    cascade = CascadeJudge(load_judge("runs/verifier"), teacher, band, max_calls=500)
    verdicts = cascade.judge(items)
    print(cascade.tally)

The verifier's verdict stands where the teacher has none or the budget does not reach. What the verifier could not judge
stays missing: that is a failure and no uncertainty, and to buy every verdict of a verifier that is down would hide it.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from .adapter import read_card
from .cache import VerdictCache, question_keys
from .errors import InputError
from .image_digest import digest_of, state_of
from .rundir import write_atomic
from .schema import Criterion, Example, Judge, Mode, Rollout, Verdict

Question = tuple[Example, Rollout, Criterion]


@dataclass(frozen=True)
class Band:
    """Where P(yes) is uncertain: from `low` to `high`, both ends included. Raises InputError unless
    0 <= low <= 0.5 <= high <= 1, so that what is less certain is never taken for more certain."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 <= self.low <= 0.5 <= self.high <= 1:
            raise InputError(f"the band is {self.low} to {self.high}; it must be 0 <= low <= 0.5 <= high <= 1")

    def __contains__(self, p_yes: float) -> bool:
        return self.low <= p_yes <= self.high


def band_for(path: str | Path, adapter: str | Path) -> Band:
    """The band of a file that `claimwise cascade band` wrote. Raises InputError where it was chosen for a verifier of
    another name, mode or prompt than the one in the folder `adapter`: another's P(yes) means something else. One that was
    trained anew under the same name passes; choose its band anew."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        low, high = (float(end) for end in found["band"])
        version, chosen_for = found["schema_version"], dict(found["verifier"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise InputError(f"{path} is no file of claimwise cascade band ({error})") from None
    if version != 1:
        raise InputError(f"{path} is of version {version}, this claimwise reads 1; choose the band anew")
    card = read_card(adapter)
    own = {"judge": card.name, "mode": card.mode, "prompt_hash": card.prompt_hash}
    for name, value in chosen_for.items():
        if own.get(name) != value:
            raise InputError(
                f"{path} was chosen for a verifier with {name} {value!r}, {adapter} has {own.get(name)!r}; choose a band "
                "on this one's verdicts"
            )
    return Band(low, high)


def uncertain(verdicts: Sequence[Verdict], band: Band) -> list[int]:
    """Numbers of the known verdicts whose P(yes) is in the band, the nearest to 0.5 first, ties in their order."""
    p_yes = {i: v.p_yes for i, v in enumerate(verdicts) if v.verdict is not None and v.p_yes is not None}
    return sorted((i for i, p in p_yes.items() if p in band), key=lambda i: abs(p_yes[i] - 0.5))


def affordable(max_calls: int | None, price: float | None, budget: float | None) -> int | None:
    """The most calls that both bounds allow; None: no bound. `price` is money per call, `budget` the same money. Raises
    InputError for negative numbers, or a budget without a price."""
    if any(value is not None and not value >= 0 for value in (max_calls, price, budget)):
        raise InputError("calls, price and budget of a cascade cannot be negative")
    if budget is None:
        return max_calls
    if not price:
        raise InputError("a budget in money needs the price of a call; give both")
    calls = budget / price * (1 + 1e-12)  # 0.3 pays for three calls of 0.1
    if calls == math.inf:
        return max_calls
    return math.floor(calls) if max_calls is None else min(max_calls, math.floor(calls))


@dataclass
class Tally:
    """What a cascade has done so far, in verdicts. `uncertain` were in the band: of them `answered` have the teacher's
    verdict, `failed` (by kind) brought none, `over_budget` were not asked. `repeats` of the answered were known from an
    earlier question alike. `calls` is the number of questions that went to the teacher, without those that found no
    connection or came after it had stopped; `cost` their price, None where none is known. `missing` verdicts the verifier
    did not give, `unrated` ones came without P(yes)."""

    verdicts: int = 0
    missing: int = 0
    unrated: int = 0
    uncertain: int = 0
    answered: int = 0
    repeats: int = 0
    over_budget: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    calls: int = 0
    price: float | None = None

    @property
    def cost(self) -> float | None:
        return None if self.price is None else self.calls * self.price


class CascadeJudge:
    """`first` judges everything, `teacher` what is in the `band`; the least certain first where a call of `judge` has
    more of it than `max_calls`, or `budget` (money, at `price` a call), still allow. A call is one question; that a
    teacher tries again to be heard or read does not count. Both bounds hold for the life of the judge, in each process
    of a run for itself. What the teacher has answered is never asked again; with a file `memory`, which holds that, by
    no later judge either, and its budget is what the earlier ones have left. `mode` is the teacher's: its verdict is the
    one wanted, and a verifier that does not see the image may stand before one that does.

    Raises InputError where the teacher sees less than the verifier, and where it refuses the very first question
    (wrong key, model or address); a teacher that fails later leaves the verifier's verdicts standing, counted. One with
    a budget of its own says so by an error that begins with "budget".
    """

    def __init__(
        self,
        first: Judge,
        teacher: Judge,
        band: Band,
        max_calls: int | None = None,
        price: float | None = None,
        budget: float | None = None,
        memory: Path | None = None,
    ):
        if (first.mode, teacher.mode) == ("image", "text"):
            raise InputError("the teacher judges in text mode, the verifier in image mode; take a teacher that sees it")
        self.first, self.teacher, self.band = first, teacher, band
        self.max_calls = affordable(max_calls, price, budget)
        self.name = f"{first.name}+{teacher.name}"
        self.mode: Mode = teacher.mode
        self.tally = Tally(price=price)
        self.cache: VerdictCache[Verdict] = VerdictCache()
        self._digests: dict[Hashable, str] = {}
        self._memory = memory
        self._remembers = memory is None

    def judge(self, items: Iterable[tuple[Example, Rollout]]) -> list[Verdict]:
        """Verdicts of all criteria of each item, in order."""
        items = list(items)
        return self.settle(items, self.first.judge(items))

    def settle(self, items: Sequence[tuple[Example, Rollout]], own: Sequence[Verdict]) -> list[Verdict]:
        """The same, where the verifier has given its `own` verdicts already."""
        self._remember()
        verdicts = list(own)
        questions = [(example, rollout, c) for example, rollout in items for c in example.criteria]
        self._check(questions, verdicts, self.first)
        order = uncertain(verdicts, self.band)
        keys = {i: self._key(*questions[i]) for i in order}
        alike: dict[bytes, int] = {}
        for i in order:
            alike.setdefault(keys[i], i)
        answers = self._answers({key: questions[i] for key, i in alike.items()})
        self.tally.verdicts += len(verdicts)
        self.tally.missing += sum(v.verdict is None for v in verdicts)
        self.tally.unrated += sum(v.verdict is not None and v.p_yes is None for v in verdicts)
        self.tally.uncertain += len(order)
        for i in order:
            verdicts[i] = self._settled(verdicts[i], answers.get(keys[i]), repeated=alike[keys[i]] != i)
        return verdicts

    def judge_each(self, items: Iterable[tuple[Example, Rollout]]) -> Iterator[list[Verdict]]:
        """The same, a list per item. All are judged before the first: which ones the budget reaches depends on all."""
        items = list(items)
        rest = iter(self.judge(items))
        return ([next(rest) for _ in example.criteria] for example, _ in items)

    def _answers(self, asked: dict[bytes, Question]) -> dict[bytes, Verdict]:
        """The teacher's verdicts, known or missing, on what is known or within the budget."""
        answers = {key: answer for key in asked if (answer := self.cache.get(key)) is not None}
        self.tally.repeats += len(answers)
        new = [key for key in asked if key not in answers]
        room = None if self.max_calls is None else max(0, self.max_calls - self.tally.calls)
        fresh = dict(zip(new[:room], self._ask({key: asked[key] for key in new[:room]}), strict=True))
        for key, verdict in fresh.items():
            if verdict.verdict is not None:
                self.cache.put(key, verdict)
        return answers | fresh

    def _remember(self) -> None:
        """Takes up what the memory holds, once; a last line that was cut off is left out."""
        if self._remembers or self._memory is None:
            return
        self._remembers = True
        text = self._memory.read_text(encoding="utf-8") if self._memory.is_file() else ""
        whole, _, broken = text.rpartition("\n")
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                row = json.loads(line)
                if row["verdict"]["verdict"] is not None:
                    self.cache.put(bytes.fromhex(row["key"]), Verdict(**row["verdict"]))
            except (ValueError, LookupError, TypeError) as error:
                raise InputError(f"{self._memory}, row {number}: it is no answer of a teacher ({error}); remove the row, "
                                 "and it is asked again") from None  # fmt: skip
            self.tally.calls += 1
        if broken:
            write_atomic(self._memory, whole and whole + "\n")

    def _write(self, keys: Sequence[bytes], answers: Sequence[Verdict]) -> None:
        pairs = zip(keys, answers, strict=False)  # one each of the next questions
        rows = [{"key": key.hex(), "verdict": vars(answer)} for key, answer in pairs if not _no_call(answer)]
        if self._memory is not None and rows:
            self._memory.parent.mkdir(parents=True, exist_ok=True)
            with self._memory.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)

    def _ask(self, asked: dict[bytes, Question]) -> list[Verdict]:
        """One verdict each, in the memory as soon as it is there; those that an error kept from coming are missing."""
        keys, questions = list(asked), list(asked.values())
        items = [(replace(example, criteria=(criterion,)), rollout) for example, rollout, criterion in questions]
        each = getattr(self.teacher, "judge_each", None)
        answers: list[Verdict] = []
        reason = ""
        try:
            for verdicts in (each(items) if each else [self.teacher.judge(items)]) if items else ():
                start = len(answers)
                answers += verdicts
                self._write(keys[start:], verdicts)
        except InputError as error:
            if not self.tally.answered and all(v.verdict is None for v in answers):
                raise
            reason = f"stopped: {error}"
        if not reason:
            self._check(questions, answers, self.teacher)
        self.tally.calls += sum(not _no_call(answer) for answer in answers)
        return answers + [self._missing(*question, reason) for question in questions[len(answers) :]]

    def _settled(self, own: Verdict, answer: Verdict | None, repeated: bool) -> Verdict:
        """The teacher's verdict as this row's, or else the verifier's own."""
        if answer is None or _unpaid(answer):
            self.tally.over_budget += 1
            return own
        if answer.verdict is None:
            self.tally.failed[str(answer.error).partition(":")[0]] += 1
            return own
        self.tally.answered += 1
        self.tally.repeats += repeated
        ids = {name: getattr(own, name) for name in ("example_id", "rollout_id", "criterion_id", "dimension")}
        return replace(answer, **ids)

    def _missing(self, example: Example, rollout: Rollout, criterion: Criterion, reason: str) -> Verdict:
        ids = (example.example_id, rollout.rollout_id, criterion.id)
        return Verdict(*ids, self.teacher.name, self.mode, None, error=reason, dimension=criterion.group)

    def _key(self, example: Example, rollout: Rollout, criterion: Criterion) -> bytes:
        images = [self._digest(image) for image in example.images] if self.mode == "image" else []
        return question_keys([self.teacher.name], images, example.question, rollout.response, [criterion.text])[0]

    def _digest(self, image) -> str:
        key = state_of(image)
        if key not in self._digests:
            self._digests[key] = digest_of(image)
        return self._digests[key]

    def _check(self, questions: Sequence[Question], verdicts: Sequence[Verdict], judge: Judge) -> None:
        wanted = [(rollout.rollout_id, criterion.id) for _, rollout, criterion in questions]
        if [verdict.key for verdict in verdicts] != wanted:
            raise InputError(f"judge {judge.name} does not answer what it was asked, in order, one verdict each")


def _unpaid(answer: Verdict) -> bool:
    """Whether a teacher that keeps a budget of its own has not asked."""
    return answer.verdict is None and str(answer.error).startswith("budget")


def _no_call(answer: Verdict) -> bool:
    """Whether the question has not reached the teacher, so that it takes nothing from the budget."""
    return _unpaid(answer) or (answer.verdict is None and str(answer.error).startswith("connection"))
