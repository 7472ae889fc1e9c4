"""`claimwise fidelity`: does a judge's table lead to the credit that the reference's leads to?

In: two verdict tables on the same rollouts and criteria, the first being the reference, with their examples and
rollouts. Out: per arm the cosine of the tokens' advantages and what goes with it (`eval.fidelity`), beside tossed coins.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...verifier.errors import InputError
from ...verifier.schema import Example, Rollout, Verdict
from ...verifier.tables import pair_up, read_examples, read_rollouts, read_verdicts
from ..parser import CommandParser

if TYPE_CHECKING:
    from ..credit_groups import Group

ARMS = ("scalar", "scalar-z", "component", "prefix", "span")
EPILOG = """example:
  claimwise fidelity runs/quickstart/verdicts/gold-image.jsonl runs/quickstart/verdicts/image.jsonl \\
      --examples runs/quickstart/heldout/examples.parquet --rollouts runs/quickstart/heldout/rollouts.parquet

The responses to one example are a group; its advantages are computed twice, from A's and from B's verdicts and spans,
with the rubric's budget alone (0,0,1): the answer's term is the same on both sides, and with it tossed coins would
already look good. Printed per arm, over the groups in which A's verdicts give any credit:
  cosine         of the two vectors of advantages, one number per token; mean over groups, its interval and its standard
                 deviation over groups. Coins: B's spans with verdicts tossed
  sign           share of the tokens with credit whose sign is the same
  best changes   share of the groups whose best response is another
Agreement counts verdicts alike; this weighs them as GRPO does."""


def make_parser() -> CommandParser:
    parser = CommandParser("fidelity", "Does a judge's table lead to the credit that the reference's leads to?", EPILOG)
    parser.add_argument("table_a", metavar="TABLE_A", type=Path, help="the reference's verdicts, .jsonl or .parquet")
    parser.add_argument("table_b", metavar="TABLE_B", type=Path, help="the verdicts to compare with it")
    parser.add_argument("--examples", type=Path, required=True, metavar="E", help="the examples that were judged")
    parser.add_argument("--rollouts", type=Path, required=True, metavar="R", help="the rollouts that were judged")
    parser.add_argument("--arm", nargs="+", choices=ARMS, default=list(ARMS), help="default: all that credit a rubric")
    parser.add_argument(
        "--pitfalls", choices=("veto", "veto-answer", "criterion", "off"), default="veto", help="default: veto"
    )
    parser.add_argument(
        "--policy", metavar="NAME", help="only its responses as sampled; without it all, edits included"
    )
    parser.add_argument("--tokenizer", metavar="DIR", help="the policy's; without one a word counts as a token")
    parser.add_draws("bootstrap and coins")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def main(argv: list[str] | None = None) -> int:
    args = make_parser().parse_args(argv)
    from ...eval.pairs import matched
    from ..credit_groups import fidelity_by_arm, groups_of
    from ..tokens import offsets_of

    tables = read_verdicts(args.table_a), read_verdicts(args.table_b)
    matched(*tables, (str(args.table_a), str(args.table_b)))
    groups, single = groups_of(_judged(args, tables[0]))
    if not groups:
        raise InputError(
            f"{args.rollouts}: no example has two judged responses{f' of {args.policy!r}' if args.policy else ''}; "
            "credit compares the responses to one example (claimwise rollout --samples 8 makes groups)"
        )
    offsets = offsets_of([r for _, group in groups for r in group], args.tokenizer)
    arms = fidelity_by_arm(*tables, groups, offsets, args.arm, args.pitfalls, draws=args.draws, seed=args.seed)
    result = {
        "token": "token" if args.tokenizer else "word",
        "single_responses": single,
        **{f"missing_{side}": _missing(table, groups) for side, table in zip("ab", tables, strict=True)},
        "arms": arms,
    }
    print(json.dumps(result, allow_nan=False) if args.json else as_text(result))
    return 0


def _missing(verdicts: list[Verdict], groups: list[Group]) -> int:
    """Criteria of the groups' responses without a verdict: missing ones, and those that the table leaves out."""
    known = {verdict.key for verdict in verdicts if verdict.verdict is not None}
    return sum((r.rollout_id, c.id) not in known for example, group in groups for r in group for c in example.criteria)


def _judged(args, verdicts: list[Verdict]) -> list[tuple[Example, Rollout]]:
    """The judged responses with their examples; with --policy that policy's as sampled."""
    rollouts = {rollout.rollout_id: rollout for rollout in read_rollouts(args.rollouts)}
    from ...eval.pairs import check_example

    judged = dict.fromkeys(verdict.rollout_id for verdict in verdicts)
    for rollout_id in judged:
        if rollout_id not in rollouts:
            raise InputError(
                f"rollout {rollout_id!r} is judged in {args.table_a}, but {args.rollouts} does not have it"
            )
    for verdict in verdicts:
        check_example(verdict, rollouts[verdict.rollout_id])
    chosen = [rollouts[rollout_id] for rollout_id in judged]
    if args.policy is not None:
        chosen = [rollout for rollout in chosen if rollout.policy == args.policy and rollout.edit is None]
    return pair_up(read_examples(args.examples), chosen)


def as_text(result: dict[str, Any]) -> str:
    rows = [["arm", "groups", "cosine", "std", "coins", "sign", "coins", "best changes", "coins"]]
    for arm, figures in result["arms"].items():
        coins = figures["coin_flip"]
        row = [arm, str(figures["groups"]), _figure(figures, "cosine"), _plain(figures["cosine_std"])]
        for name in ("sign", "best_changes"):
            row += [_plain(coins["cosine" if name == "sign" else "sign"]), _figure(figures, name)]
        rows.append([*row, _plain(coins["best_changes"])])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    any_arm = next(iter(result["arms"].values()))
    lines += [
        "",
        f"per {result['token']}; {any_arm['flat']} groups without spread under A left out (B gives credit in "
        f"{any_arm['invented']} of them), {result['single_responses']} examples with a single response",
    ]
    if result["missing_a"] or result["missing_b"]:
        lines.append(
            f"criteria without a verdict, which give no credit: {result['missing_a']} of A, {result['missing_b']} of B; "
            f"B gives no credit at all in {any_arm['silent']} of the groups, and {any_arm['unranked']} are not in best "
            "changes, for one side knows no reward there"
        )
    return "\n".join(lines)


def _figure(figures: dict[str, Any], name: str) -> str:
    value, ci = figures[name], figures[f"{name}_ci"]
    return _plain(value) + (f" [{ci[0]:.3f}, {ci[1]:.3f}]" if ci else "")


def _plain(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
