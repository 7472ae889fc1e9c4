"""What a quickstart found: summary.json from the tables it left, and one group's credit for the report.

In: a run folder with `verdicts/`, `heldout/`, `policy/` and `policy-train/`. Out: plain dictionaries.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import torch

from ..distill.rollouts import sample
from ..eval.agreement import agree
from ..eval.calibration import expected_calibration_error
from ..trainer.credit import ScoredResponse, token_advantages
from ..trainer.offsets import text_and_offsets
from ..trainer.rewards import answer_reward, format_reward
from ..verifier.judge import load_judge
from ..verifier.model import load_model
from ..verifier.rundir import write_atomic
from ..verifier.schema import Example, Rollout, Verdict
from ..verifier.tables import load_image, pair_up, read_examples, read_verdicts

FIGURES = ("agreement", "kappa")
CREDIT_EXAMPLES, CREDIT_GROUP = 24, 4


def summarise(out: Path, stages: dict[str, dict], versions: dict[str, str], seed: int) -> dict:
    """The contents of summary.json; all agreements are against image-mode gold."""
    tables = {name: read_verdicts(out / "verdicts" / f"{name}.jsonl") for name in ("gold-text", "gold-image")}
    judges = {name: read_verdicts(out / "verdicts" / f"{name}.jsonl") for name in ("image", "text", "base")}
    gold, wrong = tables["gold-image"], wrong_criteria(tables["gold-text"], tables["gold-image"])
    base = agree(gold, judges["base"], draws=0)["overall"]
    attacked = stages["judge"]["result"]["attacks"]
    return {
        "verifier": {
            **{
                mode: {
                    **verifier_figures(gold, judges[mode], wrong),
                    "attacks": attacked[mode],
                }
                for mode in ("image", "text")
            },
            "base": {key: base[key] for key in FIGURES},
        },
        "policy": {"before": stages["policy-before"]["result"], "after": stages["policy-after"]["result"]},
        "in_loop": stages["train"]["result"],
        "seconds": {name: stage["seconds"] for name, stage in stages.items()},
        "versions": versions,
        "seed": seed,
    }


def headline(summary: dict) -> str:
    """The run in four lines, for the end of the command."""
    judges, policy = summary["verifier"], summary["policy"]
    rows = [
        f"  {name:<12} agreement with the teacher {judges[key]['agreement']:.3f}"
        + (
            f", on wrong criteria {wrong:.3f}"
            if (wrong := judges[key].get("wrong_criteria_agreement")) is not None
            else ""
        )
        for name, key in (("image-aware", "image"), ("text-only", "text"), ("base", "base"))
    ]
    read = f"{policy['before']['digits']:.3f} before, {policy['after']['digits']:.3f} after"
    return "\n".join(
        [*rows, f"  policy       digits read right: {read}; {sum(summary['seconds'].values()):.0f} s in all"]
    )


def wrong_criteria(text: Sequence[Verdict], image: Sequence[Verdict]) -> set[tuple[str, str]]:
    """The pairs whose text-mode and image-mode gold differ: where only a judge that looks can be right."""
    by_key = {verdict.key: verdict.verdict for verdict in text}
    return {verdict.key for verdict in image if by_key[verdict.key] != verdict.verdict}


def verifier_figures(gold: Sequence[Verdict], own: Sequence[Verdict], wrong: set[tuple[str, str]]) -> dict:
    """Agreement overall, per dimension and on the wrong criteria; spans where gold is yes; calibration."""
    figures = agree(list(gold), list(own), draws=0)
    truth = {verdict.key: verdict for verdict in gold}
    on_wrong = [v.verdict == truth[v.key].verdict for v in own if v.key in wrong]
    spans = [v.span == truth[v.key].span for v in own if truth[v.key].verdict is True]
    known = [v for v in own if v.p_yes is not None]
    return {
        **{key: figures["overall"][key] for key in FIGURES},
        "by_dimension": {name: {"agreement": row["agreement"]} for name, row in figures["by_dimension"].items()},
        "wrong_criteria_agreement": sum(on_wrong) / len(on_wrong) if on_wrong else None,
        "wrong_criteria": len(on_wrong),
        "span_exact_given_yes": sum(spans) / len(spans) if spans else None,
        "ece": expected_calibration_error([v.p_yes for v in known], [bool(truth[v.key].verdict) for v in known]),
    }


def credit_example(out: Path, policy: str, seed: int) -> dict:
    """One group of the policy's responses before training with the credit of every token, as credit.json and
    credit.png: of some test pictures the one whose responses differ on most criteria, judged by the image-aware
    verifier, arm `prefix`."""
    examples = read_examples(out / "policy-test" / "examples.parquet")[:CREDIT_EXAMPLES]
    model = load_model(policy, dtype=torch.float32)
    rollouts = sample(model, examples, CREDIT_GROUP, max_new_tokens=64, seed=seed, name="group")
    judge = load_judge(out / "verifier-image", "image", dtype=torch.float32)
    judged = list(judge.judge_each(pair_up(examples, rollouts)))
    groups = [slice(i * CREDIT_GROUP, (i + 1) * CREDIT_GROUP) for i in range(len(examples))]
    described = [
        _describe(example, rollouts[group], judged[group], model.processor.tokenizer)
        for example, group in zip(examples, groups, strict=True)
    ]
    best = max(described, key=_variety)
    image = next(example.images[0] for example in examples if example.example_id == best["example_id"])
    load_image(image).save(out / "credit.png")
    write_atomic(out / "credit.json", json.dumps(best, indent=1) + "\n")
    return {"example_id": best["example_id"]}


def _variety(group: dict) -> int:
    """How many criteria tell the responses apart."""
    rows = [[verdict["verdict"] for verdict in response["verdicts"]] for response in group["responses"]]
    return sum(len(set(column)) > 1 for column in zip(*rows, strict=True))


def _describe(example: Example, rollouts: Sequence[Rollout], verdicts: Sequence[list[Verdict]], tokenizer) -> dict:
    ids = [tokenizer(rollout.response, add_special_tokens=False)["input_ids"] for rollout in rollouts]
    offsets = [text_and_offsets(tokenizer, row)[1] for row in ids]
    texts = [rollout.response for rollout in rollouts]
    answers = answer_reward(texts, [example.answer] * len(texts))
    scored = [
        ScoredResponse(o, a, f, {v.criterion_id: (v.verdict, v.span) for v in row})
        for o, a, f, row in zip(offsets, answers, format_reward(texts), verdicts, strict=True)
    ]
    credit = token_advantages(example.criteria, scored, arm="prefix", budget="paper")
    return {
        "arm": "prefix",
        "budget": "paper",
        "example_id": example.example_id,
        "question": example.question,
        "image": "credit.png",
        "criteria": [
            {"id": c.id, "text": c.text, "dimension": c.dimension, "label": c.label, "weight": c.weight}
            for c in example.criteria
        ],
        "responses": [_response(g, texts[g], offsets[g], verdicts[g], credit) for g in range(len(texts))],
    }


def _response(g: int, text: str, offsets, verdicts: Sequence[Verdict], credit) -> dict:
    return {
        "tokens": [text[start:end] for start, end in offsets],
        "advantages": [round(float(a), 4) for a in credit.advantages[g]],
        "terms": [
            {
                "name": t.name,
                "added": round(float(t.added_g[g]), 4),
                "first": int(t.first_g[g]),
                "last": int(t.last_g[g]),
            }
            for t in credit.terms
        ],
        "rewards": dataclasses.asdict(credit.rewards[g]),
        "verdicts": [
            {"criterion_id": v.criterion_id, "verdict": v.verdict, "span": v.span, "reading": v.reading}
            for v in verdicts
        ],
    }
