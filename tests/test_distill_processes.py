"""Distillation in two processes on CPUs (gloo), launched by accelerate as on two GPUs, against one process.

`accelerate launch --cpu --num_processes 2` starts a single process where no MPI is installed, without a word; it is
`--multi_gpu` that starts two, and our settings turn to CPUs where there is no GPU.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from claimwise.distill.config import DistillConfig
from claimwise.distill.run import distill
from distilling import assert_same_weights, contents, log_of, settings, write_uneven
from launches import launch

pytestmark = pytest.mark.slow

COMMAND = f"{Path(__file__).with_name('command_worker.py')} distill"


def flags(values: dict) -> list[str]:
    return [part for key, value in values.items() for part in (f"--{key}", str(value))]


def screen(logs: Path, rank: int) -> str:
    return "".join(path.read_text() for path in logs.glob(f"**/{rank}/std*.log"))


@pytest.fixture(scope="module")
def wanted(tiny_base, tables, tmp_path_factory) -> dict:
    """Four steps of four responses with 1 to 7 verdicts each, evaluated at each; for one process."""
    folder = tmp_path_factory.mktemp("processes")
    changes = {"verdicts": str(write_uneven(tables, folder / "uneven.jsonl")), "max_steps": 4}
    changes |= {"save_strategy": "steps", "save_steps": 1, "eval_strategy": "steps", "eval_steps": 1}
    return {**settings(tiny_base, tables, folder / "one"), **changes}


@pytest.fixture(scope="module")
def apart(wanted, tmp_path_factory) -> Path:
    """The same in two processes of two batches of one response, each process with a folder of its own."""
    folder = tmp_path_factory.mktemp("apart")
    split = {**wanted, "per_device_train_batch_size": 1, "gradient_accumulation_steps": 2}
    del split["output_dir"]
    command = " ".join([sys.executable, COMMAND, *flags(split), f"--output_dir {folder}/$RANK"])
    done = launch(folder / "logs", ["--no_python", "sh", "-c", command])
    assert done.returncode == 0, done.stderr
    return folder


def test_two_processes_learn_what_one_learns(apart, wanted):
    """The loss is a mean over both processes' tokens and verdicts; the mean of their own means is another."""
    metrics = distill(DistillConfig(**wanted))
    one, two = Path(wanted["output_dir"]), apart / "0"
    assert len(log_of(one)) == 4
    assert log_of(two) == pytest.approx(log_of(one), abs=1e-5)
    assert log_of(two, "grad_norm") == pytest.approx(log_of(one, "grad_norm"), abs=1e-3)
    assert log_of(two, "eval_kappa") == pytest.approx(log_of(one, "eval_kappa"))
    assert_same_weights(one, two, atol=1e-4)
    found = json.loads((two / "metrics.json").read_text())
    for name in ("n", "temperature", "agreement", "kappa", "span_exact"):
        assert found[name] == pytest.approx(metrics[name], abs=1e-4)


def test_only_the_main_process_writes_and_shows(apart):
    assert {"verifier.json", "metrics.json", "run.json", "adapter_model.safetensors"} <= contents(apart / "0").keys()
    assert set(contents(apart / "1")) == {f"checkpoint-{step}/rng_state_1.pth" for step in (1, 2, 3, 4)}
    main, other = screen(apart / "logs", 0), screen(apart / "logs", 1)
    assert main.count("verifier-image: LoRA on 14 projections") == 1 and "distilling verifier-image: 100%" in main
    assert "LoRA on" not in other and "%|" not in other
    assert "threads left: []" in main and "threads left: []" in other


def test_a_broken_run_of_two_goes_on(apart, wanted, tmp_path):
    """What a kill after the second step leaves, and what the unbroken run ended with."""
    out = tmp_path / "out"
    for rank in (0, 1):
        shutil.copytree(apart / f"{rank}/checkpoint-2", out / "checkpoint-2", dirs_exist_ok=True)
    shutil.copy(apart / "0/run.json", out)
    before = contents(out)
    split = {**wanted, "output_dir": str(out), "per_device_train_batch_size": 1, "gradient_accumulation_steps": 2}
    done = launch(tmp_path / "logs", [*COMMAND.split(), *flags(split)])
    assert done.returncode == 0, done.stderr
    after = contents(out)
    assert {name: after[name] for name in before} == before and not (out / "checkpoint-1").exists()
    assert_same_weights(out, apart / "0")
    assert log_of(out) == pytest.approx(log_of(apart / "0"), abs=1e-6)


def test_two_processes_stop_early_together(wanted, tmp_path):
    """Steps too small to change a verdict: the second evaluation is no better, and neither waits for the other."""
    changes = {"learning_rate": 1e-9, "max_steps": 6, "patience": 1, "per_device_train_batch_size": 2}
    done = launch(tmp_path / "logs", [*COMMAND.split(), *flags({**wanted, **changes, "output_dir": tmp_path / "out"})])
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "out").glob("checkpoint-*")} == {"checkpoint-1", "checkpoint-2"}
    assert_same_weights(tmp_path / "out", tmp_path / "out/checkpoint-1")
    assert (tmp_path / "out/verifier.json").is_file()


def test_a_folder_of_another_run_stops_both(apart, wanted, tmp_path):
    shutil.copytree(apart / "0", tmp_path / "out")
    before = contents(tmp_path / "out")
    changes = {"output_dir": tmp_path / "out", "learning_rate": 0.02}
    done = launch(tmp_path / "logs", [*COMMAND.split(), *flags({**wanted, **changes})])
    assert done.returncode != 0
    for rank in (0, 1):
        assert "claimwise distill: " in screen(tmp_path / "logs", rank)
        assert "holds a different run: learning_rate (0.01 there, 0.02 now)" in screen(tmp_path / "logs", rank)
    assert contents(tmp_path / "out") == before
