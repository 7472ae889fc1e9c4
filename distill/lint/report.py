"""Rubric linting: what is wrong with the criteria of an examples table, named one by one and counted.

In: examples. Out: a `Report`: a `Note` for each criterion and kind of fault, with its reason and who decided (a rule, or
a model by its name), and a note for each that nobody decided. Nothing is changed; see `lint_fix`.

    report = lint(read_examples("examples.parquet", check_images=False))
    print(report.counts()["kind"])
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ...verifier.schema import Criterion, Example
from .answer import answer_only
from .dimension import dimension
from .outside import outside
from .pairs import duplicates
from .rules import compound, polarity, uncheckable, weight
from .text import Finding

# Each kind, as the question that a model is asked where rules cannot decide: yes means that the fault is there.
KINDS = {
    "compound": "Does this criterion hold two or more statements that could get different verdicts?",
    "uncheckable": "Does this criterion lack any fact that could be checked in a response?",
    "duplicate": "Do these two criteria of one rubric ask for the same thing?",
    "dimension": "Does the dimension contradict the text (VF: what the image shows, RC: a step of reasoning, IF: the "
    "form that the question asks for)?",
    "answer_only": "Does this criterion say nothing but what the final answer is?",
    "weight": "Is the weight out of line with the label (from 5 ESSENTIAL, from 3 IMPORTANT, else OPTIONAL, negative "
    "PITFALL), or, where there is none, with what the text asks for?",
    "polarity": "Is it unclear, or the wrong way round, whether yes to this criterion is good or bad?",
    "outside": "Does this criterion refer to something that is in neither image, question nor response?",
}


@dataclass(frozen=True)
class Note:
    """One criterion and one kind of fault. `decided_by` is "rule", the model's name, or None: undecided."""

    example_id: str
    criterion_id: str
    kind: str
    rule: str
    reason: str
    decided_by: str | None
    text: str
    source: str | None
    dimension: str | None
    label: str | None
    other: str | None = None  # of a duplicate: the earlier criterion
    better: str | None = None  # the dimension that the text speaks for, where that is clear


# Asked notes that the rules left undecided: True (a fault), False (none) or None (no answer) for each, in order.
Ask = Callable[[Sequence[tuple[Example, Note]]], Sequence[bool | None]]


@dataclass(frozen=True)
class Report:
    """What the lint found in `examples`. `cleared` counts, per kind, the doubts in which a model saw no fault; `model` is
    its name, None where none was asked."""

    examples: tuple[Example, ...]
    notes: tuple[Note, ...]
    cleared: Counter[str]
    model: str | None = None

    @property
    def findings(self) -> list[Note]:
        return [note for note in self.notes if note.decided_by]

    @property
    def undecided(self) -> list[Note]:
        return [note for note in self.notes if not note.decided_by]

    def counts(self) -> dict[str, dict[str, dict[str, int]]]:
        """Per kind, source, dimension and label: criteria, criteria with a fault, and findings of each kind."""
        out: dict[str, dict[str, dict[str, int]]] = {"kind": {kind: self._of_kind(kind) for kind in KINDS}}
        faulty = {(note.example_id, note.criterion_id): note for note in self.findings}
        for column in ("source", "dimension", "label"):
            criteria = Counter(_value(e, c, column) for e in self.examples for c in e.criteria)
            with_fault = Counter(str(getattr(note, column)) for note in faulty.values())
            found = Counter((str(getattr(note, column)), note.kind) for note in self.findings)
            out[column] = {
                value: {"criteria": n, "faulty": with_fault[value], **{kind: found[value, kind] for kind in KINDS}}
                for value, n in sorted(criteria.items())
            }
        return out

    def _of_kind(self, kind: str) -> dict[str, int]:
        by = Counter(note.decided_by for note in self.notes if note.kind == kind)
        by_model = by.total() - by["rule"] - by[None]
        return {"by_rules": by["rule"], "by_model": by_model, "cleared": self.cleared[kind], "undecided": by[None]}

    def as_json(self) -> dict[str, Any]:
        return {
            "examples": len(self.examples),
            "criteria": sum(len(example.criteria) for example in self.examples),
            "faulty": len({(note.example_id, note.criterion_id) for note in self.findings}),
            "model": self.model,
            "counts": self.counts(),
            "findings": [asdict(note) for note in self.findings],
            "undecided": [asdict(note) for note in self.undecided],
        }


def _value(example: Example, criterion: Criterion, column: str) -> str:
    return str(example.source if column == "source" else getattr(criterion, column))


def lint(examples: Iterable[Example], ask: Ask | None = None, model: str = "model") -> Report:
    """The rules on every criterion; `ask`, if given, decides what they leave open, under the name `model`."""
    seen: list[Example] = []
    found: list[tuple[Example, Note]] = []
    for example in examples:  # perhaps behind a progress bar: once only
        seen.append(example)
        found += [(example, note) for note in lint_example(example)]
    doubts = [pair for pair in found if not pair[1].decided_by]
    answers = list(ask(doubts)) if ask and doubts else [None] * len(doubts)
    if len(answers) != len(doubts):
        raise ValueError(f"{len(answers)} answers to {len(doubts)} questions")
    left = iter(answers)
    notes, cleared = [], Counter[str]()
    for _, note in found:
        verdict = None if note.decided_by else next(left)
        if verdict is False:
            cleared[note.kind] += 1
        else:
            notes.append(replace(note, decided_by=model) if verdict else note)
    return Report(tuple(seen), tuple(notes), cleared, model if ask else None)


def lint_example(example: Example) -> list[Note]:
    """All notes on an example's criteria, in their order."""
    pairs = {later.id: (earlier.id, finding) for later, earlier, finding in duplicates(example.criteria)}
    notes = []
    for criterion in example.criteria:
        notes += [_note(example, criterion, finding) for finding in _on_one(criterion, example)]
        if criterion.id in pairs:
            notes.append(_note(example, criterion, pairs[criterion.id][1], pairs[criterion.id][0]))
    return notes


def _on_one(criterion: Criterion, example: Example) -> Iterator[Finding]:
    on_text = (compound, uncheckable, weight, polarity)
    in_context = (dimension, answer_only, outside)
    found = [rule(criterion) for rule in on_text] + [rule(criterion, example) for rule in in_context]
    return (finding for finding in found if finding)


def _note(example: Example, criterion: Criterion, finding: Finding, other: str | None = None) -> Note:
    return Note(
        example_id=example.example_id,
        criterion_id=criterion.id,
        kind=finding.kind,
        rule=finding.rule,
        reason=finding.reason,
        decided_by="rule" if finding.sure else None,
        text=criterion.text,
        source=example.source,
        dimension=criterion.dimension,
        label=criterion.label,
        other=other,
        better=finding.better,
    )
