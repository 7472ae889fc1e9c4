"""Rubrics written by a multimodal model: examples in, the same examples with new criteria out.

    teacher = Teacher(client, ledger, TeacherSettings(max_tokens=2048))
    await teacher.label(rubric_sheets(examples, client.model), len(examples), unit="rubric")
    examples, rejected = written(examples, client.model, ledger)
    write_table(out, examples, rejected, settings)

One question to the teacher is the whole rubric of an example. What came is in the ledger as JSON, the criteria that could
not be used among it, each with its reason; so the table can be made from the ledger at any time.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..verifier.asking import SECOND_TEMPERATURE, Answered, Outcome, add_tokens
from ..verifier.chat import ChatClient
from ..verifier.chat_errors import ChatError
from ..verifier.errors import InputError
from ..verifier.image_digest import file_digest
from ..verifier.quoting import Judgement
from ..verifier.rundir import FILE, open_run, write_atomic
from ..verifier.schema import Criterion, Example
from ..verifier.tables import write_examples
from .convert import REJECTED, TABLE
from .ledger import Ledger
from .pictures import read_picture
from .questions import digest_of_parts, key_of
from .rubric_prompt import SYSTEM, Rubric, answer_format, ask_again, messages, parse, prompt_hash, user_text

MODE = "rubric"  # in the ledger
LEDGER = "ledger.sqlite"


@dataclass(frozen=True)
class RubricSheet:
    """The question for one example's rubric, as the teacher takes it (`questions.Questions`)."""

    example: Example
    keys: list[bytes]
    mode: str = MODE

    @property
    def images(self) -> tuple[Any, ...]:
        return self.example.images

    @property
    def text(self) -> str:
        return user_text(self.example.question, self.example.reference, self.example.answer)

    def prompt_hash(self, several: bool) -> str:
        return prompt_hash()

    def prompt_text(self, places: Sequence[int], several: bool) -> str:
        return SYSTEM + self.text

    async def ask(
        self, client: ChatClient, places: Sequence[int], images: Sequence[str], several: bool, max_tokens: int
    ) -> Outcome:
        """The rubric, or what is unreadable twice; `Answered.judgement.quote` has it as JSON."""
        chat, rubric, tokens, lost = messages(self.text, images), Rubric(), (0, 0), 0
        turn = 0
        for turn, temperature in enumerate((0.0, SECOND_TEMPERATURE)):
            try:
                answer = await client.ask(
                    chat, temperature=temperature, max_tokens=max_tokens, response_format=answer_format()
                )
            except ChatError as error:
                failed = Judgement(None, error="it has not been asked" if not turn else "the second ask failed")
                return Outcome([Answered(failed, *tokens)], error, lost + error.lost, turn)
            lost += answer.lost
            tokens = (add_tokens(tokens[0], answer.prompt_tokens), add_tokens(tokens[1], answer.completion_tokens))
            found = parse(answer.text, answer.finish_reason == "length")
            rubric = rubric.mended_by(found) if turn else found
            if not rubric.bad:
                break
            chat = chat + ask_again(answer.text, rubric)
        return Outcome([Answered(_judgement(rubric), *tokens)], None, lost, turn + 1)


def _judgement(rubric: Rubric) -> Judgement:
    said = json.dumps({"criteria": rubric.good, "rejected": [dataclasses.asdict(bad) for bad in rubric.bad]})
    reasons = "; ".join(bad.reason for bad in rubric.bad[:3])
    return Judgement(None, quote=said, error=None if rubric.good else f"unreadable: {reasons}")


def rubric_sheets(
    examples: Iterable[Example], model: str, digest_of: Callable[[Path], str] = file_digest
) -> Iterator[RubricSheet]:
    """One sheet for each example; equal ones have one key and are asked once."""
    for example in examples:
        images = [digest_of(Path(str(image))) for image in example.images]
        shared = digest_of_parts((prompt_hash(), model, MODE, *images))
        text = user_text(example.question, example.reference, example.answer)
        yield RubricSheet(example, [key_of(shared, text)])


def written(examples: Sequence[Example], model: str, ledger: Ledger) -> tuple[list[Example], list[dict[str, Any]]]:
    """The examples with the criteria that the ledger has for them; and what is in no table, a row each as in
    `rejected.jsonl`: single criteria (`criterion` has what the model wrote), and examples for which none is left."""
    done, rejected = [], []
    for sheet in rubric_sheets(examples, model, ledger.image_digest):
        (stored,) = ledger.read(sheet.keys)
        found = stored.judgement if stored else Judgement(None, error="unasked: the ledger has no answer")
        rubric = json.loads(found.quote) if found.quote else {"criteria": [], "rejected": []}
        rejected += [_rejected(sheet.example, bad["reason"], bad["item"]) for bad in rubric["rejected"]]
        criteria = tuple(Criterion(f"c{n}", **item) for n, item in enumerate(rubric["criteria"], 1))
        if criteria:
            done.append(dataclasses.replace(sheet.example, criteria=criteria))
        else:
            rejected.append(_rejected(sheet.example, found.error))
    return done, rejected


def settings_of(table: Path, model: str) -> dict[str, Any]:
    """What makes two rubric tables the same run."""
    examples = f"sha256 {file_digest(table)[:16]}"
    return {"command": "rubrics write", "examples": examples, "model": model, "prompt_hash": prompt_hash()}


def check_out(out: Path, settings: dict[str, Any]) -> None:
    """Raises InputError where OUT holds anything but this very run, finished or not."""
    if (out / FILE).is_file():
        open_run(out, settings)
    elif out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; give the name of a folder")
    elif out.is_dir():
        strange = sorted(p.name for p in out.iterdir() if not p.name.startswith(LEDGER) and p.name != REJECTED)
        if set(strange) - {"images"}:
            raise InputError(f"{out} is not empty and no table of this command; give another folder")


def write_table(
    out: Path, examples: list[Example], rejected: list[dict[str, Any]], settings: dict[str, Any]
) -> list[Example]:
    """OUT/rejected.jsonl, OUT/images and OUT/examples.parquet, which comes last; gives the examples in it. An example
    whose image is broken is appended to `rejected`. InputError where none is left, or OUT cannot be written."""
    try:
        stored = [kept for example in examples if (kept := _stored(example, out / "images", rejected))]
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rejected)
        write_atomic(out / REJECTED, lines.encode("utf-8", "replace").decode())
        if not stored:
            raise InputError(
                f"no example has a rubric, and no table was written; the first reason is: {rejected[0]['reason']}; "
                f"{out / REJECTED} names each"
            )
        write_atomic(out / FILE, json.dumps(settings, indent=2) + "\n")
        write_examples(out / TABLE, stored)
    except OSError as error:
        raise InputError(
            f"{out}: it cannot be written ({error.strerror}); make room, and the same command goes on"
        ) from None
    return stored


def _stored(example: Example, folder: Path, rejected: list[dict[str, Any]]) -> Example | None:
    images = []
    for number, path in enumerate((Path(str(image)) for image in example.images), 1):
        try:
            images.append(read_picture(path.name, path.parent).store(folder))
        except InputError as error:
            reason = f"image {number}: {error}"
            rejected.append(_rejected(example, reason))
            return None
    return dataclasses.replace(example, images=tuple(images))


def _rejected(example: Example, reason: str | None, criterion: Any = None) -> dict[str, Any]:
    return {"example_id": example.example_id, "kind": "refused", "reason": reason, "criterion": criterion}
