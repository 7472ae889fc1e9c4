"""Distillation before its first step: the teacher's verdicts, their weights, the adapter, the settings."""

from __future__ import annotations

import math

import pytest
import torch
from claimwise.distill.config import DistillConfig
from claimwise.distill.tiny import build_processor
from claimwise.distill.train import VerifierTrainer, add_adapter, balance, join_verdicts, temperature_on
from claimwise.verifier.errors import InputError
from claimwise.verifier.model import VisionLanguageModel, load_model
from claimwise.verifier.schema import Criterion, Example, Rollout, Verdict
from distilling import settings, training_items
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

CRITERIA = (Criterion("c1", "Says 7.", dimension="VF"), Criterion("c2", "It follows.", dimension="RC"))
EXAMPLE = Example("e1", "What?", CRITERIA)
PAIRS = [(EXAMPLE, Rollout(name, "e1", "It is 7. So it is.", "policy")) for name in ("r1", "r2")]


def verdict(rollout: str, criterion: str, answer, dimension="VF") -> Verdict:
    error = "no answer" if answer is None else None
    return Verdict("e1", rollout, criterion, "teacher", "text", answer, error=error, dimension=dimension)


def test_verdicts_join_their_responses_in_the_rubrics_order():
    """Whatever the table's order; a missing verdict is left out, and so is a response with none."""
    rows = [verdict("r1", "c2", False), verdict("r2", "c1", None), verdict("r1", "c1", True)]
    joined = join_verdicts(PAIRS, rows)
    assert [(rollout.rollout_id, [v.criterion_id for v in own]) for _, rollout, own in joined] == [("r1", ["c1", "c2"])]
    joined = join_verdicts(PAIRS, [*rows, verdict("r2", "c2", True)])
    assert [[v.key for v in own] for *_, own in joined] == [[("r1", "c1"), ("r1", "c2")], [("r2", "c2")]]


@pytest.mark.parametrize("stranger", [verdict("r9", "c1", True), verdict("r1", "c9", True), verdict("r9", "c1", None)])
def test_verdicts_of_other_tables_are_refused(stranger):
    with pytest.raises(InputError) as refusal:
        join_verdicts(PAIRS, [verdict("r1", "c1", True), stranger])
    assert repr(stranger.rollout_id) in str(refusal.value) and repr(stranger.criterion_id) in str(refusal.value)
    assert "give the tables that were labelled" in str(refusal.value)


@pytest.mark.parametrize("rows", [[], [verdict("r1", "c1", None)]])
def test_nothing_known_is_refused(rows):
    with pytest.raises(InputError, match="no rollout has a known verdict; label the rollouts first"):
        join_verdicts(PAIRS, rows)


def test_yes_and_no_count_alike_within_a_dimension():
    """VF: 3 yes, 1 no: 4 / (2 x 3) = 2/3 and 4 / (2 x 1) = 2, so that each side sums to 2. RC: only yes, 1 each.
    The mean over the six verdicts is (3 x 2/3 + 2 + 2 x 1) / 6 = 1."""
    rows = [verdict("r", f"a{i}", True) for i in range(3)] + [verdict("r", "a3", False)]
    rows += [verdict("r", f"b{i}", True, "RC") for i in range(2)]
    weights = balance([(EXAMPLE, PAIRS[0][1], rows[:2]), (EXAMPLE, PAIRS[1][1], rows[2:])])
    assert weights == pytest.approx({("VF", True): 2 / 3, ("VF", False): 2.0, ("RC", True): 1.0})
    assert sum(weights[row.dimension, row.verdict] for row in rows) / 6 == pytest.approx(1)


def adapted(vlm: VisionLanguageModel) -> list[str]:
    return [name for name, module in vlm.model.named_modules() if hasattr(module, "lora_A")]


def vision_leaves(model) -> set[str]:
    return {name.rpartition(".")[2] for name, _ in model.named_modules() if ".visual." in name}


def test_the_adapter_is_on_the_language_model_alone(tiny_base):
    """Two layers of q, k, v, o, gate, up, down: 14."""
    vlm = load_model(tiny_base, dtype=torch.float32)
    told = add_adapter(vlm, DistillConfig(lora_r=4, report_to="none"))
    assert told == "LoRA on 14 projections of the language model, 0 of the vision tower"
    names = adapted(vlm)
    assert len(names) == 14 and all(".language_model.layers." in name for name in names)
    leaves = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert {name.rpartition(".")[2] for name in names} == leaves
    trained = [name for name, weight in vlm.model.named_parameters() if weight.requires_grad]
    assert len(trained) == 28 and all("lora_" in name and ".language_model." in name for name in trained)


def test_a_vision_tower_with_the_same_names_stays_untouched():
    """peft#2615. Qwen2.5-VL's vision tower has gate_proj, up_proj and down_proj of its own. Three layers: 21."""
    processor = build_processor()
    text = {"vocab_size": len(processor.tokenizer), "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3,
            "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 128,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}}  # fmt: skip
    vision = {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 32}
    model = Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(text_config=text, vision_config=vision))
    assert {"gate_proj", "up_proj", "down_proj", "qkv"} <= vision_leaves(model)
    vlm = VisionLanguageModel(model, processor, "tiny-qwen2.5")
    told = add_adapter(vlm, DistillConfig(lora_r=4, report_to="none"))
    assert told == "LoRA on 21 projections of the language model, 0 of the vision tower"
    assert len(adapted(vlm)) == 21 and not any("visual" in name for name in adapted(vlm))


def test_a_model_of_another_kind_is_refused():
    processor = build_processor()
    config = LlamaConfig(vocab_size=len(processor.tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=1,
                         num_attention_heads=2)  # fmt: skip
    vlm = VisionLanguageModel(LlamaForCausalLM(config), processor, "some-llama")
    with pytest.raises(InputError, match=r"some-llama .* claimwise distill needs a Qwen-VL of transformers"):
        add_adapter(vlm, DistillConfig(report_to="none"))


def test_a_language_model_without_all_projections_is_refused(tiny_base):
    """A model with experts has its gate, up and down as one parameter: 4 of 7 in that layer, and a judge half adapted."""
    vlm = load_model(tiny_base, dtype=torch.float32)
    layer = vlm.model.model.language_model.layers[1]
    layer.experts, layer.mlp = layer.mlp, torch.nn.Identity()
    with pytest.raises(InputError, match=r"has 11 of the projections .* not 7 in each of 2 layers"):
        add_adapter(vlm, DistillConfig(report_to="none"))


# --- settings, and what is made of the outcome ---


def test_the_temperature_is_the_most_likely_one():
    """Four verdicts at margin 2, three of them right: most likely where sigmoid(2 / T) = 3/4, at T = 2 / ln 3 = 1.82."""
    p_yes = 1 / (1 + math.exp(-2))
    own = [Verdict("e1", f"r{i}", "c1", "verifier", "text", True, p_yes=p_yes) for i in range(4)]
    teacher = [verdict(f"r{i}", "c1", i > 0) for i in range(4)]
    assert temperature_on(teacher, own) == pytest.approx(2 / math.log(3), abs=1e-3)
    own.append(Verdict("e1", "r4", "c1", "verifier", "text", None, error="context: too long"))  # which says nothing
    assert temperature_on([*teacher, verdict("r4", "c1", True)], own) == pytest.approx(2 / math.log(3), abs=1e-3)


def test_patience_without_evaluations_is_refused(tiny_base, tables, tmp_path):
    with pytest.raises(InputError, match="patience needs evaluations; set eval_strategy"):
        DistillConfig(**{**settings(tiny_base, tables, tmp_path), "patience": 1})


@pytest.mark.parametrize(("key", "value"), [("mode", "video"), ("lora_r", 0), ("lora_alpha", -1)])
def test_settings_out_of_range_are_refused(key, value):
    with pytest.raises(InputError, match=f"{key} is {value!r}"):
        DistillConfig(**{key: value, "report_to": "none"})


def test_a_process_has_one_gpu(tiny_base, tables, tmp_path):
    """Without `accelerate launch` transformers would cut a batch over all GPUs, and position ids (3, B, L) wrongly."""
    config = DistillConfig(**settings(tiny_base, tables, tmp_path))
    config._n_gpu = 4
    items = training_items(tables, "image")
    trainer = VerifierTrainer(load_model(tiny_base, dtype=torch.float32), config, items, items)
    assert trainer.args.n_gpu == 1 and trainer.args.train_batch_size == 4
