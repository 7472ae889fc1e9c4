"""Precision and recall of the rubric lint's rules on the criteria labelled by hand, as a table.

python tests/lint_figures.py
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from claimwise.distill.lint.report import KINDS, lint
from claimwise.verifier.tables import read_examples

DATA = Path(__file__).parent / "data/rubric_faults.jsonl"
ROWS = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]
PARTS = ("development", "held-out")
TRUTH = {
    part: {(r["example_id"], c["id"]): set(c["faults"]) for r in ROWS if r["part"] == part for c in r["criteria"]}
    for part in PARTS
}


def counts(report, part, kind):
    """(found and right, found, there) of one kind of fault in one part of the criteria."""
    truth = {key for key, faults in TRUTH[part].items() if kind in faults}
    found = {(n.example_id, n.criterion_id) for n in report.findings if n.kind == kind} & TRUTH[part].keys()
    return len(found & truth), len(found), len(truth)


def table(report) -> Iterator[str]:
    for part, truth in TRUTH.items():
        yield f"{part}: {len(truth)} criteria, {sum(not faults for faults in truth.values())} of them sound"
    yield f"{'kind':<12}" + "".join(f"{name:>32}" for name in (*PARTS, "all"))
    for kind in KINDS:
        cells = [counts(report, part, kind) for part in PARTS]
        cells.append(tuple(map(sum, zip(*cells, strict=True))))
        yield f"{kind:<12}" + "".join(
            f"{f'precision {right / found:.3f} recall {right / there:.3f}':>32}" for right, found, there in cells
        )


if __name__ == "__main__":
    print("\n".join(table(lint(read_examples(DATA)))))
