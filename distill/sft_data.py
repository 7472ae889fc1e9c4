"""Conversations with images as TRL's `SFTTrainer` takes them: columns prompt, completion and images.

In: a `Source` (local JSON Lines, JSON or Parquet, or a data set of the Hub) with `messages` (role and content, a string
or parts) or `conversations` (ShareGPT's from and value), and images in `images`, `image` or the parts. Out: a
`datasets.Dataset` on disk, or a stream. The last answer is the completion; everything before it is the prompt.

OpenMMReasoner-SFT-874K, as its authors' pipeline writes it (EvolvingLMMs-Lab/OpenMMReasoner, distill_response.py and
sft_example_config.yaml): Parquet files with `id` and `messages` of parts, an image being {"type": "image_url",
"image_url": {"url": path}}, its path relative to a folder of images that lies beside the rows: `image_folder`.

A row that cannot be used is named in rejected.jsonl with its reason: "refused" for a fault, "filtered" where it is too
long: conversations are never cut. More than a share of refused rows is an InputError.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ..verifier.errors import InputError
from ..verifier.text import clean
from .layouts import decoded, is_null, shown
from .pictures import Picture, read_picture
from .rows import PLACE, listed, read_turns
from .sources import RawRow, Source

if TYPE_CHECKING:
    from datasets import Dataset, Features, IterableDataset

REJECTED = "rejected.jsonl"
ARROW = ".data"  # folder of a stored dataset
IMAGE_PARTS = ("image", "image_url", "input_image")
COLUMNS = ("messages", "conversations", "conversation")
SPEAKERS = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}
ENOUGH = 1000  # rows of a stream, before the share of refused ones says something
SHUFFLED = 1000  # rows of a stream among which the next is drawn


class TooLong(Exception):
    """Nothing is wrong with the row, but it does not fit."""


@dataclass(frozen=True)
class Form:
    """What a conversation must be for one model. `processor` is the model's, `max_tokens` the longest conversation."""

    processor: Any
    max_tokens: int

    def check(self, messages: list[dict[str, Any]], pictures: list[Picture]) -> None:
        """Raises InputError for a text that holds a token of the model's own, TooLong for what does not fit."""
        texts = [part["text"] for message in messages for part in message["content"] if part["type"] == "text"]
        special = next(
            (t for t in self.processor.tokenizer.all_special_tokens if any(t in text for text in texts)), None
        )
        if special is not None:
            raise InputError(f"a text holds {special!r}, which the model would take for a token of its own")
        text = self.processor.apply_chat_template(messages, tokenize=False)
        tokens = len(self.processor.tokenizer(text, add_special_tokens=False)["input_ids"]) - len(pictures)
        sizes = [(picture.image.height, picture.image.width) for picture in pictures]
        if sizes:
            tokens += sum(self.processor._get_num_multimodal_tokens(image_sizes=sizes)["num_image_tokens"])
        if tokens > self.max_tokens:
            raise TooLong(f"it has {tokens} tokens, more than max_tokens {self.max_tokens}; it is not cut")


def read_conversation(raw: RawRow, form: Form, remote: bool = False) -> dict[str, Any]:
    """Prompt, completion and images of one row. Raises InputError or TooLong with the reason where there are none."""
    if raw.error:
        raise InputError(raw.error)
    name = next((name for name in COLUMNS if not is_null(raw.values.get(name))), None)
    if name is None:
        raise InputError(f"it has none of the columns {', '.join(COLUMNS)}")
    value = decoded(raw.values[name])
    if not isinstance(value, list):
        raise InputError(f"{name} is {shown(value)}; it must be a list of messages")
    turns, in_parts = read_turns([_message(decoded(message)) for message in value], name)
    images = listed(raw.values.get("images")) or listed(raw.values.get("image")) or in_parts
    if len(turns) < 2 or turns[-1][0] != "assistant" or not turns[-1][1].strip():
        raise InputError(f"{name} must end with an answer of the assistant after a turn of the user's")
    if PLACE in turns[-1][1]:
        raise InputError("the answer holds a place for an image")
    pictures = []
    for number, image in enumerate(images, 1):
        try:
            pictures.append(read_picture(image, raw.folder, remote))
        except InputError as error:
            raise InputError(f"image {number}: {error}") from None
    messages = _placed(turns, len(pictures))
    form.check(messages, pictures)
    stored = [_stored(*pair, raw.folder) for pair in zip(images, pictures, strict=True)]
    return {"prompt": messages[:-1], "completion": messages[-1:], "images": stored}


def _message(message: Any) -> Any:
    """ShareGPT's from and value as role and content. Where parts hold the images, a "<image>" left in a text beside them
    is no place of its own."""
    if not isinstance(message, Mapping):
        return message
    if "from" in message:
        return {"role": SPEAKERS.get(message["from"], message["from"]), "content": message.get("value")}
    content = message.get("content")
    parts = list(content) if isinstance(content, (list, tuple)) else []
    if not any(isinstance(part, Mapping) and part.get("type") in IMAGE_PARTS for part in parts):
        return message
    return {**message, "content": [_without_place(part) for part in parts]}


def _without_place(part: Any) -> Any:
    text = part.get("text") if isinstance(part, Mapping) else None
    if not isinstance(text, str) or PLACE not in text:
        return part
    return {**part, "text": text.replace(PLACE, "").strip("\n")}


def _placed(turns: list[tuple[str, str]], images: int) -> list[dict[str, Any]]:
    """Messages of parts, each image in its place; where no text has a place, before the first turn of the user's, as in
    the prompts of rollouts and GRPO. Line breaks beside a place are left out, as there."""
    places = sum(text.count(PLACE) for role, text in turns)
    if places not in (0, images):
        raise InputError(f"there are places for {places} image(s), but the row has {images}")
    messages, waiting = [], images if not places else 0
    for role, text in turns:
        first, *rest = text.split(PLACE)
        parts: list[dict[str, Any]] = []
        if role == "user" and waiting:
            parts, waiting = [{"type": "image"} for _ in range(waiting)], 0
        for number, piece in enumerate([first, *rest]):
            parts += [{"type": "image"}] if number else []
            said = piece.strip("\n") if rest else piece
            parts += [{"type": "text", "text": clean(said)}] if said else []
        messages.append({"role": role, "content": parts})
    if waiting:
        raise InputError("it has images, but no turn of the user's that they could stand in")
    return messages


def _stored(image: Any, picture: Picture, folder: Path | None) -> dict[str, Any]:
    """As the feature `Image` of `datasets` holds it: a file of one's own that everybody sees alike stays where it is."""
    path = folder / image if folder is not None and isinstance(image, str) and len(image) < 1000 else None
    if picture.as_is and path is not None and path.is_file():
        return {"path": str(path.resolve()), "bytes": None}
    return {"path": None, "bytes": picture.data}


class Reader:
    """Rows of a source as conversations, faults left out and written to `out`/rejected.jsonl (by the main process).
    `image_folder` is what the rows' paths of images are relative to; None: the folder that the rows lie in."""

    def __init__(
        self,
        source: Source,
        form: Form,
        out: Path,
        max_rejected: float,
        main: bool = True,
        image_folder: Path | None = None,
    ):
        self.source, self.form, self.out, self.max_rejected, self.main = source, form, out, max_rejected, main
        self.image_folder = image_folder

    def rows(self, bar: Callable[[Iterator[RawRow]], Any] = iter) -> Iterator[dict[str, Any]]:
        read = refused = kept = 0
        first = ""
        with self._rejected() as log:
            for raw in bar(self.source.read(0)):
                read += 1
                try:
                    placed = raw if self.image_folder is None else replace(raw, folder=self.image_folder)
                    row = read_conversation(placed, self.form, self.source.remote)
                except (InputError, TooLong) as error:
                    kind = "filtered" if isinstance(error, TooLong) else "refused"
                    refused += kind == "refused"
                    first = first or f"{raw.where}: {error}"
                    log.write(_line({"row": raw.number, "where": raw.where, "kind": kind, "reason": str(error)}))
                    log.flush()
                else:
                    kept += 1
                    yield row
                if read >= ENOUGH:
                    self._check(read, refused, first)
            self._check(read, refused, first)
        if not kept:
            raise InputError(f"{self.source.name}: no row is left to train on" + (f"; {first}" if first else ""))

    def _rejected(self) -> IO[str]:
        self.out.mkdir(parents=True, exist_ok=True)
        return open(self.out / REJECTED if self.main else "/dev/null", "w", encoding="utf-8", errors="replace")

    def _check(self, read: int, refused: int, first: str) -> None:
        if refused > self.max_rejected * read:
            raise InputError(
                f"{refused} of {read} rows ({refused / read:.1%}) were refused, more than max_rejected "
                f"{self.max_rejected:g}; the first is {first}; {self.out / REJECTED} names each; mend the rows, or allow "
                "more"
            )


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"


def features() -> Features:
    from datasets import Features, Image, List, Value

    text = Value("string")
    message = {"role": text, "content": [{"type": text, "text": text}]}
    return Features({"prompt": [message], "completion": [message], "images": List(Image())})


def stored_dataset(reader: Reader, fingerprint: str) -> Dataset:
    """All rows, read and checked once, in Arrow files under OUT/.data; images that are files stay where they are. Raises
    InputError as the reader does, and leaves nothing behind then."""
    from datasets import Dataset, disable_progress_bars
    from datasets.exceptions import DatasetGenerationError
    from tqdm import tqdm

    def rows() -> Iterator[dict[str, Any]]:
        yield from reader.rows(
            lambda raw: tqdm(raw, "reading", reader.source.rows, unit="row", disable=not reader.main)
        )

    disable_progress_bars()
    try:
        return Dataset.from_generator(
            rows, features=features(), cache_dir=str(reader.out / ARROW), fingerprint=fingerprint
        )  # pyright: ignore[reportReturnType]
    except DatasetGenerationError as error:
        if isinstance(error.__cause__, InputError):
            raise error.__cause__ from None
        raise


def streamed_dataset(reader: Reader, seed: int) -> IterableDataset:
    """Rows as they are read, drawn from the next thousand; at no time is there more of the source on this machine."""
    from datasets import IterableDataset

    rows = IterableDataset.from_generator(reader.rows, features=features())
    return rows.shuffle(seed=seed, buffer_size=SHUFFLED)
