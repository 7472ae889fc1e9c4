"""`claimwise sft` on rows in the layout of OpenMMReasoner-SFT-874K: images in a folder of their own, named by parts."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import datasets
import pytest
from claimwise.distill.hub import stream
from claimwise.distill.sft_data import Form, Reader, read_conversation, stored_dataset, streamed_dataset
from claimwise.distill.sources import RawRow, open_source
from claimwise.scripts.cli import main
from claimwise.scripts.digits_conversations import write_conversations
from claimwise.verifier.errors import InputError
from claimwise.verifier.processor import load_processor
from PIL import Image
from test_sft import flags


@pytest.fixture
def form(assets):
    return Form(load_processor(assets / "policy"), 256)


@pytest.fixture
def data(tmp_path):
    """Sixteen conversations of the digits world."""
    return write_conversations(tmp_path / "sft", 16)


def test_a_drawing_on_nothing_is_read_as_it_is_seen(form, tmp_path):
    """Black on transparent: a processor of transformers would make one black square of it."""
    drawing = Image.new("RGBA", (64, 64), (0, 0, 0, 0))
    drawing.paste((0, 0, 0, 255), (0, 0, 32, 32))
    drawing.save(tmp_path / "drawing.png")
    Image.new("RGB", (64, 64)).save(tmp_path / "plain.png")
    turns = [{"role": "user", "content": "What?"}, {"role": "assistant", "content": "A square."}]
    values = {"messages": turns, "images": ["drawing.png", "plain.png"]}
    drawn, plain = read_conversation(RawRow(1, "line 1", values, None, tmp_path), form)["images"]
    assert plain == {"path": str(tmp_path / "plain.png"), "bytes": None}
    with Image.open(io.BytesIO(drawn["bytes"])) as seen:
        assert (seen.mode, seen.getpixel((1, 1)), seen.getpixel((60, 60))) == ("RGB", (0, 0, 0), (255, 255, 255))


def openmmreasoner(data, folder):
    """Its layout, as its authors' pipeline writes it: Parquet with id and messages of parts, paths of images relative to
    a folder of their own, and rows without an image. Parquet gives every part all keys, null where they do not belong."""
    rows = [json.loads(line) for line in data.read_text().splitlines()]
    shutil.copytree(data.parent / "images", folder / "pictures/mmr1")

    def message(role, *parts):
        whole = {"type": None, "text": None, "image_url": None, "precomputed_tokens": None}
        return {"role": role, "content": [{**whole, **part} for part in parts]}

    def text(words):
        return {"type": "text", "text": words}

    out = []
    for number, row in enumerate(rows):
        user, answer = (turn["content"] for turn in row["messages"])
        image = {"type": "image_url", "image_url": {"url": f"mmr1/{Path(row['images'][0]).name}"}}
        asked = [image, text(f"<image>\n{user}" if number % 3 else user)] if number != 5 else [text(user)]
        said = f"<think>It is seen.</think><answer>{answer}</answer>"
        out.append([message("system", text("Think.")), message("user", *asked), message("assistant", text(said))])
    ids = [f"mmr1_{number}" for number in range(len(out))]
    (folder / "rows").mkdir()
    datasets.Dataset.from_dict({"id": ids, "messages": out}).to_parquet(folder / "rows/mmr1_filtered.parquet")
    return folder / "rows", folder / "pictures"


def test_rows_in_the_layout_of_openmmreasoner(data, tmp_path, form, assets):
    rows, pictures = openmmreasoner(data, tmp_path)
    stored = list(stored_dataset(Reader(open_source(str(rows)), form, tmp_path, 0.0, image_folder=pictures), "omr"))
    assert len(stored) == 16 and [len(row["images"]) for row in stored] == [1] * 5 + [0] + [1] * 10
    assert [message["role"] for message in stored[0]["prompt"]] == ["system", "user"]
    for row in stored:
        kinds = [part["type"] for part in row["prompt"][1]["content"]]
        assert kinds == (["image", "text"] if row["images"] else ["text"])
        assert "<image>" not in row["prompt"][1]["content"][-1]["text"]
        assert row["completion"][0]["content"][0]["text"].startswith("<think>")
    found = datasets.load_dataset("parquet", data_files=f"file://{rows}/mmr1_filtered.parquet", streaming=True)["train"]
    reader = Reader(stream("hub", found, "", []), form, tmp_path, 0.0, image_folder=pictures)
    streamed = streamed_dataset(reader, seed=0)
    said = [sorted(row["completion"][0]["content"][0]["text"] for row in part) for part in (stored, streamed)]
    assert said[0] == said[1] and sum(len(row["images"]) for row in streamed) == 15
    assert main(flags(assets, rows, tmp_path / "out", max_steps=1, image_folder=pictures)) == 0


def test_images_that_lie_elsewhere_are_asked_for(data, tmp_path, form, assets, capsys):
    rows, _ = openmmreasoner(data, tmp_path)
    found = datasets.load_dataset("parquet", data_files=f"file://{rows}/mmr1_filtered.parquet", streaming=True)["train"]
    with pytest.raises(InputError, match=r"the rows name the file mmr1/00000.png but do not hold it"):
        list(Reader(stream("hub", found, "", []), form, tmp_path, 0.01).rows())
    assert main(flags(assets, rows, tmp_path / "out", max_steps=1)) == 2
    assert "15 of 16 rows (93.8%) were refused" in capsys.readouterr().err
