"""`claimwise refresh`: a verifier trained on from the teacher's verdicts on what a GRPO run made, without forgetting.

In: the adapter; the run's examples and rollouts, and verdict tables with the teacher's word on some of them (best all
that were sampled, where the two agreed too: from disagreements alone the verifier learns to doubt itself); what the
adapter was distilled on, and its held-out tables. Out: under `output_dir` the mixed tables (`data/`), the new verifier
with its temperature and figures (`verifier/`), and `refresh.json`: agreement before and after, on held-out examples old
and new.

A share of the run's examples is held out with their images, and every example that the old held-out table has too. Ids
of the run's rows get a prefix made of its rollout table: steps are numbered alike in all runs.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..eval.agreement import agree
from ..eval.compare import compare
from ..verifier.adapter import MERGED, VerifierCard, read_card
from ..verifier.errors import InputError
from ..verifier.judge import resolve_base
from ..verifier.lora import lora_settings
from ..verifier.rundir import write_atomic
from ..verifier.schema import Verdict
from ..verifier.tables import (
    pair_up,
    read_examples,
    read_rollouts,
    read_verdicts,
    write_examples,
    write_rollouts,
    write_verdicts,
)
from .config import DistillConfig
from .identity import digest
from .run import distill, load_items, open_together
from .train import Item, join_verdicts
from .validation import AFTER, BEFORE

TABLES = ("examples", "rollouts", "old_examples", "old_rollouts", "old_verdicts", "validation_rollouts")
TABLES += ("validation_verdicts",)


@dataclass
class RefreshConfig(DistillConfig):
    """`examples` and `rollouts` are the GRPO run's, the validation tables those of the old distillation. Mode,
    readings, rank and name are the adapter's."""

    base: str = field(default="", metadata={"help": "the base, where not what the adapter names"})
    disagreements: list[str] = field(
        default_factory=list, metadata={"help": "the teacher's verdict tables on the GRPO run's rollouts"}
    )
    old_examples: str = field(default="", metadata={"help": "the example table that the adapter was distilled on"})
    old_rollouts: str = field(default="", metadata={"help": "its rollout table"})
    old_verdicts: str = field(default="", metadata={"help": "its verdict table"})
    replay: float = field(default=0.5, metadata={"help": "share of the verdicts trained on that are old ones"})
    held_out: float = field(default=0.2, metadata={"help": "share of the run's examples that is held out"})

    def __post_init__(self) -> None:
        if not 0 <= self.replay < 1:
            raise InputError(f"replay is {self.replay}; it must be a share from 0 to below 1")
        if not 0 < self.held_out < 1:
            raise InputError(f"held_out is {self.held_out}; it must be a share between 0 and 1")
        super().__post_init__()


def refresh(config: RefreshConfig) -> dict[str, Any]:
    """Trains and measures; returns the contents of refresh.json. Gone on with like a distillation."""
    main = config.process_index == 0
    card, lora = _check(config)
    found_wrong = _new_items(config, card)
    prefix = digest(config.rollouts)[:8] + "/"
    new = [_renamed(item, prefix) for item in found_wrong]
    old, _ = load_items(config.old_examples, config.old_rollouts, config.old_verdicts, card.mode)
    kept = config.validation_examples or config.old_examples
    validation, _ = load_items(kept, config.validation_rollouts, config.validation_verdicts, card.mode)
    train, held_out = split_new(new, prefix, validation, config.held_out, config.seed)
    replayed = replay(old, sum(len(rows) for *_, rows in train), config.replay, config.seed)
    folder = open_together(config.output_dir or "refreshed", _identity(config, kept), main)
    with config.main_process_first(local=False, desc="mixing tables"):
        if main:
            _write_part(folder / "data" / "train", [*replayed, *train])
            _write_part(folder / "data" / "validation", [*validation, *held_out])
    if main:
        print(_told(train, replayed, held_out, config))
    distill(_settings(config, card, lora, folder))
    found = _measure(folder, [*validation, *held_out], prefix)
    found["trained_on"] = {"new": _count(train), "replayed": _count(replayed)}
    if main:
        write_atomic(folder / "refresh.json", json.dumps(found, indent=2, allow_nan=False) + "\n")
    return found


def _measure(folder: Path, held_out: Sequence[Item], prefix: str) -> dict[str, Any]:
    """Agreement before and after on the old and on the new of the held-out examples."""
    before, after = (read_verdicts(folder / "verifier" / name) for name in (BEFORE, AFTER))
    reference = [row for *_, rows in held_out for row in rows]

    def part(new: bool) -> dict[str, Any]:
        tables = (reference, before, after)
        return before_and_after(*([v for v in rows if v.example_id.startswith(prefix) is new] for rows in tables))

    return {"old": part(new=False), "new": part(new=True)}


def before_and_after(
    reference: Sequence[Verdict], before: Sequence[Verdict], after: Sequence[Verdict]
) -> dict[str, Any]:
    """{"before": figures, "after": figures (see `agree`), "change": the paired table of agreeing (see `compare`)}."""
    change = compare(before, after, reference)["slices"]["overall"]["right"]
    return {"before": agree(reference, before), "after": agree(reference, after), "change": change}


def split_new(
    new: Sequence[Item], prefix: str, old_validation: Sequence[Item], share: float, seed: int
) -> tuple[list[Item], list[Item]]:
    """To train on, and held out: a share of the examples (those with the same images together), and all that the old
    held-out table has, by id or image."""
    taken = {example.example_id for example, *_ in old_validation}
    seen = {str(image) for example, *_ in old_validation for image in example.images}
    groups, forced = {_group(item) for item in new}, set()
    for item in new:
        if item[0].example_id.removeprefix(prefix) in taken or seen.intersection(map(str, item[0].images)):
            forced.add(_group(item))
    order = sorted(groups - forced)
    random.Random(f"refresh-{seed}").shuffle(order)
    chosen = forced | set(order[: max(0, round(share * len(groups)) - len(forced))])
    train = [item for item in new if _group(item) not in chosen]
    held_out = [item for item in new if _group(item) in chosen]
    if not train or not held_out:
        raise InputError(
            f"the teacher's verdicts are on {len(groups)} examples, {len(forced)} of them held out before; too few to "
            f"train on some and to hold out {share:g}: give more, or another --held_out"
        )
    return train, held_out


def _group(item: Item) -> str:
    return "|".join(map(str, item[0].images)) or item[0].example_id


def replay(old: Sequence[Item], verdicts: int, share: float, seed: int) -> list[Item]:
    """Old responses, drawn whole, until they hold the share beside so many new `verdicts`; all where they do not."""
    order = list(old)
    random.Random(f"replay-{seed}").shuffle(order)
    wanted, held, out = verdicts * share / (1 - share), 0, []
    for item in order:
        if held >= wanted:
            break
        out.append(item)
        held += len(item[2])
    return out


def _check(config: RefreshConfig) -> tuple[VerifierCard, dict[str, Any]]:
    """The adapter's card and its LoRA settings."""
    needed = ("adapter", "disagreements", *TABLES)
    if empty := [name for name in needed if not getattr(config, name)]:
        raise InputError(f"the setting {empty[0]} is empty; refresh needs {', '.join(needed)}")
    card = read_card(config.adapter)
    if card.base == MERGED:
        raise InputError(f"{config.adapter} is merged into its base; give the adapter that was merged")
    return card, lora_settings(config.adapter)


def _new_items(config: RefreshConfig, card: VerifierCard) -> list[Item]:
    rows: list[Verdict] = []
    for path in config.disagreements:
        table = read_verdicts(path)
        if other := [row for row in table if row.mode != card.mode]:
            raise InputError(f"{path} has verdicts in {other[0].mode} mode, but the verifier is for {card.mode} mode")
        rows += table
    keys = [row.key for row in rows]
    if len(set(keys)) < len(keys):
        twice = next(key for number, key in enumerate(keys) if key in keys[:number])
        raise InputError(
            f"the disagreements judge rollout {twice[0]!r}, criterion {twice[1]!r} twice; keep one verdict"
        )
    return join_verdicts(pair_up(read_examples(config.examples), read_rollouts(config.rollouts)), rows)


def _renamed(item: Item, prefix: str) -> Item:
    example, rollout, rows = item
    ids = {"example_id": prefix + example.example_id, "rollout_id": prefix + rollout.rollout_id}
    return (
        replace(example, example_id=ids["example_id"]),
        replace(rollout, **ids),
        [replace(row, **ids) for row in rows],
    )


def _identity(config: RefreshConfig, kept: str) -> dict[str, Any]:
    tables = {"validation_examples": kept, **{name: getattr(config, name) for name in TABLES}}
    return {
        "command": "refresh",
        **{name: f"sha256 {digest(path)}" for name, path in tables.items()},
        "disagreements": [f"sha256 {digest(path)}" for path in config.disagreements],
        **{name: getattr(config, name) for name in ("replay", "held_out", "seed")},
    }


def _write_part(folder: Path, items: Sequence[Item]) -> None:
    """The tables of some items, verdicts last; left alone where they are there."""
    if (folder / "verdicts.parquet").is_file():
        return
    write_examples(folder / "examples.parquet", {e.example_id: e for e, *_ in items}.values())
    write_rollouts(folder / "rollouts.parquet", [rollout for _, rollout, _ in items])
    write_verdicts(folder / "verdicts.parquet", [row for *_, rows in items for row in rows])


def _settings(config: RefreshConfig, card: VerifierCard, lora: dict[str, Any], folder: Path) -> RefreshConfig:
    own = copy.copy(config)
    own.base = str(config.base or resolve_base(card, Path(config.adapter)))
    own.mode, own.readings, own.name = card.mode, card.readings, card.name
    own.lora_r, own.lora_alpha = lora["r"], lora["lora_alpha"]
    own.output_dir = str(folder / "verifier")
    for prefix, part in (("", "train"), ("validation_", "validation")):
        for name in ("examples", "rollouts", "verdicts"):
            setattr(own, prefix + name, str(folder / "data" / part / f"{name}.parquet"))
    return own


def _told(train: Sequence[Item], replayed: Sequence[Item], held_out: Sequence[Item], config: RefreshConfig) -> str:
    new, old, kept = (_count(items) for items in (train, replayed, held_out))
    short = new * config.replay / (1 - config.replay) > old
    return (
        f"training on {new} new verdicts and {old} old ones{' (all there are)' if short else ''}; {kept} new ones, of "
        f"{len({_group(item) for item in held_out})} examples, held out"
    )


def _count(items: Iterable[Item]) -> int:
    return sum(len(rows) for *_, rows in items)


def as_text(found: dict[str, Any]) -> str:
    table = [["held out", "verdicts", "agreement before", "after", "change", "kappa before", "after"]]
    for name in ("old", "new"):
        part = found[name]
        before, after, change = part["before"]["overall"], part["after"]["overall"], part["change"]
        row = [name, f"{after['n']:,}", _shown(before, "agreement"), _shown(after, "agreement")]
        table.append([*row, _shown(change, "difference", "+.3f"), _shown(before, "kappa"), _shown(after, "kappa")])
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in table)


def _shown(figures: dict[str, Any], name: str, form: str = ".3f") -> str:
    value, interval = figures[name], figures[f"{name}_ci"]
    if value is None:
        return "-"
    return f"{value:{form}}" + (f" [{interval[0]:{form}}, {interval[1]:{form}}]" if interval else "")
