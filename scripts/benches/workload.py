"""What `claimwise bench judge` judges.

In: a shape. Out: a Qwen3-VL of that size with random weights, and an example, responses and criteria of exactly the
wanted numbers of tokens.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from ...distill.tiny import build_model, build_processor
from ...verifier.model import VisionLanguageModel
from ...verifier.prompt import SYSTEM
from ...verifier.schema import Criterion, Example, Rollout
from ...verifier.sentences import LABELS, NO_SENTENCE, split_sentences

SENTENCE = 20  # tokens: its mark and label, 17 words, a full stop
MOST_CRITERIA = 32


@dataclass(frozen=True)
class Shape:
    """Sizes; lengths are in tokens. `picture` is width and height in pixels, of which 32 x 32 make a token; `opening` is
    what all responses share; the frame of a criterion comes on top of its text."""

    width: int
    layers: int
    picture: tuple[int, int]
    opening: int
    response: int
    criterion: int
    responses: int


class Workload:
    """Model, question, picture, responses and 32 criteria of a shape. Raises ValueError for lengths it cannot make."""

    def __init__(self, shape: Shape, device: str):
        rng = random.Random(0)
        torch.manual_seed(0)
        processor = build_processor()
        pixels = shape.picture[0] * shape.picture[1]
        size = {"shortest_edge": pixels, "longest_edge": pixels}
        images = Qwen2VLImageProcessorPil(size=size, patch_size=16, merge_size=2, temporal_patch_size=2)
        processor.image_processor = images
        model: Any = build_model(processor, shape.width, shape.layers, 0.02).eval()
        model.to(device)
        self.model = VisionLanguageModel(model, processor, "random weights")
        _compute_features_once(model.model)
        self._words = _one_token_words(self.model)
        self.picture = Image.effect_noise(shape.picture, 64).convert("RGB")
        self.question = self._question(rng, shape)
        self.rollouts = [Rollout(f"r{n}", "bench", self._response(rng, shape), "bench") for n in range(shape.responses)]
        texts = [" ".join(rng.choices(self._words, k=shape.criterion)) for _ in range(MOST_CRITERIA)]
        self.criteria = tuple(Criterion(f"c{k}", text) for k, text in enumerate(texts))

    def example(self, count: int) -> Example:
        """With the first `count` criteria."""
        return Example("bench", self.question, self.criteria[:count], (self.picture,))

    def labels(self, rollout: Rollout) -> list[int]:
        ids = self.model.encoder.label_ids
        return [ids[NO_SENTENCE], *(ids[label] for label in LABELS[: len(split_sentences(rollout.response))])]

    def _question(self, rng: random.Random, shape: Shape) -> str:
        image_tokens = shape.picture[0] * shape.picture[1] // 32**2

        def length(text: str) -> int:
            return len(self.model.encoder.opening(text, [image_tokens], SYSTEM["image"]))

        first = rng.choice(self._words)
        more = shape.opening - length(first)
        text = " ".join([first, *rng.choices(self._words, k=max(more, 0))])
        if length(text) != shape.opening:
            raise ValueError(f"an opening of {shape.opening} tokens cannot be made; the shortest has {length(first)}")
        return text

    def _response(self, rng: random.Random, shape: Shape) -> str:
        count, rest = divmod(shape.response, SENTENCE)
        text = " ".join(" ".join(rng.choices(self._words, k=SENTENCE - 3)) + "." for _ in range(count))
        if rest or len(self.model.encoder.response(text, split_sentences(text))) != shape.response:
            raise ValueError(
                f"a response of {shape.response} tokens cannot be made; it must be a multiple of {SENTENCE}"
            )
        return text


def _one_token_words(model: VisionLanguageModel) -> list[str]:
    """Words of small letters that are one token behind a space."""
    tokenizer = model.processor.tokenizer
    texts = sorted(tokenizer.decode([index]) for index in tokenizer.get_vocab().values())
    words = [text[1:] for text in texts if re.fullmatch(" [a-z]{2,}", text)]
    return [word for word in words if len(model.encoder.text(f" {word}")) == 1]


def _compute_features_once(model) -> None:
    """Lets the vision tower see each batch of pictures once: what is measured is what comes behind it."""
    compute, known = model.get_image_features, {}

    def get_image_features(pixel_values, image_grid_thw, **kwargs):
        key = tuple(map(tuple, image_grid_thw.tolist()))  # there is only one picture, so its copies tell batches apart
        if key not in known:
            known[key] = compute(pixel_values, image_grid_thw, **kwargs)
        return known[key]

    model.get_image_features = get_image_features
