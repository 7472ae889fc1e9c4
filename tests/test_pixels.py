"""What is seen of an image that is not plain 8-bit RGB."""

import base64
import io

import numpy as np
import pytest
from claimwise.verifier.asking import image_url
from claimwise.verifier.errors import InputError
from claimwise.verifier.pixels import as_rgb, is_plain
from claimwise.verifier.tables import load_image
from PIL import Image


def pixel(image):
    return as_rgb(image).getpixel((0, 0))


@pytest.mark.parametrize(("grey", "wanted"), [(0, 0), (257, 1), (32896, 128), (65279, 254), (65535, 255)])
def test_sixteen_bits_are_scaled_and_not_cut_off(grey, wanted):
    image = Image.fromarray(np.full((2, 2), grey, dtype=np.uint16))
    assert image.mode == "I;16" and not is_plain(image)
    assert pixel(image) == (wanted, wanted, wanted)


@pytest.mark.parametrize(
    ("mode", "colour", "wanted"),
    [
        ("RGBA", (0, 0, 0, 0), (255, 255, 255)),  # black lies hidden there
        ("RGBA", (0, 0, 0, 255), (0, 0, 0)),
        ("RGBA", (200, 100, 0, 51), (244, 224, 204)),  # a fifth of the colour, four fifths of white
        ("LA", (0, 0), (255, 255, 255)),
        ("LA", (9, 255), (9, 9, 9)),
        ("L", 7, (7, 7, 7)),
        ("RGB", (1, 2, 3), (1, 2, 3)),
        ("1", 1, (255, 255, 255)),
    ],
)
def test_what_is_see_through_is_white(mode, colour, wanted):
    image = Image.new(mode, (2, 2), colour)
    assert pixel(image) == wanted
    opaque = "A" not in mode or colour[-1] == 255
    assert is_plain(image) == opaque


def test_one_colour_of_a_file_may_be_see_through(tmp_path):
    Image.new("RGB", (2, 2), (9, 9, 9)).save(tmp_path / "rgb.png", transparency=(9, 9, 9))
    Image.new("P", (2, 2), 3).save(tmp_path / "palette.gif", transparency=3)
    for path in (tmp_path / "rgb.png", tmp_path / "palette.gif"):
        assert load_image(path).getpixel((0, 0)) == (255, 255, 255)
        sent = base64.b64decode(image_url(path).partition(",")[2])  # a teacher sees what a verifier sees
        with Image.open(io.BytesIO(sent)) as opened:
            assert not opened.has_transparency_data and opened.convert("RGB").getpixel((0, 0)) == (255, 255, 255)


@pytest.mark.parametrize("mode", ["I", "F"])
def test_greys_without_a_white_are_refused(tmp_path, mode):
    Image.new(mode, (2, 2), 3).save(tmp_path / "a.tif")
    with pytest.raises(InputError, match=rf"a.tif: .*32 bits \(mode {mode}\), and nothing says which is white"):
        load_image(tmp_path / "a.tif")
