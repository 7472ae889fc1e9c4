"""How the digits world's tiny models come to be: tokenizer, architecture, and the tasks that a base learns from scratch.

In: the training digits, moved and turned a little. Out: a Qwen3-VL of about a million parameters that answers questions
about pictures and checks claims about pictures and responses, worded otherwise than the verifier's criteria and under
another system text. `python -m claimwise.scripts.make_digits` runs it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from PIL import Image
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3VLConfig, Qwen3VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from ..verifier import prompt
from ..verifier.model import VisionLanguageModel
from ..verifier.processor import ImageOnlyQwen3VLProcessor
from ..verifier.schema import Criterion, Example
from ..verifier.sentences import LABELS, label_of, split_sentences
from ..verifier.tree import Tree
from . import digits
from .edits import counterfactual
from .loss import Target

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
SLIP = 0.3  # conclusions that do not follow, answers that do not repeat: half of what a judge of reasoning must tell
CLAIMS = {  # the same kinds of claim as the world's criteria, in other words
    "read": ("It says that the {place} is {digit}.", "The {place} is given as {digit}."),
    "pitfall": ("Wrongly says that the {place} is {digit}.",),
    "follows": ("Its conclusion agrees with its digits.",),
    "repeats": ("The answer repeats what it concluded.",),
    "two digits": ("There are two digits in the answer.",),
    "line": ("It concludes about the {line}.",),
    "shows": ("The picture shows a {digit} at the {place}.",),
}


@dataclass(frozen=True)
class Stage:
    """So many steps with so many glances, answers, trees of probes and trees of claims in each."""

    steps: int
    glances: int
    answers: int
    probes: int
    claims: int
    branches: int = 9
    image_share: float = 0.6
    comparing: bool = True  # do the probes compare, or only look up
    hard: bool = False  # more of the claims that take longest: pitfalls, and reasoning step by step
    reasoning: int = 0  # trees with the two claims about reasoning alone
    stepwise: int = 0  # the same, with the digits asked one by one beside them
    misread: float = 0.0  # share of the digits that the answers read wrong


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE on the world's own words; every word, digit, label and verdict is one token."""
    words = [f" {label}" for label in (*LABELS, prompt.NO_SENTENCE)] + [prompt.YES, prompt.NO, prompt.READING_END]
    words += [f" {digit}" for digit in range(10)]
    wordings = [*digits.READS, *digits.CONCLUSIONS, *digits.QUESTIONS, digits.NEGATION, digits.ANSWER, SYSTEM]
    wordings += [text for claims in (*digits.CLAIMS.values(), *CLAIMS.values()) for text in claims]
    wordings += [*prompt.SYSTEM.values(), prompt.QUESTION, prompt.RESPONSE, prompt.CRITERION, "system\n", "user\n"]
    lines = [*digits.LINES, *digits.POSITIONS, "assistant\n", "It is right. The image, for the digit, reads."]
    text = [w.format(place="top-left", line="top row", digit=3, first=1, second=2) for w in wordings]
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


def build_processor() -> ImageOnlyQwen3VLProcessor:
    """A picture of 64 x 64 pixels becomes four visual tokens, one per digit."""
    pixels = {"shortest_edge": 64 * 64, "longest_edge": 64 * 64}
    images = Qwen2VLImageProcessorPil(size=pixels, patch_size=16, merge_size=2, temporal_patch_size=2)
    return ImageOnlyQwen3VLProcessor(images, build_tokenizer(), chat_template=CHAT_TEMPLATE)


def build_model(processor, hidden: int, layers: int, init: float) -> Qwen3VLForConditionalGeneration:
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
        "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": hidden, "num_position_embeddings": 16,
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


def shaken(rng: random.Random, index: int) -> Image.Image:
    """A training digit turned, scaled and moved a little, so that 1,197 of them teach more than themselves."""
    size = max(20, round(digits.SIDE * rng.uniform(0.85, 1.1)))
    digit = digits.digit_image(index).resize((size, size), Image.Resampling.BICUBIC)
    digit = digit.rotate(rng.uniform(-12, 12), Image.Resampling.BILINEAR)
    canvas = Image.new("L", (digits.SIDE, digits.SIDE))
    offset = (digits.SIDE - size) // 2
    canvas.paste(digit, (offset + rng.randint(-2, 2), offset + rng.randint(-2, 2)))
    return canvas


def shaken_example(rng: random.Random, part: str) -> Example:
    """A picture and a question; the digits are shaken where they are for training."""
    indices = digits.draw_indices(rng, part)
    truth = digits.labels_of(indices)
    draw = partial(shaken, rng) if part == "train" else digits.digit_image
    image = digits.picture([draw(index) for index in indices])
    question = rng.choice(digits.QUESTIONS).format(line=rng.choice(list(digits.LINES)))
    return Example(f"pretrain-{''.join(map(str, truth))}", question, (), (image,))


def answer_task(model: VisionLanguageModel, rng: random.Random, misread: float = 0.0) -> tuple[Tree, list[Target]]:
    """Question and picture to a response; a share of the digits is read wrong, and the mistake carried through."""
    example = shaken_example(rng, "train")
    told = [digits.other_digit(rng, d) if rng.random() < misread else d for d in digits.truth_of(example)]
    response = digits.respond(rng, told, digits.asked_line(example.question))
    tokenizer = model.processor.tokenizer
    content = [{"type": "image"}, {"type": "text", "text": example.question}]
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": content}],
        chat_template=CHAT_TEMPLATE,
        tokenize=False,
        add_generation_prompt=True,
    )
    pixels, grid = model.pixels(example.images)
    text = text.replace(prompt.IMAGE, prompt.IMAGE * int(grid.prod() // 4))
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    target = [*tokenizer(response, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    return Tree(ids[:-1], [ids[-1:]], pixels, grid), [Target([*target, target[-1]], 0.5, 0.0)]


def probe_task(
    model: VisionLanguageModel, rng: random.Random, comparing: bool = True, hard: bool = False
) -> tuple[Tree, list[Target]]:
    """The shortest questions there are, a word or two behind a response: which digit the picture shows at a place,
    which sentence reads it, what that sentence says, what a line then reads, and whether that is so. They teach looking
    up and comparing, on which everything else builds."""
    example = shaken_example(rng, "train")
    truth, line = digits.truth_of(example), digits.asked_line(example.question)
    told = [digits.other_digit(rng, d) if rng.random() < 0.5 else d for d in truth]
    response = digits.respond(rng, told, line, slip=SLIP)
    response = (counterfactual(rng, response) or (response,))[0] if rng.random() < 0.6 else response
    said, sentences = digits.understand(response), split_sentences(response)
    stated = [said.reads.get(place, (None, None)) for place in range(4)]
    probes: list[tuple[str, list[str]]] = []
    for place, name in enumerate(digits.POSITIONS):
        digit, span = stated[place]
        guess = rng.choice((digit, digit, truth[place], rng.randrange(10)))
        guess = truth[place] if guess is None else guess
        probes.append((f" digit {name}", [f" {truth[place]}"]))
        probes.append((f" sentence {name}", [f" {label_of(sentences, span)}"]))
        probes.append((f" response {name}", [_stated(digit)]))
        if comparing:
            probes.append((f" response {name} {guess}", [_yes(digit == guess)]))
            probes.append((f" digit {name} {guess}", [_yes(truth[place] == guess)]))
    return _probe_tree(model, example, response, probes + (_reasoning(rng, response, truth, hard) if comparing else []))


def _reasoning(rng: random.Random, response: str, truth: Sequence[int], hard: bool) -> list[tuple[str, list[str]]]:
    """What each line of the picture reads according to the response, what its conclusion is about, and whether
    conclusion and answer hold."""
    said, probes = digits.understand(response), []
    for name, places in digits.LINES.items():
        pair = [said.reads.get(place, (None, None))[0] for place in places]
        guess = [truth[p] if d is None or rng.random() < 0.3 else d for p, d in zip(places, pair, strict=True)]
        probes.append((f" response {name}", [_stated(digit) for digit in pair]))
        if hard:
            probes.append((f" response {name} {guess[0]}", [_yes(guess[0] == pair[0])]))
        probes.append((f" response {name} {guess[0]} {guess[1]}", [_yes(guess == pair)]))
    for name in digits.LINES:
        about = said.conclusion is not None and said.conclusion[0] == name
        probes.append((f" conclusion {name}", [_yes(about)]))
    for word, kind in ((" conclusion", "follows"), (" answer", "repeats")):
        met = digits.gold(Criterion("c", digits.CLAIMS[kind][0]), response, truth).text
        probes.append((word, [_yes(met)]))
    if hard:
        probes += _digit_by_digit(said)
    return probes


def _digit_by_digit(said: digits.Said) -> list[tuple[str, list[str]]]:
    """Does the first, does the second digit of the conclusion follow from what was read, and of the answer repeat it?"""
    if said.conclusion is None:
        return []
    line, concluded, _ = said.conclusion
    read = [said.reads.get(place, (None, None))[0] for place in digits.LINES[line]]
    probes = [(f" conclusion {i + 1}", [_yes(read[i] == concluded[i])]) for i in range(2)]
    if said.answer is not None and len(said.answer[0]) == 2:
        probes += [(f" answer {i + 1}", [_yes(said.answer[0][i] == concluded[i])]) for i in range(2)]
    return probes


def _probe_tree(model: VisionLanguageModel, example: Example, response: str, probes) -> tuple[Tree, list[Target]]:
    branches = [model.encoder.text(text) for text, _ in probes]
    targets = [[i for text in wanted for i in model.encoder.text(text)] for _, wanted in probes]
    tree = model.tree(example, response, branches, "image", SYSTEM)
    return tree, [Target([*ids, ids[-1]], 0.5, 0.0) for ids in targets]


def _stated(digit: int | None) -> str:
    return f" {prompt.NO_SENTENCE}" if digit is None else f" {digit}"


def _yes(so: bool) -> str:
    return prompt.YES if so else prompt.NO


def glance_task(model: VisionLanguageModel, rng: random.Random) -> tuple[Tree, list[Target]]:
    """A picture alone, and which digit it shows at each place: thirty tokens for four digits, so many are seen."""
    example, encoder = shaken_example(rng, "train"), model.encoder
    pixels, grid = model.pixels(example.images)
    images = [encoder.image_id] * int(grid.prod() // 4)
    prefix = [encoder.special(prompt.VISION_START), *images, encoder.special(prompt.VISION_END)]
    branches = [encoder.text(f" digit {name}") for name in digits.POSITIONS]
    shown = [encoder.text(f" {digit}")[0] for digit in digits.truth_of(example)]
    return Tree(prefix, branches, pixels, grid), [Target([token, token], 0.5, 0.0) for token in shown]


def claim_task(
    model: VisionLanguageModel,
    rng: random.Random,
    branches: int = 9,
    image_share: float = 0.6,
    hard: bool = False,
    part: str = "train",
) -> tuple[Tree, list[Target]]:
    """A response (right, wrong or edited) and claims about it, with or without the picture."""
    example = shaken_example(rng, part)
    truth, line = digits.truth_of(example), digits.asked_line(example.question)
    told = [digits.other_digit(rng, d) if rng.random() < (0.5 if hard else 0.3) else d for d in truth]
    response = digits.respond(rng, told, line, slip=SLIP)
    for _ in range(rng.choice((0, 0, 1, 2))):
        response = (counterfactual(rng, response) or (response,))[0]
    mode = "image" if rng.random() < image_share else "text"
    texts, targets = [], []
    for kind in _kinds(rng, mode, branches, hard):
        text, target = _claim(model, rng, kind, response, told, truth, line, mode)
        texts.append(model.encoder.branch(text))
        targets.append(target)
    return model.tree(example, response, texts, mode, SYSTEM), targets


def stepwise_task(model: VisionLanguageModel, rng: random.Random) -> tuple[Tree, list[Target]]:
    """A response, the two claims about its reasoning, and what they come down to: each digit by itself."""
    example = shaken_example(rng, "train")
    truth, line = digits.truth_of(example), digits.asked_line(example.question)
    told = [digits.other_digit(rng, d) if rng.random() < 0.5 else d for d in truth]
    response = digits.respond(rng, told, line, slip=0.45)
    response = (counterfactual(rng, response) or (response,))[0] if rng.random() < 0.2 else response
    mode = "image" if rng.random() < 0.3 else "text"
    claims = [_claim(model, rng, kind, response, told, truth, line, mode) for kind in ("follows", "repeats")]
    probes = _digit_by_digit(digits.understand(response))
    branches = [model.encoder.branch(text) for text, _ in claims] + [model.encoder.text(text) for text, _ in probes]
    targets = [Target(target.ids, target.p_yes, len(claims + probes) / 2, target.kind) for _, target in claims]
    for _, wanted in probes:
        ids = [i for text in wanted for i in model.encoder.text(text)]
        targets.append(Target([*ids, ids[-1]], 0.5, 0.0))
    return model.tree(example, response, branches, mode, SYSTEM), targets


def _kinds(rng: random.Random, mode: str, count: int, hard: bool) -> list[str]:
    other = rng.choice(("line", "line", "two digits"))
    kinds = ["follows", "repeats", *["pitfall"] * (1 + hard), other, "read", "read"]
    if mode == "image":
        kinds.append("shows")
    return (kinds + rng.choices(["read", "read", "pitfall"], k=max(0, count - len(kinds))))[:count]


def _claim(model, rng, kind: str, response: str, told, truth, line: str, mode) -> tuple[str, Target]:
    place = rng.randrange(4)
    digit = rng.choice((told[place], told[place], truth[place], digits.other_digit(rng, told[place])))
    line = rng.choice((line, rng.choice(list(digits.LINES))))
    words = {"place": digits.POSITIONS[place], "digit": digit, "line": line}
    if kind == "shows":
        truth_of_claim = digits.Gold(digit == truth[place], digit == truth[place], None, str(truth[place]))
    else:
        criterion = Criterion("c", digits.CLAIMS[kind][0].format(**words))
        truth_of_claim = digits.gold(criterion, response, truth)
    verdict = digits.verdict_of(truth_of_claim, mode)
    label = label_of(split_sentences(response), truth_of_claim.span)
    reading = None if mode == "text" else truth_of_claim.reading or ""
    target = Target(model.encoder.target(label, reading, verdict), float(verdict), kind=kind)
    return rng.choice(CLAIMS[kind]).format(**words), target


def batches(model: VisionLanguageModel, seed: int, stages: Sequence[Stage]) -> Iterator[list[list]]:
    """Steps of up to six batches of (tree, targets): answers are short, trees of claims are long."""
    rng = random.Random(seed)
    for stage in stages:
        for _ in range(stage.steps):
            glances = [glance_task(model, rng) for _ in range(stage.glances)]
            answers = [answer_task(model, rng, stage.misread) for _ in range(stage.answers)]
            claims = [
                claim_task(model, rng, stage.branches, stage.image_share, stage.hard) for _ in range(stage.claims)
            ]
            probes = [probe_task(model, rng, stage.comparing, stage.hard) for _ in range(stage.probes)]
            reasoning = [claim_task(model, rng, 2, 0.5, True) for _ in range(stage.reasoning)]
            stepwise = [stepwise_task(model, rng) for _ in range(stage.stepwise)]
            yield [batch for batch in (glances, answers, probes, claims, reasoning, stepwise) if batch]


def parameters(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())
