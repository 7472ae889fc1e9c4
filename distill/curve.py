"""`claimwise distill --curve`: verifiers distilled on 1/16, 1/8, 1/4, 1/2 and all of the labels, so that a lab knows
when to stop paying its teacher.

In: the settings of a distillation, a folder. Out: under it a verifier for each point (`points/1-16`, ...), curve.json
and curve.html. The sets are nested and drawn by example. Every point has the settings of the whole run and as many
steps at most, and not as many epochs: with one pass over a sixteenth of the labels the verifier would be short of
steps, and the curve would promise gains that more steps bring as well. What few labels lose by being seen too often,
early stopping on validation kappa (`patience`) gives back: set it.
"""

from __future__ import annotations

import copy
import gc
import json
import math
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ..eval.curve_page import as_page
from ..eval.learning_curve import learning_curve
from ..verifier.adapter import check_base, read_card
from ..verifier.errors import InputError
from ..verifier.model import base_hash
from ..verifier.rundir import write_atomic
from ..verifier.schema import Verdict
from ..verifier.tables import atomic_write, read_verdicts, write_verdicts
from .config import DistillConfig
from .identity import identity
from .quantized import refuse_quantized
from .run import distill, load_items, open_together
from .validation import AFTER

SHARES = (16, 8, 4, 2, 1)  # one over the share of the labels


def nested(verdicts: Sequence[Verdict], seed: int, shares: Sequence[int] = SHARES) -> list[list[Verdict]]:
    """For each share 1/k the known verdicts of the first examples, in an order of the seed, that hold a k-th of all
    known verdicts; each list is part of the next, in the order of the table. Raises InputError where two would be the
    same."""
    known = [row for row in verdicts if row.verdict is not None]
    counts = Counter(row.example_id for row in known)
    order = sorted(counts)
    random.Random(f"curve-{seed}").shuffle(order)
    sets, chosen, held = [], set(), 0
    remaining = iter(order)
    for share in shares:
        before = len(chosen)
        while held * share < len(known):
            example_id = next(remaining)
            chosen.add(example_id)
            held += counts[example_id]
        if len(chosen) == before:
            told = ", ".join(f"1/{k}" for k in shares if k > 1)
            raise InputError(
                f"{len(order)} examples have verdicts, too few to draw {told} of them; label more examples"
            )
        sets.append([row for row in known if row.example_id in chosen])
    return sets


def steps_of(config: DistillConfig, responses: int) -> int:
    """Optimizer steps of the whole run, as transformers counts them."""
    if config.max_steps > 0:
        return config.max_steps
    batches = math.ceil(responses / (config.per_device_train_batch_size * config.world_size))
    return math.ceil(config.num_train_epochs * math.ceil(batches / config.gradient_accumulation_steps))


def curve(config: DistillConfig) -> dict[str, Any]:
    """Distils under `config.output_dir` what is not yet distilled and returns the contents of curve.json (see
    `eval.learning_curve`). A finished point is kept; an unfinished one goes on from its last checkpoint. Runs under
    `accelerate launch` as `distill` does."""
    main = config.process_index == 0
    items, _ = load_items(config.examples, config.rollouts, config.verdicts, config.mode)
    held_out = config.validation_examples or config.examples
    load_items(held_out, config.validation_rollouts, config.validation_verdicts, config.mode)  # or refuse it now
    refuse_quantized(config.base)
    sets = nested(read_verdicts(config.verdicts), config.seed)
    digest = base_hash(config.base)
    settings = {**identity(config, digest), "command": "distill --curve", "shares": list(SHARES)}
    folder = open_together(config.output_dir or "curve", settings, main)
    steps = steps_of(config, len(items))
    judged = []
    for number, (share, rows) in enumerate(zip(SHARES, sets, strict=True), 1):
        if main:
            print(f"point {number} of {len(SHARES)}: {_name(share)} of the labels, {len(rows)} verdicts", flush=True)
        judged.append(_point(config, folder, share, rows, steps))
        check_base(read_card(_folder(folder, share)), _folder(folder, share), digest, config.base)  # or it was replaced
    known = {v.key: v for v in read_verdicts(config.validation_verdicts) if v.verdict is not None}
    reference = [known[row.key] for row in judged[-1]]
    found: dict[str, Any] = learning_curve(reference, judged, [len(rows) for rows in sets])
    found |= {"steps": steps, "patience": config.patience}
    for point, share, rows in zip(found["points"], SHARES, sets, strict=True):
        point |= {"share": _name(share), "examples": len({row.example_id for row in rows})}
    if main:
        write_atomic(folder / "curve.json", json.dumps(found, indent=2, allow_nan=False) + "\n")
        with atomic_write(folder / "curve.html") as handle:
            handle.write(as_page(found).encode())
    return found


def _name(share: int) -> str:
    return "all" if share == 1 else f"1/{share}"


def _folder(folder: Path, share: int) -> Path:
    return folder / "points" / _name(share).replace("/", "-")


def _point(config: DistillConfig, folder: Path, share: int, rows: Sequence[Verdict], steps: int) -> list[Verdict]:
    """The point's verdicts on the validation rollouts, once it is distilled."""
    point = _folder(folder, share)
    own = copy.copy(config)
    own.output_dir, own.max_steps = str(point), steps
    if share > 1:
        table = folder / "labels" / f"{point.name}.parquet"
        with config.main_process_first(local=False, desc="drawing labels"):
            if not table.is_file():
                write_verdicts(table, rows)
        own.verdicts = str(table)
    distill(own)
    gc.collect()  # a trainer holds itself, and with it the model, in a circle
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return read_verdicts(point / AFTER)
