"""The start-up probe: an adapter can load without effect and without error, so every backend judges a few questions with
and without it, and refuses to judge if nothing changed.

In: a judge with the adapter and the same judge without it, and the names of the base's modules. Out: nothing, or an
InputError, which names the modules that did not match: those of the adapter that the base does not have, those that its
settings name and it has no weights for, and those with weights that its settings leave out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from pathlib import Path

from PIL import Image

from .errors import InputError
from .lora import CONFIG, WEIGHTS, lora_settings, module_of
from .schema import Criterion, Example, Judge, Rollout, Verdict

LEAST_CHANGE = 1e-4  # of a margin; the same question asked again differs by less in an engine that batches
_SHOWN = 3


def probe_pairs() -> list[tuple[Example, Rollout]]:
    """One picture, two responses, four criteria."""
    texts = [
        "The response says that the left half is red.",
        "It gives an answer.",
        "It is wrong.",
        "It names a colour.",
    ]
    criteria = tuple(Criterion(f"c{n}", text) for n, text in enumerate(texts))
    picture = Image.new("RGB", (64, 64), (255, 255, 255))
    picture.paste((200, 0, 0), (0, 0, 32, 64))
    example = Example("probe", "What does the picture show?", criteria, (picture,))
    responses = ["The left half is red. The right half is white.", "Answer: 3 5"]
    return [(example, Rollout(f"probe-{n}", "probe", text, "probe")) for n, text in enumerate(responses)]


def check_modules(adapter: str | Path, modules: Iterable[str]) -> None:
    """Raises InputError where the adapter would be loaded in part: it has weights for a module that the base, whose
    `modules` are given by name, does not have or its settings do not name, or none for one that they name."""
    names, known = set(adapter_modules(adapter)), set(modules)
    named = _named(adapter, known)
    count = f"of its {len(names)} modules"
    for lost, told in (
        (names - known, f"{count} are not in the base"),
        (names - named, f"{count} are not among those that its {CONFIG} names"),
        (named - names, f"of the {len(named)} modules that its {CONFIG} names have no weights"),
    ):
        if lost:
            shown = sorted(lost)[:_SHOWN]
            more = f" and {len(lost) - len(shown)} more" if len(lost) > _SHOWN else ""
            raise InputError(
                f"{adapter}: {len(lost)} {told}: {', '.join(shown)}{more}; "
                "give the base it was trained on, or distil it again"
            )


def _named(adapter: str | Path, modules: set[str]) -> set[str]:
    """The modules that PEFT would put the adapter on."""
    from peft import PeftConfig
    from peft.tuners.tuners_utils import check_target_module_exists

    try:
        config = PeftConfig.from_pretrained(str(adapter))
        return {name for name in modules if check_target_module_exists(config, name)}
    except (ValueError, KeyError, TypeError, AttributeError, re.error) as error:
        raise InputError(f"{Path(adapter) / CONFIG} is damaged ({error!r}); distil the verifier again") from error


def check_effect(judge: Judge, bare: Judge, adapter: str | Path) -> None:
    """Raises InputError where the verdicts of `judge` are those of `bare`, the same without the adapter, or where one of
    them cannot answer."""
    pairs = probe_pairs()
    own, other = _answered(judge, pairs), _answered(bare, pairs)
    if not any(_differ(a, b) for a, b in zip(own, other, strict=True)):
        raise InputError(
            f"{adapter} changes nothing, though the base has all of its {len(adapter_modules(adapter))} modules: its "
            "weights are zero, or the engine has left them out; train it on, or see what the engine says as it loads it"
        )


def _answered(judge: Judge, pairs: list[tuple[Example, Rollout]]) -> list[Verdict]:
    verdicts = judge.judge(pairs)
    for verdict in verdicts:
        if verdict.verdict is None:
            raise InputError(f"{judge.name} cannot answer a first question: {verdict.error}")
    return verdicts


def _differ(one: Verdict, other: Verdict) -> bool:
    return abs(_margin(one) - _margin(other)) > LEAST_CHANGE


def _margin(verdict: Verdict) -> float:
    p = min(max(verdict.p_yes or 0.0, 1e-300), 1 - 1e-16)
    return math.log(p) - math.log1p(-p)


def adapter_modules(adapter: str | Path) -> list[str]:
    """The modules that an adapter's weights are for, as the base's own names."""
    from safetensors import safe_open

    lora_settings(adapter)
    with safe_open(Path(adapter) / WEIGHTS, "pt") as weights:
        keys = list(weights.keys())
    return sorted({module_of(key)[0] for key in keys})


def base_modules(base: str | Path) -> list[str]:
    """Names of a base's modules, from its configuration alone."""
    import torch
    from transformers import AutoModelForImageTextToText

    from .processor import load_config

    config = load_config(base)
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config)
    return [name for name, _ in model.named_modules()]
