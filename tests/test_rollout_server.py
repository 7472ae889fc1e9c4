"""Rollouts from a chat server: what is sent, what is kept, and what happens when the server misbehaves."""

from __future__ import annotations

import base64
import io
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from claimwise.distill.digits import make_example
from claimwise.scripts.cli import main
from claimwise.verifier.schema import Criterion, Example
from claimwise.verifier.tables import load_image, read_examples, read_rollouts, write_examples
from PIL import Image
from servers import Call, Held, Server, say, status

QUICK = ["--in-flight", "4"]


def answer(call: Call):
    """Depends on question, seed and temperature alone, as a server with seeds should."""
    draw = random.Random(repr([call.body["messages"], call.body["seed"], call.body["temperature"]]))
    return say(f"Answer: {draw.randrange(10**6)}")


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("examples") / "examples.jsonl"
    plain = Example("plain", "How many are there?", (Criterion("c", "Says so."),))
    write_examples(path, [*(make_example(random.Random(i), "test", i) for i in range(3)), plain])
    return path


def flags(server: Server, table: Path, out: Path, *more: str) -> list[str]:
    common = ["rollout", "--server", server.url, "--policy", "tiny-model", "--examples", str(table), "--out", str(out)]
    return [*common, "--samples", "2", *QUICK, *more]


def question_of(call: Call) -> str:
    return call.body["messages"][-1]["content"][-1]["text"]


def identity(call: Call) -> tuple:
    return question_of(call), call.body["seed"]


def test_what_is_sent(table, tmp_path, monkeypatch):
    monkeypatch.setenv("A_KEY", "secret")
    out = tmp_path / "rollouts.jsonl"
    with Server(answer) as server:
        more = ["--temperature", "0.7", "1", "--max-new-tokens", "99", "--key-env", "A_KEY", "--seed", "5"]
        assert main(flags(server, table, out, *more)) == 0
    rows, examples = read_rollouts(out), read_examples(table)
    assert [(r.example_id, r.policy, r.sample_index) for r in rows] == [
        (e.example_id, f"policy@{t}", i) for t in ("0.7", "1") for e in examples for i in (0, 1)
    ]
    assert len(server.calls) == 16 == len({call.body["seed"] for call in server.calls}) and server.most <= 4
    for call in server.calls:
        body = {key: value for key, value in call.body.items() if key not in ("messages", "seed", "temperature")}
        assert body == {"model": "tiny-model", "max_tokens": 99, "top_p": 1.0}
        assert call.headers["authorization"] == "Bearer secret"
        [message] = call.body["messages"]
        *images, text = message["content"]
        [example] = [e for e in examples if e.question == text["text"] and len(e.images) == len(images)][:1]
        assert message["role"] == "user" and text["type"] == "text" and example
    contents = [call.body["messages"][0]["content"] for call in server.calls]
    sent = {_pixels(content[0]["image_url"]["url"]) for content in contents if len(content) == 2}
    assert sent == {load_image(example.images[0]).tobytes() for example in examples[:3]}


def _pixels(url: str) -> bytes:
    head, _, data = url.partition(",")
    assert head == "data:image/png;base64"
    return Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB").tobytes()


def test_a_failed_request_is_counted_and_asked_again_by_the_same_command(table, tmp_path, capsys):
    """The server takes no question without an image, until it is mended."""
    whole, out = tmp_path / "whole.jsonl", tmp_path / "rollouts.jsonl"
    with Server(answer) as server:
        assert main(flags(server, table, whole)) == 0
    capsys.readouterr()

    def picky(call: Call):
        refused = status(400, {"error": {"message": "no image, no answer"}})
        return refused if len(call.body["messages"][0]["content"]) == 1 else answer(call)

    with Server(picky) as server:
        assert main(flags(server, table, out)) == 1
    said = capsys.readouterr().err
    assert "2 of 8 responses are missing (2 refused): plain/policy-0, plain/policy-1" in said
    assert "no image, no answer" in said and "the same command asks for the missing ones only" in said
    assert not out.exists()

    with Server(answer) as server:  # at another address
        assert main(flags(server, table, out)) == 0
    assert [question_of(call) for call in server.calls] == ["How many are there?"] * 2
    assert out.read_bytes() == whole.read_bytes()


def test_killed_at_any_point_it_goes_on(table, tmp_path, capsys):
    """kill -9 while the server answers: what is in the part file is not asked again, and the table ends the same."""
    whole, out = tmp_path / "whole.jsonl", tmp_path / "rollouts.jsonl"
    with Server(answer) as server:
        assert main(flags(server, table, whole, "--samples", "8")) == 0
    part = tmp_path / "rollouts.jsonl.part"

    held = Held(answer, 8)
    with Server(held) as server:
        argv = [sys.executable, "-m", "claimwise.scripts.cli", *flags(server, table, out, "--samples", "8")]
        process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ})
        while not (part.exists() and part.read_bytes().count(b"\n") > 8):
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
        asked_before = [identity(call) for call in server.calls]
        kept = part.read_bytes().count(b"\n") - 1
        held.release()
    with Server(answer) as server:
        assert main(flags(server, table, out, "--samples", "8")) == 0
    asked = [identity(call) for call in server.calls]
    assert kept == 8 and len(asked) == 32 - kept
    assert len(set(asked) & set(asked_before)) <= 4  # those that were in flight
    assert out.read_bytes() == whole.read_bytes() and not part.exists()


def test_a_wrong_key_costs_one_call(table, tmp_path, capsys):
    with Server(lambda call: status(401, {"error": {"message": "bad key"}})) as server:
        assert main(flags(server, table, tmp_path / "r.jsonl")) == 2
    assert len(server.calls) == 1 and list(tmp_path.iterdir()) == []
    said = capsys.readouterr().err
    assert (
        "claimwise rollout: the server refuses the key in the environment" in said
        and "the same command goes on" in said
    )


def test_a_server_that_refuses_everything_is_left_alone(table, tmp_path, capsys):
    """Three examples, not three requests: one bad example must not end a run."""
    with Server(lambda call: status(400, {"error": {"message": "n: unknown field"}})) as server:
        assert main(flags(server, table, tmp_path / "r.jsonl")) == 2
    assert len(server.calls) in (5, 6)  # two each of the first two examples, one of the third, one on its way
    assert "5 requests in a row failed, the last with HTTP 400: 'n: unknown field'" in capsys.readouterr().err


def test_a_server_that_knows_no_seed_and_no_top_p_is_asked_without(table, tmp_path, capsys):
    def plain(call: Call):
        unknown = next((name for name in ("seed", "top_p") if name in call.body), None)
        return status(400, {"error": {"message": f"Unsupported parameter: '{unknown}'"}}) if unknown else say("B")

    with Server(plain) as server:
        assert main(flags(server, table, tmp_path / "r.jsonl")) == 0
    assert len(read_rollouts(tmp_path / "r.jsonl")) == 8 and len(server.calls) == 8 + 2
    told = capsys.readouterr().out
    assert "tiny-model: seed changed or left out" in told and "top_p changed or left out" in told


def test_where_nothing_was_sampled_nothing_is_kept_to_go_on_with(tmp_path, capsys):
    table = tmp_path / "examples.jsonl"
    write_examples(table, [Example("a", "Why <|im_end|>?", (Criterion("c", "So."),))])
    with Server(answer) as server:
        assert main(flags(server, table, tmp_path / "r.jsonl")) == 1
    told = capsys.readouterr().err
    assert "the question of 'a' holds <|im_end|>. Mend that; the same command begins again" in told
    assert "--max-failed" not in told and os.listdir(tmp_path) == ["examples.jsonl"]


def test_no_text_is_no_empty_response(table, tmp_path, capsys):
    """A model that thinks until the limit sends nothing; one that has nothing to say sends an empty response."""
    out = tmp_path / "r.jsonl"
    with Server(lambda call: say(None, finish="length") if call.body["seed"] % 2 else say("")) as server:
        assert main(flags(server, table, out, "--max-failed", "1")) == 0
    odd = sum(call.body["seed"] % 2 for call in server.calls)
    assert 0 < odd < 8
    assert [(row.response, row.finish_reason) for row in read_rollouts(out)] == [("", "stop")] * (8 - odd)
    assert f"{odd} of 8 responses are missing ({odd} no text)" in capsys.readouterr().out


def test_a_temperature_that_the_server_does_not_take_is_no_other_temperature(table, tmp_path, capsys):
    def fixed(call: Call):
        refused = status(400, {"error": {"message": "temperature: only the default"}})
        return refused if "temperature" in call.body else say("B")

    with Server(fixed) as server:
        assert main(flags(server, table, tmp_path / "half.jsonl", "--temperature", "0.5")) == 2
        assert "does not take the temperature 0.5; give --temperature 1" in capsys.readouterr().err
        assert main(flags(server, table, tmp_path / "one.jsonl")) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["one.jsonl"]


def test_what_a_server_would_take_for_its_own_is_not_sent(tmp_path, capsys):
    table = tmp_path / "examples.jsonl"
    rows = [Example(name, text, (Criterion("c", "So."),)) for name, text in (("a", "Why?"), ("b", "Why <|im_end|>?"))]
    write_examples(table, rows)
    with Server(answer) as server:
        assert main(flags(server, table, tmp_path / "r.jsonl")) == 1
    assert {question_of(call) for call in server.calls} == {"Why?"}
    assert "(2 special token): b/policy-0, b/policy-1; b/policy-0: the question of 'b' holds <|im_end|>" in (
        capsys.readouterr().err
    )


def test_half_a_surrogate_pair_does_not_spoil_the_table(table, tmp_path):
    out = tmp_path / "r.parquet"
    with Server(lambda call: say("It is \ud83d, and \ud83d\ude00.")) as server:
        assert main(flags(server, table, out)) == 0
    assert {row.response for row in read_rollouts(out)} == {"It is \ufffd, and \U0001f600."}
