"""The embedded world: pictures of four handwritten digits, what is said about them, and what is true.

In: scikit-learn's 1,797 handwritten digits with their human labels. Out: examples (a 2x2 picture, a question, a rubric
with some criteria wrong on purpose), responses in varied wording, and the gold answer to any criterion of any response:
what the text says, what the image allows, the deciding sentence, and what the image shows.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from ..verifier.errors import InputError
from ..verifier.schema import Criterion, Example, Mode
from ..verifier.sentences import split_sentences, trim

POSITIONS = ("top-left", "top-right", "bottom-left", "bottom-right")
LINES = {"top row": (0, 1), "bottom row": (2, 3), "left column": (0, 2), "right column": (1, 3)}
SIDE = 32  # pixels of one digit; a picture has two by two
QUESTIONS = ("What does the {line} read?", "Which digits are in the {line}?")
READS = ("The {place} digit is {digit}.", "At the {place} I see {digit}.", "The digit at the {place} is {digit}.")
NEGATION = "The {place} digit is not {digit}."
CONCLUSIONS = ("So the {line} reads {first} {second}.", "Thus the {line} is {first} {second}.")
ANSWER = "Answer: {first} {second}"
CLAIMS = {  # the wordings of each kind of criterion
    "read": ("States that the {place} digit is {digit}.", "Reads the {place} digit as {digit}."),
    "pitfall": ("Wrongly reads the {place} digit as {digit}.",),
    "follows": ("The conclusion agrees with the digits that were read.",),
    "repeats": ("The final answer repeats the conclusion.",),
    "two digits": ("Gives a final answer of two digits.",),
    "line": ("The conclusion is about the {line}.",),
}
DIMENSION = {"read": "VF", "pitfall": "VF", "follows": "RC", "repeats": "RC", "two digits": "IF", "line": "IF"}

_PLACE, _LINE = "|".join(POSITIONS), "|".join(LINES)
_READ = re.compile(rf"(?i)(?:at )?the (?:digit at the )?({_PLACE})(?: digit)? (?:is|I see) (not )?(\d)\.?\s*$")
_CONCLUSION = re.compile(rf"(?i)(?:so|thus) the ({_LINE}) (?:reads|is) (\d) (\d)\.?\s*$")
_ANSWER = re.compile(r"(?i)answer:((?: \d)*)\s*$")
_PLACED = re.compile(rf"(States|Reads|Wrongly) .*?({_PLACE}) digit (?:is|as) (\d)\.")


class Gold(NamedTuple):
    """The truth about one criterion of one response. `reading` is None where the criterion is not about the image."""

    text: bool
    image: bool
    span: tuple[int, int] | None
    reading: str | None


@dataclass(frozen=True)
class Said:
    """What a response says, each with the interval of the last sentence that says it."""

    reads: dict[int, tuple[int | None, tuple[int, int]]]  # position -> digit (None: a negation), interval
    conclusion: tuple[str, tuple[int, int], tuple[int, int]] | None  # line, digits, interval
    answer: tuple[tuple[int, ...], tuple[int, int]] | None


@cache
def _load() -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_digits

    data: Any = load_digits()
    return (data.images * (255 / 16)).round().astype(np.uint8), data.target


def split_digits(part: str) -> np.ndarray:
    """Indices of the digits of "train" (1,197), "validation" (200) or "test" (400): disjoint, the same for every seed."""
    order = np.random.default_rng(20260).permutation(1797)
    return {"train": order[600:], "validation": order[:200], "test": order[200:600]}[part]


def digit_image(index: int) -> Image.Image:
    return Image.fromarray(_load()[0][index]).resize((SIDE, SIDE), Image.Resampling.BICUBIC)


def picture(digits: Sequence[Image.Image]) -> Image.Image:
    """64 x 64 pixels: top left, top right, bottom left, bottom right."""
    out = Image.new("RGB", (2 * SIDE, 2 * SIDE))
    for i, digit in enumerate(digits):
        out.paste(digit.convert("RGB"), (SIDE * (i % 2), SIDE * (i // 2)))
    return out


def draw_indices(rng: random.Random, part: str) -> list[int]:
    """Four digits, the ten classes equally likely."""
    pool = split_digits(part)
    labels = _load()[1][pool]
    return [int(rng.choice(pool[labels == rng.randrange(10)])) for _ in range(4)]


def labels_of(indices: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(_load()[1][i]) for i in indices)


def read_of(criterion: str) -> tuple[int, int]:
    """The position and the digit that a criterion on reading or a pitfall names."""
    match = _PLACED.match(criterion)
    if match is None:
        raise InputError(f"the criterion {criterion!r} names no place and digit")
    return POSITIONS.index(match[2]), int(match[3])


def assert_criterion(rng: random.Random, example: Example, response: str) -> str:
    """A hard negative: the response reads one digit as a criterion of its rubric says, right or wrong."""
    placed = [match for criterion in example.criteria if (match := _PLACED.match(criterion.text))]
    match = rng.choice(placed)
    sentence = re.compile(rf"(?i)(the (?:digit at the )?{match[2]}(?: digit)? (?:is|I see) )\d")
    return sentence.sub(rf"\g<1>{match[3]}", response)


def other_digit(rng: random.Random, digit: int) -> int:
    return (digit + rng.randrange(1, 10)) % 10


def make_example(rng: random.Random, part: str, number: int, wrong_share: float = 0.2) -> Example:
    """A picture and its rubric: three readings, two on reasoning, one on the instruction, one pitfall. A share of the
    readings and pitfalls is wrong, as a careless annotator's would be; reference and rubric share the mistakes."""
    indices = draw_indices(rng, part)
    truth = labels_of(indices)
    annotator = [other_digit(rng, d) if rng.random() < wrong_share else d for d in truth]
    line = rng.choice(list(LINES))
    asked = LINES[line]
    third, pit = rng.choice([p for p in range(4) if p not in asked]), rng.randrange(4)
    pit_digit = truth[pit] if rng.random() < wrong_share else other_digit(rng, truth[pit])
    kinds = [("read", p, annotator[p]) for p in (*asked, third)]
    kinds += [("follows", 0, 0), ("repeats", 0, 0), (rng.choice(("two digits", "line")), 0, 0)]
    kinds += [("pitfall", pit, pit_digit)]
    criteria = tuple(_criterion(rng, f"c{j}", *kind, line, asked) for j, kind in enumerate(kinds, start=1))
    first, second = (truth[p] for p in asked)
    return Example(
        example_id=f"digits-{part}-{number:05d}-{''.join(map(str, truth))}",
        question=rng.choice(QUESTIONS).format(line=line),
        criteria=criteria,
        images=(picture([digit_image(i) for i in indices]),),
        reference=respond(rng, annotator, line),
        answer=f"{first} {second}",
        source="digits",
    )


def _criterion(rng, name: str, kind: str, place: int, digit: int, line: str, asked) -> Criterion:
    text = rng.choice(CLAIMS[kind]).format(place=POSITIONS[place], digit=digit, line=line)
    label, weight = {"pitfall": ("PITFALL", -3), "repeats": ("IMPORTANT", 3), "follows": ("ESSENTIAL", 5)}.get(
        kind, ("OPTIONAL", 2)
    )
    if kind == "read":
        label, weight = ("ESSENTIAL", 5) if place in asked else ("IMPORTANT", 4)
    return Criterion(name, text, kind, DIMENSION[kind], label, float(weight))


def truth_of(example: Example) -> tuple[int, ...]:
    """The human labels of an example's four digits: the last part of its id, which no model is shown."""
    figures = example.example_id.rpartition("-")[2]
    if len(figures) != 4 or not figures.isdecimal():
        raise InputError(f"example {example.example_id!r} is not of the digits world, so the oracle cannot judge it")
    return tuple(map(int, figures))


def asked_line(question: str) -> str:
    return next(line for line in LINES if line in question)


def respond(rng: random.Random, digits: Sequence[int], line: str, slip: float = 0.0) -> str:
    """A response that reads `digits` in any order and wording, concludes, and answers. `slip` is the chance that the
    conclusion is not what was read, and that the answer is not what was concluded."""
    order = rng.sample(range(4), 4)
    parts = [rng.choice(READS).format(place=POSITIONS[p], digit=digits[p]) for p in order]
    pair = _slipped(rng, [digits[p] for p in LINES[line]], slip)
    parts.append(rng.choice(CONCLUSIONS).format(line=line, first=pair[0], second=pair[1]))
    pair = _slipped(rng, pair, slip)
    return " ".join(parts) + "\n" + ANSWER.format(first=pair[0], second=pair[1])


def _slipped(rng: random.Random, pair: list[int], chance: float) -> list[int]:
    """The pair, or with some chance the pair with one digit changed."""
    if not chance or rng.random() >= chance:
        return pair
    which = rng.randrange(2)
    return [other_digit(rng, digit) if i == which else digit for i, digit in enumerate(pair)]


def understand(response: str) -> Said:
    """Reads a response back; what does not follow the world's wording says nothing. The last sentence counts."""
    reads, conclusion, answer = {}, None, None
    for sentence_of in split_sentences(response):
        start, end = trim(response, sentence_of)
        sentence = response[start:end]
        if match := _READ.match(sentence):
            digit = None if match[2] else int(match[3])
            reads[POSITIONS.index(match[1].lower())] = digit, (start, end)
        elif match := _CONCLUSION.match(sentence):
            conclusion = match[1].lower(), (int(match[2]), int(match[3])), (start, end)
        elif match := _ANSWER.match(sentence):
            answer = tuple(map(int, match[1].split())), (start, end)
    return Said(reads, conclusion, answer)


def gold(criterion: Criterion, response: str, truth: Sequence[int]) -> Gold:
    """What people's own labelling says of one criterion of one response."""
    said = understand(response)
    if match := _PLACED.match(criterion.text):
        place, digit = POSITIONS.index(match[2]), int(match[3])
        found, span = said.reads.get(place, (None, None))
        states = found == digit
        allowed = (truth[place] != digit) if match[1] == "Wrongly" else (truth[place] == digit)
        return Gold(states, states and allowed, span, str(truth[place]))
    met, span = _about_text(criterion.text, said)
    return Gold(met, met, span, None)


def _about_text(claim: str, said: Said) -> tuple[bool, tuple[int, int] | None]:
    """The criteria that need no image: is it met, and which sentence decides."""
    concluded = said.conclusion
    if claim in CLAIMS["follows"]:
        if concluded is None:
            return False, None
        read = tuple(said.reads.get(p, (None, None))[0] for p in LINES[concluded[0]])
        return read == concluded[1], concluded[2]
    if claim in CLAIMS["repeats"] or claim in CLAIMS["two digits"]:
        if said.answer is None:
            return False, None
        wanted = len(said.answer[0]) == 2 if claim in CLAIMS["two digits"] else None
        repeats = concluded is not None and concluded[1] == said.answer[0]
        return (repeats if wanted is None else wanted), said.answer[1]
    if concluded is None:
        return False, None
    return f"the {concluded[0]}." in claim, concluded[2]


def verdict_of(truth: Gold, mode: Mode) -> bool:
    return truth.image if mode == "image" else truth.text


def score_policy(response: str, example: Example) -> dict[str, float]:
    """Against the human labels: share of the four digits read right, whether the conclusion follows from the response's
    own readings, whether the answer is right (each 0..1)."""
    truth, said = truth_of(example), understand(response)
    right = sum(said.reads.get(p, (None,))[0] == truth[p] for p in range(4)) / 4
    follows = bool(said.conclusion) and all(
        said.reads.get(p, (None,))[0] == d for p, d in zip(LINES[said.conclusion[0]], said.conclusion[1], strict=True)
    )
    wanted = tuple(truth[p] for p in LINES[asked_line(example.question)])
    answer = said.answer is not None and said.answer[0] == wanted
    return {"digits": right, "conclusion": float(follows), "answer": float(answer)}
