"""QLoRA on CPUs: 4-bit weights in the language model alone, training on them, the adapter on the unquantised base."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from claimwise.distill.config import DistillConfig
from claimwise.distill.loss import distillation_loss, margin, read_logits
from claimwise.distill.quantized import check_nf4, keep_trainable, nf4_settings
from claimwise.distill.run import distill, load_items
from claimwise.distill.train import TreeCollator, add_adapter, balance, judge_of, projections
from claimwise.verifier.errors import InputError
from claimwise.verifier.judge import PackedJudge, load_judge
from claimwise.verifier.model import base_hash, load_model
from distilling import log_of, settings, training_items
from peft import PeftModel

bnb = pytest.importorskip("bitsandbytes")


def quantized(path):
    return load_model(path, dtype=torch.float32, **nf4_settings(torch.float32))


@pytest.fixture(scope="module")
def untied(tiny_base, tmp_path_factory):
    """The tiny base with an `lm_head` of its own, as the 7B has."""
    vlm = load_model(tiny_base, dtype=torch.float32)
    vlm.model.config.tie_word_embeddings = vlm.model.config.text_config.tie_word_embeddings = False
    vlm.model.lm_head.weight = torch.nn.Parameter(vlm.model.lm_head.weight.detach().clone())
    folder = tmp_path_factory.mktemp("untied")
    vlm.model.save_pretrained(folder)
    vlm.processor.save_pretrained(folder)
    return folder


def test_four_bits_are_for_the_language_model_alone(untied):
    """A 4-bit vision tower gives nonsense (unsloth#1347). q of layer 0: 32 x 32 weights in 512 bytes."""
    plain, vlm = load_model(untied, dtype=torch.float32), quantized(untied)
    linears = {name: module for name, module in vlm.model.named_modules() if isinstance(module, torch.nn.Linear)}
    four = {name for name, module in linears.items() if isinstance(module, bnb.nn.Linear4bit)}
    assert len(four) == 14 and all(".language_model.layers." in name for name in four)
    rest = set(linears) - four
    assert "lm_head" in rest and any(".visual." in name for name in rest)
    for name in rest:
        assert torch.equal(linears[name].weight, plain.model.get_submodule(name).weight)
    query = linears["model.language_model.layers.0.self_attn.q_proj"].weight
    assert (query.dtype, query.numel(), query.quant_state.quant_type) == (torch.uint8, 512, "nf4")


def test_the_run_checks_what_is_quantized(untied):
    vlm = quantized(untied)
    linears = projections(vlm.model)
    told = "NF4 on 14 linears of the language model, vision tower and lm_head unquantised"
    assert check_nf4(vlm.model, linears, "tiny") == told
    vlm.model.lm_head = bnb.nn.Linear4bit(32, 64)
    with pytest.raises(InputError, match=r"tiny: 4 bits are for the 14 linears .* but 'lm_head' and 0 more differ"):
        check_nf4(vlm.model, linears, "tiny")


def test_an_evaluation_leaves_the_gradients_as_they_are(assets, tables):
    """bitsandbytes repacks weights for evaluation on some CPUs, and no gradient flows through what it makes of them."""
    vlm = quantized(assets / "base")
    keep_trainable(vlm.model)
    config = DistillConfig(report_to="none")
    add_adapter(vlm, config)
    items = training_items(tables, "image", 1)
    batch = TreeCollator(vlm, config, balance(items))(items)
    norms = []
    for _ in range(2):
        vlm.model.train().zero_grad()
        token_logits, verdict_logits = read_logits(vlm.model, batch["packed"], batch["targets"])
        distillation_loss(token_logits, margin(verdict_logits, vlm.encoder), batch["targets"]).backward()
        norms.append({n: float(w.grad.norm()) for n, w in vlm.model.named_parameters() if w.grad is not None})
        judge_of(vlm, config).judge([(example, rollout) for example, rollout, _ in items])
    assert len(norms[0]) == 2 * 7 * 4 and sum(norm > 0 for norm in norms[0].values()) == 7 * 4  # A's are zero at first
    assert norms[1] == pytest.approx(norms[0], rel=1e-5)


@pytest.fixture(scope="module")
def finished(assets, tables, tmp_path_factory):
    """The shipped base, 12 steps in 4 bits."""
    out = tmp_path_factory.mktemp("nf4") / "out"
    changes = {"load_in_4bit": True, "max_steps": 12, "learning_rate": 4e-3, "save_strategy": "steps", "save_steps": 12}
    metrics = distill(DistillConfig(**{**settings(assets / "base", tables, out), **changes}))
    return out, metrics


@pytest.mark.slow
def test_it_learns_in_four_bits(finished, assets):
    out, metrics = finished
    losses = log_of(out)
    assert sum(losses[-3:]) < 0.6 * sum(losses[:3])
    card = json.loads((out / "verifier.json").read_text())
    assert card["base_hash"] == base_hash(assets / "base") and card["base"] == str(assets / "base")
    assert metrics["missing_b"] == 0


@pytest.mark.slow
def test_the_adapter_is_judged_on_the_unquantized_base(finished, assets, tables):
    """What the judge says on the base as it is, and what the student said on its 4 bits."""
    out, _ = finished
    held_out = tables / "validation"
    tables_of = [str(held_out / name) for name in ("examples.jsonl", "rollouts.jsonl", "gold-image.jsonl")]
    pairs = [(example, rollout) for example, rollout, _ in load_items(*tables_of, "image")[0]]
    judge = load_judge(out)
    linears = [m for m in judge.model.backbone.modules() if isinstance(m, torch.nn.Linear)]
    assert linears and not any(isinstance(module, bnb.nn.Linear4bit) for module in linears)
    student = quantized(assets / "base")
    keep_trainable(student.model)
    student.model = PeftModel.from_pretrained(student.model, out)
    one, two = judge.judge(pairs), PackedJudge(student, judge.card).judge(pairs)
    gaps = [abs(a.p_yes - b.p_yes) for a, b in zip(one, two, strict=True)]
    assert len(gaps) == 42 and 0 < sum(gaps) / len(gaps) < 0.05
    assert sum(a.verdict == b.verdict for a, b in zip(one, two, strict=True)) >= 39


def test_bitsandbytes_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(InputError, match=r"load_in_4bit needs bitsandbytes; pip install 'claimwise\[quantized\]'"):
        DistillConfig(load_in_4bit=True, report_to="none")


def test_a_base_that_is_stored_quantized_is_refused(tiny_base, tables, tmp_path):
    """Merging into 4 bits loses (trl#3466)."""
    quantized(tiny_base).model.save_pretrained(tmp_path / "base")
    with pytest.raises(InputError, match="is stored quantised; give the unquantised one, and load_in_4bit: true"):
        distill(DistillConfig(**settings(tmp_path / "base", tables, tmp_path / "out")))
    assert not (tmp_path / "out").exists()
