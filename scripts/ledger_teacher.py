"""A teacher behind a server as a judge that forgets nothing: what the ledger holds is never asked again.

In: examples and responses. Out: verdicts, asked in the order of the items, so that a budget ends with the last ones; each
answer is in the ledger before the next question. What the budget did not reach is missing with an error that begins
with "budget".
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..distill.ledger import Ledger
from ..distill.questions import sheets, verdicts
from ..distill.teacher import Teacher, TeacherSettings
from ..verifier.chat import ChatClient
from ..verifier.errors import InputError
from ..verifier.schema import Example, Mode, Rollout, Verdict


class LedgerTeacher:
    """`model` behind the server `url`; `client` are the client's settings. After a call, `last` is the run of asking that
    it took. Raises InputError where the server refuses key or model, or keeps failing."""

    def __init__(self, url: str, model: str, mode: Mode, ledger: Ledger, settings: TeacherSettings, **client: Any):
        if settings.several:
            raise InputError("a cascade asks one criterion a call")
        ChatClient(url, model, **client)  # refuses a wrong address or setting now
        self.name, self.url = model, url
        self.mode: Mode = mode
        self.ledger, self.settings, self.client = ledger, settings, client
        self.last: Teacher | None = None

    def judge(self, items: Sequence[tuple[Example, Rollout]]) -> list[Verdict]:
        """Verdicts of all criteria of each item, in order."""
        asyncio.run(self._ask(items))
        found = list(verdicts(self._sheets(items), self.ledger, self.name, several=False))
        if self.last is not None and self.last.out_of_budget:
            unasked = "budget: the money is spent"
            found = [replace(v, error=unasked) if str(v.error).startswith("unasked") else v for v in found]
        return found

    async def _ask(self, items: Sequence[tuple[Example, Rollout]]) -> None:
        async with ChatClient(self.url, self.name, **self.client) as client:
            self.last = Teacher(client, self.ledger, self.settings)
            await self.last.label(self._sheets(items), sum(len(example.criteria) for example, _ in items))

    def _sheets(self, items: Sequence[tuple[Example, Rollout]]):
        return sheets(items, [self.mode], self.name, several=False, digest_of=self.ledger.image_digest)
