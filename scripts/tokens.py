"""The characters of each token of responses, for distances and credit in tokens.

In: rollouts, and the folder or Hub name of a tokenizer; without one, words stand for tokens. Out: (T, 2) offsets by
rollout, as the trainer has them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from ..verifier.errors import InputError
from ..verifier.schema import Rollout

_WORD = re.compile(r"\s*\S+|\s+$")


def offsets_of(rollouts: Iterable[Rollout], tokenizer: str | None) -> dict[str, np.ndarray]:
    if tokenizer is None:
        return {r.rollout_id: _words(r.response) for r in rollouts}
    from ..trainer.offsets import text_and_offsets

    loaded = load_tokenizer(tokenizer)
    return {r.rollout_id: text_and_offsets(loaded, _ids(loaded, r.response))[1] for r in rollouts}


def load_tokenizer(name: str):
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"the tokenizer {name!r} cannot be loaded ({reason}); give a model's folder") from None


def _ids(tokenizer, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def _words(text: str) -> np.ndarray:
    """Each word with the white space before it; together they tile the text."""
    return np.array([match.span() for match in _WORD.finditer(text)], dtype=np.int64).reshape(-1, 2)
