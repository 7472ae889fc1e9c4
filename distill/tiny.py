"""The digits world's tiny models: byte-level BPE on its own words, and transformers' own Qwen3-VL in small.

In: sizes. Out: tokenizer, processor, and a model with starting values from which it soon learns.
"""

from __future__ import annotations

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3VLConfig, Qwen3VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from ..verifier import prompt
from ..verifier.processor import ImageOnlyQwen3VLProcessor
from ..verifier.sentences import LABELS
from . import digits
from .grids import TWO, Grid

SPECIAL = ["<|endoftext|>", prompt.TURN, prompt.END, prompt.VISION_START, prompt.VISION_END, prompt.IMAGE]
SPECIAL += ["<|video_pad|>", prompt.LABEL_MARK]
# Words with their leading space and their hyphens ("top-left" is one token), single figures, signs.
WORDS = r" ?\p{L}+(?:-\p{L}+)*| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CHAT_TEMPLATE = """{%- for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}
{%- if message.content is string %}{{ message.content }}{%- else %}{%- for part in message.content %}
{%- if part.type == 'image' %}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}
{%- elif part.type == 'text' %}{{ part.text }}{%- endif %}{%- endfor %}{%- endif %}{{ '<|im_end|>\n' }}
{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- endif %}"""
SYSTEM = "Check the claim."
CLAIMS = {  # the same kinds of claim as the world's criteria, in other words
    "read": ("It says that the {place} is {digit}.", "The {place} is given as {digit}."),
    "pitfall": ("Wrongly says that the {place} is {digit}.",),
    "follows": ("Its conclusion agrees with its digits.",),
    "repeats": ("The answer repeats what it concluded.",),
    "two digits": ("There are two digits in the answer.",),
    "line": ("It concludes about the {line}.",),
    "shows": ("The picture shows a {digit} at the {place}.",),
}


def build_tokenizer(grid: Grid = TWO) -> PreTrainedTokenizerFast:
    """Byte-level BPE on the world's own words; every word, digit, label and verdict is one token."""
    words = [f" {label}" for label in (*LABELS, prompt.NO_SENTENCE)] + [prompt.YES, prompt.NO, prompt.READING_END]
    words += [f" {digit}" for digit in range(10)]
    wordings = [*digits.READS, *digits.CONCLUSIONS, *digits.QUESTIONS, digits.NEGATION, digits.ANSWER, SYSTEM]
    wordings += [text for claims in (*digits.CLAIMS.values(), *CLAIMS.values()) for text in claims]
    wordings += [*prompt.SYSTEM.values(), prompt.QUESTION, prompt.RESPONSE, prompt.CRITERION, "system\n", "user\n"]
    lines = [*grid.lines, *grid.positions, "assistant\n", "It is right. The image, for the digit, reads."]
    text = [w.format(place="top-left", line="top row", digit=3, figures="1 2") for w in wordings]
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(WORDS), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1024, special_tokens=SPECIAL, initial_alphabet=alphabet)
    tokenizer.train_from_iterator([*text * 2, *[f" {line}" for line in (*text, *lines)] * 2, *words * 2], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=prompt.END,
        pad_token="<|endoftext|>",
        additional_special_tokens=SPECIAL[1:],
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def build_processor(grid: Grid = TWO) -> ImageOnlyQwen3VLProcessor:
    """One visual token per digit: a picture of 64 x 64 pixels becomes four, one of 96 x 96 nine."""
    area = (grid.side * digits.SIDE) ** 2
    pixels = {"shortest_edge": area, "longest_edge": area}
    images = Qwen2VLImageProcessorPil(size=pixels, patch_size=16, merge_size=2, temporal_patch_size=2)
    return ImageOnlyQwen3VLProcessor(images, build_tokenizer(grid), chat_template=CHAT_TEMPLATE)


def build_model(processor, hidden: int, layers: int, init: float, grid: Grid = TWO) -> Qwen3VLForConditionalGeneration:
    """Transformers' own Qwen3-VL, tiny: head size 32 (which vLLM serves), tied embeddings, one vision block."""
    token = processor.tokenizer.convert_tokens_to_ids
    text = {
        "vocab_size": len(processor.tokenizer), "hidden_size": hidden, "intermediate_size": 3 * hidden,
        "num_hidden_layers": layers, "num_attention_heads": hidden // 32, "num_key_value_heads": hidden // 32,
        "head_dim": 32, "max_position_embeddings": 4096, "tie_word_embeddings": True, "initializer_range": init,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [6, 5, 5],
                            "mrope_interleaved": True},
        "bos_token_id": None, "eos_token_id": token(prompt.END), "pad_token_id": token("<|endoftext|>"),
    }  # fmt: skip
    vision = {
        "depth": 1, "hidden_size": 64, "intermediate_size": 128, "num_heads": 2, "patch_size": 16,
        "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": hidden,
        "num_position_embeddings": (2 * grid.side) ** 2,  # one for each patch
        "deepstack_visual_indexes": [0], "initializer_range": init,
    }  # fmt: skip
    config = Qwen3VLConfig(
        text_config=text,
        vision_config=vision,
        tie_word_embeddings=True,
        image_token_id=token(prompt.IMAGE),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token(prompt.VISION_START),
        vision_end_token_id=token(prompt.VISION_END),
    )
    config.initializer_range = init
    model = Qwen3VLForConditionalGeneration(config)
    _start_well(model)
    return model


@torch.no_grad()
def _start_well(model: Qwen3VLForConditionalGeneration) -> None:
    """Starting values under which so small a model soon learns where to look: a patch and its place equally loud,
    tokens louder than what the first layers make of them, and attention sharp enough to single out one key in
    hundreds (queries and keys are normalised, so its logits cannot exceed the square root of the head size)."""
    torch.nn.init.normal_(model.model.visual.pos_embed.weight, std=1.0)
    torch.nn.init.normal_(model.model.visual.patch_embed.proj.weight, std=0.02)
    torch.nn.init.normal_(model.model.language_model.embed_tokens.weight, std=0.15)
    for name, weight in model.model.language_model.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            torch.nn.init.normal_(weight, std=0.02)
        elif name.endswith(("q_norm.weight", "k_norm.weight")):
            weight.fill_(1.5)


@torch.no_grad()
def deepen(model: Qwen3VLForConditionalGeneration, lower: Qwen3VLForConditionalGeneration) -> None:
    """The weights of `lower` in a model with more layers, of which the further ones start as the identity."""
    model.load_state_dict(lower.state_dict(), strict=False)
    for layer in model.model.language_model.layers[len(lower.model.language_model.layers) :]:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()


def is_lower(name: str) -> bool:
    """Is it a parameter that a deepened base had before?"""
    return not name.startswith(("model.language_model.layers.4.", "model.language_model.layers.5."))


def parameters(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())
