"""The argument parser of every command: help ends in an example to copy, and a wrong flag is one line like any bad
input."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
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


def shows_help(argv: Sequence[str], text: str) -> bool:
    """For the commands whose flags are settings, so many that their help is written by hand: prints it if asked to.
    `--help-all` is left to `parse_settings`, which knows every setting and loads torch for it."""
    asked = bool({"-h", "--help"} & set(argv))
    if asked:
        print(text)
    return asked
