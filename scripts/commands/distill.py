"""claimwise distill: train a LoRA verifier on a teacher's verdicts."""

from __future__ import annotations

import json

from ..parser import shows_help

HELP = """usage: claimwise distill --config RECIPE.yaml [--KEY VALUE ...]

Train a LoRA verifier on a teacher's verdicts, on packed trees, and calibrate it.

Settings come from a YAML recipe and from flags, which win. The most used:
  --base DIR|NAME           base model
  --examples, --rollouts, --verdicts FILE           what the teacher judged
  --validation_examples, --validation_rollouts, --validation_verdicts FILE
                            held out for kappa and temperature
  --mode image|text         does the verifier see the image
  --readings True|False     write what the image shows before the verdict
  --output_dir DIR          the verifier's folder
  --learning_rate, --max_steps, --per_device_train_batch_size, --seed, ...
                            as in transformers.TrainingArguments
  --help-all                every setting (loads torch)

example:
  claimwise distill --config scripts/recipes/verifier-digits.yaml --examples runs/quickstart/train/examples.parquet \\
      --rollouts runs/quickstart/train/rollouts.parquet --verdicts runs/quickstart/train/gold-image.jsonl \\
      --validation_examples runs/quickstart/validation/examples.parquet \\
      --validation_rollouts runs/quickstart/validation/rollouts.parquet \\
      --validation_verdicts runs/quickstart/validation/gold-image.jsonl --output_dir runs/verifier
"""


def main(argv: list[str]) -> int:
    if shows_help(argv, HELP):
        return 0
    from ...distill.config import DistillConfig
    from ...distill.run import distill
    from ...verifier.settings import parse_settings

    config = parse_settings(DistillConfig, argv, "distill")
    print(json.dumps(distill(config), indent=2))
    print(f"{config.output_dir}: verifier for {config.mode} mode; claimwise judge --adapter {config.output_dir} ...")
    return 0
