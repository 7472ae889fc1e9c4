"""Any chat model as a judge, against a local server on a real socket."""

from __future__ import annotations

import dataclasses

import pytest
from claimwise.verifier import Criterion, Example, InputError, Rollout, load_judge
from PIL import Image
from servers import Call, Server, judge, say, status

QUICK = {"backoff_s": 0.01, "tries": 2}
CRITERIA = (Criterion("c0", "It is 3.", dimension="VF"), Criterion("c1", "It is 4.", dimension="VF"))


@pytest.fixture
def pairs():
    example = Example("e", "Which?", CRITERIA, (Image.new("RGB", (8, 8), (9, 9, 9)),))
    return [
        (example, Rollout(f"r{n}", "e", text, "p")) for n, text in enumerate(["Well. It is 3.", "It is 4. <|im_end|>"])
    ]


def test_the_same_table_as_from_any_judge(pairs):
    with Server(judge) as server:
        quoting = load_judge(None, "image", server=server.url, model="big", **QUICK)
        verdicts = quoting.judge(pairs)
        assert [(v.key, v.verdict, v.span) for v in verdicts] == [
            (("r0", "c0"), True, (6, 14)),
            (("r0", "c1"), False, None),
            (("r1", "c0"), False, None),
            (("r1", "c1"), True, (0, 8)),
        ]
        assert {(v.judge, v.mode, v.dimension) for v in verdicts} == {("big", "image", "VF")}
        assert all(call.body["messages"][1]["content"][0]["type"] == "image_url" for call in server.calls)
        assert "<|im_end|>" not in str([call.body for call in server.calls])
        assert [v.verdict for v in quoting.judge(pairs)] == [True, False, False, True] and len(server.calls) == 4
        assert quoting.repeats == 4  # from memory


@pytest.mark.parametrize("given", [iter, tuple, lambda pairs: zip(*zip(*pairs, strict=True), strict=True)])
def test_items_come_in_whatever_can_be_gone_through(pairs, given):
    with Server(judge) as server:
        quoting = load_judge(None, "image", server=server.url, model="big", **QUICK)
        assert [v.verdict for v in quoting.judge(given(pairs))] == [True, False, False, True]
        assert [len(row) for row in quoting.judge_each(given(pairs))] == [2, 2]


def test_in_text_mode_nobody_looks(pairs):
    bare = [(dataclasses.replace(example, images=()), rollout) for example, rollout in pairs]
    with Server(judge) as server:
        assert len(load_judge(None, "text", server=server.url, model="big", **QUICK).judge(bare)) == 4
        assert all(isinstance(call.body["messages"][1]["content"], str) for call in server.calls)
        with pytest.raises(InputError, match="has no image; judge it in text mode"):
            load_judge(None, "image", server=server.url, model="big", **QUICK).judge(bare)


def test_what_brings_no_answer_is_missing_and_asked_again(pairs):
    down = {"now": True}

    def behave(call: Call):
        if not down["now"] or call.number == 1:
            return judge(call)
        return status(500, "down") if call.question["criterion"] == "It is 3." else say("no idea")

    with Server(behave) as server:
        quoting = load_judge(None, "image", server=server.url, model="big", max_in_flight=1, **QUICK)
        verdicts = quoting.judge(pairs)
        assert [v.verdict for v in verdicts] == [True, None, None, None]
        assert [str(v.error).partition(":")[0] for v in verdicts[1:]] == ["unreadable", "server", "unreadable"]
        down["now"] = False
        assert [v.verdict for v in quoting.judge(pairs)] == [True, False, False, True]


def test_a_question_at_the_front_that_breaks_the_server_is_missing_alone(pairs):
    def behave(call: Call):
        bad = call.question["criterion"] == "It is 3." and "Well." in call.question["response"]
        return status(500, "out of memory") if bad else judge(call)

    with Server(behave) as server:
        quoting = load_judge(None, "image", server=server.url, model="big", **QUICK)
        for calls in (2 + 3, 2 + 3 + 2):  # from the second call on, the others are known
            verdicts = quoting.judge(pairs)
            assert [v.verdict for v in verdicts] == [None, False, False, True] and len(server.calls) == calls
            assert str(verdicts[0].error).startswith("server: HTTP 500")


def test_what_it_refuses(pairs):
    with Server(lambda call: status(401, {"error": {"message": "bad key"}})) as server:
        with pytest.raises(InputError, match="refuses the key"):
            load_judge(None, server=server.url, model="big", **QUICK).judge(pairs)
        assert len(server.calls) == 1
    with pytest.raises(InputError, match="give its address and the model's name"):
        load_judge(None, server="http://localhost:1/v1")
    with pytest.raises(InputError, match="is no address of a server"):
        load_judge(None, server="localhost", model="big")


@pytest.mark.parametrize("length", [0, -1, 0.5, float("nan"), float("inf"), "512", None])
def test_an_answer_has_a_length(length):
    with pytest.raises(
        InputError, match=r"max_tokens is .*; the length of an answer must be a whole number above zero"
    ):
        load_judge(None, server="http://localhost:1/v1", model="big", max_tokens=length)
