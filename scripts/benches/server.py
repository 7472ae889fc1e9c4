"""A chat server that does nothing but answer late, as cheaply as Python can: what `claimwise bench label` measures with.

    python -m claimwise.scripts.benches.server 0.2      # seconds an answer takes; prints its port

It judges every criterion alike, and says so in the form in which it was asked.
"""

from __future__ import annotations

import asyncio
import json
import sys
from functools import lru_cache

QUOTE = "The total is 12."
ONE_OF_SEVERAL = b'\\"text\\": '  # in front of each numbered criterion, in JSON within JSON


@lru_cache
def reply(several: int) -> bytes:
    """The whole HTTP reply to one criterion (0), or to so many numbered ones."""
    verdict = {"quote": QUOTE, "reading": "12", "verdict": "yes"}
    found = {"verdicts": [{"criterion": n + 1, **verdict} for n in range(several)]} if several else verdict
    message = {"role": "assistant", "content": json.dumps(found)}
    usage = {"prompt_tokens": 400, "completion_tokens": 20 * max(1, several)}
    body = json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body


class LateAnswers(asyncio.Protocol):
    """One connection; requests come one after another."""

    def __init__(self, seconds: float):
        self.seconds, self.data = seconds, bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.WriteTransport = transport  # pyright: ignore[reportAttributeAccessIssue]

    def data_received(self, data: bytes) -> None:
        self.data += data
        head, _, rest = self.data.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
        if rest and len(rest) >= length:
            answer = reply(rest.count(ONE_OF_SEVERAL))
            self.data.clear()
            asyncio.get_running_loop().call_later(self.seconds, self.transport.write, answer)


async def serve(seconds: float) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: LateAnswers(seconds), "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(float(sys.argv[1])))
