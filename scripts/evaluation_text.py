"""The figures of `claimwise evaluate` as text and as Markdown.

In: the dictionary of `eval.policy.evaluate`, with the run's settings. Out: one table of figures by policies with their
paired differences, one by source and one by difficulty, and what is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..eval.policy import ANSWER, FIGURES, GIVEN_RIGHT, HEADLINE
from ..eval.report_text import plain
from ..verifier.text import one_line

LABELS = {
    HEADLINE: "right answer, but a VF criterion failed",
    GIVEN_RIGHT: "  the same, of the right answers",
    ANSWER: "right answer",
    "pass": "criteria that hold",
    "pass_PITFALL": "  pitfalls avoided",
}
BROKEN_DOWN = (HEADLINE, ANSWER, "pass_VF")
Table = list[list[str]]


def as_text(result: Mapping[str, Any]) -> str:
    lines = []
    for table in _tables(result):
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines += ["  ".join(map(str.ljust, row, widths)).rstrip() for row in table] + [""]
    return "\n".join(map(one_line, [*lines, *_remarks(result)]))


def as_markdown(result: Mapping[str, Any]) -> str:
    lines = ["# Policies on held-out rubric data", ""]
    for head, *rows in _tables(result):
        lines += [_row(head), "|---" * len(head) + "|", *(_row(row) for row in rows), ""]
    return "\n".join([*lines, *(f"- {plain(remark)}" for remark in _remarks(result))]) + "\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(plain, cells))} |"


def _tables(result: Mapping[str, Any]) -> list[Table]:
    policies, differences = result["policies"], result["differences"]
    main = [["", *policies, *(f"{d['b']} less {d['a']}" for d in differences)]]
    for name in FIGURES:
        values = [_figure(policy["figures"][name]) for policy in policies.values()]
        main.append(
            [_label(name), *values, *(_difference(d["figures"][name], result["examples"]) for d in differences)]
        )
    if any("judge" in policy for policy in policies.values()):
        main += _judge_rows(policies, len(differences))
    tables = [main]
    for family in ("source", "difficulty"):
        groups = sorted({group for policy in policies.values() for group in policy[f"by_{family}"]})
        rows = []
        for group in groups:
            found = [policy[f"by_{family}"].get(group, {}) for policy in policies.values()]
            rows += [
                [f"{group}: {_label(name).strip()}", *(_figure(f.get(name)) for f in found)] for name in BROKEN_DOWN
            ]
        if rows:
            tables.append([[f"by {family}", *policies], *rows])
    return tables


def _label(name: str) -> str:
    return LABELS.get(name, f"  {name.removeprefix('pass_')}")


def _judge_rows(policies: Mapping[str, Any], differences: int) -> Table:
    """What the judge's own errors make of the figures."""
    floors = [_number(policy["judge"]["floor"]) for policy in policies.values()]
    rows = [["of the right answers, by the judge's false noes alone", *floors]]
    for group in dict.fromkeys(g for policy in policies.values() for g in policy["judge"]["corrected"]):
        found = [policy["judge"]["corrected"].get(group) for policy in policies.values()]
        rows.append([f"  {group} without the judge's errors", *(_bounded(one) for one in found)])
    return [[*row, *[""] * differences] for row in rows]


def _bounded(found: Mapping[str, Any] | None) -> str:
    return "-" if found is None else _figure({"value": found["value"], "ci": found["bounds"]})


def _figure(found: Mapping[str, Any] | None) -> str:
    if found is None or found["value"] is None:
        return "-"
    return _number(found["value"]) + (f" [{found['ci'][0]:.3f}, {found['ci'][1]:.3f}]" if found["ci"] else "")


def _difference(found: Mapping[str, Any], examples: int) -> str:
    if found["difference"] is None:
        return "-"
    shown = f"{found['difference']:+.3f}" + (f" [{found['ci'][0]:+.3f}, {found['ci'][1]:+.3f}]" if found["ci"] else "")
    return shown if found["examples"] == examples else f"{shown} over {found['examples']}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _remarks(result: Mapping[str, Any]) -> list[str]:
    settings, out = result["settings"], []
    for name, policy in result["policies"].items():
        there = f"{policy['responses']} of {settings['responses_wanted']} responses, {policy['truncated']} truncated"
        out.append(
            f"{name}: {there}; {policy['verdicts']} verdicts, {policy['missing_verdicts']} missing; answers: "
            f"{policy['answers_by_rule']} by rule, {policy['answers_by_judge']} by the judge, "
            f"{policy['undecided_answers']} undecided, {policy['without_answer']} without one to compare with; "
            f"{policy['without_vf']} without a VF criterion"
        )
        bounds = policy["headline_bounds"]
        if bounds["least"] != bounds["most"]:
            out.append(
                f"{name}: with what is unknown, the first figure is {bounds['least']:.3f} to {bounds['most']:.3f}"
            )
    out.append(
        f"{result['examples']} examples; judge: {settings['judge']} in {settings['mode']} mode; nothing missing is scored"
    )
    if settings["mode"] == "text":
        out.append("the judge does not see the image: a VF criterion holds here if the response says so, true or not")
    if result["differences"]:
        out.append(
            "differences are over the examples in which both policies have something to count, all or as many as it says"
        )
    out.append(
        "a criterion that contradicts the image fails every true response (claimwise audit finds such criteria): read a "
        "policy's first figure beside another's"
    )
    return out
