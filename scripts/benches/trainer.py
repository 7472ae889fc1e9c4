"""claimwise bench trainer: what the trainer costs beside stock TRL, and that arm `answer` is stock TRL.

On the shipped digits policy, 8 pictures x 8 responses a step, the oracle as judge. All times are CPU seconds of the
training thread, with one torch thread, so that other work on the machine hardly counts.
"""

from __future__ import annotations

import contextlib
import math
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from importlib import resources
from unittest import mock

DESCRIPTION = """What the trainer costs beside stock TRL 1.16, and that arm `answer` is stock TRL.

  override_share            CPU time inside our overrides, judge aside, as a share of the step without the judge
  overhead_vs_trl           step of arm `prefix`, judge aside, over the step of stock GRPOTrainer, runs in turn
  overhead_ci               95% interval of that ratio over the pairs of runs
  advantages_s              seconds for 192 x 12 responses x 7 criteria x 2,048 tokens on one core
  max_loss_diff_answer_arm  largest difference of a loss between arm `answer` and stock TRL, same seed
  shared_base_extra_mb      megabytes that a verifier takes as second adapter on the policy's base
  own_base_extra_mb         megabytes that it takes on a base of its own (about 225 MB of weights)"""
EXAMPLE = "example:\n  claimwise bench trainer --json"
SETTINGS = {
    "per_device_train_batch_size": 64, "num_generations": 8, "max_completion_length": 64, "bf16": False, "use_cpu": True,
    "gradient_checkpointing": False, "report_to": "none", "save_strategy": "no", "logging_steps": 1, "seed": 0,
    "disable_tqdm": True, "dataloader_pin_memory": False, "lr_scheduler_type": "constant",
}  # fmt: skip
ASSETS = resources.files("claimwise.distill") / "assets"


def add_flags(parser) -> None:
    parser.add_argument("--pairs", type=int, default=8, help="runs of each trainer, in turn (default: 8)")
    parser.add_argument(
        "--steps", type=int, default=4, help="steps of a run, the first of which is left out (default: 4)"
    )


def measure(args) -> dict:
    import torch

    from ...verifier.errors import InputError
    from ...verifier.progress import only_our_bars
    from . import shared_base as memory

    if args.pairs < 2 or args.steps < 2:
        raise InputError("pairs and steps must be at least 2: an interval needs two runs, and a first step is left out")
    only_our_bars()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        difference = answer_difference(args.steps)
        share, ratios = compare(args.pairs, args.steps)
    finally:
        torch.set_num_threads(threads)
    ratio, interval = mean_ratio(ratios)
    shared, apart = memory.measure()
    return {
        "override_share": round(share, 5),
        "overhead_vs_trl": round(ratio, 4),
        "overhead_ci": [round(end, 4) for end in interval],
        "advantages_s": round(advantages_seconds(), 3),
        "max_loss_diff_answer_arm": difference,
        "shared_base_extra_mb": round(shared, 1),
        "own_base_extra_mb": round(apart, 1),
    }


class Clock:
    """CPU seconds of this thread by part; what runs inside a part is not counted to the part around it."""

    def __init__(self) -> None:
        self.seconds = {"trl": 0.0, "ours": 0.0, "judge": 0.0}
        self._part, self._since = "trl", time.thread_time()

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        outer = self._part
        self._switch(name)
        try:
            yield
        finally:
            self._switch(outer)

    def _switch(self, name: str) -> None:
        now = time.thread_time()
        self.seconds[self._part] += now - self._since
        self._part, self._since = name, now

    def restart(self) -> None:
        self._switch("trl")
        self.seconds = dict.fromkeys(self.seconds, 0.0)

    def read(self) -> dict[str, float]:
        self._switch(self._part)
        return dict(self.seconds)

    def around(self, name: str, function):
        def timed(*args, **kwargs):
            with self.part(name):
                return function(*args, **kwargs)

        return timed


def stock(folder: str, examples, learning_rate: float, steps: int):
    """Stock GRPOTrainer with the rewards that arm `answer` has under the budget "0.5,0.1,0.4"."""
    from trl import GRPOConfig, GRPOTrainer

    from ...trainer import answer_reward, format_reward, prompts_of

    settings = {**SETTINGS, "learning_rate": learning_rate, "max_steps": steps, "reward_weights": [0.9, 0.1]}
    config = GRPOConfig(output_dir=folder, **settings)
    model, processor = _policy()
    rewards = [answer_reward, format_reward]
    return GRPOTrainer(model, rewards, config, prompts_of(examples), processing_class=processor)


def ours(folder: str, examples, learning_rate: float, steps: int, arm: str, clock: Clock | None = None):
    from ...distill.oracle import OracleJudge
    from ...trainer import RubricGRPOConfig, RubricGRPOTrainer

    settings = {**SETTINGS, "learning_rate": learning_rate, "max_steps": steps, "arm": arm, "budget": "0.5,0.1,0.4"}
    judge, teacher = OracleJudge("image"), OracleJudge("image")
    if clock is not None:
        judge.judge = clock.around("judge", judge.judge)
    model, processor = _policy()
    config = RubricGRPOConfig(output_dir=folder, **settings)
    return RubricGRPOTrainer(model, config, examples, judge, teacher, processing_class=processor)


def _policy():
    import torch
    from transformers import AutoModelForImageTextToText

    from ...verifier.processor import load_processor

    folder = str(ASSETS / "policy")
    return AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32), load_processor(folder)


def _examples() -> list:
    from ...distill.digits import make_example

    rng = random.Random(0)
    return [make_example(rng, "train", number) for number in range(16)]


def losses_of(trainer) -> list[float]:
    from transformers import PrinterCallback

    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


def answer_difference(steps: int) -> float:
    """Each trainer is made and trained before the next: both seed the one random generator when made."""
    examples = _examples()
    with tempfile.TemporaryDirectory() as folder:
        one = losses_of(ours(folder, examples, 3e-4, steps, "answer"))
        other = losses_of(stock(folder, examples, 3e-4, steps))
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def compare(pairs: int, steps: int) -> tuple[float, list[float]]:
    """The share of our overrides over all runs, and per pair the ratio of the two steps. Learning rate 0, so that both
    trainers sample the same completions; who goes first changes with every pair."""
    from tqdm import tqdm

    examples, overrides, total, ratios = _examples(), 0.0, 0.0, []
    for pair in tqdm(range(pairs), desc="bench trainer", unit="pair"):
        seconds = {}
        for name in ("ours", "stock") if pair % 2 else ("stock", "ours"):
            seconds[name] = _timed_run(name, examples, steps)
        own = seconds["ours"]
        overrides, total = overrides + own["ours"], total + own["ours"] + own["trl"]
        ratios.append((own["ours"] + own["trl"]) / seconds["stock"]["trl"])
    return overrides / total, ratios


def _timed_run(name: str, examples, steps: int) -> dict[str, float]:
    """CPU seconds by part, from the second step to the last."""
    from transformers import TrainerCallback
    from trl import GRPOTrainer

    from ...trainer import RubricGRPOTrainer

    clock, read = Clock(), {}

    class Reading(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == 1:
                clock.restart()

        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == steps:
                read.update(clock.read())

    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        for owner, part in ((GRPOTrainer, "trl"), (RubricGRPOTrainer, "ours")):
            for method in ("_calculate_rewards", "_generate_and_score_completions"):
                timed = clock.around(part, vars(owner)[method])
                stack.enter_context(mock.patch.object(owner, method, timed))
        if name == "ours":
            trainer = ours(folder, examples, 0.0, steps, "prefix", clock)
        else:
            trainer = stock(folder, examples, 0.0, steps)
        trainer.add_callback(Reading())
        losses_of(trainer)
    return read


def mean_ratio(ratios: list[float]) -> tuple[float, tuple[float, float]]:
    """Geometric mean, with Student's 95% interval on the logarithms."""
    from scipy.stats import t

    logs = [math.log(ratio) for ratio in ratios]
    mean, error = statistics.fmean(logs), statistics.stdev(logs) / math.sqrt(len(logs))
    reach = float(t.ppf(0.975, len(logs) - 1)) * error
    return math.exp(mean), (math.exp(mean - reach), math.exp(mean + reach))


def advantages_seconds(groups: int = 192, responses: int = 12, criteria: int = 7, tokens: int = 2048) -> float:
    """Median of three, each over all groups, whose tokens have 1-5 characters and whose spans 150."""
    import numpy as np

    from ...trainer.credit import token_advantages
    from ...trainer.group_scores import ScoredResponse
    from ...verifier.schema import Criterion

    rng = np.random.default_rng(0)
    rubric = [Criterion(f"c{j}", "", dimension="VF", label="ESSENTIAL", weight=j + 1.0) for j in range(criteria)]

    def response() -> ScoredResponse:
        ends = np.cumsum(rng.integers(1, 6, tokens))
        starts = np.concatenate([[0], ends[:-1]])
        first = rng.integers(0, int(ends[-1]) - 150, criteria).tolist()
        yes = (rng.random(criteria) < 0.5).tolist()
        verdicts = {c.id: (yes[j], (first[j], first[j] + 150)) for j, c in enumerate(rubric)}
        return ScoredResponse(np.stack([starts, ends], axis=1), float(rng.integers(0, 2)), 1.0, verdicts)

    everything = [[response() for _ in range(responses)] for _ in range(groups)]
    seconds = []
    for _ in range(3):
        started = time.thread_time()
        for group in everything:
            token_advantages(rubric, group, arm="prefix")
        seconds.append(time.thread_time() - started)
    return statistics.median(seconds)
