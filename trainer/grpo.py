"""GRPO with a verifier as judge and credit per token: TRL's trainer, whose `_compute_loss` takes advantages of shape
(batch, tokens) from a subclass.

In: a policy, examples with rubrics, a judge. Out: a trained policy; per step the verdicts of all rollouts, their credit,
and the judge's agreement with a teacher. Arm `answer` leaves TRL's own advantages untouched. Nothing here depends on what
generated the completions: transformers, vLLM or a rollout function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from accelerate.utils import broadcast_object_list, gather_object

from ..verifier.cascade import CascadeJudge
from ..verifier.errors import InputError
from ..verifier.pixels import as_rgb
from ..verifier.schema import Example, Judge, Verdict
from .actions import AlarmActions, check_actions
from .config import RubricGRPOConfig
from .credit import (
    ARMS,
    PLACEBO,
    Arm,
    GroupCredit,
    PitfallSetting,
    ScoredResponse,
    criterion_weights,
    matched,
    token_advantages,
)
from .credit_log import credit_figures, verdict_figures
from .group_statistics import FloatArray
from .in_loop import InLoopAgreement, Judged
from .judging import Judgement, judge_completions, refuse_too_many_missing, rollouts_of
from .kept_groups import FOLDER, JudgedResponse, KeptGroups, describe_group
from .prompts import by_id, prompts_of
from .resume import ResumableGRPOTrainer
from .rewards import answer_reward, format_reward
from .shared_base import on_the_policy

__all__ = ["Judgement", "RubricGRPOTrainer", "prompts_of"]


class RubricGRPOTrainer(ResumableGRPOTrainer):
    """`GRPOTrainer` whose advantages come from `claimwise.trainer.token_advantages`.

    `examples` are the prompts, `eval_examples` those of evaluations; `judge` answers every criterion of every
    completion, and whether the final answer is right where no rule can say; `teacher` (optional) checks a sample of the
    verdicts. `monitors` are TRL reward functions that are logged and never rewarded. Other keywords go to GRPOTrainer.
    """

    def __init__(
        self,
        model,
        args: RubricGRPOConfig,
        examples: Sequence[Example],
        judge: Judge | None,
        teacher: Judge | None = None,
        monitors: Sequence[Callable] = (),
        eval_examples: Sequence[Example] = (),
        **kwargs,
    ):
        if judge is None and args.arm != "answer":
            raise InputError(f"arm {args.arm} needs a judge; set `verifier` to an adapter folder")
        self.examples = by_id([*examples, *eval_examples])
        for example in self.examples.values():
            _check_weights(example, args.pitfalls)
        check_actions(args, judge, teacher)
        self.judge, self.settings = judge, args
        self.kept = KeptGroups(Path(args.output_dir or ".") / FOLDER)
        self.in_loop = None
        self._watching = teacher is not None and judge is not None and args.sampled_verdicts > 0
        if self._watching and teacher is not None and args.process_index == 0:
            self.in_loop = InLoopAgreement(
                teacher,
                args.sampled_verdicts,
                Path(args.output_dir or ".") / "in_loop",
                args.seed,
                examples=self.examples,
                healthy=args.healthy_agreement,
                bad=args.bad_agreement,
                cascade=isinstance(judge, CascadeJudge),
            )
        args.reward_weights = [*(args.reward_weights or [])[:2], *[0.0] * len(monitors)]
        rewards = [answer_reward, format_reward, *monitors]
        if eval_examples:
            kwargs["eval_dataset"] = prompts_of(eval_examples)
        super().__init__(model, reward_funcs=rewards, args=args, train_dataset=prompts_of(examples), **kwargs)
        if (shared := on_the_policy(judge)) is not None:
            shared.attach(self.model)
        self._eval_batches = 0
        self.actions = AlarmActions(args, self.in_loop)
        self.add_callback(self.actions)

    def _generate(self, prompts) -> Any:
        """TRL's, for batches that mix examples with and without an image: its None for "no image" is what vLLM takes, but
        transformers 5.17's processors refuse it afterwards."""
        *rest, images, tool_images = super()._generate(prompts)
        return *rest, images and [own or [] for own in images], tool_images

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        """TRL's rewards, with the judge's word on the answers that no rule could compare. Judges the whole batch."""
        rewards_nk = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        if self.judge is None:
            return rewards_nk
        examples = [self.examples[row["example_id"]] for row in inputs]
        unknown = rewards_nk[self._local(len(inputs)), 0].isnan().tolist()
        undecided = [own and bool((e.answer or "").strip()) for own, e in zip(unknown, examples, strict=True)]
        rollouts, offsets = rollouts_of(self._tokenizer, examples, completion_ids_list, self._rollout_ids(len(inputs)))
        self._judged = gather_object(judge_completions(self.judge, examples, rollouts, offsets, undecided))
        self._as_judged = self._judged
        if self._watching and self.settings.on_alarm == "escalate" and self._mode_and_group()[0] == "train":
            self._judged = self._escalate(self._judged)
        verdicts = [verdict for judgement in self._judged for verdict in judgement.asked]
        refuse_too_many_missing(verdicts, self.settings.max_missing, f"step {self.state.global_step}")
        for row, judgement in enumerate(self._judged):
            if judgement.answer is not None and judgement.answer.verdict is not None:
                rewards_nk[row, 0] = float(judgement.answer.verdict)
        self._rewards_nk = rewards_nk
        return rewards_nk

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions([_as_seen(row) for row in inputs])
        if self.judge is None:
            return output
        mode, generations = self._mode_and_group()
        figures = verdict_figures(self._judged)
        if generations > 1:  # an evaluation may take one response per example: nothing to compare it with
            credits = self._credit(self._judged, self._rewards_nk[:, :2].tolist(), generations)
            masks = self._loss_masks(output, len(inputs))
            credits = self._matched(credits, masks)
            used = self._use(output, credits, masks, len(inputs))
            figures |= credit_figures(credits, used, masks)
            if mode == "train" and self.args.process_index == 0:
                self._keep_a_group(used, masks, generations)
        if mode == "train" and self._watching:
            figures |= self._watch(self._as_judged, figures.get("rubric/reward", float("nan")))
        for key, value in figures.items():
            self._metrics[mode][key].append(value)
        return output

    def _mode_and_group(self) -> tuple[str, int]:
        """ "train" or "eval", and the responses per example in it."""
        training = self.model is not None and self.model.training
        group = self.num_generations if training else self.num_generations_eval
        return ("train" if training else "eval"), group or 1

    def _local(self, count: int) -> slice:
        """This process's rows of what is gathered."""
        start = self.accelerator.process_index * count
        return slice(start, start + count)

    def _rollout_ids(self, count: int) -> list[str]:
        """Names that no other batch of the run has: an optimizer step may take several, an evaluation takes many."""
        mode, _ = self._mode_and_group()
        batch = self._step % self.args.gradient_accumulation_steps if mode == "train" else self._eval_batches
        self._eval_batches += mode == "eval"
        when = f"{'step' if mode == 'train' else 'eval'}{self.state.global_step:05d}"
        return [f"{when}-{batch}-{self.accelerator.process_index}-{i:03d}" for i in range(count)]

    def _watch(self, everyone: Sequence[Judgement], reward: float) -> dict[str, float]:
        """A sample of the verdicts goes to the teacher, from the main process; all processes act on alarms."""
        figures = {}
        if self.in_loop is not None:
            known = None if np.isnan(reward) else reward
            figures = self.in_loop.observe(self.state.global_step, self._triples(everyone), known)
        self.actions.look()
        return figures

    def _escalate(self, everyone: Sequence[Judgement]) -> list[Judgement]:
        """The judgements with the teacher's verdicts in place of uncertain ones, the same in all processes."""
        replaced: list[dict[int, Verdict]] = [{}]
        if self.in_loop is not None:
            step, args = self.state.global_step, self.settings
            triples = self._triples(everyone)
            replaced = [self.in_loop.escalate(step, triples, args.escalate_budget, args.escalate_band)]
            self._metrics["train"]["judge/escalated"].append(len(replaced[0]))
        broadcast_object_list(replaced)
        numbers = count()
        return [replace(j, verdicts=[replaced[0].get(next(numbers), v) for v in j.verdicts]) for j in everyone]

    def _triples(self, everyone: Sequence[Judgement]) -> list[Judged]:
        return [(self.examples[j.rollout.example_id], j.rollout, v) for j in everyone for v in j.verdicts]

    def _credit(
        self, everyone: Sequence[Judgement], rewards, generations: int, arm: str | None = None
    ) -> list[GroupCredit]:
        """One credit per group of `generations` completions, over all processes; of another arm than the run's where one
        is given."""
        args, credits = self.settings, []
        for first in range(0, len(everyone), generations):
            group = range(first, first + generations)
            example_ids = {everyone[i].rollout.example_id for i in group}
            if len(example_ids) > 1:
                raise InputError(
                    f"a group of {generations} completions mixes the examples {', '.join(sorted(example_ids))}"
                )
            responses = [_scored_response(everyone[i], *rewards[i]) for i in group]
            credits.append(
                token_advantages(
                    self.examples[example_ids.pop()].criteria,
                    responses,
                    arm=cast(Arm, arm or args.arm),
                    budget=args.budget,
                    pitfalls=cast(PitfallSetting, args.pitfalls),
                    shuffle_seed=(args.seed, self._step, first),
                )
            )
        return credits

    def _matched(
        self, credits: Sequence[GroupCredit], masks: Sequence[np.ndarray], arm: str | None = None
    ) -> Sequence[GroupCredit]:
        """Divided as `match_rms` says; never TRL's own, those of arm `answer`."""
        divides = self.settings.match_rms and (arm or self.settings.arm) != "answer"
        return matched(credits, masks) if divides else credits

    def _keep_a_group(self, used: Sequence[FloatArray], masks: Sequence[np.ndarray], generations: int) -> None:
        """At some steps writes the first group of all, with what was `used` of it and its credit under the other arms."""
        step, args = self.state.global_step, self.settings
        if not self.kept.wanted(step, self.state.max_steps):
            return
        rewards = self._rewards_nk[:, :2].tolist()
        needed = self._judged if args.match_rms else self._judged[:generations]  # what the divisor goes over
        credits = {}
        for arm in ARMS:
            if arm == args.arm or arm != PLACEBO:
                credits[arm] = self._matched(self._credit(needed, rewards, generations, arm), masks, arm)[0]
        if args.arm == "answer":  # TRL's own advantages, which are no sum of our terms
            credits["answer"] = replace(credits["answer"], advantages=list(used[:generations]), terms=())
        first = self._judged[:generations]
        group = [
            JudgedResponse(j.rollout, j.verdicts, _scored_response(j, *own))
            for j, own in zip(first, rewards[:generations], strict=True)
        ]
        described = describe_group(self.examples[first[0].rollout.example_id], group, args.arm, args.budget, credits)
        self.kept.write(step, {**described, "pitfalls": args.pitfalls, "match_rms": args.match_rms})

    def _loss_masks(self, output, count: int) -> list[np.ndarray]:
        """Which tokens bear loss, (T,) for every completion of all processes: none of a truncated one that is masked."""
        mask_bt = output["completion_mask"] * output.get("tool_mask", 1)
        local = self._judged[self._local(count)]
        rows = [row[: len(j.offsets)] for row, j in zip(mask_bt.bool().cpu().numpy(), local, strict=True)]
        return gather_object(rows)

    def _use(
        self, output, credits: Sequence[GroupCredit], masks: Sequence[np.ndarray], count: int
    ) -> Sequence[FloatArray]:
        """Puts the local slice of the advantages into the batch, and all of them into TRL's log of completions; returns
        those that are used, (T,) for every completion of all processes."""
        if self.settings.arm == "answer":
            advantages_n = cast(torch.Tensor, self.accelerator.gather(output["advantages"])).tolist()
            return [np.full(len(mask), advantage) for mask, advantage in zip(masks, advantages_n, strict=True)]
        rows = [row for credit in credits for row in credit.advantages]
        advantages_bt = torch.zeros(output["completion_ids"].shape, device=output["completion_ids"].device)
        for row, advantages in enumerate(rows[self._local(count)]):
            advantages_bt[row, : len(advantages)] = torch.from_numpy(advantages)
        output["advantages"] = advantages_bt
        logged = self._logs["advantages"]
        for _ in range(min(len(rows), len(logged))):  # TRL logged its own before we replaced them
            logged.pop()
        logged.extend(float(row.mean()) if len(row) else 0.0 for row in rows)
        return rows


def _as_seen(row: dict[str, Any]) -> dict[str, Any]:
    """The row of a dataset with its images as the judge sees them: on white, and 16-bit greys scaled."""
    try:
        return {**row, "images": [as_rgb(image) for image in row["images"]]}
    except ValueError as error:
        raise InputError(f"an image of example {row['example_id']!r}: {error}") from error


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
