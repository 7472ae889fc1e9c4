"""One question put to a quoting judge: ask, read, and ask once more for what could not be read.

In: a chat client, one response and some of its criteria. Out: a judgement for each, and what it cost. Images go along as
data URLs (`image_url`).
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from .chat import ChatAnswer, ChatClient
from .chat_errors import ChatError
from .logprobs import p_yes
from .quoting import Judgement, Reply, answer_format, judgement, messages, parse
from .schema import Mode
from .tables import load_image

if TYPE_CHECKING:
    from PIL.Image import Image

TOP_LOGPROBS = 20  # more is a 400; fewer often lacks the no of a judge that is sure of its yes
SECOND_TEMPERATURE = 0.7  # a greedy judge would only repeat what could not be read
_AS_THEY_ARE = {"PNG": "image/png", "JPEG": "image/jpeg", "WEBP": "image/webp"}


@dataclass(frozen=True)
class Answered:
    """One criterion's outcome. Tokens are this criterion's share of all its asks, so that shares add up to what the
    server counted; None where it counts none."""

    judgement: Judgement
    prompt_tokens: int | None
    completion_tokens: int | None


@dataclass(frozen=True)
class Outcome:
    """One `Answered` for each criterion, in order. `failure` is why the first or the second ask brought nothing: then a
    judgement without a verdict is not the judge's last word. `lost` calls may have been charged for nothing; `asks` were
    answered."""

    answered: list[Answered]
    failure: ChatError | None = None
    lost: int = 0
    asks: int = 0


def not_asked(count: int, failure: ChatError | None = None) -> Outcome:
    """The outcome for `count` criteria before anything was asked."""
    return Outcome([Answered(Judgement(None, error="it has not been asked"), 0, 0)] * count, failure)


async def ask_criteria(
    client: ChatClient,
    question: str,
    response: str,
    criteria: Sequence[str],
    mode: Mode,
    images: Sequence[str] = (),
    several: bool = False,
    max_tokens: int = 512,
) -> Outcome:
    """Asks for all criteria in one call, then once more for those that could not be read. Never raises ChatError."""
    results, left, lost, asks = not_asked(len(criteria)).answered, list(range(len(criteria))), 0, 0
    for temperature in (0.0, SECOND_TEMPERATURE):
        try:
            answer = await client.ask(
                messages(question, response, [criteria[i] for i in left], mode, images, several),
                temperature=temperature,
                max_tokens=max_tokens,
                response_format=answer_format(mode, several),
                logprobs=True,
                top_logprobs=TOP_LOGPROBS,
            )
        except ChatError as error:
            return Outcome(results, error, lost + error.lost, asks)
        lost, asks = lost + answer.lost, asks + 1
        for i, read in zip(left, _read(answer, len(left), response, mode), strict=True):
            results[i] = _after(results[i], read)
        left = [i for i in left if results[i].judgement.verdict is None]
        if not left:
            break
    return Outcome(results, None, lost, asks)


def _read(answer: ChatAnswer, count: int, response: str, mode: Mode) -> list[Answered]:
    replies = parse(answer.text, count)
    if answer.finish_reason == "length":
        replies = [_cut_off(reply) for reply in replies]
    judged = [judgement(r, response, mode, p_yes(answer.text, r.at, answer.logprobs)) for r in replies]
    shares = zip(_shares(answer.prompt_tokens, count), _shares(answer.completion_tokens, count), strict=True)
    return [Answered(one, *share) for one, share in zip(judged, shares, strict=True)]


def _cut_off(reply: Reply) -> Reply:
    return reply if reply.verdict is not None else replace(reply, error=f"{reply.error} (cut off at the token limit)")


def _shares(tokens: int | None, count: int) -> list[int | None]:
    """Whole numbers that add up to `tokens`."""
    if tokens is None:
        return [None] * count
    return [tokens // count + (i < tokens % count) for i in range(count)]


def _after(before: Answered, now: Answered) -> Answered:
    return Answered(
        now.judgement,
        add_tokens(before.prompt_tokens, now.prompt_tokens),
        add_tokens(before.completion_tokens, now.completion_tokens),
    )


def add_tokens(a: int | None, b: int | None) -> int | None:
    """Of two asks; None where one of them was not counted."""
    return None if a is None or b is None else a + b


def image_url(image: Path | Image) -> str:
    """A data URL of what a verifier would see. PNG, JPEG and WebP files go as they are, unless a camera turned them or
    they are neither RGB nor grey; everything else as PNG. InputError for a missing or broken image."""
    from PIL import Image as pil

    if isinstance(image, Path):
        try:
            with pil.open(image) as opened:
                plain = opened.mode in ("RGB", "L") and not opened.has_transparency_data
                plain = plain and opened.getexif().get(0x0112, 1) == 1  # orientation
                kind = _AS_THEY_ARE.get(opened.format or "") if plain else None
            if kind:
                return _data_url(kind, image.read_bytes())
        except (OSError, ValueError, SyntaxError, pil.DecompressionBombError):
            pass  # load_image says what is wrong
    data = BytesIO()
    load_image(image).save(data, format="PNG")
    return _data_url("image/png", data.getvalue())


def _data_url(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"
