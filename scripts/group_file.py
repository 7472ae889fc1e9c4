"""The input of `claimwise credit`: one group of responses as JSON.

    {"criteria":  [{"id": "c1", "weight": 5, "label": "ESSENTIAL", "dimension": "VF"}, ...],
     "responses": [{"token_offsets": [[0, 3], [3, 8], [8, 8]], "answer": 1, "format": null,
                    "verdicts": {"c1": {"verdict": true, "span": [0, 8]}}}, ...]}

Here the form is checked (keys and types); what the values mean to each other is checked by `token_advantages`. Every
error names the file, the place in it and the key. Keys that are not known are left alone.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from ..trainer.credit import ScoredResponse
from ..verifier.errors import InputError
from ..verifier.schema import LABELS, Criterion


def read_group(path: Path) -> tuple[list[Criterion], list[ScoredResponse]]:
    group = _load(path)
    try:
        _check_type(group, dict, "the group")
        criteria = _take(group, "criteria", list, "the group")
        responses = _take(group, "responses", list, "the group")
        return (
            [_criterion(row, f"criteria[{j}]") for j, row in enumerate(criteria)],
            [_response(row, f"responses[{g}]") for g, row in enumerate(responses)],
        )
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _load(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; give the path of a JSON file") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text (byte {error.start}); give a JSON file") from error
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_without_repeats)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON: {error}; claimwise credit --help shows the format") from error


def _refuse_constant(constant: str) -> object:
    raise InputError(f"{constant} is not a JSON number; write null where a value is missing")


def _without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    keys = dict(pairs)
    if len(keys) < len(pairs):  # json would keep the last one without a word
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise InputError(f"the key {repeated!r} stands twice in one object; leave one of them")
    return keys


def _criterion(row: Any, where: str) -> Criterion:
    _check_type(row, dict, where)
    criterion_id = _take(row, "id", str, where)
    where = f"{where} (id {criterion_id!r})"
    weight = _number(_take(row, "weight", object, where), "weight", where)
    label = _take(row, "label", object, where)
    if label not in (*LABELS, None):
        raise InputError(f"{where}: label is {_show(label)}; it must be one of {', '.join(LABELS)}, or null")
    try:
        return Criterion(
            id=criterion_id,
            text=str(row.get("text", "")),
            dimension=row.get("dimension"),
            label=label,
            weight=weight,
            yes_means=row.get("yes_means", "committed"),
        )
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def _response(row: Any, where: str) -> ScoredResponse:
    _check_type(row, dict, where)
    offsets = _take(row, "token_offsets", list, where)
    for t, pair in enumerate(offsets):
        _pair(pair, f"token_offsets[{t}]", where)
    answer, format_reward = row.get("answer"), row.get("format")
    verdicts = _take(row, "verdicts", dict, where)
    return ScoredResponse(
        token_offsets=offsets,
        answer=None if answer is None else _number(answer, "answer", where),
        format=None if format_reward is None else _number(format_reward, "format", where),
        verdicts={name: _verdict(entry, f"{where}, criterion {name!r}") for name, entry in verdicts.items()},
    )


def _verdict(entry: Any, where: str) -> tuple[bool | None, tuple[int, int] | None]:
    _check_type(entry, dict, where)
    verdict, span = _take(entry, "verdict", object, where), entry.get("span")
    if verdict is not None and not isinstance(verdict, bool):
        raise InputError(f"{where}: verdict is {_show(verdict)}; it must be true, false or null")
    return verdict, None if span is None else _pair(span, "span", where)


def _pair(value: object, key: str, where: str) -> tuple[int, int]:
    if not (isinstance(value, list) and len(value) == 2 and all(type(end) is int for end in value)):
        raise InputError(f"{where}: {key} is {_show(value)}; it must be two whole numbers [start, end]")
    return value[0], value[1]


def _number(value: object, key: str, where: str) -> float:
    try:
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    except OverflowError:  # a whole number beyond what a float holds
        pass
    raise InputError(f"{where}: {key} is {_show(value)}; it must be a finite number")


def _take(row: dict[str, Any], key: str, kind: type, where: str) -> Any:
    if key not in row:
        raise InputError(f"{where}: the key {key!r} is missing; add it (claimwise credit --help shows the format)")
    _check_type(row[key], kind, f"{where}: {key}")
    return row[key]


_NAMES = {dict: "an object {...}", list: "a list [...]", str: 'a "string"'}


def _check_type(value: object, kind: type, what: str) -> None:
    if not isinstance(value, kind):
        raise InputError(f"{what} is {_show(value)}; it must be {_NAMES[kind]}")


def _show(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:37]}..."
