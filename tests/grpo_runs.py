"""What the tests of the trainer share: settings, examples, trainers on the shipped policy, and completions that are
written down instead of sampled."""

from __future__ import annotations

import dataclasses
import random

import torch
from claimwise.distill.digits import make_example, other_digit, respond, truth_of
from claimwise.distill.oracle import OracleJudge
from claimwise.trainer import RubricGRPOConfig, RubricGRPOTrainer
from claimwise.verifier.processor import load_processor
from transformers import AutoModelForImageTextToText

COMMON = {
    "per_device_train_batch_size": 8,
    "num_generations": 4,
    "max_completion_length": 48,
    "learning_rate": 3e-4,
    "max_steps": 2,
    "bf16": False,
    "gradient_checkpointing": False,
    "report_to": "none",
    "save_strategy": "no",
    "logging_steps": 1,
    "seed": 5,
    "disable_tqdm": True,
    "dataloader_pin_memory": False,
}
PLAIN_SGD = {
    "optim": "sgd",
    "learning_rate": 0.5,
    "lr_scheduler_type": "constant",
    "max_grad_norm": 1e9,
    "max_steps": 1,
}


def make_examples(count=8, part="train", seed=4):
    rng = random.Random(seed)
    return [make_example(rng, part, number) for number in range(count)]


def policy(assets):
    return AutoModelForImageTextToText.from_pretrained(assets / "policy", dtype=torch.float32)


def rubric_trainer(assets, folder, examples, judge=None, teacher=None, model=None, **settings):
    keywords = {key: settings.pop(key) for key in ("eval_examples", "peft_config", "monitors") if key in settings}
    config = RubricGRPOConfig(output_dir=str(folder), **{**COMMON, **settings})
    processor = load_processor(assets / "policy")
    model = policy(assets) if model is None else model
    return RubricGRPOTrainer(model, config, examples, judge, teacher, processing_class=processor, **keywords)


def logged(trainer, key):
    return [row[key] for row in trainer.state.log_history if key in row]


def weights_of(trainer):
    return {name: value.detach().clone() for name, value in trainer.model.state_dict().items()}


class Failing:
    """A judge of which some verdicts fail: those whose number in the call `fails` says so of."""

    name, mode = "failing", "image"

    def __init__(self, fails):
        self.fails, self.oracle = fails, OracleJudge("image")

    def judge(self, items):
        return [
            dataclasses.replace(v, verdict=None, p_yes=None, error="timed out") if self.fails(i) else v
            for i, v in enumerate(self.oracle.judge(items))
        ]


def written_completions(assets, examples, count=4, seed=0):
    """Token ids by example: `count` different responses, the first right, the second cut off without its end, the others
    with misread digits."""
    tokenizer, rng, out = load_processor(assets / "policy").tokenizer, random.Random(seed), {}
    for example in examples:
        truth, line = truth_of(example), example.question
        line = next(name for name in ("top row", "bottom row", "left column", "right column") if name in line)
        out[example.example_id] = []
        for k in range(count):
            digits = [other_digit(rng, d) if k > 1 and rng.random() < 0.5 else d for d in truth]
            ids = tokenizer(respond(rng, digits, line, slip=0.3))["input_ids"][:47]
            out[example.example_id].append(ids[: len(ids) // 2] if k == 1 else [*ids, tokenizer.eos_token_id])
    return out


def write_down(trainer, completions):
    """Replaces the generation of a trainer by `completions` (ids by example and place in the group)."""
    score = trainer._generate_and_score_completions

    def score_rows(rows):
        trainer.rows_now = rows
        return score(rows)

    def single_turn(prompt_ids, images, fields, generations, *rest):
        first = trainer.accelerator.process_index * len(prompt_ids)
        own = [completions[row["example_id"]] for row in trainer.rows_now]
        return [ids[(first + i) % generations] for i, ids in enumerate(own)], None

    trainer._generate_and_score_completions, trainer._generate_single_turn = score_rows, single_turn
    return trainer


def batches_of(trainer):
    """The batches that reach the loss, with the loss of each, as the training goes."""
    seen, loss_of = [], trainer._compute_loss

    def noting(model, inputs):
        loss = loss_of(model, inputs)
        seen.append({**inputs, "loss": float(loss.detach())})
        return loss

    trainer._compute_loss = noting
    return seen
