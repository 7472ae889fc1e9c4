"""`claimwise rubrics write` against local servers that answer well, badly, late or not at all."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest
from claimwise.distill.ledger import Ledger
from claimwise.distill.rubric_prompt import Bad, Rubric, messages, parse, user_text
from claimwise.scripts.cli import main
from claimwise.verifier.schema import Criterion, Example
from claimwise.verifier.tables import read_examples, write_examples
from PIL import Image
from servers import Held, Reply, Server, say, status

GOOD = [
    {"title": "Left digit", "text": "Names 3 as the left digit.", "dimension": "VF", "label": "ESSENTIAL", "weight": 5},
    {"title": "Sum", "text": "Adds 3 and 4.", "dimension": "RC", "label": "IMPORTANT", "weight": 3},
    {"title": "Swap", "text": "Claims that 3 is an 8.", "dimension": "VF", "label": "PITFALL", "weight": -2},
]  # fmt: skip
WRONG = {"title": "T", "text": "It is odd.", "dimension": "XX", "label": "IMPORTANT", "weight": 3}


def rubric(*items):
    return say(json.dumps({"criteria": list(items or GOOD)}), usage=(100, 50))


def author(call):
    """Another rubric for each question."""
    item = {**GOOD[0], "text": f"Names what {call.question['question']} asks for."}
    return rubric(item, *GOOD[1:])


def then_good(*first):
    return lambda call: first[call.number - 1] if call.number <= len(first) else author(call)


def table(folder, count=2, criteria=(), **more):
    """Examples without criteria are JSON Lines written by hand."""
    folder.mkdir(exist_ok=True)
    Image.new("RGB", (8, 8), (1, 2, 3)).save(folder / "p.png")
    rows = [
        {"example_id": f"e{n}", "question": f"Q{n}?", "images": ["p.png"], "reference": "R", **more}
        for n in range(count)
    ]
    if criteria:
        write_examples(folder / "e.jsonl", [Example(r["example_id"], r["question"], criteria) for r in rows])
    else:
        (folder / "e.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "e.jsonl"


def command(folder, url, *more, count=2, **kinds):
    fixed = ["--examples", table(folder, count, **kinds), "--model", "m", "--server", url, "--out", folder / "out"]
    return list(map(str, ["rubrics", "write", *fixed, *more]))


def rejected(folder):
    return [json.loads(line) for line in (folder / "out" / "rejected.jsonl").read_text().splitlines()]


def test_a_table_of_written_rubrics(tmp_path, capsys):
    with Server(author) as server:
        run = command(tmp_path, server.url, "--price-in", 2, "--price-out", 10, answer="7")
        assert main(run) == 0
        out = capsys.readouterr().out
        assert main(run) == 0 and len(server.calls) == 2  # nothing is asked twice
    first, second = read_examples(tmp_path / "out" / "examples.parquet")
    assert (first.example_id, first.question, first.reference, first.answer) == ("e0", "Q0?", "R", "7")
    assert first.criteria[0] == Criterion("c1", "Names what Q0? asks for.", "Left digit", "VF", "ESSENTIAL", 5.0)
    assert [c.id for c in second.criteria] == ["c1", "c2", "c3"] and second.criteria[2].is_pitfall
    assert first.images[0].parent == (tmp_path / "out" / "images").resolve()
    assert Image.open(first.images[0]).getpixel((0, 0)) == (1, 2, 3)
    body = server.calls[0].body
    assert body["messages"][1]["content"][0]["image_url"]["url"].startswith("data:image/png;base64,")
    assert server.calls[0].question == {"question": "Q0?", "reference": "R", "answer": "7"}
    kinds = body["response_format"]["json_schema"]["schema"]["properties"]["criteria"]["items"]
    assert kinds["required"] == ["title", "text", "dimension", "label", "weight"] and body["temperature"] == 0
    assert "2 rubrics of m, 0 unreadable" in out and f"{(200 * 2 + 100 * 10) / 1e6:g} spent" in out
    assert "of 6 criteria have a lint finding: run `claimwise rubrics lint" in out.splitlines()[-1]
    assert "replaced" not in out and not rejected(tmp_path)


def test_the_closing_line_counts_what_the_lint_finds(tmp_path, capsys):
    sound, outside = {**GOOD[0]}, {**GOOD[1], "text": "Adds 3 and 4 as in step 2 above."}
    with Server(lambda call: rubric(sound, outside)) as server:
        assert main(command(tmp_path, server.url, count=1)) == 0
    told = capsys.readouterr().out.splitlines()[-1]
    assert told.startswith("1 of 2 criteria have a lint finding")
    assert main(["rubrics", "lint", str(tmp_path / "out" / "examples.parquet"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["faulty"] == 1


def test_own_criteria_are_replaced_and_the_command_says_so(tmp_path, capsys):
    old = (Criterion("o", "An old one."),)
    with Server(author) as server:
        assert main(command(tmp_path, server.url, criteria=old)) == 0
    out = capsys.readouterr().out
    assert f"replaced: the 2 criteria of {tmp_path / 'e.jsonl'}, which stays as it is" in out
    assert "2 examples have neither reference nor answer" in out
    assert all(len(e.criteria) == 3 for e in read_examples(tmp_path / "out" / "examples.parquet"))
    assert read_examples(tmp_path / "e.jsonl")[0].criteria == old


@pytest.mark.parametrize(
    ("text", "finish"),
    [
        ("Here it is:\n```json\n{}\n```\nDone.".replace("{}", json.dumps({"criteria": GOOD})), "stop"),
        ('<think>{"criteria": []} perhaps</think>' + json.dumps({"Criteria": GOOD}), "stop"),
        (json.dumps({"criteria": GOOD}, indent=2) + "\nAnd so", "length"),
    ],
)
def test_odd_answers_that_can_be_read(text, finish, tmp_path):
    with Server(lambda call: say(text, finish=finish)) as server:
        assert main(command(tmp_path, server.url, count=1)) == 0 and len(server.calls) == 1
    (example,) = read_examples(tmp_path / "out" / "examples.parquet")
    assert [c.text for c in example.criteria] == [item["text"] for item in GOOD]


FAULTS = [
    ({"label": "URGENT"}, "label is 'URGENT'; it must be one of ESSENTIAL, IMPORTANT, OPTIONAL, PITFALL"),
    ({"dimension": "XX"}, "dimension is 'XX'; it must be one of VF, RC, IF"),
    ({"text": " "}, "text is ''; it must be text"),
    ({"title": None}, "title is missing"),
    ({"weight": "high"}, "weight is 'high'; it must be a number but 0"),
    ({"weight": True}, "weight is 'True'"),
    ({"weight": 10**400}, "it must be a number but 0"),
    ({"weight": -3}, "weight -3 does not go with IMPORTANT"),
    ({"label": "PITFALL"}, "weight 3 does not go with PITFALL"),
]


@pytest.mark.parametrize(("change", "reason"), FAULTS)
def test_a_criterion_that_fails_the_schema_is_told_why(change, reason):
    found = parse(json.dumps({"criteria": [GOOD[0], {**GOOD[1], **change}]}))
    assert len(found.good) == 1 and reason in found.bad[0].reason


def test_a_fault_then_good_is_asked_again_once_with_the_reason(tmp_path):
    with Server(then_good(rubric(GOOD[0], WRONG), rubric(GOOD[1]))) as server:
        assert main(command(tmp_path, server.url, count=1)) == 0 and len(server.calls) == 2
    again = server.calls[1].body
    assert [m["role"] for m in again["messages"]] == ["system", "user", "assistant", "user"]
    said = again["messages"][3]["content"]
    assert "dimension is 'XX'; it must be one of VF, RC, IF" in said and "It is odd." in said and "only these" in said
    assert GOOD[0]["text"] not in said and again["temperature"] == 0.7
    (example,) = read_examples(tmp_path / "out" / "examples.parquet")
    assert [c.text for c in example.criteria] == [GOOD[0]["text"], GOOD[1]["text"]] and not rejected(tmp_path)


def test_a_fault_twice_is_rejected_by_name(tmp_path, capsys):
    with Server(lambda call: rubric(GOOD[0], WRONG) if call.number == 1 else rubric(WRONG)) as server:
        run = command(tmp_path, server.url, count=1)
        assert main(run) == 0 and len(server.calls) == 2
        assert main(run) == 0 and len(server.calls) == 2
    (row,) = rejected(tmp_path)
    assert row["example_id"] == "e0" and row["kind"] == "refused" and row["criterion"] == WRONG
    assert row["reason"].startswith("dimension is 'XX'")
    assert "rejected: 1 criteria, 0 examples" in capsys.readouterr().out


def test_an_example_without_any_good_criterion_is_rejected_and_the_others_stay(tmp_path, capsys):
    with Server(lambda call: say("I see.") if "Q0" in str(call.body) else author(call)) as server:
        assert main(command(tmp_path, server.url)) == 0 and len(server.calls) == 3
    (example,) = read_examples(tmp_path / "out" / "examples.parquet")
    rows = rejected(tmp_path)
    assert example.example_id == "e1" and {row["example_id"] for row in rows} == {"e0"}
    assert "no JSON with criteria in the answer" in rows[-1]["reason"] and rows[-1]["criterion"] is None
    assert "1 of 2 examples" in capsys.readouterr().out


def test_no_rubric_at_all_is_one_line_and_no_table(tmp_path, capsys):
    with Server(lambda call: say(None, refusal="I cannot.")) as server:
        assert main(command(tmp_path, server.url)) == 2
    assert "no example has a rubric" in capsys.readouterr().err
    assert not (tmp_path / "out" / "examples.parquet").exists() and len(rejected(tmp_path)) >= 2


ONCE = {
    "429": status(429, "slow down", {"Retry-After": "0.2"}),
    "500": status(500, "down"),
    "a hang": say("late", wait_s=3.0),
    "a reset connection": Reply(reset=True),
    "HTML": status(200, "<html>502</html>"),
    "a refusal": say(None, refusal="I cannot."),
    "prose": say("hm"),
    "cut off": say(json.dumps({"criteria": GOOD})[:250], finish="length"),
}


@pytest.mark.parametrize("fault", ONCE)
def test_one_fault_is_survived(fault, tmp_path):
    with Server(then_good(ONCE[fault], rubric())) as server:
        assert main(command(tmp_path, server.url, "--timeout", "1", count=1)) == 0 and len(server.calls) == 2
    (example,) = read_examples(tmp_path / "out" / "examples.parquet")
    assert [c.text for c in example.criteria] == [item["text"] for item in GOOD] and not rejected(tmp_path)


def test_a_wrong_key_costs_one_call_and_the_same_command_goes_on(tmp_path, capsys):
    with Server(lambda call: status(401, {"error": {"message": "no"}})) as server:
        run = command(tmp_path, server.url, count=9)
        assert main(run) == 2 and len(server.calls) == 1 and not (tmp_path / "out" / "examples.parquet").exists()
        err = capsys.readouterr().err.splitlines()[-1]
        assert err.startswith("claimwise rubrics: ") and "HTTP 401" in err and "the same command goes on" in err
        server.behave = author
        assert main(run) == 0 and len(server.calls) == 10


@pytest.mark.slow
@pytest.mark.parametrize(("how", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
def test_killed_or_stopped_it_goes_on(how, code, tmp_path):
    """Everything is asked, and nothing twice but what was in flight, as the server sees it."""
    held = Held(author, 20)
    with Server(held) as server:
        run = [sys.executable, "-m", "claimwise.scripts.cli"]
        run += command(tmp_path, server.url, "--max-in-flight", 4, count=60)
        process = subprocess.Popen(run, stderr=subprocess.PIPE, text=True)
        while len(server.calls) < 24:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(how)
        process.communicate(timeout=120)
        assert process.returncode == code and len(server.calls) == 24
        held.release()
        assert not (tmp_path / "out" / "examples.parquet").exists()
        second = subprocess.run(run, capture_output=True, text=True)
        assert second.returncode == 0, second.stderr
    asked = Counter(call.question["question"] for call in server.calls)
    assert len(asked) == 60 and len(server.calls) - 60 <= 4 and max(asked.values()) <= 2
    assert len(read_examples(tmp_path / "out" / "examples.parquet")) == 60


def test_the_budget_is_never_exceeded_and_a_larger_one_goes_on(tmp_path, capsys):
    priced = ["--price-in", "0", "--price-out", "1000000", "--max-tokens", "50", "--max-in-flight", "4"]
    with Server(author) as server:  # 50 a call, held at 100
        assert main(command(tmp_path, server.url, *priced, "--budget", "500", count=20)) == 3
        assert len(server.calls) == 9 and "the budget of 500 ended the run" in capsys.readouterr().out
        assert not (tmp_path / "out" / "examples.parquet").exists()
        assert main(command(tmp_path, server.url, *priced, "--budget", "5000", count=20)) == 0
        assert len(server.calls) == 20
    with Ledger(tmp_path / "out" / "ledger.sqlite") as ledger:
        assert ledger.spent() == 20 * 50


def test_a_second_process_on_the_ledger_is_refused(tmp_path, capsys):
    with Server(author) as server, Ledger(tmp_path / "l.sqlite"):
        assert main(command(tmp_path, server.url, "--ledger", tmp_path / "l.sqlite")) == 2 and not server.calls
    err = capsys.readouterr().err
    assert "another process is writing this ledger" in err and err.count("\n") == 1


def test_dry_run_writes_nothing_and_tells_what_is_left(tmp_path, capsys, assets):
    with Server(author) as server:
        run = command(tmp_path, server.url, "--price-in", 1000, "--price-out", 1000)
        before = sorted(os.listdir(tmp_path))
        assert main([*run, "--dry-run", "--processor", str(assets / "base")]) == 0
        out = capsys.readouterr().out
        assert sorted(os.listdir(tmp_path)) == before and not server.calls
        assert out.startswith("2 calls, ") and "cost: " in out and "1,400 completion tokens (700 a rubric" in out
        assert main(run) == 0
        capsys.readouterr()
        assert main([*run, "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("0 calls, ") and "2 examples are answered already" in out and "50 a rubric, as in the" in out


def test_tokens_are_counted_as_the_processor_makes_them(assets, tmp_path):
    from claimwise.distill.estimate import TokenCounter
    from claimwise.verifier.processor import load_processor

    processor, image = load_processor(assets / "base"), Image.new("RGB", (64, 96))
    image.save(tmp_path / "i.png")
    chat = messages(user_text("What is it?", None, "7"), [])
    parts = [{"type": "image"}, {"type": "text", "text": chat[1]["content"]}]
    text = processor.apply_chat_template([chat[0], {"role": "user", "content": parts}], add_generation_prompt=True)
    whole = len(processor(text=[text], images=[image])["input_ids"][0])
    assert abs(TokenCounter(processor).chat(chat, [tmp_path / "i.png"]) - whole) <= 1


def test_another_table_is_not_overwritten(tmp_path, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "examples.parquet").write_text("mine")
    with Server(author) as server:
        assert main(command(tmp_path, server.url)) == 2 and not server.calls
        (tmp_path / "out" / "examples.parquet").unlink()
        run = command(tmp_path, server.url)
        assert main(run) == 0
        assert main(command(tmp_path, server.url, count=3)) == 2 and len(server.calls) == 2  # another table now
    err = capsys.readouterr().err.splitlines()
    assert "is not empty and no table of this command" in err[0] and "holds a different run: examples" in err[-1]


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (["--server", "somewhere"], "no address of a server"),
        (["--budget", "5"], "a budget needs both prices"),
        (["--max-tokens", "0"], "at least 1"),
        (["--examples", "none.jsonl"], "there is no such file"),
        (["--out", "/dev/null"], "is a file; give the name of a folder"),
        (["--nonsense"], "unrecognized arguments: --nonsense"),
    ],
)
def test_bad_flags_are_one_line(more, named, tmp_path, capsys):
    assert main([*command(tmp_path, "http://127.0.0.1:1/v1"), *more]) == 2
    err = capsys.readouterr().err
    assert named in err and err.count("\n") == 1


def test_a_broken_image_is_named_and_the_rest_is_written(tmp_path):
    run = command(tmp_path, "http://127.0.0.1:1/v1")
    lines = (tmp_path / "e.jsonl").read_text().splitlines()
    Image.effect_noise((64, 64), 50).save(tmp_path / "whole.jpg")
    (tmp_path / "broken.jpg").write_bytes((tmp_path / "whole.jpg").read_bytes()[:1500])  # its header is whole
    (tmp_path / "none.png").write_bytes(b"no image")
    rows = [json.loads(lines[0]), json.loads(lines[1]), {**json.loads(lines[1]), "example_id": "e2"}]
    rows[1]["images"], rows[2]["images"] = ["broken.jpg"], ["none.png"]
    (tmp_path / "e.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with Server(author) as server:
        run[run.index("--server") + 1] = server.url
        assert main(run) == 0
    assert [e.example_id for e in read_examples(tmp_path / "out" / "examples.parquet")] == ["e0"]
    assert {row["example_id"]: row["reason"].partition(":")[0] for row in rejected(tmp_path)} == {
        "e2": "image", "e1": "image 1",
    }  # fmt: skip


def test_the_second_answer_mends_the_first():
    """By hand: of three bad ones, one new good, one bad again, one that never came; what is repeated is not new."""
    bad = [Bad({"n": n}, f"reason {n}") for n in range(3)]
    later = Rubric([GOOD[0], GOOD[1]], [Bad({"n": 9}, "still")])
    both = Rubric([GOOD[0]], bad).mended_by(later)
    assert both.good == [GOOD[0], GOOD[1]]
    assert both.bad == [Bad({"n": 9}, "still"), Bad({"n": 2}, "reason 2; asked again, nothing came")]
