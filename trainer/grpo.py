"""GRPO with a verifier as judge and credit per token: TRL's trainer, whose `_compute_loss` takes advantages of shape
(batch, tokens) from a subclass.

In: a policy, examples with rubrics, a judge. Out: a trained policy; per step the verdicts of all rollouts, their credit,
and the judge's agreement with a teacher. Arm `answer` leaves TRL's own advantages untouched.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from accelerate.utils import gather_object
from trl import GRPOTrainer

from ..verifier.errors import InputError
from ..verifier.schema import Example, Judge, Rollout, Verdict
from .config import RubricGRPOConfig
from .credit import MINIMAL_RMS, Arm, GroupCredit, PitfallSetting, ScoredResponse, criterion_weights, token_advantages
from .in_loop import InLoopAgreement
from .offsets import text_and_offsets
from .rewards import answer_reward, format_reward


@dataclass
class Judgement:
    """One completion of the batch: its response, the characters of its tokens, its verdicts, its loss-bearing tokens."""

    rollout: Rollout
    offsets: np.ndarray  # (T, 2)
    verdicts: list[Verdict]
    loss_tokens: int


class RubricGRPOTrainer(GRPOTrainer):
    """`GRPOTrainer` whose advantages come from `claimwise.trainer.token_advantages`.

    `examples` are the prompts; `judge` answers every criterion of every completion; `teacher` (optional) checks a sample
    of them. `monitors` are TRL reward functions that are logged and never rewarded.
    """

    def __init__(
        self,
        model,
        args: RubricGRPOConfig,
        examples: Sequence[Example],
        judge: Judge | None,
        teacher: Judge | None = None,
        monitors: Sequence[Callable] = (),
        **kwargs,
    ):
        if judge is None and args.arm != "answer":
            raise InputError(f"arm {args.arm} needs a judge; set `verifier` to an adapter folder")
        for example in examples:
            _check_weights(example, args.pitfalls)
        self.examples = {example.example_id: example for example in examples}
        self.judge, self.settings = judge, args
        self.in_loop = None
        if teacher is not None and judge is not None and args.sampled_verdicts:
            folder = Path(args.output_dir or ".") / "in_loop"
            self.in_loop = InLoopAgreement(teacher, args.sampled_verdicts, folder, args.seed)
        args.reward_weights = [*(args.reward_weights or [])[:2], *[0.0] * len(monitors)]
        rewards = [answer_reward, format_reward, *monitors]
        super().__init__(model, reward_funcs=rewards, args=args, train_dataset=prompts_of(examples), **kwargs)

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        self._scored = [row["example_id"] for row in inputs], completion_ids_list, rewards
        return rewards

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        mode, generations = self._mode_and_group()
        if self.judge is None or generations < 2:
            return output
        example_ids, ids_list, rewards = self._scored
        local = self._judge_local(example_ids, ids_list, output["completion_mask"].sum(1).tolist())
        everyone = gather_object(local)
        self._refuse_too_many_missing(everyone)
        if mode == "train":
            self._watch(everyone)
        credits = self._credit(everyone, rewards[:, :2].tolist(), generations)
        self._log_credit(mode, everyone, credits)
        if self.settings.arm != "answer":
            self._use(output, credits, everyone, len(inputs))
        return output

    def _mode_and_group(self) -> tuple[str, int]:
        """ "train" or "eval", and the responses per example in it."""
        training = self.model is not None and self.model.training
        group = self.num_generations if training else self.num_generations_eval
        return ("train" if training else "eval"), group or 1

    def _judge_local(self, example_ids, ids_list, loss_tokens) -> list[Judgement]:
        """Verdicts on this process's completions, on the very text that the token offsets refer to."""
        tokenizer, step = self._tokenizer, self.state.global_step
        texts = [text_and_offsets(tokenizer, ids) for ids in ids_list]
        rank = self.accelerator.process_index
        rollouts = [
            Rollout(f"step{step:05d}-{rank}-{i:03d}", example_id, text, "policy", i)
            for i, (example_id, (text, _)) in enumerate(zip(example_ids, texts, strict=True))
        ]
        assert self.judge is not None
        verdicts = iter(self.judge.judge([(self.examples[r.example_id], r) for r in rollouts]))
        return [
            Judgement(r, offsets, [next(verdicts) for _ in self.examples[r.example_id].criteria], tokens)
            for r, (_, offsets), tokens in zip(rollouts, texts, loss_tokens, strict=True)
        ]

    def _refuse_too_many_missing(self, everyone: Sequence[Judgement]) -> None:
        verdicts = [verdict for judgement in everyone for verdict in judgement.verdicts]
        missing = [verdict for verdict in verdicts if verdict.verdict is None]
        if len(missing) > self.settings.max_missing * len(verdicts):
            raise InputError(
                f"step {self.state.global_step}: {len(missing)} of {len(verdicts)} verdicts are missing, more than "
                f"max_missing = {self.settings.max_missing:g}; the first reason: {missing[0].error}"
            )

    def _watch(self, everyone: Sequence[Judgement]) -> None:
        """A sample of the verdicts goes to the teacher, on the main process."""
        if self.in_loop is None or not self.accelerator.is_main_process:
            return
        judged = [(self.examples[j.rollout.example_id], j.rollout, v) for j in everyone for v in j.verdicts]
        for key, value in self.in_loop.observe(self.state.global_step, judged).items():
            self._metrics["train"][key].append(value)

    def _credit(self, everyone: Sequence[Judgement], rewards, generations: int) -> list[GroupCredit]:
        """One credit per group of `generations` completions, over all processes."""
        args, credits = self.settings, []
        for first in range(0, len(everyone), generations):
            group = range(first, first + generations)
            responses = [_scored_response(everyone[i], *rewards[i]) for i in group]
            criteria = self.examples[everyone[first].rollout.example_id].criteria
            credits.append(
                token_advantages(
                    criteria,
                    responses,
                    arm=cast(Arm, args.arm),
                    budget=args.budget,
                    pitfalls=cast(PitfallSetting, args.pitfalls),
                )
            )
        return credits

    def _use(self, output, credits: Sequence[GroupCredit], everyone: Sequence[Judgement], count: int) -> None:
        """Puts the local slice of the advantages into the batch, and into TRL's log of completions."""
        rows = [row for credit in credits for row in credit.advantages]
        if self.settings.match_rms:
            squares = sum(float(np.square(row[: j.loss_tokens]).sum()) for row, j in zip(rows, everyone, strict=True))
            rms = (squares / max(sum(j.loss_tokens for j in everyone), 1)) ** 0.5
            rows = [row / rms for row in rows] if rms >= MINIMAL_RMS else rows
        start = self.accelerator.process_index * count
        advantages_bt = torch.zeros(output["completion_ids"].shape, device=output["completion_ids"].device)
        for row, advantages in enumerate(rows[start : start + count]):
            advantages_bt[row, : len(advantages)] = torch.from_numpy(advantages)
        output["advantages"] = advantages_bt
        logged = self._logs["advantages"]
        for _ in range(min(len(rows), len(logged))):  # TRL logged its own before we replaced them
            logged.pop()
        logged.extend(float(row.mean()) if len(row) else 0.0 for row in rows)

    def _log_credit(self, mode: str, everyone: Sequence[Judgement], credits: Sequence[GroupCredit]) -> None:
        metrics = self._metrics[mode]
        by_group = defaultdict(list)
        for judgement in everyone:
            for verdict in judgement.verdicts:
                by_group[verdict.dimension or "other"].append(verdict)
        for name, verdicts in sorted(by_group.items()):
            known = [v for v in verdicts if v.verdict is not None]
            metrics[f"rubric/{name}/yes"].append(_mean([bool(v.verdict) for v in known]))
            metrics[f"rubric/{name}/located"].append(_mean([v.span is not None for v in known]))
            metrics[f"rubric/{name}/missing"].append(1 - len(known) / len(verdicts))
        rewards = [reward.rubric for credit in credits for reward in credit.rewards if reward.rubric is not None]
        metrics["rubric/reward"].append(_mean(rewards))
        metrics["rubric/vetoed"].append(_mean([r.vetoed for credit in credits for r in credit.rewards]))
        metrics["rubric/fallbacks"].append(float(sum(credit.fallbacks for credit in credits)))
        answer, rubric = (np.sqrt(np.mean([c.rms[part] ** 2 for c in credits])) for part in ("answer", "rubric"))
        metrics["rubric/to_answer_rms"].append(float(rubric / answer) if answer > MINIMAL_RMS else float("nan"))


def prompts_of(examples: Sequence[Example]):
    """A dataset of conversations with images, as TRL takes them, with the columns that the rewards read."""
    from datasets import Dataset, Features, Image, List, Value

    rows = [
        {
            "prompt": [{"role": "user", "content": example.question}],
            "images": [image if not isinstance(image, Path) else str(image) for image in example.images],
            "example_id": example.example_id,
            "answer": example.answer,
        }
        for example in examples
    ]
    message = {"role": Value("string"), "content": Value("string")}
    features = Features(
        {"prompt": [message], "images": List(Image()), "example_id": Value("string"), "answer": Value("string")}
    )
    return Dataset.from_list(rows, features=features)


def _check_weights(example: Example, pitfalls) -> None:
    try:
        criterion_weights(example.criteria, pitfalls)
    except InputError as error:
        raise InputError(f"example {example.example_id!r}: {error}") from error


def _scored_response(judgement: Judgement, answer: float, format_: float) -> ScoredResponse:
    def known(value: float) -> float | None:
        return None if np.isnan(value) else value

    verdicts = {v.criterion_id: (v.verdict, v.span) for v in judgement.verdicts}
    return ScoredResponse(judgement.offsets, known(answer), known(format_), verdicts)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else float("nan")
