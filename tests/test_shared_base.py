"""One base, two adapters: the verdicts of a separate model, no second copy in memory, a policy that notices nothing."""

from __future__ import annotations

import dataclasses
import shutil

import pytest
import torch
from claimwise.distill.oracle import OracleJudge
from claimwise.trainer import RubricGRPOConfig
from claimwise.trainer.policy import LORA_TARGETS
from claimwise.trainer.shared_base import SharedBaseJudge
from claimwise.verifier import InputError
from claimwise.verifier.judge import load_judge
from grpo_runs import make_examples, policy, rubric_trainer, weights_of
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForImageTextToText

CONFIG = LoraConfig(r=4, lora_alpha=8, target_modules=LORA_TARGETS, init_lora_weights=False)
SMALL = {"max_completion_length": 12, "per_device_train_batch_size": 4, "lora_r": 4, "max_steps": 2}


def on_the_base(assets, folder, judge, **settings):
    """A trainer whose policy is an adapter on the verifier's own base."""
    torch.manual_seed(3)
    model = AutoModelForImageTextToText.from_pretrained(assets / "base", dtype=torch.float32)
    settings = {**SMALL, "peft_config": CONFIG, "arm": "prefix", **settings}
    return rubric_trainer(assets, folder, make_examples(4), judge, model=model, **settings)


def shared(assets):
    return SharedBaseJudge(assets / "verifier", str(assets / "base"))


def test_the_verdicts_of_a_separate_model(assets, items, tmp_path):
    """Whatever the policy's adapter holds: here random weights that change all it says."""
    judge = shared(assets)
    on_the_base(assets, tmp_path, judge)
    alone = load_judge(assets / "verifier", "image", dtype=torch.float32, device="cpu").judge(items)
    beside = judge.judge(items)
    assert [(v.verdict, v.span, v.reading) for v in beside] == [(v.verdict, v.span, v.reading) for v in alone]
    assert max(abs(a.p_yes - b.p_yes) for a, b in zip(alone, beside, strict=True)) < 1e-4
    assert beside == [
        dataclasses.replace(v, created_at=w.created_at, p_yes=w.p_yes) for v, w in zip(alone, beside, strict=True)
    ]


def test_no_second_copy_of_the_base(assets, items, tmp_path):
    trainer = on_the_base(assets, tmp_path, OracleJudge("image"))
    before = {p.data_ptr(): p.numel() for p in trainer.model.parameters()}
    judge = shared(assets)
    judge.attach(trainer.model)
    judge.judge(items[:1])
    after = {p.data_ptr(): p.numel() for p in trainer.model.parameters()}
    adapter = load_file(assets / "verifier" / "adapter_model.safetensors")
    assert sum(after.values()) - sum(before.values()) == sum(weight.numel() for weight in adapter.values())
    assert before.keys() <= after.keys()


def test_the_policy_notices_nothing(assets, tmp_path):
    """The same run with a verifier on a base of its own: the same weights and the same state of the optimizer."""
    apart = on_the_base(assets, tmp_path / "apart", load_judge(assets / "verifier", dtype=torch.float32, device="cpu"))
    apart.train()
    judge = shared(assets)
    together = on_the_base(assets, tmp_path / "together", judge)
    together.train()
    judge.detach()
    wanted, found = weights_of(apart), weights_of(together)
    assert wanted.keys() == found.keys() and all(wanted[name].equal(found[name]) for name in wanted)
    states = [trainer.optimizer.state_dict()["state"] for trainer in (apart, together)]
    assert states[0].keys() == states[1].keys() and len(states[0]) > 0
    for key, state in states[0].items():
        assert all(torch.equal(torch.as_tensor(v), torch.as_tensor(states[1][key][k])) for k, v in state.items())


@pytest.mark.slow
def test_a_checkpoint_holds_the_policy_alone_and_is_gone_on_with(assets, tmp_path):
    """With both adapters in it, the policy's would begin anew from its first weights, silently."""
    settings = {"save_strategy": "steps", "save_steps": 1, "learning_rate": 3e-3}
    whole = on_the_base(assets, tmp_path / "whole", shared(assets), **settings)
    whole.train()
    checkpoint = tmp_path / "whole/checkpoint-1"
    saved = load_file(checkpoint / "adapter_model.safetensors")
    assert not [path for path in checkpoint.iterdir() if path.is_dir()] and len(saved) == 2 * 7 * 4  # A and B, layers
    again = on_the_base(assets, tmp_path / "again", shared(assets), **settings)
    again.train(resume_from_checkpoint=str(checkpoint))
    wanted, found = weights_of(whole), weights_of(again)
    assert wanted.keys() == found.keys() and all(wanted[name].equal(found[name]) for name in wanted)
    assert any("verifier" in name for name in found)  # beside the policy in both, all the time


def test_gradients_of_the_policy_outlive_a_judgement(assets, items, tmp_path):
    judge = shared(assets)
    trainer = on_the_base(assets, tmp_path, judge)
    learning = {name: p for name, p in trainer.model.named_parameters() if p.requires_grad}
    assert learning and not any("verifier" in name for name in learning)
    for parameter in learning.values():
        parameter.grad = torch.ones_like(parameter)
    trainer.model.train()
    judge.judge(items[:1])
    assert trainer.model.training and trainer.model.active_adapter == "default"
    assert {name for name, p in trainer.model.named_parameters() if p.requires_grad} == set(learning)
    assert all(bool((p.grad == 1).all()) for p in learning.values())
    assert all(p.grad is None for name, p in trainer.model.named_parameters() if "verifier" in name)


def test_what_cannot_be_shared_is_refused(assets, tmp_path):
    with pytest.raises(InputError, match="the adapter was trained on base"):
        SharedBaseJudge(assets / "verifier", str(assets / "policy"))
    with pytest.raises(InputError, match="set lora_r"):
        rubric_trainer(assets, tmp_path, make_examples(4), shared(assets), model=policy(assets))
    for settings, told in (({}, "set lora_r"), ({"lora_r": 4, "verifier": "oracle"}, "adapter folder alone")):
        with pytest.raises(InputError, match=told):
            RubricGRPOConfig(output_dir=str(tmp_path), shared_base=True, **settings)
    with pytest.raises(InputError, match="not attached"):
        shared(assets).judge([])
    base = AutoModelForImageTextToText.from_pretrained(assets / "base", dtype=torch.float32)
    namesake = get_peft_model(base, CONFIG, adapter_name="verifier")
    before = {name: weight.clone() for name, weight in namesake.state_dict().items()}
    with pytest.raises(InputError, match="the policy's own adapter is named 'verifier'"):
        shared(assets).attach(namesake)
    after = namesake.state_dict()
    assert all(weight.equal(after[name]) for name, weight in before.items())


def test_an_adapter_whose_modules_do_not_match_is_refused(assets, tmp_path):
    """vllm#39369: it would load without effect."""
    shutil.copytree(assets / "verifier", tmp_path / "verifier")
    path = tmp_path / "verifier" / "adapter_model.safetensors"
    renamed = {name.replace("language_model", "text_model"): weight for name, weight in load_file(path).items()}
    save_file(renamed, path, {"format": "pt"})
    judge = SharedBaseJudge(tmp_path / "verifier", str(assets / "base"))
    with pytest.raises(InputError, match=r"no place for the adapter's .*text_model"):
        on_the_base(assets, tmp_path / "run", judge)
