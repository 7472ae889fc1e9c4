"""claimwise sft: the policy's cold start on conversations with images, with TRL's SFTTrainer."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

from ..parser import shows_help

HELP = """usage: claimwise sft --config RECIPE.yaml [--KEY VALUE ...]

Fine-tune a policy on conversations with images before GRPO: TRL's SFTTrainer, loss on the answers alone.

Settings come from a YAML recipe and from flags, which win. The most used:
  --model DIR|NAME          the policy
  --data FILE|DIR|NAME      conversations: local .jsonl, .json or .parquet, or a data set of the Hub (--part, --subset)
  --image_folder DIR        what paths of images are relative to (default: the data's own folder)
  --streaming true          read rows as they are needed, with --max_steps N; default: read and check all first
  --max_tokens N            longer conversations are left out, never cut (default: 4096)
  --max_rejected SHARE      stop where more of the rows are refused (default: 0.01)
  --lora_r N                train a LoRA adapter of this rank (default 0: all weights); with --load_in_4bit true: QLoRA
  --output_dir DIR          the trained policy's folder
  --learning_rate, --max_steps, --num_train_epochs, --save_steps, --report_to, ...   as in trl.SFTConfig

A row has messages (role and content) or conversations (from and value), and images, image or image parts: paths, bytes
or base64. Its last answer bears the loss. OUTPUT_DIR/rejected.jsonl names each row that is left out.
OUTPUT_DIR is a whole checkpoint, an adapter merged into it: claimwise train --model OUTPUT_DIR trains it as actor with
the same weights as frozen reference, claimwise rollout --policy OUTPUT_DIR samples from it. Stopped in any way, the same
command goes on from the last checkpoint (--save_steps).

  --help-all                every setting (loads torch)

example:
  python -m claimwise.scripts.digits_conversations runs/conversations
  claimwise sft --config scripts/recipes/sft-digits.yaml --model distill/assets/policy \\
      --data runs/conversations/conversations.jsonl --output_dir runs/sft
"""


def main(argv: list[str]) -> int:
    if shows_help(argv, HELP):
        return 0
    from ...trainer.cold_start_config import ColdStartConfig
    from ...verifier.settings import parse_settings

    config = parse_settings(ColdStartConfig, argv, "sft")
    figures = run(config)
    if config.process_index == 0:  # under accelerate launch the main process speaks
        loss = "" if figures["loss"] is None else f", last loss {figures['loss']:.4g}"
        print(f"{config.output_dir}: policy after {figures['steps']} steps{loss}")
    return 0


def run(config: Any) -> dict[str, Any]:
    from ...distill.sft_data import ARROW, Form, Reader, stored_dataset, streamed_dataset
    from ...distill.sources import open_source
    from ...trainer.cold_start import cold_start
    from ...verifier.processor import load_processor

    source = open_source(config.data, config.part or None, config.subset or None)
    processor = load_policy_processor(config.model, load_processor)
    form, identity = Form(processor, config.max_tokens), [source.name, source.identity]
    images = Path(config.image_folder).resolve() if config.image_folder else None
    about = json.dumps([identity, config.model, config.max_tokens, config.max_rejected, str(images)])

    def make_dataset(folder: Path) -> Any:
        reader = Reader(source, form, folder, config.max_rejected, config.process_index == 0, images)
        if config.streaming:
            return streamed_dataset(reader, config.seed)
        return stored_dataset(reader, hashlib.sha256(about.encode()).hexdigest()[:16])

    figures = cold_start(config, processor, identity, make_dataset)
    if config.process_index == 0:
        shutil.rmtree(Path(config.output_dir) / ARROW, ignore_errors=True)  # as large as the images that were bytes
    return figures


def load_policy_processor(model: str, load: Any) -> Any:
    from ...verifier.errors import InputError

    try:
        return load(model)
    except (OSError, ValueError) as error:
        raise InputError(f"the policy {model!r} cannot be loaded: {error}") from error
