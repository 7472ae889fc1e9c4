"""`claimwise data` and the images of a row: every form in which they come, and every way in which one can be wrong."""

import base64
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from claimwise.distill.pictures import read_picture
from claimwise.verifier.errors import InputError
from claimwise.verifier.tables import load_image, read_examples
from converting import encoded, picture, rejected, row, run, write_lines
from PIL import Image


def forms(folder):
    data = encoded(picture(1))
    (folder / "img").mkdir()
    (folder / "img/a.png").write_bytes(data)
    (folder / "bare").write_bytes(data)
    text = base64.b64encode(data).decode()
    return {
        "path": "img/a.png",
        "path without a suffix": "bare",
        "absolute path": str(folder / "img/a.png"),
        "base64": text,
        "base64 in lines": "\n".join(text[i : i + 76] for i in range(0, len(text), 76)),
        "data URL": f"data:image/png;base64,{text}",
        "object with path": {"path": "img/a.png", "bytes": None},
        "list": ["img/a.png"],
        "JSON list": '["img/a.png"]',
    }


def test_every_form_of_an_image_in_json(tmp_path):
    for name, value in forms(tmp_path).items():
        source = write_lines(tmp_path / "rows.jsonl", [row(1, image=value)])
        out = tmp_path / name
        assert run("convert", source, out) == 0, name
        (image,) = read_examples(out / "examples.parquet")[0].images
        assert image.parent == out / "images" and image.read_bytes() == encoded(picture(1)), name


def test_bytes_and_objects_in_parquet(tmp_path):
    data = encoded(picture(1))
    for name, value in {
        "bytes": data,
        "object": {"bytes": data, "path": "a.png"},
        "several": [{"bytes": data, "path": None}, {"bytes": encoded(picture(2)), "path": None}],
    }.items():
        pq.write_table(pa.Table.from_pylist([row(1, image=value)]), tmp_path / "rows.parquet")
        assert run("convert", tmp_path / "rows.parquet", tmp_path / name) == 0
        images = read_examples(tmp_path / name / "examples.parquet")[0].images
        wanted = [picture(1), picture(2)] if name == "several" else [picture(1)]
        assert [load_image(image).tobytes() for image in images] == [image.tobytes() for image in wanted]


def test_a_pil_image():
    taken = read_picture(picture(1), None)
    assert taken.name.endswith(".png") and taken.image.tobytes() == picture(1).tobytes()
    with pytest.raises(InputError, match=r"no pixels \(0 x 3\)"):
        read_picture(Image.new("RGB", (0, 3)), None)


def test_file_name_beside_the_data(tmp_path):
    """The layout of an image folder: metadata.jsonl with `file_name`, images beside it."""
    for n in range(2):
        (tmp_path / "set/deep").mkdir(parents=True, exist_ok=True)
        picture(n).save(tmp_path / f"set/deep/{n}.png")
    rows = [row(n, file_name=f"deep/{n}.png") for n in range(2)]
    write_lines(tmp_path / "set/metadata.jsonl", rows)
    assert run("convert", tmp_path / "set", tmp_path / "out") == 0
    examples = read_examples(tmp_path / "out/examples.parquet")
    assert [load_image(e.images[0]).tobytes() for e in examples] == [picture(n).tobytes() for n in range(2)]


def test_what_is_stored_as_it_is_and_what_becomes_png(tmp_path):
    sideways = Image.Exif()
    sideways[0x0112] = 6
    for name, data, kind, size in [
        ("jpeg", encoded(picture(1), "JPEG"), ".jpg", (32, 24)),
        ("webp", encoded(picture(1), "WEBP"), ".webp", (32, 24)),
        ("gif", encoded(picture(1), "GIF"), ".png", (32, 24)),
        ("bmp", encoded(picture(1), "BMP"), ".png", (32, 24)),
        ("turned", encoded(picture(1), "JPEG", exif=sideways), ".png", (24, 32)),
        ("grey", encoded(picture(1).convert("L")), ".png", (32, 24)),
        ("clear", encoded(picture(1).convert("RGBA")), ".png", (32, 24)),
    ]:
        taken = read_picture(data, None)
        path = taken.store(tmp_path)
        assert (path.suffix, load_image(path).size) == (kind, size), name
        assert (path.read_bytes() == data) == (name in ("jpeg", "webp", "grey", "clear")), name
    assert {path.suffix for path in tmp_path.iterdir()} <= {".jpg", ".webp", ".png"}  # nothing half-written


CUT = encoded(picture(1, (200, 200)))[:5000]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("gone.png", "image 1: there is no file .*gone.png"),
        (["ok.png", "gone.png"], "image 2: there is no file"),
        (["ok.png", None], "image 2: it is null"),
        ("empty.png", "image 1: it is empty"),
        ("text.png", "image 1: its 10 bytes are no image"),
        ("cut.png", "image 1: it is broken"),
        ("https://example.org/a.png", "image 1: https://example.org/a.png is a URL"),
        ("data:image/png;base64,%%%", "image 1: it begins with 'data:image/png;base64,%%%', but no base64"),
        ("data:image/png,raw", "no base64 follows"),
        ("x" * 2000, "image 1: its 1500 bytes are no image"),
        ("%" * 2000, "string of 2000 characters is neither"),
        (base64.b64encode(CUT).decode(), "image 1: it is broken"),
        (7, "image 1: it is integer 7"),
        ({"width": 3}, "image 1: it is object {width}"),
        ({"path": "gone.png"}, "there is no file"),
        ({"path": None, "bytes": ""}, "image 1: it is null"),
        ("folder", "there is no file"),
        ("nul\0", "there is no file"),
    ],
)
def test_images_that_cannot_be_used(tmp_path, value, reason, capsys):
    picture(1).save(tmp_path / "ok.png")
    (tmp_path / "empty.png").touch()
    (tmp_path / "text.png").write_text("no picture")
    (tmp_path / "cut.png").write_bytes(CUT)
    (tmp_path / "folder").mkdir()
    source = write_lines(tmp_path / "rows.jsonl", [row(1, image=value)])
    assert run("convert", source, tmp_path / "out") == 2
    (entry,) = rejected(tmp_path / "out")
    assert re.search(reason, entry["reason"]) and (entry["row"], entry["example_id"]) == (1, "u1")
    assert entry["reason"] in capsys.readouterr().err


def test_pictures_are_stored_as_everybody_sees_them(tmp_path):
    """Two drawings on nothing, black on what Pillow would show as black, and a scan of 16 bits."""
    rows = []
    for n, corner in enumerate([(0, 0), (20, 12)]):
        drawing = Image.new("RGBA", (32, 24), (0, 0, 0, 0))
        drawing.paste((0, 0, 0, 255), (*corner, corner[0] + 10, corner[1] + 10))
        drawing.save(tmp_path / f"{n}.png")
        rows.append(row(1, uid=f"u{n}", image=f"{n}.png"))  # one question, one answer: no near duplicates
    Image.fromarray(np.arange(0, 65536, 257, dtype=np.uint16).reshape(16, 16)).save(tmp_path / "scan.png")
    rows.append(row(2, image="scan.png"))
    assert run("convert", write_lines(tmp_path / "rows.jsonl", rows), tmp_path / "out") == 0
    examples = read_examples(tmp_path / "out/examples.parquet")
    images = [Image.open(example.images[0]) for example in examples]
    assert [image.mode for image in images] == ["RGB"] * 3  # whatever reads them
    assert [image.getpixel((1, 1)) for image in images[:2]] == [(0, 0, 0), (255, 255, 255)]
    assert [image.getpixel((25, 15)) for image in images[:2]] == [(255, 255, 255), (0, 0, 0)]
    assert np.array_equal(np.asarray(images[2])[..., 0].ravel(), np.arange(256))
