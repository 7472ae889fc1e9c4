"""`claimwise cascade NAME`: the verifier first, the teacher where it is uncertain."""

from __future__ import annotations

from ..parser import dispatch

SUBCOMMANDS = {  # name: module of `scripts`, what it does
    "band": ("commands.cascade_choose", "which P(yes) go to the teacher, for a wanted agreement, and what that costs"),
    "judge": ("commands.cascade_run", "verdicts on rollouts by verifier and teacher, within a budget"),
}
HELP = """usage: claimwise cascade NAME ...

A verifier answers what it is sure of, a teacher the rest.

{names}

example:
  claimwise cascade band --reference teacher.jsonl --verifier verifier.jsonl --agreement 0.98 \\
      --out cascade.json

claimwise cascade NAME --help shows its flags."""


def main(argv: list[str] | None = None) -> int:
    return dispatch("cascade", HELP, SUBCOMMANDS, argv or [])
