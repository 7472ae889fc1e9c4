"""The orders in which a verifier can write what it has to say of a criterion, for the study of what the order does.

    verdict    verdict, label of the deciding sentence
    label      label, verdict
    reading    label, what the image shows, verdict: the order of the product
    quote      the deciding sentence word for word, verdict

In: digits examples with responses. Out: trees with the targets of one order, and what a model writes in that order.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from ..verifier.align import align
from ..verifier.model import VisionLanguageModel
from ..verifier.packed import Answer, Decoder, answer_trees, judge_branches, pick_labels, read_on
from ..verifier.prompt import NO_SENTENCE, SYSTEM, PromptEncoder
from ..verifier.schema import Example, Mode
from ..verifier.sentences import LABELS, label_of, split_sentences, trim
from ..verifier.shared_prefix import nothing_yet
from ..verifier.tree import Tree
from . import digits
from .edits import counterfactual
from .loss import Target
from .pretrain import SLIP, shaken

ORDERS = ("verdict", "label", "reading", "quote")
MAX_QUOTE_TOKENS = 24  # the longest sentence of the world has 12
Span = tuple[int, int] | None


@dataclass(frozen=True)
class Written:
    """A verdict, the deciding sentence (None: none), and the number of tokens written for them."""

    verdict: bool
    span: Span
    tokens: int


def draw_pair(rng: random.Random, part: str, number: int) -> tuple[Example, str]:
    """A picture with its rubric, one criterion in five wrong, and a response that is right, wrong or edited."""
    draw = partial(shaken, rng) if part == "train" else digits.digit_image
    example = digits.make_example(rng, part, number, draw=draw)
    truth, line = digits.truth_of(example), digits.asked_line(example.question)
    told = [digits.other_digit(rng, d) if rng.random() < 0.3 else d for d in truth]
    response = digits.respond(rng, told, line, slip=SLIP)
    if rng.random() < 0.3:
        response = digits.assert_criterion(rng, example, response)
    if rng.random() < 0.4:
        response = (counterfactual(rng, response) or (response,))[0]
    return example, response


def tree_of(model: VisionLanguageModel, example: Example, response: str, mode: Mode = "image") -> Tree:
    """The product's prompt, whatever the order."""
    branches = [model.encoder.branch(criterion.text) for criterion in example.criteria]
    return model.tree(example, response, branches, mode, SYSTEM[mode])


def targets_of(
    encoder: PromptEncoder, example: Example, response: str, order: str, mode: Mode = "image"
) -> list[Target]:
    truth = digits.truth_of(example)
    golds = [digits.gold(criterion, response, truth) for criterion in example.criteria]
    return [_target(encoder, response, gold, order, mode) for gold in golds]


def _target(encoder: PromptEncoder, response: str, gold: digits.Gold, order: str, mode: Mode) -> Target:
    label, met = label_of(split_sentences(response), gold.span), digits.verdict_of(gold, mode)
    verdict = encoder.yes_id if met else encoder.no_id
    if order == "verdict":
        return Target([verdict, encoder.label_ids[label]], float(met), verdict_at=0)
    if order == "quote":
        quote = encoder.text(" " + response[slice(*gold.span)]) if gold.span else []
        return Target([*quote, encoder.reading_end_id, verdict], float(met))
    reading = (gold.reading or "") if (order, mode) == ("reading", "image") else None
    return Target(encoder.target(label, reading, met), float(met))


@torch.inference_mode()
def write(model: VisionLanguageModel, pairs: Sequence[tuple[Example, str]], order: str) -> list[list[Written]]:
    """What the model writes of every criterion of each response, greedily."""
    model.model.eval()
    trees = [tree_of(model, *pair) for pair in pairs]
    spans = [split_sentences(response) for _, response in pairs]
    allowed = [[model.encoder.label_ids[s] for s in (NO_SENTENCE, *LABELS[: len(row)])] for row in spans]
    rows = _answers(model, trees, allowed, order)
    return [
        [_written(model, order, answer, response) for answer in row]
        for row, (_, response) in zip(rows, pairs, strict=True)
    ]


def _answers(model: VisionLanguageModel, trees: Sequence[Tree], allowed, order: str) -> list[list[Answer]]:
    if order in ("label", "reading"):
        return answer_trees(model, trees, allowed, readings=order == "reading")
    count = max(len(tree.branches) for tree in trees)
    room = max(map(len, trees)) + (MAX_QUOTE_TOKENS + 2) * count
    decoder = Decoder(model, trees, nothing_yet(model, len(trees), room))
    answers = [[Answer(-1) for _ in tree.branches] for tree in trees]
    logits = decoder.open()
    if order == "quote":
        read_on(decoder, logits, answers, model.encoder.reading_end_id, MAX_QUOTE_TOKENS)
        return answers
    judge_branches(decoder, logits, [(b, k) for b, row in enumerate(answers) for k in range(len(row))], answers)
    verdicts = torch.full((len(trees), count), model.encoder.no_id)
    for b, row in enumerate(answers):
        for k, answer in enumerate(row):
            verdicts[b, k] = model.encoder.yes_id if answer.margin > 0 else model.encoder.no_id
    labels = pick_labels(decoder.feed(verdicts), allowed).tolist()
    return [[Answer(labels[b][k], [], a.margin) for k, a in enumerate(row)] for b, row in enumerate(answers)]


def _written(model: VisionLanguageModel, order: str, answer: Answer, response: str) -> Written:
    if order == "quote":
        quote = model.processor.tokenizer.decode(answer.reading_ids)
        found = align(response, quote)
        ends = found.sentence_start, found.sentence_end
        span = None if ends[0] is None or ends[1] is None else (ends[0], ends[1])
        return Written(answer.margin > 0, span, len(answer.reading_ids) + 2)
    tokens = 2 + (len(answer.reading_ids) + 1 if order == "reading" else 0)
    return Written(answer.margin > 0, _sentence(model.encoder, answer.label_id, response), tokens)


def _sentence(encoder: PromptEncoder, label_id: int, response: str) -> Span:
    sentences = split_sentences(response)
    for label, (start, end) in zip(LABELS, sentences, strict=False):
        if encoder.label_ids[label] == label_id:
            return trim(response, (start, end))
    return None
