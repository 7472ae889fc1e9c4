"""The report of a quickstart: verifiers against gold, the policy before and after, credit, attacks, disagreements.

In: the folder of a run (see `report_data`). Out: `Report`. A part that the run does not have leaves its block out, with a
sentence that says so.
"""

from __future__ import annotations

from pathlib import Path

from . import plots, report_figures
from .report_blocks import (
    Block,
    Case,
    Cell,
    Columns,
    CreditView,
    Drawing,
    Heading,
    Report,
    Said,
    Section,
    Table,
    Text,
    cells,
    duration,
    percent,
    picture,
    share,
    signed,
)
from .report_cases import confusion_table, pictures_of, pieces, reliability_block
from .report_credit import HOW_TO_READ
from .report_data import RunFolder, read_run
from .report_figures import JUDGES, Comparison, Disagreement
from .report_measured import attacks, measured
from .report_training import in_loop_rows, training_blocks

FIGURES_OF_THE_POLICY = {
    "digits": "Digits read right",
    "conclusion": "Conclusion follows",
    "answer": "Answer right",
}
WHO = {
    "gold-image": "gold, seeing the picture",
    "gold-text": "gold, text alone",
    "image": "image-aware",
    "text": "text-only",
    "base": "base",
}
KINDS = {
    "false yes": "False yes: the image-aware verifier accepts, gold does not",
    "false no": "False no: the image-aware verifier refuses, gold accepts",
    "text-only fooled": "Fooled by a wrong criterion: the text-only verifier accepts, the picture says otherwise",
}
NOT_HERE = {
    "gold-text": "the wrong criteria are not shown apart",
    "image": "the image-aware verifier is not shown",
    "text": "the text-only verifier is not shown",
    "base": "the base before distillation is not shown",
}


def quickstart_report(folder: Path) -> Report:
    run = read_run(folder)
    compared = report_figures.compare(run)
    sections = [
        Section("results", "Results", _results(run, compared)),
        Section("credit", "Who gets the credit", _credit(run)),
        Section("agreement", "Agreement with gold", _agreement(run, compared)),
        Section("attacks", "Under attack", attacks(run)),
        Section("training", "Training the policy", training_blocks(run.log, run.samples, [], {}, "policy/")),
        Section("disagreements", "Where they disagree", _disagreements(run)),
        Section("made", "How it was made", _made(run)),
    ]
    figures = {
        "summary": run.summary,
        "agreement": {judge: comparison.everything for judge, comparison in compared.items()},
        "wrong_criteria": {judge: comparison.wrong for judge, comparison in compared.items()},
        "confusion": {judge: _confusion(run, judge) for judge in compared},
        "log": run.log,
    }
    return Report(folder.resolve().name, "quickstart", _lead(run), sections, figures)


def _confusion(run: RunFolder, judge: str) -> dict[str, dict[str, int]]:
    return report_figures.confusion(run.verdicts["gold-image"], run.verdicts[judge])


def _lead(run: RunFolder) -> str:
    said = [
        "One claim, one verdict, one credit. A small verifier reads a picture, a question, a response and one criterion, "
        "and answers yes or no together with the sentence that decides it; in training, each criterion’s credit then "
        "reaches the tokens up to that sentence and no further."
    ]
    agreement = run.figure("verifier", "image", "agreement")
    wrong, wrong_text = (run.figure("verifier", mode, "wrong_criteria_agreement") for mode in ("image", "text"))
    gold = run.verdicts.get("gold-image", [])
    if agreement is not None:
        sentence = f"In this run the image-aware verifier agrees with {gold[0].judge if gold else 'gold'} on "
        sentence += f"{percent(agreement)} of held-out verdicts"
        if wrong is not None and wrong_text is not None:
            sentence += f", and where the criterion itself is wrong on {percent(wrong)}, against {percent(wrong_text)} "
            sentence += "of the verifier that sees the text alone"
        said.append(sentence + ".")
    for name, before, after in _policy(run)[:1]:
        if before is not None and after is not None:
            said.append(f"{name} by the policy went from {percent(before)} to {percent(after)}.")
    return " ".join(said)


def _policy(run: RunFolder) -> list[tuple[str, float | None, float | None]]:
    """(figure, before, after), those that are known."""
    rows = [
        (name, run.figure("policy", "before", key), run.figure("policy", "after", key))
        for key, name in FIGURES_OF_THE_POLICY.items()
    ]
    return [row for row in rows if row[1:] != (None, None)]


def _results(run: RunFolder, compared: dict[str, Comparison]) -> list[Block]:
    rows = report_figures.headline(run, compared)
    gold = run.verdicts.get("gold-image", [])
    blocks: list[Block] = [Text("This run has no figures of a verifier.", "absent")]
    if rows:
        who = f" ({gold[0].judge})" if gold else ""
        count = f": {len(gold)} verdicts on {len({v.example_id for v in gold})} examples" if gold else ""
        caption = (
            f"Verifiers against gold{who} on held-out rollouts{count}. Brackets: 95% intervals, bootstrapped over "
        )
        table = [
            [
                Cell(row.name, "" if row.n is None else f"n = {row.n}"),
                *(share(c.value, c.interval) for c in row.cells.values()),
            ]
            for row in rows
        ]
        blocks = [
            Table(caption + "examples; under attack: Wilson’s.", ["Figure", *JUDGES.values()], table, wide=True),
            Text(
                "A wrong criterion says of the picture what is not so: a response that repeats it satisfies its text, "
                "and only a judge that sees the picture can refuse. False yes: the share of yes among gold’s no; false "
                "no: of no among gold’s yes.",
                "soft",
            ),
        ]
    return [*blocks, Columns([*_policy_blocks(run), *_in_loop(run), *measured(run)])]


def _policy_blocks(run: RunFolder) -> list[Block]:
    rows = [
        cells(
            name,
            share(before),
            share(after),
            signed(None if before is None or after is None else after - before),
        )
        for name, before, after in _policy(run)
    ]
    if not rows:
        return [Text("This run has no figures of a policy.", "absent")]
    caption = "The policy before and after: sampled responses, against the human labels."
    return [Table(caption, ["Figure", "before", "after", "change"], rows)]


def _in_loop(run: RunFolder) -> list[Block]:
    agreement, kappa, sampled = (run.figure("in_loop", key) for key in ("agreement", "kappa", "sampled"))
    if agreement is None:
        return [Text("This run has no figures of in-loop agreement.", "absent")]
    rows = in_loop_rows(run.samples, agreement, kappa, None if sampled is None else int(sampled))
    caption = "The verifier while it judged the training: a sample of its verdicts, asked of the teacher too; rates "
    blocks: list[Block] = [
        Table(
            caption + "weighted by one over the chance to be drawn.",
            ["Verdicts", "sampled", "unlike", "agreement"],
            rows,
        )
    ]
    if not run.samples:
        missing = "policy/in_loop/samples.jsonl is not in this run, so the sample is not shown by dimension."
        blocks.append(Text(missing, "absent"))
    return blocks


def _credit(run: RunFolder) -> list[Block]:
    if run.credit is None:
        return [Text("credit.json is not in this run, so no response is shown with its credit.", "absent")]
    alt, image = f"The picture of example {run.credit.example_id}: {run.credit.question}", run.path / "credit.png"
    return [Text(HOW_TO_READ), CreditView(run.credit, [picture(image, alt)] if image.is_file() else [])]


def _agreement(run: RunFolder, compared: dict[str, Comparison]) -> list[Block]:
    drawn = _dimension_plot(compared)
    if drawn is None:
        missing = (
            "verdicts/gold-image.jsonl, or every verifier’s table, is not in this run, so agreement is not broken "
        )
        return [Text(missing + "down.", "absent")]
    blocks: list[Block] = [
        Text(f"verdicts/{table}.jsonl is not in this run, so {what}.", "absent")
        for table, what in NOT_HERE.items()
        if table not in run.verdicts
    ]
    by_dimension = (
        "By dimension: VF visual faithfulness, RC reasoning consistency, IF instruction following. Bars: 95% intervals."
    )
    bins = {name: report_figures.reliability(run.verdicts["gold-image"], run.verdicts.get(judge, []))
            for judge, name in JUDGES.items()}  # fmt: skip
    bins = {name: values for name, values in bins.items() if values}
    confusions = [
        confusion_table(f"{JUDGES[judge]}: number of verdicts. Missing ones are never scored.", _confusion(run, judge))
        for judge in compared
    ]
    return [
        *blocks,
        Columns([Drawing(drawn, by_dimension), reliability_block(bins)]),
        Heading("Confusion by dimension"),
        Columns(confusions),
    ]


def _dimension_plot(compared: dict[str, Comparison]) -> plots.Plot | None:
    figures = {}
    for judge, comparison in compared.items():
        found = comparison.everything["by_dimension"]
        known = {g: (f["agreement"], f["agreement_ci"]) for g, f in found.items() if f["agreement"] is not None}
        if comparison.wrong is not None and (overall := comparison.wrong["overall"])["agreement"] is not None:
            known["wrong\ncriteria"] = overall["agreement"], overall["agreement_ci"]
        if known:
            figures[JUDGES[judge]] = known
    return plots.by_dimension(figures) if figures else None


def _disagreements(run: RunFolder) -> list[Block]:
    blocks: list[Block] = [Text("A few of each kind, the most confident first. Marked: the sentence the judge points at; "
                                "underlined: gold’s.")]  # fmt: skip
    for kind, found in report_figures.disagreements(run).items():
        blocks.append(Heading(KINDS[kind]))
        if found is None:
            needed = (
                "A table that this needs (heldout/examples.parquet, heldout/rollouts.parquet or verdicts) is not in "
            )
            blocks.append(Text(needed + "this run.", "absent"))
        elif not found:
            blocks.append(Text("None among the held-out verdicts."))
        blocks += [_case(case) for case in found or []]
    return blocks


def _case(found: Disagreement) -> Case:
    gold, rollout = found.by["gold-image"], found.rollout
    return Case(
        pictures=pictures_of(found.example),
        question=found.example.question,
        criterion=found.criterion_text,
        about=", ".join(filter(None, (gold.criterion_id, gold.dimension))),
        pieces=pieces(rollout.response, found.by[found.judge].span, gold.span),
        said=[
            Said(who, found.by[name], found.by[name].p_yes if name in JUDGES else None)
            for name, who in WHO.items()
            if name in found.by
        ],
        source=rollout.rollout_id + (f"; edited: {rollout.edit}" if rollout.edit else ""),
    )


def _made(run: RunFolder) -> list[Block]:
    seed = run.summary.get("seed")
    stages = [cells(stage, duration(run.figure("seconds", stage))) for stage in run.entries("seconds")]
    versions = [cells(package, str(version)) for package, version in sorted(run.entries("versions").items())]
    return [
        Text(
            f"Seed {'not recorded' if seed is None else seed}. The figures above are those of summary.json; the tables "
            "behind them lie beside it in verdicts/ and heldout/."
        ),
        Columns(
            [
                Table("Time by stage.", ["Stage", "time"], stages)
                if stages
                else Text("This run has no record of its time.", "absent"),
                Table("Versions.", ["Package", "version"], versions)
                if versions
                else Text("This run has no record of its versions.", "absent"),
            ]
        ),
    ]
