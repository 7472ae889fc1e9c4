"""A distilled verifier in vLLM, in this process: same prompt, same verdicts.

In: examples and responses. Out: verdicts. An image goes along with a digest of its pixels as its id, so that vLLM
prepares and encodes it once.

    judge = load_judge("runs/verifier", backend="vllm")
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from .adapter import MERGED, VerifierCard
from .answers import Missing
from .engine import EngineJudge, Question
from .errors import InputError
from .model import adapter_hash
from .packed import Answer
from .probe import base_modules, check_effect, check_modules
from .processor import load_processor
from .servable import ON_CPU, engine_settings, servable
from .tables import load_image
from .turn import Token, Turn

AT_ONCE = 512  # questions handed to vLLM together


def open_judge(card: VerifierCard, adapter: Path, base: str | Path, dtype: str, settings: dict[str, Any]) -> VllmJudge:
    """The judge, which has answered a probe. `settings` go to vLLM's `LLM`: max_model_len, gpu_memory_utilization, ...
    Raises InputError where vLLM is not installed or the adapter has no effect there."""
    if find_spec("vllm") is None:
        raise InputError("vLLM is not installed here; pip install 'claimwise[vllm]', or take the transformers backend")
    on_cpu = not torch.cuda.is_available()
    for name, value in (ON_CPU if on_cpu else {}).items():  # read when vLLM is imported
        os.environ.setdefault(name, value)
    from vllm import LLM  # pyright: ignore[reportMissingImports]

    scratch = TemporaryDirectory()
    lora = [] if card.base == MERGED else [adapter]
    if lora:
        check_modules(adapter, base_modules(base))
    flags = engine_settings(base, lora[0] if lora else None, on_cpu)
    flags |= settings | ({} if dtype == "auto" else {"dtype": dtype})
    llm: Any = LLM(model=servable(base, Path(scratch.name)), **flags)
    llm.scratch = scratch  # kept while vLLM may read the processor's files
    processor = load_processor(base)
    judges = [VllmJudge(card, processor, adapter_hash(adapter), llm, folder) for folder in (*map(str, lora), None)]
    if lora:
        check_effect(judges[0], judges[1], adapter)
        judges[0].cache.clear()
    return judges[0]


class VllmJudge(EngineJudge):
    """`llm` is vLLM's `LLM`; `folder` the adapter's, None for the base alone."""

    def __init__(self, card: VerifierCard, processor: Any, adapter: str, llm: Any, folder: str | None):
        super().__init__(card, processor, adapter)
        self.llm, self._lora = llm, None
        if folder is not None:
            from vllm.lora.request import LoRARequest  # pyright: ignore[reportMissingImports]

            self._lora = LoRARequest(card.name, 1, folder)

    def _answers(self, questions: Iterator[Question]) -> Iterator[tuple[bytes, Answer | Missing]]:
        while batch := list(islice(questions, AT_ONCE)):
            turns = [self.turn(question) for question in batch]
            self._refuse_long(batch, turns)
            while live := [k for k, turn in enumerate(turns) if turn.answer is None]:
                self._write([batch[k] for k in live], [turns[k] for k in live])
            for question, turn in zip(batch, turns, strict=True):
                yield question.key, turn.answer or Missing("vllm: no answer")

    def _refuse_long(self, questions: Sequence[Question], turns: Sequence[Turn]) -> None:
        """vLLM refuses a whole batch for one prompt that is too long."""
        most = self.llm.model_config.max_model_len
        for question, turn in zip(questions, turns, strict=True):
            needed = question.length + turn.most
            if needed > most:
                turn.answer = Missing(f"context: the prompt needs {needed} tokens, max_model_len is {most}")

    def _write(self, questions: Sequence[Question], turns: Sequence[Turn]) -> None:
        from vllm import SamplingParams  # pyright: ignore[reportMissingImports]

        prompts = [self._prompt(question, turn.written) for question, turn in zip(questions, turns, strict=True)]
        settings = [SamplingParams(**turn.sampling(), detokenize=False) for turn in turns]
        outputs = self.llm.generate(prompts, settings, lora_request=self._lora, use_tqdm=False)
        for turn, output in zip(turns, outputs, strict=True):
            written = output.outputs[0]
            listed = written.logprobs or [{}] * len(written.token_ids)
            pairs = zip(written.token_ids, listed, strict=True)
            turn.take([Token(index, {k: found.logprob for k, found in places.items()}) for index, places in pairs])

    def _prompt(self, question: Question, written: list[int]) -> dict[str, Any]:
        prompt: dict[str, Any] = {"prompt_token_ids": question.ids + written}
        if question.images:
            prompt["multi_modal_data"] = {"image": [load_image(image.source) for image in question.images]}
            prompt["multi_modal_uuids"] = {"image": [image.digest for image in question.images]}
        return prompt
