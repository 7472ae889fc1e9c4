"""What the tests of the judge share: small verifiers, what the model was fed, siblings, and what a verdict says."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from claimwise.distill.config import DistillConfig
from claimwise.distill.run import distill
from claimwise.verifier.model import VisionLanguageModel
from claimwise.verifier.packed import Answer, answer_trees
from claimwise.verifier.schema import Example, Rollout, Verdict
from claimwise.verifier.sentences import LABELS, split_sentences
from distilling import make_base, make_tables, settings


def make_world(folder: Path) -> Path:
    """A random base, tables of 8 and 4 examples, and a verifier of six steps for each mode."""
    base = make_base(folder / "base")
    make_tables(folder / "train", "train", 8)
    make_tables(folder / "validation", "validation", 4)
    for mode in ("image", "text"):
        distill(DistillConfig(**{**settings(base, folder, folder / mode, mode), "max_steps": 6}))
    return folder


@dataclass
class Fed:
    """What the language model was fed, a (rows, tokens, tokens already in its cache) per pass, and the patches that the
    vision tower was."""

    passes: list[tuple[int, int, int]] = field(default_factory=list)
    patches: int = 0

    @property
    def openings(self) -> list[tuple[int, int, int]]:
        return [fed for fed in self.passes if fed[2] == 0]

    @property
    def packs(self) -> list[tuple[int, int, int]]:
        """The passes over responses and criteria: each goes on from an opening, some of them from the same ones, while
        decoding goes on from the pass before."""
        pairs = itertools.pairwise(self.passes)
        return [fed for before, fed in pairs if fed[2] and (before[2] == 0 or fed[2] <= before[2])]


@contextmanager
def watched(model: VisionLanguageModel) -> Iterator[Fed]:
    fed = Fed()

    def language(_, args, kwargs):
        rows, tokens = kwargs["inputs_embeds"].shape[:2]
        fed.passes.append((rows, tokens, kwargs["past_key_values"].get_seq_length()))

    def vision(_, args, kwargs):
        fed.patches += len(args[0])

    inner = model.backbone.model
    hooks = [
        inner.language_model.register_forward_pre_hook(language, with_kwargs=True),
        inner.visual.register_forward_pre_hook(vision, with_kwargs=True),
    ]
    try:
        yield fed
    finally:
        for hook in hooks:
            hook.remove()


def siblings_of(items: Sequence[tuple[Example, Rollout]]) -> list[tuple[Example, Rollout]]:
    """To each example four responses of different lengths, one of them empty."""
    out = []
    for example, rollout in items:
        texts = [rollout.response, example.reference or "", "", "It is 3."]
        out += [
            (example, Rollout(f"{rollout.rollout_id}/{n}", example.example_id, t, "p", n)) for n, t in enumerate(texts)
        ]
    return out


def allowed_labels(model: VisionLanguageModel, response: str) -> list[int]:
    count = len(split_sentences(response))
    return [model.encoder.label_ids[label] for label in ("-", *LABELS[:count])]


def one_by_one(model: VisionLanguageModel, items: Sequence[tuple[Example, Rollout]], mode: str) -> list[Answer]:
    """Each criterion on its own, the whole prompt in one causal pass without a shared opening."""
    answers = []
    for example, rollout in items:
        allowed = [allowed_labels(model, rollout.response)]
        for criterion in example.criteria:
            branch = model.encoder.branch(criterion.text)
            tree = model.tree(example, rollout.response, [branch], mode)
            answers += answer_trees(model, [tree], allowed, readings=mode == "image")[0]
    return answers


def margin(verdict: Verdict) -> float:
    assert verdict.p_yes is not None
    return math.log(verdict.p_yes / (1 - verdict.p_yes))


def said(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Everything but the time."""
    return [dataclasses.replace(verdict, created_at=None) for verdict in verdicts]


def content(verdicts: Sequence[Verdict]) -> list[tuple]:
    """What does not depend on how the questions were put into batches."""
    return [(v.key, v.verdict, v.span, v.match, v.reading) for v in verdicts]


def farthest(one: Sequence[Verdict], other: Sequence[Verdict]) -> float:
    """The greatest difference between the logit margins of two lists."""
    return max(abs(margin(a) - margin(b)) for a, b in zip(one, other, strict=True))
