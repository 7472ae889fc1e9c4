"""What the commands that ask a teacher behind a server share: flags, settings, and the lines that they print.

In: parsed flags, or a teacher that has done its work. Out: settings, a client, lines of text.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..verifier.errors import InputError

if TYPE_CHECKING:
    from ..distill.teacher import Teacher, TeacherSettings
    from ..verifier.chat import ChatClient

OUT_OF_BUDGET = 3  # exit status


def add_flags(add: Callable[..., Any], max_tokens: str) -> None:
    """The flags of a teacher behind a server; `max_tokens` is the default length of an answer, in words."""
    add("--max-in-flight", type=int, default=32, metavar="N", help="calls at a time, at most (default: 32)")
    add("--timeout", type=float, default=120.0, metavar="S", help="seconds that a call may take (default: 120)")
    add_cost_flags(add, max_tokens, "print calls, tokens and cost; ask nothing and write nothing")


def add_cost_flags(add: Callable[..., Any], max_tokens: str, dry_run: str) -> None:
    """Those of them that bear on the cost, for a command that has the others already; `dry_run` says what that does."""
    add("--max-tokens", type=int, metavar="N", help=f"length of an answer (default: {max_tokens})")
    add("--price-in", type=float, metavar="P", help="price of a million prompt tokens")
    add("--price-out", type=float, metavar="P", help="price of a million completion tokens")
    add("--budget", type=float, metavar="B", help="stop before all that the ledger holds has cost more than this")
    add("--dry-run", action="store_true", help=dry_run)
    add("--processor", metavar="PATH", help="count the tokens of --dry-run with this model's processor")


def add_judging_flags(parser: ArgumentParser) -> None:
    """The flags of a teacher behind a server that judges where another judge does not, or in its place."""
    add = parser.add_argument_group("a teacher behind a server").add_argument
    add("--model", help="the model's name on the server; its key is read from OPENAI_API_KEY")
    add("--ledger", metavar="FILE", help="SQLite file that keeps every answer; that of claimwise label will do")
    add("--max-in-flight", type=int, default=32, metavar="N", help="calls at a time, at most (default: 32)")
    add("--timeout", type=float, default=120.0, metavar="S", help="seconds that a call may take (default: 120)")
    add("--max-tokens", type=int, default=512, metavar="N", help="length of an answer (default: 512)")
    add("--price-in", type=float, metavar="P", help="price of a million prompt tokens")
    add("--price-out", type=float, metavar="P", help="price of a million completion tokens")
    add("--budget", type=float, metavar="B", help="ask no more before all that the ledger holds costs more than this")


def check_judging_flags(args: Namespace) -> None:
    """Raises InputError where a teacher behind a server lacks one of them, or another judge has one."""
    behind_server = args.teacher not in (None, "oracle")
    for name in ("model", "ledger", "price_in", "price_out", "budget"):
        flag, given = name.replace("_", "-"), getattr(args, name) is not None
        if given and not behind_server:
            raise InputError(f"--{flag} is for a teacher behind a server; give its address with --teacher")
        if behind_server and not given and name in ("model", "ledger"):
            raise InputError(f"--{flag} is missing; a teacher behind a server needs it")


def settings_of(args: Namespace, criteria_per_call: int, max_tokens: int) -> TeacherSettings:
    from ..distill.teacher import TeacherSettings

    length = max_tokens if args.max_tokens is None else args.max_tokens
    return TeacherSettings(criteria_per_call, length, args.price_in, args.price_out, args.budget)


def client_of(args: Namespace, url: str) -> ChatClient:
    from ..verifier.chat import ChatClient

    return ChatClient(url, args.model, max_in_flight=args.max_in_flight, timeout_s=args.timeout)


def run_lines(teacher: Teacher, found: dict[str, Any]) -> list[str]:
    """What this run did and what all cost; `found` are the ledger's figures."""
    lines = [
        f"this run: {teacher.asked} asked, {teacher.known} known before{listed(', missing: ', teacher.missing)}"
        f"{listed('; failed calls: ', teacher.client.errors)}",
        f"{found['prompt_tokens']:,} prompt and {found['completion_tokens']:,} completion tokens"
        + (f", {found['uncounted']} answers not among them: the server did not count" if found["uncounted"] else "")
        + (f", {teacher.budget.spent:.6g} spent" if teacher.settings.price_in is not None else ""),
    ]
    if found["failures"]:
        lines.append(f"{found['failures']} questions brought no answer; the same command asks them again")
    if teacher.out_of_budget:
        lines.append(
            f"the budget of {teacher.settings.budget:g} ended the run; with a larger one, the same command goes on"
        )
    return lines


def listed(before: str, counts: Counter[str]) -> str:
    return before + ", ".join(f"{kind} {count}" for kind, count in counts.most_common()) if counts else ""


def cost_lines(
    settings: TeacherSettings, tokens_in: int, how: str, answers: int, each: tuple[float, str, str], calls: int
) -> list[str]:
    """Of a dry run: tokens and cost. `each`: completion tokens of an answer, what that is called, whence the number."""
    per_answer, name, source = each
    tokens_out, most_out = round(per_answer * answers), settings.max_tokens * calls
    cost, most = settings.cost(tokens_in, tokens_out), settings.cost(tokens_in, most_out)
    return [
        f"{tokens_in:,} prompt tokens ({how})",
        f"{tokens_out:,} completion tokens ({per_answer:.0f} a {name}, {source}; {most_out:,} at most)",
        "cost: give --price-in and --price-out" if cost is None else f"cost: {cost:,.2f}, at most {most:,.2f}",
    ]
