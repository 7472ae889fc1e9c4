"""Examples as a dataset that TRL's trainers take: conversations with images, and the columns that the rewards read.

In: examples. Out: a `datasets.Dataset` with prompt, images, example_id, answer, and criteria as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from ..verifier.errors import InputError
from ..verifier.schema import Criterion, Example


def prompts_of(examples: Sequence[Example]):
    """One row per example, for our trainer and for stock `GRPOTrainer`."""
    from datasets import Dataset, Features, Image, List, Value

    rows = [
        {
            "prompt": [{"role": "user", "content": example.question}],
            "images": [image if not isinstance(image, Path) else str(image) for image in example.images],
            "example_id": example.example_id,
            "answer": example.answer,
            "criteria": json.dumps([asdict(criterion) for criterion in example.criteria]),
        }
        for example in examples
    ]
    text = Value("string")
    message = {"role": text, "content": text}
    columns = {"prompt": [message], "images": List(Image()), "example_id": text, "answer": text, "criteria": text}
    return Dataset.from_list(rows, features=Features(columns))


def read_criteria(criteria: str) -> tuple[Criterion, ...]:
    """The column `criteria` of one row. Raises InputError where it is not what `prompts_of` writes."""
    try:
        return tuple(Criterion(**row) for row in json.loads(criteria))
    except (TypeError, ValueError) as error:
        raise InputError(f"the column criteria is {criteria!r}: {error}; make the dataset with prompts_of") from error


def by_id(examples: Iterable[Example]) -> dict[str, Example]:
    """Raises InputError where two examples that differ share an id: their rubrics could not be told apart."""
    found: dict[str, Example] = {}
    for example in examples:
        if found.setdefault(example.example_id, example) != example:
            raise InputError(f"two examples are named {example.example_id!r}; give each an id of its own")
    return found
