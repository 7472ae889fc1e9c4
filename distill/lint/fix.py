"""The faults that are safe to mend, mended: weight and label, a clear dimension, exact duplicates.

In: a `Report`. Out: the examples with those mended, and each change; what else was found stays as it is. No text
changes, no criterion is split, and none comes to mean something else: `yes_means` is left alone, and a label never
becomes or stops being PITFALL.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ...verifier.columns import CRITERION, EXAMPLES
from ...verifier.schema import Criterion, Example
from ..rows import LABEL_WEIGHTS
from .pairs import exact_text
from .report import Note, Report
from .rules import label_for
from .text import prefix_label


@dataclass(frozen=True)
class Change:
    """One change. `field` is weight, label or dimension, or "criterion" where it was taken out (`after` is None)."""

    example_id: str
    criterion_id: str
    field: str
    before: str | float | None
    after: str | float | None
    kind: str
    reason: str


def mend(report: Report) -> tuple[list[Example], list[Change]]:
    """Mends what was found, not what is in doubt."""
    notes: dict[tuple[str, str], dict[str, Note]] = defaultdict(dict)
    for note in report.findings:
        notes[note.example_id, note.criterion_id][note.kind] = note
    examples, changes = [], []
    for example in report.examples:
        kept: dict[str, Criterion] = {}  # by id
        for criterion in example.criteria:
            found = notes[example.example_id, criterion.id]
            mended = _mended(criterion, found)
            if "duplicate" in found and any(_same(mended, earlier) for earlier in kept.values()):
                changes.append(_change(example, criterion, "criterion", criterion.text, None, found["duplicate"]))
                continue
            kept[criterion.id] = mended
            for field, kind in (("weight", "weight"), ("label", "weight"), ("dimension", "dimension")):
                before, after = getattr(criterion, field), getattr(mended, field)
                if before != after:
                    changes.append(_change(example, criterion, field, before, after, found[kind]))
        examples.append(replace(example, criteria=tuple(kept.values())))
    return examples, changes


def _mended(criterion: Criterion, found: Mapping[str, Note]) -> Criterion:
    if "weight" in found:
        criterion = _weighed(criterion)
    if "dimension" in found and found["dimension"].better:
        criterion = replace(criterion, dimension=found["dimension"].better)
    return criterion


def _weighed(criterion: Criterion) -> Criterion:
    """The text's own prefix decides where it sides with weight or label, else the label does. A pitfall's weight turns
    negative, which changes no credit; whether something is a pitfall at all is not for a rule to say."""
    named, label, weight = prefix_label(criterion.text), criterion.label, criterion.weight
    if criterion.is_pitfall:
        return replace(criterion, weight=-abs(weight)) if named in (None, "PITFALL") and weight else criterion
    if label is None or weight <= 0 or named == "PITFALL":
        return criterion  # weight 0 may be there to switch it off
    if named and named == label_for(weight):
        return replace(criterion, label=named)
    if named and named != label:
        return criterion  # prefix, label and weight: three opinions
    return replace(criterion, weight=LABEL_WEIGHTS[label])


def _same(criterion: Criterion, other: Criterion) -> bool:
    """Equal in all that counts, so that nothing but the repetition is lost."""
    fields = ("label", "weight", "dimension", "yes_means")
    return exact_text(criterion) == exact_text(other) and all(
        getattr(criterion, f) == getattr(other, f) for f in fields
    )


def _change(example: Example, criterion: Criterion, field: str, before, after, note: Note) -> Change:
    reason = note.reason if note.decided_by == "rule" else f"{note.reason} (decided by {note.decided_by})"
    return Change(example.example_id, criterion.id, field, before, after, note.kind, reason)


def extra_columns(table: Path) -> list[str]:
    """The columns of a readable table that our tables do not have, and so would not be written again."""
    keys, in_criteria = set[str](), set[str]()
    if table.suffix == ".jsonl":
        for line in table.read_text(encoding="utf-8-sig").split("\n"):
            row = json.loads(line) if line.strip() else {}
            keys |= row.keys()
            in_criteria |= {key for criterion in row.get("criteria", []) for key in criterion}
    else:
        import pyarrow.parquet as pq

        schema = pq.read_schema(table)
        keys |= set(schema.names)
        in_criteria |= {field.name for field in schema.field("criteria").type.value_type}
    extra = sorted(keys - {"schema_version", *EXAMPLES})
    return extra + [f"criteria.{key}" for key in sorted(in_criteria - set(CRITERION))]
