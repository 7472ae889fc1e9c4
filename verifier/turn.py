"""The verifier's turn, token by token, for engines that generate (vLLM, in this process or behind a server).

In: the tokens that an engine wrote, each with the raw log-probabilities of yes and no at its place. Out: the `Answer`, or
what to ask the engine for next. Most turns take one request: label and reading are greedy, and the log-probabilities of
yes and no do not depend on what is taken in their place. A second one is needed where the greedy label is not allowed,
and where a reading is long, does not end by itself, or holds a yes or no.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from .answers import Missing
from .packed import Answer
from .prompt import MAX_READING_TOKENS, PromptEncoder

# Tokens asked for at once: a label, a reading of three with its end, a verdict. A verifier is trained on yes against no
# alone, so that it may take another token for its verdict and go on; a request more costs more than a few tokens.
MOST_AT_ONCE = 6


class Token(NamedTuple):
    id: int
    logprobs: Mapping[int, float]


class Turn:
    """One criterion's turn. `written` are the tokens that stand; `answer` is set when the turn is over."""

    def __init__(self, encoder: PromptEncoder, labels: Iterable[int], readings: bool):
        self.labels = frozenset(labels)
        self.yes_id, self.no_id, self.end_id = encoder.yes_id, encoder.no_id, encoder.reading_end_id
        self.written: list[int] = []
        self.answer: Answer | Missing | None = None
        self._label_refused, self._read = False, not readings

    def sampling(self) -> dict[str, Any]:
        """Parameters of vLLM for what is still to be written. An end of sequence is a token like any other, as it is in
        packed judging."""
        if self._label_refused and not self.written:
            return {"temperature": 0.0, "max_tokens": 1, "allowed_token_ids": sorted(self.labels)}
        return {
            "temperature": 0.0,
            "max_tokens": min(self.most, MOST_AT_ONCE),
            "stop_token_ids": [self.yes_id, self.no_id],
            "ignore_eos": True,
            # vLLM's server lists as many as were asked for, the token taken among them; the third makes room for it.
            "logprobs": 3,
            "logprob_token_ids": [self.yes_id, self.no_id, self.end_id],
        }

    @property
    def most(self) -> int:
        """Tokens that are still to be written, at most."""
        reading = 0 if self._read else MAX_READING_TOKENS + 1 - len(self._reading)
        return (not self.written) + reading + 1

    @property
    def _reading(self) -> list[int]:
        return self.written[1:]

    def take(self, tokens: Iterable[Token]) -> None:
        """Goes on with what the engine wrote after `written`."""
        before = (len(self.written), self._label_refused)
        for token in tokens:
            if self.answer is not None or not self._take(token):
                return
        if self.answer is None and before == (len(self.written), self._label_refused):
            self.answer = Missing("server: the model wrote nothing")

    def _take(self, token: Token) -> bool:
        """Whether the token stands, so that those behind it count too."""
        if not self.written:
            self._label_refused = token.id not in self.labels
            if not self._label_refused:
                self.written.append(token.id)
            return not self._label_refused
        if self._read:
            self.answer = self._judged(token, self.written[1:-1])  # without its end; nothing where there is none
            return False
        whole = len(self._reading) == MAX_READING_TOKENS  # the contract: no reading is longer
        self._read = whole or token.id == self.end_id
        self.written.append(self.end_id if whole else token.id)
        return self.written[-1] == token.id

    def _judged(self, token: Token, reading: list[int]) -> Answer | Missing:
        try:
            margin = token.logprobs[self.yes_id] - token.logprobs[self.no_id]
        except KeyError:
            return Missing("server: it does not give the log-probabilities of yes and no (logprob_token_ids)")
        return Answer(self.written[0], reading, margin)
