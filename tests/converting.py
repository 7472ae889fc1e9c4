"""Shared by the tests of `claimwise data`: rows, pictures, the command, and what it rejected."""

import io
import json

import numpy as np
from claimwise.scripts.cli import main
from PIL import Image

RUBRIC = [{"title": "Three", "description": "It says 3.", "type": "VF", "weight": 5}]


def picture(number, size=(32, 24)):
    values = np.random.default_rng(number).integers(0, 256, (*size[::-1], 3), dtype=np.uint8)
    return Image.fromarray(values)


def encoded(image, kind="PNG", **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def row(number, **change):
    return {"uid": f"u{number}", "question": f"What is {number}?", "rubrics": RUBRIC, "answer": "3", **change}


def write_lines(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows), encoding="utf-8")
    return path


def run(*argv):
    return main(["data", *map(str, argv)])


def rejected(out):
    return [json.loads(line) for line in (out / "rejected.jsonl").read_text().splitlines()]
