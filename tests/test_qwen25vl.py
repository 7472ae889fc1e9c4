"""The default student, Qwen2.5-VL, in tiny: other patches, windowed vision, another order of M-RoPE, the same packing."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch
from claimwise.distill.config import DistillConfig
from claimwise.distill.digits import make_example
from claimwise.distill.tiny import build_processor
from claimwise.distill.train import add_adapter
from claimwise.verifier.judge import base_judge
from claimwise.verifier.model import VisionLanguageModel
from claimwise.verifier.packed import answer_trees
from claimwise.verifier.schema import Rollout
from judging import margin, one_by_one, siblings_of, watched
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil


@pytest.fixture
def vlm():
    torch.manual_seed(0)
    processor = build_processor()
    size = {"shortest_edge": 56 * 56, "longest_edge": 4 * 56 * 56}
    processor.image_processor = Qwen2VLImageProcessorPil(size=size, patch_size=14, merge_size=2, temporal_patch_size=2)
    token = processor.tokenizer.convert_tokens_to_ids
    text = {
        "vocab_size": len(processor.tokenizer), "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 2, "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 6, 6]},
        "bos_token_id": None, "eos_token_id": token("<|im_end|>"), "pad_token_id": token("<|endoftext|>"),
    }  # fmt: skip
    vision = {
        "depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "patch_size": 14,
        "spatial_merge_size": 2, "out_hidden_size": 64, "fullatt_block_indexes": [1], "window_size": 112,
    }  # fmt: skip
    config = Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
    )
    return VisionLanguageModel(Qwen2_5_VLForConditionalGeneration(config).eval(), processor, "tiny Qwen2.5-VL")


def test_packed_equals_a_plain_causal_forward(vlm):
    example = make_example(random.Random(0), "test", 0)
    branches = [vlm.encoder.branch(criterion.text) for criterion in example.criteria]
    tree = vlm.tree(example, example.reference or "", branches, "image")
    allowed = [vlm.encoder.label_ids[label] for label in ("-", "A", "B")]
    for branch, answer in zip(branches, answer_trees(vlm, [tree], [allowed], readings=True)[0], strict=True):
        written = [answer.label_id, *answer.reading_ids, vlm.encoder.reading_end_id]
        ids = torch.tensor([tree.prefix + branch + written])
        kinds = (ids == vlm.encoder.image_id).int()
        vision = {"pixel_values": tree.pixel_values, "image_grid_thw": tree.image_grid_thw, "mm_token_type_ids": kinds}
        with torch.no_grad():
            logits = vlm.model(input_ids=ids, **vision).logits[0, -1]
        wanted = float(logits[vlm.encoder.yes_id] - logits[vlm.encoder.no_id])
        assert answer.margin == pytest.approx(wanted, abs=1e-4)


def test_siblings_equal_one_by_one(vlm):
    """Four responses each to three examples whose openings, encoded once, have pictures of different sizes."""
    family = []
    for number, size in enumerate([(64, 64), (140, 84), (56, 112)]):
        example = make_example(random.Random(number), "test", number)
        picture = example.images[0].resize(size)
        example = dataclasses.replace(example, images=(picture,), criteria=example.criteria[:3])
        family += siblings_of([(example, Rollout(str(number), example.example_id, "It is 7. So it is.", "p"))])
    assert len({len(vlm.opening(example, "image")) for example, _ in family}) == 3
    with watched(vlm) as fed:
        verdicts = base_judge(vlm, "image", "tiny", readings=True).judge(family)
    answers = one_by_one(vlm, family, "image")
    assert len(verdicts) == 3 * 4 * 3 and [rows for rows, *_ in fed.openings] == [3]
    assert max(abs(margin(v) - a.margin) for v, a in zip(verdicts, answers, strict=True)) < 1e-4
    assert [v.verdict for v in verdicts] == [a.margin > 0 for a in answers]


def test_adapter_and_judge(vlm, tmp_path):
    config = DistillConfig(output_dir=str(tmp_path), report_to="none", bf16=False)
    assert add_adapter(vlm, config) == "LoRA on 14 projections of the language model, 0 of the vision tower"
    example = make_example(random.Random(1), "test", 0)
    rollout = Rollout("r", example.example_id, example.reference or "", "reference")
    verdicts = base_judge(vlm, "image", "tiny", readings=True).judge([(example, rollout)])
    assert [v.criterion_id for v in verdicts] == [c.id for c in example.criteria]
