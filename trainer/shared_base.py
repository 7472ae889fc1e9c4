"""One base, two adapters: the verifier as a second LoRA adapter over the weights that the policy trains its own on.

In: a verifier's folder, and the policy as PEFT wraps it. Out: a judge, whose verdicts are those of the verifier on a
base of its own in the same precision, without a second copy of the base in memory.

    judge = SharedBaseJudge("runs/verifier", base=config.model)
    judge.attach(trainer.model)          # RubricGRPOTrainer does this

The verifier is active while it judges, and only then: in evaluation mode, without gradients, and frozen. Judge and
policy are of one family then, so the judge may share the policy's blind spots; reports should say so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from peft import PeftModel
from transformers.integrations import is_deepspeed_zero3_enabled

from ..verifier.adapter import MERGED, check_base, read_card
from ..verifier.cache import VerdictCache
from ..verifier.cascade import CascadeJudge
from ..verifier.errors import InputError
from ..verifier.judge import MAX_PACKED_TOKENS, PackedJudge
from ..verifier.lora import lora_settings
from ..verifier.model import VisionLanguageModel, adapter_hash, base_hash
from ..verifier.processor import load_processor
from ..verifier.schema import Example, Judge, Mode, Rollout, Verdict

ADAPTER = "verifier"  # its name beside the policy's, which is PEFT's "default"


class SharedBaseJudge:
    """Raises InputError for a verifier of another base, and for one that is merged into its base."""

    def __init__(self, adapter: str | Path, base: str, max_packed_tokens: int = MAX_PACKED_TOKENS):
        self.card = read_card(adapter)
        if self.card.base == MERGED:
            raise InputError(f"{adapter} is merged into its base, so nothing can be shared; give the adapter itself")
        lora_settings(adapter)
        check_base(self.card, adapter, base_hash(base), base)
        self.name: str = self.card.name
        self.mode: Mode = self.card.mode  # pyright: ignore[reportAttributeAccessIssue]  # read_card checked it
        self._folder, self._base, self._max_packed_tokens = Path(adapter), base, max_packed_tokens
        self._model: Any = None

    def attach(self, policy: Any) -> None:
        """Loads the adapter beside the policy's. Raises InputError where the policy has none of its own or one of the
        same name, where its weights are spread over processes, and where a weight of the adapter finds no place."""
        if not isinstance(policy, PeftModel):
            raise InputError("shared_base: the policy trains all its weights, so they are no base to share; set lora_r")
        if ADAPTER in policy.peft_config:  # PEFT would load the verifier's weights into it without a word
            raise InputError(f"shared_base: the policy's own adapter is named {ADAPTER!r}; give it another name")
        if is_deepspeed_zero3_enabled():
            raise InputError(
                "shared_base: ZeRO stage 3 spreads the base over processes; take stage 2, or a judge apart"
            )
        # On the meta device first: initialising the weights would move the random numbers that the policy samples with.
        found = policy.load_adapter(str(self._folder), ADAPTER, is_trainable=False, low_cpu_mem_usage=True)
        if found.unexpected_keys:
            raise InputError(f"{self._folder}: the policy has no place for the adapter's {found.unexpected_keys[0]}")
        self._model = policy
        whole = VisionLanguageModel(policy, load_processor(self._base), self._base)  # type: ignore[arg-type]
        self._judge = PackedJudge(whole, self.card, self._max_packed_tokens, VerdictCache(), adapter_hash(self._folder))

    def judge(self, items: Sequence[tuple[Example, Rollout]]) -> list[Verdict]:
        if self._model is None:
            raise InputError("the verifier is not attached to a policy yet")
        with _active(self._model):
            return self._judge.judge(items)

    def detach(self) -> None:
        """Takes the adapter off again, so that the policy is saved alone."""
        if self._model is not None:
            self._model.delete_adapter(ADAPTER)
            self._model = None


def on_the_policy(judge: Judge | None) -> SharedBaseJudge | None:
    """The judge, or a cascade's first one, that wants the policy's base."""
    own = judge.first if isinstance(judge, CascadeJudge) else judge
    return own if isinstance(own, SharedBaseJudge) else None


@contextmanager
def verifier_left_out(policy: Any) -> Iterator[None]:
    """What is saved meanwhile is the policy alone. A checkpoint that held both adapters would be gone on with by the
    verifier's and without the policy's: transformers then reads those in folders below it and no other."""
    if not isinstance(policy, PeftModel) or ADAPTER not in policy.peft_config:
        yield
        return
    own = [name for name in policy.peft_config if name != ADAPTER]
    policy.save_pretrained = partial(policy.save_pretrained, selected_adapters=own)  # type: ignore[method-assign]
    try:
        yield
    finally:
        del policy.save_pretrained  # back to the class's


@contextmanager
def _active(policy: PeftModel) -> Iterator[None]:
    """The verifier active and frozen; afterwards all is as it was. (PEFT's plain switch turns on the gradients of the
    adapter it switches to, and off those of the other.)"""
    own, training = str(policy.active_adapter), policy.training
    learning = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    policy.set_adapter(ADAPTER, inference_mode=True)
    policy.eval()
    try:
        yield
    finally:
        policy.set_adapter(own, inference_mode=True)
        for parameter in learning:
            parameter.requires_grad_(True)
        policy.train(training)
