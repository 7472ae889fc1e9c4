"""A distilled verifier behind a vLLM server (`claimwise serve` starts one): same prompt, same verdicts.

In: examples and responses. Out: verdicts. Prompts go as token ids to vLLM's `/inference/v1/generate`, since a chat
endpoint takes special tokens in a response for its own. An image is sent once, with a digest of its pixels as its id, and
named by that id from then on. What a question brings no answer to has a missing verdict with its reason.

    judge = load_judge("runs/verifier", server="http://localhost:8000/v1")
"""

from __future__ import annotations

import asyncio
import filecmp
import json
import os
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from .adapter import MERGED, VerifierCard
from .answers import Missing
from .asking import image_url
from .chat import ChatAnswer, ChatClient
from .chat_address import endpoint
from .chat_errors import FATAL, ChatError
from .crew import results_of
from .engine import EngineJudge, Question
from .errors import InputError
from .lora import WEIGHTS
from .model import adapter_hash
from .packed import Answer
from .probe import base_modules, check_effect, check_modules
from .processor import load_processor
from .turn import Token

ENDPOINT = "/inference/v1/generate"
AHEAD = 4  # times the calls in flight: questions whose images are sent before their turn
_MISS = "cache miss"  # how vLLM answers the id of an image that it does not have


class TokenClient(ChatClient):
    """A client of vLLM's token endpoint; an answer's `logprobs` are its `Token`s. `url` is the server's, with or without
    /v1."""

    def __init__(self, url: str, model: str, **settings: Any):
        super().__init__(url, model, **settings)
        self.url, _ = endpoint(url, ENDPOINT)

    def _body(self, messages: list[dict[str, Any]], params: dict[str, Any]) -> dict[str, Any]:
        return {"model": self.model, **params}

    def _read(self, content: bytes) -> dict[str, Any]:
        try:
            body = json.loads(content)
            choice = body["choices"][0]
            listed = (choice.get("logprobs") or {}).get("content") or [{}] * len(choice["token_ids"])
            pairs = zip(choice["token_ids"], listed, strict=True)
            tokens = [Token(index, _logprobs(token)) for index, token in pairs]
            return {"text": "", "logprobs": tokens, "prompt_tokens": body["usage"]["prompt_tokens"]}
        except (ValueError, LookupError, TypeError, AttributeError):
            raise ChatError("not_json", f"no answer of vLLM's {ENDPOINT}", lost=1) from None


def _logprobs(token: dict[str, Any]) -> dict[int, float]:
    listed = token.get("top_logprobs", ())
    return {int(other["token"].removeprefix("token_id:")): float(other["logprob"]) for other in listed}


def open_judge(
    card: VerifierCard, adapter: Path, base: str | Path, url: str, model: str | None, settings: dict[str, Any]
) -> ServerJudge:
    """The judge, which has answered a probe. Raises InputError where there is no such server or model, where the adapter
    has no effect there, and where another is served under its name, as far as the server's files are here to be seen."""
    names, shown = served(url, settings.get("key_env", "OPENAI_API_KEY")), endpoint(url, "")[0]
    name = model or card.name
    if name not in names:
        raise InputError(
            f"{shown} serves {', '.join(names) or 'nothing'}, not {name!r}; give the verifier's name there"
        )
    processor = load_processor(base)
    parent, folder = names[name]
    if parent is None and card.base != MERGED:
        raise InputError(f"{shown} serves {name!r} as a model of its own, not as an adapter of a base")
    if parent is not None:
        check_modules(adapter, base_modules(base))
        one_by_one = {**settings, "max_in_flight": 1}
        own, bare = (ServerJudge(card, processor, "", url, model, **one_by_one) for model in (name, parent))
        check_effect(own, bare, adapter)
        _check_weights(adapter, folder, f"{shown} serves {name!r}")
    return ServerJudge(card, processor, adapter_hash(adapter), url, name, **settings)


def _check_weights(adapter: Path, folder: str | None, told: str) -> None:
    """All verifiers of a mode have one name: a server may still have the one before a refresh."""
    theirs, ours = Path(folder or adapter) / WEIGHTS, adapter / WEIGHTS
    if theirs.is_file() and not filecmp.cmp(theirs, ours, shallow=False):
        raise InputError(
            f"{told} from {folder}, whose weights are not those of {adapter}; serve that one, or give this"
        )


def served(url: str, key_env: str) -> dict[str, tuple[str | None, str | None]]:
    """The models of a server, each with the base that it is an adapter of, and the folder that it was loaded from."""
    import httpx2

    (models, login), key = endpoint(url, "/v1/models"), os.environ.get(key_env, "").strip()
    login = login or (f"Bearer {key}" if key else None)
    try:
        reply = httpx2.get(models, headers={"Authorization": login} if login else {})
        reply.raise_for_status()
        return {model["id"]: (model.get("parent"), model.get("root")) for model in reply.json()["data"]}
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, LookupError, TypeError) as error:
        raise InputError(
            f"{models} does not say which models it serves ({error}); is it the address of a server?"
        ) from None


class ServerJudge(EngineJudge):
    """A verifier that `url` serves under the name `model`; `settings` go to the client: key_env, max_in_flight,
    timeout_s, tries, backoff_s. Raises InputError where the server refuses key or model or prepares prompts otherwise."""

    def __init__(self, card: VerifierCard, processor: Any, adapter: str, url: str, model: str, **settings: Any):
        super().__init__(card, processor, adapter)
        self.url, self.model, self.settings = url, model, settings
        self._at_server: set[str] = set()  # digests of images

    def _answers(self, questions: Iterator[Question]) -> Iterator[tuple[bytes, Answer | Missing]]:
        client = TokenClient(self.url, self.model, **self.settings)
        sending: dict[str, asyncio.Task[None]] = {}

        async def work(_: object, question: Question) -> tuple[bytes, Answer | Missing]:
            await asyncio.gather(*(sending[i.digest] for i in question.images if i.digest in sending))
            return question.key, await self._answer(client, question)

        def in_sight() -> Iterator[Question]:
            """The questions; the images of those that come soon are on their way."""
            soon: deque[Question] = deque()
            for question in questions:
                soon.append(question)
                new = {image.digest for image in question.images} - self._at_server - sending.keys()
                if new:
                    sending.update(dict.fromkeys(new, asyncio.create_task(self._send(client, question))))
                if len(soon) > AHEAD * client.max_in_flight:
                    yield soon.popleft()
            yield from soon

        return results_of(client, in_sight(), work, client.max_in_flight)

    async def _send(self, client: TokenClient, question: Question) -> None:
        """The images of a question with what stands before the response, so that the server has encoded both."""
        with suppress(ChatError, InputError):  # the questions themselves will say so
            await self._ask(client, question, question.ids[: question.opening], {"max_tokens": 1}, data=True)

    async def _answer(self, client: TokenClient, question: Question) -> Answer | Missing:
        turn = self.turn(question)
        try:
            while turn.answer is None:
                answer = await self._write(client, question, turn.written, turn.sampling())
                self._check(question, len(turn.written), answer.prompt_tokens)
                turn.take(answer.logprobs or [])
        except ChatError as error:
            if error.kind in FATAL:
                hint = f"; the server needs vLLM's --enable-scale-out for {ENDPOINT}, as claimwise serve gives it"
                raise InputError(f"{error.message}{hint if error.kind == 'model' else ''}") from None
            return Missing(str(error))
        return turn.answer

    async def _write(self, client: TokenClient, question: Question, written: list[int], sampling) -> ChatAnswer:
        ids, known = question.ids + written, {image.digest for image in question.images} <= self._at_server
        try:
            return await self._ask(client, question, ids, sampling, data=not known)
        except ChatError as error:
            if not known or _MISS not in error.message.lower():
                raise
            return await self._ask(client, question, ids, sampling, data=True)  # it has made room for others

    async def _ask(self, client: TokenClient, question: Question, ids, sampling, data: bool) -> ChatAnswer:
        answer = await client.ask([], token_ids=ids, sampling_params=sampling, **self._more(question, data))
        self._at_server.update(image.digest for image in question.images)
        return answer

    def _more(self, question: Question, data: bool) -> dict[str, Any]:
        """What else a request says: the question's images, themselves where there is to be `data`, else by their ids."""
        if not question.images:
            return {}
        urls = [image_url(image.source) if data else None for image in question.images]
        pairs = zip(urls, question.images, strict=True)
        return {"content_parts": [{"type": "image_url", "url": url, "uuid": i.digest} for url, i in pairs]}

    def _check(self, question: Question, written: int, counted: int | None) -> None:
        if counted != question.length + written:
            raise InputError(
                f"{endpoint(self.url, '')[0]} counts {counted} tokens where the prompt has "
                f"{question.length + written}; it prepares images otherwise, so serve the base that the adapter names "
                "with its own processor"
            )
