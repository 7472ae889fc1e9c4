"""`claimwise train` from settings to a trained policy; what the command and the quickstart both call."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from accelerate.utils import broadcast_object_list
from transformers.trainer_utils import set_seed

from ..verifier.errors import InputError
from ..verifier.processor import load_processor
from ..verifier.progress import only_our_bars, use_bar
from ..verifier.rundir import open_run, write_atomic
from ..verifier.schema import Example, Judge
from .actions import refuse_stopped, stop_for
from .config import RubricGRPOConfig
from .grpo import RubricGRPOTrainer
from .identity import identity
from .policy import load_policy
from .shared_base import on_the_policy


def train(
    config: RubricGRPOConfig,
    examples: Sequence[Example],
    judge: Judge | None,
    teacher: Judge | None = None,
    monitors: Sequence[Callable] = (),
    eval_examples: Sequence[Example] = (),
) -> dict:
    """Trains the policy under `config.output_dir`; returns the in-loop figures (of the main process; {} elsewhere). The
    folder then holds the policy with its processor, `log.jsonl` (a row per step), `eval_log.jsonl` (a row per
    evaluation, if there were any) and `in_loop/` (see `samples` and `alarms`). A finished folder is left as it is; an
    unfinished one is gone on with from its last checkpoint, one that an alarm stopped only under another `on_alarm`."""
    main = config.process_index == 0
    folder = _open_together(config, examples, eval_examples, main)
    finished = folder / "finished.json"
    if finished.is_file():
        return json.loads(finished.read_text())
    _check_examples(config, examples, eval_examples)
    only_our_bars()
    set_seed(config.seed)
    model, peft_config = load_policy(config)
    trainer = _trainer(config, model, peft_config, examples, judge, teacher, monitors, eval_examples)
    use_bar(trainer, f"GRPO {config.arm}", ["reward", "rubric/reward", "judge/agreement"])
    trainer.train(resume_from_checkpoint=_last_checkpoint(folder))
    if (shared := on_the_policy(judge)) is not None:
        shared.detach()  # the policy is saved alone
    trainer.save_model(str(folder))
    figures: dict = {} if trainer.in_loop is None else trainer.in_loop.close()
    trainer.actions.look()
    if main:
        _write_logs(folder, trainer.state.log_history)
    if trainer.actions.stopped_by is not None:
        stop_for(trainer.actions.stopped_by, folder, main)
    if main:
        write_atomic(finished, json.dumps(figures, indent=2) + "\n")
    trainer.accelerator.wait_for_everyone()
    return figures


def _trainer(config, model, peft_config, examples, judge, teacher, monitors, eval_examples) -> RubricGRPOTrainer:
    """Raises InputError for what TRL refuses only now: settings that do not go together, a package that is missing."""
    try:
        return RubricGRPOTrainer(
            model,
            config,
            examples,
            judge,
            teacher,
            monitors,
            eval_examples,
            processing_class=load_processor(config.model),
            peft_config=peft_config,
        )
    except (ValueError, ImportError, RuntimeError) as error:
        raise InputError(" ".join(str(error).split())) from error


def _open_together(
    config: RubricGRPOConfig, examples: Sequence[Example], eval_examples: Sequence[Example], main: bool
) -> Path:
    """The main process takes the folder; all processes go on, or all stop for its reason."""
    refusal: list[str | None] = [None]
    if main:
        try:
            open_run(config.output_dir or "policy", identity(config, examples, eval_examples))
            refuse_stopped(Path(config.output_dir or "policy"), config.on_alarm)
        except InputError as error:
            refusal = [str(error)]
    broadcast_object_list(refusal)
    if refusal[0]:
        raise InputError(refusal[0])
    return Path(config.output_dir or "policy")


def _check_examples(config: RubricGRPOConfig, examples: Sequence[Example], eval_examples: Sequence[Example]) -> None:
    if not examples:
        raise InputError(f"{config.examples} holds no example to train on")
    evaluates = str(getattr(config.eval_strategy, "value", config.eval_strategy)) != "no"
    if evaluates and not eval_examples:
        raise InputError(
            f"eval_strategy is {config.eval_strategy}, but there is nothing to evaluate on; set eval_examples"
        )
    if eval_examples and not evaluates:
        raise InputError("eval_examples is set, but eval_strategy is no; set eval_strategy: steps and eval_steps")


def _last_checkpoint(folder: Path) -> str | None:
    """The last complete checkpoint: the trainer's state is written last, so a run stopped while saving lacks it."""
    complete = [state.parent for state in folder.glob("checkpoint-*/trainer_state.json") if _is_whole(state)]
    return str(max(complete, key=lambda path: int(path.name.rpartition("-")[2]))) if complete else None


def _is_whole(state: Path) -> bool:
    try:
        json.loads(state.read_text(encoding="utf-8"))
    except ValueError:  # killed while it was written
        return False
    return True


def _write_logs(folder: Path, history: Sequence[dict]) -> None:
    for name, key in (("log.jsonl", "reward"), ("eval_log.jsonl", "eval_reward")):
        rows = [json.dumps(row) for row in history if key in row]
        if rows or name == "log.jsonl":
            write_atomic(folder / name, "\n".join(rows) + "\n")
