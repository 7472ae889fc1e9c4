"""Distillation: a LoRA verifier trained on a teacher's verdicts, on packed trees.

In: examples, rollouts and the teacher's verdicts. Out: an adapter folder with its card (`verifier.json`): mode, prompt
hash, base hash, temperature. The trainer is transformers' own with the loss of `loss.py`, so accelerate, resuming,
gradient checkpointing and bf16 work as everywhere.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import torch
from accelerate.utils import gather_object
from peft import LoraConfig, PeftModel, get_peft_model
from tqdm import tqdm
from transformers import EarlyStoppingCallback, Trainer

from ..eval.agreement import agree
from ..eval.calibration import fit_temperature
from ..verifier.adapter import VerifierCard
from ..verifier.errors import InputError
from ..verifier.judge import PackedJudge
from ..verifier.model import VisionLanguageModel
from ..verifier.schema import Example, Rollout, Verdict
from ..verifier.sentences import label_of, split_sentences
from ..verifier.tree import Packed, Tree
from .config import DistillConfig
from .loss import Target, Targets, distillation_loss, locate, margin, read_logits, with_targets

# Full paths of the language model's projections: the vision tower has `mlp` and `qkv` names too (peft#2615).
LORA_TARGETS = r"model\.language_model\.layers\.\d+\.(self_attn\.(q|k|v|o)_proj|mlp\.(gate|up|down)_proj)"
PER_LAYER = 7  # q, k, v, o, gate, up, down
Item = tuple[Example, Rollout, list[Verdict]]


def join_verdicts(pairs: Sequence[tuple[Example, Rollout]], verdicts: Sequence[Verdict]) -> list[Item]:
    """Each response with its known verdicts in the order of the criteria. Missing verdicts are left out and counted in
    the message that `claimwise distill` prints; a verdict of an unknown rollout or criterion is an error, and so is one
    that points behind the end of its response."""
    known = {(rollout.rollout_id, c.id): len(rollout.response) for example, rollout in pairs for c in example.criteria}
    table: dict[tuple[str, str], Verdict] = {}
    for verdict in verdicts:
        if verdict.key not in known:
            raise InputError(
                f"the verdicts name rollout {verdict.rollout_id!r}, criterion {verdict.criterion_id!r}, which the "
                "rollout and example tables do not hold; give the tables that were labelled"
            )
        if verdict.verdict is None:
            continue
        if (verdict.span_end or 0) > known[verdict.key]:
            raise InputError(
                f"the verdict on rollout {verdict.rollout_id!r}, criterion {verdict.criterion_id!r} points at characters "
                f"up to {verdict.span_end} of a response that has {known[verdict.key]}; give the rollouts that were "
                "labelled"
            )
        table[verdict.key] = verdict
    items = []
    for example, rollout in pairs:
        keys = [(rollout.rollout_id, criterion.id) for criterion in example.criteria]
        rows = [table[key] for key in keys if key in table]
        if rows:
            items.append((example, rollout, rows))
    if not items:
        raise InputError("no rollout has a known verdict; label the rollouts first (claimwise label)")
    return items


def balance(items: Sequence[Item]) -> dict[tuple[str | None, bool], float]:
    """Weight of a verdict by dimension and class, so that yes and no count alike within each dimension; mean 1."""
    counts = Counter((v.dimension, bool(v.verdict)) for _, _, rows in items for v in rows)
    totals = Counter(v.dimension for _, _, rows in items for v in rows)
    return {key: totals[key[0]] / (count * sum(k[0] == key[0] for k in counts)) for key, count in counts.items()}


class TreeCollator:
    """Items to trees and targets: what a branch should write is the teacher's label, reading and verdict."""

    def __init__(self, model: VisionLanguageModel, config: DistillConfig, weights: dict):
        self.model, self.config, self.weights = model, config, weights

    def __call__(self, items: Sequence[Item]) -> dict:
        trees, targets = zip(*[self._tree(*item) for item in items], strict=True)
        packed = self.model.pack([with_targets(*pair) for pair in zip(trees, targets, strict=True)])
        return {"packed": packed, "targets": locate(trees, targets, packed)}

    def _tree(self, example: Example, rollout: Rollout, rows: Sequence[Verdict]) -> tuple[Tree, list[Target]]:
        encoder, sentences = self.model.encoder, split_sentences(rollout.response)
        text = {criterion.id: criterion.text for criterion in example.criteria}
        branches = [encoder.branch(text[row.criterion_id]) for row in rows]
        targets = []
        for row in rows:
            reading = (row.reading or "") if self.config.readings else None
            ids = encoder.target(label_of(sentences, row.span), reading, bool(row.verdict))
            p_yes = float(bool(row.verdict)) if row.p_yes is None else row.p_yes
            targets.append(Target(ids, p_yes, self.weights[row.dimension, bool(row.verdict)]))
        return self.model.tree(example, rollout.response, branches, self.config.mode), targets


class VerifierTrainer(Trainer):
    """transformers.Trainer with the distillation loss; evaluation judges the validation rollouts as a judge would."""

    def __init__(self, vlm: VisionLanguageModel, config: DistillConfig, items: list[Item], validation: list[Item]):
        self.vlm, self.validation = vlm, validation
        collator = TreeCollator(vlm, config, balance(items))
        stop = [EarlyStoppingCallback(config.patience)] if config.patience else []
        # One GPU a process: torch's DataParallel would cut the position ids (3, B, L) along their first axis.
        config._n_gpu = min(config.n_gpu, 1)
        super().__init__(
            model=vlm.model,
            args=config,
            train_dataset=items,  # pyright: ignore[reportArgumentType]
            eval_dataset=validation,  # pyright: ignore[reportArgumentType]
            data_collator=collator,  # pyright: ignore[reportArgumentType]
            callbacks=[*stop],
        )
        self.model_accepts_loss_kwargs = True  # the loss comes divided by the whole step's counts

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        """The micro-batches of one step, and the (2,) numbers of tokens and of verdicts in those of all processes."""
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        held = [(len(batch["targets"].token_ids), len(batch["targets"].weights)) for batch in batches]
        counts = torch.tensor(held, dtype=torch.long).reshape(-1, 2).sum(0)
        return batches, cast(torch.Tensor, self.accelerator.reduce(counts.to(device)))

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        packed: Packed = inputs["packed"].to(self.args.device)  # pyright: ignore[reportAssignmentType]
        targets: Targets = inputs["targets"].to(self.args.device)  # pyright: ignore[reportAssignmentType]
        token_logits, verdict_logits = read_logits(model, packed, targets)
        loss = distillation_loss(token_logits, margin(verdict_logits, self.vlm.encoder), targets, num_items_in_batch)
        if num_items_in_batch is not None:
            loss = loss * self.accelerator.num_processes  # gradients are averaged over processes, the loss is a sum
        return (loss, None) if return_outputs else loss

    def judge_validation(self) -> tuple[list[Verdict], list[Verdict]]:
        """The teacher's rows and the judge's. Each process judges its share; every process gets them all."""
        pairs = [(example, rollout) for example, rollout, _ in self.validation]
        rank, count = self.accelerator.process_index, self.accelerator.num_processes
        own = pairs[rank::count]
        judged = judge_of(self.vlm, self.args).judge_each(own)
        shares = gather_object([list(tqdm(judged, "judging validation", len(own), leave=False, disable=rank > 0))])
        self.vlm.model.train()
        verdicts = [verdict for i in range(len(pairs)) for verdict in shares[i % count][i // count]]
        return matched(self.validation, verdicts)

    def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix="eval") -> dict[str, float]:
        overall = agree(*self.judge_validation(), draws=0)["overall"]
        metrics = {f"{metric_key_prefix}_{k}": overall[k] or 0.0 for k in ("kappa", "agreement", "span_exact")}
        self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics


def matched(items: Sequence[Item], verdicts: Sequence[Verdict]) -> tuple[list[Verdict], list[Verdict]]:
    """The teacher's rows of the items, and the judge's on the same rollouts and criteria."""
    teacher = [row for _, _, rows in items for row in rows]
    keys = {row.key for row in teacher}
    return teacher, [verdict for verdict in verdicts if verdict.key in keys]


def judge_of(vlm: VisionLanguageModel, config) -> PackedJudge:
    from ..verifier.prompt import prompt_hash

    digest = prompt_hash(config.mode, config.readings)
    return PackedJudge(vlm, VerifierCard(config.name, config.base, "", digest, config.mode, config.readings))


def projections(model) -> set[str]:
    """Full names of the language model's projections, which the adapter changes and 4 bits are for."""
    return {name for name, module in model.named_modules() if re.fullmatch(LORA_TARGETS, name)}


def add_adapter(vlm: VisionLanguageModel, config: DistillConfig) -> str:
    """Wraps the model in a LoRA on the language model alone, fresh or that of the verifier to go on from, and says how
    many projections of which tower."""
    layers = vlm.model.config.get_text_config().num_hidden_layers
    if len(projections(vlm.model)) != PER_LAYER * layers:
        raise InputError(f"{vlm.path} has {len(projections(vlm.model))} of the projections that a verifier's adapter "
                         f"changes, not {PER_LAYER} in each of {layers} layers; claimwise distill needs a Qwen-VL of "
                         "transformers")  # fmt: skip
    if config.adapter:
        vlm.model = PeftModel.from_pretrained(vlm.model, config.adapter, is_trainable=True)
    else:
        lora = LoraConfig(r=config.lora_r, lora_alpha=config.lora_alpha, target_modules=LORA_TARGETS, bias="none")
        vlm.model = get_peft_model(vlm.model, lora)
    names = [name for name, module in vlm.model.named_modules() if hasattr(module, "lora_A")]
    vision = sum(".visual." in name for name in names)
    if vision or len(names) != PER_LAYER * layers:
        raise InputError(f"the adapter would touch {vision} vision and {len(names) - vision} language projections of "
                         f"{vlm.path}; claimwise distill needs a Qwen-VL of transformers")  # fmt: skip
    return f"LoRA on {len(names)} projections of the language model, 0 of the vision tower"


def temperature_on(teacher: Sequence[Verdict], own: Sequence[Verdict]) -> float:
    """The temperature that makes the judge's P(yes), made at temperature 1, most likely on the teacher's verdicts.
    Missing verdicts say nothing of it."""
    p = torch.tensor([float("nan") if v.p_yes is None else v.p_yes for v in own], dtype=torch.float64)
    return fit_temperature(torch.logit(p.clamp(1e-9, 1 - 1e-9)).numpy(), [v.verdict for v in teacher])


def save_adapter(vlm: VisionLanguageModel, card: VerifierCard, folder: Path) -> None:
    """Adapter first, card last: a folder with a card is complete."""
    vlm.model.save_pretrained(folder)
    card.write(folder)
