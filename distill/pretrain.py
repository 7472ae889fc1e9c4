"""The tasks from which the digits world's base learns, from scratch.

In: the training digits, moved and turned a little. Out: batches of trees with what should be written behind them:
answers to questions, glances and probes (which digit stands where, which sentence reads it), and claims about pictures
and responses, worded otherwise than the verifier's criteria and under another system text.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from PIL import Image

from ..verifier import prompt
from ..verifier.model import VisionLanguageModel
from ..verifier.schema import Criterion, Example
from ..verifier.sentences import label_of, split_sentences
from ..verifier.tree import Tree
from . import digits
from .edits import counterfactual
from .grids import TWO, Grid
from .loss import Target
from .tiny import CHAT_TEMPLATE, CLAIMS, SYSTEM

SLIP = 0.3  # conclusions that do not follow, answers that do not repeat: half of what a judge of reasoning must tell


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
    mistaken: Mapping[int, int] = field(default_factory=dict)  # what a digit is then read as; the others as any
    readings: int = 0  # glances in the words of the answers


def count(stages: Sequence[Stage]) -> int:
    """Steps of all of them."""
    return sum(stage.steps for stage in stages)


def shaken(rng: random.Random, index: int) -> Image.Image:
    """A training digit turned, scaled and moved a little, so that 1,197 of them teach more than themselves."""
    size = max(20, round(digits.SIDE * rng.uniform(0.85, 1.1)))
    digit = digits.digit_image(index).resize((size, size), Image.Resampling.BICUBIC)
    digit = digit.rotate(rng.uniform(-12, 12), Image.Resampling.BILINEAR)
    canvas = Image.new("L", (digits.SIDE, digits.SIDE))
    offset = (digits.SIDE - size) // 2
    canvas.paste(digit, (offset + rng.randint(-2, 2), offset + rng.randint(-2, 2)))
    return canvas


def shaken_example(rng: random.Random, part: str, grid: Grid = TWO) -> Example:
    """A picture and a question; the digits are shaken where they are for training."""
    indices = digits.draw_indices(rng, part, len(grid.positions))
    truth = digits.labels_of(indices)
    draw = partial(shaken, rng) if part == "train" else digits.digit_image
    image = digits.picture([draw(index) for index in indices])
    question = rng.choice(digits.QUESTIONS).format(line=rng.choice(list(grid.lines)))
    return Example(f"pretrain-{''.join(map(str, truth))}", question, (), (image,))


def answer_task(
    model: VisionLanguageModel,
    rng: random.Random,
    misread: float = 0.0,
    grid: Grid = TWO,
    mistaken: Mapping[int, int] | None = None,
) -> tuple[Tree, list[Target]]:
    """Question and picture to a response; a share of the digits is read wrong, as `mistaken` says or as any other, and
    the mistake carried through."""
    example, mistaken = shaken_example(rng, "train", grid), mistaken or {}
    told = [
        (mistaken[d] if d in mistaken else digits.other_digit(rng, d)) if rng.random() < misread else d
        for d in digits.truth_of(example)
    ]
    response = digits.respond(rng, told, digits.asked_line(example.question))
    tokenizer = model.processor.tokenizer
    content = [{"type": "image"}, {"type": "text", "text": example.question}]
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": content}],
        chat_template=CHAT_TEMPLATE,
        tokenize=False,
        add_generation_prompt=True,
    )
    picture = model.picture(example.images[0])
    text = text.replace(prompt.IMAGE, prompt.IMAGE * int(picture.grid.prod() // 4))
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    target = [*tokenizer(response, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    return Tree(ids[:-1], [ids[-1:]], picture.pixels, picture.grid), [Target([*target, target[-1]], 0.5, 0.0)]


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


def _digit_by_digit(said: digits.Said, named: bool = False) -> list[tuple[str, list[str]]]:
    """The first and the second digit of the conclusion and of the answer: does it follow from what was read, or repeat
    what was concluded? `named` asks as well what it is, without which comparing them was hardly learned."""
    if said.conclusion is None:
        return []
    line, concluded, _ = said.conclusion
    read = [said.reads.get(place, (None, None))[0] for place in digits.LINES[line]]
    probes = [(f" conclusion {i + 1}", [_yes(read[i] == concluded[i])]) for i in range(2)]
    probes += [(f" digit conclusion {i + 1}", [_stated(concluded[i])]) for i in range(2 * named)]
    if said.answer is not None and len(said.answer[0]) == 2:
        probes += [(f" answer {i + 1}", [_yes(said.answer[0][i] == concluded[i])]) for i in range(2)]
        probes += [(f" digit answer {i + 1}", [_stated(said.answer[0][i])]) for i in range(2 * named)]
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


def glance_task(
    model: VisionLanguageModel, rng: random.Random, grid: Grid = TWO, worded: bool = False
) -> tuple[Tree, list[Target]]:
    """A picture alone, and which digit it shows at each place: thirty tokens for four digits, so many are seen. `worded`
    asks in the words of the answers, of which a digit is every eighth token, so that seeing is learned in them sooner."""
    example, encoder = shaken_example(rng, "train", grid), model.encoder
    picture = model.picture(example.images[0])
    images = [encoder.image_id] * int(picture.grid.prod() // 4)
    prefix = [encoder.special(prompt.VISION_START), *images, encoder.special(prompt.VISION_END)]
    asked = [_opening(rng, name) if worded else f" digit {name}" for name in grid.positions]
    branches = [encoder.text(text) for text in asked]
    shown = [encoder.text(f" {digit}")[0] for digit in digits.truth_of(example)]
    return Tree(prefix, branches, picture.pixels, picture.grid), [Target([token, token], 0.5, 0.0) for token in shown]


def _opening(rng: random.Random, place: str) -> str:
    """A sentence that reads a digit, up to the digit; most sentences of an answer stand behind another."""
    return " " + rng.choice(digits.READS).format(place=place, digit="").removesuffix(" .")


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
    probes = _digit_by_digit(digits.understand(response), named=True)
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


def batches(model: VisionLanguageModel, seed: int, stages: Sequence[Stage], grid: Grid = TWO) -> Iterator[list[list]]:
    """Steps of up to seven batches of (tree, targets): answers are short, trees of claims are long. Glances and answers
    alone know another grid than 2x2."""
    rng = random.Random(seed)
    for stage in stages:
        for _ in range(stage.steps):
            glances = [glance_task(model, rng, grid) for _ in range(stage.glances)]
            readings = [glance_task(model, rng, grid, worded=True) for _ in range(stage.readings)]
            answers = [answer_task(model, rng, stage.misread, grid, stage.mistaken) for _ in range(stage.answers)]
            claims = [
                claim_task(model, rng, stage.branches, stage.image_share, stage.hard) for _ in range(stage.claims)
            ]
            probes = [probe_task(model, rng, stage.comparing, stage.hard) for _ in range(stage.probes)]
            reasoning = [claim_task(model, rng, 2, 0.5, True) for _ in range(stage.reasoning)]
            stepwise = [stepwise_task(model, rng) for _ in range(stage.stepwise)]
            yield [batch for batch in (glances, readings, answers, probes, claims, reasoning, stepwise) if batch]
