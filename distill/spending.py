"""What a teacher costs: prices, the most that a call can cost, and a budget that is never exceeded.

Prices are money per million tokens. What is in flight is held at its worst case until its cost is known.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from PIL import Image

from ..verifier.errors import InputError

FRAME_TOKENS = 64  # a chat template around two messages
PIXELS_A_TOKEN = 28  # on a side; Qwen2.5-VL has 28, Qwen3-VL 32, others fewer tokens an image
MOST_IMAGE_TOKENS = 16384


def cost_of(
    prompt_tokens: int | None, completion_tokens: int | None, price_in: float | None, price_out: float | None
) -> float | None:
    """Money; None where tokens or both prices are unknown. A price left out is 0."""
    if prompt_tokens is None or completion_tokens is None or (price_in is None and price_out is None):
        return None
    return (prompt_tokens * (price_in or 0.0) + completion_tokens * (price_out or 0.0)) / 1e6


def prompt_bound(text: str, images: Sequence[Path]) -> int:
    """The most tokens that a prompt can have: no tokenizer makes more tokens than bytes."""
    return len(text.encode()) + FRAME_TOKENS + sum(image_tokens(image) + 2 for image in images)


@lru_cache(64)
def image_size(image: Path) -> tuple[int, int]:
    """Width and height in pixels, from the file's header."""
    try:
        with Image.open(image) as opened:
            return opened.size
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise InputError(
            f"image {image}: it cannot be read as an image ({error}); replace it or drop its row"
        ) from None


def image_tokens(image: Path) -> int:
    """About how many tokens an image is where the model's own processor is not at hand; a broken one, the most."""
    try:
        width, height = image_size(image)
    except InputError:
        return MOST_IMAGE_TOKENS
    return min(MOST_IMAGE_TOKENS, math.ceil(width / PIXELS_A_TOKEN) * math.ceil(height / PIXELS_A_TOKEN))


class Budget:
    """`limit` None: no bound. `spent` is known to be gone, `held` may go to what is in flight.

    `stretch` is how much longer than its bound a prompt has turned out to be (images of unknown models); 1 at first.
    """

    def __init__(self, limit: float | None, spent: float):
        self.limit, self.spent, self.held, self.stretch = limit, spent, 0.0, 1.0
        self._in_flight = 0
        self._settled = asyncio.Condition()

    async def hold(self, worst: float) -> bool:
        """Waits until the amount is free and holds it; False where nothing in flight can free it any more."""
        if self.limit is None:
            return True
        async with self._settled:
            await self._settled.wait_for(lambda: self._fits(worst) or not self._in_flight)
            if not self._fits(worst):
                return False
            self.held += worst
            self._in_flight += 1
        return True

    def _fits(self, worst: float) -> bool:
        return self.limit is None or self.spent + self.held + worst <= self.limit

    async def settle(self, worst: float, cost: float) -> None:
        """The amount held is free again, the cost is gone."""
        self.spent += cost
        if self.limit is None:
            return
        async with self._settled:
            self._in_flight -= 1
            self.held = self.held - worst if self._in_flight else 0.0
            self._settled.notify_all()

    def learn(self, prompt_tokens: float, bound: int) -> None:
        """Takes in that a prompt with this bound had so many tokens."""
        if bound:
            self.stretch = max(self.stretch, prompt_tokens / bound)
