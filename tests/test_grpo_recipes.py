"""The shipped GRPO recipes: each is read whole, fits the real model's configuration, and its options run for one step on
a tiny policy, with transformers generating where the recipe has vLLM, and with fewer and shorter completions."""

from __future__ import annotations

import importlib.util
import json
from importlib import resources
from pathlib import Path

import pytest
import torch
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from claimwise.scripts import cli
from claimwise.trainer import RubricGRPOConfig
from claimwise.trainer.policy import LORA_TARGETS
from claimwise.verifier.settings import parse_settings
from claimwise.verifier.tables import write_examples
from grpo_runs import make_examples
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForImageTextToText

RECIPES = Path(str(resources.files("claimwise.scripts"))) / "recipes"
CONFIGS = Path(__file__).parent / "data/configs"
GPU = ("grpo-1x24gb-qlora", "grpo-1x80gb-lora", "grpo-4x24gb", "grpo-8x80gb-full")
SMALL = {
    "max_steps": 1, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "num_generations": 4,
    "max_completion_length": 24, "use_vllm": "false", "use_cpu": "true", "save_strategy": "no", "bf16": "false",
}  # fmt: skip


def written(name: str) -> dict:
    return yaml.safe_load((RECIPES / f"{name}.yaml").read_text())


def test_every_recipe_is_tested():
    assert {path.stem for path in RECIPES.glob("grpo-*.yaml")} == {*GPU, "grpo-digits"}


@pytest.mark.parametrize("name", [*GPU, "grpo-digits"])
def test_a_recipe_says_whether_there_is_a_reference(name):
    """In its settings and in words; and it passes the parser of `claimwise train` on a machine without a GPU."""
    head = [line for line in (RECIPES / f"{name}.yaml").read_text().splitlines() if line.startswith("#")]
    argv = ["--config", str(RECIPES / f"{name}.yaml"), "--use_cpu", "true", "--verifier", "runs/verifier"]
    config = parse_settings(RubricGRPOConfig, argv, "train")
    assert config.beta == written(name)["beta"]
    assert any(f"beta {config.beta:g}" in line for line in head)


@pytest.mark.parametrize(("name", "processes"), [(GPU[0], 1), (GPU[1], 1), (GPU[2], 3), (GPU[3], 6)])
def test_a_step_holds_whole_groups(name, processes):
    settings = written(name)
    responses = processes * settings["per_device_train_batch_size"] * settings["gradient_accumulation_steps"]
    assert responses % settings["num_generations"] == 0
    head = (RECIPES / f"{name}.yaml").read_text()
    assert f"{responses:,} responses a step" in head or processes == 1


@pytest.mark.parametrize(("name", "processes"), [("accelerate-3gpu", 3), ("accelerate-6gpu-zero2", 6)])
def test_the_launcher_configurations(name, processes):
    """As `accelerate launch --config_file` reads them; the DeepSpeed file leaves to the trainer what the recipe says."""
    config = load_config_from_file(str(RECIPES / f"{name}.yaml"))
    assert config.num_processes == processes
    path = config.deepspeed_config.get("deepspeed_config_file")
    assert (path is not None) == name.endswith("zero2")
    if path:
        settings = json.loads((RECIPES / Path(path).name).read_text())
        assert settings["zero_optimization"]["stage"] == 2 and settings["gradient_clipping"] == "auto"


@pytest.mark.parametrize("name", GPU)
def test_a_recipe_runs_for_a_step(assets, tmp_path, name):
    settings = written(name)
    if settings.get("load_in_4bit") and importlib.util.find_spec("bitsandbytes") is None:
        pytest.skip("bitsandbytes is not installed")
    write_examples(tmp_path / "examples.parquet", make_examples(4))
    shared = settings.get("shared_base", False)
    flags = {"model": assets / ("base" if shared else "policy"), "examples": tmp_path / "examples.parquet",
             "verifier": assets / "verifier" if shared else "oracle", "output_dir": tmp_path / "run"}  # fmt: skip
    if "verifier_server" in settings:
        flags["verifier_server"] = ""
    argv = ["train", "--config", str(RECIPES / f"{name}.yaml")]
    argv += [part for key, value in {**flags, **SMALL}.items() for part in (f"--{key}", str(value))]
    assert cli.main(argv) == 0
    row = json.loads((tmp_path / "run" / "log.jsonl").read_text().splitlines()[0])
    assert row["grad_norm"] > 0 and "rubric/VF/yes" in row and ("kl" in row) == (settings["beta"] > 0)
    assert (tmp_path / "run" / "adapter_model.safetensors").exists() == (settings["lora_r"] > 0)
    assert not (tmp_path / "run" / "verifier").exists()  # the policy is saved alone


@pytest.mark.parametrize("name", [name for name in GPU if written(name)["lora_r"]])
def test_the_adapter_of_the_8b_policy_is_on_the_language_model_alone(name):
    """Seven projections of 36 layers: per unit of rank in + out of q 4096 + 4096, k and v 4096 + 1024, o 4096 + 4096,
    gate and up 4096 + 12288, down 12288 + 4096, together 75,776."""
    rank = written(name)["lora_r"]
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(
            AutoConfig.from_pretrained(CONFIGS / "Qwen3-VL-8B-Instruct.json")
        )
        model = get_peft_model(model, LoraConfig(r=rank, target_modules=LORA_TARGETS))
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    assert len(trained) == 2 * 7 * 36 and not any("visual" in name for name in trained)
    assert sum(weight.numel() for weight in trained.values()) == 75_776 * 36 * rank


def test_all_weights_of_the_8b_policy_are_trained():
    assert written("grpo-8x80gb-full")["lora_r"] == 0
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(
            AutoConfig.from_pretrained(CONFIGS / "Qwen3-VL-8B-Instruct.json")
        )
    assert sum(weight.numel() for weight in model.parameters() if weight.requires_grad) == 8_767_123_696
