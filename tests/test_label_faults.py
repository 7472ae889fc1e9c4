"""Every fault that a long run of labelling meets, counted on the server's side."""

import json
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest
from claimwise.distill.ledger import Ledger
from claimwise.scripts.cli import main
from claimwise.verifier.schema import Criterion
from claimwise.verifier.tables import read_verdicts
from labelling import CRITERIA, RESPONSES, TEXTS, ask, command, wrong_then
from servers import Held, Reply, Server, judge, on_a_tiny_disk, say, status, verdicts_of

FAULTS = {
    "429 without Retry-After": status(429, "slow down"),
    "429 with Retry-After": status(429, "slow down", {"Retry-After": "0.2"}),
    "500": status(500, "down"),
    "a hang": say("late", wait_s=3.0),
    "a reset connection": Reply(reset=True),
    "HTML instead of JSON": status(200, "<html>502</html>"),
    "a reply without end": Reply(body=b" " * 70_000_000),
    "a truncated reply": Reply(body=say("{}").body[:30]),
    "an unreadable answer": say("hm"),
    "truncated JSON": say('{"quote": "The first', finish="length"),
    "another language": say('{"quote": "", "verdict": "ja"}'),
    "a refusal": say(None, refusal="I cannot help with that."),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_one_fault_is_survived(fault, tmp_path):
    with Server(wrong_then(FAULTS[fault])) as server:
        rows, teacher, stopped = ask(server, tmp_path, CRITERIA, timeout_s=1.0 if fault == "a hang" else 10.0)
    assert stopped is None and [row.verdict for row in rows] == [True, False, True, False]
    assert len(server.calls) == 5 and not teacher.missing


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (say("hm"), "no JSON"),
        (say('{"quote": "The first', finish="length"), "cut off at the token limit"),
        (say('{"quote": "", "verdict": "ja"}'), "'ja', neither yes nor no"),
        (say(None, refusal="I cannot help with that."), "I cannot help with that."),
    ],
)
def test_what_cannot_be_read_twice_is_missing_with_its_reason(answer, reason, tmp_path):
    with Server(lambda call: answer) as server:
        rows, teacher, _ = ask(server, tmp_path)
        assert rows[0].verdict is None and reason in rows[0].error and rows[0].error.startswith("unreadable: ")
        assert teacher.missing == {"unreadable": 1}
        assert [call.body["temperature"] for call in server.calls] == [0.0, 0.7]
        ask(server, tmp_path)
        assert len(server.calls) == 2  # it was asked once more, and is not asked again


@pytest.mark.parametrize(
    ("text", "verdict", "span", "match"),
    [
        ('{"quote": "The first is 3.", "verdict": "YES"}', True, (0, 15), "exact"),
        ('```json\n{"verdict": "No", "quote": "the FIRST"}\n```', False, (0, 15), "casefold"),
        ('{"quote": "9 9 9 9", "verdict": "yes"}', True, None, "none"),  # not in the response
        ('{"quote": "", "verdict": "no"}', False, None, "none"),
    ],
)
def test_odd_answers_that_can_be_read(text, verdict, span, match, tmp_path):
    with Server(lambda call: say(text)) as server:
        (row,), _, _ = ask(server, tmp_path)
    assert (row.verdict, row.span, row.match, row.error, len(server.calls)) == (verdict, span, match, None, 1)


def several(change):
    """An honest judge of several criteria whose first list goes through `change`."""
    return lambda call: say(
        json.dumps({"verdicts": change(verdicts_of(call.question)) if call.number == 1 else verdicts_of(call.question)})
    )


@pytest.mark.parametrize(
    ("change", "asked_again"),
    [
        (lambda items: items[::-1], None),
        (lambda items: [*items, items[2]], None),  # one twice
        (lambda items: [*items, {**items[2], "verdict": "no"}], [TEXTS[2]]),  # one twice, contradicting itself
        (lambda items: items[:1] + items[2:], [TEXTS[1]]),
        (lambda items: [], TEXTS),
    ],
)
def test_several_criteria_in_one_call(change, asked_again, tmp_path):
    with Server(several(change)) as server:
        rows, _, _ = ask(server, tmp_path, CRITERIA, per_call=4)
    assert [row.verdict for row in rows] == [True, False, True, False]
    again = [[item["text"] for item in call.question["criteria"]] for call in server.calls[1:]]
    assert again == ([asked_again] if asked_again else [])
    with Ledger(tmp_path / "l.sqlite") as ledger:  # shares of tokens add up
        assert ledger.figures("m")["prompt_tokens"] == 100 * len(server.calls)


def test_a_question_that_does_not_fit_is_missing_and_the_rest_goes_on(tmp_path):
    def behave(call):
        long = call.question["criterion"] == TEXTS[1]
        return status(400, {"error": {"message": "maximum context length is 9"}}) if long else judge(call)

    with Server(behave) as server:
        rows, teacher, stopped = ask(server, tmp_path, CRITERIA)
        ask(server, tmp_path, CRITERIA)
    assert stopped is None and [row.verdict for row in rows] == [True, None, True, False]
    assert rows[1].error.startswith("context: HTTP 400") and teacher.missing == {"context": 1}
    assert len(server.calls) == 4


@pytest.mark.parametrize("code", [401, 404])
def test_a_wrong_key_or_model_costs_one_call(code, tmp_path, capsys):
    with Server(lambda call: status(code, {"error": {"message": "no"}})) as server:
        assert main(command(tmp_path, server.url, "--export", tmp_path / "v.jsonl")) == 2
    err = capsys.readouterr().err.splitlines()
    assert len(server.calls) == 1 and not (tmp_path / "v.jsonl").exists()
    assert (
        err[-1].startswith("claimwise label: ") and f"HTTP {code}" in err[-1] and "the same command goes on" in err[-1]
    )


def test_a_key_revoked_later_keeps_what_is_in_flight(tmp_path):
    def behave(call):
        return status(401, "") if call.number == 4 else judge(call, wait_s=0.2)

    with Server(behave) as server:
        rows, _, stopped = ask(server, tmp_path, CRITERIA, RESPONSES)
        assert "HTTP 401" in str(stopped) and len(server.calls) <= 5
        answered = sum(row.verdict is not None for row in rows)
        assert answered == len(server.calls) - 1  # the calls beside the refused one were paid for, and are kept
        assert [row.error for row in rows if row.verdict is None][-1] == "unasked: the ledger has no answer"


@pytest.mark.parametrize(
    ("responses", "told"), [(1, "the first call failed: HTTP 500"), (40, "8 calls in a row failed")]
)
def test_a_server_that_is_down_ends_the_run_and_the_next_goes_on(responses, told, tmp_path):
    texts = [f"The first is 3. {n}" for n in range(responses)]
    with Server(lambda call: status(500, "down")) as server:
        rows, _, stopped = ask(server, tmp_path, responses=texts)
        assert str(stopped).startswith(told) and "HTTP 500: 'down'" in str(stopped)
        assert str(stopped).endswith("Mend the server, then the same command goes on")
        assert len(server.calls) <= 3 * 12 and rows[0].error.startswith("server: HTTP 500")  # 8, and those in flight
        server.behave = judge
        rows, _, stopped = ask(server, tmp_path, responses=texts)
    assert stopped is None and all(row.verdict for row in rows)


def test_a_first_question_that_the_server_always_fails_on_holds_up_no_other(tmp_path):
    def behave(call):
        return status(500, "out of memory") if call.question["criterion"] == TEXTS[0] else judge(call)

    with Server(behave) as server:
        for calls in (3 + 3, 3):  # the second time there is nothing else to ask
            rows, teacher, stopped = ask(server, tmp_path, CRITERIA)
            assert stopped is None and teacher.missing == {"server": 1} and len(server.calls) == calls
            assert rows[0].error == "server: HTTP 500: 'out of memory'"
            assert [row.verdict for row in rows[1:]] == [False, True, False]
            server.calls.clear()


def test_a_server_that_dies_on_the_way_ends_the_run(tmp_path):
    with Server(lambda call: judge(call) if call.number < 20 else status(500, "down")) as server:
        _, teacher, stopped = ask(server, tmp_path, CRITERIA, [str(n) for n in range(100)])
    assert "8 calls in a row failed" in str(stopped) and teacher.asked < 40  # 8: twice the calls in flight


def test_a_refused_question_is_missing_and_three_refusals_at_first_end_the_run(tmp_path):
    with Server(lambda call: status(400, "bad image") if call.number == 2 else judge(call)) as server:
        rows, teacher, stopped = ask(server, tmp_path, CRITERIA)
    assert stopped is None and teacher.missing == {"refused": 1} and sum(row.verdict is None for row in rows) == 1
    with Server(lambda call: status(400, "bad parameter")) as server:
        _, _, stopped = ask(server, tmp_path, [Criterion("n", "new")], RESPONSES)
    assert "3 calls in a row failed" in str(stopped) and len(server.calls) == 3


def test_a_broken_image_is_missing_with_its_reason(tmp_path, capsys):
    (tmp_path / "broken.png").write_bytes(b"\x89PNG no more")
    with Server() as server:
        run = command(
            tmp_path, server.url, "--export", tmp_path / "v.jsonl", images=(tmp_path / "broken.png",), examples=1
        )
        run[run.index("--mode") + 1] = "image"
        assert main(run) == 0 and not server.calls
    rows = read_verdicts(tmp_path / "v.jsonl")
    assert all(row.verdict is None and row.error.startswith("image: ") for row in rows)
    assert "missing: image 16" in capsys.readouterr().out


def test_without_an_image_nothing_is_asked_in_image_mode(tmp_path, capsys):
    with Server() as server:
        run = command(tmp_path, server.url, "--export", tmp_path / "v.jsonl", examples=1)
        run[run.index("--mode") + 1] = "text,image"
        assert main([*run, "--dry-run"]) == 0
        planned = capsys.readouterr().out
        assert main(run) == 0 and len(server.calls) == 16
    assert planned.splitlines()[2].split() == ["image", "0", "0", "0"]
    missing = [row for row in read_verdicts(tmp_path / "v.jsonl") if row.verdict is None]
    assert len(missing) == 16 and {row.mode for row in missing} == {"image"}
    assert {row.error for row in missing} == {"image: the example has none; ask in text mode"}
    assert "missing: image 16" in capsys.readouterr().out


@pytest.mark.parametrize(("how", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
def test_killed_or_stopped_it_goes_on(how, code, tmp_path):
    """Everything is asked, and nothing twice but what was in flight, as the server sees it."""
    held = Held(judge, 40)
    with Server(held) as server:
        run = [sys.executable, "-m", "claimwise.scripts.cli"]
        run += command(tmp_path, server.url, "--max-in-flight", 8, "--export", tmp_path / "v.jsonl", examples=6)
        process = subprocess.Popen(run, stderr=subprocess.PIPE, text=True)
        while len(server.calls) < 48:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(how)
        told = process.communicate(timeout=120)[1]
        assert process.returncode == code and len(server.calls) == 48
        held.release()
        assert how == signal.SIGKILL or told.splitlines()[-1].endswith("the same command goes on from here")
        second = subprocess.run(run, capture_output=True, text=True)
        assert second.returncode == 0, second.stderr
    asked = Counter(json.dumps(call.question) for call in server.calls)
    assert len(asked) == 96 and len(server.calls) - 96 <= 8 and max(asked.values()) <= 2
    rows = read_verdicts(tmp_path / "v.jsonl")
    assert len(rows) == 96 and all(row.verdict is not None for row in rows)


def test_a_second_process_on_the_ledger_is_refused(tmp_path, capsys):
    with Server() as server, Ledger(tmp_path / "l.sqlite"):
        assert main(command(tmp_path, server.url)) == 2 and not server.calls
    assert capsys.readouterr().err.count("\n") == 1


def test_a_full_disk_ends_the_run_with_one_line_and_the_next_goes_on(tmp_path):
    """The ledger's disk fills up half-way; freed, the same command asks only for what could not be written."""
    disk = tmp_path / "disk"
    disk.mkdir()
    with Server(lambda call: judge(call) if call.number > 1 else judge(call, wait_s=0.1)) as server:
        run = [sys.executable, "-m", "claimwise.scripts.cli"]
        run += command(tmp_path, server.url, "--max-in-flight", "4", "--export", tmp_path / "v.jsonl", examples=5)
        run[run.index(str(tmp_path / "l.sqlite"))] = str(disk / "l.sqlite")
        script = 'head -c 700000 /dev/zero > "$0/more"; "$@"; echo "status $?"; rm "$0/room" "$0/more"; exec "$@"'
        done = on_a_tiny_disk(disk, "sh", "-c", script, disk, *run)
    assert done.returncode == 0, done.stderr
    assert "status 2" in done.stdout
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("claimwise label: ")]
    assert (
        "Traceback" not in done.stderr
        and "the ledger cannot be used (database or disk is full)" in line
        and "the same command goes on" in line
    )
    asked = Counter(json.dumps(call.question) for call in server.calls)
    assert len(asked) == 80 and len(server.calls) - 80 <= 4
    assert all(row.verdict is not None for row in read_verdicts(tmp_path / "v.jsonl"))
