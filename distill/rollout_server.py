"""Responses from any OpenAI-compatible server.

In: jobs. Out: a `Response` or a `Refusal` for each. Every request carries a seed of its own; whether the same seed gives
the same response is up to the server. Start vLLM's with `--generation-config vllm`, or it adds the checkpoint's own top-k
and repetition penalty.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache
from typing import Any

from tqdm import tqdm

from ..verifier.asking import image_url
from ..verifier.chat import ChatClient
from ..verifier.chat_errors import ChatError
from ..verifier.errors import InputError
from .rollout_backends import Job, Keep, Refusal, Response

FAILED_AT_FIRST = 3  # examples refused before the first answer that end a run: no data can be that unlucky
GO_ON = "what was sampled is kept, and the same command goes on"
_SPECIAL = re.compile(r"<\|[^|<>\s]+\|>")


class ServerBackend:
    """One server and one model. A wrong key, model or address ends the run at once, and so does a server that keeps
    failing. A question with what looks like a special token is refused: a server's template takes it for its own."""

    def __init__(self, url: str, model: str, max_new_tokens: int, key_env: str, in_flight: int, timeout_s: float):
        self.url, self.model, self.max_new_tokens = url, model, max_new_tokens
        self.key_env, self.in_flight, self.timeout_s = key_env, in_flight, timeout_s
        self._image_url: Callable[[Any], str] = lru_cache(2 * in_flight)(image_url)  # an example's samples share them
        self._answering, self._failed = False, list[str]()  # examples whose requests failed since the last answer

    def run(self, jobs: Sequence[Job], done: Collection[str], keep: Keep) -> None:
        """Raises InputError where going on would only fail again."""
        asyncio.run(self._run(iter([job for job in jobs if job.rollout_id not in done]), keep))

    async def _run(self, jobs: Iterator[Job], keep: Keep) -> None:
        async with ChatClient(self.url, self.model, self.key_env, self.in_flight, self.timeout_s) as client:
            workers = [asyncio.create_task(self._work(client, jobs, keep)) for _ in range(self.in_flight)]
            done, rest = await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
            for worker in rest:
                worker.cancel()
            await asyncio.gather(*rest, return_exceptions=True)
        for change in client.adapted:  # without a seed, the same command does not give the same responses
            tqdm.write(f"{self.model}: {change}")
        for worker in done:
            worker.result()

    async def _work(self, client: ChatClient, jobs: Iterator[Job], keep: Keep) -> None:
        for job in jobs:  # shared: each worker takes the next one
            keep(job, await self._outcome(client, job))

    async def _outcome(self, client: ChatClient, job: Job) -> Response | Refusal:
        example = job.example
        if found := _SPECIAL.search(example.question):
            return Refusal("special token", f"the question of {example.example_id!r} holds {found[0]}")
        try:
            urls = [await asyncio.to_thread(self._image_url, image) for image in example.images]
        except InputError as error:
            return Refusal("image", str(error))
        parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
        try:
            answer = await client.ask(
                [{"role": "user", "content": [*parts, {"type": "text", "text": example.question}]}],
                max_tokens=self.max_new_tokens,
                temperature=job.temperature,
                top_p=1.0,
                seed=job.seed,
            )
        except ChatError as error:
            self._judge_server(client, error, example.example_id)
            return Refusal(error.kind, error.message)
        self._answering, self._failed = True, []
        _check_temperature(client.adapted, job.temperature)
        if not answer.text and answer.finish_reason != "stop":
            return Refusal("no text", f"the server sent no text, finish_reason {answer.finish_reason!r}")
        return Response(answer.text, answer.finish_reason)

    def _judge_server(self, client: ChatClient, error: ChatError, example_id: str) -> None:
        """Raises InputError where the next requests would fail too."""
        if client.given_up:
            raise InputError(f"{error.message}; nothing more is asked. Mend that; {GO_ON}")
        if error.kind == "context":
            return
        self._failed.append(example_id)
        most = 2 * self.in_flight if self._answering or error.kind == "server" else FAILED_AT_FIRST
        if len(self._failed) >= most and len(set(self._failed)) >= FAILED_AT_FIRST:
            told = f"{len(self._failed)} requests in a row failed, the last with {error.message}"
            raise InputError(f"{told}; nothing more is asked. Mend the server; {GO_ON}")


def _check_temperature(adapted: Sequence[str], temperature: float) -> None:
    """A server that takes no temperature samples at 1, and the table must not say otherwise."""
    if temperature != 1.0 and any(change.startswith("temperature") for change in adapted):
        raise InputError(f"the server does not take the temperature {temperature:g}; give --temperature 1")
