"""What people exported from the audit's page, read and checked against its key.

In: `page.key.jsonl` and the exports (see `audit_page`). Out: the pairs that were drawn, and each person's answers. A bad
file is one InputError that names it; nothing of it is taken.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..verifier.errors import InputError
from ..verifier.schema import GROUPS
from ..verifier.text import clean, excerpt
from .audit_page import FORMAT, QUALITY, VERDICTS, VERSION

LONGEST_NAME = 60  # characters, as the page has it: a table is named after its person


@dataclass(frozen=True)
class Asked:
    """A pair that was drawn; `weight` undoes the sampling."""

    id: str
    example_id: str
    rollout_id: str
    criterion_id: str
    dimension: str | None
    weight: float


@dataclass(frozen=True)
class Answer:
    """`verdict` is "yes", "no", "cannot tell" or None; `blind` the one before the marks were shown, None where there is
    none; `quality` what the person said of the criterion."""

    verdict: str | None
    blind: str | None
    at: str | None
    quality: dict[str, str] = field(default_factory=dict)

    @property
    def counts(self) -> str | None:
        """The verdict that counts: the blind one, where there is one."""
        return self.blind or self.verdict


@dataclass(frozen=True)
class Person:
    """`slug` is the name as a part of a file's name."""

    name: str
    slug: str
    answers: dict[str, Answer]


def read_key(path: Path) -> tuple[str, list[Asked]]:
    """The hash of the page and its pairs, in the page's order."""
    asked: list[Asked] = []
    pages: set[str] = set()
    lines = _text(path).split("\n")  # not splitlines: an id may hold U+2028, which JSON does not escape
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            asked.append(_asked(row))
            pages.add(row["page"])
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{path}, row {number}: it is no row of a key ({excerpt(error)}); give the file that claimwise audit "
                "sample wrote beside the page"
            ) from None
    if len(pages) != 1 or len({one.id for one in asked}) < len(asked):
        raise InputError(
            f"{path}: its rows are not those of one page, each once; give the file that claimwise audit sample wrote"
        )
    return pages.pop(), asked


def _asked(row: dict[str, Any]) -> Asked:
    ids = (row["id"], row["example_id"], row["rollout_id"], row["criterion_id"])
    dimension, weight = row["dimension"], row["weight"]
    if not all(isinstance(value, str) and value for value in (*ids, row["page"])):
        raise ValueError("an id is not a string")
    if dimension not in (*GROUPS, None):
        raise ValueError(f"the dimension is {dimension!r}")
    if type(weight) not in (int, float) or not 1 <= weight < math.inf:
        raise ValueError(f"the weight is {weight!r}")
    return Asked(*ids, dimension, float(weight))


def read_people(paths: Sequence[Path], page: str, asked: Sequence[Asked]) -> list[Person]:
    """One person per export, in order. Raises InputError where a person comes twice, too."""
    people: list[Person] = []
    ids = {one.id for one in asked}
    for path in paths:
        person = read_export(path, page, ids)
        for other, before in zip(people, paths, strict=False):
            if other.slug == person.slug:
                raise InputError(
                    f"{path} and {before} are both by {person.name!r}; give one export for each person, the last one"
                )
        people.append(person)
    return people


def read_export(path: Path, page: str, ids: set[str]) -> Person:
    """`ids` are the page's items. Items without an answer may be left out."""
    text = _text(path)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: it is not JSON ({error}); export it again from the page") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise InputError(f"{path}: it is no export of an audit's page; give the files that the page's Export saved")
    if found.get("version") != VERSION:
        raise InputError(f"{path}: its version is {found.get('version')!r}; this claimwise reads version {VERSION}")
    if found.get("page") != page:
        raise InputError(
            f"{path}: it belongs to another page ({excerpt(found.get('page'))}) than the key ({page!r}); give the key "
            "that lies beside that page"
        )
    name, rows = found.get("annotator"), found.get("answers")
    if not isinstance(name, str) or not name.strip() or not isinstance(rows, list):
        raise InputError(f"{path}: it names no person, or has no list of answers; export it again from the page")
    if len(name) > LONGEST_NAME or clean(name) != name:
        raise InputError(
            f"{path}: the person's name {excerpt(name)} has {len(name)} characters or halves of some; the page takes "
            f"{LONGEST_NAME}"
        )
    answers: dict[str, Answer] = {}
    for row in rows:
        item = row.get("id") if isinstance(row, dict) else None
        if not isinstance(item, str) or item not in ids or item in answers:
            what = "answers it twice" if isinstance(item, str) and item in answers else "the page has no such pair"
            raise InputError(f"{path}: pair {excerpt(item)}: {what}; export it again from the page")
        answers[item] = _answer(row, f"{path}: pair {item}")
    return Person(name.strip(), slug_of(name), answers)


def _answer(row: dict[str, Any], where: str) -> Answer:
    verdict, blind, at, quality = row.get("verdict"), row.get("blind"), row.get("at"), row.get("quality", {})
    for value in (verdict, blind):
        if value not in (*VERDICTS, None):
            raise InputError(f"{where}: the answer is {excerpt(value)}; it must be one of {', '.join(VERDICTS)}, null")
    if not isinstance(at, str | None) or clean(at or "") != (at or "") or not isinstance(quality, dict):
        raise InputError(f"{where}: 'at' must be a time and 'quality' an object; export it again from the page")
    for question, value in quality.items():
        if value not in QUALITY.get(question, ()):
            raise InputError(
                f"{where}: the criterion's quality {excerpt(question)} is {excerpt(value)}; export it again from the page"
            )
    return Answer(verdict, blind, at, quality)


def slug_of(name: str) -> str:
    """A name as a part of a file's name: small letters and digits of any script, hyphens between."""
    small = unicodedata.normalize("NFKC", name).lower()
    return re.sub(r"[\W_]+", "-", small).strip("-") or "person"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path}: it is not UTF-8 text; give the file as it was written") from None
    except OSError as error:
        raise InputError(f"{path}: it cannot be read ({error.strerror})") from None
