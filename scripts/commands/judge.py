"""claimwise judge: a verifier's verdicts on rollouts, as a verdict table."""

from __future__ import annotations

from ...verifier.tables import pair_up, read_examples, read_rollouts, write_verdicts
from ..parser import CommandParser

EXAMPLE = """example:
  claimwise judge --adapter runs/quickstart/verifier-image --examples runs/quickstart/heldout/examples.parquet \\
      --rollouts runs/quickstart/heldout/rollouts.parquet --out verdicts.jsonl
"""


def make_parser() -> CommandParser:
    parser = CommandParser(
        "judge",
        "Let a distilled verifier answer every criterion of every rollout.",
        EXAMPLE,
    )
    parser.add_argument("--adapter", required=True, help="a verifier's folder, as claimwise distill writes it")
    parser.add_argument("--examples", required=True, help="example table (.parquet or .jsonl)")
    parser.add_argument("--rollouts", required=True, help="rollout table (.parquet or .jsonl)")
    parser.add_argument("--out", required=True, help="verdict table to write (.jsonl or .parquet)")
    parser.add_argument("--mode", choices=["text", "image"], help="refuse an adapter of the other mode")
    parser.add_argument("--base", help="the base model, where not the one that the adapter names")
    parser.add_argument("--max-packed-tokens", type=int, default=16384, help="bound of one pass (default: 16384)")
    return parser


def main(argv: list[str]) -> int:
    args = make_parser().parse_args(argv)
    pairs = pair_up(read_examples(args.examples), read_rollouts(args.rollouts))
    from ...verifier.adapter import read_card

    read_card(args.adapter)  # refuse before torch is loaded
    from tqdm import tqdm

    from ...verifier.judge import load_judge
    from ...verifier.progress import only_our_bars

    only_our_bars()
    judge = load_judge(args.adapter, args.mode, args.base, args.max_packed_tokens)
    bar = tqdm(judge.judge_each(pairs), total=len(pairs), desc=judge.name, unit="response")
    verdicts = [verdict for row in bar for verdict in row]
    write_verdicts(args.out, verdicts)
    yes = sum(verdict.verdict is True for verdict in verdicts)
    print(f"{args.out}: {len(verdicts)} verdicts by {judge.name}, {yes} yes, {len(verdicts) - yes} no")
    return 0
