"""Processors for Qwen-VL checkpoints, the digits world's among them.

The stock Qwen3-VL processor wants a video processor and with it torchvision; the digits world has neither, so its
checkpoint names a processor without the video part, loaded by its own `from_pretrained` (AutoProcessor would return the
bare tokenizer).
"""

from __future__ import annotations

import json
from pathlib import Path

from transformers import AutoConfig, AutoProcessor, PretrainedConfig, ProcessorMixin
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.tokenization_utils_tokenizers import PreTrainedTokenizerFast

from .errors import InputError


class ImageOnlyQwen3VLProcessor(Qwen3VLProcessor):
    """Qwen3VLProcessor without videos: an image processor, a tokenizer and a chat template."""

    def __init__(self, image_processor=None, tokenizer=None, chat_template=None, **kwargs):
        super().__init__(image_processor, tokenizer, None, chat_template=chat_template, **kwargs)

    @classmethod
    def get_attributes(cls) -> list[str]:
        return ["image_processor", "tokenizer"]

    def check_argument_for_proper_class(self, argument_name, argument):
        if argument_name == "video_processor":
            return None
        return super().check_argument_for_proper_class(argument_name, argument)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, **kwargs):  # pyright: ignore[reportIncompatibleMethodOverride]
        path = Path(pretrained_model_name_or_path)
        template = (path / "chat_template.jinja").read_text()
        return cls(
            Qwen2VLImageProcessorPil.from_pretrained(path),
            PreTrainedTokenizerFast.from_pretrained(path),
            chat_template=template,
        )


def load_processor(path: str | Path) -> ProcessorMixin:
    """The processor of a checkpoint: our image-only one where the checkpoint names it, else transformers' own. Raises
    InputError where there is none."""
    config = Path(path) / "processor_config.json"
    try:
        own = config.is_file() and json.loads(config.read_text()).get("processor_class")
        if own == ImageOnlyQwen3VLProcessor.__name__:
            return ImageOnlyQwen3VLProcessor.from_pretrained(path)
        processor = AutoProcessor.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise InputError(f"the base model {str(path)!r} has no processor that can be loaded: {error}") from error
    if not hasattr(processor, "image_processor"):
        raise InputError(f"{path} has no image processor; give a vision-language checkpoint")
    return processor


def load_config(path: str | Path) -> PretrainedConfig:
    """The configuration of a checkpoint. Raises InputError where there is none."""
    try:
        return AutoConfig.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise InputError(f"the base model {str(path)!r} cannot be loaded: {error}") from error
