"""Makes the digits world's ready-made models, the package data under distill/assets: base, verifier adapter, policy.

    python -m claimwise.scripts.make_digits --out distill/assets

Everything is trained from scratch on the training digits, with one seed, on two cores in under an hour. It prints the
measured figures and writes them to figures.json beside the models.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import torch

from ..distill import digits, pretrain
from ..distill.loss import distillation_loss, locate, margin, read_logits, with_targets
from ..distill.rollouts import sample
from ..verifier.model import VisionLanguageModel
from ..verifier.tables import pair_up

SEED = 7


def loss_of(model: VisionLanguageModel, batch) -> torch.Tensor:
    trees, targets = zip(*batch, strict=True)
    packed = model.pack([with_targets(*pair) for pair in batch])
    found = locate(trees, targets, packed)
    token_logits, verdict_logits = read_logits(model.model, packed, found)
    return distillation_loss(token_logits, margin(verdict_logits, model.encoder), found)


def fit(model: VisionLanguageModel, steps, count: int, peak: float, every: int, report) -> None:
    """AdamW, 100 steps of warm-up, then a cosine to a twentieth; `report(step, loss)` every so many steps."""
    optimizer = torch.optim.AdamW(model.model.parameters(), peak, betas=(0.9, 0.98), weight_decay=0.01)
    running, started = 0.0, time.time()
    for step, batches in zip(range(1, count + 1), steps, strict=False):
        rate = min(step / 100, 0.05 + 0.95 * (1 + math.cos(math.pi * step / count)) / 2)
        for group in optimizer.param_groups:
            group["lr"] = peak * rate
        model.model.train()
        for batch in batches:
            loss = loss_of(model, batch)
            loss.backward()
            running += loss.item() / every
        torch.nn.utils.clip_grad_norm_(model.model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % every == 0:
            report(step, running, time.time() - started)
            running = 0.0


@torch.no_grad()
def probe_figures(model: VisionLanguageModel, count: int = 32) -> dict[str, float]:
    """Share of probes right by their words: digits seen, sentences found, digits stated, comparisons."""
    rng, right = random.Random(2), defaultdict(list)
    model.model.eval()
    batch = [pretrain.probe_task(model, rng) for _ in range(count)]
    trees, targets = zip(*batch, strict=True)
    packed = model.pack([with_targets(*pair) for pair in batch])
    found = locate(trees, targets, packed)
    hits = (read_logits(model.model, packed, found)[0].argmax(-1) == found.token_ids).tolist()
    for tree, row in zip(trees, targets, strict=True):
        for branch, target in zip(tree.branches, row, strict=True):
            word = model.processor.tokenizer.decode(branch[:1]).strip()
            answer = [hits.pop(0) for _ in target.ids[:-1]]
            right[f"{word} {len(branch)}/{len(answer)}"].append(all(answer))
    return {name: round(sum(row) / len(row), 3) for name, row in right.items()}


@torch.no_grad()
def claim_figures(model: VisionLanguageModel, count: int = 12) -> dict[str, float]:
    """Share of held-out claims judged right after the true label and reading, and of labels and readings right."""
    rng, right = random.Random(1), defaultdict(list)
    model.model.eval()
    for _ in range(count):
        batch = [pretrain.claim_task(model, rng, part="validation") for _ in range(8)]
        trees, targets = zip(*batch, strict=True)
        packed = model.pack([with_targets(*pair) for pair in batch])
        found = locate(trees, targets, packed)
        token_logits, verdict_logits = read_logits(model.model, packed, found)
        hits = (token_logits.argmax(-1) == found.token_ids).tolist()
        verdicts = ((margin(verdict_logits, model.encoder) > 0) == (found.p_yes > 0.5)).tolist()
        for tree, row in zip(trees, targets, strict=True):
            for target in row:
                kind = f"{'image' if tree.pixel_values is not None else 'text'} {target.kind}"
                right[kind].append(verdicts.pop(0))
                tokens = [hits.pop(0) for _ in target.ids[:-1]]
                right["pointers" if target.kind in ("read", "pitfall") else "labels"].append(tokens[0])
                if len(tokens) > 2:
                    right["readings"].append(tokens[1])
    return {kind: round(sum(hits) / len(hits), 3) for kind, hits in sorted(right.items())}


def save(model: VisionLanguageModel, folder: Path) -> None:
    """As bfloat16, with processor and tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {name: value.to(torch.bfloat16) for name, value in model.model.state_dict().items()}
    model.model.save_pretrained(folder, state_dict=state)
    model.processor.save_pretrained(folder)


def make_base(out: Path, stages, seed: int, hidden: int, layers: int, peak: float, init: float) -> dict:
    torch.manual_seed(seed)
    processor = pretrain.build_processor()
    model = VisionLanguageModel(pretrain.build_model(processor, hidden, layers, init), processor, str(out))
    print(f"base: {pretrain.parameters(model.model):,} parameters")
    figures: dict = {}
    steps = sum(stage.steps for stage in stages)

    def report(step: int, loss: float, seconds: float) -> None:
        figures.update(probe_figures(model))
        if step % 300 == 0:
            figures.update(claim_figures(model))
        print(f"step {step:5d}  loss {loss:.3f}  {seconds:5.0f} s  {json.dumps(figures)}", flush=True)
        save(model, out / "base")

    fit(model, pretrain.batches(model, seed, stages), steps, peak, 100, report)
    return {"parameters": pretrain.parameters(model.model), "steps": steps, **figures}


def make_policy(out: Path, seed: int, stages: Sequence[pretrain.Stage], noisy: pretrain.Stage) -> dict:
    """A small policy that can read and conclude, then made to misread a third of the digits: a good start for GRPO."""
    torch.manual_seed(seed)
    processor = pretrain.build_processor()
    model = VisionLanguageModel(pretrain.build_model(processor, 64, 2, 0.06), processor, str(out))
    figures: dict = {"parameters": pretrain.parameters(model.model)}

    def report(step: int, loss: float, seconds: float) -> None:
        figures.update(policy_figures(model))
        print(f"policy step {step:5d}  loss {loss:.3f}  {seconds:5.0f} s  {json.dumps(figures)}", flush=True)

    fit(model, pretrain.batches(model, seed, stages), sum(s.steps for s in stages), 3e-3, 200, report)
    fit(model, pretrain.batches(model, seed + 1, [noisy]), noisy.steps, 1e-3, noisy.steps, report)
    save(model, out / "policy")
    return figures


def policy_figures(model: VisionLanguageModel, count: int = 100) -> dict[str, float]:
    """Sampled responses on validation pictures, against the human labels."""
    examples = [digits.make_example(random.Random(f"policy-{i}"), "validation", i) for i in range(count)]
    rollouts = sample(model, examples, 1, max_new_tokens=64)
    scores = [digits.score_policy(r.response, e) for e, r in pair_up(examples, rollouts)]
    return {key: round(sum(score[key] for score in scores) / count, 3) for key in scores[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("distill/assets"))
    parser.add_argument("--stages", nargs="+")
    parser.add_argument("--policy", action="store_true")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--init", type=float, default=0.06)
    args = parser.parse_args()
    if args.policy:
        stages = [pretrain.Stage(300, 32, 16, 0, 0), pretrain.Stage(500, 8, 32, 0, 0, misread=0.15)]
        print(make_policy(args.out, args.seed, stages, pretrain.Stage(60, 0, 32, 0, 0, misread=0.35)))
        return
    print(
        make_base(
            args.out,
            [pretrain.Stage(*map(int, s.split(","))) for s in args.stages],
            args.seed,
            args.hidden,
            args.layers,
            args.lr,
            args.init,
        )
    )


if __name__ == "__main__":
    main()
