"""Where responses come from: a model in transformers or in vLLM (a server: `rollout_server`).

In: jobs, each one response to be sampled, with its seed. Out: for each job a `Response` or a `Refusal`, handed to `keep`
when it is there. The same jobs give the same responses whichever are done already. Sampling is plain: temperature alone,
without top-k, top-p or a repetition penalty.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from typing import Any, NamedTuple, Protocol

from ..verifier.errors import InputError
from ..verifier.schema import Example
from ..verifier.tables import load_image

VLLM_BATCH = 512  # requests handed to vLLM at once; what is on disk after an interruption counts in these


@dataclass(frozen=True)
class Job:
    """One response to be sampled. `policy` is its name in the table, the temperature included where there are several."""

    example: Example
    policy: str
    index: int
    temperature: float
    run_seed: int

    @property
    def rollout_id(self) -> str:
        return f"{self.example.example_id}/{self.policy}-{self.index}"

    @property
    def seed(self) -> int:
        """Its own seed, of 31 bits, which every backend takes."""
        return int.from_bytes(sha256(f"{self.run_seed}/{self.rollout_id}".encode()).digest()[:4]) >> 1


class Response(NamedTuple):
    text: str
    finish_reason: str | None


class Refusal(NamedTuple):
    """Why there is no response, in a word and in a sentence."""

    kind: str
    reason: str


Keep = Callable[[Job, Response | Refusal], None]


class Backend(Protocol):
    def run(self, jobs: Sequence[Job], done: Collection[str], keep: Keep) -> None:
        """Calls `keep` for every job whose rollout id is not in `done`."""
        ...


class TransformersBackend:
    """Batches of `batch_size`, always cut alike and each with a seed of its own; what is not whole is sampled again."""

    def __init__(self, path: str, max_new_tokens: int, batch_size: int):
        import torch

        from ..verifier.model import load_model
        from .sampling import Sampler

        policy = load_model(path)
        policy.model.to("cuda" if torch.cuda.is_available() else "cpu")
        self.sampler, self.batch_size = Sampler(policy, max_new_tokens), batch_size

    def run(self, jobs: Sequence[Job], done: Collection[str], keep: Keep) -> None:
        import torch

        for first in range(0, len(jobs), self.batch_size):
            batch = jobs[first : first + self.batch_size]
            if all(job.rollout_id in done for job in batch):
                continue
            prompts = _prompts(batch, done, lambda job: self.sampler.prompt(job.example), keep)
            if all(job.rollout_id in done for job, _ in prompts):
                continue
            torch.manual_seed(batch[0].seed)
            answers = self.sampler.generate([prompt for _, prompt in prompts], batch[0].temperature)
            for (job, _), answer in zip(prompts, answers, strict=True):
                if job.rollout_id not in done:
                    keep(job, Response(*answer))


class VllmBackend:
    """vLLM in this process, each request with a seed of its own. The prompt goes as token ids, since `LLM.chat` would
    take special tokens in a question for its own; vLLM puts the images where their placeholders stand.

    Numbers may differ a little with what else is in a batch, so that an interrupted run need not give the same responses
    to the letter.
    """

    def __init__(self, path: str, max_new_tokens: int, **engine: Any):
        """`engine` goes to `vllm.LLM`: max_model_len, tensor_parallel_size, ..."""
        if find_spec("vllm") is None:
            raise InputError(
                "vLLM is not installed here; pip install 'claimwise[vllm]', or take --backend transformers or --server"
            )
        from vllm import LLM  # pyright: ignore[reportMissingImports]

        from ..verifier.processor import load_processor
        from ..verifier.prompt import PromptEncoder
        from .policy_prompt import PolicyPrompt

        self.max_new_tokens = max_new_tokens
        self.llm = LLM(model=path, **engine)
        self.processor: Any = load_processor(path)
        encoder = PromptEncoder(self.processor.tokenizer)
        self.builder = PolicyPrompt(self.processor, encoder, self.llm.model_config.max_model_len)

    def run(self, jobs: Sequence[Job], done: Collection[str], keep: Keep) -> None:
        wanted = [job for job in jobs if job.rollout_id not in done]
        for first in range(0, len(wanted), VLLM_BATCH):
            prompts = _prompts(wanted[first : first + VLLM_BATCH], done, self._prompt, keep)
            settings = [self._settings(job) for job, _ in prompts]
            answers = self.llm.generate([prompt for _, prompt in prompts], settings, use_tqdm=False) if prompts else []
            for (job, _), answer in zip(prompts, answers, strict=True):
                keep(job, Response(answer.outputs[0].text, answer.outputs[0].finish_reason))

    def _prompt(self, job: Job) -> dict[str, Any]:
        images = [load_image(image) for image in job.example.images]
        process = self.processor.image_processor
        patches = [process.get_number_of_image_patches(image.height, image.width, {}) for image in images]
        length = len(self.builder.ids(job.example, [count // process.merge_size**2 for count in patches]))
        self.builder.check_length(job.example, length, self.max_new_tokens)
        prompt: dict[str, Any] = {"prompt_token_ids": self.builder.ids(job.example, [1] * len(images))}
        return {**prompt, "multi_modal_data": {"image": images}} if images else prompt

    def _settings(self, job: Job):
        from vllm import SamplingParams  # pyright: ignore[reportMissingImports]

        return SamplingParams(temperature=job.temperature, max_tokens=self.max_new_tokens, seed=job.seed)


def _prompts(jobs: Sequence[Job], done: Collection[str], build: Callable[[Job], Any], keep: Keep) -> list[tuple]:
    """(job, prompt) for each job whose prompt can be made; `keep` is told of the others."""
    out = []
    for job in jobs:
        try:
            out.append((job, build(job)))
        except InputError as error:
            if job.rollout_id not in done:
                keep(job, Refusal("prompt", str(error)))
    return out
