"""claimwise bench label: the teacher's client and its ledger, measured against a local server.

client_vs_bare      calls per second of our client, ledger included, over those of a bare asyncio loop that only
                    sends and reads, on the same server with 200 ms an answer and with as many calls in flight
export_rows_per_s   rows of the verdict table per second, from tables and ledger on disk to a Parquet file
peak_rss_mb         the most memory that this process had, over everything here
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..verifier.schema import Criterion, Example, Rollout, Verdict
from .bench_server import QUOTE

if TYPE_CHECKING:
    from ..distill.questions import Sheet

DESCRIPTION = "The teacher's client and ledger against a bare asyncio loop on a local server, and the export."
EXAMPLE = """example:
  claimwise bench label --json
  claimwise bench label --verdicts 3000000 --ask-all --json     # all of them through the client, half an hour"""
MODEL, CRITERIA, ROLLOUTS = "late", 10, 10
ANSWER_S, ROUNDS = 0.2, 2


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--verdicts", type=int, default=1_000_000, metavar="N", help="rows to export (default: 1000000)"
    )
    parser.add_argument("--calls", type=int, default=3200, metavar="N", help="calls of each client (default: 3200)")
    parser.add_argument("--in-flight", type=int, default=64, metavar="N", help="calls at a time (default: 64)")
    parser.add_argument(
        "--ask-all",
        action="store_true",
        help="ask for every verdict that is exported, ten criteria a call, instead of writing it into the ledger",
    )


def measure(args: argparse.Namespace) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        rates = compare(Path(folder), args.calls, args.in_flight)
        rows_per_s = export(Path(folder), args.verdicts, args.in_flight if args.ask_all else None)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)
    return {
        "client_vs_bare": round(rates["client"] / rates["bare"], 3),
        "export_rows_per_s": round(rows_per_s),
        "peak_rss_mb": round(peak),
    }


def compare(folder: Path, calls: int, in_flight: int) -> dict[str, float]:
    """Calls per second, both taking turns on one server."""
    seconds = {"bare": 0.0, "client": 0.0}
    with late_server(ANSWER_S) as port:
        asyncio.run(ask_client(port, list(first_sheets(1, ROUNDS)), folder / "warm-up.sqlite", in_flight))
        for turn in range(ROUNDS):
            stream = list(first_sheets(calls, turn))
            began = time.perf_counter()
            asyncio.run(ask_bare(port, request_bodies(stream), in_flight))
            seconds["bare"] += time.perf_counter() - began
            began = time.perf_counter()
            asyncio.run(ask_client(port, stream, folder / f"compare-{turn}.sqlite", in_flight))
            seconds["client"] += time.perf_counter() - began
    return {who: ROUNDS * calls / spent for who, spent in seconds.items()}


@contextmanager
def late_server(answer_s: float) -> Iterator[int]:
    """The port of a server in a process of its own."""
    command = [sys.executable, "-m", f"{__package__}.bench_server", str(answer_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield int(server.stdout.readline())
        finally:
            server.kill()


def generated(examples: int, turn: int = 0) -> Iterator[tuple[Example, list[Rollout]]]:
    """Examples of ten criteria with ten rollouts each; no two ask the same."""
    for number in range(examples):
        name = f"{turn}-{number}"
        criteria = tuple(Criterion(f"c{k}", f"The response gives item {k} of {name}.") for k in range(CRITERIA))
        text = f"The bars of chart {name} are read off one by one. They are 3, 4 and 5. {QUOTE} "
        rollouts = [Rollout(f"{name}/{k}", name, text + f"Answer {k}.", "policy") for k in range(ROLLOUTS)]
        yield Example(name, "What do the bars add up to? " * 4, criteria), rollouts


def first_sheets(calls: int, turn: int) -> Iterator[Sheet]:
    """Sheets with so many questions in all, rounded up to whole examples."""
    from ..distill.questions import sheets

    for example, rollouts in generated(-(-calls // (CRITERIA * ROLLOUTS)), turn):
        yield from sheets(((example, rollout) for rollout in rollouts), ["text"], MODEL, several=False)


def request_bodies(stream: list[Sheet]) -> list[dict[str, Any]]:
    """What the client sends, for the bare loop."""
    from ..verifier.asking import TOP_LOGPROBS
    from ..verifier.quoting import answer_format, messages

    more = {"temperature": 0.0, "max_tokens": 512, "response_format": answer_format("text", False)}
    more |= {"logprobs": True, "top_logprobs": TOP_LOGPROBS}
    return [
        {"model": MODEL, "messages": messages(s.example.question, s.rollout.response, [c.text], "text"), **more}
        for s in stream
        for c in s.example.criteria
    ]


async def ask_bare(port: int, bodies: list[dict[str, Any]], in_flight: int) -> None:
    """Sends every body over one of `in_flight` connections and reads the answer; nothing else."""
    left = iter(bodies)

    async def work() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for body in left:
            data = json.dumps(body).encode()
            writer.write(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(data) + data
            )
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
            answer = json.loads(await reader.readexactly(length))
            json.loads(answer["choices"][0]["message"]["content"])
        writer.close()

    await asyncio.gather(*(work() for _ in range(in_flight)))


async def ask_client(port: int, stream: Any, path: Path, in_flight: int, per_call: int = 1) -> None:
    from ..distill.ledger import Ledger
    from ..distill.teacher import Teacher, TeacherSettings
    from ..verifier.chat import ChatClient

    with Ledger(path) as ledger:
        async with ChatClient(f"http://127.0.0.1:{port}/v1", MODEL, max_in_flight=in_flight) as client:
            teacher = Teacher(client, ledger, TeacherSettings(per_call, 512 * per_call))
            await teacher.label(stream)
    if teacher.missing:
        raise RuntimeError(f"verdicts are missing: {teacher.missing}")


def export(folder: Path, verdicts: int, ask_with: int | None) -> float:
    """Rows per second from tables and a full ledger to a table; the ledger is filled first, through the client with so
    many calls in flight, or directly."""
    from ..distill.ledger import Ledger
    from ..distill.questions import sheets
    from ..distill.questions import verdicts as rows_of
    from ..verifier.streams import Pairs, write_verdict_stream

    tables, path = write_tables(folder, -(-verdicts // (CRITERIA * ROLLOUTS))), folder / "teacher.sqlite"
    with Pairs(*tables) as pairs:
        stream = sheets(pairs, ["text"], MODEL, several=True)
        if ask_with is None:
            fill(path, stream)
        else:
            with late_server(0.01) as port:
                asyncio.run(ask_client(port, stream, path, ask_with, CRITERIA))
    began = time.perf_counter()
    with Pairs(*tables) as pairs, Ledger(path, write=False) as ledger:
        rows = rows_of(sheets(pairs, ["text"], MODEL, several=True), ledger, MODEL, several=True)
        count = write_verdict_stream(folder / "verdicts.parquet", all_known(rows))
    return count / (time.perf_counter() - began)


def all_known(rows: Iterator[Verdict]) -> Iterator[Verdict]:
    for verdict in rows:
        if verdict.verdict is None:
            raise RuntimeError(f"a verdict is missing: {verdict.error}")
        yield verdict


def write_tables(folder: Path, examples: int) -> tuple[Path, Path]:
    paths = folder / "examples.jsonl", folder / "rollouts.jsonl"
    with paths[0].open("w") as example_rows, paths[1].open("w") as rollout_rows:
        for example, rollouts in generated(examples):
            criteria = [{"id": criterion.id, "text": criterion.text} for criterion in example.criteria]
            row = {"example_id": example.example_id, "question": example.question, "criteria": criteria}
            example_rows.write(json.dumps(row) + "\n")
            rollout_rows.writelines(json.dumps(vars(rollout)) + "\n" for rollout in rollouts)
    return paths


def fill(path: Path, stream: Iterator[Sheet]) -> None:
    from tqdm import tqdm

    from ..distill.ledger import Entry, Ledger
    from ..verifier.quoting import Reply, judgement, prompt_hash

    digest = prompt_hash("text", True)
    with Ledger(path) as ledger:
        bar = iter(tqdm(stream, desc="filling the ledger", unit="response"))
        while some := list(islice(bar, 100)):
            found = judgement(Reply(True, QUOTE), some[0].rollout.response, "text")
            ledger.write(
                [Entry(key, found, 40, 20, None) for sheet in some for key in sheet.keys], MODEL, "text", digest
            )
