"""The stages of `claimwise quickstart`, each a product command with the digits world's tables and recipes.

In: an output folder and a seed. Out: tables, two verifiers, a trained policy, summary.json and report.html. A finished
stage is marked by a file under `stages/`; the same command goes on behind the last one.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from importlib import metadata, resources
from pathlib import Path

import torch

from ..distill.attacks import KINDS, aimed, attack_figures, attacks
from ..distill.config import DistillConfig
from ..distill.digits import score_policy
from ..distill.rollouts import sample
from ..distill.run import distill
from ..eval.report import write_report
from ..trainer.config import RubricGRPOConfig
from ..verifier.judge import PackedJudge, base_judge, load_judge
from ..verifier.model import load_model
from ..verifier.progress import only_our_bars
from ..verifier.rundir import open_run, write_atomic
from ..verifier.schema import Verdict
from ..verifier.settings import parse_settings
from ..verifier.tables import pair_up, read_examples, read_rollouts, write_examples, write_rollouts, write_verdicts
from .commands import train as train_command
from .quickstart_data import make_examples, make_rollouts, recipe, write_part
from .summary import credit_example, criteria_audit, headline, summarise

ASSETS = resources.files("claimwise.distill") / "assets"
PARTS = {"train": ("train", 360, 1), "validation": ("validation", 60, 1), "heldout": ("test", 110, 1)}
POLICY_EXAMPLES, POLICY_TESTS = 224, 200
ATTACKS = 5  # on each held-out example
STEPS = {"image": 1000, "text": 250}  # what the text shows is learned sooner
PACKAGES = ("claimwise", "torch", "transformers", "trl", "peft", "datasets", "accelerate")


@dataclasses.dataclass(frozen=True)
class Run:
    """One quickstart: where its files lie, and its seed."""

    out: Path
    seed: int

    def table(self, part: str, name: str) -> str:
        return str(self.out / part / name)

    def asset(self, name: str) -> str:
        return str(ASSETS / name)


def quickstart(out: Path, seed: int) -> Path:
    """Runs what is not yet done; returns the report's path."""
    out = open_run(out, {"command": "quickstart", "seed": seed}).resolve()
    only_our_bars()
    run = Run(out, seed)
    stages: dict[str, Callable[[Run], dict]] = {
        "data": make_data,
        "distill-image": lambda run: distill_verifier(run, "image"),
        "distill-text": lambda run: distill_verifier(run, "text"),
        "judge": judge_heldout,
        "policy-before": lambda run: measure_policy(run, "before", run.asset("policy")),
        "train": train_policy,
        "policy-after": lambda run: measure_policy(run, "after", str(run.out / "policy")),
        "credit": lambda run: credit_example(run.out, run.asset("policy"), run.seed),
        "audit": lambda run: criteria_audit(run.out),
    }
    results = {name: _stage(run, name, stage) for name, stage in stages.items()}
    versions = {name: metadata.version(name) for name in PACKAGES}
    summary = summarise(out, results, versions, seed)
    write_atomic(out / "summary.json", json.dumps(summary, indent=2) + "\n")
    print(headline(summary))
    return write_report([out])


def _stage(run: Run, name: str, stage: Callable[[Run], dict]) -> dict:
    """A stage's result and seconds, from its mark where it is finished."""
    mark = run.out / "stages" / f"{name}.json"
    if mark.is_file():
        return json.loads(mark.read_text())
    print(f"== {name}", flush=True)
    started = time.monotonic()
    torch.manual_seed(run.seed)
    result = {"result": stage(run), "seconds": round(time.monotonic() - started, 1)}
    write_atomic(mark, json.dumps(result, indent=2) + "\n")
    return result


def make_data(run: Run) -> dict:
    """Pictures, responses of the noisy policy, hard negatives, and the oracle's verdicts in both modes."""
    policy = load_model(run.asset("policy"), dtype=torch.float32)
    counts = {}
    for part, (digits_of, count, samples) in PARTS.items():
        examples = make_examples(digits_of, count, run.seed)
        rollouts = make_rollouts(policy, examples, samples, run.seed, attacked=int(part != "heldout"))
        write_part(run.out / part, examples, rollouts)
        counts[part] = len(rollouts)
    write_examples(
        run.out / "policy-train" / "examples.parquet", make_examples("train", POLICY_EXAMPLES, run.seed + 1000)
    )
    write_examples(run.out / "policy-test" / "examples.parquet", make_examples("test", POLICY_TESTS, run.seed + 1000))
    return counts


def distill_verifier(run: Run, mode: str) -> dict:
    """A fresh LoRA verifier from the oracle's verdicts in one mode."""
    flags = {
        "base": run.asset("base"), "mode": mode, "output_dir": str(run.out / f"verifier-{mode}"), "seed": str(run.seed),
        "max_steps": str(STEPS[mode]),
        "examples": run.table("train", "examples.parquet"), "rollouts": run.table("train", "rollouts.parquet"),
        "verdicts": run.table("train", f"gold-{mode}.jsonl"),
        "validation_examples": run.table("validation", "examples.parquet"),
        "validation_rollouts": run.table("validation", "rollouts.parquet"),
        "validation_verdicts": run.table("validation", f"gold-{mode}.jsonl"),
    }  # fmt: skip
    return distill(parse_settings(DistillConfig, _argv("verifier-digits.yaml", flags), "distill"))


def _argv(recipe_name: str, flags: dict[str, str]) -> list[str]:
    return ["--config", recipe(recipe_name), *(part for key, value in flags.items() for part in (f"--{key}", value))]


def judge_heldout(run: Run) -> dict:
    """The held-out verdict tables: gold in both modes, the two verifiers, and the base under the image prompt."""
    pairs = pair_up(
        read_examples(run.table("heldout", "examples.parquet")), read_rollouts(run.table("heldout", "rollouts.parquet"))
    )
    folder = run.out / "verdicts"
    folder.mkdir(exist_ok=True)
    for mode in ("text", "image"):
        source = run.out / "heldout" / f"gold-{mode}.jsonl"
        write_atomic(folder / f"gold-{mode}.jsonl", source.read_text())
    base = base_judge(load_model(run.asset("base"), dtype=torch.float32), "image", "base", readings=True)
    judges = {"base": base, **{mode: _verifier(run, mode) for mode in ("image", "text")}}
    for name, judge in judges.items():
        write_verdicts(folder / f"{name}.jsonl", _with_bar(judge, pairs))
    return {"responses": len(pairs), "attacks": {mode: judge_attacks(run, judges[mode]) for mode in ("image", "text")}}


def judge_attacks(run: Run, judge: PackedJudge) -> dict:
    """The adversarial suite on the held-out examples: how often the judge is talked into yes."""
    examples = read_examples(run.table("heldout", "examples.parquet"))
    rollouts = attacks(examples, tuple(KINDS), run.seed, ATTACKS)
    write_rollouts(run.table("heldout", "attacks.parquet"), rollouts)
    verdicts = _with_bar(judge, aimed(examples, rollouts), "attacking")
    write_verdicts(run.out / "verdicts" / f"attacks-{judge.mode}.jsonl", verdicts)
    return attack_figures(rollouts, verdicts)


def _verifier(run: Run, mode) -> PackedJudge:
    return load_judge(run.out / f"verifier-{mode}", mode, dtype=torch.float32)


def _with_bar(judge: PackedJudge, pairs, doing: str = "judging") -> list[Verdict]:
    from tqdm import tqdm

    bar = tqdm(judge.judge_each(pairs), total=len(pairs), desc=f"{doing} {judge.name}", unit="response")
    return [verdict for row in bar for verdict in row]


def measure_policy(run: Run, when: str, folder: str) -> dict:
    """Sampled responses on test pictures against the human labels: means of digits, conclusion and answer."""
    examples = read_examples(run.table("policy-test", "examples.parquet"))
    policy = load_model(folder, dtype=torch.float32)
    rollouts = sample(policy, examples, 2, max_new_tokens=64, seed=run.seed, name=f"policy-{when}")
    write_rollouts(run.out / "policy-test" / f"{when}.parquet", rollouts)
    return policy_figures(pair_up(examples, rollouts))


def policy_figures(pairs: list[tuple]) -> dict[str, float]:
    scores = [score_policy(rollout.response, example) for example, rollout in pairs]
    return {key: sum(score[key] for score in scores) / len(scores) for key in scores[0]}


def train_policy(run: Run) -> dict:
    """TRL GRPO, arm `prefix`, the image-aware verifier as the judge, the oracle watching a sample."""
    flags = {
        "model": run.asset("policy"),
        "examples": run.table("policy-train", "examples.parquet"),
        "verifier": str(run.out / "verifier-image"),
        "output_dir": str(run.out / "policy"),
        "seed": str(run.seed),
    }
    return train_command.run(parse_settings(RubricGRPOConfig, _argv("grpo-digits.yaml", flags), "train"))
