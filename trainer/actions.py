"""What follows from an alarm: `warn`, `escalate`, `refresh` or `stop`.

In: alarms of the main process. Out: a line each; with `refresh` the tables and the command of another round of
distillation; with `stop` a last checkpoint, a run that ends with an error, and a folder that is not gone on with
silently. (`escalate` is done while judging.) All processes are told, or one would wait for the others for ever.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from accelerate.utils import broadcast_object_list
from tqdm import tqdm
from transformers import TrainerCallback

from ..verifier.errors import InputError
from ..verifier.rundir import write_atomic
from ..verifier.schema import Judge
from ..verifier.tables import read_rollouts, write_rollouts, write_verdicts
from .alarms import Alarm, RisingAndFalling
from .config import RubricGRPOConfig
from .in_loop import InLoopAgreement

STOPPED = "stopped.txt"


class AlarmActions(TrainerCallback):
    """The same in all processes; `in_loop` is the main process's, None in the others. `stopped_by` is the alarm that ends
    the run."""

    def __init__(self, settings: RubricGRPOConfig, in_loop: InLoopAgreement | None):
        self.settings, self.in_loop = settings, in_loop
        self.stopped_by: Alarm | None = None

    def look(self) -> None:
        """Acts on the alarms that are new. All processes must come here."""
        told: list[list[Alarm | RisingAndFalling]] = [[] if self.in_loop is None else self.in_loop.take_alarms()]
        broadcast_object_list(told)
        alarms = [alarm for alarm in told[0] if isinstance(alarm, Alarm)]
        if self.in_loop is not None:
            for alarm in told[0]:
                tqdm.write(f"alarm, {alarm}", file=sys.stderr)
            if alarms and self.settings.on_alarm != "stop":
                tqdm.write(self._done(self.in_loop), file=sys.stderr)
        if alarms and self.settings.on_alarm == "stop":
            self.stopped_by = self.stopped_by or alarms[0]

    def _done(self, in_loop: InLoopAgreement) -> str:
        """Carries out the action; what there is to say of it."""
        if self.settings.on_alarm == "refresh":
            return write_refresh(in_loop, self.settings)
        if self.settings.on_alarm == "escalate":
            left = max(0, self.settings.escalate_budget - in_loop.escalated)
            return f"escalated: uncertain verdicts go to the teacher from now on, {left} of them at most"
        return f"the run goes on (on_alarm: warn); {in_loop.folder} has the verdicts"

    def on_step_end(self, args, state, control, **kwargs):
        if self.stopped_by is not None:
            control.should_save = control.should_training_stop = True


def check_actions(settings: RubricGRPOConfig, judge: Judge | None, teacher: Judge | None) -> None:
    """Refuses an action that could never come, or not be carried out."""
    action = settings.on_alarm
    if action == "warn":
        return
    if judge is None or teacher is None or not settings.sampled_verdicts:
        raise InputError(
            f"on_alarm is {action}, but nobody checks the verdicts; set verifier, teacher, sampled_verdicts"
        )
    if action == "refresh" and judge.mode != teacher.mode:
        raise InputError(
            f"on_alarm is refresh, but the teacher judges in {teacher.mode} mode and the verifier in {judge.mode} mode; "
            "a verifier learns from verdicts in its own mode: choose another action"
        )


def write_refresh(in_loop: InLoopAgreement, settings: RubricGRPOConfig) -> str:
    """The teacher's known verdicts so far and their rollouts as tables, in `in_loop/refresh`, with the command that
    distils from them; a sentence that says so. All that was sampled goes in, not only where the two disagree: from
    disagreements alone a verifier learns to doubt itself."""
    folder = in_loop.folder / "refresh"
    known = [sample for sample in in_loop.samples if sample.teacher.verdict is not None]
    ids = {sample.judge.rollout_id for sample in known}
    rollouts = [r for r in read_rollouts(in_loop.folder / "rollouts.jsonl") if r.rollout_id in ids]
    write_rollouts(folder / "rollouts.jsonl", rollouts)
    write_verdicts(folder / "teacher.jsonl", [sample.teacher for sample in known])
    command = refresh_command(folder, settings)
    write_atomic(folder / "command.txt", command + "\n")
    unlike = sum(sample.teacher.verdict is not sample.judge.verdict for sample in known)
    return (
        f"refresh: {len(known)} verdicts of the teacher on {len(rollouts)} rollouts, {unlike} of them disagreements, are "
        f"in {folder}; what comes next, with the tables that the verifier was distilled on:\n  {command}"
    )


def refresh_command(folder: Path, settings: RubricGRPOConfig) -> str:
    """What was distilled on, this run does not know: those tables are left to be filled in."""
    base = ["--base", settings.verifier_base] if settings.verifier_base else []
    known = ["--adapter", settings.verifier or "ADAPTER", *base, "--disagreements", str(folder / "teacher.jsonl")]
    known += ["--examples", settings.examples or "EXAMPLES", "--rollouts", str(folder / "rollouts.jsonl")]
    names = ("old_examples", "old_rollouts", "old_verdicts")
    names += ("validation_examples", "validation_rollouts", "validation_verdicts")
    unknown = [word for name in names for word in (f"--{name}", name.upper())]
    return shlex.join(["claimwise", "refresh", *known, *unknown, "--output_dir", str(folder / "verifier")])


def refuse_stopped(folder: Path, action: str) -> None:
    """A run that an alarm has stopped is gone on with only under another action."""
    record = folder / STOPPED
    if record.is_file() and action == "stop":
        raise InputError(f"{folder} was stopped: {record.read_text(encoding='utf-8').strip()}")
    record.unlink(missing_ok=True)


def stop_for(alarm: Alarm, folder: Path, main: bool) -> None:
    """Ends the run in all processes: records the alarm in the folder, and raises InputError with it."""
    text = (
        f"{alarm}; the policy so far is in {folder} with its last checkpoint, the verdicts in {folder / 'in_loop'}. Look "
        "at them; then go on with --on_alarm warn, escalate or refresh, or start anew with another verifier"
    )
    if main:
        write_atomic(folder / STOPPED, text + "\n")
    raise InputError(text)
