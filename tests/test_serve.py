"""claimwise serve up to vLLM: its command line, what it refuses, and that nothing is left running."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from claimwise.scripts.cli import main
from claimwise.scripts.commands.serve import _free_port, address_of
from claimwise.verifier.errors import InputError
from safetensors.torch import load_file, save_file

# Stands in for a Python that has vLLM: never serves, and starts a child as vLLM does.
STUB = """#!/bin/sh
case $1 in -c) exit 0;; esac
echo "$@" > {folder}/flags
{sleep} & echo $! > {folder}/child
wait
"""


def stub(folder: Path, sleep: str = "sleep 60") -> Path:
    path = folder / "python"
    path.write_text(STUB.format(folder=folder, sleep=sleep))
    path.chmod(0o755)
    return path


def half(adapter: Path, folder: Path) -> Path:
    """A copy of the shipped verifier with the weights of its first layer only, of six."""
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
        (["--adapter", "{half}", "--python", "{stub}"], "35 of the 42 modules that its adapter_config.json names have"),
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


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "::1", "::"])
def test_a_server_on_any_address_is_reached_from_this_machine(host):
    try:
        port = _free_port(host, 0)
    except InputError:
        pytest.skip(f"this machine has no {host}")
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


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_with_all_that_it_started(assets, tmp_path, number):
    argv = [sys.executable, "-m", "claimwise.scripts.cli", "serve", "--adapter", str(assets / "verifier")]
    more = ["--device", "cpu", "--python", str(stub(tmp_path)), "--port", "0"]
    process = subprocess.Popen([*argv, *more], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not (tmp_path / "child").exists() or not (tmp_path / "child").read_text().strip():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    assert _alive(tmp_path)
    process.send_signal(number)
    assert process.wait(60) == 0
    assert "claimwise serve: stopped" in (process.stderr.read() if process.stderr else "")
    assert not _alive(tmp_path)
    assert "--lora-modules" in (tmp_path / "flags").read_text()
