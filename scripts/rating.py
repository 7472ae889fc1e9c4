"""The difficulty of sampled examples, as `claimwise rollout --difficulty` writes it; a teacher, if there is one, is asked
about the answers that no rule decides.

In: examples, the first policy's responses, and the teacher's flags and ledger. Out: the rated examples, a line for each
example with its count, and what to say of it. What the teacher cannot say either stays undecided.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..eval.answers import answer_criterion
from ..verifier.errors import InputError
from ..verifier.rundir import write_atomic
from ..verifier.schema import Example, Rollout
from ..verifier.tables import write_examples
from .teacher_flags import OUT_OF_BUDGET, add_cost_flags, cost_lines, run_lines, settings_of

if TYPE_CHECKING:
    from ..distill.teacher import TeacherSettings
    from ..eval.difficulty import Rated
    from .ledger_teacher import LedgerTeacher

MAX_TOKENS = 512
Item = tuple[Example, Rollout]


def add_flags(parser: ArgumentParser) -> None:
    add = parser.add_argument_group("a teacher for the answers that no rule decides").add_argument
    add("--teacher", metavar="URL", help="a server to ask whether such a response gives the answer; needs --difficulty "
        "(its key is read from OPENAI_API_KEY; --in-flight and --timeout hold for it too)")  # fmt: skip
    add("--teacher-model", metavar="NAME", help="the teacher's name on the server")
    add("--ledger", metavar="FILE", help="keeps every answer of the teacher (default: beside --out, "
        "<its name>-teacher.sqlite)")  # fmt: skip
    dry_run = "sample, then print the teacher's calls, tokens and cost; ask it nothing and write no table: the same "
    add_cost_flags(add, str(MAX_TOKENS), dry_run + "command without it goes on from the sampled responses")


def check_flags(args: Namespace, difficulty: bool) -> TeacherSettings | None:
    """The teacher's settings; None where there is none. Raises InputError for flags that do not go together."""
    if args.teacher is None:
        for name in ("teacher_model", "ledger", "budget", "dry_run"):
            if getattr(args, name) not in (None, False):
                flag = name.replace("_", "-")
                raise InputError(f"--{flag} is for a teacher behind a server; give its address with --teacher")
        return None
    if not difficulty:
        raise InputError("--teacher is asked what decides the difficulty; give --difficulty too, or leave it out")
    if not args.teacher_model:
        raise InputError("--teacher-model is missing; name the model on the server")
    from ..verifier.chat import ChatClient

    settings = settings_of(args, 1, MAX_TOKENS)
    ChatClient(args.teacher, args.teacher_model, **client_settings(args))  # refuses a wrong address now
    return settings


def client_settings(args: Namespace) -> dict[str, Any]:
    return {"max_in_flight": args.in_flight, "timeout_s": args.timeout}


@dataclass
class AnswerTeacher:
    """Decides for `eval.difficulty.rate`, by the criterion on the final answer in text mode. After a call: how many pairs
    were `asked`, what was `decided` by example and rollout, and how many got `no_answer` and may be asked again."""

    judge: LedgerTeacher
    asked: int = 0
    decided: dict[str, dict[str, bool]] = field(default_factory=lambda: defaultdict(dict))
    no_answer: int = 0

    def __call__(self, pairs: Sequence[Item]) -> list[bool | None]:
        verdicts = self.judge.judge(as_questions(pairs))
        self.asked += len(pairs)
        for verdict in verdicts:
            if verdict.verdict is not None:
                self.decided[verdict.example_id][verdict.rollout_id] = verdict.verdict
        self.no_answer += sum(v.verdict is None and v.created_at is None for v in verdicts)
        return [verdict.verdict for verdict in verdicts]

    @property
    def out_of_budget(self) -> bool:
        return self.judge.last is not None and self.judge.last.out_of_budget

    def told(self, undecided: int) -> str:
        """Who decided what, where so many are `undecided` in the end."""
        given = [right for by_rollout in self.decided.values() for right in by_rollout.values()]
        whose = f" ({self.judge.name}: {sum(given)} right, {len(given) - sum(given)} wrong)" if given else ""
        unasked = undecided - (self.asked - len(given))
        rest = f" ({unasked} not asked: they bear on no difficulty, or have no answer)" if unasked else ""
        return f"decided by the teacher: {len(given)}{whose}; still undecided: {undecided}{rest}"

    def lines(self) -> list[str]:
        """What the asking cost; nothing where nothing was asked."""
        if self.judge.last is None:
            return []
        found = self.judge.ledger.figures(self.judge.name, ["text"])
        return run_lines(self.judge.last, found | {"failures": self.no_answer})


def as_questions(pairs: Sequence[Item]) -> list[Item]:
    """The pairs with nothing but the criterion on the final answer."""
    return [(replace(example, criteria=(answer_criterion(example),)), rollout) for example, rollout in pairs]


def rate_and_write(
    args: Namespace, ledger: Path, out: Path, examples: Sequence[Example], sampled: Sequence[Rollout], settings: Any
) -> tuple[int, bool]:
    """Rates, asks the teacher if there are `settings` for one, writes the table and says what is in it. Gives the exit
    status, and whether the same command has more to ask."""
    from ..eval.difficulty import rate

    if settings is None:
        print(write_rated(out, examples, rate(examples, sampled), None))
        return 0, False
    from ..distill.ledger import Ledger
    from .ledger_teacher import LedgerTeacher

    with Ledger(ledger) as opened:
        judge = LedgerTeacher(args.teacher, args.teacher_model, "text", opened, settings, **client_settings(args))
        teacher = AnswerTeacher(judge)
        rated = rate(examples, sampled, teacher)
        lines = teacher.lines()
    if teacher.out_of_budget:
        print(f"{out}: not written yet", *lines, sep="\n  ")
        return OUT_OF_BUDGET, True
    print(write_rated(out, examples, rated, teacher), *lines, sep="\n  ")
    return 0, teacher.no_answer > 0


def write_rated(out: Path, examples: Sequence[Example], rated: Sequence[Rated], teacher: AnswerTeacher | None) -> str:
    """Writes the rated examples, and beside them a line for each example with its count; says how many are what."""
    from ..eval.difficulty import EASY, counts, kept

    listed = out.with_name(f"{out.stem}-counts.jsonl")
    write_examples(out, kept(rated))
    write_atomic(listed, "".join(json.dumps(_count(row, teacher)) + "\n" for row in rated))
    found = counts(rated)
    easy = [row.example.example_id for row in rated if row.difficulty == EASY]
    dropped = f"; left out as all right: {', '.join(easy[:5])}{', ...' if len(easy) > 5 else ''}" if easy else ""
    told = ", ".join(f"{found[name]} {name}" for name in ("hard", "medium", "simple", EASY, "open"))
    nameless = sum(not (example.answer or "").strip() for example in examples)
    without = f"; {nameless} example{'s have' if nameless > 1 else ' has'} no answer" if nameless else ""
    by_rules = f"{found['undecided']} responses that no rule decides"
    undecided = teacher.told(found["undecided"]) if teacher else by_rules
    return f"{out}: {told}{dropped}\n  {undecided}{without}; all in {listed}"


def _count(row: Rated, teacher: AnswerTeacher | None) -> dict[str, Any]:
    by_teacher = {"by_teacher": teacher.decided.get(row.example.example_id, {})} if teacher else {}
    return {
        "example_id": row.example.example_id,
        "right": row.right,
        **by_teacher,
        "undecided": [rollout.rollout_id for rollout in row.undecided],
        "missing": row.missing,
        "difficulty": row.difficulty,
    }


def dry_run(
    args: Namespace, ledger: Path, examples: Sequence[Example], sampled: Sequence[Rollout], settings: TeacherSettings
) -> list[str]:
    """What the teacher would be asked, and the cost."""
    from ..distill.estimate import answer_tokens, estimate, load_counter
    from ..distill.ledger import Ledger
    from ..distill.questions import sheets
    from ..eval.difficulty import rate

    pairs: list[Item] = []

    def note(asked: Sequence[Item]) -> list[bool | None]:
        pairs.extend(asked)
        return [None] * len(asked)

    rate(examples, sampled, note)
    model, known = args.teacher_model, Ledger(ledger, write=False) if ledger.is_file() else None
    counter, how = load_counter(model, args.processor)
    found = estimate(sheets(as_questions(pairs), ["text"], model, several=False), known, counter, 1)
    each, source = answer_tokens(known, model, ["text"])
    calls = found.calls.total()
    return [
        f"{calls:,} calls: answers that no rule decides; {found.known:,} are answered already, or occur twice",
        *cost_lines(settings, found.prompt_tokens.total(), how, calls, (each, "verdict", source), calls),
    ]
