"""What there is to ask: every criterion of every rollout in every mode, as a stream, each with its key; and the verdict
rows that the ledger's answers to them make. `Questions` is what any sheet that a teacher is given must know.

The key is a hash of what the teacher is told and of who it is: prompt hash, model, mode, question, images (in image
mode), response and criterion. Equal questions, say two empty responses to one example, have one key and are asked once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ..verifier.asking import Outcome, ask_criteria
from ..verifier.chat import ChatClient
from ..verifier.image_digest import file_digest
from ..verifier.quoting import Judgement, criteria_part, prompt_hash, shared_part, system_text
from ..verifier.schema import Example, Mode, Rollout, Verdict
from .ledger import Ledger


class Questions(Protocol):
    """Questions to a teacher that share images and a context, one for each key. `places` are some of them by number."""

    @property
    def keys(self) -> list[bytes]: ...

    @property
    def images(self) -> Sequence[Any]: ...

    @property
    def mode(self) -> str:
        """The ledger's word for what is asked: text, image, rubric, or lint."""
        ...

    def prompt_hash(self, several: bool) -> str: ...

    def prompt_text(self, places: Sequence[int], several: bool) -> str:
        """All text of the prompt that asks these."""
        ...

    async def ask(
        self, client: ChatClient, places: Sequence[int], images: Sequence[str], several: bool, max_tokens: int
    ) -> Outcome:
        """Asks these, and once more what could not be read. Images are URLs. Never raises ChatError."""
        ...


@dataclass(frozen=True)
class Sheet:
    """All questions on one response in one mode: `keys` has one key for each criterion of the example."""

    example: Example
    rollout: Rollout
    mode: Mode
    keys: list[bytes]

    @property
    def images(self) -> tuple[Any, ...]:
        """The images that the teacher sees."""
        return self.example.images if self.mode == "image" else ()

    def prompt_hash(self, several: bool) -> str:
        return prompt_hash(self.mode, several)

    def prompt_text(self, places: Sequence[int], several: bool) -> str:
        text = system_text(self.mode, several) + shared_part(self.example.question, self.rollout.response)
        return text + criteria_part(self._texts(places), several)

    async def ask(
        self, client: ChatClient, places: Sequence[int], images: Sequence[str], several: bool, max_tokens: int
    ) -> Outcome:
        question, response = self.example.question, self.rollout.response
        return await ask_criteria(
            client, question, response, self._texts(places), self.mode, images, several, max_tokens
        )

    def _texts(self, places: Sequence[int]) -> list[str]:
        return [self.example.criteria[place].text for place in places]


def sheets(
    pairs: Iterable[tuple[Example, Rollout]],
    modes: Sequence[Mode],
    model: str,
    several: bool,
    digest_of: Callable[[Path], str] = file_digest,
) -> Iterator[Sheet]:
    """One sheet for each rollout and mode, in that order. `digest_of` gives the digest of an image file."""
    asked = {mode: prompt_hash(mode, several) for mode in modes}
    for example, rollout in pairs:
        for mode in modes:
            sheet = Sheet(example, rollout, mode, [])
            images = [digest_of(Path(image)) for image in sheet.images]
            shared = digest_of_parts((asked[mode], model, mode, example.question, *images, rollout.response))
            sheet.keys.extend(key_of(shared, criterion.text) for criterion in example.criteria)
            yield sheet


def verdicts(stream: Iterable[Sheet], ledger: Ledger, model: str, several: bool) -> Iterator[Verdict]:
    """A verdict row for each question, from the ledger; missing with its reason where there is no answer."""
    asked: dict[Mode, str] = {"text": prompt_hash("text", several), "image": prompt_hash("image", several)}
    for sheet in stream:
        for criterion, stored in zip(sheet.example.criteria, ledger.read(sheet.keys), strict=True):
            known = stored.judgement if stored else Judgement(None, error="unasked: the ledger has no answer")
            yield Verdict(
                example_id=sheet.example.example_id,
                rollout_id=sheet.rollout.rollout_id,
                criterion_id=criterion.id,
                judge=model,
                mode=sheet.mode,
                verdict=known.verdict,
                p_yes=known.p_yes,
                span_start=known.span_start,
                span_end=known.span_end,
                match=known.match,
                reading=known.reading,
                error=known.error,
                prompt_hash=asked[sheet.mode],
                created_at=stored.created_at if stored else None,
                dimension=criterion.group,
            )


def digest_of_parts(parts: Iterable[str]) -> Any:
    """A SHA-256 in the making, of what the keys of several questions share."""
    shared = hashlib.sha256()
    for part in parts:
        shared.update(_framed(part))
    return shared


def key_of(shared: Any, criterion: str) -> bytes:
    """16 bytes: among 2**32 questions, two share a key with a chance of 1 in 2**65."""
    own = shared.copy()
    own.update(_framed(criterion))
    return own.digest()[:16]


def _framed(part: str) -> bytes:
    """With its length in front, so that no two lists of parts give the same bytes."""
    data = part.encode("utf-8", "surrogatepass")
    return len(data).to_bytes(8, "big") + data
