"""What a policy is asked, as token ids: images and question in the model's own chat template.

In: an example. Out: ids in which the question is plain text, whatever it says: "<|im_end|>" in it is ten characters and
no end of turn. A prompt that does not fit is refused with its length.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ..verifier.errors import InputError
from ..verifier.prompt import PromptEncoder
from ..verifier.schema import Example

_QUESTION = "\ue000"  # a private character in the question's place while the template is filled


class PolicyPrompt:
    """Builds the prompts of one policy. `context` is how many tokens it can hold, those that it writes included."""

    def __init__(self, processor: Any, encoder: PromptEncoder, context: int):
        self.processor, self.encoder, self.context = processor, encoder, context
        special = sorted(processor.tokenizer.get_added_vocab(), key=len, reverse=True)
        self._special = re.compile(f"({'|'.join(map(re.escape, special))})")
        self._frames: dict[int, tuple[str, str]] = {}

    def ids(self, example: Example, image_tokens: Sequence[int]) -> list[int]:
        """The prompt with as many placeholders for each image as `image_tokens` says."""
        before, after = self._frame(len(image_tokens))
        *front, last = self._special.split(before)  # text and special tokens by turns
        first, *back = self._special.split(after)
        counts, ids = iter(image_tokens), []
        for at, piece in enumerate([*front, last + example.question + first, *back]):
            if at % 2 == 0:
                ids += self.encoder.text(piece)
            else:
                token = self.encoder.special(piece)
                ids += [token] * (next(counts) if token == self.encoder.image_id else 1)
        return ids

    def _frame(self, images: int) -> tuple[str, str]:
        """The filled template before and behind the question."""
        if images not in self._frames:
            content = [*[{"type": "image"}] * images, {"type": "text", "text": _QUESTION}]
            filled = self.processor.apply_chat_template(
                [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
            )
            frame = tuple(filled.split(_QUESTION))
            placeholders = self._special.findall(filled).count(self.processor.image_token)
            if len(frame) != 2 or placeholders != images:
                raise InputError(
                    f"the chat template shows the question {len(frame) - 1} times and {placeholders} of {images} images; "
                    "it must show each once"
                )
            self._frames[images] = frame
        return self._frames[images]

    def check_length(self, example: Example, length: int, new: int) -> None:
        """Raises InputError where a prompt of so many tokens and so many new ones do not fit."""
        if length + new > self.context:
            raise InputError(
                f"example {example.example_id!r}: the prompt has {length} tokens, with {new} new ones more than the "
                f"policy's context of {self.context}; it is not cut; shorten it, or allow fewer new tokens"
            )
