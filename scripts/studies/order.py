"""claimwise study order: what the order does in which a verifier writes label, reading, quote and verdict.

In: a recipe that states settings and contrasts. Out: a folder with a file per run, `study.json` and `study.md`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import partial
from importlib import resources
from pathlib import Path

from ...verifier.errors import InputError
from .arms import make_parser, open_study
from .settings import numbers, pairs_among

EXAMPLE = """example:
  claimwise study order --out runs/study-order --jobs 2

A tiny verifier learns from scratch on the oracle's verdicts, once in each order and with every seed, on the same
pictures, responses and steps. The recipe (scripts/recipes/study-order.yaml) states settings and contrasts before the
runs. The same command goes on where it was stopped; --report writes the tables of what is finished and runs nothing."""

METRICS = ("agreement", "VF", "RC", "IF", "PITFALL", "wrong criteria", "span")


@dataclass(frozen=True)
class Cell:
    order: str

    @property
    def key(self) -> str:
        return self.order

    def table(self, compared: str) -> str:
        return "orders"


@dataclass(frozen=True)
class Task:
    """One run."""

    order: str
    seed: int

    @property
    def key(self) -> str:
        return self.order

    @property
    def file(self) -> str:
        return f"runs/{self.order}_seed{self.seed}.json"


@dataclass
class OrderSettings:
    """Seeds are written "0-19" or "0,3,5". The counts of what a step holds are of packed trees."""

    orders: list[str] = field(metadata={"help": "verdict, label, reading, quote"})
    metrics: list[str] = field(metadata={"help": "the outcomes that are compared"})
    contrasts: list[str] = field(metadata={"help": 'pairs "A - B" of orders'})
    compare: str = field(default="order", metadata={"help": "what the contrasts name"})
    seeds: str = field(default="0-2", metadata={"help": "the seeds that are compared"})
    steps: int = field(default=2000, metadata={"help": "training steps"})
    evaluate_at: list[int] = field(default_factory=lambda: [500, 1000, 1500, 2000], metadata={"help": "steps"})
    report_at: list[int] = field(default_factory=lambda: [1000, 2000], metadata={"help": "steps that have a table"})
    responses: int = field(default=12, metadata={"help": "of a step, each with its criteria"})
    glances: int = field(default=12, metadata={"help": "of a step: a picture alone, and which digits it shows"})
    answers: int = field(default=2, metadata={"help": "of a step: a question, answered"})
    probes: int = field(default=8, metadata={"help": "of a step: lookups in a response and its picture"})
    hidden_size: int = field(default=64, metadata={"help": "width of the model"})
    layers: int = field(default=4, metadata={"help": "depth of the model"})
    learning_rate: float = field(default=3e-3, metadata={"help": "at its peak"})
    test_responses: int = field(default=200, metadata={"help": "held out, the same for all runs"})

    def __post_init__(self) -> None:
        from ...distill.orders import ORDERS

        for key, known in {"orders": ORDERS, "metrics": METRICS}.items():
            for value in getattr(self, key):
                if value not in known:
                    raise InputError(f"{key}: {value!r} is unknown; known are {', '.join(known)}")
        if self.compare != "order":
            raise InputError(f"compare is {self.compare!r}; this study compares order")
        steps = self.evaluate_at
        if not steps or steps != sorted(set(steps)) or steps[0] < 1 or steps[-1] != self.steps:
            raise InputError(f"evaluate_at is {steps}; it must rise to steps ({self.steps})")
        if not self.report_at or not set(self.report_at) <= set(steps):
            raise InputError(f"report_at is {self.report_at}; it must name steps of evaluate_at ({steps})")
        numbers(self.seeds)
        self.pairs()

    @property
    def beside(self) -> list[str]:
        return ["tokens"]

    @property
    def lead(self) -> str:
        return (
            f"{self.steps} steps from scratch each, {self.layers} layers of {self.hidden_size}, measured on the same "
            f"{self.test_responses} held-out responses against people's labels. `tokens` are written for a verdict."
        )

    def cells(self) -> list[Cell]:
        return [Cell(order) for order in self.orders]

    def pairs(self) -> list[tuple[str, str]]:
        return pairs_among(self.contrasts, self.orders)

    def tasks(self) -> list[Task]:
        """Seeds come first to last, all orders of one before the next."""
        return [Task(order, seed) for seed in numbers(self.seeds) for order in self.orders]


def main(argv: list[str]) -> int:
    from .plan import read_results
    from .report import write_study

    what = "Train a tiny verifier in every order of label, reading, quote and verdict, and compare the orders in pairs."
    parser = make_parser("order", what, EXAMPLE)
    args = parser.parse_args(argv)
    if args.jobs < 1:
        raise InputError(f"--jobs is {args.jobs}; give 1 or more")
    recipe = args.config or Path(str(resources.files("claimwise.scripts") / "recipes" / "study-order.yaml"))
    settings = read_settings(recipe, args.seeds)
    settings = quick(settings) if args.quick else settings
    out = open_study(args, {"command": "study order", **dataclasses.asdict(settings)})
    if not args.report:
        run_all_of(settings, out, args.jobs)
    results = read_results(settings.tasks(), out)
    if not any(results.values()):
        raise InputError(f"{out} holds no finished run yet; leave --report out to make them")
    print(write_study(settings, out, results, {}))
    print(f"written to {out}/study.md and study.json")
    return 0


def read_settings(recipe: Path, seeds: str | None) -> OrderSettings:
    from ...verifier.settings import parse_settings

    flags = [] if seeds is None else ["--seeds", seeds]
    return parse_settings(OrderSettings, ["--config", str(recipe), *flags], "study order")


def quick(settings: OrderSettings) -> OrderSettings:
    """The same study in a minute or two, to see that it works."""
    seeds = ",".join(map(str, numbers(settings.seeds)[:2]))
    small = {"responses": 2, "glances": 2, "answers": 1, "probes": 1, "test_responses": 8}
    return dataclasses.replace(settings, seeds=seeds, steps=4, evaluate_at=[2, 4], report_at=[4], **small)


def run_all_of(settings: OrderSettings, out: Path, jobs: int) -> None:
    """Runs what has no file yet, with one bar over all of it."""
    from tqdm import tqdm

    from .order_runs import carry_out
    from .plan import run_all

    tasks = settings.tasks()
    done = sum((out / task.file).is_file() for task in tasks)
    with tqdm(total=len(tasks), initial=done, desc="study", unit="run") as bar:
        run_all(tasks, partial(carry_out, settings=settings), out, jobs, bar)
