"""The chat client against a local server that misbehaves: what is asked again, what stops, and who waits for whom."""

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from claimwise.verifier.chat import ChatClient, Gate
from claimwise.verifier.chat_errors import retry_after_s
from claimwise.verifier.crew import results_of
from servers import Reply, Server, say, status

HELLO = [{"role": "user", "content": "hello \ud800"}]  # half a surrogate pair can be sent too


def ask(server_or_url, count=1, params=None, **settings):
    """Asks at once `count` times; the answers or ChatErrors, and the client."""
    url = server_or_url.url if isinstance(server_or_url, Server) else server_or_url
    settings = {"backoff_s": 0.01, "timeout_s": 5.0, **settings}

    async def go():
        async with ChatClient(url, "m", **settings) as client:
            asks = (client.ask(HELLO, **(params or {})) for _ in range(count))
            return await asyncio.gather(*asks, return_exceptions=True), client

    return asyncio.run(go())


def in_turn(*replies):
    """The replies one after another, the last one for ever."""
    return lambda call: replies[min(call.number, len(replies)) - 1]


def test_an_answer(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", " sk-secret ")
    logprobs = [{"token": "hi", "logprob": -0.1}]
    with Server(in_turn(say("hi", usage=(12, 3), logprobs=logprobs, finish="length"))) as server:
        (answer,), _ = ask(server, params={"max_tokens": 7})
    assert (answer.text, answer.finish_reason, answer.prompt_tokens, answer.completion_tokens) == (
        "hi",
        "length",
        12,
        3,
    )
    assert answer.logprobs == logprobs and answer.lost == 0
    assert server.calls[0].body == {"model": "m", "messages": HELLO, "max_tokens": 7}
    assert server.calls[0].headers["authorization"] == "Bearer sk-secret"


def test_what_a_server_leaves_out_is_none(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with Server(in_turn(say(None, usage=None, refusal="I cannot."))) as server:
        (answer,), _ = ask(server)
    assert (answer.text, answer.prompt_tokens, answer.completion_tokens, answer.logprobs) == (
        "I cannot.",
        None,
        None,
        None,
    )
    assert "authorization" not in server.calls[0].headers


HTML = status(200, "<html><body>Bad gateway</body></html>", {"Content-Type": "text/html"})
OK = say("hi")
PASSING = {
    "429 without Retry-After": (status(429, {"error": {"message": "slow down"}}), "busy", 0),
    "500": (status(500, {"error": "out of order"}), "server", 0),
    "503": (status(503, "no healthy upstream"), "server", 0),
    "a hang": (say("hi", wait_s=3.0), "timeout", 1),
    "a reset": (Reply(reset=True), "connection", 1),
    "HTML": (HTML, "not_json", 1),
    "truncated JSON": (Reply(body=OK.body[:-9]), "not_json", 1),
    "a body cut off": (Reply(body=OK.body, cut_at=20), "connection", 1),
    "no choices": (status(200, {"choices": []}), "not_json", 1),
    "an error as 200": (status(200, {"error": {"message": "overloaded", "code": 529}}), "server", 1),
}


@pytest.mark.parametrize("fault", PASSING)
def test_what_may_pass_is_asked_again(fault):
    bad, kind, lost = PASSING[fault]
    with Server(in_turn(bad, bad, OK)) as server:
        (answer,), client = ask(server, timeout_s=1.0 if fault == "a hang" else 10.0)
    assert (answer.text, answer.lost, len(server.calls)) == ("hi", 2 * lost, 3)
    assert client.errors == {kind: 2}


@pytest.mark.parametrize("count", [2**70, -1, 1.5, "9", None])
def test_a_count_that_is_none_is_not_known(count):
    with Server(in_turn(say("hi", usage=(count, 3), finish={"reason": "stop"}))) as server:
        (answer,), _ = ask(server)
    assert (answer.text, answer.prompt_tokens, answer.completion_tokens, answer.finish_reason) == ("hi", None, 3, None)


def test_the_last_try_is_the_last():
    with Server(in_turn(status(500, "down"))) as server:
        (error,), client = ask(server, tries=4)
    assert (error.kind, len(server.calls), client.errors) == ("server", 4, {"server": 4})
    assert "HTTP 500: 'down'" in error.message


def test_retry_after_holds_everything_back():
    with Server(in_turn(OK, status(429, "", {"Retry-After": "1"}), OK)) as server:
        answers, client = ask(server, count=12, max_in_flight=1)
    assert all(answer.text == "hi" for answer in answers) and client.errors == {"busy": 1}
    gaps = [b.at - a.at for a, b in zip(server.calls[1:], server.calls[2:], strict=False)]
    assert gaps[0] >= 1.0 and len(server.calls) == 13


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("7", 7.0), ("0.5", 0.5), (None, 0.0), ("", 0.0), ("soon", 0.0), ("-3", 0.0)],
)
def test_retry_after_in_seconds(value, seconds):
    assert retry_after_s(value) == seconds


def test_retry_after_as_a_date():
    now = datetime.now(UTC)
    assert 25 < retry_after_s(format_datetime(now + timedelta(seconds=30), usegmt=True)) <= 30
    assert retry_after_s(format_datetime(now - timedelta(seconds=30), usegmt=True)) == 0.0


FINAL = {
    "wrong key": (401, {"error": {"message": "Incorrect API key provided: sk-secret"}}, "key"),
    "forbidden": (403, "", "key"),
    "no such model": (404, {"error": {"message": "The model `m` does not exist."}}, "model"),
    "unpaid": (402, "", "quota"),
    "used up": (429, {"error": {"message": "exceeded your quota", "code": "insufficient_quota"}}, "quota"),
    "moved": (301, "", "url"),
    "too long": (400, {"error": {"message": "This model's maximum context length is 4096 tokens."}}, "context"),
    "too long, newer": (
        400,
        {"error": {"message": "The prompt (length 9) is longer than the maximum model length"}},
        "context",
    ),
    "too long, elsewhere": (400, {"error": {"message": "The input token count (9) exceeds the maximum"}}, "context"),
    "too large": (413, {"message": "'max_tokens' is too large. This model's maximum context length is 4"}, "context"),
    "refused": (400, {"detail": "the image cannot be decoded"}, "refused"),
}


@pytest.mark.parametrize("fault", FINAL)
def test_what_cannot_pass_is_asked_once(fault, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    code, body, kind = FINAL[fault]
    with Server(in_turn(status(code, body))) as server:
        (error,), client = ask(server, params={"max_tokens": 5})
    assert (error.kind, len(server.calls), client.errors) == (kind, 1, {kind: 1})
    assert "sk-secret" not in str(error) and f"HTTP {code}" in str(error) and "\n" not in str(error)


def test_a_key_that_is_none_spoils_no_message(monkeypatch):
    """Servers at home take any key: struck out of a message, "x" would leave "conte***t length"."""
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    with Server(in_turn(status(400, {"error": "the maximum context length is 9"}))) as server:
        (error,), _ = ask(server)
    assert error.kind == "context" and "maximum context length" in str(error)


def test_a_wrong_key_costs_one_call():
    with Server(in_turn(status(401, "no"))) as server:
        errors, _ = ask(server, count=200)
    assert len(server.calls) == 1 and {error.kind for error in errors} == {"key"}


def test_the_first_call_goes_alone_and_the_rest_within_bounds():
    with Server(lambda call: say("hi", wait_s=0.3 if call.number == 1 else 0.05)) as server:
        answers, _ = ask(server, count=30, max_in_flight=7)
    assert len(answers) == len(server.calls) == 30 and 2 <= server.most <= 7
    assert server.calls[1].at - server.calls[0].at >= 0.3


def test_the_gate_halves_once_a_round_and_grows_by_one_a_round():
    async def go():
        gate = Gate(16)
        async with gate as sent:
            assert gate.limit == 1
            gate.answered()
        assert gate.limit == 16
        for _ in range(5):  # all sent before the first of them was turned away
            gate.busy(sent, 0.0)
        assert gate.limit == 8
        async with gate as sent:
            gate.busy(sent, 0.0)
        assert gate.limit == 4
        for _ in range(4):
            gate.answered()
        assert 4.8 < gate.limit < 5
        for _ in range(9):
            async with gate as sent:
                gate.busy(sent, 0.0)
        assert gate.limit == 1

    asyncio.run(go())


def test_a_rate_limited_server_is_served_to_the_end():
    """No more than three at a time are let in; the client finds that out and loses nothing."""

    def behave(call):
        return say("hi", wait_s=0.05) if server._now <= 3 else status(429, "")

    with Server(behave) as server:
        answers, client = ask(server, count=60, max_in_flight=16)
    assert Counter(type(answer).__name__ for answer in answers) == {"ChatAnswer": 60} and client.errors["busy"]


def refuse(name, instead=None):
    """A server that refuses one parameter by name."""

    def behave(call):
        if name in call.body:
            return status(
                400, {"error": {"message": f"Unsupported parameter: '{name}'. {instead or ''}", "param": name}}
            )
        return OK

    return behave


PARAMS = {
    "temperature": 0,
    "top_p": 1,
    "seed": 7,
    "max_tokens": 9,
    "response_format": {"type": "x"},
    "logprobs": True,
    "top_logprobs": 20,
}


@pytest.mark.parametrize(
    ("behave", "changed"),
    [
        (refuse("response_format"), {"response_format": None}),
        (refuse("temperature"), {"temperature": None}),
        (refuse("top_p", "temperature and top_p cannot both be given"), {"top_p": None}),
        (refuse("seed"), {"seed": None}),
        (refuse("logprobs"), {"logprobs": None, "top_logprobs": None}),
        (refuse("top_logprobs"), {"logprobs": None, "top_logprobs": None}),
        (
            refuse("max_tokens", "Use 'max_completion_tokens' instead."),
            {"max_tokens": None, "max_completion_tokens": 9},
        ),
        (
            lambda call: OK if call.body["top_logprobs"] <= 5 else status(422, {"detail": "top_logprobs is at most 5"}),
            {"top_logprobs": 5},
        ),
    ],
)
def test_a_refused_parameter_is_left_out_from_then_on(behave, changed):
    with Server(behave) as server:
        answers, client = ask(server, count=5, params=PARAMS)
    wanted = {name: value for name, value in {**PARAMS, **changed}.items() if value is not None}
    assert [answer.text for answer in answers] == ["hi"] * 5 and not client.errors
    sent = [{k: v for k, v in call.body.items() if k not in ("model", "messages")} for call in server.calls]
    assert sent[-5:] == [wanted] * 5 and len(sent) - 5 == len(client.adapted) in (1, 2)


def test_a_server_that_fails_on_everything_is_given_up():
    async def work(client, _):
        (error,) = await asyncio.gather(client.ask(HELLO), return_exceptions=True)
        return error.kind

    with Server(in_turn(status(500, "down"))) as server:
        client = ChatClient(server.url, "m", tries=3, backoff_s=0.01)
        assert list(results_of(client, iter(range(200)), work, 2)) == ["server"] * 200
        calls = len(server.calls)
    assert 64 * 3 <= calls <= 65 * 3  # twice as many questions as may be in flight, and perhaps one more


@pytest.mark.parametrize(("fault", "given_up"), [(Reply(reset=True), True), (status(500, "down"), False)])
def test_a_server_that_has_answered_is_given_up_where_nothing_is_heard_of_it(fault, given_up):
    """After five answers; a server that says 500 is there, and fails on these questions only."""

    async def work(client, _):
        (answer,) = await asyncio.gather(client.ask(HELLO), return_exceptions=True)
        return getattr(answer, "kind", "")

    with Server(in_turn(*[OK] * 5, fault)) as server:
        client = ChatClient(server.url, "m", max_in_flight=1, tries=2, backoff_s=0.01)
        kinds = Counter(results_of(client, iter(range(40)), work, 1))
        calls = len(server.calls)
    assert kinds == {"": 5, "connection" if given_up else "server": 35}
    assert (client.given_up is not None) is given_up
    assert calls == 5 + 2 * (8 if given_up else 35)


def test_a_first_question_that_the_server_fails_on_stops_no_other():
    down = status(500, "down")
    with Server(in_turn(down, down, down, OK)) as server:
        (error, *answers), client = ask(server, count=9, tries=3)
    assert error.kind == "server" and [answer.text for answer in answers] == ["hi"] * 8
    assert (len(server.calls), client.errors) == (11, {"server": 3})


def test_a_wrong_key_stops_all_behind_a_failure_too():
    with Server(in_turn(status(500, "down"), status(401, "no"))) as server:
        errors, _ = ask(server, count=50, tries=1, max_in_flight=1)
    assert [error.kind for error in errors] == ["server"] + ["key"] * 49 and len(server.calls) == 2


def test_nobody_there():
    with Server() as server:
        url = server.url
    errors, client = ask(url, count=50, tries=3)
    assert {(error.kind, error.lost) for error in errors} == {("connection", 0)} and url in errors[0].message
    assert client.errors == {"connection": 3}  # one question's tries


def test_a_body_of_many_images():
    with Server(in_turn(OK)) as server:
        (answer,), _ = ask(server, params={"image": "x" * 5_000_000})
    assert answer.text == "hi" and len(server.calls[0].body["image"]) == 5_000_000
