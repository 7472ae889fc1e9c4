"""A vision-language model with what the verifier needs around it: processor, prompt encoder, image cache, trees.

In: a checkpoint folder (or Hub name) and perhaps an adapter. Out: trees ready for one packed forward pass, for the judge
and for distillation alike.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForImageTextToText, PreTrainedModel, ProcessorMixin

from .errors import InputError
from .image_digest import digest_of_pixels, state_of
from .pixels import prepared
from .prompt import SYSTEM, PromptEncoder
from .schema import Example
from .sentences import split_sentences
from .tables import load_image
from .tree import Packed, Tree, pack

IMAGE_CACHE_BYTES = 2 << 30  # of patches that are kept; a group's responses share theirs


@dataclass
class Picture:
    """An image as the model takes it: patches (patches, patch size), grid (1, 3), and a digest of its pixels."""

    pixels: torch.Tensor
    grid: torch.Tensor
    digest: str


class VisionLanguageModel:
    """Model, processor and encoder of one checkpoint. `backbone` is the model without adapter wrapping."""

    def __init__(self, model: PreTrainedModel, processor: ProcessorMixin, path: str):
        self.model: Any = model  # a PreTrainedModel, or its PEFT wrapping
        self.processor: Any = processor
        self.path = path
        self.encoder = PromptEncoder(processor.tokenizer)
        self._pictures: OrderedDict[Hashable, Picture] = OrderedDict()
        self._picture_bytes = 0

    @property
    def backbone(self) -> Any:
        get_base = getattr(self.model, "get_base_model", None)
        return get_base() if get_base else self.model

    @property
    def context(self) -> int:
        """The most tokens that it was made for."""
        return self.backbone.config.get_text_config().max_position_embeddings

    @property
    def pad_id(self) -> int:
        return self.processor.tokenizer.pad_token_id

    def picture(self, image) -> Picture:
        """One image through the model's own processor; recent ones are kept."""
        key = state_of(image)
        if key not in self._pictures:
            rgb = load_image(image)
            with prepared(image):
                features = self.processor.image_processor(images=[rgb], return_tensors="pt")
            digest = digest_of_pixels(rgb)
            self._pictures[key] = Picture(features["pixel_values"], features["image_grid_thw"], digest)
            self._picture_bytes += self._pictures[key].pixels.nbytes
            while self._picture_bytes > IMAGE_CACHE_BYTES and len(self._pictures) > 1:
                self._picture_bytes -= self._pictures.popitem(last=False)[1].pixels.nbytes
        return self._pictures[key]

    def opening(self, example: Example, mode: str, system: str | None = None) -> Tree:
        """What all responses to an example share, without branches: system text, images, question; text mode leaves
        the images out."""
        if mode == "text":
            return Tree(self.encoder.opening(example.question, [], system or SYSTEM[mode]), [])
        if not example.images:
            raise InputError(f"example {example.example_id!r} has no image; judge it in text mode")
        pictures = [self.picture(image) for image in example.images]
        grid = torch.cat([picture.grid for picture in pictures])
        counts = (grid.prod(dim=1) // self.processor.image_processor.merge_size**2).tolist()
        ids = self.encoder.opening(example.question, counts, system or SYSTEM[mode])
        return Tree(ids, [], torch.cat([picture.pixels for picture in pictures]), grid)

    def tree(
        self, example: Example, response: str, branches: Sequence[Sequence[int]], mode: str, system: str | None = None
    ) -> Tree:
        """The whole prefix of one response with the given branches."""
        opening = self.opening(example, mode, system)
        prefix = opening.prefix + self.encoder.response(response, split_sentences(response))
        return Tree(prefix, [list(branch) for branch in branches], opening.pixel_values, opening.image_grid_thw)

    def pack(self, trees: Sequence[Tree]) -> Packed:
        return pack(trees, self.encoder.image_id, self.pad_id, self.backbone.model.get_rope_index)


def load_model(path: str | Path, dtype: torch.dtype | str = "auto", **kwargs) -> VisionLanguageModel:
    """Loads a checkpoint for judging or training; `kwargs` go to transformers' `from_pretrained`."""
    from .processor import load_processor

    try:
        model = AutoModelForImageTextToText.from_pretrained(path, dtype=dtype, attn_implementation="sdpa", **kwargs)
        processor = load_processor(path)
    except InputError:
        raise
    except (OSError, ValueError, SafetensorError) as error:
        raise InputError(f"the base model {str(path)!r} cannot be loaded: {error}") from error
    return VisionLanguageModel(model, processor, str(path))


def base_hash(path: str | Path) -> str:
    """Identifies a base by its weights: SHA-256 over the safetensors files of its folder, in order of name."""
    folder = Path(path)
    if not folder.is_dir():  # a Hub name: its snapshot in the cache
        from huggingface_hub import snapshot_download

        try:
            folder = Path(snapshot_download(str(path), allow_patterns=["*.safetensors"]))
        except (OSError, ValueError) as error:  # no such name, or no connection
            reason = str(error).strip().partition("\n")[0]
            raise InputError(f"the base model {str(path)!r} is no folder, nor found on the Hub: {reason}") from error
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise InputError(f"{folder} holds no safetensors file; give the folder of a base model")
    return _hash(files)


def adapter_hash(folder: str | Path) -> str:
    """Identifies an adapter by its weights and configuration (which holds their scale)."""
    return _hash(sorted(Path(folder).glob("adapter_*")))


def _hash(files: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            while block := stream.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()[:16]
