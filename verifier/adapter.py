"""What is stored beside a LoRA adapter (`verifier.json`) so that no judge loads it wrongly.

Base hash, prompt hash, mode, whether it was trained with readings, and its temperature. An adapter of another prompt or
base is refused with the reason.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

from .errors import InputError
from .prompt import prompt_hash
from .schema import SCHEMA_VERSION

FILE = "verifier.json"
MERGED = "."  # the base that a card names where the adapter is merged into it: the folder itself


@dataclass
class VerifierCard:
    """The contents of verifier.json. P(yes) is sigmoid(margin / temperature)."""

    name: str
    base: str
    base_hash: str
    prompt_hash: str
    mode: str
    readings: bool
    temperature: float = 1.0
    schema_version: int = SCHEMA_VERSION

    def write(self, folder: Path) -> None:
        temporary = folder / f"{FILE}.part"
        temporary.write_text(json.dumps(asdict(self), indent=2) + "\n")
        temporary.replace(folder / FILE)


def read_card(folder: str | Path) -> VerifierCard:
    """Reads and checks verifier.json; raises InputError where the adapter is not one of ours or of another prompt."""
    path = Path(folder) / FILE
    if not Path(folder).is_dir():
        raise InputError(f"there is no adapter folder {folder}; claimwise distill makes one")
    if not path.is_file():
        raise InputError(f"{folder} has no {FILE}; give a folder that claimwise distill wrote")
    try:
        values = dict(json.loads(path.read_text()))
    except (TypeError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}); distil the verifier again") from error
    version = values.get("schema_version")
    if version != SCHEMA_VERSION:  # before the fields, of which another version may have others
        raise InputError(f"{path} is of schema version {version}, this is {SCHEMA_VERSION}; distil it again")
    try:
        card = VerifierCard(**values)
        ours = prompt_hash(card.mode, card.readings)
        if not all(isinstance(text, str) and text for text in (card.name, card.base)):
            raise TypeError("name or base is no text")
    except (TypeError, KeyError) as error:
        raise InputError(f"{path} is not what claimwise distill writes ({error}); distil it again") from error
    if type(card.temperature) not in (int, float) or not 0 < card.temperature < math.inf:
        raise InputError(f"{path}: temperature is {card.temperature!r}, it must be a number above 0; distil it again")
    if card.prompt_hash != ours:
        raise InputError(
            f"{path}: the adapter was trained on prompt {card.prompt_hash}, this version writes {ours}; distil it again"
        )
    return card


def check_base(card: VerifierCard, folder: str | Path, found: str, base: str | Path) -> None:
    """Refuses a base with other weights than those the adapter was trained on."""
    if card.base_hash != found:
        raise InputError(
            f"{folder}: the adapter was trained on base {card.base_hash}, but {base} is {found}; "
            "give the base it was trained on, or distil it again"
        )
