"""The settings of `claimwise study arms` and `judges`: what is run and what is compared, stated before the runs.

In: a recipe (scripts/recipes/study-arms.yaml, study-judges.yaml). Out: `StudySettings`, the cells (the settings that are
crossed) and, per table, the contrasts between cells that differ in one setting alone.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...distill.grids import TWO
from ...distill.grids import WORLDS as GRIDS
from ...trainer.credit import ARMS, resolve_budget
from ...verifier.errors import InputError
from .metrics import METRICS

COMPARED = {"arm": "arms", "judge": "judges"}  # what contrasts name -> the setting that lists its values
SWAPPING = "2x2-swapping"  # its start policy reads 4 and 9 wrong the way in which the systematic annotator does
WORLDS = {**GRIDS, SWAPPING: TWO}
ANNOTATORS = ("clean", "systematic")
JUDGES = ("oracle", "image", "text")


@dataclass(frozen=True)
class Cell:
    """One combination of what is crossed; every seed runs in each cell."""

    world: str
    arm: str
    judge: str
    budget: str
    match_rms: bool

    @property
    def key(self) -> str:
        return "_".join([self.world, self.arm, self.judge, self.budget, "rms" if self.match_rms else "plain"])

    def table(self, compared: str) -> str:
        """The table that a cell stands in: all of it but what is compared."""
        rest = {key: value for key, value in dataclasses.asdict(self).items() if key != compared}
        return ", ".join(f"{key} {str(value).lower()}" for key, value in rest.items())


@dataclass
class StudySettings:
    """Lists are crossed. Seeds are written "0-19" or "0,3,5"."""

    compare: str = field(metadata={"help": "what the contrasts name: arm or judge"})
    arms: list[str] = field(metadata={"help": "where credit goes"})
    judges: list[str] = field(metadata={"help": "oracle, image, text"})
    budgets: list[str] = field(metadata={"help": "shares of answer, format and rubric"})
    match_rms: list[bool] = field(metadata={"help": "whether advantages are divided by their RMS"})
    metrics: list[str] = field(metadata={"help": "the outcomes that are compared"})
    contrasts: list[str] = field(metadata={"help": 'pairs "A - B" of what is compared'})
    worlds: list[str] = field(default_factory=lambda: ["2x2"], metadata={"help": ", ".join(WORLDS)})
    annotator: str = field(default="clean", metadata={"help": "who wrote the criteria: clean, or systematic"})
    recipe: str = field(
        default="grpo-digits.yaml", metadata={"help": "GRPO recipe of all runs: a shipped one or a file"}
    )
    seeds: str = field(default="0-19", metadata={"help": "the seeds that are compared"})
    steps: int = field(default=40, metadata={"help": "GRPO steps"})
    evaluate_at: list[int] = field(default_factory=lambda: [0, 10, 20, 30, 40], metadata={"help": "steps"})
    report_at: list[int] = field(default_factory=lambda: [20, 40], metadata={"help": "steps that have a table"})
    training_pictures: int = field(default=320, metadata={"help": "pictures of a run, drawn by its seed"})
    test_pictures: int = field(default=200, metadata={"help": "pictures that all runs are measured on"})
    learning_rates: list[float] = field(default_factory=lambda: [3e-4], metadata={"help": "the grid to tune over"})
    tuning_seeds: str = field(default="100,101", metadata={"help": "seeds for tuning, none of the compared ones"})
    tuned_by: list[str] = field(default_factory=list, metadata={"help": "their mean decides the rate"})

    def __post_init__(self) -> None:
        allowed = {"worlds": WORLDS, "arms": ARMS, "judges": JUDGES, "metrics": METRICS, "tuned_by": METRICS}
        for key, known in allowed.items():
            for value in getattr(self, key):
                if value not in known:
                    raise InputError(f"{key}: {value!r} is unknown; known are {', '.join(known)}")
        if any(WORLDS[world] is not TWO for world in self.worlds) and set(self.judges) - {"oracle"}:
            raise InputError("judges: the verifiers know 2x2 pictures alone; give another world the judge oracle alone")
        for key, known in {"compare": COMPARED, "annotator": ANNOTATORS}.items():
            if getattr(self, key) not in known:
                raise InputError(f"{key} is {getattr(self, key)!r}; it must be one of {', '.join(known)}")
        for budget in self.budgets:
            resolve_budget(budget)
        if not self.evaluate_at or self.evaluate_at != sorted({0, *self.evaluate_at, self.steps}):
            raise InputError(f"evaluate_at is {self.evaluate_at}; it must rise from 0 to steps ({self.steps})")
        if not self.report_at or not set(self.report_at) <= set(self.evaluate_at):
            raise InputError(f"report_at is {self.report_at}; it must name steps of evaluate_at ({self.evaluate_at})")
        both = set(numbers(self.seeds)) & set(numbers(self.tuning_seeds))
        if both:
            raise InputError(f"seed {min(both)} is in seeds and in tuning_seeds; what is tuned on is not used again")
        if len(self.learning_rates) > 1 and not self.tuned_by:
            raise InputError("learning_rates has several values; say in tuned_by which outcomes decide")
        self.pairs()

    def cells(self) -> list[Cell]:
        crossed = itertools.product(self.worlds, self.budgets, self.match_rms, self.arms, self.judges)
        return [Cell(world, arm, judge, budget, rms) for world, budget, rms, arm, judge in crossed]

    @property
    def beside(self) -> list[str]:
        return ["kl"]

    @property
    def lead(self) -> str:
        return (
            f"{self.steps} GRPO steps each, measured on the same {self.test_pictures} test pictures. KL is from the "
            "start policy, in nats a response; the equal KL is the one that every run of the table came to."
        )

    def pairs(self) -> list[tuple[str, str]]:
        """The contrasts as pairs of values of what is compared. Raises InputError where one is not run."""
        return pairs_among(self.contrasts, getattr(self, COMPARED[self.compare]))


def pairs_among(contrasts: Sequence[str], values: Sequence[str]) -> list[tuple[str, str]]:
    """Contrasts written "A - B" as pairs. Raises InputError where A or B is not one of the values."""
    found = []
    for contrast in contrasts:
        pair = tuple(contrast.split(" - "))
        if len(pair) != 2 or not set(pair) <= set(values):
            raise InputError(f"contrasts: {contrast!r} must be `A - B` with A and B among {', '.join(values)}")
        found.append(pair)
    return found


def numbers(text: str) -> list[int]:
    """The numbers of "0-19" or "0,3,5-7", each once. Raises InputError."""
    return list(dict.fromkeys(_numbers(text)))


def _numbers(text: str) -> Iterator[int]:
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if match is None or (match[2] and int(match[2]) < int(match[1])):
            raise InputError(f"seeds {text!r}: {part.strip()!r} is no number and no range; write 0-19, or 0,3,5")
        yield from range(int(match[1]), int(match[2] or match[1]) + 1)


def read_settings(config: Path, seeds: str | None, command: str) -> StudySettings:
    """The recipe, with other seeds where the command line names them. Raises InputError naming the file."""
    from ...verifier.settings import parse_settings

    flags = [] if seeds is None else ["--seeds", seeds]
    return parse_settings(StudySettings, ["--config", str(config), *flags], command)


def quick(settings: StudySettings) -> StudySettings:
    """The same study in minutes, to see that it works: two seeds, six steps, few pictures, one learning rate."""
    rate = sorted(settings.learning_rates)[len(settings.learning_rates) // 2]
    seeds = ",".join(map(str, numbers(settings.seeds)[:2]))
    small = {"training_pictures": 48, "test_pictures": 24, "learning_rates": [rate], "seeds": seeds}
    return dataclasses.replace(
        settings, steps=6, evaluate_at=[0, 3, 6], report_at=[6], match_rms=settings.match_rms[:1], **small
    )
