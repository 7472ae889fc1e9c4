"""Labelling with a teacher behind a server: the table, the ledger, cost and budget, memory, flags."""

import asyncio
import base64
import math
import os
from collections import Counter
from io import BytesIO

import pytest
from claimwise.distill.estimate import TokenCounter, estimate
from claimwise.distill.ledger import Ledger
from claimwise.distill.questions import sheets
from claimwise.distill.teacher import Teacher, TeacherSettings
from claimwise.scripts.cli import main
from claimwise.verifier.chat import ChatClient
from claimwise.verifier.processor import load_processor
from claimwise.verifier.quoting import messages, prompt_hash
from claimwise.verifier.schema import Example, Rollout
from claimwise.verifier.tables import read_verdicts
from labelling import CRITERIA, RESPONSES, ask, command
from PIL import Image
from servers import Server, judge, say


def test_a_run_its_table_and_its_ledger(tmp_path, capsys):
    with Server() as server:
        run = command(tmp_path, server.url, "--export", tmp_path / "v.parquet", "--price-in", 2, "--price-out", "10")
        assert main(run) == 0
        out, err = capsys.readouterr()
        rows = read_verdicts(tmp_path / "v.parquet")
        assert len(rows) == 32 and len(server.calls) == 32
        assert main(run) == 0 and len(server.calls) == 32  # nothing is asked twice
    assert [row.verdict for row in rows[:8]] == [True, False, True, False, False, True, False, True]
    first, second = rows[:2]
    assert (first.example_id, first.rollout_id, first.criterion_id, first.judge) == ("e0", "r0-0", "c0", "m")
    assert (first.mode, first.dimension, first.match, first.span) == ("text", "VF", "exact", (0, 15))
    assert first.prompt_hash == prompt_hash("text", False) and first.created_at and first.reading is None
    assert (second.span, second.match, second.p_yes, second.error) == (None, "none", None, None)
    assert "32 answers of m: 10 yes, 22 no, 0 missing" in out and "3,200 prompt and 320 completion tokens" in out
    assert f"{(3200 * 2 + 320 * 10) / 1e6:g} spent" in out and "v.parquet: 32 verdicts" in out
    assert "verdict/s" in err and "spent 0.0096" in err
    assert "0 asked, 32 known" in capsys.readouterr().out


def test_two_modes_in_one_table(tmp_path):
    """In image mode the picture goes along as it is, the two modes ask different questions, and rows say which."""
    picture = Image.new("RGB", (8, 8), (1, 2, 3))
    with Server() as server:
        run = command(tmp_path, server.url, "--export", tmp_path / "v.jsonl", examples=1, images=(picture,))
        run[run.index("--mode") + 1] = "text,image"
        assert main(run) == 0
    rows = read_verdicts(tmp_path / "v.jsonl")
    assert Counter(row.mode for row in rows) == {"text": 16, "image": 16}
    assert {row.mode: row.prompt_hash for row in rows} == {mode: prompt_hash(mode, False) for mode in ("text", "image")}
    parts = [c.body["messages"][1]["content"] for c in server.calls if "image" in c.body["messages"][0]["content"]]
    urls = {part[0]["image_url"]["url"] for part in parts}
    kind, _, data = urls.pop().partition(";base64,")
    assert kind == "data:image/png" and not urls and len(parts) == 16
    assert Image.open(BytesIO(base64.b64decode(data))).getpixel((0, 0)) == (1, 2, 3)


def test_equal_questions_are_asked_once(tmp_path):
    with Server() as server:
        rows, teacher, _ = ask(server, tmp_path, CRITERIA, ["", "It is odd.", "", ""])
    assert len(server.calls) == 8 and teacher.known == 8 and len(rows) == 16
    assert [row.verdict for row in rows[:4]] == [row.verdict for row in rows[8:12]] == [False] * 4


def test_p_yes_reaches_the_table_where_the_server_offers_it(tmp_path):
    def token(text, **top):
        return {"token": text, "top_logprobs": [{"token": t, "logprob": math.log(p)} for t, p in top.items()]}

    logprobs = [token('{"quote": "", "verdict": "'), token("no", yes=0.1, no=0.3), token('"}')]
    with Server(lambda call: say('{"quote": "", "verdict": "no"}', logprobs=logprobs)) as server:
        (row,), _, _ = ask(server, tmp_path)
    assert row.p_yes == pytest.approx(0.25) and server.calls[0].body["top_logprobs"] == 20


def test_memory_holds_no_more_questions_than_are_in_flight(tmp_path):
    taken = []

    def stream():
        example = Example("e", "What?", CRITERIA)
        for pair in ((example, Rollout(f"r{n}", "e", str(n), "p")) for n in range(30)):
            taken.append(pair)
            yield from sheets([pair], ["text"], "m", False)

    def behave(call):  # each sheet has four questions; five sheets may be open with four calls in flight
        assert len(taken) <= (call.number + 4) / 4 + 2
        return judge(call)

    with Server(behave) as server, Ledger(tmp_path / "l.sqlite") as ledger:

        async def go():
            async with ChatClient(server.url, "m", max_in_flight=4) as chat:
                await Teacher(chat, ledger, TeacherSettings()).label(stream())

        asyncio.run(go())
    assert len(server.calls) == 120


def test_the_budget_is_never_exceeded_and_a_larger_one_goes_on(tmp_path, capsys):
    """The longest answers there can be: 512 tokens at 10,000 a million, and 100 of prompt at 1,000, are 5.22 a call."""
    priced = ["--price-in", "1000", "--price-out", "10000", "--max-in-flight", "8"]
    with Server(lambda call: judge(call, wait_s=0.05, usage=(100, 512))) as server:
        assert main(command(tmp_path, server.url, *priced, "--budget", "50")) == 3
        asked = len(server.calls)  # the next two asks of a question might have been 2 x (5.12 + 1.5) more
        assert 50 - 13.24 < asked * 5.22 <= 50 and "the budget of 50 ended the run" in capsys.readouterr().out
        assert main(command(tmp_path, server.url, *priced, "--budget", "50")) == 3 and len(server.calls) == asked
        assert main(command(tmp_path, server.url, *priced, "--budget", "500")) == 0 and len(server.calls) == 32
    with Ledger(tmp_path / "l.sqlite") as ledger:
        assert ledger.spent() == pytest.approx(32 * 5.22)


def test_a_lost_call_counts_at_its_worst(tmp_path):
    with Server(lambda call: say("late", wait_s=3.0) if call.number == 1 else judge(call)) as server:
        _, teacher, _ = ask(server, tmp_path, timeout_s=1.0, price_in=0.0, price_out=1e6, budget=1e6, max_tokens=50)
    assert teacher.budget.spent == 50 + 10


def test_no_budget_without_a_count_of_tokens(tmp_path):
    with Server(lambda call: judge(call, usage=None)) as server:
        _, _, stopped = ask(server, tmp_path, CRITERIA, RESPONSES, price_in=1.0, price_out=1.0, budget=100.0)
        assert "does not say how many tokens" in str(stopped) and len(server.calls) <= 5
        ask(server, tmp_path, CRITERIA, RESPONSES)
    with Ledger(tmp_path / "l.sqlite") as ledger:
        assert ledger.figures("m")["uncounted"] == 16


def test_dry_run_writes_nothing_and_tells_what_is_left(tmp_path, capsys, assets):
    with Server() as server:
        run = command(tmp_path, server.url, "--price-in", 1000, "--price-out", 1000, "--criteria-per-call", 3)
        before = sorted(os.listdir(tmp_path))
        assert main([*run, "--dry-run", "--processor", str(assets / "base")]) == 0
        out = capsys.readouterr().out
        assert sorted(os.listdir(tmp_path)) == before and not server.calls
        assert main(run) == 0 and len(server.calls) == 16
        capsys.readouterr()
        assert main([*run, "--dry-run"]) == 0
    assert out.splitlines()[1].split()[:3] == ["text", "32", "16"] and "cost: " in out and "processor of" in out
    out = capsys.readouterr().out
    assert out.splitlines()[1].split() == ["text", "0", "0", "0"] and "32 questions are answered already" in out


@pytest.mark.parametrize("per_call", [1, 3])
@pytest.mark.parametrize("mode", ["text", "image"])
def test_tokens_are_counted_as_the_processor_makes_them(mode, per_call, assets, tmp_path):
    """Against the processor's own count of whole prompts, images included."""
    paths = [tmp_path / f"{n}.png" for n in range(3)]
    for n, path in enumerate(paths):
        Image.new("RGB", (64 + 32 * n, 64)).save(path)
    processor, pairs = load_processor(assets / "base"), []
    for n in range(3):
        example = Example(f"e{n}", "What do the digits read?", CRITERIA, tuple(paths[: n + 1]))
        pairs.append((example, Rollout(f"r{n}", f"e{n}", f"The first is {n}. The second is 4.", "p")))
    stream = list(sheets(pairs, [mode], "m", per_call > 1))
    found = estimate(stream, None, TokenCounter(processor), per_call)
    whole = calls = 0
    for sheet in stream:
        for first in range(0, 4, per_call):
            texts = [criterion.text for criterion in CRITERIA[first : first + per_call]]
            chat = messages(sheet.example.question, sheet.rollout.response, texts, mode, sheet.images, per_call > 1)
            images = [Image.open(image) for image in sheet.images]
            if images:
                chat[1]["content"] = [{"type": "image"}] * len(images) + [chat[1]["content"][-1]]
            text = processor.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
            whole += len(processor(text=[text], images=images or None)["input_ids"][0])
            calls += 1
    assert found.calls[mode] == calls and found.verdicts[mode] == 12
    assert abs(found.prompt_tokens[mode] - whole) <= 2 * calls  # a token more or less where parts meet


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (["--teacher", "somewhere"], "no address of a server"),
        (["--teacher", "oracle"], "--model is for a teacher behind a server"),
        (["--mode", "picture"], "'picture' is not text, image, or text,image"),
        (["--mode", "text,text"], "is not text, image"),
        (["--budget", "5"], "a budget needs both prices"),
        (["--price-in", "-1"], "cannot be negative"),
        (["--criteria-per-call", "0"], "at least 1"),
        (["--max-in-flight", "0"], "above zero"),
        (["--timeout", "0"], "above zero"),
        (["--export", "v.csv"], "must end in .jsonl or .parquet"),
        (["--rollouts", "none.jsonl"], "there is no such file"),
        (["--dry-run", "--processor", "/nowhere"], "--processor /nowhere: it cannot be loaded"),
    ],
)
def test_bad_flags_are_one_line(more, named, tmp_path, capsys):
    assert main([*command(tmp_path, "http://127.0.0.1:1/v1"), *more]) == 2
    err = capsys.readouterr().err
    assert named in err and err.count("\n") == 1


@pytest.mark.parametrize("name", ["--model", "--ledger"])
def test_what_a_server_needs(name, tmp_path, capsys):
    run = command(tmp_path, "http://127.0.0.1:1/v1")
    at = run.index(name)
    assert main(run[:at] + run[at + 2 :]) == 2
    assert f"{name} is missing" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["examples.jsonl", "rollouts.parquet"])
@pytest.mark.parametrize("teacher", ["oracle", "http://127.0.0.1:1/v1"])
def test_a_table_that_is_read_is_not_written_over(name, teacher, tmp_path, capsys):
    run = command(tmp_path, teacher, "--export", tmp_path / "." / name)
    before = (tmp_path / name).read_bytes()
    assert main(run) == 2 and (tmp_path / name).read_bytes() == before
    assert "is read here and would be overwritten; give another --export" in capsys.readouterr().err
