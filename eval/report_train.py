"""The report of a GRPO run: curves, agreement with alarms and actions marked, the judge against the teacher, and cases.

In: the output folder of `claimwise train`. Out: `Report`. Of its files only `run.json` must be there; what is missing is
said in its place.

    run.json  log.jsonl (else the last checkpoint's)  eval_log.jsonl  finished.json  stopped.txt
    in_loop/{samples,alarms,escalated,rollouts}.jsonl  in_loop/refresh/  groups/step*.json
    and the examples, where run.json says they lie
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..verifier.errors import InputError
from ..verifier.schema import Example, Rollout
from ..verifier.tables import read_examples, read_rollouts
from . import report_figures
from .report_blocks import Block, Case, Columns, CreditView, Heading, Report, Said, Section, Table, Text, cells, share
from .report_cases import NOT_ATTACKED, confusion_table, pictures_of, pieces, reliability_block
from .report_credit import HOW_TO_READ, Credit, parse_credit
from .report_data import SampledPair, check_spans, json_lines, read_history, read_object, read_samples
from .report_training import in_loop_rows, training_blocks

CASES = 3  # of each kind
GROUPS = "groups/step*.json"
GROUPS_SHOWN = 3  # of those kept: the first, the last, and one between


@dataclass(frozen=True)
class TrainFolder:
    path: Path
    settings: dict[str, Any]
    log: list[dict[str, Any]]
    samples: list[SampledPair]
    alarms: list[dict[str, Any]]
    escalated: list[int]  # the step of each escalated verdict
    rollouts: dict[str, Rollout]  # the sampled ones by id
    examples: dict[str, Example]
    groups: dict[int, tuple[str, Credit]]  # by step, those that are shown: file and credit
    kept: int  # how many groups there are
    finished: dict[str, Any] | None  # the figures of the whole run
    stopped: str | None


def read_train(folder: Path) -> TrainFolder:
    settings, in_loop = read_object(folder / "run.json", "claimwise train"), folder / "in_loop"
    finished, stopped, rollouts = folder / "finished.json", folder / "stopped.txt", in_loop / "rollouts.jsonl"
    examples = Path(str(settings.get("examples") or folder / "no examples"))
    data = TrainFolder(
        path=folder,
        settings=settings,
        log=_with_evaluations(folder),
        samples=list(read_samples(in_loop / "samples.jsonl")),
        alarms=[_alarm(in_loop / "alarms.jsonl", number, row) for number, row in json_lines(in_loop / "alarms.jsonl")],
        escalated=[
            _step(in_loop / "escalated.jsonl", number, row) for number, row in json_lines(in_loop / "escalated.jsonl")
        ],
        rollouts={r.rollout_id: r for r in read_rollouts(rollouts)} if rollouts.exists() else {},
        examples={e.example_id: e for e in read_examples(examples)} if examples.is_file() else {},
        groups=_groups(folder),
        kept=len(list(folder.glob(GROUPS))),
        finished=read_object(finished, "claimwise train") if finished.exists() else None,
        stopped=stopped.read_text(encoding="utf-8").strip() if stopped.exists() else None,
    )
    for verdicts in ([s.judge for s in data.samples], [s.teacher for s in data.samples]):
        check_spans(in_loop / "samples.jsonl", verdicts, data.rollouts, "rollouts.jsonl")
    return data


def _groups(folder: Path) -> dict[int, tuple[str, Credit]]:
    files = sorted(folder.glob(GROUPS))
    last = len(files) - 1
    found = {}
    for number in sorted({round(k * last / (GROUPS_SHOWN - 1)) for k in range(GROUPS_SHOWN)} if files else ()):
        row = read_object(files[number], "claimwise train")
        step = _step(files[number], 1, row)
        found[step] = str(files[number].relative_to(folder)), parse_credit(row, files[number])
    return found


def _with_evaluations(folder: Path) -> list[dict[str, Any]]:
    """The log, each row with the evaluation after its step."""
    rows = {row["step"]: row for row in read_history(folder)}
    for number, row in json_lines(folder / "eval_log.jsonl"):
        step = _step(folder / "eval_log.jsonl", number, row)
        rows[step] = {**row, **rows.get(step, {})}
    return [rows[step] for step in sorted(rows)]


def _step(path: Path, number: int, row: dict[str, Any]) -> int:
    if type(row.get("step")) is not int:
        raise InputError(f"{path}, row {number}: key 'step' is {row.get('step')!r}; it must be a whole number")
    return row["step"]


def _alarm(path: Path, number: int, row: dict[str, Any]) -> dict[str, Any]:
    _step(path, number, row)
    if not isinstance(row.get("text"), str) or not isinstance(row.get("kind"), str):
        raise InputError(f"{path}, row {number}: it needs 'kind' and 'text', as claimwise train writes them")
    return row


def train_report(folder: Path) -> Report:
    run = read_train(folder)
    marks = {label: steps for label, steps in _marks(run).items() if steps}
    by_dimension = report_figures.in_loop_by_dimension(run.samples)
    counts = report_figures.confusion([s.teacher for s in run.samples], [s.judge for s in run.samples])
    sections = [
        Section("training", "Training", [*_ended(run), *training_blocks(run.log, run.samples, run.alarms, marks, "")]),
        Section("credit", "Who gets the credit", _credit(run)),
        Section("agreement", "The judge against the teacher", _agreement(run, counts)),
        Section("disagreements", "Where they disagree", _disagreements(run)),
        Section("made", "How it was made", [_settings(run.settings)]),
    ]
    figures = {
        "settings": run.settings,
        "in_loop": run.finished,
        "by_dimension": by_dimension,
        "confusion": counts,
        "alarms": run.alarms,
        "marks": marks,
        "stopped": run.stopped,
        "log": run.log,
    }
    return Report(folder.resolve().name, "GRPO run", _lead(run), sections, figures)


def _lead(run: TrainFolder) -> str:
    s = run.settings
    judge = s.get("verifier") or "no judge"
    steps = run.log[-1]["step"] if run.log else 0  # a row may be of several steps, or of an evaluation
    lead = f"GRPO, arm {s.get('arm')}, budget {s.get('budget')}: {steps} steps"
    lead += f" judged by {Path(str(judge)).name}, watched by {s.get('teacher') or 'nobody'}."
    alarms = f"{len(run.alarms)} alarm{'s' * (len(run.alarms) != 1)}" if run.alarms else "No alarm"
    return f"{lead} {alarms} on {len(run.samples)} sampled verdicts." if run.samples else lead


def _marks(run: TrainFolder) -> dict[str, list[int]]:
    """What is marked in the curves, at the log's steps."""
    refresh = (run.path / "in_loop/refresh").is_dir()
    agreement = sorted({alarm["step"] + 1 for alarm in run.alarms if alarm["kind"] != "hacked"})
    return {
        "alarm": agreement,
        "hacked judge": sorted({alarm["step"] + 1 for alarm in run.alarms if alarm["kind"] == "hacked"}),
        "escalation begins": [min(run.escalated) + 1] if run.escalated else [],
        "refresh written": agreement[-1:] if refresh else [],
        "stopped": agreement[-1:] if run.stopped else [],
    }


def _ended(run: TrainFolder) -> list[Block]:
    """Whether the run came to its end, and what followed from alarms."""
    blocks: list[Block] = []
    if run.stopped:
        blocks.append(Text(f"An alarm stopped this run. {run.stopped}", "alarm"))
    elif run.finished is None:
        blocks.append(Text("This run is not finished: finished.json is missing.", "absent"))
    if run.escalated:
        steps = f"{min(run.escalated)} to {max(run.escalated)}"
        blocks.append(Text(f"Escalated: {len(run.escalated)} uncertain verdicts of steps {steps} went to the teacher."))
    if (run.path / "in_loop/refresh").is_dir():
        blocks.append(Text("Refresh: the teacher’s verdicts and the command of another round of distillation are in "
                           "in_loop/refresh."))  # fmt: skip
    return blocks


def _credit(run: TrainFolder) -> list[Block]:
    if not run.groups:
        return [Text("groups/ is not in this run, so no response is shown with its credit.", "absent")]
    blocks: list[Block] = [
        Text(HOW_TO_READ),
        Text(f"{len(run.groups)} of {run.kept} groups kept, as they were judged and credited in training; "
             "claimwise credit takes any of them.", "soft"),
    ]  # fmt: skip
    for number, (step, (file, credit)) in enumerate(run.groups.items(), 1):
        example = run.examples.get(credit.example_id)
        blocks += [
            Heading(f"Step {step}, example {credit.example_id}"),
            Text(f"From {file}. Trained on: arm {credit.arm}; the others are what they would have given.", "soft"),
            CreditView(credit, pictures_of(example) if example else [], f"g{number}-"),
        ]
    return blocks


def _agreement(run: TrainFolder, counts: dict[str, dict[str, int]]) -> list[Block]:
    if not run.samples:
        return [
            Text("in_loop/samples.jsonl is not in this run, so the judge is not held against the teacher.", "absent")
        ]
    found = run.finished or {}
    rows = in_loop_rows(run.samples, found.get("agreement"), found.get("kappa"), len(run.samples))
    if found.get("agreement") is not None:
        rows[0][-1] = share(found["agreement"], found.get("agreement_ci"))
    bins = report_figures.reliability([s.teacher for s in run.samples], [s.judge for s in run.samples])
    silent = sum(sample.teacher.verdict is None for sample in run.samples)
    caption = "A sample of the judge’s verdicts, asked of the teacher too; rates weighted by one over the chance to be "
    return [
        Columns(
            [
                Table(caption + "drawn. Bracket: Wilson’s 95%.", ["Verdicts", "sampled", "unlike", "agreement"], rows),
                confusion_table("Confusion by dimension: the judge against the teacher, sampled verdicts (not "
                                "weighted). Missing ones are never scored.", counts),
                reliability_block({"the judge": bins} if bins else {}),
            ]
        ),
        *([Text(f"The teacher did not answer {silent} of the {len(run.samples)}.", "soft")] if silent else []),
        Text(NOT_ATTACKED, "absent"),
    ]  # fmt: skip


def _disagreements(run: TrainFolder) -> list[Block]:
    if not run.samples or not run.rollouts:
        return [Text("in_loop/samples.jsonl or in_loop/rollouts.jsonl is not in this run, so no response is shown.",
                     "absent")]  # fmt: skip
    blocks: list[Block] = [
        Text("A few of each kind, the most confident first. Marked: the sentence the judge points at; underlined: the "
             "teacher’s.")
    ]  # fmt: skip
    if not run.examples:
        blocks.append(Text(f"The examples are not where run.json says ({run.settings.get('examples')}), so neither "
                           "pictures nor the criteria’s texts are shown.", "absent"))  # fmt: skip
    for title, judge in (("False yes: the judge accepts, the teacher does not", True),
                         ("False no: the judge refuses, the teacher accepts", False)):  # fmt: skip
        found = [s for s in run.samples if s.judge.verdict is judge and s.teacher.verdict is (not judge)]
        known = [s for s in found if s.judge.rollout_id in run.rollouts]
        blocks.append(Heading(title))
        blocks += [_case(run, sample) for sample in _spread(known)]
        if not known:
            blocks.append(Text("None among the sampled verdicts."))
    return blocks


def _spread(samples: Sequence[SampledPair]) -> list[SampledPair]:
    """A few, the judge's most confident first, of as many examples as possible."""

    def order(s: SampledPair) -> tuple[float, int, tuple[str, str]]:
        return -abs((0.5 if s.judge.p_yes is None else s.judge.p_yes) - 0.5), s.step, s.judge.key

    firsts: dict[str, SampledPair] = {}
    others = []
    for sample in sorted(samples, key=order):
        if firsts.setdefault(sample.judge.example_id, sample) is not sample:
            others.append(sample)
    return [*firsts.values(), *others][:CASES]


def _case(run: TrainFolder, sample: SampledPair) -> Case:
    judge, teacher, example = sample.judge, sample.teacher, run.examples.get(sample.judge.example_id)
    rollout = run.rollouts[judge.rollout_id]
    text = next((c.text for c in example.criteria if c.id == judge.criterion_id), None) if example else None
    return Case(
        pictures=pictures_of(example) if example else [],
        question=example.question if example else f"example {judge.example_id}",
        criterion=text or f"criterion {judge.criterion_id}",
        about=", ".join(filter(None, (judge.criterion_id, judge.dimension))),
        pieces=pieces(rollout.response, judge.span, teacher.span),
        said=[
            Said(f"the judge, {judge.judge}", judge, judge.p_yes),
            Said(f"the teacher, {teacher.judge}", teacher, None),
        ],
        source=f"step {sample.step}, {judge.rollout_id}",
    )


def _settings(settings: dict[str, Any]) -> Table:
    rows = [cells(key, str(value)) for key, value in settings.items() if key != "command" and value not in (None, "")]
    return Table("The settings of the run (run.json).", ["Setting", "value"], rows)
