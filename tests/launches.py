"""Several processes on this machine's CPUs (gloo), as torchrun and `accelerate launch` start them. Their port is one that
is not given to connections out: between its choice and its use pass the seconds that importing takes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from claimwise.scripts.commands.serve import free_port

HOST = "127.0.0.1"


def together(processes: int, *command: str) -> list[tuple[int, str, str]]:
    """The command once per process, as torchrun starts it; (exit status, stdout, stderr) of each."""
    common = {"WORLD_SIZE": processes, "MASTER_ADDR": HOST, "MASTER_PORT": free_port(HOST, 0), "OMP_NUM_THREADS": 1}
    common |= {"ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": Path(__file__).parent}
    started = []
    for rank in range(processes):
        own = {**common, "RANK": rank, "LOCAL_RANK": rank}
        environment = {**os.environ, **{key: str(value) for key, value in own.items()}}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen([sys.executable, *command], env=environment, **pipes))
    said = [process.communicate(timeout=300) for process in started]
    return [(process.returncode, *texts) for process, texts in zip(started, said, strict=True)]


def launch(logs: Path, command: list[str]) -> subprocess.CompletedProcess:
    """Two processes; what each writes to its screen comes to lie under `logs`."""
    launcher = ["--multi_gpu", "--num_processes=2", "--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no"]
    launcher += [f"--main_process_port={free_port(HOST, 0)}", "--tee=3", f"--log_dir={logs}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HOME": str(logs / "home")}
    return subprocess.run(
        [sys.executable, "-m", "accelerate.commands.launch", *launcher, *command],
        env=environment, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
