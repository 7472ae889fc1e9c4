"""The verifier's prompt, as token ids.

In: an example, a response, a criterion. Out: the prefix that all criteria of a response share (system text, image,
question, labelled sentences) and one branch per criterion. What comes from the data is encoded with an encoder that knows
no special token, and every sentence label stands behind a special token, so no response can close its frame or forge a
label.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cached_property

from tokenizers import Tokenizer

from .errors import InputError
from .sentences import LABELS, NO_SENTENCE

SYSTEM = {
    "image": "Judge the response by the criterion. Point to the sentence that decides, say what the image shows there, "
    "then answer yes if the response meets the criterion and the image does not contradict it, else no.",
    "text": "Judge the response by the criterion. Point to the sentence that decides, then answer yes if the response "
    "meets the criterion, else no.",
}
QUESTION, RESPONSE, CRITERION = "Question:", "\nResponse:", "\nCriterion:"
TURN, END, LABEL_MARK = "<|im_start|>", "<|im_end|>", "<|object_ref_start|>"
VISION_START, IMAGE, VISION_END = "<|vision_start|>", "<|image_pad|>", "<|vision_end|>"
YES, NO, READING_END = " yes", " no", ";"
MAX_READING_TOKENS = 8


def prompt_hash(mode: str, readings: bool) -> str:
    """Identifies what a verifier was trained to read and write; an adapter of another prompt is refused."""
    parts = [SYSTEM[mode], QUESTION, RESPONSE, CRITERION, TURN, END, LABEL_MARK, YES, NO, READING_END, "".join(LABELS)]
    text = json.dumps([*parts, NO_SENTENCE, MAX_READING_TOKENS, mode, readings])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def longest_turn(readings: bool) -> int:
    """Tokens that a verifier writes, at most: label, reading with its end, verdict."""
    return 2 + (MAX_READING_TOKENS + 1 if readings else 0)


class PromptEncoder:
    """Encodes prompts and targets for one tokenizer; checks when made that every label is one token."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        state = json.loads(tokenizer.backend_tokenizer.to_str())
        state["added_tokens"], state["post_processor"] = [], None
        self._plain = Tokenizer.from_str(json.dumps(state))
        self.label_ids = {label: self._single(f" {label}") for label in (*LABELS, NO_SENTENCE)}
        self.yes_id, self.no_id, self.reading_end_id = self._single(YES), self._single(NO), self._single(READING_END)

    def text(self, text: str) -> list[int]:
        """Token ids of untrusted text: `<|im_end|>` in it is eight characters, never the special token."""
        clean = text.encode("utf-8", "replace").decode("utf-8")  # lone surrogates cannot be encoded
        return self._plain.encode(clean, add_special_tokens=False).ids

    def special(self, token: str) -> int:
        index = self.tokenizer.convert_tokens_to_ids(token)
        if index is None or index == self.tokenizer.unk_token_id:
            raise InputError(f"the tokenizer has no token {token}; the verifier needs a Qwen-VL tokenizer")
        return index

    def _single(self, text: str) -> int:
        ids = self.text(text)
        if len(ids) != 1:
            raise InputError(f"the tokenizer splits {text!r} into {len(ids)} tokens; the verifier needs it to be one")
        return ids[0]

    @cached_property
    def image_id(self) -> int:
        return self.special(IMAGE)

    def opening(self, question: str, image_tokens: Sequence[int], system: str) -> list[int]:
        """Ids of everything before the response, which all responses to an example share. `image_tokens` has the
        placeholder count of each image."""
        ids = [self.special(TURN), *self.text("system\n" + system), self.special(END), *self.text("\n")]
        ids += [self.special(TURN), *self.text("user\n")]
        for count in image_tokens:
            ids += [self.special(VISION_START), *[self.image_id] * count, self.special(VISION_END)]
        return ids + self.text(f"{QUESTION} {question}{RESPONSE}")

    def response(self, response: str, sentences: Sequence[tuple[int, int]]) -> list[int]:
        """Ids of the labelled sentences; each begins with a special token, so they go on from the opening as they are."""
        ids: list[int] = []
        for label, (start, end) in zip(LABELS, sentences, strict=False):
            ids += [self.special(LABEL_MARK), self.label_ids[label], *self.text(" " + response[start:end].rstrip(" "))]
        return ids

    def prefix(
        self,
        question: str,
        response: str,
        sentences: Sequence[tuple[int, int]],
        image_tokens: Sequence[int],
        system: str,
    ) -> list[int]:
        """Ids of everything before the criterion."""
        return self.opening(question, image_tokens, system) + self.response(response, sentences)

    def branch(self, criterion: str) -> list[int]:
        """Ids of one criterion and the opening of the verifier's turn."""
        turn = [self.special(END), *self.text("\n"), self.special(TURN), *self.text("assistant\n")]
        return [*self.text(f"{CRITERION} {criterion}"), *turn]

    def target(self, label: str, reading: str | None, verdict: bool) -> list[int]:
        """What the verifier should write: label, reading and its end (unless None), verdict."""
        ids = [self.label_ids[label]]
        if reading is not None:
            ids += [*self.reading(reading), self.reading_end_id]
        return [*ids, self.yes_id if verdict else self.no_id]

    def reading(self, reading: str) -> list[int]:
        """At most eight tokens of a reading."""
        return self.text(" " + reading)[:MAX_READING_TOKENS] if reading else []
