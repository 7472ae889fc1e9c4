"""Shared by the tests of labelling: two tables, the command on them, and a run in this process."""

from __future__ import annotations

import asyncio

from claimwise.distill.ledger import Ledger
from claimwise.distill.questions import sheets, verdicts
from claimwise.distill.teacher import Teacher, TeacherSettings
from claimwise.verifier.chat import ChatClient
from claimwise.verifier.errors import InputError
from claimwise.verifier.schema import Criterion, Example, Rollout
from claimwise.verifier.tables import write_examples, write_rollouts
from servers import judge

TEXTS = ["The first is 3.", "The second is 4.", "So the sum is 7.", "It is odd."]
CRITERIA = tuple(Criterion(f"c{n}", text, dimension="VF") for n, text in enumerate(TEXTS))
RESPONSES = ["The first is 3. So the sum is 7.", "The second is 4. It is odd.", "", "The first is 3."]


def tables(folder, examples=2, images=()):
    """Examples of four criteria, each with four rollouts; the paths of the two tables."""
    rows = [Example(f"e{n}", f"What is picture {n}?", CRITERIA, images) for n in range(examples)]
    rollouts = [Rollout(f"r{n}-{k}", f"e{n}", text, "p") for n in range(examples) for k, text in enumerate(RESPONSES)]
    write_examples(folder / "examples.jsonl", rows)
    write_rollouts(folder / "rollouts.parquet", rollouts)
    return ["--examples", folder / "examples.jsonl", "--rollouts", folder / "rollouts.parquet"]


def command(folder, url, *more, examples=2, images=()):
    fixed = ["--teacher", url, "--model", "m", "--mode", "text", "--ledger", folder / "l.sqlite"]
    return list(map(str, ["label", *tables(folder, examples, images), *fixed, *more]))


def ask(server, folder, criteria=CRITERIA[:1], responses=RESPONSES[:1], per_call=1, **settings):
    """Labels responses to one example in this process; the verdict rows, and the teacher."""
    example = Example("e", "What?", criteria)
    pairs = [(example, Rollout(f"r{n}", "e", text, "p")) for n, text in enumerate(responses)]
    several = per_call > 1
    client = {"max_in_flight": 4, "timeout_s": 10.0, "backoff_s": 0.01, "tries": 3}
    client |= {key: settings.pop(key) for key in list(settings) if key in client}
    with Ledger(folder / "l.sqlite") as ledger:

        async def go():
            async with ChatClient(server.url, "m", **client) as chat:
                teacher = Teacher(chat, ledger, TeacherSettings(per_call, **settings))
                try:
                    await teacher.label(sheets(pairs, ["text"], "m", several))
                except InputError as error:
                    return teacher, error
                return teacher, None

        teacher, stopped = asyncio.run(go())
        return list(verdicts(sheets(pairs, ["text"], "m", several), ledger, "m", several)), teacher, stopped


def wrong_then(*first):
    """The first calls get these answers, the rest honest ones."""
    return lambda call: first[call.number - 1] if call.number <= len(first) else judge(call)
