"""The model card of a verifier: what it is, how far it agrees with its teacher, what it was made from.

In: the facts of a finished distillation (verifier.json, metrics.json, run.json) and the base's name and licence. Out:
the text of README.md, its front matter as the Hub reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..verifier.adapter import VerifierCard

SHOWN = {
    "agreement": "agreement",
    "kappa": "kappa",
    "false_yes": "false yes",
    "false_no": "false no",
    "ece": "calibration error",
    "span_exact": "same deciding sentence",
}
TABLES = ("examples", "rollouts", "verdicts", "validation_examples", "validation_rollouts", "validation_verdicts")
NOT_RECORDED = "not recorded"


@dataclass(frozen=True)
class Handover:
    """What is handed over. `base_name` is the base's name on the Hub, or None; `licence` has license, and where the
    base's has them license_name and license_link; `repo` is where it goes."""

    card: VerifierCard
    metrics: Mapping[str, Any]
    run: Mapping[str, Any]
    licence: Mapping[str, str]
    base_name: str | None
    repo: str
    merged: bool


def model_card(facts: Handover) -> str:
    paragraphs = [
        f"---\n{_front_matter(facts)}\n---",
        f"# {facts.repo.rpartition('/')[2]}",
        _what_it_is(facts),
        "## Measured agreement",
        *_agreement(facts.metrics),
        "## Made from",
        _table([["", ""], *_origin(facts)]),
        "## Use",
        *_use(facts),
    ]
    return "\n\n".join(paragraphs) + "\n"


def _front_matter(facts: Handover) -> str:
    from huggingface_hub import ModelCardData

    more: dict[str, Any] = dict(facts.licence)
    if facts.base_name:
        more |= {"base_model": facts.base_name, "base_model_relation": "finetune" if facts.merged else "adapter"}
    data = ModelCardData(
        library_name="transformers" if facts.merged else "peft",
        pipeline_tag="image-text-to-text",
        tags=["claimwise", "verifier", "rubric", "reward-model", *([] if facts.merged else ["lora"])],
        **more,
    )
    return data.to_yaml(line_break="\n").strip()


def _what_it_is(facts: Handover) -> str:
    seen = "an image, a question, a response" if facts.card.mode == "image" else "a question, a response"
    reading = ", says in a few words what the image shows there," if facts.card.readings else ""
    kind = "merged into its base" if facts.merged else "a LoRA adapter"
    return (
        f"A verifier ({kind}) that judges responses by rubrics: from {seen} and one criterion it points at the "
        f"sentence that decides the criterion{reading} and answers yes or no. Made with claimwise, by distillation "
        "from a teacher's verdicts."
    )


def _agreement(metrics: Mapping[str, Any]) -> list[str]:
    groups = {"overall": metrics, **metrics.get("by_dimension", {})}
    shown = [name for name in SHOWN if any(figures.get(name) is not None for figures in groups.values())]
    rows = [["", "verdicts", *(SHOWN[name] for name in shown)]]
    rows += [[group, f"{f['n']:,}", *(_figure(f, name) for name in shown)] for group, f in groups.items()]
    missing = metrics.get("missing_a", 0)
    teacher = metrics.get("teacher") or NOT_RECORDED
    told = (
        f"With its teacher ({teacher}), on held-out responses; {missing:,} verdicts that the teacher does not have are "
        "left out. Brackets: 95% intervals, bootstrapped over examples. On the same responses the temperature was "
        "fitted (and the training stopped, where it was stopped early)."
    )
    return [told, _table(rows), *([] if "by_dimension" in metrics else [f"Per dimension: {NOT_RECORDED}."])]


def _figure(figures: Mapping[str, Any], name: str) -> str:
    value, interval = figures.get(name), figures.get(f"{name}_ci")
    if value is None:
        return "-"
    return f"{value:.3f}" + (f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval else "")


def _origin(facts: Handover) -> list[list[str]]:
    card, run = facts.card, facts.run
    rows = [
        ["base", facts.base_name or "a base that is not on the Hub"],
        ["hash of the base's weights", f"`{run.get('base_hash', card.base_hash)}`"],
        ["prompt hash", f"`{card.prompt_hash}`"],
        ["mode", card.mode],
        ["readings", "yes" if card.readings else "no"],
        ["temperature", f"{card.temperature:.4f}"],
    ]
    rows += [[f"data version: {name.replace('_', ' ')}", _digest(run.get(name))] for name in TABLES]
    if run.get("adapter"):
        rows.append(["gone on from the adapter", f"`{run['adapter']}`"])
    length = "max_steps" if (run.get("max_steps") or 0) > 0 else "num_train_epochs"
    settings = ("lora_r", "lora_alpha", "load_in_4bit", "learning_rate", length, "responses_per_step", "seed")
    told = [f"{name} {run[name]}" for name in settings if name in run]
    rows.append(["training", ", ".join(told) or NOT_RECORDED])
    return [*rows, ["licence", facts.licence.get("license_name") or facts.licence["license"]]]


def _digest(value: Any) -> str:
    """Tables are recorded by their contents; what an earlier version recorded is a path, of no use to others."""
    return f"`{value}`" if str(value).startswith("sha256 ") else NOT_RECORDED


def _use(facts: Handover) -> list[str]:
    code = [
        "from huggingface_hub import snapshot_download",
        "from claimwise.verifier import load_judge",
        "",
        f'judge = load_judge(snapshot_download("{facts.repo}"), mode="{facts.card.mode}")',
        "verdicts = judge.judge([(example, rollout)])  # per criterion: verdict, P(yes), deciding sentence",
    ]
    what = (
        "It can be loaded by transformers as any model of its base's kind."
        if facts.merged
        else "It refuses a base with other weights than those it was trained on."
    )
    return ["```python\n" + "\n".join(code) + "\n```", f"{what} Other prompts than claimwise's are other questions."]


def _table(rows: list[list[str]]) -> str:
    head, *body = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *body))
