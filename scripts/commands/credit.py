"""claimwise credit GROUP.json --arm prefix: the advantage of every token of one group of responses.

In: a JSON file (scripts/group_file.py). Out: a trace that a person can follow, or with --json one object. The numbers
are the trainer's own: both call `trainer.credit.token_advantages`, with no model and no torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path

import numpy as np

from ...trainer.credit import ARMS, BUDGETS, PITFALLS, GroupCredit, ScoredResponse, resolve_budget, token_advantages
from ...verifier.errors import InputError
from ...verifier.schema import Criterion
from ..group_file import read_group
from ..parser import CommandParser

EXAMPLE = """\
example, to copy (the second response is wrong, and says so in its first sentence):

  cat > group.json <<'END'
  {"criteria":  [{"id": "c1", "weight": 5, "label": "ESSENTIAL", "dimension": "VF"},
                 {"id": "p1", "weight": -3, "label": "PITFALL", "dimension": "RC", "yes_means": "committed"}],
   "responses": [{"token_offsets": [[0, 3], [3, 8], [8, 12], [12, 12]], "answer": 1, "format": null,
                  "verdicts": {"c1": {"verdict": true, "span": [0, 8]}, "p1": {"verdict": false, "span": null}}},
                 {"token_offsets": [[0, 4], [4, 9], [9, 9]], "answer": 0, "format": null,
                  "verdicts": {"c1": {"verdict": false, "span": [0, 4]}, "p1": {"verdict": null}}}]}
  END
  claimwise credit group.json --arm prefix --budget paper

input, such as groups/step*.json in the folder of a GRPO run:
  criteria   weight: a number, below 0 for a pitfall; label: ESSENTIAL, IMPORTANT, OPTIONAL, PITFALL or null;
             dimension: VF, RC, IF or null; yes_means, for a pitfall: committed (default) or avoided
  responses  token_offsets: the characters [start, end) of each token, in order; answer: 0, 1 or null; format: 0..1 or
             null; verdicts: true, false or null by criterion id, each with its span of characters [start, end) or null
             (no span: the criterion credits the whole response; no entry: missing, as null is)

output with --json:
  {"advantages": [[...], ...], "rewards": [{"answer", "format", "rubric", "vetoed"}, ...], "fallbacks": n, "missing": n}
  one list per response with one number per token; rewards after the veto, null where missing; fallbacks: known verdicts
  of credited criteria without a span, after the veto; missing: unknown verdicts of all criteria, before it
"""


def make_parser() -> CommandParser:
    parser = CommandParser(
        "credit",
        "The advantage of every token of one group of responses to one example.",
        EXAMPLE,
    )
    parser.add_argument("group", metavar="GROUP.json", type=Path, help="one group of at least two responses")
    parser.add_argument("--arm", choices=ARMS, default="prefix", help="who gets the credit (default: prefix)")
    parser.add_argument(
        "--budget",
        default="paper",
        metavar="NAME|A,F,R",
        help=f"shares of answer, format and rubric, summing to 1: {', '.join(BUDGETS)} or numbers (default: paper)",
    )
    parser.add_argument("--pitfalls", choices=PITFALLS, default="veto", help="what a pitfall does (default: veto)")
    parser.add_argument("--match-rms", action="store_true", help="divide by the root mean square over all tokens")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the trace")
    return parser


def main(argv: list[str]) -> int:
    args = make_parser().parse_args(argv)
    budget = resolve_budget(args.budget)
    criteria, responses = read_group(args.group)
    try:
        credit = token_advantages(
            criteria, responses, arm=args.arm, budget=budget, pitfalls=args.pitfalls, match_rms=args.match_rms
        )
    except InputError as error:
        raise InputError(f"{args.group}: {error}") from error
    if args.json:
        print(json.dumps(as_json(credit), allow_nan=False))
    else:
        shares = f"answer {budget.answer:g}, format {budget.format:g}, rubric {budget.rubric:g}"
        print(f"{args.group}: arm {args.arm}, budget {shares}, pitfalls {args.pitfalls}")
        print("\n".join(trace(criteria, responses, credit, args.arm)))
    return 0


def as_json(credit: GroupCredit) -> dict[str, object]:
    return {
        "advantages": [advantage.tolist() for advantage in credit.advantages],
        "rewards": [asdict(rewards) for rewards in credit.rewards],
        "fallbacks": credit.fallbacks,
        "missing": credit.missing,
    }


def trace(
    criteria: Sequence[Criterion], responses: Sequence[ScoredResponse], credit: GroupCredit, arm: str
) -> Iterator[str]:
    """The lines that lead from verdicts to advantages: weights, then for each response its terms and their tokens."""
    yield f"unknown verdicts {credit.missing}; known verdicts that credit a whole response {credit.fallbacks}"
    yield "\nweights: rho = |w| / sum of |w|"
    rows = []
    for criterion in criteria:
        rho = credit.weights.get(criterion.id)
        role = "not credited" if rho is None else f"rho {rho:.4f}"
        rows.append([criterion.id, str(criterion.label), criterion.dimension or "-", f"w {criterion.weight:g}", role])
    yield from _table(rows)
    z_name = "deviation / (std of the sum + 1e-4)" if arm in ("answer", "scalar") else "z"
    for g, response in enumerate(responses):
        rewards = credit.rewards[g]
        values = [f"{name} {_value(getattr(rewards, name))}" for name in ("answer", "format", "rubric")]
        yield f"\nresponses[{g}]: {', '.join(values)}{' (after the veto)' if rewards.vetoed else ''}"
        yield from _table([["criterion", "verdict", "span"], *_verdict_rows(criteria, response)])
        yield from _table([["term", "value", z_name, "share", "share x z", "tokens"], *_term_rows(credit, g)])
        yield from _table([["tokens", "advantage"], *_advantage_rows(credit.advantages[g])])
    yield f"\nroot mean square over all tokens: {', '.join(f'{part} {rms:.4f}' for part, rms in credit.rms.items())}"
    if credit.divisor != 1.0:
        yield f"advantages are the sums of their terms divided by {credit.divisor:.6f} (--match-rms)"


def _verdict_rows(criteria: Sequence[Criterion], response: ScoredResponse) -> Iterator[list[str]]:
    for criterion in criteria:
        verdict, span = response.verdicts.get(criterion.id, (None, None))
        said = "missing" if verdict is None else "yes" if verdict else "no"
        where = "-" if verdict is None or span is None else f"characters {span[0]}..{span[1]}"
        avoided = " (yes means avoided)" if criterion.is_pitfall and criterion.yes_means == "avoided" else ""
        yield [criterion.id, said + avoided, where]


def _term_rows(credit: GroupCredit, g: int) -> Iterator[list[str]]:
    tokens = len(credit.advantages[g])
    for term in filter(lambda term: term.share > 0, credit.terms):
        first, last = int(term.first_g[g]), int(term.last_g[g])
        covers = f"all {tokens}" if last - first + 1 == tokens else _range(first, last)
        numbers = [f"{term.z_g[g]:+.4f}", f"{term.share:.4f}", f"{term.added_g[g]:+.4f}"]
        yield [term.name, _value(term.value_g[g]), *numbers, covers]


def _advantage_rows(advantage: np.ndarray) -> Iterator[list[str]]:
    """Neighbouring tokens with the same advantage share a row."""
    first = 0
    for value, run in groupby(advantage.tolist()):
        last = first + len(list(run)) - 1
        yield [_range(first, last), f"{value:+.4f}"]
        first = last + 1


def _range(first: int, last: int) -> str:
    return f"{first}-{last}" if last > first else f"{first}"


def _value(value: float | None) -> str:
    return "missing" if value is None or np.isnan(value) else f"{value:.4g}"


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
