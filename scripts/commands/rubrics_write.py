"""`claimwise rubrics write`: a multimodal model writes the criteria of an example table.

In: an example table, its criteria replaced or not there yet, and a server. Out: a folder as `claimwise data convert`
writes it (examples.parquet, images/, rejected.jsonl), with the ledger of all answers in it.
"""

from __future__ import annotations

import asyncio
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from ...verifier.errors import InputError
from ..parser import CommandParser
from ..teacher_flags import OUT_OF_BUDGET, add_flags, client_of, cost_lines, run_lines, settings_of

if TYPE_CHECKING:
    from ...distill.ledger import Ledger
    from ...distill.teacher import Teacher, TeacherSettings
    from ...verifier.schema import Example

EXAMPLE = """example:
  export OPENAI_API_KEY=...
  claimwise rubrics write --examples ours.jsonl --model Qwen3-VL-235B-A22B-Instruct --server http://localhost:8000/v1 \\
      --out data/ours --dry-run

The model sees images, question, reference and answer of an example and writes atomic criteria with title, text,
dimension, label and weight: grounded in the image, self-contained, covering the intermediate steps, with their
importance. Criteria that E has are replaced in OUT; a table without the column criteria will do.

OUT gets examples.parquet, images/ and rejected.jsonl, which names each criterion that was still unusable after the model
was asked once more, and each example that got none. OUT must be new, empty, or this very run's: all answers are kept in
OUT/ledger.sqlite (--ledger: elsewhere), so that, stopped in any way, the same command goes on where it was and asks
nothing twice. Where the budget ended the run first, no table is written and the exit status is 3."""
MAX_TOKENS = 2048
RUBRIC_TOKENS = 700  # of a rubric, until the ledger knows better


def write(argv: list[str]) -> int:
    parser = CommandParser("rubrics write", "Have a model write the criteria of each example.", EXAMPLE)
    parser.add_argument("--examples", required=True, metavar="E", type=Path, help="example table (.parquet or .jsonl)")
    parser.add_argument("--model", required=True, metavar="NAME", help="the model's name on the server")
    parser.add_argument("--server", required=True, metavar="URL", help="a server that speaks OpenAI's chat API")
    parser.add_argument("--out", required=True, metavar="OUT", type=Path, help="folder to write, new or empty")
    parser.add_argument("--ledger", metavar="FILE", type=Path, help="keeps every answer (default: OUT/ledger.sqlite)")
    add_flags(parser.add_argument, str(MAX_TOKENS))
    args = parser.parse_args(argv)

    from ...distill.rubric_writer import LEDGER, check_out, settings_of as identity_of  # isort: skip
    from ...verifier.tables import read_examples

    settings, client = settings_of(args, 1, MAX_TOKENS), client_of(args, args.server)
    examples = read_examples(args.examples, need_criteria=False)
    identity = identity_of(args.examples, args.model)
    check_out(args.out, identity)
    path = args.ledger or args.out / LEDGER
    if args.dry_run:
        return dry_run(args, examples, settings, path)
    from ...distill.ledger import Ledger
    from ...distill.teacher import Teacher

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path.parent} cannot be made ({error.strerror}); give another folder") from None
    with Ledger(path) as ledger:
        teacher = Teacher(client, ledger, settings)
        asyncio.run(ask(teacher, examples))
        found = ledger.figures(args.model, ["rubric"])
        told = f"{path}: {found['answers']} rubrics of {args.model}, {found['missing']} unreadable for good"
        print(told, *run_lines(teacher, found), sep="\n")
        if teacher.out_of_budget:
            return OUT_OF_BUDGET
        return finish(args, examples, ledger, identity)


async def ask(teacher: Teacher, examples: list[Example]) -> None:
    from ...distill.rubric_writer import rubric_sheets

    async with teacher.client as client:
        stream = rubric_sheets(examples, client.model, teacher.ledger.image_digest)
        await teacher.label(stream, len(examples), unit="rubric")


def finish(args: Namespace, examples: list[Example], ledger: Ledger, identity: dict[str, str]) -> int:
    """Writes the table and says what is in it, what is not, and what the lint finds."""
    from ...distill.lint.report import lint
    from ...distill.rubric_writer import write_table, written

    done, rejected = written(examples, args.model, ledger)
    done = write_table(args.out, done, rejected, identity)
    count, old = sum(len(example.criteria) for example in done), sum(len(example.criteria) for example in examples)
    table, single = args.out / "examples.parquet", sum(row["criterion"] is not None for row in rejected)
    print(f"{table}: {len(done)} of {len(examples)} examples, {count} criteria")
    if old:
        print(f"replaced: the {old} criteria of {args.examples}, which stays as it is")
    alone = sum(example.reference is None and example.answer is None for example in done)
    if alone:
        print(f"{alone} examples have neither reference nor answer: their criteria rest on the model's own reading")
    if rejected:
        print(
            f"rejected: {single} criteria, {len(examples) - len(done)} examples; {args.out / 'rejected.jsonl'} has each"
        )
    faulty = lint(done).as_json()["faulty"]
    print(f"{faulty} of {count} criteria have a lint finding: run `claimwise rubrics lint {table}`")
    return 0


def dry_run(args: Namespace, examples: list[Example], settings: TeacherSettings, path: Path) -> int:
    from tqdm import tqdm

    from ...distill.estimate import answer_tokens, load_counter
    from ...distill.ledger import Ledger
    from ...distill.rubric_prompt import messages
    from ...distill.rubric_writer import MODE, rubric_sheets

    ledger = Ledger(path, write=False) if path.is_file() else None
    digest = {"digest_of": ledger.image_digest} if ledger else {}
    counter, how = load_counter(args.model, args.processor)
    seen: set[bytes] = set()
    tokens = known = 0
    bar = tqdm(examples, desc="counting", unit="example", leave=False)
    for sheet in rubric_sheets(bar, args.model, **digest):
        if sheet.keys[0] in seen or (ledger is not None and ledger.has(sheet.keys[0])):
            known += 1
            continue
        seen.add(sheet.keys[0])
        tokens += counter.chat(messages(sheet.text, []), sheet.images)
    each, source = answer_tokens(ledger, args.model, [MODE], RUBRIC_TOKENS)
    print(f"{len(seen):,} calls, and one more for each rubric with something unusable in it")
    print(f"{known:,} examples are answered already, or occur twice")
    print(*cost_lines(settings, tokens, how, len(seen), (each, "rubric", source), len(seen)), sep="\n")
    return 0
