"""Where a chat server is: addresses, users, proxies."""

import base64
import json

import pytest
from claimwise.verifier.chat import ChatClient
from claimwise.verifier.chat_errors import ChatError, error_of_status
from claimwise.verifier.errors import InputError
from servers import Server, say, status
from test_chat import ask, in_turn

OK = say("hi")


@pytest.mark.parametrize(
    "url",
    [
        "localhost:8000",
        "",
        "ftp://x/v1",
        "http://",
        "http://[x/v1",
        "file:///etc/passwd",
        "http://h..x/v1",
        "http://" + "h" * 64,
    ],
)
def test_no_address(url):
    with pytest.raises(InputError, match="no address of a server"):
        ChatClient(url, "m")


def test_a_whole_address_is_taken_as_it_is():
    assert ChatClient("http://h/v1/", "m").url == ChatClient("http://h/v1/chat/completions", "m").url


def test_a_hint_where_the_version_is_missing():
    assert "end in /v1" in error_of_status(404, {}, b"", "http://h/chat/completions").message
    assert (
        "end in /v1" not in error_of_status(404, {}, json.dumps({"message": "x"}).encode(), "http://h/v1/chat").message
    )
    assert isinstance(error_of_status(418, {}, b"", "http://h"), ChatError)


def test_a_query_stays_behind_the_path():
    client = ChatClient(" https://h:8/openai/v1/?api-version=2 ", "m")
    assert client.url == "https://h:8/openai/v1/chat/completions?api-version=2"


def test_a_user_in_the_address_is_sent_and_never_told(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with Server(in_turn(status(401, "no"))) as server:
        address = server.url.replace("http://", "http://ann:p%40ss@")
        (error,), _ = ask(address)
    sent = server.calls[0].headers["authorization"].removeprefix("Basic ")
    assert base64.b64decode(sent) == b"ann:p@ss" and "ss@" not in str(error)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    with pytest.raises(InputError, match="comes with a user, and OPENAI_API_KEY with a key") as refused:
        ChatClient(address, "m")
    assert "p%40ss" not in str(refused.value)


def test_a_proxy_that_is_none_ends_the_run_at_once(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://[far")
    (error,), client = ask("http://far.invalid/v1", tries=5)
    assert error.kind == "url" and "http://far.invalid/v1/chat/completions cannot be asked" in str(error)
    assert client.errors == {"url": 1} and client.given_up is error


def test_a_proxy_that_the_environment_names(monkeypatch):
    with Server(in_turn(OK)) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url.removesuffix("/v1"))
        (answer,), _ = ask("http://far.invalid/v1")
        monkeypatch.setenv("no_proxy", "far.invalid")
        (error,), _ = ask("http://far.invalid/v1", tries=1)
    assert answer.text == "hi" and error.kind == "connection" and len(proxy.calls) == 1
