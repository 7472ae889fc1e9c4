"""Any chat model as a judge, untrained: it quotes what decides, then says yes or no.

In: examples and responses. Out: verdicts, one call a criterion. What a question brings no answer to has a missing verdict
with its reason.

    judge = load_judge(None, "image", server="http://localhost:8000/v1", model="Qwen3-VL-235B-A22B-Instruct")
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from .asking import ask_criteria, image_url
from .batching import siblings
from .cache import Desk, VerdictCache, question_keys
from .chat import ChatClient
from .chat_errors import FATAL
from .crew import results_of
from .errors import InputError
from .image_digest import digest_of
from .quoting import Judgement, prompt_hash
from .schema import Criterion, Example, Mode, Rollout, Verdict


class QuotingJudge:
    """`model` behind the server `url`; `settings` go to the client: key_env, max_in_flight, timeout_s, tries, backoff_s.
    `max_tokens` bounds an answer (1 or more). Raises InputError where the server refuses key or model."""

    def __init__(self, url: str, model: str, mode: Mode, max_tokens: int = 512, **settings: Any):
        if not isinstance(max_tokens, int) or max_tokens < 1:
            raise InputError(f"max_tokens is {max_tokens!r}; the length of an answer must be a whole number above zero")
        ChatClient(url, model, **settings)  # refuses a wrong address or setting now
        self.url, self.model, self.max_tokens, self.settings = url, model, max_tokens, settings
        self.mode: Mode = mode
        self.name, self.repeats = model, 0
        self.cache: VerdictCache[Judgement] = _Known()
        self.prompt_hash = prompt_hash(mode, several=False)

    def judge(self, items: Iterable[tuple[Example, Rollout]]) -> list[Verdict]:
        """Verdicts of all criteria of each item, in order."""
        return [verdict for verdicts in self.judge_each(items) for verdict in verdicts]

    def judge_each(self, items: Iterable[tuple[Example, Rollout]]) -> Iterator[list[Verdict]]:
        """The same, a list per item, in order, as they are ready."""
        items = list(items)
        desk: Desk[Judgement] = Desk([len(example.criteria) for example, _ in items], self.cache)
        client = ChatClient(self.url, self.model, **self.settings)
        asked = results_of(client, self._questions(items, desk), self._ask, client.max_in_flight)
        for index, answers in desk.settle(asked):
            yield self._verdicts(*items[index], answers)
        self.repeats += desk.repeats

    def _questions(self, items: Sequence[tuple[Example, Rollout]], desk: Desk) -> Iterator[tuple]:
        for group in siblings(items):
            images = items[group[0]][0].images if self.mode == "image" else ()
            digests, urls = [digest_of(image) for image in images], None
            for index in group:
                example, rollout = items[index]
                if self.mode == "image" and not images:
                    raise InputError(f"example {example.example_id!r} has no image; judge it in text mode")
                texts = [criterion.text for criterion in example.criteria]
                keys = question_keys([self.model, self.prompt_hash], digests, example.question, rollout.response, texts)
                for k in desk.ask(index, keys):
                    urls = [image_url(image) for image in images] if urls is None else urls
                    yield keys[k], example.question, rollout.response, texts[k], urls

    async def _ask(self, client: ChatClient, asked: tuple) -> tuple[bytes, Judgement]:
        key, question, response, criterion, urls = asked
        outcome = await ask_criteria(
            client, question, response, [criterion], self.mode, urls, max_tokens=self.max_tokens
        )
        failure, judgement = outcome.failure, outcome.answered[0].judgement
        if failure is not None and failure.kind in FATAL:
            raise InputError(failure.message)
        if failure is not None and judgement.verdict is None:
            judgement = Judgement(None, error=str(failure))
        return key, judgement

    def _verdicts(self, example: Example, rollout: Rollout, judgements: Sequence[Any]) -> list[Verdict]:
        return [self._verdict(rollout, c, j) for c, j in zip(example.criteria, judgements, strict=True)]

    def _verdict(self, rollout: Rollout, criterion: Criterion, judgement: Judgement) -> Verdict:
        return Verdict(
            example_id=rollout.example_id,
            rollout_id=rollout.rollout_id,
            criterion_id=criterion.id,
            judge=self.name,
            mode=self.mode,
            verdict=judgement.verdict,
            p_yes=judgement.p_yes,
            span_start=judgement.span_start,
            span_end=judgement.span_end,
            match=judgement.match,
            reading=judgement.reading,
            error=judgement.error,
            prompt_hash=self.prompt_hash,
            created_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            dimension=criterion.group,
        )


class _Known(VerdictCache[Judgement]):
    """What is missing is asked again."""

    def put(self, key: bytes, answer: Judgement) -> None:
        if answer.verdict is not None:
            super().put(key, answer)
