"""claimwise distill: train a LoRA verifier on a teacher's verdicts, or several on growing parts of them."""

from __future__ import annotations

import json

from ...verifier.errors import InputError
from ..parser import shows_help

HELP = """usage: claimwise distill --config RECIPE.yaml [--curve OUT] [--KEY VALUE ...]

Train a LoRA verifier on a teacher's verdicts, on packed trees, and calibrate it.

Settings come from a YAML recipe and from flags, which win. The most used:
  --base DIR|NAME           base model
  --examples, --rollouts, --verdicts FILE           what the teacher judged
  --validation_examples, --validation_rollouts, --validation_verdicts FILE
                            held out for kappa and temperature
  --mode image|text         does the verifier see the image
  --readings True|False     write what the image shows before the verdict
  --adapter DIR             go on from this verifier's weights (claimwise refresh makes the tables for it)
  --output_dir DIR          the verifier's folder
  --learning_rate, --max_steps, --per_device_train_batch_size, --seed, ...
                            as in transformers.TrainingArguments
  --help-all                every setting (loads torch)

--curve OUT, instead of --output_dir: five verifiers, on 1/16, 1/8, 1/4, 1/2 and all of the labels, drawn by example.
All have the same number of steps at most, so that only the labels differ; --patience, --eval_strategy steps and
--eval_steps keep the best adapter of each. OUT/curve.json and OUT/curve.html have agreement and kappa against verdicts
bought, with intervals, and what the next doubling is expected to bring. Stopped with Ctrl-C, the same command goes on.

examples:
  claimwise distill --config scripts/recipes/verifier-digits.yaml --base distill/assets/base \\
      --examples runs/quickstart/train/examples.parquet \\
      --rollouts runs/quickstart/train/rollouts.parquet --verdicts runs/quickstart/train/gold-image.jsonl \\
      --validation_examples runs/quickstart/validation/examples.parquet \\
      --validation_rollouts runs/quickstart/validation/rollouts.parquet \\
      --validation_verdicts runs/quickstart/validation/gold-image.jsonl --output_dir runs/verifier
  the same with --curve runs/curve instead of --output_dir
"""


def main(argv: list[str]) -> int:
    if shows_help(argv, HELP):
        return 0
    argv, out = _take_curve(argv)
    from ...distill.config import DistillConfig
    from ...verifier.progress import only_our_bars
    from ...verifier.settings import parse_settings

    config = parse_settings(DistillConfig, argv if out is None else [*argv, "--output_dir", out], "distill")
    only_our_bars()
    main_process = config.process_index == 0
    if out is not None:
        from ...distill.curve import curve
        from ...eval.curve_page import as_text

        found = curve(config)
        if main_process:
            print(f"\n{as_text(found)}\n{out}/curve.html: the curve as a page; curve.json beside it")
        return 0
    from ...distill.run import distill

    metrics = distill(config)
    if main_process:
        print(json.dumps({name: value for name, value in metrics.items() if name != "by_dimension"}, indent=2))
        print(
            f"{config.output_dir}: verifier for {config.mode} mode; claimwise judge --adapter {config.output_dir} ..."
        )
    return 0


def _take_curve(argv: list[str]) -> tuple[list[str], str | None]:
    """The other flags, and the folder that --curve names."""
    flags = [part for flag in argv for part in (flag.split("=", 1) if flag.startswith("--curve=") else [flag])]
    if "--curve" not in flags:
        return flags, None
    index = flags.index("--curve")
    rest = flags[:index] + flags[index + 2 :]
    if index + 1 == len(flags) or not flags[index + 1] or flags[index + 1].startswith("--"):
        raise InputError("--curve needs the folder to write to")
    if any(flag.partition("=")[0] in ("--output_dir", "--output-dir") for flag in rest):
        raise InputError("--curve names the folder of all points; leave --output_dir out")
    return rest, flags[index + 1]
