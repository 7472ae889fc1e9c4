"""How a training of the policy went, in plots and words: what the reports of a GRPO run and of a quickstart share.

In: the log (a row a step), the sampled verdicts, the alarms. Out: blocks (see `report_blocks`). Steps of samples and
alarms count from 0, those of the log from 1: what is sampled at step n is the log's step n + 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..verifier.schema import GROUPS
from . import plots, report_figures
from .report_blocks import Block, Cell, Columns, Drawing, Text, cells, share, three
from .report_data import SampledPair, is_number, series

Log = Sequence[Mapping[str, Any]]
Marks = Mapping[str, Sequence[int]]
SIGNATURE = "a reward that rises while agreement falls is the signature of a hacked judge"
MOST_ALARMS = 20
PLOTS: list[tuple[str, str, dict[str, str], str]] = [
    ("accepted", "Verdicts that say yes", {group: f"rubric/{group}/yes" for group in GROUPS}, "share"),
    ("located", "Verdicts with a deciding sentence", {group: f"rubric/{group}/located" for group in GROUPS}, "share"),
    ("fallbacks", "Fallbacks", {"verdicts without a span": "rubric/fallbacks"}, "verdicts a step"),
    ("vetoed", "Vetoed responses", {"vetoed by a pitfall": "rubric/vetoed"}, "share"),
    ("missing", "Missing verdicts", {group: f"rubric/{group}/missing" for group in GROUPS}, "share"),
    (
        "ratio",
        "Rubric beside answer",
        {"RMS of the rubric’s credit over the answer’s": "rubric/to_answer_rms"},
        "ratio",
    ),
    ("escalated", "Escalated verdicts", {"decided by the teacher": "judge/escalated"}, "verdicts a step"),
    (
        "evaluated",
        "Evaluation",
        {"reward": "eval_reward", "answer right": "eval_rewards/answer_reward/mean"},
        "share",
    ),
]


def training_blocks(
    log: list[dict[str, Any]],
    samples: Sequence[SampledPair],
    alarms: Sequence[Mapping[str, Any]],
    marks: Marks,
    at: str,
) -> list[Block]:
    """`marks`: what happened -> at which steps of the log. `at`: where the log lies in the run's folder."""
    drawn = _plots(log, samples, marks)
    said: list[Block] = [Text(text) for text in words(log, samples, alarms)]
    said += [Text(f"Alarm, {alarm['text']}.", "alarm") for alarm in alarms[:MOST_ALARMS]]
    if len(alarms) > MOST_ALARMS:
        said.append(Text(f"{len(alarms) - MOST_ALARMS} more are in in_loop/alarms.jsonl.", "soft"))
    if not log:
        said.append(Text(f"{at}log.jsonl is not in this run, so its curves are not drawn.", "absent"))
    if not drawn:
        return said
    how = "Thin lines: each step; bold: the mean of five. A verdict without a deciding sentence credits the whole "
    return [
        *said,
        Text(
            how + "response and counts as a fallback. Steps of alarms count from 0: step 7 is the curves’ eighth.",
            "soft",
        ),
        Columns([Drawing(plot, plot.title) for plot in drawn]),
    ]


def words(log: list[dict[str, Any]], samples: Sequence[SampledPair], alarms: Sequence[Mapping[str, Any]]) -> list[str]:
    """Where reward and agreement went, and whether they part."""
    reward = report_figures.change_of([value for _, value in series(log, "rubric/reward")])
    agreement = report_figures.change_of([value for _, value in _agreement(log, samples)])
    if reward is None or agreement is None:
        return [f"{SIGNATURE[0].upper()}{SIGNATURE[1:]}; this run has too few figures of both to tell."]
    moved = (
        f"From the first to the last quarter of the steps the rubric reward went from {three(reward[0])} to "
        f"{three(reward[1])}, the judge’s agreement with the teacher from {three(agreement[0])} to {three(agreement[1])}."
    )
    if any(alarm.get("kind") == "hacked" for alarm in alarms):
        return [moved, f"The reward rose while agreement fell, and a trend test confirms both: {SIGNATURE}."]
    if reward[1] > reward[0] and agreement[1] < agreement[0]:
        return [moved, f"The reward rose while agreement fell: {SIGNATURE}. No trend test has confirmed it here, so it "
                "may be the noise of the sample."]  # fmt: skip
    return [moved, f"They do not part: {SIGNATURE}, and that is not what happened here."]


def _agreement(log: Log, samples: Sequence[SampledPair]) -> list[tuple[int, float]]:
    """As the log has it; where it has none, from the samples."""
    return series(log, "judge/agreement") or report_figures.agreement_by_step(samples)


def _plots(log: Log, samples: Sequence[SampledPair], marks: Marks) -> list[plots.Plot]:
    """Those of which anything was logged; missing verdicts only where there were any."""
    reward = {"rubric reward": "rubric/reward", "answer right": "rewards/answer_reward/mean"}
    if not series(log, "rubric/reward"):
        reward = {"reward": "reward", **reward}
    rewards = _lines(log, {**reward, "digits read right": "rewards/digits_read/mean"})
    agreement = {"agreement": _agreement(log, samples), "kappa": series(log, "judge/kappa")}
    agreement = {label: points for label, points in agreement.items() if points}
    out = []
    if rewards:
        title = "Reward and reading accuracy" if "digits read right" in rewards else "Reward"
        out.append(plots.over_steps("reward", title, rewards, marks=marks))
    if agreement:
        band = [
            (row["step"], row["judge/agreement_low"], row["judge/agreement_high"])
            for row in log
            if all(is_number(row.get(f"judge/agreement{end}")) for end in ("", "_low", "_high"))
        ]
        out.append(plots.over_steps("inloop", "In-loop agreement", agreement, band=band, marks=marks))
    for name, what, keys, unit in PLOTS:
        lines = _lines(log, keys)
        if lines and not (name in ("missing", "escalated") and not any(v for p in lines.values() for _, v in p)):
            out.append(plots.over_steps(name, what, lines, unit))
    return out


def _lines(log: Log, keys: Mapping[str, str]) -> dict[str, list[tuple[int, float]]]:
    return {label: points for label, key in keys.items() if (points := series(log, key))}


def in_loop_rows(
    samples: Sequence[SampledPair], agreement: float | None, kappa: float | None, sampled: int | None
) -> list[list[Cell]]:
    """Verdicts, sampled, unlike, agreement: of all, and by dimension."""
    groups = report_figures.in_loop_by_dimension(samples)
    unlike = sum(int(found["unlike"] or 0) for found in groups.values())
    first = [
        Cell("all", "" if kappa is None else f"kappa {three(kappa)}"),
        *cells("–" if sampled is None else sampled, unlike if groups else "–"),
        share(agreement),
    ]
    rows = [
        [*cells(group, int(found["sampled"] or 0), int(found["unlike"] or 0)), share(found["agreement"])]
        for group, found in groups.items()
    ]
    return [first, *rows]
