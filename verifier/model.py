"""A vision-language model with what the verifier needs around it: processor, prompt encoder, image cache, trees.

In: a checkpoint folder (or Hub name) and perhaps an adapter. Out: trees ready for one packed forward pass, for the judge
and for distillation alike.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForImageTextToText, PreTrainedModel, ProcessorMixin

from .errors import InputError
from .prompt import SYSTEM, PromptEncoder
from .schema import Example
from .sentences import split_sentences
from .tables import load_image
from .tree import Packed, Tree, pack

IMAGE_CACHE = 4096  # pictures whose patches are kept; a group's responses share theirs


class VisionLanguageModel:
    """Model, processor and encoder of one checkpoint. `backbone` is the model without adapter wrapping."""

    def __init__(self, model: PreTrainedModel, processor: ProcessorMixin, path: str):
        self.model: Any = model  # a PreTrainedModel, or its PEFT wrapping
        self.processor: Any = processor
        self.path = path
        self.encoder = PromptEncoder(processor.tokenizer)
        self._images: OrderedDict[object, tuple[torch.Tensor, torch.Tensor, Any]] = OrderedDict()  # pixels, grid, image

    @property
    def backbone(self) -> Any:
        get_base = getattr(self.model, "get_base_model", None)
        return get_base() if get_base else self.model

    @property
    def pad_id(self) -> int:
        return self.processor.tokenizer.pad_token_id

    def pixels(self, images: Sequence) -> tuple[torch.Tensor, torch.Tensor]:
        """(patches, patch size) and (images, 3) grid of all images of one example, through the model's own processor."""
        parts = []
        for image in images:
            key = image if isinstance(image, Path) else id(image)
            if key not in self._images:
                features = self.processor.image_processor(images=[load_image(image)], return_tensors="pt")
                self._images[key] = features["pixel_values"], features["image_grid_thw"], image
                if len(self._images) > IMAGE_CACHE:
                    self._images.popitem(last=False)
            parts.append(self._images[key])
        return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])

    def tree(
        self, example: Example, response: str, branches: Sequence[Sequence[int]], mode: str, system: str | None = None
    ) -> Tree:
        """The prefix of one response with the given branches; text mode leaves the image out."""
        pixels, grid, counts = None, None, []
        if mode == "image":
            if not example.images:
                raise InputError(f"example {example.example_id!r} has no image; judge it in text mode")
            pixels, grid = self.pixels(example.images)
            counts = (grid.prod(dim=1) // self.processor.image_processor.merge_size**2).tolist()
        sentences = split_sentences(response)
        prefix = self.encoder.prefix(example.question, response, sentences, counts, system or SYSTEM[mode])
        return Tree(prefix, [list(branch) for branch in branches], pixels, grid)

    def pack(self, trees: Sequence[Tree]) -> Packed:
        return pack(trees, self.encoder.image_id, self.pad_id, self.backbone.model.get_rope_index)


def load_model(path: str | Path, dtype: torch.dtype | str = "auto", **kwargs) -> VisionLanguageModel:
    """Loads a checkpoint for judging or training; `kwargs` go to transformers' `from_pretrained`."""
    from .processor import load_processor

    try:
        model = AutoModelForImageTextToText.from_pretrained(path, dtype=dtype, attn_implementation="sdpa", **kwargs)
    except (OSError, ValueError) as error:
        raise InputError(f"the base model {str(path)!r} cannot be loaded: {error}") from error
    return VisionLanguageModel(model, load_processor(path), str(path))


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
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            while block := stream.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()[:16]
