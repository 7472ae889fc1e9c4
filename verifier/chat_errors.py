"""What a chat server's reply means: an answer, or a `ChatError` whose kind says what to do about it.

In: HTTP status, headers and body. Out: the fields of an answer, or an error. Keys never appear in messages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from .text import excerpt

FATAL = frozenset({"key", "model", "quota", "url"})  # the whole run stops
RETRIED = frozenset({"busy", "server", "timeout", "connection", "not_json"})  # may pass
# What is left concerns one question: "context", it does not fit; "refused", the server does not take it.

_TOO_LONG = re.compile(
    r"context.?(length|window|size)|maximum (context|model|input)|max_model_len|prompt is too long|too many tokens|"
    r"reduce the length|input length|longer than the maximum|input token count|`max_new_tokens` must be",
    re.IGNORECASE,
)
# Parameters that an answer can do without, and how servers call them in a refusal.
_NAMED = {
    "response_format": re.compile(r"response_format|json_schema|structured.?output|guided|grammar", re.IGNORECASE),
    "top_logprobs": re.compile(r"top_logprobs", re.IGNORECASE),
    "logprobs": re.compile(r"logprobs", re.IGNORECASE),
    "top_p": re.compile(r"top_p", re.IGNORECASE),
    "seed": re.compile(r"\bseed\b", re.IGNORECASE),
    "temperature": re.compile(r"temperature", re.IGNORECASE),
    "max_tokens": re.compile(r"max_completion_tokens", re.IGNORECASE),
}
FEWER_LOGPROBS = 5
SHORTEST_KEY = 8  # characters; "x" or "EMPTY" is no secret, and struck out it would spoil the server's words


class ChatError(Exception):
    """`kind` is one of FATAL, RETRIED, "context" and "refused"; `lost` calls were sent and brought nothing, so that they
    may have been charged for."""

    def __init__(self, kind: str, message: str, lost: int = 0, retry_after_s: float = 0.0):
        super().__init__(f"{kind}: {message}")
        self.kind, self.message, self.lost, self.retry_after_s = kind, message, lost, retry_after_s


def error_of_status(status: int, headers: Mapping[str, str], body: bytes, url: str, key: str = "") -> ChatError:
    """The error that a status other than 200 stands for."""
    said = f"HTTP {status}: {_said(body, key)}"
    wait = retry_after_s(headers.get("retry-after"))
    if status in (401, 403):
        return ChatError("key", f"the server refuses the key in the environment ({said})")
    if status == 402 or (status == 429 and b"insufficient_quota" in body):
        return ChatError("quota", f"the account is used up ({said})")
    if status == 429 or (status == 503 and wait):
        return ChatError("busy", said, retry_after_s=wait)
    if status >= 500 or status in (408, 409, 425):
        return ChatError("server", said)
    if status == 404:
        hint = "" if "/v1/" in url else "; most addresses end in /v1"
        return ChatError("model", f"no such model, or no chat server, at {url} ({said}){hint}")
    if status in (400, 413, 422):
        return ChatError("context" if _TOO_LONG.search(said) else "refused", said)
    where = f" and points to {excerpt(headers['location'])}" if "location" in headers else ""
    return ChatError("url", f"{url} is no chat server{where} ({said})")


def retry_after_s(value: str | None) -> float:
    """Seconds of a Retry-After header, which is a number or a date; 0 where there is none or it makes no sense."""
    try:
        return max(0.0, float(value or 0))
    except ValueError:
        pass
    try:
        when = parsedate_to_datetime(value or "")
    except ValueError:
        return 0.0
    return max(0.0, ((when if when.tzinfo else when.replace(tzinfo=UTC)) - datetime.now(UTC)).total_seconds())


def read_body(body: bytes, key: str = "") -> dict[str, Any]:
    """Fields of a ChatAnswer from the body of a 200. Raises ChatError "not_json" for anything else, and "server" for an
    error that comes as a 200."""
    try:
        reply = json.loads(body)
        if isinstance(reply, dict) and reply.get("error"):
            raise ChatError("server", f"HTTP 200 with an error: {_said(body, key)}", lost=1)
        choice = reply["choices"][0]
        text = _text(choice["message"])
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise ChatError("not_json", f"no chat answer, but {_said(body, key)}", lost=1) from None
    usage, logprobs = reply.get("usage"), choice.get("logprobs")
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    return {
        "text": text,
        "finish_reason": finish if isinstance(finish := choice.get("finish_reason"), str) else None,
        "prompt_tokens": _count(usage, "prompt_tokens"),
        "completion_tokens": _count(usage, "completion_tokens"),
        "logprobs": content if isinstance(content, list) else None,
    }


def _text(message: dict[str, Any]) -> str:
    """The content; where there is none, the refusal that comes instead of it."""
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(part.get("text") or "" for part in content)
    return str(content or message.get("refusal") or "")


def _count(usage: Any, name: str) -> int | None:
    count = usage.get(name) if isinstance(usage, dict) else None
    return count if isinstance(count, int) and 0 <= count < 2**53 else None


def _said(body: bytes, key: str) -> str:
    """The server's own words, shortened, without the key."""
    text = body[:20_000].decode("utf-8", "replace")
    try:
        found = json.loads(text)
        found = found.get("error", found.get("detail", found.get("message", found)))
        text = str(found.get("message", found) if isinstance(found, dict) else found)
    except (ValueError, AttributeError, RecursionError):
        pass
    return excerpt(text.replace(key, "***") if len(key) >= SHORTEST_KEY else text, 240)


def softer(error: ChatError, body: Mapping[str, Any]) -> dict[str, Any]:
    """How to send the parameter that a refusal names: name -> None (not at all) or (new name, new value or ... as it
    was). Empty where it names none of those sent."""
    for name, pattern in _NAMED.items():
        if name not in body or not pattern.search(error.message):
            continue
        if name == "max_tokens":
            return {name: ("max_completion_tokens", ...)}
        if name == "top_logprobs" and body[name] > FEWER_LOGPROBS:
            return {name: (name, FEWER_LOGPROBS)}
        return dict.fromkeys(["logprobs", "top_logprobs"]) if "logprobs" in name else {name: None}
    return {}
