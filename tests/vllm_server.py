"""A real vLLM on the CPU for the tests: the shipped verifier, served by `claimwise serve` through `scripts/vllm_cpu.sh`,
which makes the environment that it runs in; and code that runs in that environment, with vLLM in its own process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from claimwise.scripts.benches.vllm_orders import vllm_python
from safetensors.torch import load_file, save_file

ROOT = Path(__file__).parent.parent
NONE = "there is no vLLM; bash scripts/vllm_cpu.sh install makes an environment with it"
SILENT = "silent"  # an adapter that vLLM loads without effect


def renamed(adapter: Path, folder: Path) -> Path:
    """A copy of an adapter whose weights have the names of another model's modules, as of an older version."""
    folder.mkdir(parents=True)
    for file in adapter.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    weights = load_file(adapter / "adapter_model.safetensors")
    spoilt = {name.replace("model.language_model.layers", "model.layers"): value for name, value in weights.items()}
    save_file(spoilt, folder / "adapter_model.safetensors")
    return folder


@contextmanager
def running(adapter: Path, folder: Path) -> Iterator[str]:
    """The server's address; CLAIMWISE_VLLM_URL has that of one which runs already. Skips where there is no vLLM."""
    if url := os.environ.get("CLAIMWISE_VLLM_URL"):
        yield url
        return
    if "CLAIMWISE_VLLM_ENV" not in os.environ and not (ROOT / ".vllm-venv/claimwise-vllm.stamp").is_file():
        pytest.skip(NONE)
    silent = renamed(adapter, folder / SILENT)
    modules = ["--lora-modules", f"verifier-image={adapter}", f"{SILENT}={silent}"]
    command = ["bash", "scripts/vllm_cpu.sh", "--port", "0", "--", "--max-model-len", "2048", *modules]
    with (folder / "vllm.log").open("w") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            said: list[str] = []
            for line in process.stdout or ():
                said.append(line)
                if found := re.search(r" is at (http://\S+);", line):
                    yield found[1]
                    break
            else:
                pytest.fail(f"vLLM did not start: {said} {(folder / 'vllm.log').read_text()[-2000:]}")
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0  # it stops cleanly


def in_vllm(*arguments: object) -> str:
    """What the Python that has vLLM prints. Skips where there is none, and where claimwise is not installed in it."""
    python = vllm_python()
    if python is None:
        pytest.skip(NONE)
    if subprocess.run([python, "-c", "import claimwise.verifier"], capture_output=True).returncode:
        pytest.skip(f"{python} has vLLM, but no claimwise; bash scripts/vllm_cpu.sh install mends its own environment")
    small = {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    environment = {**small, "VLLM_ENABLE_V1_MULTIPROCESSING": "0", **os.environ}  # another process loads it all again
    done = subprocess.run([python, *map(str, arguments)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def metric(url: str, name: str) -> float:
    """The sum of a counter over its labels."""
    text = httpx2.get(f"{url.removesuffix('/v1')}/metrics", timeout=60).text
    return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(f"vllm:{name}{{"))
