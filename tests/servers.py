"""A local chat server on a real socket that answers, or misbehaves, as a test says; and a disk that is soon full.

with Server(lambda call: status(429, headers={"Retry-After": "1"}) if call.number == 1 else judge(call)) as server:
    ...
assert len(server.calls) == 2
"""

from __future__ import annotations

import json
import shutil
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest


@dataclass
class Call:
    """One request: its number from 1, the time it came, what it asked."""

    number: int
    at: float
    body: dict[str, Any]
    headers: dict[str, str]

    @property
    def question(self) -> dict[str, Any]:
        """The user's message as the JSON object that it is."""
        content = self.body["messages"][1]["content"]
        return json.loads(content if isinstance(content, str) else content[-1]["text"])


@dataclass
class Reply:
    """What the server does: waits, then sends `data` raw (and closes), or a status with a body, or resets."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    wait_s: float = 0.0
    reset: bool = False
    cut_at: int | None = None  # bytes of the body that are sent before the connection closes


def status(code: int, body: str | dict = "", headers: dict[str, str] | None = None) -> Reply:
    text = json.dumps(body) if isinstance(body, dict) else body
    return Reply(code, text.encode(), headers or {})


def say(text: str | None, wait_s: float = 0.0, usage=(100, 10), logprobs=None, finish="stop", refusal=None) -> Reply:
    """A chat answer with this text; `usage` is (prompt tokens, completion tokens) or None."""
    choice = {"message": {"role": "assistant", "content": text, "refusal": refusal}, "finish_reason": finish}
    if logprobs is not None:
        choice["logprobs"] = {"content": logprobs}
    body: dict[str, Any] = {"choices": [{"index": 0, **choice}]}
    if usage is not None:
        body["usage"] = {"prompt_tokens": usage[0], "completion_tokens": usage[1]}
    return Reply(body=json.dumps(body).encode(), wait_s=wait_s)


def verdicts_of(question: dict[str, Any]) -> list[dict[str, Any]]:
    """What an honest judge finds: yes, with the criterion as quote, where the response has its text."""
    texts = [question["criterion"]] if "criterion" in question else [item["text"] for item in question["criteria"]]
    held = [text in question["response"] for text in texts]
    return [
        {"criterion": n, "quote": text if yes else "", "verdict": "yes" if yes else "no"}
        for n, (text, yes) in enumerate(zip(texts, held, strict=True), 1)
    ]


def judge(call: Call, wait_s: float = 0.0, **more: Any) -> Reply:
    found = verdicts_of(call.question)
    one = {key: found[0][key] for key in ("quote", "verdict")}
    return say(json.dumps(one if "criterion" in call.question else {"verdicts": found}), wait_s, **more)


class Held:
    """As `behave`; but after the first `count` calls none is answered before `release`."""

    def __init__(self, behave: Callable[[Call], Reply], count: int):
        self.behave, self.count, self._released = behave, count, threading.Event()
        self.release = self._released.set

    def __call__(self, call: Call) -> Reply:
        if call.number > self.count:
            assert self._released.wait(120)
        return self.behave(call)


class Server:
    """Runs `behave(call) -> Reply` for every request. `calls` has them in order; `most` were in flight at once."""

    def __init__(self, behave: Callable[[Call], Reply] = judge):
        self.behave, self.calls, self.most = behave, [], 0
        self._lock, self._now = threading.Lock(), 0
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                server._answer(self)

            def log_message(self, format, *args):
                pass

        class Listener(ThreadingHTTPServer):
            request_queue_size, daemon_threads = 128, True

            def handle_error(self, request, client_address):
                pass  # clients are killed in some tests

        self._http = Listener(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1"

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        with self._lock:
            headers = {name.lower(): value for name, value in handler.headers.items()}
            call = Call(len(self.calls) + 1, time.monotonic(), body, headers)
            self.calls.append(call)
            self._now += 1
            self.most = max(self.most, self._now)
        reply = self.behave(call)
        time.sleep(reply.wait_s)
        with self._lock:
            self._now -= 1
        _send(handler, reply)

    def __enter__(self) -> Server:
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()


def _send(handler: BaseHTTPRequestHandler, reply: Reply) -> None:
    if reply.reset:
        handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        handler.connection.close()  # with no time to linger: RST
        handler.close_connection = True
        return
    handler.send_response(reply.status)
    for name, value in reply.headers.items():
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(reply.body)))
    handler.end_headers()
    handler.wfile.write(reply.body[: reply.cut_at])
    if reply.cut_at is not None:
        handler.close_connection = True


def on_a_tiny_disk(folder: Path, *command: Any) -> subprocess.CompletedProcess:
    """Runs a command with a file system of 1 MB, its own, at `folder`; a fifth of it is taken by the file `room`."""
    shell = ["unshare", "-rm", "sh", "-c"]
    mounted = f"mount -t tmpfs -o size=1m none {folder} && head -c 200000 /dev/zero > {folder}/room && "
    if shutil.which("unshare") is None or subprocess.run([*shell, mounted + "true"], capture_output=True).returncode:
        pytest.skip("no file system of one's own can be mounted here")
    return subprocess.run([*shell, mounted + 'exec "$@"', "sh", *map(str, command)], capture_output=True, text=True)
