"""A real vLLM server on the CPU for the tests: the shipped verifier, served by `claimwise serve` through
`scripts/vllm_cpu.sh`, which makes the environment that it runs in."""

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
from safetensors.torch import load_file, save_file

ROOT = Path(__file__).parent.parent
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
        pytest.skip("there is no vLLM; bash scripts/vllm_cpu.sh install makes an environment with it")
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


def metric(url: str, name: str) -> float:
    """The sum of a counter over its labels."""
    text = httpx2.get(f"{url.removesuffix('/v1')}/metrics", timeout=60).text
    return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(f"vllm:{name}{{"))
