"""Sampling a policy of transformers: examples become prompts, prompts become responses.

In: a policy, and examples. Out: (response, finish reason) of each, in batches as they are given, or token ids and their
log-probabilities; the random numbers are torch's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ..verifier.model import VisionLanguageModel
from ..verifier.schema import Example
from ..verifier.tables import load_image
from .policy_prompt import PolicyPrompt


@dataclass(frozen=True)
class Prompt:
    """One example for a policy: token ids, and the patches (patches, patch size) and grid (images, 3) of its images."""

    ids: list[int]
    pixels: torch.Tensor | None = None
    grid: torch.Tensor | None = None


class Sampler:
    """Samples a policy of transformers, at most `max_new_tokens` a response."""

    def __init__(self, policy: VisionLanguageModel, max_new_tokens: int):
        self.policy, self.max_new_tokens = policy, max_new_tokens
        self._builder = PolicyPrompt(policy.processor, policy.encoder, policy.context)
        self._last: tuple[Example, Prompt] | None = None
        policy.model.eval()

    def prompt(self, example: Example) -> Prompt:
        """Raises InputError where an image cannot be read or the prompt and the new tokens do not fit the context."""
        if self._last is None or self._last[0] is not example:  # the samples of an example come one after another
            pixels, grid, counts = None, None, []
            if example.images:
                process = self.policy.processor.image_processor
                features = process(images=[load_image(image) for image in example.images], return_tensors="pt")
                pixels, grid = features["pixel_values"], features["image_grid_thw"]
                counts = (grid.prod(dim=1) // process.merge_size**2).tolist()
            ids = self._builder.ids(example, counts)
            self._builder.check_length(example, len(ids), self.max_new_tokens)
            self._last = example, Prompt(ids, pixels, grid)
        return self._last[1]

    def generate(self, prompts: Sequence[Prompt], temperature: float) -> list[tuple[str, str]]:
        """(response, finish reason) of each prompt; temperature 0 is greedy."""
        tokenizer = self.policy.processor.tokenizer
        rows = self.generate_ids(prompts, temperature)
        texts = tokenizer.batch_decode(rows, skip_special_tokens=True)
        ended = [tokenizer.eos_token_id in row for row in rows]
        return [(text, "stop" if end else "length") for text, end in zip(texts, ended, strict=True)]

    @torch.inference_mode()
    def generate_ids(
        self, prompts: Sequence[Prompt], temperature: float, suppress: Sequence[int] = ()
    ) -> list[list[int]]:
        """The tokens of each prompt's response, its end of sequence included where it came to one; none of `suppress`."""
        tokenizer = self.policy.processor.tokenizer
        plain = {"temperature": temperature, "top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0}  # no checkpoint's own
        out = self.policy.model.generate(
            **self._batch(prompts),
            max_new_tokens=self.max_new_tokens,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            suppress_tokens=list(suppress) or None,
            **({"do_sample": True, **plain} if temperature else {"do_sample": False, "repetition_penalty": 1.0}),
        )
        rows = out[:, max(len(prompt.ids) for prompt in prompts) :].tolist()
        end = tokenizer.eos_token_id
        return [row[: row.index(end) + 1] if end in row else row for row in rows]

    @torch.inference_mode()
    def log_probs(self, prompts: Sequence[Prompt], responses: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """The log-probability of each token of the given responses, (T,) each, at temperature 1."""
        whole = [replace(prompt, ids=[*prompt.ids, *ids]) for prompt, ids in zip(prompts, responses, strict=True)]
        inputs = self._batch(whole)  # padded on the left: a response ends where its row ends
        logp = self.policy.model(**inputs).logits[:, :-1].float().log_softmax(-1)
        logp_bt = logp.gather(-1, inputs["input_ids"][:, 1:, None]).squeeze(-1)
        return [row[len(row) - len(ids) :] for row, ids in zip(logp_bt, responses, strict=True)]

    def _batch(self, prompts: Sequence[Prompt]) -> dict[str, torch.Tensor]:
        """The model's inputs, padded on the left."""
        width = max(len(prompt.ids) for prompt in prompts)
        gaps = [width - len(prompt.ids) for prompt in prompts]
        ids = torch.tensor([[self.policy.pad_id] * gap + p.ids for gap, p in zip(gaps, prompts, strict=True)])
        inputs = {
            "input_ids": ids,
            "attention_mask": torch.tensor([[0] * gap + [1] * (width - gap) for gap in gaps]),
            "mm_token_type_ids": (ids == self.policy.encoder.image_id).long(),
        }
        with_images = [(p.pixels, p.grid) for p in prompts if p.pixels is not None and p.grid is not None]
        if with_images:
            pixels, grids = zip(*with_images, strict=True)
            inputs |= {"pixel_values": torch.cat(pixels), "image_grid_thw": torch.cat(grids)}
        return {name: value.to(self.policy.backbone.device) for name, value in inputs.items()}
