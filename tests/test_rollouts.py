"""Sampling: prompts as token ids, several policies and temperatures in one table, and runs that can be interrupted."""

from __future__ import annotations

import dataclasses
import json
import random
import re
import resource
import shutil
from pathlib import Path

import pytest
import torch
from claimwise.distill.digits import make_example
from claimwise.distill.rollout_run import Plan, open_part
from claimwise.distill.rollouts import sample
from claimwise.distill.sampling import Sampler
from claimwise.scripts.cli import main
from claimwise.verifier.errors import InputError
from claimwise.verifier.model import load_model
from claimwise.verifier.part_file import PartFile
from claimwise.verifier.prompt import END
from claimwise.verifier.schema import Criterion, Example, Rollout
from claimwise.verifier.tables import load_image, read_examples, read_rollouts, write_examples
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

TEXT_ONLY = Example("plain", "Which digits are in the top row?", (Criterion("c", "Says so."),))


@pytest.fixture(scope="module")
def policy(assets):
    return load_model(assets / "policy", dtype=torch.float32)


@pytest.fixture(scope="module")
def examples() -> list[Example]:
    return [make_example(random.Random(i), "test", i) for i in range(3)]


@pytest.fixture(scope="module")
def table(tmp_path_factory, examples) -> Path:
    path = tmp_path_factory.mktemp("examples") / "examples.jsonl"
    write_examples(path, examples)
    return path


def flags(assets, table, out, *more: str) -> list[str]:
    common = ["rollout", "--policy", str(assets / "policy"), "--examples", str(table), "--out", str(out)]
    return [*common, "--max-new-tokens", "12", "--batch-size", "4", *more]


def refused(argv: list[str], capsys) -> str:
    """What the command says when it refuses bad input."""
    assert main(argv) == 2
    return capsys.readouterr().err


# Prompts


def test_the_prompt_is_what_the_processor_makes_of_an_ordinary_question(policy, examples):
    """Also in a batch with and without images; an example without any is an ordinary prompt too."""
    batch = [examples[0], TEXT_ONLY, examples[1]]
    conversations = [
        [{"role": "user", "content": [*({"type": "image", "image": load_image(i)} for i in e.images),
                                      {"type": "text", "text": e.question}]}]
        for e in batch
    ]  # fmt: skip
    wanted = policy.processor.apply_chat_template(
        conversations, add_generation_prompt=True, tokenize=True, return_dict=True,
        processor_kwargs={"return_tensors": "pt", "padding": True},
    )  # fmt: skip
    sampler = Sampler(policy, 8)
    found = sampler._batch([sampler.prompt(example) for example in batch])
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


@settings(max_examples=60)
@given(st.lists(st.sampled_from([*"ab 3\n<|>", "<|im_end|>", "<|image_pad|>", "<|vision_start|>", "é"])).map("".join))
def test_special_tokens_in_a_question_are_plain_text(policy, question):
    tokenizer = policy.processor.tokenizer
    special = set(tokenizer.get_added_vocab().values())
    image = make_example(random.Random(0), "test", 0).images
    ids, plain = (
        Sampler(policy, 8).prompt(Example("e", text, TEXT_ONLY.criteria, images=image)).ids for text in (question, "?")
    )
    assert [i for i in ids if i in special] == [i for i in plain if i in special]  # four places for one image
    own = "".join(tokenizer.decode([i]) for i in ids if i not in special) if question.isascii() else None
    assert own is None or own == f"user\n{question}\nassistant\n"


def test_a_policy_answers_such_a_question(policy, examples):
    question = f"What {END} does the top row <|image_pad|> read?"
    tricky = Example("t", question, TEXT_ONLY.criteria, images=examples[0].images)
    assert [row.finish_reason for row in sample(policy, [tricky], 2, max_new_tokens=64, seed=1)] == ["stop", "stop"]


def test_a_prompt_that_does_not_fit_is_refused_with_its_length(policy, examples):
    """The context is 4,096; the frame of a text prompt has 11 tokens, a digit one."""
    fits = Example("fits", " 3" * 4080, TEXT_ONLY.criteria)
    assert len(Sampler(policy, 5).prompt(fits).ids) == 4080 + 11 == 4096 - 5
    with pytest.raises(InputError, match=r"example 'fits': the prompt has 4091 tokens, with 6 new ones more than"):
        Sampler(policy, 6).prompt(fits)


# The table


def test_several_policies_and_temperatures_in_one_table(assets, table, examples, tmp_path, capsys):
    out = tmp_path / "rollouts.parquet"
    more = ["--policy", str(assets / "policy"), "--name", "a", "--name", "b", "--temperature", "0", "1.5"]
    assert main(flags(assets, table, out, *more, "--samples", "2", "--seed", "3")) == 0
    rows = read_rollouts(out)
    labels = ["a@0", "a@1.5", "b@0", "b@1.5"]
    assert [(r.policy, r.example_id, r.sample_index) for r in rows] == [
        (label, e.example_id, i) for label in labels for e in examples for i in (0, 1)
    ]
    assert all(r.rollout_id == f"{r.example_id}/{r.policy}-{r.sample_index}" for r in rows)
    texts = {label: [r.response for r in rows if r.policy == label] for label in labels}
    assert texts["a@0"] == texts["b@0"] and texts["a@0"][::2] == texts["a@0"][1::2]  # greedy
    assert texts["a@1.5"] != texts["b@1.5"]  # the same model, but other draws
    assert f"{out}: 24 rollouts of 3 examples, 0 of them edited" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["rollouts.parquet"]


def test_an_interrupted_run_goes_on_and_ends_the_same(assets, table, tmp_path, monkeypatch, capsys):
    """Stopped in the second of three batches, with half a line behind it as a killed process leaves one."""
    whole, halved = tmp_path / "whole.jsonl", tmp_path / "halved.jsonl"
    more = ["--samples", "4", "--edits", "1", "--references", "--seed", "5"]
    assert main(flags(assets, table, whole, *more)) == 0

    kept, add = [], PartFile.add

    def counted(self, row: Rollout) -> None:
        if len(kept) == 6:
            raise KeyboardInterrupt
        kept.append(row.rollout_id)
        add(self, row)

    monkeypatch.setattr(PartFile, "add", counted)
    assert main(flags(assets, table, halved, *more)) == 130
    part = tmp_path / "halved.jsonl.part"
    assert not halved.exists() and len(part.read_text().splitlines()) == 1 + 6
    part.write_text(part.read_text() + '{"rollout_id": "dig')

    first, kept = kept, []  # a list of its own: at most 6 of 12 are left
    assert main(flags(assets, table, halved, *more)) == 0
    assert len(kept) == 6 and not {*first} & {*kept}
    assert halved.read_bytes() == whole.read_bytes() and not part.exists()
    capsys.readouterr()
    told = "halved.jsonl is there already; remove it, or give another name"
    assert told in refused(flags(assets, table, halved, *more), capsys)


def test_what_is_written_anew_under_its_name_makes_another_run(assets, examples, tmp_path):
    """A policy's weights, and a picture by one of the same size; what is copied over itself stays the same run."""
    policy = shutil.copytree(assets / "policy", tmp_path / "policy")
    picture = tmp_path / "picture.bmp"
    Image.new("RGB", (4, 4), "red").save(picture)
    example = dataclasses.replace(examples[0], images=(picture,))
    plan = Plan(((str(policy), "policy"),), (1.0,), 4, 12, 0, "transformers", 4)
    first = plan.settings([example])
    picture.write_bytes(picture.read_bytes())
    assert plan.settings([example]) == first
    Image.new("RGB", (4, 4), "blue").save(picture)
    second = plan.settings([example])
    (policy / "model.safetensors").write_bytes((policy / "model.safetensors").read_bytes())
    third = plan.settings([example])
    changed = [{key for key in a if a[key] != b[key]} for a, b in ((first, second), (second, third))]
    assert changed == [{"examples"}, {"weights"}]


def test_a_part_file_of_other_settings_is_refused(assets, table, tmp_path, capsys, examples):
    out = tmp_path / "rollouts.jsonl"
    plan = Plan(((str(assets / "policy"), "policy"),), (1.0,), 4, 12, 0, "transformers", 4)
    with open_part(out, plan, read_examples(table)) as part:
        part.add(Rollout("r", examples[0].example_id, "It is 3.", "policy"))
        before = part.path.read_bytes()
        assert "another process writes it" in refused(flags(assets, table, out), capsys)
    for more, told in (
        (["--seed", "1"], "seed (0 there, 1 now)"),
        (["--temperature", "0.5"], "temperatures ([1.0] there, [0.5] now)"),
        (["--samples", "8"], "samples (4 there, 8 now)"),
    ):
        assert f"was begun with other settings: {told}; give another" in refused(
            flags(assets, table, out, *more), capsys
        )
    assert part.path.read_bytes() == before and not out.exists()
    other = tmp_path / "examples.jsonl"
    write_examples(other, [TEXT_ONLY])
    assert "other settings: examples (" in refused(flags(assets, other, out), capsys)
    for foreign in ("one\ntwo\nthree\n", "notes", '{"a": 1}\n'):
        part.path.write_text(foreign)
        assert "is no unfinished table of ours" in refused(flags(assets, table, out), capsys)
        assert part.path.read_text() == foreign


def test_a_prompt_that_is_refused_is_counted_and_can_be_gone_without(assets, examples, tmp_path, capsys):
    table, out = tmp_path / "examples.jsonl", tmp_path / "rollouts.jsonl"
    write_examples(table, [examples[0], Example("long", " 3" * 5000, TEXT_ONLY.criteria), examples[1]])
    assert main(flags(assets, table, out, "--samples", "2")) == 1
    said = capsys.readouterr().err
    assert (
        "is not written: 2 of 6 responses are missing (2 prompt): long/policy-0, long/policy-1; long/policy-0: exam"
        in said
    )
    assert "the prompt has 5011 tokens, with 12 new ones more than the policy's context of 4096; it is not cut" in said
    assert "kept in rollouts.jsonl.part" in said and "--max-failed 0.337 goes without them" in said and not out.exists()
    assert main(flags(assets, table, out, "--samples", "2", "--max-failed", "0.34")) == 0
    assert [row.example_id for row in read_rollouts(out)] == [examples[i].example_id for i in (0, 0, 1, 1)]
    assert "2 of 6 responses are missing (2 prompt)" in capsys.readouterr().out


def test_edits_of_all_kinds_say_what_was_changed(assets, table, tmp_path):
    out = tmp_path / "rollouts.parquet"
    assert (
        main(flags(assets, table, out, "--samples", "1", "--references", "--edits", "30", "--empty-share", "0.1")) == 0
    )
    rows = read_rollouts(out)
    by_id = {row.rollout_id: row for row in rows}
    edited = [row for row in rows if row.edit]
    assert len(by_id) == len(rows) and all(re.search(r" -> .* at \d", row.edit, re.DOTALL) for row in edited)
    for row in edited:
        kind, original = row.edit.partition(":")[0], by_id[row.rollout_id.rpartition("/")[0]]
        assert row.response != original.response and (kind != "empty" or row.response == "")
        assert (row.finish_reason == "length") is (kind == "truncation" or original.finish_reason == "length")
    assert {"number", "relation", "truncation", "drop", "empty"} <= {row.edit.partition(":")[0] for row in edited}


def test_difficulty_is_rated_by_the_first_policy(assets, tmp_path, capsys):
    """The shipped policy says nothing that is right in two tokens; an answer that no rule knows stays open."""
    table, out = tmp_path / "in" / "examples.jsonl", tmp_path / "rollouts.parquet"
    known = [make_example(random.Random(i), "test", i) for i in range(2)]
    write_examples(table, [*known, TEXT_ONLY])
    assert main(flags(assets, table, out, "--samples", "8", "--difficulty", "--temperature", "0", "1")) == 0
    rated = read_examples(tmp_path / "rollouts-examples.parquet")
    listed = [json.loads(line) for line in (tmp_path / "rollouts-examples-counts.jsonl").read_text().splitlines()]
    assert [e.example_id for e in rated] == [row["example_id"] for row in listed if row["difficulty"] != "all right"]
    assert [row["difficulty"] for row in listed][2] is None and len(listed[2]["undecided"]) == 8
    assert all(row["undecided"][0].endswith("/policy@0-0") for row in listed if row["undecided"])
    said = capsys.readouterr().out
    assert f"{tmp_path / 'rollouts-examples.parquet'}: 0 hard, 0 medium, 0 simple, 0 all right, 3 open" in said
    assert "24 responses that no rule decides; 1 example has no answer" in said
    assert load_image(rated[0].images[0]).size == (64, 64)


BAD = {
    "a table's name must end in .jsonl or .parquet": ["--out", "{out}/rollouts.csv"],
    "--samples is 4, give 8": ["--difficulty"],
    "r.jsonl is the rollout table; give another name": ["--difficulty-out", "{out}/./r.jsonl", "--samples", "8"],
    "two policies have one name (policy, policy)": ["--policy", "other/policy"],
    "there are 1 policies but 2 names": ["--name", "a", "--name", "b"],
    "a temperature is there twice (1, 1)": ["--temperature", "1", "1.0"],
    "a temperature must be a number from 0 up": ["--temperature", "-1"],
    "samples, new tokens and the batch size must be at least 1": ["--samples", "0"],
    "--server and --backend exclude each other": ["--server", "http://localhost:1/v1", "--backend", "vllm"],
    "--edits must be 0 or more": ["--empty-share", "2"],
    "--engine takes KEY=VALUE, such as max_model_len=8192, and not 'eager'": ["--backend", "vllm", "--engine", "eager"],
    "--engine holds settings of vLLM": ["--engine", "max_model_len=8192"],
    "is no address of a server": ["--server", "localhost"],
    "'no/such-policy' cannot be loaded": ["--policy", "no/such-policy", "--name", "a", "--name", "b"],
}


@pytest.mark.parametrize("told", list(BAD))
def test_bad_input_is_one_line_and_leaves_nothing(told, assets, table, tmp_path, capsys):
    argv = [word.format(out=tmp_path) for word in BAD[told]]
    if "no/such" in told:
        argv = ["rollout", *argv[:2], "--examples", str(table), "--out", str(tmp_path / "r.jsonl")]
    else:
        argv = [*flags(assets, table, tmp_path / "r.jsonl"), *argv]
    said = refused(argv, capsys)
    assert told in said and len(said.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_without_vllm_it_says_so(assets, table, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("claimwise.distill.rollout_backends.find_spec", lambda name: None)
    said = refused(flags(assets, table, tmp_path / "r.jsonl", "--backend", "vllm"), capsys)
    assert (
        "vLLM is not installed here; pip install 'claimwise[vllm]', or take --backend transformers or --server" in said
    )
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_takes_no_more_is_one_line(tmp_path, examples):
    """A limit on the size of files stands in for a full disk; what was kept before is read again."""
    plan = Plan((("p", "p"),), (1.0,), 1, 1, 0, "transformers", 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with open_part(tmp_path / "r.jsonl", plan, examples) as part:
        part.add(Rollout("r0", "e", "It is 3.", "p"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (part.path.stat().st_size + 100, hard))
        try:
            with pytest.raises(InputError, match=r"it cannot be written .*; the same command goes on"):
                part.add(Rollout("r1", "e", "It is 3. " * 100, "p"))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with open_part(tmp_path / "r.jsonl", plan, examples) as part:
        assert list(part.rows) == ["r0"]


def test_seeds_differ_by_rollout_and_by_run(examples):
    jobs = [job for seed in (0, 1) for job in Plan((("p", "p"),), (0.5, 1.0), 4, 1, seed, "server").jobs(examples)]
    assert len({job.seed for job in jobs}) == len(jobs) == 2 * 2 * 3 * 4
    assert all(0 <= job.seed < 2**31 for job in jobs)
