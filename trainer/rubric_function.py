"""The rubric as one plain TRL reward function, for the stock trainer: no credit per token, no advantages of ours.

    GRPOTrainer(model, [answer_reward, rubric_reward(judge)], GRPOConfig(reward_weights=[0.5, 0.5], ...),
                prompts_of(examples))

In: TRL's completions and the columns of `prompts_of`. Out: R_rub = sum_j rho_j s_j per completion, 0..1, or None where no
criterion of any of the example's completions could be judged. With both in one group and pitfalls "off", stock GRPO with
these rewards is the arm `scalar`, as long as each answer can be compared: a None beside rewards that are known counts as
0 in TRL's sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

import numpy as np

from ..verifier.schema import Criterion, Example, Judge, Rollout, Verdict
from .credit import criterion_weights
from .group_scores import PitfallSetting, ScoredResponse, score_group
from .group_statistics import weighted_sum
from .judging import ask_judge, refuse_too_many_missing
from .prompts import read_criteria
from .rewards import completion_text


def rubric_reward(judge: Judge, pitfalls: PitfallSetting = "veto", max_missing: float = 0.5) -> Callable:
    """A reward function named `rubric_reward`. It judges the completions of its own process.

    A missing verdict takes the mean of that criterion over the example's completions in the call, and a completion of
    which nothing could be judged the mean of their rewards, so that failing to be judged is neither good nor bad. A
    confirmed pitfall makes the reward 0 (`veto`); the answer's reward is another function, which it does not touch.
    Raises InputError when more than the share `max_missing` of a call's verdicts is missing, and where the columns are
    not those of `prompts_of`.
    """
    calls = count()

    def rubric_reward(prompts, completions, example_id, criteria, images=None, log_metric=None, **kwargs):
        call = next(calls)
        by_id: dict[str, Example] = {}  # one object per example: the judge then encodes its image once
        for name, prompt, own, pictures in zip(
            example_id, prompts, criteria, images or [()] * len(prompts), strict=True
        ):
            if name not in by_id:
                by_id[name] = Example(name, _question(prompt), read_criteria(own), tuple(pictures or ()))
        examples = [by_id[name] for name in example_id]
        rollouts = [
            Rollout(f"call{call:05d}-{i:03d}", example.example_id, completion_text(completion), "policy", i)
            for i, (example, completion) in enumerate(zip(examples, completions, strict=True))
        ]
        rows = ask_judge(judge, list(zip(examples, rollouts, strict=True)))
        verdicts = [verdict for row in rows for verdict in row]
        refuse_too_many_missing(verdicts, max_missing, f"call {call} of rubric_reward")
        if log_metric is not None:
            log_metric("rubric/missing", sum(v.verdict is None for v in verdicts) / max(len(verdicts), 1))
        return _rewards(example_id, [example.criteria for example in examples], rows, pitfalls)

    return rubric_reward


def _question(prompt) -> str:
    """The text of a prompt: a string, or a conversation whose messages may hold images."""
    if isinstance(prompt, str):
        return prompt
    content = prompt[-1]["content"]
    return content if isinstance(content, str) else "".join(part.get("text") or "" for part in content)


def _rewards(
    example_ids: Sequence[str],
    criteria: Sequence[tuple[Criterion, ...]],
    rows: Sequence[Sequence[Verdict]],
    pitfalls: PitfallSetting,
) -> list[float | None]:
    rewards: list[float | None] = [None] * len(rows)
    for name in dict.fromkeys(example_ids):
        group = [i for i, other in enumerate(example_ids) if other == name]
        for i, reward in zip(
            group, _rewards_of_group(criteria[group[0]], [rows[i] for i in group], pitfalls), strict=True
        ):
            rewards[i] = reward
    return rewards


def _rewards_of_group(
    criteria: tuple[Criterion, ...], rows: Sequence[Sequence[Verdict]], pitfalls: PitfallSetting
) -> list[float | None]:
    responses = [ScoredResponse([], verdicts={v.criterion_id: (v.verdict, None) for v in row}) for row in rows]
    if len(responses) == 1:  # a group needs two; the other knows nothing, so its mean is this one's
        responses.append(ScoredResponse([]))
    scores = score_group(criteria, responses, pitfalls)
    rubric_g = weighted_sum(scores.holds_gj, np.array(list(criterion_weights(criteria, pitfalls).values())))
    if np.isnan(rubric_g).all():
        return [None] * len(rows)
    return np.where(np.isnan(rubric_g), np.nanmean(rubric_g), rubric_g)[: len(rows)].tolist()
