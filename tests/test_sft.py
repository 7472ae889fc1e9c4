"""`claimwise sft`: what TRL's SFTTrainer is given, what it trains on, and that its folder is a policy."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from claimwise.distill.digits import make_example
from claimwise.distill.hub import stream
from claimwise.distill.policy_prompt import PolicyPrompt
from claimwise.distill.sft_data import Form, Reader, TooLong, read_conversation, stored_dataset, streamed_dataset
from claimwise.distill.sources import RawRow, open_source
from claimwise.scripts.cli import main
from claimwise.scripts.digits_conversations import write_conversations
from claimwise.trainer.cold_start import make_trainer
from claimwise.trainer.cold_start_config import ColdStartConfig
from claimwise.trainer.config import RubricGRPOConfig
from claimwise.trainer.policy import LORA_TARGETS, load_policy
from claimwise.verifier.errors import InputError
from claimwise.verifier.model import load_model
from claimwise.verifier.processor import load_processor
from claimwise.verifier.settings import parse_settings
from claimwise.verifier.tables import read_rollouts, write_examples
from PIL import Image
from safetensors.torch import load_file

RECIPES = Path(__file__).parents[1] / "scripts" / "recipes"
USER, SAID = {"role": "user", "content": "What?"}, {"role": "assistant", "content": "It is 3."}
IMAGE_PART, ANSWER = {"type": "image"}, {"type": "text", "text": "It is 3."}


@pytest.fixture(scope="module")
def form(assets):
    return Form(load_processor(assets / "policy"), 256)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Sixteen conversations of the digits world."""
    return write_conversations(tmp_path_factory.mktemp("sft"), 16)


def flags(assets, conversations, out, **settings):
    settings = {"model": assets / "policy", "data": conversations, "output_dir": out, "logging_steps": 1, "max_steps": 2,
                "per_device_train_batch_size": 4} | settings  # fmt: skip
    pairs = [[f"--{key}", str(value)] for key, value in settings.items()]
    return ["sft", "--config", str(RECIPES / "sft-digits.yaml"), *(part for pair in pairs for part in pair)]


def read(form, values, folder=None):
    return read_conversation(RawRow(1, "line 1", values, None, folder), form)


def parts(row):
    return [message["content"] for message in row["prompt"]]


def test_every_layout_of_a_conversation(form, tmp_path):
    """Placeholders stand where the texts have them, else before the first question, as in the prompts of GRPO."""
    Image.new("RGBA", (64, 64), "red").save(tmp_path / "a.png")
    path, raw = {"path": str((tmp_path / "a.png").resolve()), "bytes": None}, (tmp_path / "a.png").read_bytes()
    what = {"type": "text", "text": "What?"}
    row = read(form, {"messages": [USER, SAID], "images": ["a.png"]}, tmp_path)
    assert parts(row) == [[IMAGE_PART, what]] and row["images"] == [path]
    assert row["completion"] == [{"role": "assistant", "content": [ANSWER]}]
    shared = [{"from": "human", "value": "<image>\nWhat?"}, {"from": "gpt", "value": "It is 3."}]
    assert read(form, {"conversations": shared, "image": "a.png"}, tmp_path) == row
    assert read(form, {"conversations": json.dumps(shared), "image": {"bytes": raw, "path": None}})["images"][0][
        "bytes"
    ]
    carried = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a.png"}}, what]}, SAID]
    assert read(form, {"messages": carried}, tmp_path) == row
    system = {"from": "system", "value": "Be brief."}
    turns = [system, shared[0], shared[1], {"from": "human", "value": "And <image> there?"}, shared[1]]
    row = read(form, {"conversations": turns, "images": ["a.png", "a.png"]}, tmp_path)
    assert [message["role"] for message in row["prompt"]] == ["system", "user", "assistant", "user"]
    assert parts(row)[3] == [{"type": "text", "text": "And "}, IMAGE_PART, {"type": "text", "text": " there?"}]
    assert parts(read(form, {"messages": [USER, SAID], "images": []})) == [[what]]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"text": "hm"}, "it has none of the columns messages, conversations, conversation"),
        ({"messages": "hm"}, "messages is string 'hm'; it must be a list of messages"),
        ({"messages": [USER]}, "must end with an answer"),
        ({"messages": [SAID]}, "must end with an answer of the assistant after a turn"),
        ({"messages": [USER, {**SAID, "content": " "}]}, "must end with an answer"),
        ({"messages": [{**USER, "role": "robot"}, SAID]}, "messages, message 1: its role is"),
        ({"messages": [USER, SAID], "images": ["none.png"]}, "image 1: there is no file"),
        ({"messages": [USER, SAID], "images": [b"no image"]}, "image 1: its 8 bytes are no image"),
        ({"messages": [{**USER, "content": "<image> <image>"}, SAID]}, "places for 2 image(s), but the row has 0"),
        ({"messages": [USER, {**SAID, "content": "<image>"}]}, "the answer holds a place for an image"),
        ({"messages": [{**USER, "content": "a<|im_end|>"}, SAID]}, "'<|im_end|>', which the model would take"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_reason(values, reason, form, tmp_path):
    with pytest.raises(InputError) as error:
        read(form, values, tmp_path)
    assert reason in str(error.value)


def test_a_long_conversation_is_left_out_at_its_true_length(form, tmp_path):
    """The length is the processor's own: one token less and the row is too long."""
    Image.new("RGB", (96, 64)).save(tmp_path / "a.png")
    row = {"messages": [USER, SAID], "images": ["a.png"]}
    found = read(form, row, tmp_path)
    text = form.processor.apply_chat_template(found["prompt"] + found["completion"], tokenize=False)
    length = len(form.processor(text=[text], images=[Image.open(tmp_path / "a.png")])["input_ids"][0])
    read(Form(form.processor, length), row, tmp_path)
    with pytest.raises(TooLong, match=f"it has {length} tokens, more than max_tokens {length - 1}"):
        read(Form(form.processor, length - 1), row, tmp_path)


def test_only_the_answer_bears_the_loss_after_the_prompt_of_a_rollout(assets, data, tmp_path, form):
    """A batch as TRL's own collator makes it: the tokens under the loss are the answer's and its end, those before them
    are what the policy is asked in rollouts."""
    reader = Reader(open_source(str(data)), form, tmp_path, 0.0)
    dataset = stored_dataset(reader, "f1")
    config = ColdStartConfig(output_dir=str(tmp_path), model=str(assets / "policy"), data=str(data), bf16=False,
                             report_to="none")  # fmt: skip
    trainer = make_trainer(config, form.processor, dataset)
    batch = trainer.data_collator([dataset[0], dataset[1]])
    policy, rng = load_model(assets / "policy", dtype=torch.float32), random.Random(0)
    prompts = PolicyPrompt(form.processor, policy.encoder, 512)
    for row in range(2):
        example = make_example(rng, "train", row, wrong_share=0.0)
        ids, labels = batch["input_ids"][row], batch["labels"][row]
        loss = labels != -100
        assert form.processor.tokenizer.decode(labels[loss]) == f"{example.reference}<|im_end|>\n"
        first = int(loss.nonzero()[0])
        assert ids[:first].tolist() == prompts.ids(example, [4])  # one token a digit
        assert torch.equal(ids[loss], labels[loss])
    assert (batch["input_ids"] == policy.encoder.image_id).sum() * 4 == len(batch["pixel_values"])


@pytest.mark.slow
def test_the_recipe_lowers_the_loss_and_its_folder_is_a_policy(assets, data, tmp_path, capsys):
    out = tmp_path / "out"
    run = flags(assets, data, out, max_steps=12, per_device_train_batch_size=8)
    assert main(run) == 0 and "policy after 12 steps, last loss" in capsys.readouterr().out
    losses = [json.loads(line)["loss"] for line in (out / "log.jsonl").read_text().splitlines()]
    assert len(losses) == 12 and losses[-1] < 0.7 * losses[0] and not (out / ".data").exists()
    assert main(run) == 0  # finished: left as it is
    model, _ = load_policy(RubricGRPOConfig(output_dir=str(tmp_path / "g"), model=str(out), bf16=False))
    saved = load_file(out / "model.safetensors")
    state = model.state_dict()
    assert saved and all(torch.equal(state[name], value) for name, value in saved.items())
    examples = [make_example(random.Random(1), "test", 0)]
    write_examples(tmp_path / "e.parquet", examples)
    rollouts = tmp_path / "r.jsonl"
    assert main(["rollout", "--policy", str(out), "--examples", str(tmp_path / "e.parquet"), "--samples", "2", "--out",
                 str(rollouts), "--max-new-tokens", "48"]) == 0  # fmt: skip
    assert len(read_rollouts(rollouts)) >= 2
    train = ["train", "--config", str(RECIPES / "grpo-digits.yaml"), "--model", str(out), "--verifier", "oracle"]
    train += ["--examples", str(tmp_path / "e.parquet"), "--max_steps", "1", "--per_device_train_batch_size", "4"]
    train += ["--num_generations", "4", "--beta", "0.01", "--output_dir", str(tmp_path / "grpo")]
    assert main(train) == 0 and (tmp_path / "grpo" / "model.safetensors").is_file()


@pytest.mark.parametrize("quantized", [False, True])
def test_an_adapter_is_merged_into_the_language_models_projections(quantized, assets, data, tmp_path):
    if quantized:
        pytest.importorskip("bitsandbytes")
    out = tmp_path / "out"
    run = flags(assets, data, out, lora_r=4, load_in_4bit=quantized, max_steps=1, learning_rate=0.1, warmup_steps=0)
    assert main(run) == 0
    before, after = load_file(assets / "policy" / "model.safetensors"), load_file(out / "model.safetensors")
    changed = {name for name in after if not torch.equal(before[name].float(), after[name].float())}
    assert changed and before.keys() - after.keys() <= {"lm_head.weight"}  # tied to the embeddings
    assert all("language_model.layers" in name and name.endswith("_proj.weight") for name in changed)
    assert (out / "adapter" / "adapter_model.safetensors").is_file() and load_processor(out)
    model, _ = load_policy(RubricGRPOConfig(output_dir=str(tmp_path / "g"), model=str(out), bf16=False))
    assert torch.equal(model.lm_head.weight, model.get_input_embeddings().weight)


@pytest.mark.parametrize("streaming", [False, True])
def test_a_stopped_run_ends_where_an_unbroken_one_does(streaming, assets, data, tmp_path):
    more = {"max_steps": 4, "save_strategy": "steps", "save_steps": 1, "streaming": streaming}
    assert main(flags(assets, data, tmp_path / "whole", **more)) == 0
    shutil.copytree(tmp_path / "whole", tmp_path / "half")
    for name in ("finished.json", "model.safetensors", "log.jsonl"):
        (tmp_path / "half" / name).unlink()
    for step in (3, 4):
        shutil.rmtree(tmp_path / "half" / f"checkpoint-{step}")
    shutil.rmtree(tmp_path / "half" / "checkpoint-1")
    assert main(flags(assets, data, tmp_path / "half", **more)) == 0
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "half"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert (tmp_path / "half" / "log.jsonl").read_text().count("\n") == 4


@pytest.mark.slow
def test_a_killed_run_ends_where_an_unbroken_one_does(assets, data, tmp_path):
    """SIGKILL after the second checkpoint; the same command then goes on to the same weights, to the last bit."""
    more = {"max_steps": 24, "save_strategy": "steps", "save_steps": 2}
    assert main(flags(assets, data, tmp_path / "whole", **more)) == 0
    run, killed = flags(assets, data, tmp_path / "killed", **more), tmp_path / "killed"
    threads = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-m", "claimwise.scripts.cli", *run], env=threads, **pipes)
    while not (killed / "checkpoint-4" / "trainer_state.json").is_file():
        assert process.poll() is None, process.communicate()[1][-2000:]
        time.sleep(0.005)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL and not (killed / "finished.json").exists()
    steps = sorted(int(path.name.split("-")[1]) for path in killed.glob("checkpoint-*"))
    assert steps[-1] < 24 and not (killed / "model.safetensors").exists()
    assert main(run) == 0
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "killed"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    losses = [(tmp_path / name / "log.jsonl").read_text().splitlines() for name in ("whole", "killed")]
    assert [json.loads(line)["loss"] for line in losses[0]] == [json.loads(line)["loss"] for line in losses[1]]


def test_a_stream_of_parquet_with_images_inside(data, tmp_path, form):
    """As `datasets` streams it from the Hub: the same rows as the local file gives, in another order."""
    import datasets

    rows = [json.loads(line) for line in data.read_text().splitlines()]
    images = [{"bytes": (data.parent / row["images"][0]).read_bytes(), "path": None} for row in rows]
    table = datasets.Dataset.from_dict({"messages": [row["messages"] for row in rows], "images": [[i] for i in images]})
    table.cast_column("images", datasets.List(datasets.Image())).to_parquet(tmp_path / "train.parquet")
    found = datasets.load_dataset("parquet", data_files=f"file://{tmp_path}/train.parquet", streaming=True)["train"]
    streamed = list(streamed_dataset(Reader(stream("hub", found, "", []), form, tmp_path, 0.0), seed=0))
    stored = list(stored_dataset(Reader(open_source(str(data)), form, tmp_path, 0.0), "f2"))

    def as_text(row):
        return json.dumps([row["prompt"], row["completion"]]) + str(row["images"][0].convert("RGB").tobytes())

    assert sorted(map(as_text, streamed)) == sorted(map(as_text, stored)) and len(stored) == 16
    assert [as_text(row) for row in streamed] != [as_text(row) for row in stored]


def test_bad_rows_are_named_and_counted(assets, data, tmp_path, capsys):
    lines = data.read_text().splitlines()
    bad = tmp_path / "bad.jsonl"
    shutil.copytree(data.parent / "images", tmp_path / "images")
    long = json.dumps({"messages": [{**USER, "content": "What? " * 300}, SAID]})
    bad.write_text("\n".join([*lines, "{no", json.dumps({"messages": [USER]}), long]) + "\n")
    assert main(flags(assets, bad, tmp_path / "out", max_steps=1)) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("claimwise sft: ")]
    assert "2 of 19 rows (10.5%) were refused, more than max_rejected 0.01; the first is bad.jsonl, line 17" in line
    assert not (tmp_path / "out" / "model.safetensors").exists()
    assert main(flags(assets, bad, tmp_path / "out", max_steps=1, max_rejected=0.2)) == 0
    rows = [json.loads(line) for line in (tmp_path / "out" / "rejected.jsonl").read_text().splitlines()]
    assert [(row["row"], row["kind"]) for row in rows] == [(17, "refused"), (18, "refused"), (19, "filtered")]


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"data": ""}, "the setting data is empty"),
        ({"data": "nowhere.jsonl"}, "there is no such file or folder"),
        ({"model": "/nowhere"}, "cannot be loaded"),
        ({"image_folder": "nowhere"}, "image_folder nowhere: there is no such folder"),
        ({"max_length": 9}, "set max_tokens instead"),
        ({"packing": True}, "packs no conversations with images"),
        ({"completion_only_loss": False}, "the loss is on completions alone"),
        ({"load_in_4bit": True}, "set lora_r"),
        ({"streaming": True, "max_steps": -1}, "set max_steps"),
        ({"max_rejected": 2}, "max_rejected 0 to 1"),
        ({"eval_strategy": "steps"}, "nothing to evaluate on"),
        ({"lorar": 1}, "there is no flag --lorar; did you mean --lora_r?"),
    ],
)
def test_bad_settings_are_one_line(more, named, assets, data, tmp_path, capsys):
    assert main(flags(assets, data, tmp_path / "out", **more)) == 2
    err = capsys.readouterr().err.strip().splitlines()[-1]
    assert err.startswith("claimwise sft: ") and named in err


def test_another_run_is_not_overwritten(assets, data, tmp_path, capsys):
    assert main(flags(assets, data, tmp_path / "out", max_steps=1)) == 0
    assert main(flags(assets, data, tmp_path / "out", max_steps=2)) == 2
    assert "holds a different run: max_steps (1 there, 2 now)" in capsys.readouterr().err


def test_the_8b_recipe_is_valid_and_its_adapter_is_on_the_language_model_alone(tmp_path):
    """Seven projections of each of 36 layers; built without weights."""
    from peft import LoraConfig, get_peft_model
    from test_real_configs import STUDENTS, config_of
    from transformers import AutoModelForImageTextToText

    config = parse_settings(
        ColdStartConfig,
        ["--config", str(RECIPES / "sft-qwen3-vl-8b.yaml"), "--output_dir", str(tmp_path), "--use_cpu", "true"],
        "sft",
    )
    assert (config.streaming, config.data) == (True, "OpenMMReasoner/OpenMMReasoner-SFT-874K")
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config_of("Qwen3-VL-8B-Instruct"))
        adapted = get_peft_model(model, LoraConfig(r=config.lora_r, target_modules=LORA_TARGETS))
    trained = {name: p.numel() for name, p in adapted.named_parameters() if p.requires_grad}
    assert sum(trained.values()) == config.lora_r // 16 * STUDENTS["Qwen3-VL-8B-Instruct"][2]
    assert len(trained) == 2 * 7 * 36 and not any("visual" in name for name in trained)


def test_rows_with_and_without_images_share_a_batch(assets, data, tmp_path, form):
    mixed = tmp_path / "mixed.jsonl"
    rows = [json.loads(line) for line in data.read_text().splitlines()[:2]]
    rows[0]["images"], rows[1]["images"] = [], [str(data.parent / rows[1]["images"][0])]
    mixed.write_text("".join(json.dumps(row) + "\n" for row in rows))
    dataset = stored_dataset(Reader(open_source(str(mixed)), form, tmp_path, 0.0), "f3")
    config = ColdStartConfig(
        output_dir=str(tmp_path), model=str(assets / "policy"), data=str(mixed), bf16=False, report_to="none"
    )
    batch = make_trainer(config, form.processor, dataset).data_collator([dataset[0], dataset[1]])
    image = form.processor.tokenizer.convert_tokens_to_ids(form.processor.image_token)
    assert (batch["input_ids"] == image).sum(dim=1).tolist() == [0, 4] and len(batch["pixel_values"]) == 16
