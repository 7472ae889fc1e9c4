"""Which settings make another run of `claimwise train`, so that no folder is gone on with under them."""

from __future__ import annotations

import dataclasses
import json
import shutil

import pytest
from claimwise.trainer import RubricGRPOConfig
from claimwise.trainer.identity import ALSO, FREE, NAMED, identity
from claimwise.verifier import InputError
from claimwise.verifier.rundir import open_run
from grpo_runs import COMMON, make_examples

EXAMPLES = make_examples(2)


def identity_of(folder, examples=EXAMPLES, **settings):
    return identity(RubricGRPOConfig(output_dir=str(folder), **{**COMMON, **settings}), examples)


CHANGES = [
    {"repetition_penalty": 1.1},
    {"min_p": 0.1},
    {"shuffle_dataset": False},
    {"top_entropy_quantile": 0.2},
    {"delta": 2.0},
    {"use_bias_correction_kl": False},
    {"vllm_importance_sampling_clip_max": 2.0},
    {"arm": "answer", "scale_rewards": "none"},
    {"sync_ref_model": True},
    {"adam_beta2": 0.95},
    {"lr_scheduler_kwargs": {"num_cycles": 2}},
    {"eval_strategy": "steps", "eval_steps": 3},
    {"beta": 0.01},
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: ",".join(change))
def test_what_changes_what_is_learned_is_another_run(tmp_path, change):
    """In both directions: set on the second start, and left out on it."""
    plain, changed = identity_of(tmp_path), identity_of(tmp_path, **change)
    for number, (first, second) in enumerate([(plain, changed), (changed, plain)]):
        folder = open_run(tmp_path / str(number), first)
        with pytest.raises(InputError, match=rf"holds a different run: .*{list(change)[-1]} \("):
            open_run(folder, second)


@pytest.mark.parametrize(
    "change",
    [
        {"logging_steps": 7},
        {"save_strategy": "steps", "save_steps": 3, "save_total_limit": 2},
        {"max_missing": 0.2},
        {"on_alarm": "warn", "healthy_agreement": 0.9, "bad_agreement": 0.7},
        {"log_completions": True},
        {"vllm_gpu_memory_utilization": 0.5, "vllm_server_port": 8001},
        {"gradient_checkpointing": True},
        {"output_dir": "elsewhere"},
    ],
    ids=lambda change: ",".join(change),
)
def test_what_does_not_is_the_same_run(tmp_path, change):
    assert identity_of(tmp_path / "x", **{k: v for k, v in change.items() if k != "output_dir"}) == identity_of(
        tmp_path
    )


def test_examples_and_verifier_count_by_their_contents(assets, tmp_path):
    """An example table or an adapter that was made anew under the same name."""
    first = EXAMPLES[0]
    reweighed = dataclasses.replace(first.criteria[0], weight=first.criteria[0].weight + 1)
    changed = [
        [dataclasses.replace(first, answer="9 9"), *EXAMPLES[1:]],
        [dataclasses.replace(first, criteria=(reweighed, *first.criteria[1:])), *EXAMPLES[1:]],
        EXAMPLES[::-1],
    ]
    assert len({identity_of(tmp_path, examples)["examples_hash"] for examples in [EXAMPLES, *changed]}) == 4
    shutil.copytree(assets / "verifier", tmp_path / "verifier")
    before = identity_of(tmp_path, verifier=str(tmp_path / "verifier"))
    weights = tmp_path / "verifier" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0")
    after = identity_of(tmp_path, verifier=str(tmp_path / "verifier"))
    assert {key for key in before if before[key] != after[key]} == {"verifier_hash"}


def test_every_name_is_a_setting_and_the_mapping_is_json(tmp_path):
    names = {field.name for field in dataclasses.fields(RubricGRPOConfig)} | {"world_size"}
    assert {*NAMED, *FREE, *ALSO} <= names and not FREE & {*NAMED, *ALSO}
    settings = identity_of(tmp_path, arm="span")
    assert json.loads(json.dumps(settings)) == settings
