"""Asking a model about what the lint's rules leave open: the flags, the run of asking, and what it would cost.

In: parsed flags and doubts. Out: an answer to each doubt from the ledger, lines of text, an exit status.
"""

from __future__ import annotations

import asyncio
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..verifier.errors import InputError
from .teacher_flags import OUT_OF_BUDGET, add_flags, client_of, cost_lines, run_lines, settings_of

if TYPE_CHECKING:
    from ..distill.ledger import Ledger
    from ..distill.lint.model import Doubt
    from ..distill.teacher import Teacher

MAX_TOKENS = 256
DOUBT_TOKENS = 40  # of an answer, until the ledger knows better


def add_model_flags(parser: ArgumentParser) -> None:
    add = parser.add_argument_group("a model for what rules cannot decide").add_argument
    add("--server", metavar="URL", help="a server that speaks OpenAI's chat API (its key is read from OPENAI_API_KEY)")
    add("--model", metavar="NAME", help="the model's name on the server")
    add("--ledger", metavar="FILE", type=Path, help="keeps every answer (default: beside E, <its name>-lint.sqlite)")
    add_flags(add, str(MAX_TOKENS))


class Asker:
    """The lint's `ask`. Raises InputError for flags that do not go together, or an address that is none."""

    def __init__(self, args: Namespace):
        for name in ("server", "model"):
            if not getattr(args, name):
                raise InputError(f"--{name} is missing; a model that decides what rules cannot needs it")
        self.args, self.model = args, args.model
        self.settings, self.client = settings_of(args, 1, MAX_TOKENS), client_of(args, args.server)
        self.path = args.ledger or args.examples.with_name(f"{args.examples.stem}-lint.sqlite")
        self.lines: list[str] = []
        self.status = 0

    def __call__(self, doubts: Sequence[Doubt]) -> list[bool | None]:
        from ..distill.ledger import Ledger
        from ..distill.lint.model import MODE, answers
        from ..distill.teacher import Teacher

        with Ledger(self.path) as ledger:
            teacher = Teacher(self.client, ledger, self.settings)
            asyncio.run(_ask(teacher, doubts))
            self.lines = run_lines(teacher, ledger.figures(self.model, [MODE]))
            self.status = OUT_OF_BUDGET if teacher.out_of_budget else 0
            return answers(doubts, self.model, ledger)

    def dry_run(self, doubts: Sequence[Doubt]) -> list[str]:
        from ..distill.estimate import answer_tokens, load_counter
        from ..distill.ledger import Ledger
        from ..distill.lint.model import MODE, doubt_sheets, messages

        ledger = Ledger(self.path, write=False) if self.path.is_file() else None
        counter, how = load_counter(self.model, self.args.processor)
        new = {sheet.keys[0]: sheet for sheet in doubt_sheets(doubts, self.model) if not _known(ledger, sheet.keys[0])}
        tokens = sum(counter.chat(messages(sheet.text), []) for sheet in new.values())
        each, source = answer_tokens(ledger, self.model, [MODE], DOUBT_TOKENS)
        return [
            f"{len(new):,} calls, one for each doubt; {len(doubts) - len(new):,} are answered already, or occur twice",
            *cost_lines(self.settings, tokens, how, len(new), (each, "doubt", source), len(new)),
        ]


async def _ask(teacher: Teacher, doubts: Sequence[Doubt]) -> None:
    from ..distill.lint.model import doubt_sheets

    async with teacher.client as client:
        await teacher.label(doubt_sheets(doubts, client.model), len(doubts), unit="doubt")


def _known(ledger: Ledger | None, key: bytes) -> bool:
    return ledger is not None and ledger.has(key)


def asker_of(args: Namespace) -> Asker | None:
    """None where no model is to be asked."""
    if args.server or args.model:
        return Asker(args)
    for name in ("ledger", "budget", "dry_run"):
        if getattr(args, name) not in (None, False):
            flag = name.replace("_", "-")
            raise InputError(f"--{flag} is for a model behind a server; give --server and --model")
    return None
