"""The argument parser of every command: help ends in an example to copy, and a wrong flag is one line like any bad
input."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Mapping, Sequence
from typing import NoReturn

from ..verifier.errors import InputError


class CommandParser(argparse.ArgumentParser):
    """`claimwise NAME`; flags must be written out."""

    def __init__(self, name: str, description: str, example: str):
        super().__init__(
            prog=f"claimwise {name}",
            description=description,
            epilog=example,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; {self.prog} --help shows an example")

    def add_draws(self, of: str = "the bootstrap") -> None:
        """--draws and --seed of intervals; `of` is what the seed is for."""
        self.add_argument("--draws", type=_natural, default=1000, metavar="N", help="bootstrap draws (default: 1000)")
        self.add_argument("--seed", type=_natural, default=0, metavar="S", help=f"seed of {of} (default: 0)")


def _natural(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"it is {text!r}; it must be a whole number") from None
    if number < 0:
        raise argparse.ArgumentTypeError(f"it is {number}; it cannot be negative")
    return number


def shows_help(argv: Sequence[str], text: str) -> bool:
    """For the commands whose flags are settings, so many that their help is written by hand: prints it if asked to.
    `--help-all` is left to `parse_settings`, which knows every setting and loads torch for it."""
    asked = bool({"-h", "--help"} & set(argv))
    if asked:
        print(text)
    return asked


def dispatch(command: str, text: str, modules: Mapping[str, tuple[str, str]], argv: Sequence[str]) -> int:
    """`claimwise COMMAND NAME ...`: each name is a module of `scripts` with `main(argv) -> int`, imported when called.
    `modules`: name -> (module, what it does); `text` is the help, with `{names}` where their list goes."""
    if not argv or argv[0] in ("-h", "--help"):
        width = max(map(len, modules))
        print(text.format(names="\n".join(f"  {name:<{width}}  {what}" for name, (_, what) in modules.items())))
        return 0 if argv else 2
    if argv[0] not in modules:
        raise InputError(f"there is no {command} {argv[0]!r}; it must be one of {', '.join(modules)}")
    return importlib.import_module(f".{modules[argv[0]][0]}", __package__).main(list(argv[1:]))
