"""Judging that shows how far it is, and goes on where it was stopped.

In: responses with their examples, a judge, and a part file beside the table that is to be written. Out: the verdicts of
each response, a line of the part file before the next is waited for. A response of which a verdict is missing is not
kept, so that it is judged again.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..verifier.chat_errors import RETRIED
from ..verifier.image_digest import stored_digest
from ..verifier.part_file import PartFile, part_of, remove_part
from ..verifier.schema import Example, Rollout, Verdict

Item = tuple[Example, Rollout]
Known = dict[str, list[Verdict]]  # verdicts by rollout


@dataclass(frozen=True)
class KeptVerdicts:
    """All verdicts on one response."""

    rollout_id: str
    verdicts: list[Verdict]


def open_part(out: Path, settings: dict[str, Any]) -> PartFile[KeptVerdicts]:
    return PartFile(out, settings, _read, "rollout_id")


def _read(rollout_id: str, verdicts: list[dict[str, Any]]) -> KeptVerdicts:
    return KeptVerdicts(rollout_id, [Verdict(**row) for row in verdicts])


def known_in(part: PartFile[KeptVerdicts]) -> Known:
    return {row.rollout_id: row.verdicts for row in part.rows.values()}


def complete(item: Item, known: Known) -> bool:
    """Whether every criterion has a verdict."""
    example, rollout = item
    verdicts = known.get(rollout.rollout_id, [])
    criteria = [criterion.id for criterion in example.criteria]
    return [v.criterion_id for v in verdicts] == criteria and all(v.verdict is not None for v in verdicts)


def judge_rest(items: Sequence[Item], known: Known, judge: Any, part: PartFile[KeptVerdicts]) -> None:
    """Judges what is not complete, keeps it, and adds it to what is known."""
    from tqdm import tqdm

    from ..verifier.batching import siblings
    from ..verifier.progress import only_our_bars

    only_our_bars()
    todo = [item for item in items if not complete(item, known)]
    order = [todo[n] for group in siblings(todo) for n in group]  # as they are judged, so that each is kept at once
    rows = one_by_one(judge, order)
    bar = tqdm(rows, f"judging by {judge.name}", len(items), initial=len(items) - len(todo), unit="response")
    for item, verdicts in zip(order, bar, strict=True):
        name = item[1].rollout_id
        known[name] = list(verdicts)
        if complete(item, known):
            part.add(KeptVerdicts(name, known[name]))


def finish_part(out: Path, verdicts: Sequence[Verdict]) -> None:
    """Once the table is there. Where a server failed to give some verdicts, the part stays for the same command to go on
    from."""
    failed = sum(str(verdict.error).partition(":")[0] in RETRIED for verdict in verdicts)
    if failed:
        told = f"the server failed on {failed}: the same command asks for them again, and for nothing else"
        print(told, file=sys.stderr)
    else:
        remove_part(out)


def status_of(out: Path) -> int:
    """The exit status, once the table is there: 3 where the part had to stay."""
    return 3 if part_of(out).is_file() else 0


def one_by_one(judge: Any, items: Sequence[Item]) -> Iterator[list[Verdict]]:
    """A list of verdicts per item, as they are ready; the oracle, which has them at once, knows no other way."""
    return judge.judge_each(items) if hasattr(judge, "judge_each") else (judge.judge([item]) for item in items)


class Watched:
    """A judge that keeps what it has judged in a part file beside `out`, until `remove_part(out)`."""

    def __init__(self, judge: Any, out: Path):
        self.judged_by, self.name, self.mode = judge, judge.name, judge.mode
        self._out = out

    def judge(self, items: Sequence[Item]) -> list[Verdict]:
        with open_part(self._out, self._settings(items)) as part:
            known = known_in(part)
            judge_rest(items, known, self.judged_by, part)
        return [verdict for _, rollout in items for verdict in known.get(rollout.rollout_id, [])]

    def _settings(self, items: Sequence[Item]) -> dict[str, Any]:
        """All that bears on the verdicts."""
        judge, content = self.judged_by, hashlib.sha256()
        card = getattr(judge, "card", judge)  # a verifier's
        images: dict[str, list[str]] = {}
        for example, rollout in items:
            if self.mode == "image" and example.example_id not in images:
                images[example.example_id] = [stored_digest(image) for image in example.images]
            shown = images.get(example.example_id)
            asked = (example.example_id, shown, example.question, example.criteria)
            content.update(repr((*asked, rollout.rollout_id, rollout.response)).encode())
        return {
            "judge": self.name,
            "mode": self.mode,
            "adapter": getattr(judge, "adapter", ""),
            "base": getattr(card, "base_hash", ""),
            "prompt": getattr(card, "prompt_hash", ""),
            "temperature": getattr(card, "temperature", None),
            "responses": content.hexdigest()[:16],
        }
