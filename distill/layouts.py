"""Which column of somebody's rubric data holds what.

In: the first rows of the data (dicts), and what the user says (`--map`). Out: a `FieldMap`, by listed aliases only:
what no alias finds is missing and never guessed. Four public layouts are known by name; they fix what a yes to a
pitfall means.

A column is a key of the row, or a path into a nested object ("reward_model.rubrics"); nested objects and lists may also
be given as their JSON.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..verifier.errors import InputError

Row = Mapping[str, Any]

# In the order in which they are tried: the first column that is there is taken.
EXAMPLE_ALIASES: dict[str, tuple[str, ...]] = {
    "example_id": ("uid", "id", "row_uid", "prompt_id", "question_id"),
    "question": ("question", "instruction", "problem", "prompt"),
    "images": ("image", "images", "file_name"),
    "criteria": ("rubrics", "rubric", "criteria", "reward_model.rubrics"),
    "answer": ("answer", "final_answer", "ground_truth"),
    "reference": ("reference", "reference_response", "reference_answer", "response", "solution"),
    "source": ("source", "data_source", "question_source", "dataset"),
    "difficulty": ("difficulty",),
    "rs_score": ("rs_score",),
}
CRITERION_ALIASES: dict[str, tuple[str, ...]] = {
    "text": ("description", "criterion", "text"),
    "title": ("title", "name"),
    "dimension": ("type", "dimension", "category", "axis"),
    "label": ("label", "importance", "level"),
    "weight": ("weight", "points", "score"),
}
ALIASES = EXAMPLE_ALIASES | CRITERION_ALIASES
REQUIRED = ("question", "criteria", "text")


@dataclass(frozen=True)
class Layout:
    """A public layout: the columns and criterion keys that give it away, and what is special about it."""

    name: str
    columns: frozenset[str]
    keys: frozenset[str]
    yes_means: str
    own_columns: tuple[tuple[str, str], ...] = ()


LAYOUTS = (
    Layout("V-Rubrics", frozenset({"uid", "original_id", "rs_score"}), frozenset(), "committed"),
    Layout(
        "RaR",
        frozenset({"question", "reference_answer", "rubric"}),
        frozenset({"title", "description", "weight"}),
        "avoided",  # its pitfalls say "does not ..."
    ),
    Layout(
        "RubricHub",
        frozenset({"prompt", "data_source", "reward_model.rubrics"}),
        frozenset({"criterion", "points"}),
        "committed",
        (("answer", "reward_model.ground_truth"),),
    ),
    Layout("HealthBench", frozenset({"prompt", "rubrics"}), frozenset({"criterion", "points", "tags"}), "committed"),
)


@dataclass(frozen=True)
class FieldMap:
    """Field -> column of the row (`columns`) or key of a criterion (`keys`); a field without one is absent."""

    columns: dict[str, str]
    keys: dict[str, str]
    yes_means: str  # for pitfalls: "committed" or "avoided"
    layout: str | None
    found_columns: dict[str, str]  # name -> type, as the first rows have them
    found_keys: dict[str, str]
    passed_over: dict[str, tuple[str, ...]]  # field -> further aliases that are there too
    closed: frozenset[str] = frozenset()  # fields that the user left empty
    chosen: frozenset[str] = frozenset()  # fields that the user decided on

    def check_complete(self) -> None:
        """Raises InputError, naming what was found and the flag to write, where a needed field has no column."""
        for field in REQUIRED:
            if field in self.columns or field in self.keys:
                continue
            if field == "text" and not self.found_keys:
                continue  # the rows' criteria cannot be read; each row says why
            found = self.found_keys if field in CRITERION_ALIASES else self.found_columns
            where = "a criterion has" if field in CRITERION_ALIASES else "the data has"
            raise InputError(
                f"no column for {field!r}: none of {', '.join(ALIASES[field])}; {where} {', '.join(found)}; say which "
                f"with --map {field}=NAME"
            )

    def check_new(self, row: Row, number: int) -> None:
        """Raises InputError where a later row brings a column that would have been mapped, had it been there before, or
        where a row has nothing in a field's column, but something under another of the field's aliases."""
        for what, aliases, mapped, found, parts in (
            ("column", EXAMPLE_ALIASES, self.columns, self.found_columns, [row]),
            ("criterion key", CRITERION_ALIASES, self.keys, self.found_keys, criterion_items(row, self.columns)),
        ):
            for part in parts:
                self._check_elsewhere(part, what, aliases, mapped, number)
            new = [name for part in parts for name in part if name not in found]
            for field, listed in aliases.items() if new else ():
                for name in listed:
                    if name in new and field not in mapped and field not in self.closed:
                        raise InputError(
                            f"row {number} has the {what} {name!r}, which the first rows lack; say whether it is the "
                            f"{field}: --map {field}={name}, or --map {field}= to leave it out"
                        )

    def _check_elsewhere(
        self, part: Row, what: str, aliases: Mapping[str, tuple[str, ...]], mapped, number: int
    ) -> None:
        for field, column in mapped.items():
            if field in self.chosen or not says_nothing(value_at(part, column)):
                continue
            for other in aliases[field]:
                if not says_nothing(value_at(part, other)):
                    raise InputError(
                        f"row {number} has the {field} not in the {what} {column!r} but in {other!r}; say which is read, "
                        f"--map {field}={column} or --map {field}={other}, or bring all rows into one form"
                    )


def find_fields(rows: Sequence[Row], chosen: Mapping[str, str], yes_means: str | None = None) -> FieldMap:
    """The map for data that begins with `rows`; `chosen` is the user's (field -> column, "" for none)."""
    columns = column_types(rows)
    by_alias = _by_alias(columns, EXAMPLE_ALIASES, chosen)
    found_keys = column_types([item for row in rows for item in criterion_items(row, by_alias)], nested=False)
    layout = next((x for x in LAYOUTS if x.columns <= columns.keys() and x.keys <= found_keys.keys()), None)
    for field, column in layout.own_columns if layout else ():
        if column in columns:
            by_alias.setdefault(field, column)
    by_key = _by_alias(found_keys, CRITERION_ALIASES, chosen)
    return FieldMap(
        columns={field: column for field, column in by_alias.items() if column},
        keys={field: key for field, key in by_key.items() if key},
        yes_means=yes_means or (layout.yes_means if layout else "committed"),
        layout=layout.name if layout else None,
        found_columns=columns,
        found_keys=found_keys,
        passed_over=_passed_over(columns, EXAMPLE_ALIASES, by_alias)
        | _passed_over(found_keys, CRITERION_ALIASES, by_key),
        closed=frozenset(field for field, column in chosen.items() if not column),
        chosen=frozenset(chosen),
    )


def parse_map(texts: Iterable[str]) -> dict[str, str]:
    """`field=column` texts as a dict; an empty column leaves the field out."""
    chosen: dict[str, str] = {}
    for text in texts:
        field, equals, column = text.partition("=")
        if not equals:
            raise InputError(f"--map {text!r}: write field=column; fields are {', '.join(ALIASES)}")
        if field not in ALIASES:
            raise InputError(f"--map {text!r}: there is no field {field!r}; fields are {', '.join(ALIASES)}")
        if field in chosen:
            raise InputError(f"--map names {field!r} twice; give one column")
        chosen[field] = column
    return chosen


def value_at(row: Row, column: str | None) -> Any:
    """The value of a column, or of a path into nested objects; None where any step is missing."""
    if column is None:
        return None
    if column in row:
        return row[column]
    head, dot, rest = column.partition(".")
    inner = decoded(row.get(head)) if dot else None
    return value_at(inner, rest) if isinstance(inner, Mapping) else None


def decoded(value: Any) -> Any:
    """A string that holds a JSON object or list, as that; anything else as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def criterion_items(row: Row, columns: Mapping[str, str]) -> list[Mapping[str, Any]]:
    """The row's criteria that are objects."""
    value = decoded(value_at(row, columns.get("criteria")))
    items = [decoded(item) for item in value] if isinstance(value, list) else []
    return [item for item in items if isinstance(item, Mapping)]


def column_types(rows: Iterable[Row], nested: bool = True) -> dict[str, str]:
    """Name -> types, in the order of the rows; objects bring their keys along as paths."""
    types: dict[str, dict[str, None]] = {}
    for row in rows:
        for name, value in _flat(row) if nested else row.items():
            types.setdefault(name, {})[type_name(value)] = None
    return {
        name: " or ".join(found if len(found) == 1 else [kind for kind in found if kind != "null"])
        for name, found in types.items()
    }


def type_name(value: Any) -> str:
    if is_image_object(value):
        return "image"
    if isinstance(value, Mapping):
        return "object {" + ", ".join(value) + "}"
    if isinstance(value, list):
        return f"list of {type_name(value[0])}" if value else "empty list"
    names = {type(None): "null", bool: "true/false", int: "integer", float: "number", str: "string", bytes: "bytes"}
    inner = decoded(value)
    return f"JSON of {type_name(inner)}" if inner is not value else names.get(type(value), type(value).__name__)


def is_image_object(value: Any) -> bool:
    """The undecoded image of `datasets`: {"bytes": ..., "path": ...}."""
    return isinstance(value, Mapping) and bool(value) and set(value) <= {"bytes", "path"}


def is_null(value: Any) -> bool:
    """None, NaN, or a string without a visible character."""
    return (
        value is None
        or (isinstance(value, float) and math.isnan(value))
        or (isinstance(value, str) and not value.strip())
    )


def says_nothing(value: Any) -> bool:
    """Null, an empty list, or an image object without an image."""
    return is_null(value) or value == [] or (is_image_object(value) and all(v is None for v in value.values()))


def shown(value: Any) -> str:
    """A value in an error message: its type and how it begins."""
    return f"{type_name(value)} {value!r:.60}" if value is not None else "null"


def _flat(row: Row) -> Iterable[tuple[str, Any]]:
    for name, value in row.items():
        yield name, value
        inner = decoded(value)
        if isinstance(inner, Mapping) and not is_image_object(inner):
            yield from ((f"{name}.{key}", deeper) for key, deeper in inner.items())


def _by_alias(found: Mapping[str, str], aliases: Mapping[str, tuple[str, ...]], chosen: Mapping[str, str]):
    """Field -> name; "" where the user left the field out, so that nothing else fills it."""
    mapped: dict[str, str] = {}
    for field, listed in aliases.items():
        if field in chosen:
            if chosen[field] and found and chosen[field] not in found and chosen[field] not in listed:
                raise InputError(
                    f"--map {field}={chosen[field]}: there is no such column; there are {', '.join(found)}"
                )
            mapped[field] = chosen[field]
        elif name := next((name for name in listed if name in found), None):
            mapped[field] = name
    return mapped


def _passed_over(found: Mapping[str, str], aliases: Mapping[str, tuple[str, ...]], mapped: Mapping[str, str]):
    others = {
        field: tuple(name for name in listed if name in found and name != mapped.get(field))
        for field, listed in aliases.items()
    }
    return {field: names for field, names in others.items() if names and mapped.get(field)}
