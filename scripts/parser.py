"""The argument parser of every command: help ends in an example to copy, and a wrong flag is one line like any bad
input."""

from __future__ import annotations

import argparse
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
