"""claimwise bench label: the teacher's client and its ledger, measured against a local server.

client_vs_bare      calls per second of our client, ledger included, over those of a bare asyncio loop that only
                    sends and reads, on the same server with 200 ms an answer and with as many calls in flight; the
                    median of pairs that take turns
export_rows_per_s   rows of the verdict table per second, from tables and ledger on disk to a Parquet file
peak_rss_mb         the most memory that this process had, over everything here

With --ask-all FOLDER all verdicts are asked for instead, ten a call, by `claimwise label` and a server that answers at
once, each a process of its own; `claimwise label --export` then finds them all in the ledger and writes the table:

label_per_s         verdicts asked, answered and written into the ledger per second
label_rss_mb        memory of `label` at a quarter, half, three quarters and the end of its time
label_peak_mb, export_peak_mb, peak_rss_mb    the most memory that either had, and the larger of the two
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from ...verifier.errors import InputError
from ...verifier.schema import Criterion, Example, Rollout, Verdict
from .server import QUOTE

if TYPE_CHECKING:
    from ...distill.questions import Sheet

DESCRIPTION = "The teacher's client and ledger against a bare asyncio loop on a local server, and the export."
EXAMPLE = """example:
  claimwise bench label --json
  claimwise bench label --verdicts 3000000 --ask-all runs/three-million --json     # a quarter of an hour, 2 GB of disk"""
MODEL, CRITERIA, ROLLOUTS = "late", 10, 10
ANSWER_S, PAIRS = 0.2, 3


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--verdicts", type=int, default=1_000_000, metavar="N", help="rows to export (default: 1000000)"
    )
    parser.add_argument("--calls", type=int, default=3200, metavar="N", help="calls of each client (default: 3200)")
    parser.add_argument("--in-flight", type=int, default=64, metavar="N", help="calls at a time (default: 64)")
    parser.add_argument(
        "--ask-all",
        type=Path,
        metavar="FOLDER",
        help="label every verdict that is exported, instead of writing it into the ledger; tables, ledger and verdicts "
        "stay in the folder, and the same command goes on where it was stopped",
    )


def measure(args: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        figures: dict[str, Any] = {"client_vs_bare": round(compare(Path(folder), args.calls, args.in_flight), 3)}
        if args.ask_all is None:
            figures["export_rows_per_s"] = round(export(Path(folder), args.verdicts))
            return figures | {"peak_rss_mb": megabytes(resource.getrusage(resource.RUSAGE_SELF))}
    return figures | ask_all(args.ask_all, args.verdicts, args.in_flight)


def megabytes(usage: resource.struct_rusage) -> int:
    return round(usage.ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3))


def compare(folder: Path, calls: int, in_flight: int) -> float:
    """Calls per second of our client over those of the bare loop: the median of pairs on one server."""
    ratios = []
    with late_server(ANSWER_S) as port:
        asyncio.run(ask_client(port, list(first_sheets(1, PAIRS)), folder / "warm-up.sqlite", in_flight))
        for turn in range(PAIRS):
            stream = list(first_sheets(calls, turn))
            began = time.perf_counter()
            asyncio.run(ask_bare(port, request_bodies(stream), in_flight))
            between = time.perf_counter()
            asyncio.run(ask_client(port, stream, folder / f"compare-{turn}.sqlite", in_flight))
            ratios.append((between - began) / (time.perf_counter() - between))
    return median(ratios)


@contextmanager
def late_server(answer_s: float) -> Iterator[int]:
    """The port of a server in a process of its own."""
    command = [sys.executable, "-m", f"{__package__}.server", str(answer_s)]
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
    from ...distill.questions import sheets

    for example, rollouts in generated(-(-calls // (CRITERIA * ROLLOUTS)), turn):
        yield from sheets(((example, rollout) for rollout in rollouts), ["text"], MODEL, several=False)


def request_bodies(stream: list[Sheet]) -> list[dict[str, Any]]:
    """What the client sends, for the bare loop."""
    from ...verifier.asking import TOP_LOGPROBS
    from ...verifier.quoting import answer_format, messages

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


async def ask_client(port: int, stream: Any, path: Path, in_flight: int) -> None:
    from ...distill.ledger import Ledger
    from ...distill.teacher import Teacher, TeacherSettings
    from ...verifier.chat import ChatClient

    with Ledger(path) as ledger:
        async with ChatClient(f"http://127.0.0.1:{port}/v1", MODEL, max_in_flight=in_flight) as client:
            teacher = Teacher(client, ledger, TeacherSettings())
            await teacher.label(stream)
    if teacher.missing:
        raise RuntimeError(f"verdicts are missing: {teacher.missing}")


def export(folder: Path, verdicts: int) -> float:
    """Rows per second from tables and a full ledger to a table; the ledger is filled first."""
    from ...distill.ledger import Ledger
    from ...distill.questions import sheets
    from ...distill.questions import verdicts as rows_of
    from ...verifier.streams import Pairs, write_verdict_stream

    tables, path = write_tables(folder, verdicts), folder / "teacher.sqlite"
    with Pairs(*tables) as pairs:
        fill(path, sheets(pairs, ["text"], MODEL, several=False))
    began = time.perf_counter()
    with Pairs(*tables) as pairs, Ledger(path, write=False) as ledger:
        rows = rows_of(sheets(pairs, ["text"], MODEL, several=False), ledger, MODEL, several=False)
        count = write_verdict_stream(folder / "verdicts.parquet", all_known(rows))
    return count / (time.perf_counter() - began)


def all_known(rows: Iterator[Verdict]) -> Iterator[Verdict]:
    for verdict in rows:
        if verdict.verdict is None:
            raise RuntimeError(f"a verdict is missing: {verdict.error}")
        yield verdict


def write_tables(folder: Path, verdicts: int) -> tuple[Path, Path]:
    paths = folder / "examples.jsonl", folder / "rollouts.jsonl"
    with paths[0].open("w") as example_rows, paths[1].open("w") as rollout_rows:
        for example, rollouts in generated(-(-verdicts // (CRITERIA * ROLLOUTS))):
            criteria = [{"id": criterion.id, "text": criterion.text} for criterion in example.criteria]
            row = {"example_id": example.example_id, "question": example.question, "criteria": criteria}
            example_rows.write(json.dumps(row) + "\n")
            rollout_rows.writelines(json.dumps(vars(rollout)) + "\n" for rollout in rollouts)
    return paths


def fill(path: Path, stream: Iterator[Sheet]) -> None:
    from tqdm import tqdm

    from ...distill.ledger import Entry, Ledger
    from ...verifier.quoting import Reply, judgement, prompt_hash

    digest = prompt_hash("text", False)
    with Ledger(path) as ledger:
        bar = iter(tqdm(stream, desc="filling the ledger", unit="response"))
        while some := list(islice(bar, 100)):
            found = judgement(Reply(True, QUOTE), some[0].rollout.response, "text")
            ledger.write(
                [Entry(key, found, 40, 20, None) for sheet in some for key in sheet.keys], MODEL, "text", digest
            )


def ask_all(folder: Path, verdicts: int, in_flight: int) -> dict[str, Any]:
    """Labels and exports with the command itself, and watches its memory."""
    folder.mkdir(parents=True, exist_ok=True)
    examples, rollouts = write_tables(folder, verdicts)
    ledger, table = folder / "teacher.sqlite", folder / "verdicts.parquet"
    known = answers(ledger)
    flags = ["--examples", examples, "--rollouts", rollouts, "--mode", "text", "--model", MODEL, "--ledger", ledger]
    with late_server(0) as port:
        flags += ["--teacher", f"http://127.0.0.1:{port}/v1", "--max-in-flight", in_flight]
        flags += ["--criteria-per-call", CRITERIA]
        asked_s, rss, asked = watched(*flags)
        exported_s, _, exported = watched(*flags, "--export", table)
    peaks = {"label_peak_mb": megabytes(asked), "export_peak_mb": megabytes(exported)}
    return {
        "label_per_s": round((answers(ledger) - known) / asked_s),
        "export_rows_per_s": round(answers(ledger) / exported_s),
        "label_rss_mb": [rss[-(-len(rss) * quarter // 4) - 1] for quarter in range(1, 5)],
        **peaks,
        "peak_rss_mb": max(peaks.values()),
    }


def answers(path: Path) -> int:
    from ...distill.ledger import Ledger

    if not path.is_file():
        return 0
    with Ledger(path, write=False) as ledger:
        return ledger.figures(MODEL)["answers"]


def watched(*flags: Any) -> tuple[float, list[int], resource.struct_rusage]:
    """Runs `claimwise label`: seconds, its memory in MB every half second, and what the system says of it at the end."""
    import psutil

    began, rss = time.perf_counter(), []
    process = psutil.Popen([sys.executable, "-m", "claimwise.scripts.cli", "label", *map(str, flags)], stdout=2)
    try:
        while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
            rss.append(round(process.memory_info().rss / 1e6))
            time.sleep(0.5)
    except KeyboardInterrupt:
        process.wait()  # it has been told as well, and puts its ledger in order
        raise
    if status := os.waitstatus_to_exitcode(ended[1]):
        raise InputError(f"claimwise label ended with status {status}; see above")
    return time.perf_counter() - began, rss, ended[2]
