"""A verifier's folder with a file missing or damaged: each command that starts from it says which and writes nothing."""

import json
import shutil

import pytest
from claimwise.scripts.cli import main
from distilling import settings

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
DAMAGE = {
    "no settings": (CONFIG, None, "has no adapter_config.json; give a folder that claimwise distill has finished"),
    "half the settings": (CONFIG, b'{"r": 4, ', "adapter_config.json is damaged"),
    "other settings": (CONFIG, b'{"r": 4}', "adapter_config.json is damaged (it lacks r or lora_alpha)"),
    "words for numbers": (CONFIG, b'{"r": 16, "lora_alpha": "32"}', "is damaged (r or lora_alpha is no number)"),
    "another rank": (CONFIG, b'{"r": 4, "lora_alpha": 8}', "has rank 16, where adapter_config.json says r = 4)"),
    "no weights": (WEIGHTS, None, "has no adapter_model.safetensors; give a folder"),
    "half the weights": (WEIGHTS, b"\x40" * 40, "adapter_model.safetensors is damaged"),
}


def flags_of(command, folder, assets, tables, out):
    if command == "push":
        return [folder, "lab/judge", "--dry-run", out, "--base-name", "lab/base", "--licence", "mit"]
    values = {**settings(assets / "base", tables, out), "adapter": folder}
    if command == "judge":
        flags = [word for name in ("examples", "rollouts") for word in (f"--{name}", values[name])]
        return ["--adapter", folder, *flags, "--out", out.with_suffix(".jsonl")]
    if command == "refresh":
        old = {f"old_{name}": values[name] for name in ("examples", "rollouts", "verdicts")}
        values |= {"disagreements": values["verdicts"], **old}
        for own in ("base", "mode", "verdicts", "lora_r", "lora_alpha"):
            del values[own]
    return [word for key, value in values.items() for word in (f"--{key}", value)]


@pytest.mark.parametrize("command", ["push", "distill", "refresh", "judge"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_adapter_is_named(command, damage, assets, tables, tmp_path, capsys):
    name, content, told = DAMAGE[damage]
    folder = shutil.copytree(assets / "verifier", tmp_path / "verifier")
    (folder / "metrics.json").write_text(json.dumps({"n": 9, "agreement": 0.9}))
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    assert main([command, *map(str, flags_of(command, folder, assets, tables, tmp_path / "out"))]) == 2
    error = capsys.readouterr().err
    assert f"claimwise {command}: {folder}" in error and told in error and "Traceback" not in error
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize("change", [{"n": None}, {"agreement": None}])
def test_figures_that_a_card_cannot_do_without(change, assets, tmp_path, capsys):
    folder = shutil.copytree(assets / "verifier", tmp_path / "verifier")
    metrics = {"n": 9, "agreement": 0.9, **change}
    (folder / "metrics.json").write_text(json.dumps(metrics))
    assert main(["push", *map(str, flags_of("push", folder, assets, None, tmp_path / "out"))]) == 2
    assert f"metrics.json has no {next(iter(change))}; distil the verifier again" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("temperature", ["warm", 0, -1.0, float("inf")])
def test_a_temperature_that_is_none(temperature, assets, tables, tmp_path, capsys):
    folder = shutil.copytree(assets / "verifier", tmp_path / "verifier")
    card = json.loads((folder / "verifier.json").read_text())
    (folder / "verifier.json").write_text(json.dumps({**card, "temperature": temperature}))
    assert main(["judge", *map(str, flags_of("judge", folder, assets, tables, tmp_path / "out"))]) == 2
    assert "must be a number above 0" in capsys.readouterr().err and not list(tmp_path.glob("out*"))
