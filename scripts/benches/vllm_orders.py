"""The figures of `claimwise bench judge` that a vLLM server gives: the order of the prompt, and images by id.

In: flags. Out: two ratios of time on one server, each the median over interleaved repeats; null where there is no vLLM,
with the reason. The same questions are asked with the criterion last, as a verifier is asked them, so that all criteria
of a response share what stands before; with the criterion first, so that they share nothing (siblings still share what
stands before the response, criterion by criterion); and with the image as base64 in every request instead of its id. Each
way and repeat has a salt of its own in the server's prefix cache, so that none finds what another has left there.

The model has random weights and is wider than the digits verifier, which reads 1,200 tokens in less time than a request
takes. A question is one request of four tokens, as a trained verifier's mostly is; random weights would go on. On the CPU
one thread of the server works, and the processor time of its worker and its front end counts.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import torch
from tqdm import tqdm

from ...verifier.adapter import MERGED, VerifierCard, read_card
from ...verifier.asking import image_url
from ...verifier.engine import Question
from ...verifier.errors import InputError
from ...verifier.judge import resolve_base
from ...verifier.model import base_hash
from ...verifier.packed import Answer
from ...verifier.processor import load_processor
from ...verifier.prompt import prompt_hash
from ...verifier.schema import Example, Rollout
from ...verifier.server_judge import ServerJudge
from ...verifier.turn import Token, Turn
from .speed import CRITERIA, Timer, Way, median_ratio
from .workload import Shape, Workload

SHAPE = Shape(width=256, layers=6, picture=(1024, 768), opening=900, response=300, criterion=40, responses=3)
RATIOS = ("vllm_order_ratio", "vllm_uuid_ratio")
MOST_TOKENS = "2048"
WRITTEN = 4  # a label, a reading of one word with its end, a verdict
ROOT = Path(__file__).parents[2]


class OneRequest(Turn):
    """A turn of four tokens, whatever they are."""

    def sampling(self) -> dict[str, Any]:
        return {**super().sampling(), "max_tokens": WRITTEN, "stop_token_ids": []}

    def take(self, tokens: Iterable[Token]) -> None:
        *_, last = tokens
        self.answer = Answer(min(self.labels), [], last.logprobs[self.yes_id] - last.logprobs[self.no_id])


class CriterionLast(ServerJudge):
    """As the verifier is asked. `salt` separates it in the server's prefix cache."""

    salt = ""

    def turn(self, question: Question) -> Turn:
        return OneRequest(self.encoder, question.labels, self.card.readings)

    def _more(self, question: Question, data: bool) -> dict[str, Any]:
        return super()._more(question, data) | {"cache_salt": self.salt}


class CriterionFirst(CriterionLast):
    """The same texts with the criterion and the verifier's turn before all else. What a verifier would say to that is of
    no use; it takes as many tokens."""

    def questions(
        self, example: Example, rollout: Rollout, keys: Sequence[bytes], asked: Iterable[int]
    ) -> list[Question]:
        numbers = list(asked)
        branches = [len(self._branch(example.criteria[k].text)) for k in numbers]
        last = super().questions(example, rollout, keys, numbers)
        return [
            replace(question, ids=question.ids[-size:] + question.ids[:-size], opening=question.opening + size)
            for question, size in zip(last, branches, strict=True)
        ]


class ImageEachTime(CriterionLast):
    """With the image as base64 in every request, encoded once here."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self._urls: dict[str, str] = {}

    def _more(self, question: Question, data: bool) -> dict[str, Any]:
        for image in question.images:
            if image.digest not in self._urls:
                self._urls[image.digest] = image_url(image.source)
        parts = [{"type": "image_url", "url": self._urls[image.digest]} for image in question.images]
        return super()._more(question, False) | {"content_parts": parts}


WAYS = {"last": CriterionLast, "first": CriterionFirst, "base64": ImageEachTime}


def figures(args: argparse.Namespace) -> dict:
    """`vllm_order_ratio`: seconds with the criterion first over those with it last; `vllm_uuid_ratio`: with the image in
    each request over those with its id; `vllm_setting`. Null with its reason in `not_measured`, and on standard error."""
    python = vllm_python()
    reason = (
        "--quick starts no server" if args.quick else "there is no vLLM; bash scripts/vllm_cpu.sh install makes one"
    )
    if not args.quick and python is not None:
        with TemporaryDirectory() as folder:
            work = Workload(SHAPE, "cpu")
            write_verifier(work, Path(folder) / "verifier")
            try:
                with serving(Path(folder), python) as (url, process):
                    return measured(work, Path(folder) / "verifier", url, args.repeats, process)
            except InputError as error:
                reason = str(error)
    print(f"claimwise bench: {' and '.join(RATIOS)} are null: {reason}", file=sys.stderr)
    return {**dict.fromkeys(RATIOS), "not_measured": dict.fromkeys(RATIOS, reason)}


def vllm_python() -> str | None:
    """The Python that has vLLM: CLAIMWISE_VLLM_ENV's, that of scripts/vllm_cpu.sh, or this one."""
    named, own = os.environ.get("CLAIMWISE_VLLM_ENV"), ROOT / ".vllm-venv"
    if named or own.is_dir():
        return str(Path(named or own) / "bin/python")
    return sys.executable if find_spec("vllm") else None


def write_verifier(work: Workload, folder: Path) -> None:
    """The workload's model as a verifier that is merged into its base."""
    work.model.model.save_pretrained(folder)  # pyright: ignore[reportCallIssue]
    work.model.processor.save_pretrained(folder)
    VerifierCard("bench", MERGED, base_hash(folder), prompt_hash("image", True), "image", True).write(folder)


@contextmanager
def serving(folder: Path, python: str) -> Iterator[tuple[str, psutil.Process]]:
    """The address of `claimwise serve` with the verifier, and its process. Raises InputError where it does not start."""
    argv = [
        sys.executable,
        "-m",
        "claimwise.scripts.cli",
        "serve",
        "--adapter",
        str(folder / "verifier"),
        "--port",
        "0",
    ]
    argv += ["--python", python, "--", "--max-model-len", MOST_TOKENS]
    one_thread = {} if torch.cuda.is_available() else {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    log = folder / "vllm.log"
    with log.open("w") as messages:
        process = subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=messages, text=True, env={**os.environ, **one_thread}
        )
        try:
            said = (re.search(r" is at (http://\S+);", line) for line in process.stdout or ())
            found = next((match for match in said if match), None)
            if found is None:
                last = log.read_text(errors="replace").strip().rpartition("\n")[2]
                raise InputError(f"vLLM did not start: {last}")
            yield found[1], psutil.Process(process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


def measured(work: Workload, adapter: Path, url: str, repeats: int, process: psutil.Process) -> dict:
    on_cpu = not torch.cuda.is_available()
    picture = adapter.parent / "picture.jpg"
    work.picture.save(picture, quality=90)
    with tqdm(desc="judge vLLM", unit="call", total=len(WAYS) * (repeats + 1)) as bar:
        timer = Timer(partial(processor_seconds, process) if on_cpu else time.perf_counter, repeats, bar)
        example = replace(work.example(CRITERIA), images=(picture,))
        items = [(example, rollout) for rollout in work.rollouts]
        seconds, _ = timer.interleave(ways_of(adapter, url, items))
    how = {"repeats": repeats, "criteria": CRITERIA, "dtype": "float32", "image_bytes": picture.stat().st_size}
    how["clock"] = "processor seconds of the server, one thread" if on_cpu else "wall-clock seconds"
    return {
        "vllm_order_ratio": median_ratio(seconds["first"], seconds["last"]),
        "vllm_uuid_ratio": median_ratio(seconds["base64"], seconds["last"]),
        "vllm_setting": asdict(SHAPE) | how,
    }


def ways_of(adapter: Path, url: str, items: Sequence[tuple[Example, Rollout]]) -> dict[str, Way]:
    """Each judges the items anew, and gives the margins. Raises InputError where a verdict is missing."""
    card, number = read_card(adapter), count()
    processor = load_processor(resolve_base(card, adapter))

    def way(judge: CriterionLast) -> Callable[[], list[float]]:
        return lambda: _judged(judge, f"{os.getpid()}-{next(number)}", items)

    return {name: way(kind(card, processor, "bench", url, card.name)) for name, kind in WAYS.items()}


def _judged(judge: CriterionLast, salt: str, items: Sequence[tuple[Example, Rollout]]) -> list[float]:
    judge.cache.clear()
    judge.salt = salt
    verdicts = judge.judge(items)
    lost = next((v.error for v in verdicts if v.verdict is None), None)
    if lost is not None:
        raise InputError(f"the server does not answer every question: {lost}")
    return [math.log(v.p_yes / (1 - v.p_yes)) for v in verdicts if v.p_yes is not None]


def processor_seconds(process: psutil.Process) -> float:
    """Of a process and all that it has started, but for vLLM's scheduler, which spins while its worker computes."""
    family = [process, *process.children(recursive=True)]
    apart = any("Worker" in one.name() for one in family)
    counted = [one.cpu_times() for one in family if not (apart and "EngineCore" in one.name())]
    return sum(times.user + times.system for times in counted)
