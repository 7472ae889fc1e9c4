"""claimwise serve up to vLLM: its command line, what it refuses, and that nothing is left, however it ends."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from claimwise.scripts.cli import main
from claimwise.scripts.commands import serve
from claimwise.scripts.commands.serve import address_of, free_port
from claimwise.verifier.errors import InputError
from safetensors.torch import load_file, save_file

# Stands in for a Python that has vLLM: never serves, and starts a child as vLLM does.
STUB = """#!/bin/sh
case $1 in -c) exit 0;; esac
echo "$@" > {folder}/flags
{sleep} & echo $! > {folder}/child
wait
"""
# Another: names its models, and answers no question.
HANGING = """#!{python}
import http.server, json, pathlib, sys, time
if sys.argv[1] == "-c":
    sys.exit()
def after(flag):
    return sys.argv[sys.argv.index(flag) + 1]
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        name, folder = after("--lora-modules").split("=")
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({{"data": [{{"id": name, "parent": "base", "root": folder}}]}}).encode())
    def do_POST(self):
        pathlib.Path("{folder}/asked").touch()
        time.sleep(60)
http.server.ThreadingHTTPServer(("127.0.0.1", int(after("--port"))), Handler).serve_forever()
"""
SLOW_TO_END = "trap 'sleep 1; exit' TERM; sleep 60"


def stub(folder: Path, sleep: str = "sleep 60", text: str = STUB) -> Path:
    path = folder / "python"
    path.write_text(text.format(folder=folder, sleep=sleep, python=sys.executable))
    path.chmod(0o755)
    return path


def half(adapter: Path, folder: Path) -> Path:
    """A copy of the shipped verifier with the weights of its first layer only, of four."""
    shutil.copytree(adapter, folder)
    card = json.loads((folder / "verifier.json").read_text())
    (folder / "verifier.json").write_text(json.dumps({**card, "base": str(adapter.parent / "base")}))
    weights = load_file(folder / "adapter_model.safetensors")
    save_file({k: v for k, v in weights.items() if "layers.0." in k}, folder / "adapter_model.safetensors")
    return folder


def flags(argv: list[str], capsys) -> list[str]:
    assert main(["serve", "--dry-run", *argv]) == 0
    return capsys.readouterr().out.split()


def test_the_command_line(assets, capsys):
    adapter = str(assets / "verifier")
    said = " ".join(
        flags(["--adapter", adapter, "--port", "8123", "--device", "cpu", "--", "--max-model-len", "99"], capsys)
    )
    for part in (
        "TORCHDYNAMO_DISABLE=1 ",
        f"{sys.executable} -m vllm.entrypoints.openai.api_server --model {assets / 'base'} --served-model-name base ",
        f"--lora-modules verifier-image={adapter} ",
        "--dtype float32 ",
        "--enable-prefix-caching --enable-lora --max-lora-rank 16 --max-loras 1 --enforce-eager --block-size 32 ",
        "--enable-scale-out ",
        "--host 127.0.0.1 --port 8123 --max-model-len 99",
    ):
        assert part in said
    on_gpu = flags(["--adapter", adapter, "--device", "cuda", "--python", "/opt/python"], capsys)
    assert "/opt/python" in on_gpu and "--enforce-eager" not in on_gpu and "--enable-lora" in on_gpu


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        ([], "vLLM is not installed for"),
        (["--python", "/no/python"], "--python /no/python cannot be run"),
        (["--base", "no/such-base", "--dry-run"], "the base model 'no/such-base' cannot be loaded: "),
        (["--base", "{folder}", "--dry-run"], "the base model '{folder}' cannot be loaded: "),
        (["--base", "{folder}", "--python", "{stub}"], "{folder} holds no safetensors file"),
        (["--adapter", "{half}", "--python", "{stub}"], "21 of the 28 modules that its adapter_config.json names have"),
        (["--adapter", "no-such"], "there is no adapter folder no-such"),
        (["--python", "{stub}", "--port", "{taken}"], "cannot listen on 127.0.0.1:{taken}"),
        (
            ["--python", "{stub}", "--port", "0", "--wait", "1"],
            "vLLM does not serve after 1 s; give it longer",
        ),
        (["--python", "{failing}", "--port", "0"], "vLLM ended with status 0 before it served"),
        (["--python", "{stub}", "--host", "no.such.invalid"], "cannot listen on no.such.invalid:8000"),
        (["--python", "{stub}", "--port", "99999"], "cannot listen on 127.0.0.1:99999"),
    ],
)
def test_what_it_refuses_is_one_line(assets, tmp_path, capsys, monkeypatch, argv, told):
    monkeypatch.setattr("claimwise.scripts.commands.serve.find_spec", lambda name: None)
    (tmp_path / "failing").mkdir()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        names = {"stub": stub(tmp_path), "failing": stub(tmp_path / "failing", "true"), "taken": taken.getsockname()[1]}
        names |= {"folder": tmp_path / "failing", "half": half(assets / "verifier", tmp_path / "half")}
        argv = ["serve", "--adapter", str(assets / "verifier"), *(part.format(**names) for part in argv)]
        assert main(argv) == 2
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if line.startswith("claimwise serve: ")]
    assert len(lines) == 1 and told.format(**names) in lines[0] and not out
    started = "does not serve" in told or "ended with" in told
    assert [f.exists() for f in (tmp_path / "flags", tmp_path / "failing/flags")].count(True) == started
    assert not _alive(tmp_path)


def test_processes_with_one_seed_get_ports_of_their_own():
    """A trainer seeds `random`; two that did would else meet at one port."""
    ports = set()
    for _ in range(3):
        random.seed(42)
        ports.add(free_port("127.0.0.1", 0))
    assert len(ports) > 1


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "::1", "::"])
def test_a_server_on_any_address_is_reached_from_this_machine(host):
    try:
        port = free_port(host, 0)
    except InputError:
        pytest.skip(f"this machine has no {host}")
    assert 10_000 <= port < 32_768  # not one that a connection out may be given while vLLM loads
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family) as server:
        url = urlsplit(address_of(host, port))
        with socket.create_connection((url.hostname, url.port), timeout=5):
            assert server.accept()
    assert url.path == "/v1" and url.hostname not in ("0.0.0.0", "::")


def _alive(folder: Path) -> bool:
    """Whether the stub's child runs."""
    file = folder / "child"
    if not file.exists():
        return False
    state = subprocess.run(["ps", "-o", "stat=", "-p", file.read_text().strip()], capture_output=True, text=True).stdout
    return bool(state.strip()) and not state.startswith("Z")


def heard() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup themselves


def started(assets: Path, folder: Path, python: Path, port: str = "0") -> subprocess.Popen:
    """The command in a process of its own, which keeps its temporary files in the folder."""
    (folder / "tmp").mkdir()
    argv = [sys.executable, "-m", "claimwise.scripts.cli", "serve", "--adapter", str(assets / "verifier")]
    argv += ["--device", "cpu", "--python", str(python), "--port", port]
    environment = {**os.environ, "TMPDIR": str(folder / "tmp")}
    return subprocess.Popen(argv, env=environment, stderr=subprocess.PIPE, text=True, preexec_fn=heard)


def until(met) -> None:
    deadline = time.monotonic() + 120
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def handlers():
    before = {number: signal.getsignal(number) for number in serve.STOPS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def nothing_left(folder: Path) -> bool:
    """Neither a process nor a temporary folder; torch keeps one of its own."""
    return not _alive(folder) and not list((folder / "tmp").glob("tmp*"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGKILL", "all"])
def test_it_stops_with_all_that_it_started(assets, tmp_path, name):
    storm = [signal.SIGHUP, signal.SIGTERM, signal.SIGINT] * 40
    process = started(assets, tmp_path, stub(tmp_path, SLOW_TO_END))
    until(lambda: _alive(tmp_path))
    assert list((tmp_path / "tmp").glob("tmp*"))
    for number in storm if name == "all" else [getattr(signal, name)]:
        process.send_signal(number)
        time.sleep(0.01)
    _, said = process.communicate(timeout=60)
    if name == "SIGKILL":
        until(lambda: nothing_left(tmp_path))
    else:
        assert process.returncode == 0 and said.count("claimwise serve: stopped\n") == 1 and "Traceback" not in said
        assert nothing_left(tmp_path)
    assert "--lora-modules" in (tmp_path / "flags").read_text()


@pytest.mark.parametrize("stage", ["free_port", "TemporaryDirectory", "command_line", "Popen", "_wait", "_end"])
def test_stop_signals_at_any_stage_are_one_stop(assets, tmp_path, capfd, monkeypatch, handlers, stage):
    """Two that come at once, before and after a stage's work."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    owner = subprocess if stage == "Popen" else serve
    work = getattr(owner, stage)

    def interrupted(*args, **more):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        done = work(*args, **more)
        signal.raise_signal(signal.SIGINT)
        return done

    argv = ["serve", "--adapter", str(assets / "verifier"), "--port", "0", "--wait", "1"]
    monkeypatch.setattr(serve, "_require_vllm", lambda python: None)  # that is no stage: it runs a process as well
    monkeypatch.setattr(owner, stage, interrupted)
    status = main([*argv, "--python", str(stub(tmp_path))])
    said = capfd.readouterr().err
    monkeypatch.undo()
    told = "vLLM does not serve after 1 s" if stage == "_end" else "claimwise serve: stopped\n"  # it ends already
    assert status == (2 if stage == "_end" else 0) and said.count(told) == 1 and said.count("claimwise serve: ") == 1
    assert nothing_left(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_it_stops_while_it_asks_whether_the_adapter_works(assets, tmp_path, number):
    process = started(assets, tmp_path, stub(tmp_path, text=HANGING))
    until((tmp_path / "asked").exists)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0 and said.count("claimwise serve: stopped\n") == 1 and "Traceback" not in said
    assert nothing_left(tmp_path)


def test_it_outlives_its_terminal_under_nohup(assets, tmp_path, capfd, monkeypatch, handlers):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    monkeypatch.setattr(serve, "_wait", lambda *args: signal.raise_signal(signal.SIGHUP))
    monkeypatch.setattr(serve, "_probe", lambda *args: None)
    argv = ["serve", "--adapter", str(assets / "verifier"), "--port", "0"]
    assert main([*argv, "--python", str(stub(tmp_path, "sleep 1"))]) == 1
    assert "vLLM ended by itself with status 0" in capfd.readouterr().err


@pytest.mark.slow
def test_two_on_one_port(assets, tmp_path, capsys):
    """The first does not listen yet, nor has it bound the port, and is not disturbed."""
    port = str(free_port("127.0.0.1", 0))
    first = started(assets, tmp_path, stub(tmp_path), port)
    until(lambda: _alive(tmp_path))
    (tmp_path / "second").mkdir()
    argv = ["serve", "--adapter", str(assets / "verifier"), "--port", port, "--wait", "1", "--python"]
    argv.append(str(stub(tmp_path / "second")))
    assert main(argv) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"claimwise serve: cannot listen on 127.0.0.1:{port} (another claimwise serve")
    assert said.count("\n") == 1 and not (tmp_path / "second/flags").exists() and _alive(tmp_path)
    first.kill()
    until(lambda: nothing_left(tmp_path))
    assert main(argv) == 2 and "vLLM does not serve after 1 s" in capsys.readouterr().err


@pytest.mark.parametrize("listens", [False, True], ids=["bound", "listening"])
@pytest.mark.parametrize("option", ["SO_REUSEADDR", "SO_REUSEPORT", None])
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_port_is_taken_from_the_moment_a_server_binds_it(host, option, listens):
    """A vLLM that loads has bound it, with SO_REUSEADDR, and listens minutes later."""
    with socket.socket() as other:
        if option:
            other.setsockopt(socket.SOL_SOCKET, getattr(socket, option), 1)
        other.bind((host, 0))
        if listens:
            other.listen()
        port = other.getsockname()[1]
        with pytest.raises(InputError, match=f"cannot listen on 127.0.0.1:{port} .*Address already in use"):
            free_port("127.0.0.1", port)
    assert free_port("127.0.0.1", port) == port


def test_connections_that_a_server_left_do_not_take_its_port():
    with socket.create_server(("127.0.0.1", 0)) as server:  # with SO_REUSEADDR, as every server
        port = server.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        at_server, _ = server.accept()
    with client:
        with at_server:
            assert free_port("127.0.0.1", port) == port  # open yet
        assert client.recv(1) == b"" and free_port("127.0.0.1", port) == port  # closed by the server
    with socket.socket() as plain, pytest.raises(OSError, match="in use"):  # TIME_WAIT
        plain.bind(("127.0.0.1", port))
    assert free_port("127.0.0.1", port) == port
