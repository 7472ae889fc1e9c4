"""The figures behind a report, without any markup: who agrees with gold, how, where not, and how training went.

In: a `RunFolder`. Out: plain values. All agreements are against the gold verdicts in image mode. "Wrong criteria" are
the pairs whose text-mode and image-mode gold differ. Intervals come from `eval.agreement`, bootstrapped over examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..verifier.errors import InputError
from ..verifier.schema import GROUPS, Example, Rollout, Verdict
from .agreement import agree
from .report_data import RunFolder, SampledPair

JUDGES = {"image": "image-aware", "text": "text-only", "base": "base"}
RELIABILITY_BINS = 15  # those of `calibration.expected_calibration_error`

Agreement = dict[str, Any]  # what `agree` returns


@dataclass(frozen=True)
class Cell:
    value: float | None = None
    interval: list[float] | None = None


@dataclass(frozen=True)
class Row:
    """One line of the table of results: a name, the number of pairs it rests on, a cell for each judge."""

    name: str
    n: int | None
    cells: dict[str, Cell]


@dataclass(frozen=True)
class Comparison:
    """A judge against gold in image mode: on all pairs, on the wrong criteria, where gold says yes."""

    everything: Agreement
    wrong: Agreement | None
    gold_yes: Agreement


@dataclass(frozen=True)
class Disagreement:
    """One pair where a judge goes astray. `by` holds each table's verdict on it."""

    example: Example
    rollout: Rollout
    by: dict[str, Verdict]
    judge: str

    @property
    def criterion_text(self) -> str:
        wanted = self.by[self.judge].criterion_id
        return next((c.text for c in self.example.criteria if c.id == wanted), wanted)


def compare(run: RunFolder) -> dict[str, Comparison]:
    """Each judge that has a verdict table, against gold; none where gold itself is missing."""
    gold, text = run.verdicts.get("gold-image"), run.verdicts.get("gold-text")
    if gold is None:
        return {}
    wrong = None
    if text is not None:
        said = {v.key: v.verdict for v in text}
        wrong = {v.key for v in gold if None not in (v.verdict, said.get(v.key)) and said[v.key] != v.verdict}
    yes = {v.key for v in gold if v.verdict}
    out = {}
    for judge in (name for name in JUDGES if name in run.verdicts):
        verdicts = run.verdicts[judge]
        names = str(run.table_path("gold-image")), str(run.table_path(judge))
        everything = agree(gold, verdicts, names=names)
        out[judge] = Comparison(
            everything, None if wrong is None else _agree_on(wrong, gold, verdicts), _agree_on(yes, gold, verdicts)
        )
    return out


def _agree_on(keys: set[tuple[str, str]], gold: Sequence[Verdict], other: Sequence[Verdict]) -> Agreement:
    return agree([v for v in gold if v.key in keys], [v for v in other if v.key in keys])


def headline(run: RunFolder, compared: dict[str, Comparison]) -> list[Row]:
    """The table of results: the summary's figures, the tables' where the summary has none, and their intervals."""
    overall = {judge: c.everything["overall"] for judge, c in compared.items()}
    of_group = {g: {judge: c.everything["by_dimension"].get(g, {}) for judge, c in compared.items()} for g in GROUPS}
    wrong = {judge: c.wrong["overall"] for judge, c in compared.items() if c.wrong is not None}
    gold_yes = {judge: c.gold_yes["overall"] for judge, c in compared.items()}
    rows = [
        _row(run, "Agreement", ("agreement",), overall),
        _row(run, "Cohen’s kappa", ("kappa",), overall, "kappa"),
        *(_row(run, f"Agreement, {g}", ("by_dimension", g, "agreement"), of_group[g]) for g in GROUPS),
        _row(run, "Agreement, wrong criteria", ("wrong_criteria_agreement",), wrong),
        _row(run, "False yes", (), overall, "false_yes"),
        _row(run, "False no", (), overall, "false_no"),
        _row(run, "Span exact, given yes", ("span_exact_given_yes",), gold_yes, "span_exact"),
        _row(run, "False yes, under attack", ("attacks", "false_yes"), {}),
        _row(run, "Calibration error (ECE)", ("ece",), {}),
    ]
    return [row for row in rows if any(cell.value is not None for cell in row.cells.values())]


def _row(
    run: RunFolder, name: str, keys: tuple[str, ...], figures: dict[str, dict[str, Any]], metric: str = "agreement"
) -> Row:
    """`keys` lead to the summary's figure below each judge; `figures` are the tables', by judge."""
    cells = {}
    for judge in JUDGES:
        value = run.figure("verifier", judge, *keys) if keys else None
        of_summary = run.interval("verifier", judge, *keys[:-1], f"{keys[-1]}_ci") if keys else None
        found = figures.get(judge, {})
        cells[judge] = Cell(found.get(metric) if value is None else value, found.get(f"{metric}_ci") or of_summary)
    counted = [found["n"] for found in figures.values() if "n" in found]
    return Row(name, counted[0] if counted and metric in ("agreement", "span_exact") else None, cells)


def confusion(gold: Sequence[Verdict], other: Sequence[Verdict]) -> dict[str, dict[str, int]]:
    """By dimension: pairs with both yes, false no, false yes, both no, and those with a missing verdict."""
    said = {v.key: v.verdict for v in other}
    names = {(True, True): "both yes", (True, False): "false no", (False, True): "false yes", (False, False): "both no"}
    out: dict[str, dict[str, int]] = {}
    for v in gold:
        row = out.setdefault(v.dimension or "other", dict.fromkeys([*names.values(), "missing"], 0))
        b = said.get(v.key)
        row["missing" if v.verdict is None or b is None else names[v.verdict, b]] += 1
    return {group: out[group] for group in (*GROUPS, "other") if group in out}


def reliability(gold: Sequence[Verdict], other: Sequence[Verdict]) -> list[tuple[float, float, int]]:
    """(mean P(yes), share of gold yes, pairs) of each bin of equal width that holds any pair."""
    truth = {v.key: v.verdict for v in gold}
    known = [(v.p_yes, truth[v.key]) for v in other if v.p_yes is not None and truth.get(v.key) is not None]
    if not known:
        return []
    p, yes = np.array(known, dtype=float).T
    bin_of = np.minimum((p * RELIABILITY_BINS).astype(int), RELIABILITY_BINS - 1)
    bins = [bin_of == b for b in np.unique(bin_of)]
    return [(float(p[b].mean()), float(yes[b].mean()), int(b.sum())) for b in bins]


def disagreements(run: RunFolder, count: int = 3) -> dict[str, list[Disagreement] | None]:
    """Up to `count` pairs of each kind, the judge's most confident ones first, from as many examples as possible.

    None instead of a list where a table that the kind needs is missing.
    """
    by_key: dict[tuple[str, str], dict[str, Verdict]] = {}
    for name, verdicts in run.verdicts.items():
        for verdict in verdicts:
            by_key.setdefault(verdict.key, {})[name] = verdict
    kinds: dict[str, tuple[str, dict[str, bool]]] = {
        "false yes": ("image", {"gold-image": False, "image": True}),
        "false no": ("image", {"gold-image": True, "image": False}),
        "text-only fooled": ("text", {"gold-image": False, "gold-text": True, "text": True}),
    }
    out: dict[str, list[Disagreement] | None] = {}
    for kind, (judge, wanted) in kinds.items():
        if not run.examples or not run.rollouts or not wanted.keys() <= run.verdicts.keys():
            out[kind] = None
            continue
        found = [
            by
            for by in by_key.values()
            if all(name in by and by[name].verdict is verdict for name, verdict in wanted.items())
        ]
        chosen = _spread(sorted(found, key=lambda by: _order(by, judge)), count)
        out[kind] = [_disagreement(run, by, judge) for by in chosen if by[judge].rollout_id in run.rollouts]
    return out


def _order(by: dict[str, Verdict], judge: str) -> tuple[bool, float, tuple[str, str]]:
    """Where the text-only judge is fooled, those first that the image-aware one saw through; then by confidence."""
    verdict = by[judge]
    seen_through = judge == "text" and "image" in by and by["image"].verdict is False
    return not seen_through, -abs((0.5 if verdict.p_yes is None else verdict.p_yes) - 0.5), verdict.key


def _spread(ordered: list[dict[str, Verdict]], count: int) -> list[dict[str, Verdict]]:
    """The first `count`, one per example as far as that goes."""
    seen: set[str] = set()
    firsts, others = [], []
    for by in ordered:
        example_id = by["gold-image"].example_id
        (others if example_id in seen else firsts).append(by)
        seen.add(example_id)
    return [*firsts, *others][:count]


def _disagreement(run: RunFolder, by: dict[str, Verdict], judge: str) -> Disagreement:
    rollout = run.rollouts[by[judge].rollout_id]
    if rollout.example_id not in run.examples:
        raise InputError(
            f"{run.path / 'heldout/rollouts.parquet'}: rollout {rollout.rollout_id!r} answers example "
            f"{rollout.example_id!r}, which heldout/examples.parquet does not have"
        )
    return Disagreement(run.examples[rollout.example_id], rollout, by, judge)


def in_loop_by_dimension(samples: Sequence[SampledPair]) -> dict[str, dict[str, float | int | None]]:
    """Sampled verdicts by dimension: how many, and the agreement weighted by one over the chance to be drawn."""
    groups: dict[str, list[SampledPair]] = {}
    for pair in samples:
        groups.setdefault(pair.judge.dimension or "other", []).append(pair)
    out: dict[str, dict[str, float | int | None]] = {}
    for group in (g for g in (*GROUPS, "other") if g in groups):
        known = [s for s in groups[group] if None not in (s.judge.verdict, s.teacher.verdict)]
        total = sum(s.weight for s in known)
        alike = sum(s.weight for s in known if s.judge.verdict == s.teacher.verdict)
        unlike = sum(s.judge.verdict != s.teacher.verdict for s in known)
        out[group] = {"sampled": len(groups[group]), "unlike": unlike, "agreement": alike / total if total else None}
    return out


def agreement_by_step(samples: Sequence[SampledPair], window: int = 10) -> list[tuple[int, float]]:
    """(step of the log, weighted agreement over the last steps) of each step with a known pair among them."""
    out = []
    for step in sorted({sample.step for sample in samples}):
        known = [
            s for s in samples if step - window < s.step <= step and None not in (s.judge.verdict, s.teacher.verdict)
        ]
        if known:
            alike = sum(s.weight for s in known if s.judge.verdict == s.teacher.verdict)
            out.append((step + 1, alike / sum(s.weight for s in known)))
    return out


def change_of(values: Sequence[float]) -> tuple[float, float] | None:
    """Means over the first and the last quarter; None with fewer than four."""
    quarter = len(values) // 4
    return (float(np.mean(values[:quarter])), float(np.mean(values[-quarter:]))) if quarter else None
