"""The trainer's credit on the shipped policy: the numbers of `token_advantages`, on the right tokens; a judge's failures
are missing and not zero; answers that no rule decides; what cannot be is refused."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from claimwise.distill.oracle import OracleJudge
from claimwise.trainer import RubricGRPOConfig
from claimwise.verifier import InputError
from claimwise.verifier.pixels import as_rgb
from claimwise.verifier.processor import load_processor
from claimwise.verifier.schema import Criterion, Verdict
from grpo_runs import (
    COMMON,
    PLAIN_SGD,
    Failing,
    batches_of,
    logged,
    make_examples,
    rubric_trainer,
    write_down,
    written_completions,
)
from PIL import Image

IMAGE = OracleJudge("image")


@pytest.fixture(scope="module")
def examples():
    return make_examples()


@pytest.fixture(scope="module")
def completions(assets, examples):
    return written_completions(assets, examples)


@pytest.mark.parametrize("arm", ["scalar", "component", "prefix", "span"])
def test_the_loss_gets_the_credit(assets, tmp_path, examples, arm, monkeypatch):
    """The advantages that reach TRL's loss are those of `token_advantages` on the same completions."""
    trainer = rubric_trainer(assets, tmp_path, examples, IMAGE, arm=arm, max_steps=1)
    credits, credit_of, seen = [], trainer._credit, batches_of(trainer)
    monkeypatch.setattr(trainer, "_credit", lambda *a: credits.append(credit_of(*a)) or credits[-1])
    trainer.train()
    batch = seen[0]
    assert batch["advantages"].shape == batch["completion_ids"].shape
    expected = [row for group in credits[0] for row in group.advantages]
    # TRL shuffles the generation batch before the loss: compare as sets of rows
    rows = sorted(
        tuple(np.round(row.numpy()[: int(mask.sum())], 5))
        for row, mask in zip(batch["advantages"], batch["completion_mask"], strict=True)
    )
    assert rows == sorted(tuple(np.round(row.astype(np.float32), 5)) for row in expected)
    assert float((batch["advantages"] * (1 - batch["completion_mask"])).abs().sum()) == 0
    assert any(row.std() > 1e-6 for row in expected) == (arm in ("prefix", "span"))


class Pointing:
    """Says yes to responses that hold a word, and points at it."""

    name, mode = "pointing", "text"

    def __init__(self, word):
        self.word = word

    def judge(self, items):
        return [self.verdict(rollout, criterion) for example, rollout in items for criterion in example.criteria]

    def verdict(self, rollout, criterion):
        at = rollout.response.find(self.word)
        span = (at, at + len(self.word)) if at >= 0 else (None, None)
        answer = (rollout.example_id, rollout.rollout_id, criterion.id, self.name, "text", at >= 0)
        return Verdict(*answer, span_start=span[0], span_end=span[1])


def test_spans_reach_their_tokens_over_split_characters_padding_and_truncation(assets, tmp_path, examples):
    """你 is three tokens of a byte each. Four completions of one group: the word stands behind it and an early end; the
    same cut off right after the word; cut off inside 你, so without the word; and another text.

    One criterion, budget all rubric, two yes of four: mean 1/2, std sqrt(1/3), z = +-0.5 / (sqrt(1/3) + 1e-4)."""
    tokenizer = load_processor(assets / "policy").tokenizer
    wide, word, end = (tokenizer(t)["input_ids"] for t in ("你", " 3.", tokenizer.eos_token))
    assert (len(wide), len(word)) == (3, 2)
    example = dataclasses.replace(examples[0], criteria=(Criterion("c1", "", label="ESSENTIAL"),), answer=None)
    ids = [[*wide, *word, *wide, *end], [*wide, *word], wide[:2], [*wide, *wide, *end]]
    settings = {"per_device_train_batch_size": 4, "budget": "0,0,1", "arm": "span", **PLAIN_SGD}
    trainer = write_down(
        rubric_trainer(assets, tmp_path, [example], Pointing("3"), **settings), {example.example_id: ids}
    )
    seen = batches_of(trainer)
    trainer.train()
    z = 0.5 / ((1 / 3) ** 0.5 + 1e-4)
    three = len(tokenizer(" ")["input_ids"]) if tokenizer(" 3")["input_ids"] == word[:1] else None
    assert three == 1  # " 3" is one token, so the word's span covers it alone
    rows = {tuple(map(float, row)) for row in seen[0]["advantages"].numpy().round(4)}
    wanted = [[0, 0, 0, z, 0, 0, 0, 0, 0], [0, 0, 0, z, 0, 0, 0, 0, 0], [-z, -z, *[0] * 7], [*[-z] * 7, 0, 0]]
    assert rows == {tuple(float(np.float32(round(v, 4))) for v in row) for row in wanted}


def test_match_rms_makes_the_root_mean_square_one(assets, tmp_path, examples):
    trainer = rubric_trainer(assets, tmp_path, examples, IMAGE, match_rms=True, max_steps=1)
    seen = batches_of(trainer)
    trainer.train()
    mask = seen[0]["completion_mask"].bool()
    assert float(seen[0]["advantages"][mask].square().mean()) == pytest.approx(1.0, abs=1e-5)


def test_a_judge_that_fails_a_tenth_trains_on(assets, tmp_path, examples):
    trainer = rubric_trainer(assets, tmp_path, examples, Failing(lambda i: i % 10 == 0))
    trainer.train()
    assert len(logged(trainer, "loss")) == 2
    assert 0 < logged(trainer, "rubric/VF/missing")[0] < 0.3
    assert np.isfinite(logged(trainer, "rubric/reward")).all()


@pytest.mark.parametrize(("fails", "count"), [(lambda i: True, 56), (lambda i: i % 10 < 6, 36)])
def test_a_judge_that_fails_mostly_stops_the_run_with_the_reason(assets, tmp_path, examples, fails, count):
    """All of 8 x 7 verdicts, and six of ten."""
    trainer = rubric_trainer(assets, tmp_path, examples, Failing(fails))
    message = rf"step 0: {count} of 56 verdicts are missing, more than max_missing = 0.5.*timed out"
    with pytest.raises(InputError, match=message):
        trainer.train()


def test_a_judge_that_answers_too_little_or_in_another_order_is_refused(assets, tmp_path, examples):
    class Short(OracleJudge):
        def judge(self, items):
            return super().judge(items)[1:]

    class Turned(OracleJudge):
        def judge(self, items):
            return super().judge(items)[::-1]

    for judge, reason in ((Short("image"), "gave 55 verdicts on 56"), (Turned("image"), "must keep the order")):
        with pytest.raises(InputError, match=reason):
            rubric_trainer(assets, tmp_path, examples, judge).train()


class Free(Pointing):
    """Asked for a final answer says yes to responses with a 3, and fails on empty ones."""

    def verdict(self, rollout, criterion):
        if criterion.text == "Gives the final answer a wooden boat with two sails.":
            self.asked = getattr(self, "asked", 0) + 1
        if not rollout.response:
            return dataclasses.replace(super().verdict(rollout, criterion), verdict=None, error="nothing to read")
        return super().verdict(rollout, criterion)


def test_answers_that_no_rule_decides_go_to_the_judge(assets, tmp_path, examples):
    """The answer is free text: right where the judge says so, wrong where it denies or nothing was answered, missing
    where the judge fails. The same rewards reach TRL's own log and, in arm `answer`, its advantages."""
    tokenizer = load_processor(assets / "policy").tokenizer
    example = dataclasses.replace(examples[0], answer="a wooden boat with two sails", criteria=examples[0].criteria[:1])
    texts = ["Answer: 3", "Answer: 4", "no answer, 3", "Answer: 3 3"]
    ids = [[*tokenizer(text)["input_ids"], tokenizer.eos_token_id] for text in texts]
    judge = Free("3")
    settings = {"per_device_train_batch_size": 4, "arm": "answer", **PLAIN_SGD}
    trainer = write_down(rubric_trainer(assets, tmp_path, [example], judge, **settings), {example.example_id: ids})
    seen = batches_of(trainer)
    trainer.train()
    assert list(trainer._logs["rewards"]["answer_reward"]) == [1, 0, 0, 1]
    assert judge.asked == 3  # not for the one without a final answer
    assert logged(trainer, "answer/by_judge") == [0.75] and logged(trainer, "answer/missing") == [0]
    z = 0.5 / ((1 / 3) ** 0.5 + 1e-4)
    assert sorted(seen[0]["advantages"].tolist()) == pytest.approx([-z, -z, z, z])


def test_agreement_is_tracked_while_training(assets, tmp_path, examples):
    trainer = rubric_trainer(assets, tmp_path, examples, OracleJudge("text"), IMAGE, sampled_verdicts=6)
    trainer.train()
    figures = trainer.in_loop.close()
    assert figures["sampled"] == 12
    assert 0.5 < figures["agreement"] <= 1
    assert len((tmp_path / "in_loop" / "samples.jsonl").read_text().splitlines()) == 12


REFUSED = [
    ({"importance_sampling_level": "sequence"}, "one per sequence"),
    ({"off_policy_mask_threshold": 0.5}, "whole sequences"),
    ({"loss_type": "vespo"}, "whole sequences"),
    ({"loss_type": "luspo"}, "not shown right"),
    ({"scale_rewards": "batch"}, "standardised within its group"),
    ({"scale_rewards": False}, "standardised within its group"),
    ({"multi_objective_aggregation": "normalize_then_sum"}, "the arm says"),
]


@pytest.mark.parametrize(("settings", "reason"), REFUSED)
@pytest.mark.parametrize("arm", ["scalar", "prefix"])
def test_what_cannot_take_advantages_per_token_is_refused(tmp_path, settings, reason, arm):
    with pytest.raises(InputError, match=reason):
        RubricGRPOConfig(output_dir=str(tmp_path), **{**COMMON, "arm": arm, **settings})
    RubricGRPOConfig(output_dir=str(tmp_path), **{**COMMON, "arm": "answer", **settings})  # one per sequence


@pytest.mark.parametrize("arm", ["answer", "prefix"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("loss_type", "grpoo"),
        ("importance_sampling_level", "word"),
        ("scale_rewards", "true"),  # as a flag has it
        ("multi_objective_aggregation", "sum"),
    ],
)
def test_a_value_that_trl_does_not_know_is_refused_at_start(tmp_path, name, value, arm):
    """TRL itself raises in the first step, when everything is loaded, written and judged."""
    with pytest.raises(InputError, match=f"{name} is '{value}'; it must be one of "):
        RubricGRPOConfig(output_dir=str(tmp_path), **{**COMMON, "arm": arm, name: value})


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"reward_weights": [1.0, 1.0]}, "the budget weighs"),
        ({"arm": "prefixes"}, "must be one of"),
        ({"pitfalls": "on"}, "must be one of"),
        ({"budget": "1,1,1"}, "sum to 1"),
        ({"max_missing": 2.0}, "a share"),
        ({"lora_r": -1}, "lora_r is -1"),
        ({"load_in_4bit": True}, "set lora_r"),
        ({"verifier": "oracle", "verifier_base": "base"}, "verifier_base is set"),
        ({"verifier": "oracle", "verifier_server": "http://localhost:1"}, "verifier_server is set"),
        ({"sampled_verdicts": -1}, "sampled_verdicts is -1"),
        ({"resume_from_checkpoint": "runs/x"}, "goes on from its last checkpoint by the same command"),
        ({"save_only_model": True}, "could not go on"),
    ],
)
def test_settings_that_cannot_be_used(tmp_path, settings, reason):
    with pytest.raises(InputError, match=reason):
        RubricGRPOConfig(output_dir=str(tmp_path), **{**COMMON, **settings})


def test_examples_that_cannot_be_used_are_refused_at_start(assets, tmp_path, examples):
    weightless = dataclasses.replace(
        examples[0], criteria=tuple(dataclasses.replace(c, weight=0.0) for c in examples[0].criteria)
    )
    with pytest.raises(InputError, match=weightless.example_id):
        rubric_trainer(assets, tmp_path, [weightless, *examples[1:]], IMAGE)
    with pytest.raises(InputError, match="two examples are named"):
        rubric_trainer(assets, tmp_path, [weightless, *examples], IMAGE)


def test_an_arm_with_a_rubric_needs_a_judge(assets, tmp_path, examples):
    with pytest.raises(InputError, match="needs a judge"):
        rubric_trainer(assets, tmp_path, examples)


def test_the_policy_sees_a_see_through_image_as_the_judge_does(assets, tmp_path, examples):
    """On white, not in the colour that lies hidden where it is see-through."""
    seen = []
    for name in ("see-through", "on white"):
        rows = []
        for example in examples[:2]:
            alpha = example.images[0].convert("L")
            image = Image.merge("RGBA", [Image.new("L", alpha.size)] * 3 + [alpha])  # black, seen or not
            rows.append(dataclasses.replace(example, images=(image if name == "see-through" else as_rgb(image),)))
        trainer = rubric_trainer(assets, tmp_path / name, rows, OracleJudge("image"), max_completion_length=8)
        batches = batches_of(trainer)
        trainer.train()
        seen.append(batches[0]["pixel_values"])
    assert torch.equal(*seen) and seen[0].std() > 0.1
