"""claimwise refresh: train a verifier on from the teacher's verdicts on a GRPO run's rollouts."""

from __future__ import annotations

from ..parser import shows_help

HELP = """usage: claimwise refresh --config RECIPE.yaml --adapter DIR --disagreements TABLE... [--KEY VALUE ...]

Train a verifier on from where a GRPO run found it wrong, mixed with what it was distilled on; calibrate it again, and
compare it with what it was, on held-out examples old and new.

Settings come from a YAML recipe and from flags, which win. The most used:
  --adapter DIR             the verifier to train on
  --disagreements TABLE ... verdict tables: the teacher's word on the run's rollouts, wherever it was asked; not only
                            where it disagreed, else the verifier learns to doubt itself
  --examples, --rollouts FILE                       what the run was trained on, and what it answered
  --old_examples, --old_rollouts, --old_verdicts FILE
                            what the verifier was distilled on
  --validation_examples, --validation_rollouts, --validation_verdicts FILE
                            what was held out then
  --replay SHARE            share of the verdicts trained on that are old ones (default: 0.5)
  --held_out SHARE          share of the run's examples that is held out, with their images (default: 0.2)
  --output_dir DIR          data/, verifier/ and refresh.json come here
  --learning_rate, --max_steps, --per_device_train_batch_size, --seed, ...
                            as in transformers.TrainingArguments; a quarter of the first learning rate is a start
  --help-all                every setting (loads torch)

example:
  claimwise refresh --config scripts/recipes/verifier-digits.yaml --adapter runs/quickstart/verifier-image \\
      --disagreements runs/grpo/teacher.jsonl \\
      --examples runs/grpo/examples.parquet --rollouts runs/grpo/rollouts.parquet \\
      --old_examples runs/quickstart/train/examples.parquet --old_rollouts runs/quickstart/train/rollouts.parquet \\
      --old_verdicts runs/quickstart/train/gold-image.jsonl \\
      --validation_examples runs/quickstart/validation/examples.parquet \\
      --validation_rollouts runs/quickstart/validation/rollouts.parquet \\
      --validation_verdicts runs/quickstart/validation/gold-image.jsonl \\
      --learning_rate 1e-3 --max_steps 80 --output_dir runs/refreshed
"""


def main(argv: list[str]) -> int:
    if shows_help(argv, HELP):
        return 0
    from ...distill.refresh import RefreshConfig, as_text, refresh
    from ...verifier.progress import only_our_bars
    from ...verifier.settings import parse_settings

    config = parse_settings(RefreshConfig, argv, "refresh")
    only_our_bars()
    found = refresh(config)
    if config.process_index == 0:
        print(f"\n{as_text(found)}\n{config.output_dir}/verifier: the new verifier; refresh.json has all figures")
    return 0
