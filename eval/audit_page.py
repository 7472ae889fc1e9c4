"""The page on which people judge a sample of pairs, and the key that says which pairs they are.

In: the drawn pairs (see `audit_sample`). Out: `PAGE.html`, which loads nothing and works offline, and `PAGE.key.jsonl`,
one row per pair. The page is blind: it holds image, question, response and criterion under numbers that mean nothing,
in random order, and neither the judges' verdicts nor ids, which may tell whose response it is and how it came about.

What deserves a word is where the judges point. Where no judge points at a sentence the verdict is mostly no (always, in
the quickstart's tables), so that marks shown from the start would give the verdict away. The page marks the sentences of
all judges alike, when a person asks for it, and keeps the answer that was given before apart.

The export, one per person: `{"format", "version", "page", "annotator", "exported_at", "answers": [{"id", "verdict",
"blind", "marked", "at", "quality"}]}`. `verdict` is "yes", "no", "cannot tell" or null; `blind` the one before the marks
were shown, or null; `marked` whether they were; `quality` has the criterion's "true", "atomic", "type", "redundant".
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..verifier.errors import InputError
from ..verifier.schema import Criterion
from ..verifier.tables import atomic_write, load_image
from . import pages
from .audit_sample import Drawn, Pair

FORMAT, VERSION = "claimwise-audit", 1
VERDICTS = ("yes", "no", "cannot tell")
QUALITY: dict[str, tuple[str, ...]] = {  # each question on a criterion, with its answers, the good one first
    "true": ("yes", "no", "cannot tell"),
    "atomic": ("yes", "no"),
    "type": ("yes", "no"),
    "redundant": ("no", "yes"),
}
LARGEST_IMAGE = 2048  # pixels; larger ones are shrunk for the page
LOSSLESS_IMAGE = 512  # up to here no pixel is changed
KINDS = {
    "VF": "visual faithfulness: about what the image shows",
    "RC": "reasoning consistency: about how the response argues",
    "IF": "instruction following: about what was asked for",
    None: "not given",
}


def write_page(drawn: Sequence[Drawn], out: Path) -> tuple[Path, Path]:
    """The page and, beside it, its key; both paths. The same pairs give the same bytes. Raises InputError, and writes
    nothing, where there is a key of another page, without which nobody's answers to that page could be read."""
    payload = page_data(drawn)
    text, page = _as_json(payload)
    key = out.with_name(out.stem + ".key.jsonl")
    rows = [key_row(one, page, item["id"]) for one, item in zip(drawn, payload["items"], strict=True)]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    html = render(text, page).encode()
    if key.exists() and key.read_bytes() != lines:
        raise InputError(f"{key} is the key of another page, whose answers need it; remove it, or give another --out")
    for path, written in ((key, lines), (out, html)):
        with atomic_write(path) as handle:
            handle.write(written)
    return out, key


def render(data: str, page: str) -> str:
    """`data` is JSON that is safe within a script element, `page` its hash."""
    from markupsafe import Markup

    environment = pages.environment()
    environment.policies["json.dumps_kwargs"] = {
        "sort_keys": False
    }  # the questions' order is that of their keys 1 to 4
    template = environment.get_template("audit_page.html.j2")
    return template.render(data=Markup(data), page=page, quality=QUALITY)


def _as_json(payload: dict[str, Any]) -> tuple[str, str]:
    """The JSON, without a "<" that could end its script element, and its hash."""
    text = json.dumps(payload, allow_nan=False).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return text, hashlib.sha256(text.encode()).hexdigest()[:32]


def page_data(drawn: Sequence[Drawn]) -> dict[str, Any]:
    """What the page shows: items, and the criteria and images that they refer to by number."""
    criteria: dict[tuple[str, str], int] = {}
    images: dict[str, list[int]] = {}
    data: dict[str, Any] = {"format": FORMAT, "version": VERSION, "items": [], "criteria": [], "images": []}
    for number, one in enumerate(drawn, start=1):
        pair = one.pair
        example_id = pair.example.example_id
        if example_id not in images:
            first = len(data["images"])
            data["images"] += [image_data(image) for image in pair.example.images]
            images[example_id] = list(range(first, len(data["images"])))
        if (example_id, pair.criterion.id) not in criteria:
            criteria[example_id, pair.criterion.id] = len(criteria)
            data["criteria"].append(_criterion(pair))
        item = {"id": f"p{number:04d}", "question": pair.example.question, "response": pieces(pair)}
        item |= {"criterion": criteria[example_id, pair.criterion.id], "images": images[example_id]}
        data["items"].append(item)
    return data


def _criterion(pair: Pair) -> dict[str, Any]:
    criterion = pair.criterion
    kind = KINDS[criterion.dimension]
    label = f", {criterion.label.lower()}" if criterion.label and not criterion.is_pitfall else ""
    others = [other.text for other in pair.example.criteria if other.id != criterion.id]
    pitfall = "; names a failure (pitfall)" if criterion.is_pitfall else ""
    return {"text": criterion.text, "kind": kind + label + pitfall, "means": _means(criterion), "others": others}


def _means(criterion: Criterion) -> str:
    if criterion.is_pitfall and criterion.yes_means == "committed":
        return "Yes: the response commits this failure, and it is one. No: it does not, or the image shows it is none."
    if criterion.is_pitfall:
        return "Yes: the response avoids the failure that this is about. No: it commits it."
    return "Yes: the response says or does this, and the image does not contradict it. No: otherwise."


def pieces(pair: Pair) -> list[tuple[str, int]]:
    """The response in pieces, and 1 for those within some judge's sentence."""
    text = pair.rollout.response
    cuts = sorted({0, len(text), *(end for span in pair.spans for end in span)})
    return [(text[a:b], int(any(start <= a < end for start, end in pair.spans))) for a, b in pairwise(cuts)]


def image_data(image: Any) -> dict[str, Any]:
    """An image as a data URI with its size in pixels; without what its file may say besides (place, camera)."""
    pixels = load_image(image)
    pixels.thumbnail((LARGEST_IMAGE, LARGEST_IMAGE))
    buffer = io.BytesIO()
    pixels.save(buffer, format="WEBP", lossless=max(pixels.size) <= LOSSLESS_IMAGE, quality=90, method=4)
    uri = "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode()
    return {"src": uri, "width": pixels.width, "height": pixels.height}


def key_row(one: Drawn, page: str, item: str) -> dict[str, Any]:
    """A row of the key: the pair behind an item, its stratum, and its chance and weight."""
    pair = one.pair
    return {
        "page": page,
        "id": item,
        "example_id": pair.example.example_id,
        "rollout_id": pair.rollout.rollout_id,
        "criterion_id": pair.criterion.id,
        "source": pair.example.source,
        "difficulty": pair.example.difficulty,
        "dimension": pair.criterion.group,
        "verdicts": list(pair.verdicts),
        "chance": one.chance,
        "weight": one.weight,
    }
