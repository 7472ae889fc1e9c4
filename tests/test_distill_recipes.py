"""The shipped distillation recipes: each is read whole, and its options run for one step on the tiny base."""

from __future__ import annotations

import importlib.util
import json
from importlib import resources
from pathlib import Path

import pytest
from claimwise.distill.config import DistillConfig
from claimwise.distill.run import distill
from claimwise.verifier.settings import parse_settings
from distilling import settings

RECIPES = Path(str(resources.files("claimwise.scripts"))) / "recipes"
BASES = {
    "verifier-7b-lora": "Qwen/Qwen2.5-VL-7B-Instruct",
    "verifier-7b-qlora": "Qwen/Qwen2.5-VL-7B-Instruct",
    "verifier-qwen3-vl-4b": "Qwen/Qwen3-VL-4B-Instruct",
    "verifier-digits": None,
}


def test_every_recipe_is_tested():
    assert {path.stem for path in RECIPES.glob("verifier-*.yaml")} == set(BASES)


@pytest.mark.parametrize("name", BASES)
def test_a_recipe_runs(name, tiny_base, tables, tmp_path):
    if "qlora" in name and importlib.util.find_spec("bitsandbytes") is None:
        pytest.skip("bitsandbytes is not installed")
    recipe = ["--config", str(RECIPES / f"{name}.yaml"), "--output_dir", str(tmp_path / "out")]
    config = parse_settings(DistillConfig, recipe, "distill")
    assert config.base == BASES[name] or BASES[name] is None
    assert config.load_in_4bit == ("qlora" in name)
    paths = {
        key: value for key, value in settings(tiny_base, tables, tmp_path / "out").items() if "jsonl" in str(value)
    }
    flags = {"base": str(tiny_base), **paths, "max_steps": 1, "eval_steps": 1}
    argv = [*recipe, *(part for key, value in flags.items() for part in (f"--{key}", str(value)))]
    metrics = distill(parse_settings(DistillConfig, argv, "distill"))
    assert metrics["n"] == 42
    assert json.loads((tmp_path / "out/verifier.json").read_text())["mode"] == "image"
    if config.patience:  # the best adapter is kept
        assert (tmp_path / "out/checkpoint-1/adapter_model.safetensors").is_file()
