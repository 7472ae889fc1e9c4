"""A client for any OpenAI-compatible server: chat messages in, one answer out, or a `ChatError` that names its kind.

    async with ChatClient("http://localhost:8000/v1", "Qwen3-VL-235B-A22B") as client:
        answer = await client.ask([{"role": "user", "content": "3 or 4?"}], max_tokens=8)

The very first question goes alone, so that a wrong key, model or address costs one call; where the server fails on this
question, the others are asked all the same. A server that has gone is given up. Up to `max_in_flight` go at once; a
busy one (429) halves that, each answer raises it again a little, and Retry-After holds all back as long as it says.
What may pass is asked again after a random, growing pause; the key comes from the environment.
Parameters that a server refuses by name are left out from then on and listed in `adapted`.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections import Counter
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any

from .chat_address import endpoint, proxy_for
from .chat_errors import FATAL, RETRIED, ChatError, error_of_status, read_body, softer
from .errors import InputError

if TYPE_CHECKING:
    import aiohttp

BUSY_TRIES = 20  # a rate limit passes; with pauses of up to a minute this is about ten minutes
FAILED_IN_A_ROW = 8  # at least so many questions must fail before a server is given up
UNHEARD = ("connection", "timeout")  # no word from the server, where others are about the question
LONGEST_PAUSE_S = 60.0
LONGEST_RETRY_AFTER_S = 3600.0
LARGEST_REPLY = 1 << 26  # bytes; an answer of 100,000 tokens with 20 log-probabilities each is half of that


@dataclass(frozen=True)
class ChatAnswer:
    """`logprobs` is the server's `logprobs.content`, one entry for each token; None where it offers none. Tokens are the
    server's own count, None where it gives none. `lost` calls were sent before this one and brought no answer."""

    text: str
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    logprobs: list[Any] | None = None
    lost: int = 0


class ChatClient:
    """One server and one model. `timeout_s` bounds a call from sending to the last byte; `tries` is how often a question
    is sent in all, except to a busy server; `backoff_s` is the longest first pause, doubled at each try.

    `errors` counts every failed call by kind, the retried ones too.
    """

    def __init__(
        self,
        url: str,
        model: str,
        key_env: str = "OPENAI_API_KEY",
        max_in_flight: int = 32,
        timeout_s: float = 120.0,
        tries: int = 6,
        backoff_s: float = 1.0,
    ):
        self.url, self._login = endpoint(url)
        if max_in_flight < 1 or tries < 1 or not timeout_s > 0:
            raise InputError("calls in flight, tries and the time limit must be above zero")
        self.model, self.max_in_flight, self.timeout_s = model, max_in_flight, timeout_s
        self.tries, self.backoff_s = tries, backoff_s
        self.errors: Counter[str] = Counter()
        self.adapted: list[str] = []
        self._softer: dict[str, Any] = {}
        self._fatal: ChatError | None = None
        self._answering, self._failed = False, 0
        self._gate, self._first, self._turn = Gate(max_in_flight), asyncio.Lock(), asyncio.Lock()
        self._http: aiohttp.ClientSession
        self._key = os.environ.get(key_env, "").strip()
        if not (self._key.isascii() and self._key.isprintable()):
            raise InputError(f"the key in {key_env} has characters that no key has; set it anew")
        if self._key and self._login:
            raise InputError(f"the address {self.url} comes with a user, and {key_env} with a key; give one of the two")

    async def __aenter__(self) -> ChatClient:
        import aiohttp  # a third of the processor time that httpx takes for a call, with 64 in flight

        headers = {"Content-Type": "application/json"}
        if self._key or self._login:
            headers["Authorization"] = self._login or f"Bearer {self._key}"
        self._http = aiohttp.ClientSession(
            headers=headers,
            proxy=proxy_for(self.url),
            connector=aiohttp.TCPConnector(limit=0),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    @property
    def given_up(self) -> ChatError | None:
        """Why nothing more is asked: the key, the model or the address is refused, a server that has answered nothing
        fails on question after question, or one that has is heard of no more. None as long as questions are asked."""
        return self._fatal

    async def ask(self, messages: list[dict[str, Any]], **params: Any) -> ChatAnswer:
        """The answer. Raises ChatError: after the last try, at once for what another try cannot mend, and without a call
        once the key, the model or the address has been refused, the first question has found no server in all its tries,
        or the server is given up."""
        async with self._first:
            if not self._gate.opened:
                return await self._judged(messages, params)
        return await self._judged(messages, params)

    async def _judged(self, messages: list[dict[str, Any]], params: dict[str, Any]) -> ChatAnswer:
        try:
            return await self._ask(messages, params)
        except ChatError as error:
            if error.kind in RETRIED:
                self._judge_server(error)
            raise

    def _judge_server(self, error: ChatError) -> None:
        """Whether the server fails on this question only, or is not to be had."""
        if self._answering and error.kind not in UNHEARD:
            self._failed = 0
            return
        self._failed += 1
        never_there = not self._answering and error.kind != "server"
        if never_there or self._failed >= max(FAILED_IN_A_ROW, 2 * self.max_in_flight):
            self._fatal = self._fatal or error
        self._gate.open()

    async def _ask(self, messages: list[dict[str, Any]], params: dict[str, Any]) -> ChatAnswer:
        from tenacity import AsyncRetrying, retry_if_exception, wait_random_exponential

        lost = 0
        async for attempt in AsyncRetrying(
            retry=retry_if_exception(self._may_pass),
            stop=lambda state: state.attempt_number >= self._tries(state.outcome),
            wait=wait_random_exponential(multiplier=self.backoff_s, max=LONGEST_PAUSE_S),
            reraise=True,
        ):
            with attempt:
                try:
                    answer = await self._call(messages, params)
                except ChatError as error:
                    lost += error.lost
                    error.lost = lost
                    raise
                return ChatAnswer(**answer, lost=lost)
        raise AssertionError("tenacity either returns or raises")

    def _may_pass(self, error: BaseException) -> bool:
        return isinstance(error, ChatError) and error.kind in RETRIED and self._fatal is None

    def _tries(self, outcome: Any) -> int:
        return BUSY_TRIES if outcome.exception().kind == "busy" else self.tries

    async def _call(self, messages: list[dict[str, Any]], params: dict[str, Any]) -> dict[str, Any]:
        """One call, or several where the server refuses a parameter by name."""
        while True:
            body: dict[str, Any] = {}
            try:
                async with self._gate as ticket:
                    if self._fatal is not None:
                        raise ChatError(self._fatal.kind, self._fatal.message)
                    body = self._body(messages, self._adapt(params))  # as known by now
                    answer = await self._post(body, ticket)
                    self._answering, self._failed = True, 0
                    self._gate.answered()
                    return answer
            except ChatError as error:
                if error.kind == "refused" and self._soften(error, body):
                    continue
                if self._fatal is None:
                    self.errors[error.kind] += 1
                if error.kind in FATAL:
                    self._fatal = error
                raise

    async def _post(self, body: dict[str, Any], ticket: float) -> dict[str, Any]:
        import aiohttp

        data = BytesIO(json.dumps(body).encode())  # bytes would go out in one piece, however many images there are
        try:
            async with (
                asyncio.timeout(self.timeout_s),
                self._http.post(self.url, data=data, allow_redirects=False) as reply,
            ):
                content = await _whole(reply)
        except TimeoutError:
            raise ChatError("timeout", f"no answer within {self.timeout_s:g} s", lost=1) from None
        except aiohttp.ClientConnectorError as error:
            raise ChatError("connection", f"{self.url}: no connection ({error})") from None
        except ValueError as error:  # an address or a proxy that is none
            raise ChatError("url", f"{self.url} cannot be asked ({str(error) or type(error).__name__})") from None
        except (aiohttp.ClientError, OSError) as error:
            reason = str(error) or type(error).__name__
            raise ChatError("connection", f"the connection broke off ({reason})", lost=1) from None
        # Of many answers at once, each goes on to send its next question before the next answer is looked at. Otherwise
        # all questions would wait until the last answer is read and stored, and come back at once again.
        async with self._turn:
            await asyncio.sleep(0)
        if reply.status == 200:
            return self._read(content)
        error = error_of_status(reply.status, reply.headers, content, self.url, self._key)
        if error.kind == "busy":
            self._gate.busy(ticket, min(error.retry_after_s, LONGEST_RETRY_AFTER_S))
        raise error

    def _body(self, messages: list[dict[str, Any]], params: dict[str, Any]) -> dict[str, Any]:
        return {"model": self.model, "messages": messages, **params}

    def _read(self, content: bytes) -> dict[str, Any]:
        return read_body(content, self._key)

    def _adapt(self, params: dict[str, Any]) -> dict[str, Any]:
        """The parameters as this server takes them."""
        adapted = {}
        for name, value in params.items():
            new = self._softer.get(name, (name, value))
            if new is not None:
                adapted[new[0]] = value if new[1] is ... else new[1]
        return adapted

    def _soften(self, error: ChatError, body: dict[str, Any]) -> bool:
        """Whether the refusal names a parameter that can do without, or with less; from now on it does."""
        changes = softer(error, body)
        if changes:
            self._softer |= changes
            self.adapted.append(f"{', '.join(changes)} changed or left out: {error.message}")
        return bool(changes)


async def _whole(reply: aiohttp.ClientResponse) -> bytes:
    """The body; ChatError for one that does not end, which would fill the memory until the time is up."""
    pieces, size = [], 0
    async for piece in reply.content.iter_any():
        pieces.append(piece)
        size += len(piece)
        if size > LARGEST_REPLY:
            raise ChatError("not_json", f"no chat answer, but more than {LARGEST_REPLY:,} bytes", lost=1)
    return b"".join(pieces)


class Gate:
    """How many calls are in flight: one until it is opened, at the first answer if not before, then up to `most`.
    Additive increase by one for each round of answers, multiplicative decrease by half, once for all calls that were
    sent before the decrease."""

    def __init__(self, most: int):
        self.most, self.limit, self.in_flight = most, 1.0, 0
        self.opened, self._cut_at, self._resume_at = False, 0.0, 0.0
        self._changed = asyncio.Condition()

    async def __aenter__(self) -> float:
        """Waits for a place; gives the time of sending."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.in_flight < int(self.limit))
            self.in_flight += 1
        clock = asyncio.get_running_loop().time
        try:
            while (pause := self._resume_at - clock()) > 0:
                await asyncio.sleep(pause * random.uniform(1.0, 1.1))
        except asyncio.CancelledError:
            await self.__aexit__()
            raise
        return clock()

    async def __aexit__(self, *_: object) -> None:
        async with self._changed:
            self.in_flight -= 1
            self._changed.notify_all()

    def open(self) -> None:
        if not self.opened:
            self.opened, self.limit = True, float(self.most)

    def answered(self) -> None:
        self.open()
        self.limit = min(float(self.most), self.limit + 1 / self.limit)

    def busy(self, sent_at: float, retry_after_s: float) -> None:
        now = asyncio.get_running_loop().time()
        self._resume_at = max(self._resume_at, now + retry_after_s)
        if sent_at >= self._cut_at:
            self.limit, self._cut_at = max(1.0, self.limit / 2), now
