"""The students' real configurations, without their weights: adapter targets, sizes, tree inputs, position ids.

`data/configs` holds the `config.json` of each checkpoint as Qwen publishes it. Copies of them in public repositories were
compared (NVIDIA's TensorRT-LLM for Qwen2.5-VL-7B, musubi-tuner's Krea encoder for Qwen3-VL-4B, others for 2B and 8B); the
numbers of parameters that follow from them are those of the published weights. That every sentence label is one token is
a matter of the tokenizer, which no test has offline; `PromptEncoder` refuses a tokenizer in which one is not.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from claimwise.distill.config import DistillConfig
from claimwise.distill.digits import make_example
from claimwise.distill.tiny import build_processor
from claimwise.distill.train import add_adapter
from claimwise.verifier.model import VisionLanguageModel
from claimwise.verifier.tree import Tree, pack
from PIL import Image
from transformers import AutoConfig, AutoModelForImageTextToText
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

CONFIGS = Path(__file__).parent / "data/configs"
# Parameters (half the bytes of the published bfloat16 weights), layers, and weights of a LoRA of rank 16: 16 (in + out)
# summed over q, k, v, o, gate, up, down, times the layers. 7B: k and v are 4 heads of 128, ((3584 + 3584) 2 +
# (3584 + 512) 2 + (3584 + 18944) 3) 16 x 28.
STUDENTS = {
    "Qwen2.5-VL-7B-Instruct": (8_292_166_656, 28, 40_370_176),
    "Qwen3-VL-2B-Instruct": (2_127_532_032, 28, 17_432_576),
    "Qwen3-VL-4B-Instruct": (4_437_815_808, 36, 33_030_144),
    "Qwen3-VL-8B-Instruct": (8_767_123_696, 36, 43_646_976),
}


def config_of(name: str):
    return AutoConfig.from_pretrained(CONFIGS / f"{name}.json")


@pytest.fixture(scope="module", params=STUDENTS)
def student(request):
    """Name and model: every module, no weight."""
    with torch.device("meta"):
        return request.param, AutoModelForImageTextToText.from_config(config_of(request.param))


def test_the_size_is_the_published_one(student):
    name, model = student
    assert sum(weight.numel() for weight in model.parameters()) == STUDENTS[name][0]


@pytest.mark.parametrize("name", STUDENTS)
def test_the_adapter_is_on_seven_projections_of_each_layer(name):
    _, layers, weights = STUDENTS[name]
    with torch.device("meta"):
        vlm = VisionLanguageModel(AutoModelForImageTextToText.from_config(config_of(name)), build_processor(), name)
        told = add_adapter(vlm, DistillConfig(lora_r=16, report_to="none"))
    assert told == f"LoRA on {7 * layers} projections of the language model, 0 of the vision tower"
    trained = {name: weight for name, weight in vlm.model.named_parameters() if weight.requires_grad}
    assert sum(weight.numel() for weight in trained.values()) == weights
    assert not any("visual" in name for name in trained)


def test_position_ids_of_a_tree_with_an_image(student):
    """Prefix: 3 tokens, an image of 4 x 6 patches (2 x 3 tokens), 2 tokens; then a branch of 2 tokens and one of 1.

    column       0 1 2 | 3 4 5 6 7 8 | 9 10 | 11 12 | 13
    time         0 1 2 | 3 3 3 3 3 3 | 6  7 |  8  9 |  8     the text goes on after the image's largest position
    height       0 1 2 | 3 3 3 4 4 4 | 6  7 |  8  9 |  8
    width        0 1 2 | 3 4 5 3 4 5 | 6  7 |  8  9 |  8
    """
    _, model = student
    image, pad = model.config.image_token_id, 151643
    tree = Tree([1, 2, 151652, *[image] * 6, 151653, 3], [[4, 5], [6]], torch.zeros(24, 8), torch.tensor([[1, 4, 6]]))
    packed = pack([tree], image, pad, model.model.get_rope_index)
    after = [6, 7, 8, 9, 8]
    wanted = [
        [0, 1, 2, 3, 3, 3, 3, 3, 3, *after],
        [0, 1, 2, 3, 3, 3, 4, 4, 4, *after],
        [0, 1, 2, 3, 4, 5, 3, 4, 5, *after],
    ]
    assert packed.position_ids[:, 0].tolist() == wanted
    for start, branch in zip(packed.starts[0], tree.branches, strict=True):  # each branch as if it stood alone
        ids = torch.tensor([tree.prefix + branch])
        own, _ = model.model.get_rope_index(
            input_ids=ids, mm_token_type_ids=(ids == image).int(), image_grid_thw=tree.image_grid_thw
        )
        kept = [*range(len(tree.prefix)), *range(start, start + len(branch))]
        assert torch.equal(packed.position_ids[:, :, kept], own)


@pytest.mark.parametrize("name", STUDENTS)
def test_which_axis_a_frequency_turns_by(name):
    """64 frequencies a head. Qwen2.5-VL: 16 by time, 24 by height, 24 by width, in blocks. Qwen3-VL: time, height, width
    in turn, 20 times, then time. At time 0, height 1 and width 2 each turns by 0, 1 or 2 times its own frequency."""
    config = config_of(name).text_config
    if name.startswith("Qwen2.5"):
        from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLRotaryEmbedding as Rotary

        axes = [0] * 16 + [1] * 24 + [2] * 24
    else:
        from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextRotaryEmbedding as Rotary

        axes = [0, 1, 2] * 20 + [0] * 4
    rotary = Rotary(config=config)
    cos, sin = rotary(torch.zeros(1, 1, 1), torch.tensor([0, 1, 2])[:, None, None])
    angles = torch.atan2(sin, cos).flatten()
    torch.testing.assert_close(angles[:64], torch.tensor(axes) * rotary.inv_freq)


def test_trees_have_the_towers_patches_and_as_many_placeholders(student):
    """A picture of 448 x 224 pixels: Qwen2.5-VL sees squares of 28, 16 x 8; Qwen3-VL squares of 32, 14 x 7."""
    name, model = student
    vision = model.config.vision_config
    processor = build_processor()
    processor.image_processor = Qwen2VLImageProcessorPil(
        patch_size=vision.patch_size,
        merge_size=vision.spatial_merge_size,
        temporal_patch_size=vision.temporal_patch_size,
    )
    vlm = VisionLanguageModel(model, processor, name)
    example = make_example(random.Random(0), "test", 0)
    picture = Image.new("RGB", (448, 224))
    tree = vlm.tree(type(example)("e", "What?", example.criteria, (picture,)), "It is 7.", [[1], [2]], "image")
    placeholders = tree.prefix.count(vlm.encoder.image_id)
    assert placeholders == {"Qwen2.5": 16 * 8, "Qwen3-V": 14 * 7}[name[:7]]
    kernel = model.model.visual.patch_embed.proj.weight[0].numel()  # 3 colours x 2 frames x patch x patch
    assert tree.pixel_values is not None and tree.pixel_values.shape == (
        4 * tree.prefix.count(vlm.encoder.image_id),
        kernel,
    )
    inputs = vlm.pack([tree, tree]).forward_inputs()
    length = len(tree)
    assert {key: tuple(value.shape) for key, value in inputs.items()} == {
        "input_ids": (2, length), "attention_mask": (2, 1, length, length), "position_ids": (3, 2, length),
        "pixel_values": (2 * len(tree.pixel_values), kernel), "image_grid_thw": (2, 3), "mm_token_type_ids": (2, length),
    }  # fmt: skip


def narrowed(name: str, vocabulary: int, image_id: int):
    """The student two layers deep and two heads wide; sizes of heads, patches and M-RoPE sections as they are."""
    config = config_of(name)
    text, vision = config.text_config, config.vision_config
    text.vocab_size, text.hidden_size, text.intermediate_size, text.num_hidden_layers = vocabulary, 256, 256, 2
    text.num_attention_heads, text.num_key_value_heads, text.layer_types = 2, 1, ["full_attention"] * 2
    text.bos_token_id = text.eos_token_id = text.pad_token_id = None
    vision.depth, vision.num_heads, vision.hidden_size, vision.intermediate_size = 2, 2, 64, 64
    vision.out_hidden_size, vision.fullatt_block_indexes, vision.deepstack_visual_indexes = 256, [1], [0]
    config.image_token_id = image_id
    return config


@pytest.mark.parametrize("name", STUDENTS)
def test_packed_logits_are_those_of_one_branch_alone(name):
    """The model's own forward of prefix + branch: its own mask, its own positions."""
    torch.manual_seed(0)
    config = narrowed(name, 64, 60)
    model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32, attn_implementation="sdpa").eval()
    patch = model.model.visual.patch_embed.proj.weight[0].numel()
    prefix = [1, 2, 3, *[60] * 6, 4, 5]
    tree = Tree(prefix, [[7, 8, 9], [10, 11], [12]], torch.randn(24, patch), torch.tensor([[1, 4, 6]]))
    packed = pack([tree], 60, 0, model.model.get_rope_index)
    with torch.no_grad():
        logits = model(**packed.forward_inputs()).logits[0]
        for start, branch in zip(packed.starts[0], tree.branches, strict=True):
            ids = torch.tensor([prefix + branch])
            vision = {"pixel_values": tree.pixel_values, "image_grid_thw": tree.image_grid_thw}
            alone = model(input_ids=ids, mm_token_type_ids=(ids == 60).int(), **vision).logits[0, len(prefix) :]
            torch.testing.assert_close(logits[start : start + len(branch)], alone, rtol=0, atol=1e-4)
