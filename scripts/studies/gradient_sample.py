"""Policy gradients of several arms on one sample of responses from a frozen policy.

In: a policy, examples of the digits world, and families of arms (a budget, a pitfall setting, a group size). Out: for a
batch of groups one gradient per arm, of the loss

    - sum over tokens of A_t log pi(y_t)  /  (responses * max_completion_length)

which is TRL's `dr_grpo` at ratio 1 and without KL: with a constant per response, a batch's gradient is the mean of its
groups'. The responses, their judgements and the forward pass are shared; only A_t differs between arms.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from ...distill.oracle import OracleJudge
from ...distill.sampling import Prompt, Sampler
from ...trainer.credit import GroupCredit, ScoredResponse, token_advantages
from ...trainer.judging import judge_completions, rollouts_of
from ...trainer.rewards import answer_reward, format_reward
from ...verifier.errors import InputError
from ...verifier.model import VisionLanguageModel
from ...verifier.schema import Example
from ...verifier.tree import Tree


@dataclass(frozen=True)
class Family:
    """Arms that are compared with each other. `group`: responses to a picture; `dimensions`: whose criteria count (none:
    all do); `parts`: into how many stretches of equal length a response's tokens are cut, each with its own gradient."""

    name: str
    budget: str
    pitfalls: Any
    group: int
    arms: Sequence[str]
    dimensions: Sequence[str] = ()
    parts: int = 1

    @property
    def columns(self) -> list[tuple[str, int]]:
        """(arm, part) of each gradient."""
        return [(arm, part) for arm in self.arms for part in range(self.parts)]


@dataclass(frozen=True, eq=False)
class Group:
    """The responses to one example: their token ids, the end of sequence included, and what was said of them. `number`
    varies the placebo arm's shuffle from group to group."""

    number: int
    example: Example
    prompt: Prompt
    rows: list[list[int]]
    responses: list[ScoredResponse]


@dataclass(frozen=True, eq=False)
class Batch:
    """Of each column of each family, in order: the gradient (C, D), the root mean square of its advantages over all
    tokens (C,), and how much of the criteria's credit its spans leave (C,), 1 where every term covers the response."""

    gradients: np.ndarray
    rms: np.ndarray
    covered: np.ndarray
    figures: dict[str, Any] = field(default_factory=dict)


def draw_groups(sampler: Sampler, examples: Sequence[Example], count: int, seed: int, first: int = 0) -> list[Group]:
    """`count` responses to each example at temperature 1, judged by the oracle with the image; one seed, one result. The
    groups are numbered from `first`."""
    torch.manual_seed(seed)
    prompts = [sampler.prompt(example) for example in examples]
    rows = sampler.generate_ids([prompt for prompt in prompts for _ in range(count)], 1.0)
    image = sampler.policy.encoder.image_id
    if any(image in row for row in rows):
        raise InputError("the policy wrote an image token, for which there is no image; give another seed")
    return [
        judged_group(sampler.policy, first + k, example, prompt, rows[k * count : (k + 1) * count])
        for k, (example, prompt) in enumerate(zip(examples, prompts, strict=True))
    ]


def judged_group(policy: VisionLanguageModel, number: int, example: Example, prompt: Prompt, rows) -> Group:
    """The oracle judges with the image; answer and format by rule. `rows`: the token ids of each response."""
    tokenizer, everyone = policy.processor.tokenizer, [example] * len(rows)
    rollouts, offsets = rollouts_of(tokenizer, everyone, rows, [f"{i:03d}" for i in range(len(rows))])
    judged = judge_completions(OracleJudge("image"), everyone, rollouts, offsets, [False] * len(rows))
    texts = [rollout.response for rollout in rollouts]
    answers, formats = answer_reward(texts, [example.answer] * len(rows)), format_reward(texts)
    responses = [
        ScoredResponse(own.offsets, answer, form, {v.criterion_id: (v.verdict, v.span) for v in own.verdicts})
        for own, answer, form in zip(judged, answers, formats, strict=True)
    ]
    return Group(number, example, prompt, rows, responses)


def credit_of(group: Group, family: Family, arm: Any) -> GroupCredit:
    """The trainer's own credit of the group's first responses."""
    criteria, wanted = group.example.criteria, set(family.dimensions)
    responses = group.responses[: family.group]
    if wanted:
        criteria = [c for c in criteria if c.dimension in wanted and not c.is_pitfall]
        kept = {criterion.id for criterion in criteria}
        responses = [
            ScoredResponse(r.token_offsets, r.answer, r.format, {k: v for k, v in r.verdicts.items() if k in kept})
            for r in responses
        ]
    return token_advantages(
        criteria, responses, arm=arm, budget=family.budget, pitfalls=family.pitfalls, shuffle_seed=(group.number,)
    )


def batch_of(policy: VisionLanguageModel, groups: Sequence[Group], families: Sequence[Family], length: int) -> Batch:
    """`length`: the constant that stands for a response's tokens, TRL's max_completion_length."""
    columns = [(family, arm, part) for family in families for arm, part in family.columns]
    credits = {(f.name, arm): [credit_of(group, f, arm) for group in groups] for f in families for arm in f.arms}
    slices = list(pairwise([0, *sorted({family.group for family in families})]))
    logps = [token_logps(policy, groups, *taken) for taken in slices]
    parameters = list(policy.model.parameters())
    gradients = np.empty((len(columns), sum(p.numel() for p in parameters)), dtype=np.float32)
    for row, (family, arm, part) in enumerate(columns):
        loss = torch.zeros(())
        for taken, logp in zip(slices, logps, strict=True):
            if taken[1] <= family.group:
                weights = _weights(credits[family.name, arm], taken, part, family.parts)
                loss = loss - logp @ torch.from_numpy(weights).to(logp.dtype)
        loss = loss / (len(groups) * family.group * length)
        found = torch.autograd.grad(loss, parameters, retain_graph=True, materialize_grads=True)
        gradients[row] = torch.cat([gradient.flatten() for gradient in found]).numpy()
    own = [credits[family.name, arm] for family, arm, _ in columns]
    return Batch(gradients, np.array([*map(_rms, own)]), np.array([*map(_covered, own)]), _figures(groups))


def token_logps(policy: VisionLanguageModel, groups: Sequence[Group], first: int, stop: int) -> torch.Tensor:
    """log pi of the tokens of responses `first` .. `stop` (exclusive) of every group, one after the other. A group is one
    packed tree: its prompt is computed once."""
    trees = [Tree(g.prompt.ids, g.rows[first:stop], g.prompt.pixels, g.prompt.grid) for g in groups]
    packed = policy.pack(trees)
    places = list(_predicting(trees, packed.starts))
    rows, columns, ids = (torch.tensor(values) for values in zip(*places, strict=True))
    hidden = policy.backbone.model(**packed.forward_inputs(), use_cache=False).last_hidden_state
    logits = policy.backbone.get_output_embeddings()(hidden[rows, columns]).float()
    return torch.log_softmax(logits, -1).gather(-1, ids[:, None])[:, 0]


def _predicting(trees: Sequence[Tree], starts: Sequence[Sequence[int]]) -> Iterator[tuple[int, int, int]]:
    """(row, column, token): the place whose logits predict each token; the prompt's last predicts the first one."""
    for row, (tree, own) in enumerate(zip(trees, starts, strict=True)):
        for start, branch in zip(own, tree.branches, strict=True):
            before = [len(tree.prefix) - 1, *range(start, start + len(branch) - 1)]
            yield from ((row, column, token) for column, token in zip(before, branch, strict=True))


def _weights(credits: Sequence[GroupCredit], taken: tuple[int, int], part: int, parts: int) -> np.ndarray:
    """The advantages of the tokens that `token_logps` gives, 0 outside the part."""
    rows = [advantages for credit in credits for advantages in credit.advantages[slice(*taken)]]
    return np.concatenate([np.where(np.arange(len(a)) * parts // len(a) == part, a, 0.0) for a in rows])


def _rms(credits: Sequence[GroupCredit]) -> float:
    """What `match_rms` divides a batch by."""
    everything = np.concatenate([advantages for credit in credits for advantages in credit.advantages])
    return float(np.sqrt(np.mean(everything**2)))


def _covered(credits: Sequence[GroupCredit]) -> float:
    """Tokens that the criteria's terms reach, weighted by what they add, over those of whole responses."""
    reached = total = 0.0
    for credit in credits:
        for term in credit.terms[2:]:
            reached += float(np.abs(term.added_g) @ (term.last_g - term.first_g + 1))
            total += float(np.abs(term.added_g) @ credit.scores.tokens_g)
    return reached / total if total else 1.0


def _figures(groups: Sequence[Group]) -> dict[str, Any]:
    responses = [response for group in groups for response in group.responses]
    return {
        "lengths": [len(row) for group in groups for row in group.rows],
        "answers": [response.answer for response in responses],
    }
