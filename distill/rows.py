"""One row of somebody's rubric data as an example.

In: the row (a dict) and the `FieldMap`. Out: a `RawExample`, its images still as the row gives them, or an InputError
that says why the row cannot be used. Nothing is read from disk here.

A question that is a conversation of several turns becomes one text, each turn with its speaker's name. Places for
images ("<image>", image parts) are taken out of the question, since the images travel beside it; one between words
becomes "[image 2]".
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from ..verifier.columns import EXAMPLES, checked_values, parse_criteria
from ..verifier.errors import InputError
from ..verifier.schema import Example
from .filters import difficulty_of
from .layouts import FieldMap, Row, decoded, is_null, says_nothing, shown, value_at

PLACE = "<image>"
DIMENSIONS = {
    "vf": "VF",
    "visual faithfulness": "VF",
    "rc": "RC",
    "reasoning consistency": "RC",
    "if": "IF",
    "instruction following": "IF",
}
LABEL_WEIGHTS = {"ESSENTIAL": 5.0, "IMPORTANT": 3.0, "OPTIONAL": 1.0, "PITFALL": -1.0}
_LABEL = re.compile(r"\s*(essential|important|optional|pitfall)(?:\s+criteri(?:a|on))?\s*", re.IGNORECASE)
_PREFIX = re.compile(r"\s*(essential|important|optional|pitfall)\s+criteri(?:a|on)\s*:", re.IGNORECASE)
_WRITTEN = (str, int, float, Decimal)  # what a text or a number may come as
_SPEAKERS = {"system": "System", "user": "User", "assistant": "Assistant"}


@dataclass(frozen=True)
class RawExample:
    example: Example  # without its images
    images: tuple[Any, ...]  # bytes, paths, PIL images, ...: see pictures
    solved: bool  # rs_score says that every sample was right
    other_dimensions: tuple[str, ...]  # named, but none of ours: null


def read_row(row: Row, fields: FieldMap, number: int) -> RawExample:
    """Raises InputError with the reason where the row cannot be used. `number` names a row without an id."""
    values = {field: value_at(row, column) for field, column in fields.columns.items()}
    values["question"] = _messages(values.get("question"))
    question, in_parts = _question(values["question"])
    images = listed(values.get("images")) or in_parts
    if images or "images" in fields.columns or not isinstance(values["question"], str):
        question = _without_places(question, len(images))  # elsewhere "<image>" is a word like any other
    others: list[str] = []
    from_score, solved = difficulty_of(values.get("rs_score"))
    example = {
        "example_id": _text(values.get("example_id"), "example_id") or f"row-{number:06d}",
        "question": question,
        "criteria": _criteria(values.get("criteria"), fields, others),
        "answer": _text(values.get("answer"), "answer"),
        "reference": _text(values.get("reference"), "reference"),
        "source": _text(values.get("source"), "source"),
        "difficulty": _text(values.get("difficulty"), "difficulty") or from_score,
    }
    example = checked_values(example, EXAMPLES)  # what no table can hold is refused here, row by row
    example["criteria"] = parse_criteria(example["criteria"])
    return RawExample(Example(**example), tuple(images), solved, tuple(others))


def _messages(value: Any) -> Any:
    """A conversation given as its JSON as that; a question that only looks like a list stays a text."""
    found = decoded(value)
    is_talk = isinstance(found, list) and found and all(isinstance(m, Mapping) and "role" in m for m in found)
    return found if is_talk else value


def _question(value: Any) -> tuple[str, list[Any]]:
    """The question's text, with `PLACE` for each image part, and the images that the parts carry."""
    if isinstance(value, str):
        turns, images = [("user", value)], []
    elif isinstance(value, list) and value:
        turns, images = read_turns(value)
    else:
        raise InputError("question is missing" if is_null(value) else f"question is {shown(value)}; it must be a text")
    if turns[-1][0] != "user":
        raise InputError(f"question ends with the {turns[-1][0]}'s turn; it must end with the user's")
    if not turns[-1][1].replace(PLACE, "").strip():
        raise InputError("question is empty")
    if len(turns) == 1:
        return turns[0][1], images
    return "\n\n".join(f"{_SPEAKERS[role]}: {text}" for role, text in turns), images


def read_turns(messages: list[Any], name: str = "question") -> tuple[list[tuple[str, str]], list[Any]]:
    """Role and text of each message, with `PLACE` for each image part, and the images that the parts carry. `name` is
    what an InputError calls the conversation."""
    turns, images = [], []
    for number, message in enumerate(messages, 1):
        message = decoded(message)
        role = message.get("role") if isinstance(message, Mapping) else None
        if role is None:
            raise InputError(f"{name}, message {number}: it is {shown(message)}; it must have a role and content")
        if not isinstance(role, str) or role not in _SPEAKERS:
            raise InputError(f"{name}, message {number}: its role is {shown(role)}; roles are {', '.join(_SPEAKERS)}")
        content = message.get("content")
        text = "" if content is None else content if isinstance(content, str) else None
        if text is None:
            if not isinstance(content, list):
                raise InputError(f"{name}, message {number}: content is {shown(content)}; it must be text or parts")
            pieces = [_part(part, images, f"{name}, message {number}") for part in content]
            text = "\n".join(piece for piece in pieces if piece)
        turns.append((role, text))
    return turns, images


def _part(part: Any, images: list[Any], where: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind in ("image", "image_url", "input_image"):
        carried = next((part[key] for key in ("image", "image_url", "url", "path") if part.get(key)), None)
        carried = carried.get("url") if isinstance(carried, Mapping) and "url" in carried else carried
        images += [] if is_null(carried) else [carried]
        return PLACE
    text = part.get("text") if isinstance(part, Mapping) else None
    if kind in ("text", "input_text", None) and isinstance(text, str):
        return text
    raise InputError(f"{where}: the part {shown(part)} is neither text nor image")


def _without_places(question: str, images: int) -> str:
    pieces = question.split(PLACE)
    if len(pieces) > 1 and len(pieces) - 1 != images:
        raise InputError(f"question has places for {len(pieces) - 1} image(s), but the row has {images}")
    text = pieces[0]
    for number, piece in enumerate(pieces[1:], 1):
        between_words = text.strip() and any(rest.strip() for rest in pieces[number:])
        text += (f"[image {number}]" if between_words else "") + piece
    return text.strip() if len(pieces) > 1 else text


def _criteria(value: Any, fields: FieldMap, others: list[str]) -> list[dict[str, Any]]:
    """Criteria as rows of our table; what a dimension says that is none of ours is appended to `others`."""
    items = decoded(value)
    if is_null(items) or items == []:
        raise InputError("criteria are missing" if is_null(items) else "criteria are empty")
    if not isinstance(items, list):
        raise InputError(f"criteria are {shown(items)}; they must be a list of objects, or its JSON")
    criteria = []
    for number, item in enumerate(items, 1):
        try:
            item = decoded(item)
            if not isinstance(item, Mapping):
                raise InputError(f"it is {shown(item)}; it must be an object")
            values = {field: item.get(key) for field, key in fields.keys.items()}
            criteria.append({"id": f"c{number}", **_criterion(values, fields.yes_means, others)})
        except InputError as error:
            raise InputError(f"criterion {number}: {error}") from None
    credited = [criterion for criterion in criteria if criterion["label"] != "PITFALL"] or criteria
    if not any(criterion["weight"] for criterion in credited):
        raise InputError("criteria all have weight 0; none would count")
    return criteria


def _criterion(values: Mapping[str, Any], yes_means: str, others: list[str]) -> dict[str, Any]:
    text = values.get("text")
    if not isinstance(text, str) or not text.strip():
        raise InputError("it has no text" if is_null(text) else f"its text is {shown(text)}; it must be a string")
    weight, word = _weight(values.get("weight"))
    label = _label(values.get("label")) or word
    if label not in (None, "PITFALL") and weight is not None and weight < 0:
        raise InputError(f"its label is {label} but its weight {weight:g}; a negative weight is a pitfall's")
    label = label or _label_of(text, weight)
    dimension = _text(values.get("dimension"), "its dimension")
    known = DIMENSIONS.get(re.sub(r"[\W_]+", " ", dimension or "").strip().casefold())
    others += [dimension] if dimension and not known else []
    return {
        "text": text,
        "title": _text(values.get("title"), "its title"),
        "dimension": known,
        "label": label,
        "weight": weight if weight is not None else LABEL_WEIGHTS.get(label or "", 1.0),
        "yes_means": yes_means if label == "PITFALL" else "committed",
    }


def _label_of(text: str, weight: float | None) -> str | None:
    """From the sign, else the text's own prefix, else the size: a negative weight is never a merit."""
    if weight is not None and weight < 0:
        return "PITFALL"
    if prefix := _PREFIX.match(text):
        return prefix[1].upper()
    if not weight:
        return None
    return "ESSENTIAL" if weight >= 5 else "IMPORTANT" if weight >= 3 else "OPTIONAL"


def _label(value: Any) -> str | None:
    if is_null(value):
        return None
    found = _LABEL.fullmatch(value) if isinstance(value, str) else None
    if not found:
        raise InputError(f"its label is {shown(value)}; labels are {', '.join(LABEL_WEIGHTS)}; --map label= ignores it")
    return found[1].upper()


def _weight(value: Any) -> tuple[float | None, str | None]:
    """(weight, label), of which a weight given as a word has only the label."""
    if is_null(value):
        return None, None
    if isinstance(value, str) and (word := _LABEL.fullmatch(value)):
        return None, word[1].upper()
    try:
        number = math.nan if isinstance(value, bool) or not isinstance(value, _WRITTEN) else float(value)
    except (ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"its weight is {shown(value)}; it must be a finite number or a label")
    return number, None


def _text(value: Any, name: str) -> str | None:
    """A string that says something, or None; numbers are written out."""
    if is_null(value):
        return None
    if isinstance(value, bool) or not isinstance(value, _WRITTEN):
        raise InputError(f"{name} is {shown(value)}; it must be a string")
    return str(value)


def listed(value: Any) -> list[Any]:
    """One image or several; nothing but nulls is none, a null among images stays and is refused later."""
    value = decoded(value)
    several = list(value) if isinstance(value, (list, tuple)) else [value]
    return [] if all(map(says_nothing, several)) else several
