"""One run of a study: GRPO in the digits world under one setting and one seed, measured on pictures that all runs share.

In: a `Task` (cell, seed, learning rate), the settings, and where judges and start policies lie. Out: a dictionary of
the outcomes at each evaluation, with the KL from the start policy in nats a response. The training is
`RubricGRPOTrainer` under a shipped recipe; only the measuring is of its own.
"""

from __future__ import annotations

import copy
import dataclasses
import random
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast

import torch
from transformers import PrinterCallback, ProgressCallback, TrainerCallback
from transformers.trainer_utils import set_seed

from ...distill.digits import make_example
from ...distill.grids import TWO, Grid
from ...distill.oracle import OracleJudge
from ...distill.sampling import Prompt, Sampler
from ...trainer.config import RubricGRPOConfig
from ...trainer.grpo import RubricGRPOTrainer
from ...trainer.policy import load_policy
from ...verifier.errors import InputError
from ...verifier.model import VisionLanguageModel
from ...verifier.processor import load_processor
from ...verifier.schema import Example, Mode
from ...verifier.settings import parse_settings
from ..quickstart_data import recipe
from .metrics import CONFUSED, measure
from .settings import WORLDS, Cell, StudySettings

MAX_TOKENS = {"3x3": 96}  # of a response, where the GRPO recipe, which is for 2x2, allows too few
BATCH = 100  # responses that are sampled together when measuring
_SWAP = str.maketrans({str(a): str(b) for a, b in CONFUSED.items()})


@dataclasses.dataclass(frozen=True)
class Task:
    """One run. Tuning is measured on validation pictures, so that the test pictures decide nothing."""

    cell: Cell
    seed: int
    learning_rate: float
    part: Literal["runs", "tuning"] = "runs"

    @property
    def key(self) -> str:
        return self.cell.key

    @property
    def file(self) -> str:
        rate = f"_lr{self.learning_rate:g}" if self.part == "tuning" else ""
        return f"{self.part}/{self.cell.key}{rate}_seed{self.seed}.json"


def carry_out(task: Task, settings: StudySettings, models: Mapping[str, str]) -> dict[str, Any]:
    """Trains and measures; `models` says where the verifiers `image` and `text` lie, and each world's start policy."""
    started = time.monotonic()
    grid = WORLDS[task.cell.world]
    held_out = pictures("test" if task.part == "runs" else "validation", settings.test_pictures, "study", grid=grid)
    examples = pictures("train", settings.training_pictures, f"study-{task.seed}", settings.annotator, grid)
    with tempfile.TemporaryDirectory() as folder:
        config = _config(task, settings, models[task.cell.world], folder)
        set_seed(task.seed)
        model, _ = load_policy(config)
        processor = load_processor(config.model)
        meter = Meter(VisionLanguageModel(model, processor, config.model), held_out, settings, config)
        judge = judge_of(task.cell.judge, models.get(task.cell.judge, ""))
        trainer = RubricGRPOTrainer(model, config, examples, judge, processing_class=processor, callbacks=[meter])
        for callback in (ProgressCallback, PrinterCallback):
            trainer.remove_callback(callback)
        trainer.train()
    cell = dataclasses.asdict(task.cell)
    seconds = round(time.monotonic() - started, 1)
    learned = {"seed": task.seed, "learning_rate": task.learning_rate, "seconds": seconds}
    return {"cell": cell, **learned, "points": meter.points}


def _config(task: Task, settings: StudySettings, policy: str, folder: str) -> RubricGRPOConfig:
    flags = {
        "model": policy, "output_dir": folder, "arm": task.cell.arm, "budget": task.cell.budget,
        "match_rms": str(task.cell.match_rms).lower(), "learning_rate": repr(task.learning_rate),
        "seed": str(task.seed), "max_steps": str(settings.steps), "sampled_verdicts": "0", "teacher": "",
        "disable_tqdm": "true",
    }  # fmt: skip
    if task.cell.world in MAX_TOKENS:
        flags["max_completion_length"] = str(MAX_TOKENS[task.cell.world])
    argv = [word for key, value in flags.items() for word in (f"--{key}", value)]
    return parse_settings(RubricGRPOConfig, ["--config", str(grpo_recipe(settings)), *argv], "study")


def grpo_recipe(settings: StudySettings) -> Path:
    """A file that the recipe of the study names, or a shipped one. Raises InputError where there is neither."""
    for file in (Path(settings.recipe), Path(recipe(settings.recipe))):
        if file.is_file():
            return file
    raise InputError(f"recipe: there is no file {settings.recipe}, and no shipped recipe of this name")


def pictures(part: str, count: int, seed: str, annotator: str = "clean", grid: Grid = TWO) -> list[Example]:
    """Pictures with rubrics in which nothing is wrong, or what the systematic annotator made of them."""
    rng = random.Random(f"{part}-{seed}")
    examples = [make_example(rng, part, number, wrong_share=0.0, grid=grid) for number in range(count)]
    return [systematic(example) for example in examples] if annotator == "systematic" else examples


def systematic(example: Example) -> Example:
    """The rubric and the reference of an annotator who takes every 4 for a 9 and every 9 for a 4; the final answer, which
    comes with the question, stays right."""
    criteria = tuple(dataclasses.replace(c, text=c.text.translate(_SWAP)) for c in example.criteria)
    return dataclasses.replace(example, criteria=criteria, reference=(example.reference or "").translate(_SWAP))


@cache
def judge_of(name: str, folder: str) -> Any:
    """The oracle, or a verifier from its folder, loaded once a process."""
    if name == "oracle":
        return OracleJudge("image")
    from ...verifier.judge import load_judge

    return load_judge(folder, cast(Mode, name), dtype=torch.float32)


class Meter(TrainerCallback):
    """Measures the policy before the first step and after the chosen ones; the training's random numbers stay."""

    def __init__(
        self,
        policy: VisionLanguageModel,
        held_out: Sequence[Example],
        settings: StudySettings,
        config: RubricGRPOConfig,
    ):
        start = VisionLanguageModel(copy.deepcopy(policy.model), policy.processor, policy.path)
        tokens = config.max_completion_length or 256
        self.policy, self.start = Sampler(policy, tokens), Sampler(start, tokens)
        self.held_out, self.settings = held_out, settings
        self.prompts = [self.start.prompt(example) for example in held_out]
        self.points: list[dict[str, Any]] = []

    def on_train_begin(self, args, state, control, **kwargs):
        self._measure(0)

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step in self.settings.evaluate_at:
            self._measure(state.global_step)

    def _measure(self, step: int) -> None:
        model, texts, divergence = self.policy.policy.model, [], 0.0
        image = [self.policy.policy.encoder.image_id]  # TRL lets no policy write it: there would be no image behind it
        was_training = model.training
        model.eval()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # the same for all runs and steps
            for first in range(0, len(self.prompts), BATCH):
                ids = self.policy.generate_ids(self.prompts[first : first + BATCH], 1.0, suppress=image)
                divergence += self._divergence(self.prompts[first : first + BATCH], ids)
                texts += self.policy.policy.processor.tokenizer.batch_decode(ids, skip_special_tokens=True)
        model.train(was_training)
        outcomes = measure(list(zip(self.held_out, texts, strict=True)))
        self.points.append({"step": step, "kl": divergence / len(self.prompts), **outcomes})

    def _divergence(self, prompts: Sequence[Prompt], ids: Sequence[Sequence[int]]) -> float:
        """KL(policy || start) summed over the responses: with d = log start - log policy of a sampled token, the mean of
        exp(d) - d - 1 is unbiased and never negative (Schulman's k3)."""
        rows = zip(self.start.log_probs(prompts, ids), self.policy.log_probs(prompts, ids), strict=True)
        return sum(float((d.exp() - d - 1).double().sum()) for d in (start - now for start, now in rows))
