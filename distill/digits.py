"""The embedded world: pictures of handwritten digits, what is said about them, and what is true.

In: scikit-learn's 1,797 handwritten digits with their human labels. Out: examples (a 2x2 picture, a question, a rubric
with some criteria wrong on purpose), responses in varied wording, and the gold answer to any criterion of any response:
what the text says, what the image allows, the deciding sentence, and what the image shows.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from ..verifier.errors import InputError
from ..verifier.schema import Criterion, Example, Mode
from ..verifier.sentences import split_sentences, trim
from .grids import TWO, WORLDS, Grid, grid_of

POSITIONS, LINES = TWO.positions, TWO.lines
SIDE = 32  # pixels of one digit
QUESTIONS = ("What does the {line} read?", "Which digits are in the {line}?")
READS = ("The {place} digit is {digit}.", "At the {place} I see {digit}.", "The digit at the {place} is {digit}.")
NEGATION = "The {place} digit is not {digit}."
CONCLUSIONS = ("So the {line} reads {figures}.", "Thus the {line} is {figures}.")
ANSWER = "Answer: {figures}"
CLAIMS = {  # the wordings of each kind of criterion
    "read": ("States that the {place} digit is {digit}.", "Reads the {place} digit as {digit}."),
    "pitfall": ("Wrongly reads the {place} digit as {digit}.",),
    "follows": ("The conclusion agrees with the digits that were read.",),
    "repeats": ("The final answer repeats the conclusion.",),
    "two digits": ("Gives a final answer of two digits.",),
    "line": ("The conclusion is about the {line}.",),
}
DIMENSION = {"read": "VF", "pitfall": "VF", "follows": "RC", "repeats": "RC", "two digits": "IF", "line": "IF"}

_ANSWER = re.compile(r"(?i)answer:((?: \d)*)\s*$")


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
    conclusion: tuple[str, tuple[int, ...], tuple[int, int]] | None  # line, digits, interval
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
    """A square of 64 x 64 pixels from four digits, of 96 x 96 from nine, row by row."""
    side = math.isqrt(len(digits))
    out = Image.new("RGB", (side * SIDE, side * SIDE))
    for i, digit in enumerate(digits):
        out.paste(digit.convert("RGB"), (SIDE * (i % side), SIDE * (i // side)))
    return out


def draw_indices(rng: random.Random, part: str, count: int = 4) -> list[int]:
    """So many digits, the ten classes equally likely."""
    pool = split_digits(part)
    labels = _load()[1][pool]
    return [int(rng.choice(pool[labels == rng.randrange(10)])) for _ in range(count)]


def labels_of(indices: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(_load()[1][i]) for i in indices)


def read_of(criterion: str) -> tuple[int, int]:
    """The position and the digit that a criterion on reading or a pitfall names."""
    match = TWO.placed.match(criterion)
    if match is None:
        raise InputError(f"the criterion {criterion!r} names no place and digit")
    return POSITIONS.index(match[2]), int(match[3])


def assert_criterion(rng: random.Random, example: Example, response: str) -> str:
    """A hard negative: the response reads one digit as a criterion of its rubric says, right or wrong."""
    placed = [match for criterion in example.criteria if (match := TWO.placed.match(criterion.text))]
    match = rng.choice(placed)
    sentence = re.compile(rf"(?i)(the (?:digit at the )?{match[2]}(?: digit)? (?:is|I see) )\d")
    return sentence.sub(rf"\g<1>{match[3]}", response)


def other_digit(rng: random.Random, digit: int) -> int:
    return (digit + rng.randrange(1, 10)) % 10


def make_example(
    rng: random.Random,
    part: str,
    number: int,
    wrong_share: float = 0.2,
    grid: Grid = TWO,
    draw: Callable[[int], Image.Image] = digit_image,
) -> Example:
    """A picture and its rubric: three readings, two on reasoning, one on the instruction, one pitfall; for nine digits
    nine readings and two pitfalls. A share of the readings and pitfalls is wrong, as a careless annotator's would be;
    reference and rubric share the mistakes. `draw` makes a digit's picture."""
    indices = draw_indices(rng, part, len(grid.positions))
    truth = labels_of(indices)
    annotator = [other_digit(rng, d) if rng.random() < wrong_share else d for d in truth]
    line = rng.choice(list(grid.lines))
    asked = grid.lines[line]
    kinds = _kinds(rng, truth, annotator, asked, wrong_share)
    criteria = tuple(_criterion(rng, f"c{j}", *kind, line, grid) for j, kind in enumerate(kinds, start=1))
    return Example(
        example_id=f"digits-{part}-{number:05d}-{''.join(map(str, truth))}",
        question=rng.choice(QUESTIONS).format(line=line),
        criteria=criteria,
        images=(picture([draw(i) for i in indices]),),
        reference=respond(rng, annotator, line),
        answer=_figures(truth[p] for p in asked),
        source="digits",
    )


def _kinds(rng, truth, annotator, asked, wrong_share: float) -> list[tuple[str, int, int]]:
    """Kind, place and digit of each criterion: of four digits the two that are asked for and a third are to be read."""
    few = len(truth) == 4
    places = (*asked, rng.choice([p for p in range(4) if p not in asked])) if few else range(len(truth))
    pits = [
        (pit, truth[pit] if rng.random() < wrong_share else other_digit(rng, truth[pit]))
        for pit in rng.sample(range(len(truth)), 1 if few else 2)
    ]
    kinds = [("read", p, annotator[p]) for p in places]
    kinds += [("follows", 0, 0), ("repeats", 0, 0), (rng.choice(("two digits", "line")) if few else "line", 0, 0)]
    return kinds + [("pitfall", *pit) for pit in pits]


def _criterion(rng, name: str, kind: str, place: int, digit: int, line: str, grid: Grid) -> Criterion:
    text = rng.choice(CLAIMS[kind]).format(place=grid.positions[place], digit=digit, line=line)
    label, weight = {"pitfall": ("PITFALL", -3), "repeats": ("IMPORTANT", 3), "follows": ("ESSENTIAL", 5)}.get(
        kind, ("OPTIONAL", 2)
    )
    if kind == "read":
        label, weight = ("ESSENTIAL", 5) if place in grid.lines[line] else ("IMPORTANT", 4)
    return Criterion(name, text, kind, DIMENSION[kind], label, float(weight))


def truth_of(example: Example) -> tuple[int, ...]:
    """The human labels of an example's digits: the last part of its id, which no model is shown."""
    figures = example.example_id.rpartition("-")[2]
    if len(figures) not in (4, 9) or not figures.isdecimal():
        raise InputError(f"example {example.example_id!r} is not of the digits world, so the oracle cannot judge it")
    return tuple(map(int, figures))


def asked_line(question: str, grids: Iterable[Grid] = tuple(WORLDS.values())) -> str:
    """The row or column that a question asks for. Raises InputError where it names none of those grids'."""
    for line in (line for grid in grids for line in grid.lines if line in question):
        return line
    raise InputError(f"the question {question!r} asks for no row or column of the digits world's pictures")


def respond(rng: random.Random, digits: Sequence[int], line: str, slip: float = 0.0) -> str:
    """A response that reads `digits` in any order and wording, concludes, and answers. `slip` is the chance that the
    conclusion is not what was read, and that the answer is not what was concluded."""
    grid = grid_of(digits)
    order = rng.sample(range(len(digits)), len(digits))
    parts = [rng.choice(READS).format(place=grid.positions[p], digit=digits[p]) for p in order]
    told = _slipped(rng, [digits[p] for p in grid.lines[line]], slip)
    parts.append(rng.choice(CONCLUSIONS).format(line=line, figures=_figures(told)))
    told = _slipped(rng, told, slip)
    return " ".join(parts) + "\n" + ANSWER.format(figures=_figures(told))


def _figures(digits: Iterable[int]) -> str:
    return " ".join(map(str, digits))


def _slipped(rng: random.Random, told: list[int], chance: float) -> list[int]:
    """The digits, or with some chance the digits with one changed."""
    if not chance or rng.random() >= chance:
        return told
    which = rng.randrange(len(told))
    return [other_digit(rng, digit) if i == which else digit for i, digit in enumerate(told)]


def understand(response: str, grid: Grid = TWO) -> Said:
    """Reads a response back; what does not follow the world's wording says nothing. The last sentence counts."""
    reads, conclusion, answer = {}, None, None
    for sentence_of in split_sentences(response):
        start, end = trim(response, sentence_of)
        sentence = response[start:end]
        if match := grid.read.match(sentence):
            digit = None if match[2] else int(match[3])
            reads[grid.positions.index(match[1].lower())] = digit, (start, end)
        elif match := grid.conclusion.match(sentence):
            conclusion = match[1].lower(), tuple(map(int, match[2].split())), (start, end)
        elif match := _ANSWER.match(sentence):
            answer = tuple(map(int, match[1].split())), (start, end)
    return Said(reads, conclusion, answer)


def gold(criterion: Criterion, response: str, truth: Sequence[int]) -> Gold:
    """What people's own labelling says of one criterion of one response."""
    grid = grid_of(truth)
    said = understand(response, grid)
    if match := grid.placed.match(criterion.text):
        place, digit = grid.positions.index(match[2]), int(match[3])
        found, span = said.reads.get(place, (None, None))
        states = found == digit
        allowed = (truth[place] != digit) if match[1] == "Wrongly" else (truth[place] == digit)
        return Gold(states, states and allowed, span, str(truth[place]))
    met, span = _about_text(criterion.text, said, grid)
    return Gold(met, met, span, None)


def _about_text(claim: str, said: Said, grid: Grid) -> tuple[bool, tuple[int, int] | None]:
    """The criteria that need no image: is it met, and which sentence decides."""
    concluded = said.conclusion
    if claim in CLAIMS["follows"]:
        if concluded is None:
            return False, None
        read = tuple(said.reads.get(p, (None, None))[0] for p in grid.lines[concluded[0]])
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


def share_read(response: str, example: Example) -> float:
    """Against the human labels: the share of the digits that are read right (0..1)."""
    truth = truth_of(example)
    said = understand(response, grid_of(truth))
    return sum(said.reads.get(p, (None,))[0] == digit for p, digit in enumerate(truth)) / len(truth)


def score_policy(response: str, example: Example) -> dict[str, float]:
    """`share_read`, whether the conclusion follows from the response's own readings, whether the answer is right (each
    0..1). Raises InputError where the question asks for no row or column."""
    truth = truth_of(example)
    grid = grid_of(truth)
    said = understand(response, grid)
    follows = bool(said.conclusion) and all(
        said.reads.get(p, (None,))[0] == d
        for p, d in zip(grid.lines[said.conclusion[0]], said.conclusion[1], strict=True)
    )
    wanted = tuple(truth[p] for p in grid.lines[asked_line(example.question, [grid])])
    answer = said.answer is not None and said.answer[0] == wanted
    return {"digits": share_read(response, example), "conclusion": float(follows), "answer": float(answer)}
