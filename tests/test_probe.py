"""The start-up probe: an adapter that would load without effect is refused, and says why."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from claimwise.verifier import InputError, load_judge
from claimwise.verifier.probe import adapter_modules, base_modules, check_modules
from safetensors.torch import load_file, save_file

Weights = dict[str, torch.Tensor]


@pytest.fixture
def spoilt(world, tmp_path) -> Callable[[Callable[[Weights], Weights]], Path]:
    """Makes a copy of a verifier with other weights."""

    def spoil(change: Callable[[Weights], Weights]) -> Path:
        folder = tmp_path / "adapter"
        shutil.copytree(world / "image", folder)
        save_file(change(load_file(folder / "adapter_model.safetensors")), folder / "adapter_model.safetensors")
        return folder

    return spoil


def test_a_whole_adapter_passes(world):
    assert load_judge(world / "image").name == "verifier-image"
    assert load_judge(world / "text").name == "verifier-text"


def test_modules_of_other_names_are_named(spoilt):
    """peft loads such an adapter with a warning, and judges like the base."""
    adapter = spoilt(lambda weights: {k.replace("model.language_model.", "model."): v for k, v in weights.items()})
    with pytest.raises(InputError) as refusal:
        load_judge(adapter)
    told = str(refusal.value)
    assert f"{adapter}: 14 of its 14 modules are not in the base: model.layers.0.mlp.down_proj, " in told  # 2 layers
    assert " and 11 more; give the base it was trained on, or distil it again" in told and "\n" not in told


def test_one_layer_too_many_is_named(spoilt):
    """The rest would load, and judge a little like a verifier."""
    adapter = spoilt(lambda weights: {k.replace("layers.1.mlp.up", "layers.5.mlp.up"): v for k, v in weights.items()})
    with pytest.raises(InputError, match=r"1 of its 14 modules are not in the base: \S*layers\.5\.mlp\.up_proj; give"):
        load_judge(adapter)


def without(part: str) -> Callable[[Weights], Weights]:
    return lambda weights: {k: v for k, v in weights.items() if part not in k}


@pytest.mark.parametrize(
    ("weights", "settings", "told"),
    [
        (
            without("layers.1."),
            {},
            "7 of the 14 modules that its adapter_config.json names have no weights: model.lang",
        ),
        (
            without("0.mlp.up_proj.lora_B"),
            {},
            r"damaged \(half of the weights of \S*layers\.0\.mlp\.up_proj are missing",
        ),
        (
            without("1.mlp.up_proj.lora_A"),
            {},
            r"damaged \(half of the weights of \S*layers\.1\.mlp\.up_proj are missing",
        ),
        (
            None,
            {"target_modules": ["q_proj", "up_proj"]},
            "10 of its 14 modules are not among those that its adapter_c",
        ),
        (None, {"target_modules": ["no_proj"]}, "14 of its 14 modules are not among those"),
        (None, {"target_modules": "("}, r"adapter_config\.json is damaged"),
        (None, {"layers_to_transform": [0], "target_modules": ["up_proj"]}, "13 of its 14 modules are not among"),
        (None, {"r": 3}, r"damaged \(\S* has rank 4, where adapter_config\.json says r = 3\)"),
        (None, {"lora_alpha": "8"}, "r or lora_alpha is no number"),
        (None, {"peft_type": "NONE"}, r"adapter_config\.json is damaged"),
    ],
)
def test_an_adapter_that_would_load_in_part_is_refused(spoilt, weights, settings, told):
    """PEFT loads it with a warning or without, and judges a little like a verifier."""
    adapter = spoilt(weights or dict)
    config = json.loads((adapter / "adapter_config.json").read_text())
    assert config["r"] == 4
    (adapter / "adapter_config.json").write_text(json.dumps({**config, **settings}))
    with pytest.raises(InputError, match=told) as refusal:
        load_judge(adapter)
    assert str(adapter) in str(refusal.value) and "\n" not in str(refusal.value)


def test_weights_that_are_no_numbers_answer_nothing(spoilt):
    """The judge's first answers are missing, and it is refused."""
    adapter = spoilt(lambda weights: {k: v * float("nan") for k, v in weights.items()})
    with pytest.raises(
        InputError, match="verifier-image cannot answer a first question: nan: the model gives no number"
    ):
        load_judge(adapter)


def test_zeros_change_nothing(spoilt):
    adapter = spoilt(lambda weights: {k: v * ("lora_B" not in k) for k, v in weights.items()})
    with pytest.raises(InputError) as refusal:
        load_judge(adapter)
    assert f"{adapter} changes nothing, though the base has all of its 14 modules: its weights are" in str(
        refusal.value
    )


def test_modules_are_known_without_the_weights(world):
    """As for a server, whose model is not here: from the configuration alone."""
    names = base_modules(world / "base")
    assert set(adapter_modules(world / "image")) < set(names)
    check_modules(world / "image", names)
    with pytest.raises(InputError, match="14 of its 14 modules are not in the base"):
        check_modules(world / "image", ["lm_head"])


def test_an_adapter_without_weights_is_refused(world, tmp_path):
    shutil.copytree(world / "image", tmp_path / "adapter")
    card = tmp_path / "adapter/verifier.json"
    card.write_text(json.dumps({**json.loads(card.read_text()), "base": str(world / "base")}))
    (tmp_path / "adapter/adapter_model.safetensors").unlink()
    with pytest.raises(InputError, match=r"has no adapter_model\.safetensors; give a folder that claimwise distill"):
        load_judge(tmp_path / "adapter")
