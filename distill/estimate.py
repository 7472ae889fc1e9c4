"""What labelling would cost, before anything is asked: calls, tokens and money.

In: sheets of questions and, where there is one, the model's own processor. Out: counts by mode. With the processor, text
is counted by its tokenizer, images by its own rule and the frame by its chat template; without it, at four bytes a token
and 28 x 28 pixels an image token, which the report says.
"""

from __future__ import annotations

import math
import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..verifier.errors import InputError
from ..verifier.quoting import criteria_part, messages, shared_part, system_text
from ..verifier.schema import MODES, Mode
from ..verifier.text import excerpt
from .ledger import Ledger
from .questions import Sheet
from .spending import FRAME_TOKENS, PIXELS_A_TOKEN, image_size, image_tokens

BYTES_A_TOKEN = 4
ANSWER_TOKENS = 60  # of a verdict with its quote, until the ledger knows better


class TokenCounter:
    """Tokens of prompts, part by part: a part that many prompts share is counted once."""

    def __init__(self, processor: Any | None):
        self.processor = processor
        self.text = lru_cache(20_000)(self._text)
        self.frame = lru_cache(None)(self._frame)
        self.image = lru_cache(4096)(self._image)

    def chat(self, chat: list[dict[str, Any]], images: Sequence[Any]) -> int:
        """Tokens of chat messages, text in the last part of each, with these images before the user's."""
        texts = [m["content"] if isinstance(m["content"], str) else m["content"][-1]["text"] for m in chat]
        inside = sum(map(self.image, images))
        if self.processor is None:
            return sum(map(self.text, texts)) + FRAME_TOKENS + inside + 2 * len(images)
        parts = [{"type": "image"}] * len(images) + [{"type": "text", "text": texts[-1]}]
        plain = [{**m, "content": text} for m, text in zip(chat[:-1], texts[:-1], strict=True)]
        plain.append({**chat[-1], "content": parts if images else texts[-1]})
        whole = self.processor.apply_chat_template(plain, tokenize=False, add_generation_prompt=True)
        return self._text(whole) + inside - len(images)  # each image stands in the template as one token

    def _text(self, text: str) -> int:
        if self.processor is None:
            return math.ceil(len(text.encode()) / BYTES_A_TOKEN)
        return len(self.processor.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _image(self, image: Any) -> int:
        if self.processor is None:
            return image_tokens(image)
        width, height = image_size(image)
        return self.processor._get_num_multimodal_tokens(image_sizes=[(height, width)])["num_image_tokens"][0]

    def _frame(self, mode: Mode, several: bool, images: int) -> int:
        """Everything but the user's text and the inside of the images: system text, turns, image marks."""
        if self.processor is None:
            return self._text(system_text(mode, several)) + FRAME_TOKENS + 2 * images
        chat = messages("", "", [""], mode, ["image"] * images, several)
        if images:
            chat[1]["content"] = [{"type": "image"}] * images + [chat[1]["content"][-1]]
        whole = self.processor.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        own = self._text(shared_part("", "")) + self._text(criteria_part([""], several))
        return self._text(whole) - own - images  # each image stands in the template as one token


def load_counter(model: str, processor: str | None) -> tuple[TokenCounter, str]:
    """A counter with the processor given (a folder or a Hub name), else with the model's own where this machine has it,
    else by rule; and in words how it counts."""
    from ..verifier.processor import load_processor

    name = processor or model
    try:
        if processor is None and not _is_here(model):
            raise InputError("this machine has none")
        return TokenCounter(load_processor(name)), f"tokens counted with the processor of {name}"
    except (OSError, ValueError, ImportError) as error:
        reason = excerpt(error, 120)
        if processor is not None:
            raise InputError(f"--processor {processor}: it cannot be loaded ({reason})") from None
    told = f"{BYTES_A_TOKEN} bytes a token, {PIXELS_A_TOKEN} x {PIXELS_A_TOKEN} pixels an image token"
    return TokenCounter(
        None
    ), f"tokens ESTIMATED at {told}: no processor of {name} ({reason}); name one with --processor"


def _is_here(model: str) -> bool:
    """Whether the model's processor lies in a folder or in the Hub's cache."""
    from huggingface_hub import try_to_load_from_cache

    try:
        return Path(model).is_dir() or isinstance(try_to_load_from_cache(model, "preprocessor_config.json"), str)
    except ValueError:  # no name of the Hub
        return False


@dataclass
class Estimate:
    """Counts by mode; `known` are questions that the ledger answers already, or that are asked twice in the tables."""

    calls: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    prompt_tokens: Counter[str] = field(default_factory=Counter)
    known: int = 0


def estimate(sheets: Iterable[Sheet], ledger: Ledger | None, counter: TokenCounter, per_call: int) -> Estimate:
    """Counts what `Teacher.label` would ask."""
    found, several, seen = Estimate(), per_call > 1, _Seen()
    for sheet in sheets:
        new = []
        for criterion, key in zip(sheet.example.criteria, sheet.keys, strict=True):
            if seen.before(key) or (ledger is not None and ledger.has(key)):
                found.known += 1
            else:
                new.append(criterion.text)
        if not new or (sheet.mode == "image" and not sheet.images):  # without an image nothing is asked in image mode
            continue
        shared = counter.frame(sheet.mode, several, len(sheet.images)) + sum(map(counter.image, sheet.images))
        shared += counter.text(shared_part(sheet.example.question, sheet.rollout.response))
        for first in range(0, len(new), per_call):
            tokens = shared + counter.text(criteria_part(new[first : first + per_call], several))
            found.calls[sheet.mode] += 1
            found.prompt_tokens[sheet.mode] += tokens
        found.verdicts[sheet.mode] += len(new)
    return found


class _Seen:
    """The keys so far, in a temporary file: there may be millions."""

    def __init__(self) -> None:
        self._db = sqlite3.connect("")
        self._db.execute("PRAGMA journal_mode = OFF")
        self._db.execute("CREATE TABLE seen (key BLOB PRIMARY KEY) WITHOUT ROWID")

    def before(self, key: bytes) -> bool:
        """Whether the key has come before; from now on it has."""
        return not self._db.execute("INSERT OR IGNORE INTO seen VALUES (?)", (key,)).rowcount


def answer_tokens(
    ledger: Ledger | None, model: str, modes: Sequence[str] = MODES, assumed: int = ANSWER_TOKENS
) -> tuple[float, str]:
    """Completion tokens of a verdict (an answer in these modes), and where the number comes from."""
    figures = ledger.figures(model, modes) if ledger is not None else {"answers": 0, "completion_tokens": 0}
    if figures["answers"] and figures["completion_tokens"]:
        return figures["completion_tokens"] / figures["answers"], "as in the ledger"
    return assumed, "assumed"
