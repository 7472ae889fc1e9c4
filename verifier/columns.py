"""The columns of the three tables, and the check of one row against them.

In: a row as JSON or Parquet gives it (a dict). Out: its known columns with the right types, or an InputError that names
the key. Columns unknown here are ignored; an optional one that is absent or null is left out, so that defaults apply.
"""

from __future__ import annotations

import math
from datetime import datetime
from typing import Any

from .errors import InputError
from .schema import SCHEMA_VERSION, Criterion

Columns = dict[str, str]

# Column -> kind. A "key" is a string that is not empty; "?" marks a column that may be absent or null, "|null" one that
# must be there but may be null.
CRITERION: Columns = {
    "id": "key",
    "text": "key",
    "title": "str?",
    "dimension": "str?",
    "label": "str?",
    "weight": "float?",
    "yes_means": "str?",
}
EXAMPLES: Columns = {
    "example_id": "key",
    "question": "str",
    "criteria": "criteria",
    "images": "images?",
    "reference": "str?",
    "answer": "str?",
    "source": "str?",
    "difficulty": "str?",
}
ROLLOUTS: Columns = {
    "rollout_id": "key",
    "example_id": "key",
    "response": "str",
    "policy": "str",
    "sample_index": "int?",
    "finish_reason": "str?",
    "edit": "str?",
}
VERDICTS: Columns = {
    "example_id": "key",
    "rollout_id": "key",
    "criterion_id": "key",
    "judge": "str",
    "mode": "str",
    "verdict": "bool|null",
    "p_yes": "float?",
    "span_start": "int?",
    "span_end": "int?",
    "match": "str?",
    "reading": "str?",
    "error": "str?",
    "prompt_hash": "str?",
    "created_at": "str?",
    "dimension": "str?",
}

# Kind -> the types that JSON and Parquet give for it, and how an error names them.
_KINDS: dict[str, tuple[type | tuple[type, ...], str]] = {
    "key": (str, "a string that is not empty"),
    "str": (str, "a string"),
    "int": (int, "a whole number of at most 64 bits"),
    "float": ((int, float), "a finite number"),
    "bool": (bool, "true, false or null"),
    "images": (list, "a list of paths"),
    "criteria": (list, "a list with at least one criterion"),
    "list": (list, "a list"),
}


def base_kind(kind: str) -> str:
    return kind.removesuffix("?").removesuffix("|null")


def check_version(raw: object) -> None:
    """A row is an object of this schema's version; without a version it is taken for version 1."""
    if not isinstance(raw, dict):
        raise InputError(f"it is {_describe(raw)}; it must be an object")
    version = raw.get("schema_version")
    if version is not None and version != SCHEMA_VERSION:
        raise InputError(
            f"key 'schema_version' is {version!r}, but this claimwise reads version {SCHEMA_VERSION}; write the table "
            "anew, or use the claimwise that wrote it"
        )


def checked_values(raw: dict[str, Any], columns: Columns) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, kind in columns.items():
        value = raw.get(name)
        if value is not None:
            values[name] = _checked(name, value, base_kind(kind))
        elif kind.endswith("|null") and name in raw:
            values[name] = None
        elif not kind.endswith("?"):
            raise InputError(f"key {name!r} is {'null' if name in raw else 'missing'}; every row needs it")
    return values


def parse_criteria(raw: list[Any]) -> tuple[Criterion, ...]:
    criteria = []
    for number, item in enumerate(raw, 1):
        try:
            if not isinstance(item, dict):
                raise InputError(f"it is {_describe(item)}; it must be an object")
            criteria.append(Criterion(**checked_values(item, CRITERION)))
        except InputError as error:
            raise InputError(f"key 'criteria', criterion {number}: {error}") from None
    return tuple(criteria)


def _checked(name: str, value: Any, kind: str) -> Any:
    if kind == "int" and isinstance(value, float) and value.is_integer():
        value = int(value)  # pandas writes a column of integers and nulls as floats
    if name == "created_at" and isinstance(value, datetime):
        value = value.isoformat()  # datasets reads such strings as times, and writes them back as times
    if not _fits(value, kind):
        raise InputError(f"key {name!r} is {_describe(value)}; it must be {_KINDS[kind][1]}")
    if isinstance(value, str) and not _is_unicode(value):
        raise InputError(f"key {name!r} holds half of a surrogate pair (\\ud800 to \\udfff); no text file can")
    if isinstance(value, list):
        return [_checked(name, path, "key") for path in value] if kind == "images" else value
    return float(value) if kind == "float" else value


def _fits(value: Any, kind: str) -> bool:
    if not isinstance(value, _KINDS[kind][0]) or (isinstance(value, bool) and kind != "bool"):
        return False
    if kind == "int":
        return abs(value) < 2**63
    if kind == "float":  # a whole number in JSON may exceed what a float holds
        return abs(value) < 2**1023 if isinstance(value, int) else math.isfinite(value)
    return kind not in ("key", "criteria") or bool(value)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _describe(value: object) -> str:
    names = {str: "the string", bool: "the truth value", int: "the number", float: "the number", list: "the list"}
    name = names.get(type(value), f"of type {type(value).__name__}:")
    text = repr(value)[:60] if not isinstance(value, int) or abs(value) < 10**60 else "with more than 60 digits"
    return f"{name} {text}"
