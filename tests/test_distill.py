"""Distillation on a tiny random base: positions, loss, weights, adapter, and whole runs in a temporary folder."""

from __future__ import annotations

import dataclasses
import json
import math
import random
import shutil
from pathlib import Path

import pytest
import torch
from claimwise.distill.config import DistillConfig
from claimwise.distill.digits import make_example
from claimwise.distill.loss import Target, Targets, distillation_loss, locate, margin, read_logits, with_targets
from claimwise.distill.oracle import OracleJudge
from claimwise.distill.rollouts import references, with_edits
from claimwise.distill.run import distill
from claimwise.distill.tiny import build_model, build_processor
from claimwise.distill.train import TreeCollator, add_adapter, balance, join_verdicts
from claimwise.verifier.errors import InputError
from claimwise.verifier.model import VisionLanguageModel, base_hash, load_model
from claimwise.verifier.prompt import prompt_hash
from claimwise.verifier.schema import Criterion, Example, Rollout, Verdict
from claimwise.verifier.sentences import label_of, split_sentences
from claimwise.verifier.tables import (
    pair_up,
    read_examples,
    read_rollouts,
    read_verdicts,
    write_examples,
    write_rollouts,
    write_verdicts,
)
from claimwise.verifier.tree import Tree, pack
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration
from transformers.trainer_callback import DefaultFlowCallback

MODES = ("image", "text")


def make_base(folder: Path) -> Path:
    """A random Qwen3-VL of hidden 32 and 2 layers, in float32."""
    torch.manual_seed(1)
    processor = build_processor()
    build_model(processor, 32, 2, 0.06).save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def make_tables(folder: Path, part: str, count: int) -> Path:
    """Examples, their references and one edited response of each, and the oracle's verdicts in both modes."""
    examples = [make_example(random.Random(number), part, number) for number in range(count)]
    rollouts = references(examples)
    rollouts += list(with_edits(rollouts, per_rollout=1, empty_share=0.0, seed=0))
    write_examples(folder / "examples.jsonl", examples)
    write_rollouts(folder / "rollouts.jsonl", rollouts)
    for mode in MODES:
        write_verdicts(folder / f"gold-{mode}.jsonl", OracleJudge(mode).judge(pair_up(examples, rollouts)))
    return folder


def settings(base: Path, tables: Path, out: Path, mode: str = "image") -> dict:
    """Settings of a run of three steps of four responses."""
    train, held_out = tables / "train", tables / "validation"
    return {
        "base": str(base), "mode": mode, "output_dir": str(out),
        "examples": str(train / "examples.jsonl"), "rollouts": str(train / "rollouts.jsonl"),
        "verdicts": str(train / f"gold-{mode}.jsonl"),
        "validation_examples": str(held_out / "examples.jsonl"),
        "validation_rollouts": str(held_out / "rollouts.jsonl"),
        "validation_verdicts": str(held_out / f"gold-{mode}.jsonl"),
        "lora_r": 4, "lora_alpha": 8, "learning_rate": 1e-2, "max_steps": 3, "per_device_train_batch_size": 4,
        "save_strategy": "no", "logging_steps": 1, "report_to": "none", "seed": 5,
    }  # fmt: skip


@pytest.fixture(scope="session")
def tiny_base(tmp_path_factory) -> Path:
    return make_base(tmp_path_factory.mktemp("distill") / "base")


@pytest.fixture(scope="session")
def tables(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    make_tables(folder / "train", "train", 8)
    make_tables(folder / "validation", "validation", 3)
    return folder


@pytest.fixture(scope="module")
def vlm(tiny_base) -> VisionLanguageModel:
    model = load_model(tiny_base, dtype=torch.float32)
    model.model.eval()
    return model


@pytest.fixture
def run(tiny_base, tables, tmp_path):
    """Distils with some settings changed; the folder is `out` beneath the test's own unless said."""

    def go(mode: str = "image", **changes) -> dict:
        return distill(DistillConfig(**{**settings(tiny_base, tables, tmp_path / "out", mode), **changes}))

    return go


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "adapter_model.safetensors")


def assert_same_weights(one: Path, two: Path) -> None:
    a, b = weights_of(one), weights_of(two)
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=0, atol=1e-6)


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


# --- where which token is due, and what it costs ---


def test_the_positions_of_the_targets():
    """Prefix 1 2 3, branches 10 11 and 20; what they should write: 5 6 then the verdict 7, and 8 then 9.

    column       0 1 2 | 3  4 5 6 | 7  8         the verdict itself is never read
    row 0        1 2 3 | 10 11 5 6 | 20 8        5 is due after 11 (column 4), 6 after 5, 7 after 6; 8 after 20, 9 after 8
    row 1        1     | 30 8                    one token of prefix; 8 is due after 30 (column 1), 9 after 8
    """
    trees = [Tree([1, 2, 3], [[10, 11], [20]]), Tree([1], [[30]])]
    targets = [[Target([5, 6, 7], 0.9, 2.0), Target([8, 9], 0.2)], [Target([8, 9], 1.0, 0.5)]]
    packed = pack([with_targets(*pair) for pair in zip(trees, targets, strict=True)], -1, 0, lambda **_: None)
    assert packed.input_ids.tolist() == [[1, 2, 3, 10, 11, 5, 6, 20, 8], [1, 30, 8, 0, 0, 0, 0, 0, 0]]
    found = locate(trees, targets, packed)
    assert found.token_rows.tolist() == [0, 0, 0, 1]
    assert found.token_columns.tolist() == [4, 5, 7, 1]
    assert found.token_ids.tolist() == [5, 6, 8, 8]
    assert found.verdict_rows.tolist() == [0, 0, 1]
    assert found.verdict_columns.tolist() == [6, 8, 2]
    assert found.p_yes.tolist() == pytest.approx([0.9, 0.2, 1.0])
    assert found.weights.tolist() == [2.0, 1.0, 0.5]


def test_targets_go_to_a_device_as_a_whole():
    """Their tensors meet the logits there; "meta" stands for any other device."""
    ones = torch.ones(2)
    moved = Targets(ones, ones, ones, ones, ones, ones, ones).to("meta")
    assert {value.device.type for value in vars(moved).values()} == {"meta"}


def training_items(tables: Path, mode: str, count: int = 3):
    train = tables / "train"
    pairs = pair_up(read_examples(train / "examples.jsonl"), read_rollouts(train / "rollouts.jsonl"))
    return join_verdicts(pairs, read_verdicts(train / f"gold-{mode}.jsonl"))[-count:]  # the edited ones are last


def plain_logits(vlm: VisionLanguageModel, tree: Tree, ids: list[int]) -> torch.Tensor:
    """(tokens, V): the model's own forward of one row, its own causal mask and positions."""
    vision = {}
    row = torch.tensor([ids])
    if tree.pixel_values is not None:
        kinds = (row == vlm.encoder.image_id).int()
        vision = {"pixel_values": tree.pixel_values, "image_grid_thw": tree.image_grid_thw, "mm_token_type_ids": kinds}
    with torch.no_grad():
        return vlm.model(input_ids=row, **vision).logits[0].double()


@pytest.mark.parametrize("mode", MODES)
def test_the_packed_loss_is_the_loss_branch_by_branch(vlm, tables, mode):
    """Mean cross-entropy of label and reading tokens, plus the mean over verdicts of weight times cross-entropy of
    the teacher's P(yes) against sigmoid(yes - no); soft P(yes) and one long reading among them."""
    items = training_items(tables, mode)
    items = [
        (
            e,
            r,
            [dataclasses.replace(v, p_yes=0.1 + 0.1 * i, reading=v.reading and "7 or 1") for i, v in enumerate(rows)],
        )
        for e, r, rows in items
    ]
    weights = balance(items)
    config = DistillConfig(mode=mode, report_to="none")
    batch = TreeCollator(vlm, config, weights)(items)
    with torch.no_grad():
        token_logits, verdict_logits = read_logits(vlm.model, batch["packed"], batch["targets"])
    packed = float(distillation_loss(token_logits, margin(verdict_logits, vlm.encoder), batch["targets"]))

    pointing, judging = [], []
    for example, rollout, rows in items:
        text = {criterion.id: criterion.text for criterion in example.criteria}
        for row in rows:
            branch = vlm.encoder.branch(text[row.criterion_id])
            tree = vlm.tree(example, rollout.response, [branch], mode)
            label = label_of(split_sentences(rollout.response), row.span)
            reading = (row.reading or "") if mode == "image" else None
            due = vlm.encoder.target(label, reading, bool(row.verdict))[:-1]
            logits = plain_logits(vlm, tree, tree.prefix + branch + due)
            after = len(tree.prefix) + len(branch) - 1
            log_p = logits.log_softmax(-1)
            pointing += [-float(log_p[after + i, token]) for i, token in enumerate(due)]
            yes = 1 / (1 + math.exp(-float(logits[-1, vlm.encoder.yes_id] - logits[-1, vlm.encoder.no_id])))
            loss = -row.p_yes * math.log(yes) - (1 - row.p_yes) * math.log(1 - yes)
            judging.append(weights[row.dimension, bool(row.verdict)] * loss)
    assert len(judging) == 21
    assert packed == pytest.approx(sum(pointing) / len(pointing) + sum(judging) / len(judging), abs=1e-4)


def verdict_loss_gradient(value: float, p_yes: float, weight: float) -> float:
    """d loss / d margin of a single verdict."""
    verdict_margin = torch.tensor([value], requires_grad=True)
    none = torch.zeros(1, dtype=torch.long)
    targets = Targets(none, none, none, none, none, torch.tensor([p_yes]), torch.tensor([weight]))
    distillation_loss(torch.zeros(1, 4), verdict_margin, targets).backward()
    assert verdict_margin.grad is not None
    return float(verdict_margin.grad)


@pytest.mark.parametrize("p", [0.02, 0.3, 0.5, 0.9])
def test_soft_labels_are_at_rest_at_the_teachers_p_yes(p):
    assert verdict_loss_gradient(math.log(p / (1 - p)), p, 2.0) == pytest.approx(0, abs=1e-6)


def test_soft_labels_pull_towards_the_teachers_p_yes():
    """At margin 0 P(yes) is .5: the gradient is weight x (.5 - p)."""
    assert verdict_loss_gradient(0.0, 0.9, 2.0) == pytest.approx(-0.8)
    assert verdict_loss_gradient(0.0, 0.1, 1.0) == pytest.approx(0.4)


# --- the teacher's verdicts ---

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


# --- the adapter ---


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


# --- whole runs ---


@pytest.fixture(scope="session")
def finished(tiny_base, tables, tmp_path_factory) -> tuple[Path, dict]:
    """A run of three steps, stopped by nothing; tests must not change its folder."""
    out = tmp_path_factory.mktemp("finished") / "out"
    metrics = distill(DistillConfig(**{**settings(tiny_base, tables, out), "save_strategy": "steps", "save_steps": 1}))
    return out, metrics


def test_a_run_leaves_an_adapter_with_its_card_and_figures(finished, tiny_base):
    out, metrics = finished
    card = json.loads((out / "verifier.json").read_text())
    assert card == {
        "name": "verifier-image",
        "base": str(tiny_base),
        "base_hash": base_hash(tiny_base),
        "prompt_hash": prompt_hash("image", True),
        "mode": "image",
        "readings": True,
        "temperature": metrics["temperature"],
        "schema_version": 1,
    }
    assert 0.05 <= card["temperature"] <= 20
    assert json.loads((out / "metrics.json").read_text()) == metrics
    assert metrics["n"] == 3 * 2 * 7 and metrics["missing_a"] == metrics["missing_b"] == 0
    assert {"agreement", "kappa", "span_exact"} <= metrics.keys()
    weights = weights_of(out)
    assert len(weights) == 28 and all("language_model.layers" in name for name in weights)
    # B starts at zero, so all of them not zero means that every projection was trained
    assert all(weight.abs().max() > 0 for weight in weights.values())
    assert not list(out.glob("*.part"))


def test_a_finished_run_is_left_as_it_is(finished, run):
    out, metrics = finished
    before = contents(out)
    assert run(output_dir=str(out), save_strategy="steps", save_steps=1) == metrics
    assert contents(out) == before


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("learning_rate", 2e-2, "learning_rate (0.01 there, 0.02 now)"),
        ("seed", 6, "seed (5 there, 6 now)"),
        ("readings", False, "readings (True there, False now)"),
        ("weight_decay", 0.1, "weight_decay (0.0 there, 0.1 now)"),
    ],
)
def test_a_folder_of_another_run_is_not_touched(finished, run, key, value, told):
    out, _ = finished
    before = contents(out)
    with pytest.raises(InputError) as refusal:
        run(output_dir=str(out), **{key: value})
    assert f"{out} holds a different run: {told}" in str(refusal.value)
    assert contents(out) == before


def test_the_same_folder_with_another_base_under_the_same_name_is_refused(finished, run, tiny_base, tmp_path):
    """A base made anew has other weights: its old verifier would be refused by every judge."""
    shutil.copytree(tiny_base, tmp_path / "base")
    run(base=str(tmp_path / "base"), max_steps=1)
    before = contents(tmp_path / "out")
    torch.manual_seed(2)
    build_model(build_processor(), 32, 2, 0.06).save_pretrained(tmp_path / "base")
    with pytest.raises(InputError, match="holds a different run: base_hash"):
        run(base=str(tmp_path / "base"), max_steps=1)
    assert contents(tmp_path / "out") == before


@pytest.fixture
def steps(monkeypatch):
    """The steps that transformers' trainer begins; Ctrl-C comes before the one that `stop` names."""
    seen = {"begun": [], "stop": None}

    def on_step_begin(self, args, state, control, **_):
        if state.global_step == seen["stop"]:
            raise KeyboardInterrupt
        seen["begun"].append(state.global_step)

    monkeypatch.setattr(DefaultFlowCallback, "on_step_begin", on_step_begin)
    return seen


def test_a_killed_run_goes_on_and_ends_as_if_unbroken(finished, run, steps, tmp_path):
    unbroken, metrics = finished
    steps["stop"] = 2
    with pytest.raises(KeyboardInterrupt):
        run(save_strategy="steps", save_steps=1)
    out = tmp_path / "out"
    assert steps["begun"] == [0, 1] and (out / "checkpoint-2").is_dir()
    assert not (out / "verifier.json").exists()  # no judge takes it for a verifier
    # A kill while the third checkpoint was written would have left this; it is not complete, so it is passed over.
    shutil.copytree(out / "checkpoint-1", out / "checkpoint-3", ignore=shutil.ignore_patterns("trainer_state.json"))
    steps.update(begun=[], stop=None)
    again = run(save_strategy="steps", save_steps=1)
    assert steps["begun"] == [2]  # only the step that was left
    assert_same_weights(out, unbroken)
    for name in ("temperature", "agreement", "kappa", "span_exact"):
        assert again[name] == pytest.approx(metrics[name], abs=1e-4)
    assert json.loads((out / "verifier.json").read_text())["temperature"] == again["temperature"]


def test_the_best_adapter_by_kappa_is_kept(run, steps, tmp_path):
    """Steps too small to change a verdict: the second evaluation is no better than the first, so the run stops there
    and keeps what it had after the first step."""
    run(learning_rate=1e-9, max_steps=6, patience=1, eval_strategy="steps", eval_steps=1)
    assert steps["begun"] == [0, 1]
    assert_same_weights(tmp_path / "out", tmp_path / "out/checkpoint-1")


def test_patience_without_evaluations_is_refused(tiny_base, tables, tmp_path):
    with pytest.raises(InputError, match="patience needs evaluations; set eval_strategy"):
        DistillConfig(**{**settings(tiny_base, tables, tmp_path), "patience": 1})


def test_missing_verdicts_are_counted(run, tables, tmp_path, capsys):
    rows = read_verdicts(tables / "train/gold-image.jsonl")
    rows[:2] = [dataclasses.replace(row, verdict=None, p_yes=None, error="timeout") for row in rows[:2]]
    write_verdicts(tmp_path / "gold.jsonl", rows)
    run(verdicts=str(tmp_path / "gold.jsonl"), max_steps=1)
    wanted = "verifier-image: LoRA on 14 projections of the language model, 0 of the vision tower; 16 responses, 2 "
    assert wanted + "verdicts missing\n" in capsys.readouterr().out


def test_text_mode_does_not_look_at_the_picture(run, tables, tmp_path):
    """Broken pictures and none: the same verifier."""
    shutil.copytree(tables / "train", tmp_path / "broken")
    for image in (tmp_path / "broken/images").iterdir():
        image.write_bytes(b"no picture")
    examples = read_examples(tables / "train/examples.jsonl")
    write_examples(tmp_path / "bare.jsonl", [dataclasses.replace(example, images=()) for example in examples])
    for name, table in (("one", "broken/examples.jsonl"), ("two", "bare.jsonl")):
        run("text", output_dir=str(tmp_path / name), examples=str(tmp_path / table))
    assert_same_weights(tmp_path / "one", tmp_path / "two")
    card = json.loads((tmp_path / "one/verifier.json").read_text())
    assert (card["mode"], card["readings"]) == ("text", False)
    with pytest.raises(InputError, match="it cannot be read as an image"):
        run("image", output_dir=str(tmp_path / "three"), examples=str(tmp_path / "broken/examples.jsonl"))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"verdicts": "{tables}/train/gold-text.jsonl"},
            "has verdicts in text mode, but the verifier is for image mode",
        ),
        ({"validation_verdicts": "{tables}/validation/gold-text.jsonl"}, "has verdicts in text mode"),
        ({"verdicts": "{tables}/no-such.jsonl"}, "there is no such file"),
        ({"verdicts": ""}, "the setting verdicts is empty; give the table's path"),
        ({"rollouts": "{tables}/validation/rollouts.jsonl"}, "which the examples table does not have"),
        ({"verdicts": "{tables}/validation/gold-image.jsonl"}, "give the tables that were labelled"),
        ({"base": "{tables}/no-base"}, "no-base' is no folder, nor found on the Hub"),
        ({"base": "{tables}/train"}, "holds no safetensors file; give the folder of a base model"),
    ],
)
def test_bad_input_is_refused_before_the_folder_is_taken(run, tables, tmp_path, changes, told):
    """So the same folder serves the corrected command."""
    with pytest.raises(InputError) as refusal:
        run(**{key: value.format(tables=tables) for key, value in changes.items()})
    assert told in str(refusal.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("key", "value"), [("mode", "video"), ("lora_r", 0), ("lora_alpha", -1)])
def test_settings_out_of_range_are_refused(key, value):
    with pytest.raises(InputError, match=f"{key} is {value!r}"):
        DistillConfig(**{key: value, "report_to": "none"})
