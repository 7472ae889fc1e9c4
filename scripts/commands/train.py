"""claimwise train: GRPO with the verifier as judge and component-wise prefix credit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..parser import shows_help

MEMORY = "cascade.jsonl"  # in the run's folder: what the teacher has answered in a cascade
TEACHER_TRIES = 3  # of a call; what is missing then stays missing, since the training goes on
HELP = """usage: claimwise train --config RECIPE.yaml [--KEY VALUE ...]

Train a policy by GRPO; a verifier judges every rollout, and each criterion's credit goes to the tokens up to the
sentence that decides it.

Settings come from a YAML recipe and from flags, which win. The most used:
  --model DIR|NAME          the policy
  --examples FILE           examples to train on
  --verifier DIR            the judge's adapter folder; oracle in the digits world
  --verifier_server URL     where claimwise serve runs it, if not here
  --shared_base true        the verifier as a second adapter on the policy's own base (with --lora_r)
  --teacher oracle|URL      who checks sampled verdicts while training, in the background: the digits world's oracle,
                            or --teacher_model NAME behind a server that speaks OpenAI's chat API (its key is read
                            from OPENAI_API_KEY); default: nobody
  --cascade FILE            the teacher answers where the verifier is not sure (a file of claimwise cascade band), within
                            --cascade_calls N questions in the whole run, evaluations included (default: 1000)
  --sampled_verdicts N      verdicts that go to the teacher per step (default: 8)
  --on_alarm warn|escalate|refresh|stop
                            what to do when the judge no longer agrees with the teacher (default: warn): only say so;
                            ask the teacher in place of the uncertain verdicts (--escalate_budget in all); write what
                            another round of distillation needs, with its command; or stop with an error
  --arm answer|scalar|scalar-z|component|prefix|span
                            where credit goes (default: prefix; placebo: prefix-shuffled); answer is stock GRPO: no
                            rubric, no veto, and an answer that cannot be compared counts as 0
  --budget paper|release-sequence|release-prefix|A,F,R       shares of answer, format and rubric
  --pitfalls veto|veto-answer|criterion|off
  --lora_r N                train a LoRA adapter of this rank (default 0: all weights); with --load_in_4bit true: QLoRA
  --eval_examples FILE      examples for evaluations, with --eval_strategy steps --eval_steps N
  --max_missing SHARE       stop when more of a step's verdicts are missing (default: 0.5)
  --output_dir DIR          the trained policy's folder
  --learning_rate, --max_steps, --num_generations, --beta, --use_vllm, --report_to, ...   as in trl.GRPOConfig
  --help-all                every setting (loads torch)

What the teacher said goes to OUTPUT_DIR/in_loop: the sampled verdicts (samples.jsonl), the same as verdict tables of
judge and teacher with their rollouts.jsonl, for claimwise agree and refresh, and the alarms (alarms.jsonl). What it
said in place of the verifier in a cascade is in OUTPUT_DIR/cascade.jsonl.

example:
  claimwise train --config scripts/recipes/grpo-digits.yaml --examples runs/quickstart/policy-train/examples.parquet \\
      --verifier runs/quickstart/verifier-image --output_dir runs/policy
"""


def main(argv: list[str]) -> int:
    if shows_help(argv, HELP):
        return 0
    from ...trainer.config import RubricGRPOConfig
    from ...verifier.settings import parse_settings

    config = parse_settings(RubricGRPOConfig, argv, "train")
    figures = run(config)
    if config.process_index:  # under accelerate launch the main process speaks
        return 0
    print(json.dumps(figures, indent=2))
    length = f"{config.max_steps} steps" if config.max_steps > 0 else f"{config.num_train_epochs:g} epochs"
    print(f"{config.output_dir}: policy after {length} of arm {config.arm}")
    return 0


def run(config) -> dict:
    """Trains as the settings say; the judge, the teacher and what is logged beside the rewards are chosen here."""
    from ...trainer.run import train
    from ...verifier.errors import InputError
    from ...verifier.tables import read_examples

    if not config.examples:
        raise InputError("the setting examples is empty; give the path of an example table")
    examples = read_examples(config.examples)
    eval_examples = read_examples(config.eval_examples) if config.eval_examples else []
    if config.teacher and not config.verifier:
        raise InputError(
            f"teacher is {config.teacher}, but there is no verifier whose verdicts it could check; set verifier, or "
            "--teacher ''"
        )
    teacher = _teacher(config)
    judge = _cascade(config) if config.cascade else _verifier(config)
    monitors = []
    if "oracle" in (config.verifier, config.teacher):
        from ...distill.oracle import reading_monitor

        monitors.append(reading_monitor([*examples, *eval_examples]))
    return train(config, examples, judge, teacher, monitors, eval_examples)


def _verifier(config) -> Any:
    if config.verifier in ("", "oracle"):
        return _oracle(config.verifier)
    if config.shared_base:
        from ...trainer.shared_base import SharedBaseJudge

        return SharedBaseJudge(config.verifier, config.model)
    from ...verifier.judge import load_judge

    base = config.verifier_base or None
    return load_judge(
        config.verifier, base=base, **({"server": config.verifier_server} if config.verifier_server else {})
    )


def _cascade(config) -> Any:
    from ...trainer.cascade import RunCascade
    from ...verifier.cascade import band_for
    from ...verifier.errors import InputError

    band = band_for(config.cascade, config.verifier)
    verifier, teacher = _verifier(config), _teacher(config)  # another than the one that is asked in the background
    if config.on_alarm == "refresh" and verifier.mode != teacher.mode:
        raise InputError(
            f"on_alarm is refresh, but the teacher judges in {teacher.mode} mode and {config.verifier} in "
            f"{verifier.mode} mode; choose another action"
        )
    memory = Path(config.output_dir or "policy") / MEMORY
    return RunCascade(verifier, teacher, band, config.cascade_calls, memory=memory)


def _teacher(config) -> Any:
    if config.teacher in ("", "oracle"):
        return _oracle(config.teacher)
    from ...verifier.quoting_judge import QuotingJudge

    return QuotingJudge(config.teacher, config.teacher_model, "image", tries=TEACHER_TRIES)


def _oracle(name: str) -> Any:
    if not name:
        return None
    from ...distill.oracle import OracleJudge

    return OracleJudge("image")
