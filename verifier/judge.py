"""The verifier as a judge: examples and responses in, verdicts out (`load_judge`).

judge = load_judge("runs/verifier", mode="image")
verdicts = judge.judge([(example, rollout), ...])
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import torch

from .adapter import MERGED, VerifierCard, check_base, read_card
from .answers import Missing, VerifierJudge
from .batching import Row, batches, runs, siblings
from .cache import Desk, VerdictCache, question_keys
from .cascade import CascadeJudge, band_for
from .errors import InputError
from .judge_settings import MAX_PACKED_TOKENS, check_settings
from .lora import lora_settings
from .model import VisionLanguageModel, adapter_hash, base_hash, load_model
from .packed import Answer, answer_trees
from .probe import check_effect, check_modules
from .prompt import longest_turn, prompt_hash
from .schema import Example, Judge, Mode, Rollout, Verdict
from .sentences import LABELS, NO_SENTENCE, split_sentences
from .shared_prefix import Opening
from .tree import Tree

if TYPE_CHECKING:
    from .engine import EngineJudge
    from .quoting_judge import QuotingJudge

CPU_BATCH_TOKENS = 6144  # without a GPU: a pass that leaves the processor's caches is slower, by a fifth at 8,000


class PackedJudge(VerifierJudge):
    """A verifier that encodes image and question once per example, and judges all criteria of a response in one packed
    pass that goes on from there; several responses make a batch.

    `max_packed_tokens` bounds one batch, padding included, but for the few tokens that are decoded; a response whose
    criteria exceed it alone is judged in several passes, never cut; a criterion that exceeds it alone has a missing
    verdict that says so. A question that comes twice in a call is answered once. With a `cache`, which wants a model
    whose weights stay as they are, so is one that comes again in a later call; `adapter` identifies the weights there.
    """

    def __init__(
        self,
        model: VisionLanguageModel,
        card: VerifierCard,
        max_packed_tokens: int = MAX_PACKED_TOKENS,
        cache: VerdictCache[Answer | Missing] | None = None,
        adapter: str = "",
    ):
        super().__init__(card, model.encoder)
        self.model, self.max_packed_tokens, self.cache = model, max_packed_tokens, cache
        self.adapter = adapter
        self._identity = (adapter, card.base_hash, card.prompt_hash, card.mode, str(model.backbone.dtype))
        self._branch = lru_cache(maxsize=4096)(model.encoder.branch)  # a rubric comes with each of its responses

    def judge_each(self, items: Iterable[tuple[Example, Rollout]]) -> Iterator[list[Verdict]]:
        """The same, a list per item, in order, as batches finish. Siblings are judged together: tables in which they
        stand together flow evenly."""
        items = list(items)
        self.model.model.eval()
        desk: Desk[Answer | Missing] = Desk([len(example.criteria) for example, _ in items], self.cache)
        batch_tokens = self.max_packed_tokens
        if self.model.backbone.device.type == "cpu":
            batch_tokens = min(batch_tokens, CPU_BATCH_TOKENS)  # a response that needs more has a batch of its own
        asked = batches(self._rows(items, desk), batch_tokens)
        for index, answers in desk.settle(pair for batch in asked for pair in self._answer(batch)):
            yield self._verdicts(*items[index], answers)
        self.repeats += desk.repeats

    def _rows(self, items: Sequence[tuple[Example, Rollout]], desk: Desk[Answer | Missing]) -> Iterator[Row]:
        """What has to be asked, siblings together."""
        for group in siblings(items):
            example = items[group[0]][0]
            images = [self.model.picture(image).digest for image in example.images] if self.mode == "image" else []
            opening = None
            for index in group:
                example, rollout = items[index]
                texts = [criterion.text for criterion in example.criteria]
                keys = question_keys(self._identity, images, example.question, rollout.response, texts)
                asked = desk.ask(index, keys)
                if asked:
                    opening = Opening(self.model.opening(example, self.mode)) if opening is None else opening
                    yield from self._split(opening, rollout, {keys[k]: texts[k] for k in asked}, desk)

    def _split(self, opening: Opening, rollout: Rollout, criteria: dict[bytes, str], desk: Desk) -> Iterator[Row]:
        """Rows of one response; more than one where its criteria do not fit together, none of what does not fit alone or
        not, with the verifier's turn, into the base's context."""
        encoder, sentences = self.model.encoder, split_sentences(rollout.response)
        own = encoder.response(rollout.response, sentences)
        labels = [encoder.label_ids[label] for label in (NO_SENTENCE, *LABELS[: len(sentences)])]
        shared, most, fitting = len(opening) + len(own), self.max_packed_tokens, {}
        context, turn = self.model.context, longest_turn(self.card.readings)
        for key, text in criteria.items():
            branch = self._branch(text)
            needed = shared + len(branch)
            if needed > most:
                desk.take(key, Missing(f"context: the prompt needs {needed} tokens, max_packed_tokens is {most}"))
            elif needed + turn > context:
                desk.take(key, Missing(f"context: prompt and turn need {needed + turn} tokens, the base has {context}"))
            else:
                fitting[key] = branch
        keys, branches = list(fitting), list(fitting.values())
        for part in runs([len(branch) for branch in branches], most - shared):
            yield Row(opening, Tree(own, branches[part]), labels, keys[part])

    def _answer(self, batch: Sequence[Row]) -> Iterator[tuple[bytes, Answer]]:
        trees, labels = [row.tree for row in batch], [row.labels for row in batch]
        openings = [row.opening for row in batch]
        answered = answer_trees(self.model, trees, labels, self.card.readings, openings)
        for row, answers in zip(batch, answered, strict=True):
            yield from zip(row.keys, answers, strict=True)


@overload
def load_judge(  # pyright: ignore[reportOverlappingOverload]
    adapter: str | Path,
    mode: Mode | None = None,
    base: str | Path | None = None,
    max_packed_tokens: int = MAX_PACKED_TOKENS,
    dtype: torch.dtype | str = "auto",
    device: str | torch.device | None = None,
) -> PackedJudge: ...


@overload
def load_judge(
    adapter: str | Path | None,
    mode: Mode | None = None,
    base: str | Path | None = None,
    *,
    dtype: str = "auto",
    backend: str = "transformers",
    server: str | None = None,
    model: str | None = None,
    **settings: Any,
) -> EngineJudge | QuotingJudge: ...


@overload
def load_judge(
    adapter: str | Path,
    mode: Mode | None = None,
    base: str | Path | None = None,
    *,
    cascade: str | Path,
    teacher: Judge,
    max_calls: int | None = None,
    **others: Any,
) -> CascadeJudge: ...


def load_judge(
    adapter,
    mode=None,
    base=None,
    max_packed_tokens=MAX_PACKED_TOKENS,
    dtype: Any = "auto",
    device=None,
    *,
    backend="transformers",
    server=None,
    model=None,
    cascade=None,
    teacher=None,
    max_calls=None,
    **settings,
) -> Any:
    """The one way to a judge:

    - `load_judge("runs/verifier")`: the verifier of an adapter folder in transformers, packed; or one that is merged into
      its base
    - `load_judge("runs/verifier", backend="vllm")`, or `"vllm:runs/verifier"`: in vLLM, in this process; `settings` go to
      its engine
    - `load_judge("runs/verifier", server="http://localhost:8000/v1")`: behind a server that `claimwise serve` started;
      `model` is its name there, where not the one on its card; `settings` go to the client (`ServerJudge`)
    - `load_judge(None, "image", server=URL, model=NAME)`: any model behind any OpenAI-compatible server, which judges by
      quoting, untrained
    - `load_judge("runs/verifier", cascade="band.json", teacher=other)`: the verifier, wherever it runs; where it is not
      sure (`claimwise cascade band`) the judge `other`, which is asked for `max_calls` verdicts at most

    A verifier runs on the base that it names (or `base`). `mode` refuses an adapter that was trained for the other mode.
    Judges remember their answers; after a change of weights call `judge.cache.clear()`. Raises InputError for a folder
    that is not a verifier's, another prompt, another base, or an adapter that changes nothing there or would be loaded in
    part, whose modules it names.
    """
    if (cascade, teacher, max_calls) != (None, None, None):
        where = {"device": device, "backend": backend, "server": server, "model": model, **settings}
        return _cascade(adapter, cascade, teacher, max_calls, (mode, base, max_packed_tokens, dtype), where)
    if str(adapter).startswith("vllm:"):
        adapter, backend = str(adapter).removeprefix("vllm:"), "vllm"
    check_settings(adapter, mode, base, max_packed_tokens, dtype, device, backend, server, model, settings)
    if adapter is None:
        return _quoting(mode or "image", server, model, settings)
    card, path = checked(adapter, mode, base)
    if server is not None:
        from .server_judge import open_judge

        return open_judge(card, Path(adapter), path, server, model, settings)
    if backend == "vllm":
        from .vllm_judge import open_judge

        return open_judge(card, Path(adapter), path, dtype, settings)
    if settings:
        raise InputError(f"{', '.join(settings)}: only a server or vLLM takes that; give one of them, or leave it out")
    return _in_transformers(card, adapter, path, max_packed_tokens, dtype, device)


def _cascade(adapter, band, teacher, max_calls, settings: tuple, where: dict[str, Any]) -> CascadeJudge:
    if adapter is None or band is None or teacher is None:
        raise InputError("a cascade needs a verifier's adapter, cascade (its band's file) and teacher; give all")
    first = load_judge(adapter, *settings, **where)
    return CascadeJudge(first, teacher, band_for(band, str(adapter).removeprefix("vllm:")), max_calls)


def _quoting(mode: Mode, server: str | None, model: str | None, settings: dict[str, Any]) -> QuotingJudge:
    if server is None or not model:
        raise InputError("a judge without an adapter is a model behind a server; give its address and the model's name")
    from .quoting_judge import QuotingJudge

    return QuotingJudge(server, model, mode, **settings)


def checked(adapter: str | Path, mode: Mode | None, base: str | Path | None) -> tuple[VerifierCard, str | Path]:
    """The adapter's card and its base. Raises InputError as `load_judge` does, as far as the files tell."""
    card = read_card(adapter)
    if card.base != MERGED:
        lora_settings(adapter)  # whole files, or one line
    if mode is not None and mode != card.mode:
        raise InputError(f"{adapter} is a verifier for {card.mode} mode; it cannot judge in {mode} mode")
    path = base or resolve_base(card, Path(adapter))
    check_base(card, adapter, base_hash(path), path)
    return card, path


def _in_transformers(card: VerifierCard, adapter, path, max_packed_tokens: int, dtype, device) -> PackedJudge:
    from peft import PeftModel

    model = load_model(path, dtype=dtype)
    if card.base != MERGED:
        check_modules(adapter, (name for name, _ in model.model.named_modules()))
        try:
            model.model = PeftModel.from_pretrained(model.model, adapter)
        except (ValueError, TypeError) as error:  # settings that PEFT refuses
            raise InputError(f"{adapter} cannot be put on {path}: {error}; distil it again") from error
    model.model.eval().requires_grad_(False)
    model.model.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if card.base != MERGED:
        check_effect(PackedJudge(model, card), _WithoutAdapter(model, card), adapter)
        # Two more products and a sum for each projection would take as long as the projection itself.
        model.model = model.model.merge_and_unload()
    return PackedJudge(model, card, max_packed_tokens, VerdictCache(), adapter_hash(adapter))


class _WithoutAdapter(PackedJudge):
    def _answer(self, batch: Sequence[Row]) -> Iterator[tuple[bytes, Answer]]:
        with self.model.model.disable_adapter():
            yield from super()._answer(batch)


def base_judge(model: VisionLanguageModel, mode: str, name: str, readings: bool) -> PackedJudge:
    """A judge without an adapter, under the same prompt: what distillation is measured against."""
    card = VerifierCard(name, model.path, "", prompt_hash(mode, readings), mode, readings)
    return PackedJudge(model, card)


def resolve_base(card: VerifierCard, adapter: Path) -> str | Path:
    """The base that a card names: a Hub name, an absolute folder, or one relative to the adapter's folder."""
    beside = adapter / card.base
    return beside.resolve() if beside.is_dir() else card.base
