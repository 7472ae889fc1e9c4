"""Settings of `claimwise train`: TRL's GRPOConfig and what rubric credit needs besides."""

from __future__ import annotations

from dataclasses import dataclass, field

from trl import GRPOConfig

from ..verifier.errors import InputError
from .credit import ARMS, PITFALLS, resolve_budget

# What TRL derives from one advantage per sequence, and so cannot take one per token.
_SEQUENCE_LEVEL = {
    "importance_sampling_level": ("token", "its ratio is one per sequence"),
    "off_policy_mask_threshold": (None, "it masks whole sequences by the sign of their advantage"),
    "scale_rewards": ("group", "each component is standardised within its group"),
    "multi_objective_aggregation": ("sum_then_normalize", "the arm says how the parts are added"),
}
_REFUSED_LOSSES = {"vespo": "it weighs whole sequences", "luspo": "it is not shown right with advantages per token"}


@dataclass
class RubricGRPOConfig(GRPOConfig):
    """Group and budget settings as in `claimwise credit`. Rewards are weighted by the budget, not by reward_weights."""

    model: str = field(default="Qwen/Qwen3-VL-8B-Instruct", metadata={"help": "policy: a folder or a Hub name"})
    examples: str = field(default="", metadata={"help": "example table to train on"})
    verifier: str = field(default="", metadata={"help": "adapter folder of the judge; `oracle` in the digits world"})
    verifier_base: str = field(default="", metadata={"help": "its base, where not the one that it names"})
    teacher: str = field(default="", metadata={"help": "who checks sampled verdicts: `oracle`, or empty for nobody"})
    arm: str = field(default="prefix", metadata={"help": f"where credit goes: {', '.join(ARMS)}"})
    budget: str = field(default="paper", metadata={"help": "paper, release-sequence, release-prefix, or A,F,R"})
    pitfalls: str = field(default="veto", metadata={"help": f"what a pitfall does: {', '.join(PITFALLS)}"})
    match_rms: bool = field(default=False, metadata={"help": "divide a batch's advantages by their RMS"})
    max_missing: float = field(default=0.5, metadata={"help": "stop when more of a step's verdicts are missing (0..1)"})
    sampled_verdicts: int = field(default=8, metadata={"help": "verdicts that go to the teacher per step"})
    eval_examples: str = field(default="", metadata={"help": "example table for evaluations (see eval_strategy)"})
    lora_r: int = field(default=0, metadata={"help": "rank of a LoRA adapter; 0: all weights are trained"})
    lora_alpha: int = field(default=32, metadata={"help": "scale of the adapter"})
    load_in_4bit: bool = field(
        default=False,
        metadata={"help": "QLoRA: the language model's linears in 4-bit NF4, vision tower and lm_head as they are"},
    )

    def __post_init__(self) -> None:
        for name, value, allowed in (("arm", self.arm, ARMS), ("pitfalls", self.pitfalls, PITFALLS)):
            if value not in allowed:
                raise InputError(f"{name} is {value!r}; it must be one of {', '.join(allowed)}")
        budget = resolve_budget(self.budget)
        if not 0 <= self.max_missing <= 1:
            raise InputError(f"max_missing is {self.max_missing}; it is a share, 0..1")
        if self.reward_weights is not None:
            raise InputError("reward_weights is set; the budget weighs the rewards, remove it")
        if self.lora_r < 0 or self.lora_alpha < 1:
            raise InputError(f"lora_r is {self.lora_r} and lora_alpha {self.lora_alpha}; they must be >= 0 and >= 1")
        if self.load_in_4bit and not self.lora_r:
            raise InputError("load_in_4bit is set, but 4-bit weights cannot be trained; set lora_r, say 16")
        self.reward_weights = [budget.answer + budget.rubric, budget.format]
        super().__post_init__()
        if self.arm != "answer":
            self._refuse_sequence_level()

    def _refuse_sequence_level(self) -> None:
        for key, (needed, why) in _SEQUENCE_LEVEL.items():
            if getattr(self, key) != needed:
                raise InputError(f"{key} is {getattr(self, key)!r}, but arm {self.arm} needs {needed!r}: {why}")
        if self.loss_type in _REFUSED_LOSSES:
            raise InputError(
                f"loss_type {self.loss_type} cannot train arm {self.arm}: {_REFUSED_LOSSES[self.loss_type]}"
            )
