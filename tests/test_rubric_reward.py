"""The rubric as a plain TRL reward: by hand, with missing verdicts, and in the stock trainer."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
import torch
from claimwise.trainer import answer_reward, format_reward, prompts_of, rubric_reward
from claimwise.verifier import InputError
from claimwise.verifier.processor import load_processor
from claimwise.verifier.schema import Criterion, Verdict
from grpo_runs import (
    COMMON,
    PLAIN_SGD,
    Failing,
    batches_of,
    logged,
    make_examples,
    policy,
    rubric_trainer,
    weights_of,
    write_down,
    written_completions,
)
from trl import GRPOConfig, GRPOTrainer

CRITERIA = (Criterion("c1", "", weight=3.0), Criterion("c2", "", weight=1.0), Criterion("p", "", label="PITFALL"))


class Written:
    """Answers with the letters of the response, one per criterion: y, n, or anything else for a failure."""

    name, mode = "written", "text"

    def __init__(self):
        self.seen = []

    def judge(self, items):
        self.seen += items
        return [self.verdict(r, c, sign) for e, r in items for c, sign in zip(e.criteria, r.response, strict=True)]

    def verdict(self, rollout, criterion, sign):
        verdict = {"y": True, "n": False}.get(sign)
        error = None if verdict is not None else "timed out"
        return Verdict(rollout.example_id, rollout.rollout_id, criterion.id, "written", "text", verdict, error=error)


def rewards(texts, ids=None, judge=None, criteria=CRITERIA, **settings):
    columns = {
        "example_id": ids or ["a"] * len(texts),
        "criteria": [json.dumps([asdict(c) for c in criteria])] * len(texts),
    }
    prompts = [[{"role": "user", "content": "What?"}]] * len(texts)
    completions = [[{"role": "assistant", "content": text}] for text in texts]
    return rubric_reward(judge or Written(), **settings)(prompts=prompts, completions=completions, **columns)


def test_weights_and_veto():
    """rho 3/4 and 1/4; the last response commits the pitfall."""
    assert rewards(["yyn", "ynn", "nyn", "yyy"]) == [1, 0.75, 0.25, 0]
    assert rewards(["yyn", "yyy"], pitfalls="off") == [1, 1]
    # p is worth 1/5 and good where it is not committed
    assert rewards(["ynn", "yny"], pitfalls="criterion") == pytest.approx([0.8, 0.6])


def test_a_missing_verdict_takes_the_mean_of_its_group():
    """c1 is known as 1 and 0 in group a, so the third has 3/4 x 1/2 + 1/4; in b nothing else is known of c1: dropped."""
    assert rewards(["yyn", "nyn", "?yn", "?yn"], ids=["a", "a", "a", "b"]) == [1, 0.25, 0.625, 0.25]


def test_a_completion_of_which_nothing_is_judged_takes_the_mean_of_its_group():
    """None beside a known reward would be 0 in TRL's sum. None where the whole group is unjudged: the same for all."""
    assert rewards(["???", "yyn", "nyn"], max_missing=1) == [0.625, 1, 0.25]
    assert rewards(["???", "???", "yyn"], ids=["a", "a", "b"], max_missing=1) == [None, None, 1]


def test_too_many_missing_stop_the_run():
    with pytest.raises(InputError, match=r"call 0 of rubric_reward: 4 of 6 verdicts are missing.*timed out"):
        rewards(["???", "?yn"])


def test_the_judge_sees_question_and_images():
    judge = Written()
    content = [{"type": "image", "image": "x"}, {"type": "text", "text": "What?"}]
    columns = {
        "example_id": ["a"],
        "criteria": [json.dumps([{"id": "c1", "text": "Says so."}])],
        "images": [["picture"]],
    }
    reward = rubric_reward(judge)
    assert reward(prompts=[[{"role": "user", "content": content}]], completions=["y"], **columns) == [1]
    example, rollout = judge.seen[0]
    assert (example.question, example.images, example.criteria[0].text) == ("What?", ("picture",), "Says so.")
    assert reward(prompts=["What?"], completions=["y"], **columns) == [1]
    assert judge.seen[1][0].question == "What?" and judge.seen[1][1].rollout_id != rollout.rollout_id


@pytest.mark.parametrize("criteria", ["", "{}x", '[{"name": "c1"}]', '[{"id": "c1", "text": "", "label": "MAJOR"}]'])
def test_columns_that_cannot_be_used(criteria):
    with pytest.raises(InputError, match="the column criteria"):
        rubric_reward(Written())(prompts=["?"], completions=["y"], example_id=["a"], criteria=[criteria])


def test_in_the_stock_trainer_it_is_the_arm_scalar(assets, tmp_path):
    """Stock GRPO with the three rewards at the budget's weights takes the step of the arm `scalar`; missing verdicts
    included, those of whole responses too, since both put the group's mean for them. Without the veto: stock TRL's
    answer reward knows of none."""
    examples = make_examples(2)
    completions = written_completions(assets, examples)
    settings = {**COMMON, **PLAIN_SGD}

    def fails(i):
        return i % 9 == 4 or 7 <= i < 14  # the second response as a whole

    ours = rubric_trainer(
        assets, tmp_path / "a", examples, Failing(fails), arm="scalar", budget="0.5,0.2,0.3", pitfalls="off", **PLAIN_SGD,
    )  # fmt: skip
    seen = batches_of(write_down(ours, completions))
    ours.train()
    stock = GRPOTrainer(
        policy(assets),
        [answer_reward, format_reward, rubric_reward(Failing(fails), pitfalls="off")],
        GRPOConfig(output_dir=str(tmp_path / "b"), reward_weights=[0.5, 0.2, 0.3], **settings),
        prompts_of(examples),
        processing_class=load_processor(assets / "policy"),
    )
    stock_seen = batches_of(write_down(stock, completions))
    stock.train()
    assert torch.allclose(seen[0]["advantages"][:, 0], stock_seen[0]["advantages"], atol=1e-5)
    assert float(stock_seen[0]["advantages"].abs().max()) > 0.5
    one, other = weights_of(ours), weights_of(stock)
    assert all(torch.allclose(one[name], other[name], atol=1e-6) for name in one)
    assert logged(stock, "rubric/missing") == pytest.approx([12 / 56])  # seven, and 4, 22, 31, 40, 49 of 56
    logged_rewards = list(stock._logs["rewards"]["rubric_reward"])
    assert len(logged_rewards) == 8 and all(0 <= reward <= 1 for reward in logged_rewards)  # no NaN
