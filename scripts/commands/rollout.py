"""claimwise rollout: responses of a policy, with counterfactual, truncated and empty ones beside them."""

from __future__ import annotations

from ...verifier.tables import read_examples, write_rollouts
from ..parser import CommandParser

EXAMPLE = """example:
  claimwise rollout --policy runs/policy --examples heldout/examples.parquet --samples 4 --edits 2 --out rollouts.parquet
"""


def make_parser() -> CommandParser:
    parser = CommandParser(
        "rollout",
        "Sample responses from a policy and write them as a rollout table.",
        EXAMPLE,
    )
    parser.add_argument("--policy", required=True, help="the policy: a folder or a Hub name")
    parser.add_argument("--examples", required=True, help="example table (.parquet or .jsonl)")
    parser.add_argument("--out", required=True, help="rollout table to write (.parquet or .jsonl)")
    parser.add_argument("--samples", type=int, default=4, help="responses per example (default: 4)")
    parser.add_argument("--temperature", type=float, default=1.0, help="0 is greedy (default: 1)")
    parser.add_argument("--max-new-tokens", type=int, default=1024, help="length limit (default: 1024)")
    parser.add_argument("--edits", type=int, default=0, help="counterfactuals per response (default: 0)")
    parser.add_argument("--empty-share", type=float, default=0.02, help="share of them that is empty (default: 0.02)")
    parser.add_argument("--references", action="store_true", help="the reference responses too, edited as well")
    parser.add_argument("--name", default="policy", help="the policy's name in the table")
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same rollouts (default: 0)")
    return parser


def main(argv: list[str]) -> int:
    args = make_parser().parse_args(argv)
    examples = read_examples(args.examples)
    from ...distill.rollouts import references, sample, with_edits
    from ...verifier.model import load_model
    from ...verifier.progress import only_our_bars

    only_our_bars()
    policy = load_model(args.policy)
    rollouts = sample(policy, examples, args.samples, args.temperature, args.max_new_tokens, args.seed, name=args.name)
    if args.references:
        rollouts += references(examples)
    rollouts += list(with_edits(rollouts, args.edits, args.empty_share, args.seed))
    write_rollouts(args.out, rollouts)
    edited = sum(rollout.edit is not None for rollout in rollouts)
    print(f"{args.out}: {len(rollouts)} rollouts of {len(examples)} examples, {edited} of them edited")
    return 0
