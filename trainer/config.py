"""Settings of `claimwise train`: TRL's GRPOConfig and what rubric credit needs besides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trl import GRPOConfig

from ..verifier.errors import InputError
from .alarms import BAD, HEALTHY
from .credit import ARMS, PITFALLS, resolve_budget

# What TRL derives from one advantage per sequence, and so cannot take one per token.
_SEQUENCE_LEVEL = {
    "importance_sampling_level": ("token", "its ratio is one per sequence"),
    "off_policy_mask_threshold": (None, "it masks whole sequences by the sign of their advantage"),
    "scale_rewards": ("group", "each component is standardised within its group"),
    "multi_objective_aggregation": ("sum_then_normalize", "the arm says how the parts are added"),
}
ACTIONS = ("warn", "escalate", "refresh", "stop")
# TRL itself finds out in the first step that it does not know a value, when all is loaded, written and judged.
_KNOWN = {
    "loss_type": ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo"),
    "importance_sampling_level": ("token", "sequence"),
    "scale_rewards": ("group", "batch", "none"),
    "multi_objective_aggregation": ("sum_then_normalize", "normalize_then_sum"),
}
_REFUSED_LOSSES = {"vespo": "it weighs whole sequences", "luspo": "it is not shown right with advantages per token"}


@dataclass
class RubricGRPOConfig(GRPOConfig):
    """Group and budget settings as in `claimwise credit`. Rewards are weighted by the budget, not by reward_weights."""

    model: str = field(default="Qwen/Qwen3-VL-8B-Instruct", metadata={"help": "policy: a folder or a Hub name"})
    examples: str = field(default="", metadata={"help": "example table to train on"})
    verifier: str = field(default="", metadata={"help": "adapter folder of the judge; `oracle` in the digits world"})
    verifier_base: str = field(default="", metadata={"help": "its base, where not the one that it names"})
    verifier_server: str = field(default="", metadata={"help": "address where `claimwise serve` runs the verifier"})
    shared_base: bool = field(
        default=False, metadata={"help": "the verifier as a second adapter on the policy's base; needs lora_r"}
    )
    teacher: str = field(
        default="",
        metadata={"help": "who checks sampled verdicts: `oracle`, the address of an OpenAI-compatible server (its key is "
                  "read from OPENAI_API_KEY), or empty for nobody"},
    )  # fmt: skip
    teacher_model: str = field(default="", metadata={"help": "the teacher's name on its server"})
    cascade: str = field(
        default="",
        metadata={"help": "file of `claimwise cascade band`: the teacher answers where the verifier is not sure"},
    )
    cascade_calls: int = field(
        default=1000, metadata={"help": "questions to the teacher in the whole run that the cascade may take"}
    )
    arm: str = field(default="prefix", metadata={"help": f"where credit goes: {', '.join(ARMS)}"})
    budget: str = field(default="paper", metadata={"help": "paper, release-sequence, release-prefix, or A,F,R"})
    pitfalls: str = field(default="veto", metadata={"help": f"what a pitfall does: {', '.join(PITFALLS)}"})
    match_rms: bool = field(
        default=False, metadata={"help": "divide a batch's advantages by their RMS; never those of arm answer"}
    )
    max_missing: float = field(default=0.5, metadata={"help": "stop when more of a step's verdicts are missing (0..1)"})
    sampled_verdicts: int = field(default=8, metadata={"help": "verdicts that go to the teacher per step"})
    on_alarm: str = field(default="warn", metadata={"help": f"when the judge has got worse: {', '.join(ACTIONS)}"})
    healthy_agreement: float = field(
        default=HEALTHY, metadata={"help": "agreement with the teacher that is as it should be (0..1)"}
    )
    bad_agreement: float = field(default=BAD, metadata={"help": "agreement that is to raise an alarm soon (0..1)"})
    escalate_budget: int = field(
        default=1000, metadata={"help": "verdicts of the whole run that `escalate` may ask the teacher for"}
    )
    escalate_band: float = field(
        default=0.3, metadata={"help": "`escalate` asks where P(yes) is within this of 0.5 (0..0.5)"}
    )
    eval_examples: str = field(default="", metadata={"help": "example table for evaluations (see eval_strategy)"})
    lora_r: int = field(default=0, metadata={"help": "rank of a LoRA adapter; 0: all weights are trained"})
    lora_alpha: int = field(default=32, metadata={"help": "scale of the adapter"})
    load_in_4bit: bool = field(
        default=False,
        metadata={"help": "QLoRA: the language model's linears in 4-bit NF4, vision tower and lm_head as they are"},
    )

    def __post_init__(self) -> None:
        self._check_known({"arm": ARMS, "pitfalls": PITFALLS, "on_alarm": ACTIONS})
        self._check_judge()
        self._check_watching()
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
        self._check_known(_KNOWN)
        self._check_resuming()
        if self.arm != "answer":
            self._refuse_sequence_level()

    def _check_known(self, known: Mapping[str, Sequence[str]]) -> None:
        for name, allowed in known.items():
            if getattr(self, name) not in allowed:
                raise InputError(f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(allowed)}")

    def _check_resuming(self) -> None:
        if self.resume_from_checkpoint is not None:
            raise InputError(
                "resume_from_checkpoint is set, but a run goes on from its last checkpoint by the same command; remove it"
            )
        if self.save_only_model:
            raise InputError("save_only_model is set, and a run that is stopped could not go on; remove it")

    def _check_judge(self) -> None:
        if self.shared_base and not self.lora_r:
            raise InputError("shared_base is set, but the policy trains all its weights; set lora_r, say 16")
        if self.shared_base and (self.verifier_server or self.verifier_base or self.verifier in ("", "oracle")):
            raise InputError("shared_base takes the verifier's adapter folder alone: set verifier to it, no other base")
        if self.verifier_server and self.verifier in ("", "oracle"):
            raise InputError("verifier_server is set; set verifier to the folder of the adapter that it serves")
        if self.verifier_base and self.verifier in ("", "oracle"):
            raise InputError(
                "verifier_base is set, but there is no verifier on it; set verifier to an adapter's folder"
            )
        if self.cascade and (self.verifier in ("", "oracle") or not self.teacher):
            raise InputError("cascade needs a verifier's adapter folder and a teacher; set both")
        if self.cascade_calls < 0:
            raise InputError(f"cascade_calls is {self.cascade_calls}; it must be at least 0")

    def _check_watching(self) -> None:
        if self.teacher not in ("", "oracle"):
            if not self.teacher.startswith(("http://", "https://")):
                raise InputError(
                    f"teacher is {self.teacher!r}; it must be oracle, a server's address like http://localhost:8000/v1, "
                    "or empty for nobody"
                )
            if not self.teacher_model:
                raise InputError(f"teacher is the server {self.teacher}; set teacher_model, its model's name")
        elif self.teacher_model:
            raise InputError("teacher_model is set, but teacher is no server's address; set teacher, or remove it")
        if self.sampled_verdicts < 0:
            raise InputError(f"sampled_verdicts is {self.sampled_verdicts}; it must be at least 0, for nobody")
        if not 0 < self.bad_agreement < self.healthy_agreement < 1:
            raise InputError(
                f"bad_agreement is {self.bad_agreement} and healthy_agreement {self.healthy_agreement}; it must be "
                "0 < bad_agreement < healthy_agreement < 1"
            )
        if self.escalate_budget < 0 or not 0 <= self.escalate_band <= 0.5:
            raise InputError(
                f"escalate_budget is {self.escalate_budget} and escalate_band {self.escalate_band}; they must be at "
                "least 0, and 0..0.5"
            )

    def _refuse_sequence_level(self) -> None:
        for key, (needed, why) in _SEQUENCE_LEVEL.items():
            if getattr(self, key) != needed:
                raise InputError(f"{key} is {getattr(self, key)!r}, but arm {self.arm} needs {needed!r}: {why}")
        if self.loss_type in _REFUSED_LOSSES:
            raise InputError(
                f"loss_type {self.loss_type} cannot train arm {self.arm}: {_REFUSED_LOSSES[self.loss_type]}"
            )
