"""What a quickstart found: summary.json from the tables it left, one group's credit for the report, and how good the
verifier's credit and its audit of the criteria are.

In: a run folder with `verdicts/`, `heldout/`, `policy/` and `policy-train/`. Out: plain dictionaries.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from ..distill.oracle import OracleJudge
from ..distill.rollouts import sample
from ..eval.agreement import agree
from ..eval.calibration import expected_calibration_error
from ..eval.criteria_audit import audit, score
from ..eval.criteria_audit import summarise as summarise_audit
from ..trainer.credit import ARMS, PLACEBO, Arm, ScoredResponse, token_advantages
from ..trainer.kept_groups import JudgedResponse, describe_group
from ..trainer.offsets import text_and_offsets
from ..trainer.rewards import answer_reward, format_reward
from ..verifier.judge import load_judge
from ..verifier.model import load_model
from ..verifier.rundir import write_atomic
from ..verifier.schema import Example, Rollout, Verdict
from ..verifier.tables import load_image, pair_up, read_examples, read_verdicts
from .commands.audit_criteria import audit_all
from .credit_groups import fidelity_by_arm, groups_of

FIGURES = ("agreement", "kappa")
CREDIT_EXAMPLES, CREDIT_GROUP, CREDIT_SHOWN = 24, 8, 4
SHOWN_ARMS: tuple[Arm, ...] = tuple(arm for arm in ARMS if arm != PLACEBO)


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
        "fidelity": stages["credit"]["result"]["fidelity"],
        "criteria_audit": stages["audit"]["result"],
        "seconds": {name: stage["seconds"] for name, stage in stages.items()},
        "versions": versions,
        "seed": seed,
    }


def headline(summary: dict) -> str:
    """The run in five lines, for the end of the command."""
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
    prefix, audited = summary["fidelity"]["prefix"], summary["criteria_audit"]["gold"]
    measured = [
        f"credit fidelity (prefix) {_shown(prefix['cosine'])}, with tossed verdicts "
        f"{_shown(prefix['coin_flip']['cosine'])}",
        f"criterion audit: recall {_shown(audited['recall'])}, precision {_shown(audited['precision'])}",
    ]
    read = f"{policy['before']['digits']:.3f} before, {policy['after']['digits']:.3f} after"
    return "\n".join(
        [
            *rows,
            f"  {'; '.join(measured)}",
            f"  policy       digits read right: {read}; {sum(summary['seconds'].values()):.0f} s in all",
        ]
    )


def _shown(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.3f}"


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
    """Groups of the policy's responses before training to some test pictures, judged by the image-aware verifier. Their
    credit fidelity, by arm; and as credit.json and credit.png one group, that whose responses differ on most criteria,
    with the credit of every token under every arm."""
    examples = read_examples(out / "policy-test" / "examples.parquet")[:CREDIT_EXAMPLES]
    model = load_model(policy, dtype=torch.float32)
    rollouts = sample(model, examples, CREDIT_GROUP, max_new_tokens=64, seed=seed, name="group")
    pairs = pair_up(examples, rollouts)
    judge = load_judge(out / "verifier-image", "image", dtype=torch.float32)
    judged = list(tqdm(judge.judge_each(pairs), "judging groups", len(pairs), unit="response"))
    tokenizer = model.processor.tokenizer
    starts = range(0, len(rollouts), CREDIT_GROUP)
    shown = [slice(start, start + CREDIT_SHOWN) for start in starts]
    described = [
        _describe(example, rollouts[group], judged[group], tokenizer)
        for example, group in zip(examples, shown, strict=True)
    ]
    best = max(described, key=_variety)
    image = next(example.images[0] for example in examples if example.example_id == best["example_id"])
    load_image(image).save(out / "credit.png")
    write_atomic(out / "credit.json", json.dumps(best, indent=1) + "\n")
    offsets = {rollout.rollout_id: _offsets(tokenizer, rollout.response) for rollout in rollouts}
    said = [verdict for row in judged for verdict in row]
    by_arm = fidelity_by_arm(OracleJudge("image").judge(pairs), said, groups_of(pairs)[0], offsets, seed=seed)
    return {"example_id": best["example_id"], "fidelity": by_arm}


def criteria_audit(out: Path) -> dict:
    """Which of the held-out criteria are false of the image, as the image-aware verifier has it, scored against the human
    labels, that is, the ones that are wrong on purpose."""
    examples = read_examples(out / "heldout" / "examples.parquet")
    findings = audit_all(examples, load_judge(out / "verifier-image", "image", dtype=torch.float32).judge)
    return {**summarise_audit(findings), "gold": score(findings, audit(examples, OracleJudge("image").judge))}


def _variety(group: dict) -> int:
    """How many criteria tell the responses apart."""
    rows = [[said["verdict"] for said in response["verdicts"].values()] for response in group["responses"]]
    return sum(len(set(column)) > 1 for column in zip(*rows, strict=True))


def _describe(example: Example, rollouts: Sequence[Rollout], verdicts: Sequence[list[Verdict]], tokenizer) -> dict:
    texts = [rollout.response for rollout in rollouts]
    answers, formats = answer_reward(texts, [example.answer] * len(texts)), format_reward(texts)
    group = []
    for rollout, answer, format_, row in zip(rollouts, answers, formats, verdicts, strict=True):
        said = {v.criterion_id: (v.verdict, v.span) for v in row}
        scored = ScoredResponse(_offsets(tokenizer, rollout.response), answer, format_, said)
        group.append(JudgedResponse(rollout, row, scored))
    scores = [one.scored for one in group]
    credit = {arm: token_advantages(example.criteria, scores, arm=arm, budget="paper") for arm in SHOWN_ARMS}
    return describe_group(example, group, "prefix", "paper", credit)


def _offsets(tokenizer, response: str) -> np.ndarray:
    return text_and_offsets(tokenizer, tokenizer(response, add_special_tokens=False)["input_ids"])[1]
