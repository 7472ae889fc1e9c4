"""`claimwise cascade NAME`: the verifier first, the teacher where it is uncertain. Each sub-command is a module of
`scripts`."""

from __future__ import annotations

import importlib

from ...verifier.errors import InputError

SUBCOMMANDS = {  # name: module, what it does
    "band": ("cascade_choose", "which P(yes) go to the teacher, for a wanted agreement, and what that costs"),
    "judge": ("cascade_run", "verdicts on rollouts by verifier and teacher, within a budget"),
}


def overview() -> str:
    lines = [f"  {name:<6} {what}" for name, (_, what) in SUBCOMMANDS.items()]
    return "\n".join(
        [
            "usage: claimwise cascade NAME ...",
            "",
            "A verifier answers what it is sure of, a teacher the rest.",
            "",
            *lines,
            "",
            "example:",
            "  claimwise cascade band --reference teacher.jsonl --verifier verifier.jsonl --agreement 0.98 \\",
            "      --out cascade.json",
            "",
            "claimwise cascade NAME --help shows its flags.",
        ]
    )


def main(argv: list[str] | None = None) -> int:
    argv = list(argv or [])
    if not argv or argv[0] in ("-h", "--help"):
        print(overview())
        return 0 if argv else 2
    name, rest = argv[0], argv[1:]
    if name not in SUBCOMMANDS:
        raise InputError(f"there is no cascade {name!r}; it must be one of {', '.join(SUBCOMMANDS)}")
    return importlib.import_module(f"..{SUBCOMMANDS[name][0]}", __package__).main(rest)
