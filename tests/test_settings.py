"""Settings from YAML and flags: what is taken, and one line for whatever cannot be."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

import pytest
from claimwise.scripts.cli import main
from claimwise.trainer.config import RubricGRPOConfig
from claimwise.verifier.errors import InputError
from claimwise.verifier.settings import parse_settings


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Small:
    steps: int = 10
    learning_rate: float = 1e-3
    name: str = "run"
    fast: bool = False
    limit: float | None = None
    mode: Literal["text", "image"] = "text"
    weights: list[float] | None = None
    colour: Colour = Colour.RED
    strategy: Colour | str = "red"
    extra: dict | None = None
    derived: str = field(default="", init=False)

    def __post_init__(self):
        if self.steps < 0:
            raise ValueError(f"steps is {self.steps};\nit must not be negative")


@dataclass
class Needy:
    examples: str


@pytest.fixture
def recipe(tmp_path):
    def write(text: str | bytes):
        path = tmp_path / "recipe.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return write


def refusal(cls, argv) -> str:
    with pytest.raises(InputError) as refused:
        parse_settings(cls, argv, "train")
    message = str(refused.value)
    assert message and "\n" not in message
    return message


def test_defaults_and_flags():
    assert parse_settings(Small, [], "train") == Small()
    flags = ["--steps", "3", "--learning_rate=1e-6", "--fast", "--mode", "image", "--weights", "1", "2.5"]
    taken = parse_settings(Small, flags, "train")
    assert taken == Small(3, 1e-6, fast=True, mode="image", weights=[1.0, 2.5])
    assert parse_settings(Small, ["--learning-rate", "2"], "train").learning_rate == 2


def test_yaml_and_flags_that_override_it(recipe):
    path = recipe(
        "steps: 3\nlearning_rate: 1e-6\nlimit: 1e-2\nname: '7'\nmode: image\nweights: [1, 2.5]\nextra: {a: 1}\n"
    )
    taken = parse_settings(Small, ["--config", path], "train")
    assert taken == Small(3, 1e-6, "7", False, 1e-2, "image", [1, 2.5], extra={"a": 1})
    assert isinstance(taken.learning_rate, float) and isinstance(taken.limit, float)  # YAML reads 1e-6 as text
    assert parse_settings(Small, [f"--config={path}"], "train") == taken
    for argv in (["--steps", "4", "--config", path], ["--config", path, "--steps", "4"]):
        assert parse_settings(Small, argv, "train").steps == 4
    assert parse_settings(Needy, ["--config", recipe("examples: a.parquet")], "train") == Needy("a.parquet")


def test_null_where_a_setting_may_be_absent(recipe):
    assert parse_settings(Small, ["--config", recipe("limit: null\nweights:\n")], "train") == Small()


def test_env_sets_variables(recipe, monkeypatch):
    monkeypatch.delenv("CLAIMWISE_TEST", raising=False)
    parse_settings(Small, ["--config", recipe("env: {CLAIMWISE_TEST: 1}\nsteps: 2")], "train")
    assert os.environ.pop("CLAIMWISE_TEST") == "1"


YAML_CASES = [
    # what the file says, parts of the one line
    ("stepz: 3", ["recipe.yaml", "there is no setting 'stepz'", "did you mean steps?"]),
    ("learning-rate: 3", ["did you mean learning_rate?"]),
    ("qqqq: 3", ["there is no setting 'qqqq'; remove it"]),
    ("1: 3", ["there is no setting 1"]),
    ("derived: a", ["there is no setting 'derived'"]),  # set by the class itself
    ("steps: many", ["recipe.yaml: steps is 'many' (str); it must be int"]),
    ("steps: 1.0", ["steps is 1.0 (float)"]),
    ("steps: '3'", ["steps is '3' (str)"]),
    ("steps: true", ["steps is True (bool)"]),
    ("steps: null", ["steps is None", "it must be int"]),
    ("learning_rate: true", ["learning_rate is True (bool); it must be float"]),
    ("learning_rate: fast", ["learning_rate is 'fast'"]),
    ("limit: yes", ["limit is True (bool); it must be float or null"]),
    ("fast: 1", ["fast is 1 (int); it must be bool"]),
    ("fast: 'true'", ["fast is 'true' (str)"]),
    ("name: 7", ["name is 7 (int); it must be str"]),
    ("mode: audio", ["mode is 'audio'", "it must be 'text' or 'image'"]),
    ("weights: 1", ["weights is 1 (int); it must be a list of float or null"]),
    ("weights: [1, a]", ["weights is [1, 'a'] (list)"]),
    ("weights: [1e-6]", ["weights is ['1e-6'] (list)"]),  # nothing would turn it into a number
    ("colour: green", ["it must be 'red' or 'blue'"]),
    ("strategy: no", ["strategy is False (bool)", "quote them"]),  # YAML's no
    ("extra: [1]", ["extra is [1] (list); it must be dict or null"]),
    ("steps: -1", ["steps is -1; it must not be negative"]),  # the class's own check
    ("env: 3", ["env is 3"]),
    ("steps: [1", ["recipe.yaml, line 1 is not YAML"]),
    ("a: b: c", ["is not YAML"]),
    ("name: 2024-13-45", ["is not YAML"]),
    ("steps: 1\nname: a\nsteps: 2", ["recipe.yaml, line 3 is not YAML: steps stands there twice; keep one"]),
    (b"name: \xff", ["is not YAML"]),
    ("- steps", ["must hold a mapping of settings"]),
    ("", ["must hold a mapping of settings"]),
]


@pytest.mark.parametrize(("text", "parts"), YAML_CASES)
def test_yaml_that_cannot_be_used(recipe, text, parts):
    message = refusal(Small, ["--config", recipe(text)])
    for part in parts:
        assert part in message


FLAG_CASES = [
    (["--stepz", "3"], "there is no flag --stepz; did you mean --steps?"),
    (["--learning-rat=3"], "there is no flag --learning-rat; did you mean --learning_rate?"),  # no abbreviations
    (["--qqqq"], "there is no flag --qqqq; remove it"),
    (["recipe.yaml"], "there is no flag recipe.yaml"),
    (["--steps", "many"], "argument --steps: invalid int value: 'many'"),
    (["--steps"], "argument --steps: expected one argument"),
    (["--fast", "perhaps"], "perhaps"),
    (["--mode", "audio"], "audio"),
    (["--steps", "-1"], "steps is -1; it must not be negative"),
    (["--config"], "--config needs the path of a YAML file"),
    (["--config="], "--config needs the path of a YAML file"),
    (["--config", "nowhere.yaml"], "there is no configuration file nowhere.yaml"),
    (["--config", "."], "there is no configuration file"),
    (["--config=a.yaml", "--config", "b.yaml"], "--config is given twice"),
]


@pytest.mark.parametrize(("argv", "part"), FLAG_CASES)
def test_flags_that_cannot_be_used(argv, part):
    assert part in refusal(Small, argv)


def test_a_setting_that_is_required():
    assert "examples" in refusal(Needy, [])


def test_help_is_no_error(capsys):
    with pytest.raises(SystemExit) as stop:
        parse_settings(Small, ["--help"], "train")
    assert stop.value.code == 0 and "usage: claimwise train" in capsys.readouterr().out


def test_grpo_settings(recipe, tmp_path):
    """The trainer's settings, with all of TRL's, and its own checks."""
    text = f"output_dir: {tmp_path}\nlearning_rate: 1e-6\narm: span\nbudget: 0.4,0.1,0.5\nbf16: false\nuse_cpu: true\n"
    config = parse_settings(
        RubricGRPOConfig, [f"--config={recipe(text)}", "--arm", "prefix", "--beta", "0.01"], "train"
    )
    assert (config.arm, config.learning_rate, config.beta) == ("prefix", 1e-6, 0.01)
    assert config.reward_weights == pytest.approx([0.9, 0.1])
    for line, part in [
        ("learning_rat: 1e-6", "did you mean learning_rate?"),
        ("max_steps: 1e3", "max_steps is '1e3' (str); it must be int"),
        ("match_rms: 1", "match_rms is 1 (int); it must be bool"),
        ("save_strategy: no", "save_strategy is False (bool)"),
        ("save_strategy: sometimes", "sometimes"),
        ("arm: best", "arm is 'best'; it must be one of"),
        ("budget: 1,1,1", "budget"),
        ("max_missing: 2", "max_missing is 2; it is a share, 0..1"),
        ("reward_weights: [1.0, 2.0]", "reward_weights is set"),
        ("loss_type: vespo", "loss_type vespo cannot train arm span"),
    ]:
        lines = [kept for kept in text.splitlines() if kept.split(":")[0] != line.split(":")[0]]
        assert part in refusal(RubricGRPOConfig, ["--config", recipe("\n".join([*lines, line]))])
    assert "there is no flag --lerning_rate" in refusal(RubricGRPOConfig, ["--lerning_rate", "1"])


def test_the_command_line_says_it_in_one_line(recipe, capsys):
    assert main(["train", "--config", recipe("arms: prefix")]) == 2
    out, err = capsys.readouterr()
    assert err.count("\n") == 1 and err.startswith("claimwise train: ") and "did you mean arm?" in err and not out
