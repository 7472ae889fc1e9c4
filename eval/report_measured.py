"""What a quickstart measured of its verifiers besides agreement: credit fidelity, the criterion audit, attacks.

In: the run, whose `summary.json` has "fidelity", "criteria_audit" and "attacks". Out: blocks (see `report_blocks`).
"""

from __future__ import annotations

from .report_blocks import Block, Cell, Table, Text, cells, share
from .report_data import RunFolder
from .report_figures import JUDGES


def measured(run: RunFolder) -> list[Block]:
    """Credit fidelity by arm, and the criterion audit."""
    arms = list(run.entries("fidelity"))
    blocks: list[Block] = [Text("This run has no figures of credit fidelity.", "absent")]
    if arms:
        rows = [
            cells(
                arm,
                share(run.figure("fidelity", arm, "cosine"), run.interval("fidelity", arm, "cosine_ci")),
                share(run.figure("fidelity", arm, "sign")),
                share(run.figure("fidelity", arm, "coin_flip", "cosine")),
            )
            for arm in arms
        ]
        groups = run.figure("fidelity", arms[0], "groups")
        caption = (
            "Credit fidelity: cosine of the tokens’ advantages under the verifier’s verdicts with those under the "
        )
        caption += f"teacher’s, rubric term alone, mean of {int(groups or 0)} groups."
        blocks = [Table(caption, ["Arm", "cosine", "same sign", "tossed verdicts"], rows)]
    return [*blocks, *_audit(run)]


def _audit(run: RunFolder) -> list[Block]:
    wrong = run.figure("criteria_audit", "gold", "wrong")
    if wrong is None:
        return [Text("This run has no figures of the criterion audit.", "absent")]
    found, flagged = (int(run.figure("criteria_audit", "gold", key) or 0) for key in ("found", "flagged"))
    rows = [
        cells(
            name,
            f"{found} of {of}",
            share(run.figure("criteria_audit", "gold", key), run.interval("criteria_audit", "gold", f"{key}_ci")),
        )
        for name, key, of in (("Recall", "recall", int(wrong)), ("Precision", "precision", flagged))
    ]
    caption = (
        "Criterion audit, without people: the criteria that the verifier calls false of the picture, against those "
    )
    return [Table(caption + "that are wrong on purpose.", ["Figure", "criteria", "share"], rows)]


def attacks(run: RunFolder) -> list[Block]:
    """The adversarial slice: the false yes of the judges that were attacked, with its interval and by kind."""
    judges = [judge for judge in JUDGES if run.figure("verifier", judge, "attacks", "false_yes") is not None]
    if not judges:
        return [Text("The verifiers of this run were not attacked, so the adversarial slice is not shown.", "absent")]
    kinds: dict[str, None] = {}
    for judge in judges:
        kinds |= dict.fromkeys(run.entries("verifier")[judge]["attacks"].get("by_kind") or {})
    rows = [[Cell("all"), *(_under_attack(run, judge) for judge in judges)]]
    rows += [
        [Cell(kind), *(share(run.figure("verifier", judge, "attacks", "by_kind", kind)) for judge in judges)]
        for kind in kinds
    ]
    counts = ", ".join(
        f"{JUDGES[judge]} {int(run.figure('verifier', judge, 'attacks', 'n') or 0)} judged and "
        f"{int(run.figure('verifier', judge, 'attacks', 'missing') or 0)} missing"
        for judge in judges
    )
    caption = f"Share of attacks that talk the judge into yes, where no is right ({counts}). Bracket: Wilson’s 95% "
    return [
        Text(
            "The adversarial slice: responses made to be accepted without doing what the criterion says, such as its "
            "own words as an order, a list of all values, or a hedge."
        ),
        Table(caption + "interval.", ["Kind", *(JUDGES[judge] for judge in judges)], rows),
    ]


def _under_attack(run: RunFolder, judge: str) -> Cell:
    keys = ("verifier", judge, "attacks")
    return share(run.figure(*keys, "false_yes"), run.interval(*keys, "false_yes_ci"))
