"""`claimwise push`: the files of a repository, merged models, the upload to a local Hub, and what is refused."""

from __future__ import annotations

import base64
import json
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from claimwise.distill.config import DistillConfig
from claimwise.distill.run import distill
from claimwise.eval.agreement import agree
from claimwise.scripts.cli import main
from claimwise.verifier.judge import load_judge
from claimwise.verifier.model import base_hash, load_model
from claimwise.verifier.prompt import prompt_hash
from claimwise.verifier.tables import pair_up, read_examples, read_rollouts, read_verdicts
from distilling import settings
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText

FILES = {"README.md", "adapter_config.json", "adapter_model.safetensors", "metrics.json", "verifier.json"}
NAMED = ["--base-name", "Qwen/Qwen3-VL-2B-Instruct", "--licence", "apache-2.0"]


@pytest.fixture(scope="module")
def verifier(tiny_base, tables, tmp_path_factory) -> Path:
    """A verifier of two steps, with a checkpoint beside it; tests change copies."""
    out = tmp_path_factory.mktemp("push") / "verifier"
    values = {**settings(tiny_base, tables, out), "max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    distill(DistillConfig(**values))
    return out


@pytest.fixture
def push(verifier, capsys):
    """Runs the command on the verifier, or on another; gives its exit status and what it printed."""

    def go(*flags: str, folder: Path = verifier, repo: str = "lab/judge") -> tuple[int, str, str]:
        code = main(["push", str(folder), repo, *flags])
        return code, *capsys.readouterr()

    return go


def test_a_dry_run_writes_what_would_be_uploaded(verifier, push, tables, tiny_base, tmp_path):
    code, told, _ = push("--dry-run", str(tmp_path / "out"), *NAMED)
    out = tmp_path / "out"
    assert code == 0 and told.startswith(f"{out}: ") and told.endswith("MB in 5 files, as for lab/judge\n")
    assert {path.name for path in out.iterdir()} == FILES
    assert {path.name for path in tmp_path.iterdir()} == {"out"}  # no half-written folder beside it
    for name in ("adapter_model.safetensors", "metrics.json"):
        assert (out / name).read_bytes() == (verifier / name).read_bytes()
    card, before = (json.loads((folder / "verifier.json").read_text()) for folder in (out, verifier))
    assert card == {**before, "base": "Qwen/Qwen3-VL-2B-Instruct"}
    assert json.loads((out / "adapter_config.json").read_text())["base_model_name_or_path"] == card["base"]
    assert not any(str(tiny_base.parent) in path.read_text() for path in out.iterdir() if path.suffix != ".safetensors")


def test_the_card_holds_what_was_measured(verifier, push, tables, tiny_base, tmp_path):
    push("--dry-run", str(tmp_path / "out"), *NAMED)
    card = ModelCard.load(tmp_path / "out/README.md")
    data = card.data.to_dict()
    assert (data["base_model"], data["base_model_relation"]) == ("Qwen/Qwen3-VL-2B-Instruct", "adapter")
    assert (data["library_name"], data["license"]) == ("peft", "apache-2.0")
    assert {"claimwise", "verifier", "lora"} <= set(data["tags"])
    held_out = tables / "validation"
    gold = read_verdicts(held_out / "gold-image.jsonl")
    pairs = pair_up(read_examples(held_out / "examples.jsonl"), read_rollouts(held_out / "rollouts.jsonl"))
    found = agree(gold, load_judge(verifier, "image").judge(pairs))
    for group, figures in {"overall": found["overall"], **found["by_dimension"]}.items():
        row = next(line for line in card.text.splitlines() if line.startswith(f"| {group} |"))
        low, high = figures["agreement_ci"]
        assert f"| {figures['n']:,} | {figures['agreement']:.3f} [{low:.3f}, {high:.3f}] |" in row
    run = json.loads((verifier / "run.json").read_text())
    temperature = json.loads((verifier / "verifier.json").read_text())["temperature"]
    for fact in (
        "With its teacher (oracle-image)",
        f"| hash of the base's weights | `{base_hash(tiny_base)}` |",
        f"| prompt hash | `{prompt_hash('image', True)}` |",
        "| mode | image |",
        "| readings | yes |",
        f"| temperature | {temperature:.4f} |",
        f"| data version: verdicts | `{run['verdicts']}` |",
        f"| data version: validation rollouts | `{run['validation_rollouts']}` |",
        "| licence | apache-2.0 |",
        'snapshot_download("lab/judge")',
    ):
        assert fact in card.text, fact


def test_the_licence_is_the_bases_own(verifier, push, tiny_base, tmp_path):
    base = shutil.copytree(tiny_base, tmp_path / "base")
    front = "license: other\nlicense_name: qwen-research\nlicense_link: LICENSE\n"
    (base / "README.md").write_text(f"---\n{front}---\nText.\n")
    code, *_ = push("--dry-run", str(tmp_path / "out"), *NAMED[:2], "--base", str(base))
    card = ModelCard.load(tmp_path / "out/README.md")
    assert code == 0 and card.data.license == "other" and card.data.get("license_name") == "qwen-research"
    assert "| licence | qwen-research |" in card.text


def test_a_merged_model_answers_as_the_adapter_does(verifier, push, tables, tiny_base, items, tmp_path):
    out = tmp_path / "merged"
    code, *_ = push("--merge", "--licence", "apache-2.0", "--dry-run", str(out))
    assert code == 0 and {"config.json", "model.safetensors", "tokenizer.json"} <= {p.name for p in out.iterdir()}
    assert not (FILES - {"README.md", "metrics.json", "verifier.json"}) & {p.name for p in out.iterdir()}
    data = ModelCard.load(out / "README.md").data
    assert data.library_name == "transformers" and data.base_model is None  # the base has no name on the Hub
    mine, whole = load_judge(verifier, dtype=torch.float32), load_judge(out, "image", dtype=torch.float32)
    bare, stock = load_model(tiny_base, dtype=torch.float32), AutoModelForImageTextToText.from_pretrained(out)
    example, rollout = items[0]
    branches = [mine.model.encoder.branch(criterion.text) for criterion in example.criteria]
    packed = mine.model.pack([mine.model.tree(example, rollout.response, branches, "image")])
    with torch.no_grad():
        wanted, found, plain, untrained = (
            model(**packed.forward_inputs()).logits
            for model in (mine.model.model, whole.model.model, stock, bare.model)
        )
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=0)
    torch.testing.assert_close(plain, wanted, atol=1e-4, rtol=0)
    assert (wanted - untrained).abs().max() > 1e-2
    for one, two in zip(mine.judge(items), whole.judge(items), strict=True):
        assert (one.verdict, one.span) == (two.verdict, two.span) and one.p_yes == pytest.approx(two.p_yes, abs=1e-4)
    assert load_file(out / "model.safetensors").keys() == load_file(tiny_base / "model.safetensors").keys()
    assert push("--merge", "--licence", "mit", folder=out)[2].endswith("push the adapter that it was made from\n")
    assert main(["distill", "--adapter", str(out), *_flags(settings(out, tables, tmp_path / "on"))]) == 2


def _flags(values: dict) -> list[str]:
    return [part for key, value in values.items() for part in (f"--{key}", str(value))]


class Hub:
    """What of the Hub's API an upload of small files needs, on a real socket. `status` answers instead, if set."""

    def __init__(self):
        self.requests: list[tuple[str, Any]] = []
        self.files: dict[str, bytes] = {}
        self.status: tuple[int, str] | None = None
        self.private = True
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                hub._answer(self, self.rfile.read(int(self.headers["Content-Length"])))

            def do_GET(self):
                hub._answer(self, b"null")

            def log_message(self, format, *args):
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()

    def _answer(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        path = handler.path.partition("?")[0]
        lines = [json.loads(line) for line in body.splitlines()]
        self.requests.append((f"{handler.command} {path}", lines))
        code, told = (self.status[0], {"error": self.status[1]}) if self.status else (200, self._found(path, lines))
        raw = json.dumps(told).encode()
        handler.send_response(code)
        if code >= 400:
            handler.send_header("X-Error-Message", told["error"])
        handler.send_header("Content-Length", str(len(raw)))
        handler.end_headers()
        handler.wfile.write(raw)

    def _found(self, path: str, lines: list) -> dict:
        if path == "/api/repos/create":
            return {"url": f"{self.url}/lab/judge"}
        if path.startswith("/api/models/lab/judge/preupload"):
            plain = {"uploadMode": "regular", "shouldIgnore": False}
            return {"files": [{"path": file["path"], **plain} for file in lines[0]["files"]]}
        if path.startswith("/api/models/lab/judge/commit"):
            for line in lines:
                if line["key"] == "file":
                    self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            return {"commitUrl": f"{self.url}/lab/judge/commit/abc", "commitOid": "abc"}
        if path == "/api/models/lab/judge":
            return {"id": "lab/judge", "private": self.private}
        return {"errors": [], "warnings": []}  # validate-yaml

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


@pytest.fixture
def hub(monkeypatch):
    hub = Hub()
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    yield hub
    hub.close()


def test_an_upload_is_the_dry_run(verifier, push, hub, tmp_path):
    push("--dry-run", str(tmp_path / "out"), *NAMED)
    assert not hub.requests
    code, told, _ = push("--private", *NAMED)
    assert code == 0 and told.startswith(f"{hub.url}/lab/judge: uploaded; agreement 0.")
    assert hub.files == {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    create = dict(hub.requests)["POST /api/repos/create"][0]
    assert (create["name"], create["organization"], create["visibility"]) == ("judge", "lab", "private")
    checked = dict(hub.requests)["POST /api/validate-yaml"][0]  # the Hub is shown the card before the upload
    assert checked["content"] == (tmp_path / "out/README.md").read_text()


def test_a_public_repository_gets_nothing_that_was_to_be_private(push, hub):
    hub.private = False
    code, _, told = push("--private", *NAMED)
    assert code == 2 and "lab/judge is there already and public; make it private there, or give another" in told
    assert not hub.files


@pytest.mark.parametrize(
    ("status", "told"),
    [
        ((401, "Invalid username or password."), "the Hub refused lab/judge: 401, Invalid username or password."),
        ((403, "You need write access."), "the Hub refused lab/judge: 403, You need write access."),
        ((500, "Internal Error"), "the Hub refused lab/judge: 500, Internal Error"),
    ],
)
def test_a_refusal_of_the_hub_is_one_line(push, hub, status, told):
    hub.status = status
    code, _, error = push(*NAMED)
    assert (code, error) == (2, f"claimwise push: {told}\n") and not hub.files


def test_without_token_or_network_it_says_so(push, hub, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    code, _, error = push(*NAMED)
    assert code == 2 and error.startswith("claimwise push: the Hub cannot be reached (") and error.count("\n") == 1
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set; unset it to upload" in push(*NAMED)[2]
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", "/no/such/file")
    assert "there is no token for the Hub; set HF_TOKEN" in push(*NAMED)[2]
    assert not hub.requests


@pytest.mark.parametrize("repo", ["lab/judge/new", "lab judge", "lab/-judge", "a--b"])
def test_a_malformed_name_is_refused(push, repo, tmp_path):
    code, _, told = push("--dry-run", str(tmp_path / "out"), *NAMED, repo=repo)
    assert code == 2 and f"the repository is {repo!r}, no name of the Hub" in told and told.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_quantised_base_is_not_merged_into(verifier, push, tiny_base, tmp_path):
    base = shutil.copytree(tiny_base, tmp_path / "base")
    config = json.loads((base / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    (base / "config.json").write_text(json.dumps(config))
    code, _, told = push("--merge", *NAMED, "--base", str(base), "--dry-run", str(tmp_path / "out"))
    assert code == 2 and "is stored quantised; merged into it, the adapter would be rounded away" in told
    assert {path.name for path in tmp_path.iterdir()} == {"base"}


def test_what_cannot_be_handed_over_is_refused(verifier, push, assets, tmp_path):
    out = tmp_path / "out"
    dry = ("--dry-run", str(out))
    assert "is on a base in a folder of this machine" in push(*dry, "--licence", "mit")[2]
    assert "the licence of the base 'lab/base' is not known here" in push(*dry, "--base-name", "lab/base")[2]
    assert f"there is no adapter folder {tmp_path / 'none'}" in push(*dry, *NAMED, folder=tmp_path / "none")[2]
    stopped = shutil.copytree(verifier, tmp_path / "stopped")
    (stopped / "metrics.json").unlink()
    assert "has no metrics.json; give a folder that claimwise distill has finished" in push(*NAMED, folder=stopped)[2]
    told = push(*dry, "--merge", *NAMED, "--base", str(assets / "base"))[2]
    assert "but " in told and "give the base it was trained on" in told
    assert not out.exists()
    out.mkdir()
    (out / "mine.txt").write_text("keep")
    assert "is there already and not an empty folder" in push(*dry, *NAMED)[2]
    assert [path.name for path in out.iterdir()] == ["mine.txt"]
    (out / "mine.txt").unlink()
    assert push(*dry, *NAMED)[0] == 0  # an empty folder will do


def test_what_an_earlier_version_recorded_is_still_handed_over(verifier, push, tmp_path):
    """Figures without intervals or dimensions, and paths in place of the tables' contents."""
    old = shutil.copytree(verifier, tmp_path / "old")
    metrics = json.loads((old / "metrics.json").read_text())
    bare = {name: None if name.endswith("_ci") else value for name, value in metrics.items()}
    del bare["by_dimension"], bare["teacher"]
    (old / "metrics.json").write_text(json.dumps(bare))
    (old / "run.json").write_text(json.dumps({"command": "distill", "verdicts": "/data/gold.jsonl"}))
    assert push("--dry-run", str(tmp_path / "out"), *NAMED, folder=old)[0] == 0
    card = (tmp_path / "out/README.md").read_text()
    assert "Per dimension: not recorded." in card and "| data version: verdicts | not recorded |" in card
    assert f"| overall | {metrics['n']} | {metrics['agreement']:.3f} |" in card and "/data/gold" not in card
