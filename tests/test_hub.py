"""Data sets of the Hub, from a local server that answers as the Hub does, and what is said where there is none.

The Hub's address is read when huggingface_hub is imported, so each case runs in a process of its own.
"""

import hashlib
import http.server
import io
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import parse_qs

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from claimwise.verifier.tables import load_image, read_examples
from PIL import Image

SHA = "0123456789abcdef0123456789abcdef01234567"


class Hub(http.server.BaseHTTPRequestHandler):
    """One data set, me/data, from the server's `root`; `status` is its answer to everything else."""

    def log_message(self, *_):
        pass

    def do_GET(self):
        path = self.path.partition("?")[0]
        if path.startswith("/api/datasets/me/data/tree/"):
            under = path.partition(f"/tree/{SHA}")[2].strip("/")
            self.answer(json.dumps(self.entries(under, deep="recursive=true" in self.path)).encode())
        elif path == "/api/datasets/me/data" or path.startswith("/api/datasets/me/data/revision/"):
            names = [{"rfilename": entry["path"]} for entry in self.entries() if entry["type"] == "file"]
            self.answer(json.dumps({"id": "me/data", "sha": SHA, "siblings": names, "tags": []}).encode())
        elif (file := self.server.root / path.partition(f"/resolve/{SHA}/")[2]).is_file():
            self.send_piece(file.read_bytes())
        elif "/datasets/me/data/resolve/" in path:
            self.answer(b"", 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": SHA})
        else:
            self.answer(
                b"{}", self.server.status, {"X-Error-Code": "RepoNotFound"} if self.server.status == 404 else {}
            )

    do_HEAD = do_GET

    def do_POST(self):
        asked = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())["paths"]
        self.answer(json.dumps([entry for entry in self.entries() if entry["path"] in asked]).encode())

    def entries(self, under="", deep=True):
        folder = self.server.root / under
        return [
            {
                "type": "file" if path.is_file() else "directory",
                "path": path.relative_to(self.server.root).as_posix(),
                "size": path.stat().st_size,
                "oid": hashlib.sha1(str(path).encode()).hexdigest(),
            }
            for path in sorted(folder.rglob("*") if deep else folder.iterdir())
        ]

    def send_piece(self, body):
        headers = {"ETag": f'"{hashlib.sha1(body).hexdigest()}"', "X-Repo-Commit": SHA, "Accept-Ranges": "bytes"}
        first, _, last = self.headers.get("Range", "").removeprefix("bytes=").partition("-")
        if not first:
            return self.answer(body, 200, headers)
        end = min(int(last or len(body)) + 1, len(body))
        headers["Content-Range"] = f"bytes {first}-{end - 1}/{len(body)}"
        return self.answer(body[int(first) : end], 206, headers)

    def answer(self, body, status=200, headers=None):
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@pytest.fixture
def hub(tmp_path):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.root, server.status = tmp_path / "hub", 404
    (server.root / "data").mkdir(parents=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def data(tmp_path, endpoint, *commands, **environment):
    """The exit status and the error text of each command, all in one process: importing takes most of the time."""
    environment = {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0", **environment}
    code = (
        "import contextlib, io, json, sys\n"
        "from claimwise.scripts.cli import main\n"
        "for argv in json.loads(sys.argv[1]):\n"
        "    with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.redirect_stdout(io.StringIO()):\n"
        "        status = main(['data', *argv])\n"
        "    print(json.dumps([status, said.getvalue()]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(commands)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=True,
    )
    assert not done.stderr  # no warnings of libraries
    return [json.loads(line) for line in done.stdout.splitlines()]


def address(server):
    return f"http://127.0.0.1:{server.server_port}"


def write_part(folder: Path, part: str, numbers):
    rows = []
    for n in numbers:
        buffer = io.BytesIO()
        Image.new("RGB", (8 + n, 6), (n, 0, 0)).save(buffer, "PNG")
        images = [{"bytes": buffer.getvalue(), "path": f"{n}.png"}]
        rubrics = [{"description": "Says 3.", "weight": 5}]
        rows.append({"uid": f"{part}{n}", "question": f"Number {n}?", "images": images, "rubrics": rubrics})
    pq.write_table(pa.Table.from_pylist(rows), folder / f"data/{part}-00000-of-00001.parquet")


@pytest.mark.slow
def test_a_data_set_is_streamed(tmp_path, hub):
    write_part(hub.root, "train", range(12))
    write_part(hub.root, "test", range(3))
    splits = "[{name: train, num_examples: 12, num_bytes: 1}, {name: test, num_examples: 3, num_bytes: 1}]"
    (hub.root / "README.md").write_text(f"---\ndataset_info:\n  splits: {splits}\n---\n")
    commands = ["inspect", "me/data"], ["convert", "me/data", "out", "--part", "train"]
    refused, done = data(tmp_path, address(hub), *commands)
    assert "12/12" in done[1]  # the card says how many rows there are
    assert refused == [2, "claimwise data: me/data has the parts train, test; choose one with --part NAME\n"]
    assert done[0] == 0, done
    examples = read_examples(tmp_path / "out/examples.parquet")
    assert [example.example_id for example in examples] == [f"train{n}" for n in range(12)]
    assert [load_image(example.images[0]).size for example in examples] == [(8 + n, 6) for n in range(12)]
    assert json.loads((tmp_path / "out/run.json").read_text())["rows"] == [None, "train", SHA]


@pytest.mark.slow
def test_images_that_lie_beside_the_table(tmp_path, hub):
    """An image folder: `datasets` gives the images' addresses only."""
    row = {"question": "?", "rubrics": [{"description": "Says 3.", "weight": 5}], "file_name": "a.png"}
    (hub.root / "data/metadata.jsonl").write_text(json.dumps(row) + "\n")
    Image.new("RGB", (9, 5)).save(hub.root / "data/a.png")
    (done,) = data(tmp_path, address(hub), ["convert", "me/data", "out"])
    assert done[0] == 0, done
    (example,) = read_examples(tmp_path / "out/examples.parquet")
    assert load_image(example.images[0]).size == (9, 5)


@pytest.mark.parametrize(
    ("status", "named"),
    [(404, "there is no such file or folder, nor a data set of this name"), (500, "the Hub answers with status 500")],
)
def test_a_name_that_the_hub_does_not_serve(tmp_path, hub, status, named):
    hub.status = status
    ((code, said),) = data(tmp_path, address(hub), ["inspect", "me/nothing"])
    assert code == 2 and said.count("\n") == 1 and f"me/nothing: {named}" in said


@pytest.mark.parametrize(("offline", "named"), [("0", "the Hub cannot be reached"), ("1", "HF_HUB_OFFLINE is set")])
def test_no_network(tmp_path, offline, named):
    ((code, said),) = data(tmp_path, "http://127.0.0.1:9", ["inspect", "me/data"], HF_HUB_OFFLINE=offline)
    assert code == 2 and said.count("\n") == 1 and named in said and "hf download" in said
