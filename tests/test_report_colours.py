"""The reports' colours for those who are colour-blind: simulated after Machado, Oliveira and Fernandes (2009) at severity
1, distances in CIELAB (2.3 is just noticeable)."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from claimwise.eval import pages, plots

SEEN = {
    "everyone": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
MOST_ALIKE = 10  # between two lines' colours, beside markers and dashes of their own
MINUS_AND_PLUS = 40  # between the two directions of credit, which have no other mark than the number


def lab(srgb, who):
    """CIELAB of a colour 0..255 as `who` sees it."""
    c = np.asarray(srgb, dtype=float) / 255
    linear = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
    t = TO_XYZ @ np.clip(np.asarray(SEEN[who]) @ linear, 0, 1) / [0.9505, 1, 1.089]
    f = np.where(t > 0.008856, np.cbrt(t), 7.787 * t + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def test_the_measure_is_that_of_others():
    """White, and sRGB red by the CIE's formulas; for protanopes red is dark and yellowish."""
    assert lab((255, 255, 255), "everyone") == pytest.approx([100, 0, 0], abs=0.1)
    assert lab((255, 0, 0), "everyone") == pytest.approx([53.24, 80.09, 67.20], abs=0.1)
    assert lab((255, 0, 0), "protanopia")[0] < 45 and abs(lab((255, 0, 0), "protanopia")[1]) < 15


@pytest.fixture(scope="module")
def schemes():
    """By name of a scheme its variables, as the page defines them."""
    style = pages.environment().get_template("report_style.css.j2").render(most_arms=1)
    light, dark = re.findall(r":root \{(.*?)\}", style, flags=re.DOTALL)
    first = dict(re.findall(r"--(\w+): ([^;]+);", light))
    return {"light": first, "dark": {**first, **dict(re.findall(r"--(\w+): ([^;]+);", dark))}}


def colour(text):
    if text.startswith("#"):
        digits = text[1:] if len(text) == 7 else "".join(2 * d for d in text[1:])
        return [int(digits[i : i + 2], 16) for i in (0, 2, 4)]
    return [int(part) for part in text.split(",")]


@pytest.mark.parametrize("who", SEEN)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_stay_apart(schemes, scheme, who):
    found = schemes[scheme]
    lines = [lab(colour(found[f"s{n}"]), who) for n in range(4)]  # VF, RC, IF and PITFALL
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(lines, 2)) > MOST_ALIKE
    paper = np.array(colour(found["page"]))
    plus, minus = (lab(0.6 * np.array(colour(found[name])) + 0.4 * paper, who) for name in ("plus", "minus"))
    assert np.linalg.norm(plus - minus) > MINUS_AND_PLUS  # as opaque as the strongest credit is drawn


def test_no_line_is_told_by_its_colour_alone():
    """Up to seven lines: markers of seven shapes, and dashes of seven kinds."""
    most = len(plots.SERIES)
    assert len(set(plots.MARKERS)) == len({str(line) for line in plots.LINES}) == most == 7
    points = [(step, step / 10) for step in range(5)]
    svg = plots.over_steps("all", "Seven", {f"line {n}": points for n in range(most)}).svg
    by_series = {}
    for style in re.findall(r'style="fill: none; ([^"]*)"', svg):
        if series := re.search(r"var\(--s\d\)", style):
            dashes = re.search(r"stroke-dasharray: ([^;]*)", style)
            by_series[series[0]] = dashes and dashes[1]
    assert len(by_series) == most and len(set(by_series.values())) == most
