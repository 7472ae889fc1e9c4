"""Responses of a policy to examples, and counterfactual, truncated and empty ones beside them.

In: a policy and examples. Out: rollout rows; each edited one says in `edit` what was changed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import torch
from tqdm import tqdm

from ..verifier.model import VisionLanguageModel
from ..verifier.schema import Example, Rollout
from ..verifier.tables import load_image
from .edits import EDITS, counterfactual


@torch.inference_mode()
def sample(
    policy: VisionLanguageModel,
    examples: Sequence[Example],
    samples: int,
    temperature: float = 1.0,
    max_new_tokens: int = 1024,
    seed: int = 0,
    batch_size: int = 64,
    name: str = "policy",
) -> list[Rollout]:
    """`samples` responses per example, in the order of the examples; the same seed gives the same rollouts."""
    torch.manual_seed(seed)
    policy.model.eval()
    wanted = [(example, index) for example in examples for index in range(samples)]
    rollouts: list[Rollout] = []
    with tqdm(total=len(wanted), desc=f"sampling {name}", unit="response") as bar:
        for first in range(0, len(wanted), batch_size):
            batch = wanted[first : first + batch_size]
            texts = _generate(policy, [example for example, _ in batch], temperature, max_new_tokens)
            for (example, index), (text, finish) in zip(batch, texts, strict=True):
                identity = f"{example.example_id}/{name}-{index}"
                rollouts.append(Rollout(identity, example.example_id, text, name, index, finish))
            bar.update(len(batch))
    return rollouts


def _generate(policy: VisionLanguageModel, examples, temperature: float, limit: int) -> list[tuple[str, str]]:
    """(response, finish reason) of each example."""
    tokenizer = policy.processor.tokenizer
    conversations = [
        [{"role": "user", "content": [*_images(e), {"type": "text", "text": e.question}]}] for e in examples
    ]
    inputs = policy.processor.apply_chat_template(
        conversations,
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        processor_kwargs={"return_tensors": "pt", "padding": True},
    ).to(policy.backbone.device)
    settings = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature else {}
    out = policy.model.generate(
        **inputs,
        max_new_tokens=limit,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **(settings or {"do_sample": False}),
    )
    rows = out[:, inputs["input_ids"].shape[1] :].tolist()
    ended = [tokenizer.eos_token_id in row for row in rows]
    texts = tokenizer.batch_decode(rows, skip_special_tokens=True)
    return [(text, "stop" if end else "length") for text, end in zip(texts, ended, strict=True)]


def _images(example: Example) -> list[dict]:
    return [{"type": "image", "image": load_image(image)} for image in example.images]


def references(examples: Sequence[Example]) -> list[Rollout]:
    """The reference responses as rollouts, where there are any."""
    return [
        Rollout(f"{e.example_id}/reference", e.example_id, e.reference, "reference", 0, "stop")
        for e in examples
        if e.reference
    ]


def with_edits(rollouts: Sequence[Rollout], per_rollout: int, empty_share: float, seed: int) -> Iterator[Rollout]:
    """Counterfactuals of the given rollouts (number, relation, negation, swap, dropped sentence, truncation), and an
    empty response for a share of them."""
    rng = random.Random(f"edits-{seed}")
    for rollout in rollouts:
        for index in range(per_rollout):
            edited = (
                ("", "empty") if rng.random() < empty_share else counterfactual(rng, rollout.response, tuple(EDITS))
            )
            if edited is not None:
                yield edited_rollout(rollout, *edited, index)


def edited_rollout(rollout: Rollout, text: str, edit: str, index: int) -> Rollout:
    identity = f"{rollout.rollout_id}/{edit}-{index}"
    return Rollout(
        identity, rollout.example_id, text, rollout.policy, rollout.sample_index, rollout.finish_reason, edit
    )
