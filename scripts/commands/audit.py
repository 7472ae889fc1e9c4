"""`claimwise audit NAME`: what is wrong with rubrics and judges. Each sub-command is a module of `scripts`."""

from __future__ import annotations

import importlib

from ...verifier.errors import InputError

SUBCOMMANDS = {  # name: module, what it does
    "criteria": ("audit_criteria", "ask a judge that sees the image whether each criterion is true of it at all"),
    "sample": ("audit_sample", "a page on which people judge a sample of responses, blind to the judges"),
    "merge": ("audit_merge", "what people answered there, as verdict tables, beside the judges'"),
}


def overview() -> str:
    lines = [f"  {name:<9} {what}" for name, (_, what) in SUBCOMMANDS.items()]
    return "\n".join(
        [
            "usage: claimwise audit NAME ...",
            "",
            "Audit rubrics and judges.",
            "",
            *lines,
            "",
            "example:",
            "  claimwise audit criteria --adapter runs/quickstart/verifier-image \\",
            "      --examples runs/quickstart/heldout/examples.parquet --gold oracle",
            "",
            "claimwise audit NAME --help shows its flags.",
        ]
    )


def main(argv: list[str] | None = None) -> int:
    argv = list(argv or [])
    if not argv or argv[0] in ("-h", "--help"):
        print(overview())
        return 0 if argv else 2
    name, rest = argv[0], argv[1:]
    if name not in SUBCOMMANDS:
        raise InputError(f"there is no audit {name!r}; it must be one of {', '.join(SUBCOMMANDS)}")
    return importlib.import_module(f"..{SUBCOMMANDS[name][0]}", __package__).main(rest)
