"""`claimwise audit NAME`: what is wrong with rubrics and judges."""

from __future__ import annotations

from ..parser import dispatch

SUBCOMMANDS = {  # name: module of `scripts`, what it does
    "criteria": (
        "commands.audit_criteria",
        "ask a judge that sees the image whether each criterion is true of it",
    ),
    "sample": ("commands.audit_sample", "a page on which people judge a sample of responses, blind to the judges"),
    "merge": ("commands.audit_merge", "what people answered there, as verdict tables, beside the judges'"),
}
HELP = """usage: claimwise audit NAME ...

Audit rubrics and judges.

{names}

example:
  claimwise audit criteria --adapter runs/quickstart/verifier-image \\
      --examples runs/quickstart/heldout/examples.parquet --gold oracle

claimwise audit NAME --help shows its flags."""


def main(argv: list[str] | None = None) -> int:
    return dispatch("audit", HELP, SUBCOMMANDS, argv or [])
