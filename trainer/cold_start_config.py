"""Settings of `claimwise sft`: TRL's SFTConfig and what a cold start needs besides."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from trl import SFTConfig

from ..verifier.errors import InputError


@dataclass
class ColdStartConfig(SFTConfig):
    """The loss is on the completions alone, and no conversation is cut: `max_tokens` leaves out what is longer."""

    model: str = field(default="Qwen/Qwen3-VL-8B-Instruct", metadata={"help": "policy: a folder or a Hub name"})
    data: str = field(default="", metadata={"help": "conversations: .jsonl, .json, .parquet, a folder, or a Hub name"})
    part: str = field(default="", metadata={"help": "the data's split to read, where it has several"})
    subset: str = field(default="", metadata={"help": "the configuration of a Hub data set"})
    image_folder: str = field(
        default="", metadata={"help": "what paths of images are relative to; default: the data's"}
    )
    streaming: bool = field(default=False, metadata={"help": "read rows as they are needed; max_steps says how many"})
    max_tokens: int = field(default=4096, metadata={"help": "longer conversations are left out, never cut"})
    max_rejected: float = field(default=0.01, metadata={"help": "stop where a larger share of rows is refused (0..1)"})
    lora_r: int = field(default=0, metadata={"help": "rank of a LoRA adapter; 0 trains all weights"})
    lora_alpha: int = field(default=32, metadata={"help": "scale of the adapter"})
    load_in_4bit: bool = field(default=False, metadata={"help": "QLoRA: language model in 4-bit NF4"})
    max_length: int | None = field(default=None, metadata={"help": "of TRL, which would cut; see max_tokens"})

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.data:
            raise InputError("the setting data is empty; give a file or folder of conversations, or a Hub name")
        if self.image_folder and not Path(self.image_folder).is_dir():
            raise InputError(f"image_folder {self.image_folder}: there is no such folder; give where the images lie")
        if self.max_length is not None:
            raise InputError("max_length would cut conversations, and images with them; set max_tokens instead")
        if self.completion_only_loss is False or self.assistant_only_loss:
            raise InputError("the loss is on completions alone; leave completion_only_loss and assistant_only_loss out")
        if self.packing or self.padding_free:
            raise InputError("TRL packs no conversations with images; leave packing and padding_free out")
        if str(getattr(self.eval_strategy, "value", self.eval_strategy)) != "no":
            raise InputError("there is nothing to evaluate on; leave eval_strategy out")
        if self.max_tokens < 1 or not 0 <= self.max_rejected <= 1 or self.lora_r < 0:
            raise InputError("max_tokens must be at least 1, max_rejected 0 to 1, and lora_r not below 0")
        if self.load_in_4bit and not self.lora_r:
            raise InputError("load_in_4bit freezes the weights; set lora_r, so that there is an adapter to train")
        if self.streaming and self.max_steps < 1:
            raise InputError("a stream does not say how long it is; set max_steps")
