"""Conversations of the digits world for a cold start: pictures of the training digits, questions, right answers.

    python -m claimwise.scripts.digits_conversations runs/conversations --count 512

Out: FOLDER/conversations.jsonl (`messages` and `images`, one row a line) and FOLDER/images.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

from ..distill.digits import make_example
from ..verifier.rundir import write_atomic


def write_conversations(folder: Path, count: int, seed: int = 0, part: str = "train") -> Path:
    """The references of examples without a careless annotator's mistakes."""
    rng, lines = random.Random(seed), []
    (folder / "images").mkdir(parents=True, exist_ok=True)
    for number in range(count):
        example = make_example(rng, part, number, wrong_share=0.0)
        name = f"images/{number:05d}.png"
        example.images[0].save(folder / name)  # pyright: ignore[reportAttributeAccessIssue]
        turns = [{"role": "user", "content": example.question}, {"role": "assistant", "content": example.reference}]
        lines.append(json.dumps({"messages": turns, "images": [name]}) + "\n")
    path = folder / "conversations.jsonl"
    write_atomic(path, "".join(lines))
    return path


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=512)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    print(write_conversations(args.folder, args.count, args.seed))
