"""Shared by the tests: the shipped tiny models, a few examples of the digits world, and single-threaded torch."""

from __future__ import annotations

import os
import random
import signal
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import settings

signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start what runs in the background without it
os.environ.setdefault("GOMP_SPINCOUNT", "100000")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

settings.register_profile("untimed", settings(deadline=None))  # a busy machine is no fault
settings.load_profile("untimed")

ASSETS = Path(str(resources.files("claimwise.distill"))) / "assets"


@pytest.fixture(scope="session")
def assets() -> Path:
    return ASSETS


@pytest.fixture(scope="session")
def base():
    """The shipped base in float32; tests must not change it."""
    import torch
    from claimwise.verifier.model import load_model

    return load_model(ASSETS / "base", dtype=torch.float32)


@pytest.fixture(scope="session")
def items():
    """Twelve held-out examples, each with an edited response."""
    from claimwise.distill.digits import make_example
    from claimwise.distill.edits import counterfactual
    from claimwise.verifier.schema import Rollout

    rng, out = random.Random(11), []
    for number in range(12):
        example = make_example(rng, "test", number)
        edited = counterfactual(rng, example.reference or "")
        assert edited is not None
        text, edit = edited
        out.append((example, Rollout(f"{example.example_id}/{edit}", example.example_id, text, "reference", edit=edit)))
    return out


@pytest.fixture(scope="session")
def tiny_base(tmp_path_factory) -> Path:
    """A folder with a random base that trains in seconds; tests must not change it."""
    from distilling import make_base

    return make_base(tmp_path_factory.mktemp("distill") / "base")


@pytest.fixture(scope="session")
def tables(tmp_path_factory) -> Path:
    """A folder with tables to train on (16 responses) and to validate on (6); tests must not change it."""
    from distilling import make_tables

    folder = tmp_path_factory.mktemp("tables")
    make_tables(folder / "train", "train", 8)
    make_tables(folder / "validation", "validation", 3)
    return folder


@pytest.fixture(scope="session")
def world(tmp_path_factory) -> Path:
    """A folder with base/, train/, validation/ and the distilled verifiers image/ and text/; tests change copies."""
    from judging import make_world

    return make_world(tmp_path_factory.mktemp("judge"))


@pytest.fixture(scope="session")
def vllm_url(assets, tmp_path_factory):
    """The address of a real vLLM server with the shipped verifier; tests that want it skip where there is no vLLM."""
    from vllm_server import running

    with running(assets / "verifier", tmp_path_factory.mktemp("vllm")) as url:
        yield url


@pytest.fixture(scope="module")
def browser():
    """A real headless Chromium; by module, since an open one keeps an event loop of its own."""
    from auditing import find_chromium

    sync = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    with sync.sync_playwright() as playwright:
        path = find_chromium(playwright)
        if path is None:
            pytest.skip("there is no Chromium: install one, or run `playwright install chromium`")
        found = playwright.chromium.launch(executable_path=path)
        yield found
        found.close()
