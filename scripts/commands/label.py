"""claimwise label: a teacher's verdicts on rollouts, as a verdict table."""

from __future__ import annotations

from collections import Counter

from ...verifier.tables import pair_up, read_examples, read_rollouts, write_verdicts
from ..parser import CommandParser

EXAMPLE = """example:
  claimwise label --teacher oracle --mode image --examples heldout/examples.parquet \\
      --rollouts heldout/rollouts.parquet --out gold-image.jsonl
"""


def make_parser() -> CommandParser:
    parser = CommandParser(
        "label",
        "Ask a teacher every criterion of every rollout and write its verdicts.",
        EXAMPLE,
    )
    parser.add_argument("--examples", required=True, help="example table (.parquet or .jsonl)")
    parser.add_argument("--rollouts", required=True, help="rollout table (.parquet or .jsonl)")
    parser.add_argument("--out", required=True, help="verdict table to write (.jsonl or .parquet)")
    parser.add_argument(
        "--teacher", choices=["oracle"], default="oracle", help="oracle: the digits world's human labels"
    )
    parser.add_argument("--mode", choices=["text", "image"], default="image", help="does the teacher see the image")
    return parser


def main(argv: list[str]) -> int:
    args = make_parser().parse_args(argv)
    pairs = pair_up(read_examples(args.examples), read_rollouts(args.rollouts))
    from ...distill.oracle import OracleJudge

    verdicts = OracleJudge(args.mode).judge(pairs)
    write_verdicts(args.out, verdicts)
    count = Counter(verdict.verdict for verdict in verdicts)
    print(f"{args.out}: {len(verdicts)} verdicts, {count[True]} yes, {count[False]} no, {count[None]} missing")
    return 0
