"""Makes the digits world's ready-made models, the package data under distill/assets: base, verifier adapter, policy.

    python -m claimwise.scripts.make_digits --out distill/assets

Everything is trained from scratch on the training digits, with one seed, on two cores in about an hour. It prints the
measured figures and writes them to figures.json beside the models. The base is learned by a wide model first, which stays
in a folder of its own and is not shipped.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import shutil
import tempfile
from collections import defaultdict
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from ..distill import digits, pretrain, slimming, tiny
from ..distill.config import DistillConfig
from ..distill.fitting import fit
from ..distill.loss import locate, margin, read_logits, with_targets
from ..distill.rollouts import sample
from ..distill.run import distill
from ..verifier.adapter import FILE, read_card
from ..verifier.model import VisionLanguageModel, load_model
from ..verifier.progress import only_our_bars
from ..verifier.rundir import write_atomic
from ..verifier.settings import parse_settings
from ..verifier.tables import pair_up
from .quickstart_data import make_examples, make_rollouts, recipe, write_part

WIDE_STAGES = (
    pretrain.Stage(200, glances=24, answers=2, probes=12, claims=0, comparing=False),
    pretrain.Stage(150, glances=6, answers=3, probes=12, claims=0, comparing=False),
    pretrain.Stage(150, glances=6, answers=3, probes=10, claims=0),
    pretrain.Stage(1000, glances=4, answers=3, probes=5, claims=8),
    pretrain.Stage(500, glances=2, answers=2, probes=4, claims=12, branches=6),
)
FINISHING_STAGES = (pretrain.Stage(600, glances=1, answers=1, probes=12, claims=4, hard=True, reasoning=12),)
REASONING_STAGES = (pretrain.Stage(900, glances=1, answers=1, probes=0, claims=3, hard=True, stepwise=24),)
# Heads without which the wide base's claims suffer; of its layers 4 and 5 only the one that compares digits.
SLIM = slimming.Slim(
    width=64,
    mlp=192,
    layers=(0, 1, 2, 3),
    heads=(((0, 0), (0, 1)), ((1, 0), (1, 1)), ((2, 1), (2, 3)), ((5, 2), (3, 2))),
)
SLIM_STAGES = (pretrain.Stage(2000, glances=3, answers=3, probes=2, claims=5, hard=True, stepwise=10),)
ALONE_STAGES = (pretrain.Stage(1600, glances=8, answers=3, probes=2, claims=9, hard=True, stepwise=6),)
POLICY_STAGES = (
    pretrain.Stage(300, glances=32, answers=16, probes=0, claims=0),
    pretrain.Stage(500, glances=8, answers=32, probes=0, claims=0, misread=0.15),
)
NOISY_STAGES = (pretrain.Stage(60, glances=0, answers=32, probes=0, claims=0, misread=0.35),)


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
def claim_figures(model: VisionLanguageModel, count: int = 30) -> dict[str, float]:
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


def make_wide(out: Path, wide: Path, seed: int) -> dict:
    """A wide base that answers questions and checks claims: first looking up, then judging."""
    torch.manual_seed(seed)
    processor = tiny.build_processor()
    model = VisionLanguageModel(tiny.build_model(processor, 128, 4, 0.06), processor, str(wide))
    return _train_base(model, wide, WIDE_STAGES, seed)


def finish_wide(out: Path, wide: Path, seed: int) -> dict:
    """Two layers more on top, for what needs the comparisons of the layers below: whether a conclusion of two digits
    follows. They start as the identity; the layers below learn at a fifth of their rate."""
    torch.manual_seed(seed)
    lower = load_model(wide, dtype=torch.float32)
    model = VisionLanguageModel(tiny.build_model(lower.processor, 128, 6, 0.06), lower.processor, lower.path)
    tiny.deepen(model.model, lower.model)
    return _train_base(model, wide, FINISHING_STAGES, seed + 1, slow=tiny.is_lower)


def reason_wide(out: Path, wide: Path, seed: int) -> dict:
    """The two layers on top trained on, on reasoning alone."""
    model = load_model(wide, dtype=torch.float32)
    return _train_base(model, wide, REASONING_STAGES, seed + 2, slow=tiny.is_lower)


def slim_base(out: Path, wide: Path, seed: int) -> dict:
    """A base of what matters in the wide one, trained on beside it."""
    torch.manual_seed(seed)
    shown = load_model(wide, dtype=torch.float32)
    few = pretrain.batches(shown, seed + 3, [dataclasses.replace(SLIM_STAGES[0], steps=4)])
    model, directions = slimming.slimmed(shown, SLIM, [batch for step in few for batch in step])
    loss = slimming.Following(shown, SLIM, directions)
    return _train_base(model, out / "base", SLIM_STAGES, seed + 4, peak=2e-3, loss=loss)


def finish_base(out: Path, wide: Path, seed: int) -> dict:
    """It goes on alone. Verifiers on a base that has only followed took pitfalls for true, whatever the image showed."""
    model = load_model(out / "base", dtype=torch.float32)
    return _train_base(model, out / "base", ALONE_STAGES, seed + 5, peak=2e-3)


def _train_base(model: VisionLanguageModel, folder: Path, stages, seed: int, peak: float = 3e-3, **how) -> dict:
    figures: dict = {"parameters": tiny.parameters(model.model)}
    print(f"{folder}: {figures['parameters']:,} parameters", flush=True)

    def report(step: int, loss: float, seconds: float) -> None:
        figures.update({**probe_figures(model), **claim_figures(model)} if step % 100 == 0 else {})
        figures["seconds"] = round(seconds)
        print(f"base step {step:5d}  loss {loss:.3f}  {json.dumps(figures)}", flush=True)
        save(model, folder)

    _fit(model, stages, seed, peak, 100, report, **how)
    return figures


def _fit(model: VisionLanguageModel, stages, seed: int, peak: float, every: int, report, **how) -> None:
    fit(model, pretrain.batches(model, seed, stages), pretrain.count(stages), peak, every, report, **how)


def make_policy(out: Path, wide: Path, seed: int) -> dict:
    """A small policy that can read and conclude, then made to misread a third of the digits: a good start for GRPO."""
    torch.manual_seed(seed)
    processor = tiny.build_processor()
    model = VisionLanguageModel(tiny.build_model(processor, 64, 2, 0.06), processor, str(out / "policy"))
    figures: dict = {"parameters": tiny.parameters(model.model)}

    def report(step: int, loss: float, seconds: float) -> None:
        figures.update(policy_figures(model), seconds=round(seconds))
        print(f"policy step {step:5d}  loss {loss:.3f}  {json.dumps(figures)}", flush=True)

    _fit(model, POLICY_STAGES, seed, 3e-3, 200, report)
    _fit(model, NOISY_STAGES, seed + 1, 1e-3, NOISY_STAGES[0].steps, report)
    save(model, out / "policy")
    return figures


def make_verifier(out: Path, wide: Path, seed: int) -> dict:
    """The ready-made verifier: the quickstart's recipe on tables of its own, on top of the base."""
    with tempfile.TemporaryDirectory() as folder:
        tables = Path(folder)
        policy = load_model(out / "policy", dtype=torch.float32)
        for part, count in (("train", 600), ("validation", 100)):
            examples = make_examples(part, count, seed)
            write_part(tables / part, examples, make_rollouts(policy, examples, 1, seed, 2))
        flags = {
            "base": str(out / "base"),
            "output_dir": str(tables / "verifier"),
            "seed": str(seed),
        }
        for prefix, part in (("", "train"), ("validation_", "validation")):
            for name in ("examples", "rollouts"):
                flags[prefix + name] = str(tables / part / f"{name}.parquet")
            flags[prefix + "verdicts"] = str(tables / part / "gold-image.jsonl")
        argv = [word for key, value in flags.items() for word in (f"--{key}", value)]
        config = parse_settings(DistillConfig, ["--config", recipe("verifier-digits.yaml"), *argv], "distill")
        figures = distill(config)
        for name in ("adapter_config.json", "adapter_model.safetensors", FILE):
            (out / "verifier").mkdir(parents=True, exist_ok=True)
            shutil.copy(tables / "verifier" / name, out / "verifier" / name)
    _make_relative(out / "verifier")
    told = {
        key: figures[key]
        for key in ("temperature", "n", "agreement", "kappa", "false_yes", "false_no", "span_exact", "ece")
    }
    return {**told, "by_dimension": {k: row["agreement"] for k, row in figures["by_dimension"].items()}}


def _make_relative(folder: Path) -> None:
    """The adapter names its base relative to itself, and no path of the machine that made it; weights as bfloat16."""
    card = dataclasses.replace(read_card(folder), base="../base")
    card.write(folder)
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(
        json.dumps({**config, "base_model_name_or_path": None}, indent=2) + "\n"
    )
    weights = load_file(folder / "adapter_model.safetensors")
    save_file(
        {k: v.to(torch.bfloat16) for k, v in weights.items()}, folder / "adapter_model.safetensors", {"format": "pt"}
    )


def policy_figures(model: VisionLanguageModel, count: int = 100) -> dict[str, float]:
    """Sampled responses on validation pictures, against the human labels."""
    examples = [digits.make_example(random.Random(f"policy-{i}"), "validation", i) for i in range(count)]
    rollouts = sample(model, examples, 1, max_new_tokens=64)
    scores = [digits.score_policy(r.response, e) for e, r in pair_up(examples, rollouts)]
    return {key: round(sum(score[key] for score in scores) / count, 3) for key in scores[0]}


MAKERS = {
    "wide": make_wide,
    "wide finish": finish_wide,
    "wide reason": reason_wide,
    "slim": slim_base,
    "base": finish_base,
    "policy": make_policy,
    "verifier": make_verifier,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("distill/assets"), help="folder of the models")
    parser.add_argument("--wide", type=Path, default=Path("runs/digits-wide"), help="folder of the wide base")
    parser.add_argument("--seed", type=int, default=7, help="default: 7, which made the ones shipped")
    parser.add_argument("--only", nargs="+", choices=list(MAKERS), default=list(MAKERS), help="make these alone")
    args = parser.parse_args()
    only_our_bars()
    path = args.out / "figures.json"
    for name in args.only:
        figures = json.loads(path.read_text()) if path.is_file() else {"seed": args.seed}
        figures[name] = MAKERS[name](args.out, args.wide, args.seed)
        write_atomic(path, json.dumps(figures, indent=2) + "\n")
    print(path.read_text())


if __name__ == "__main__":
    main()
