"""A progress bar for Hugging Face trainers: rate, remaining time and the last figures on one line, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from logging import ERROR, getLogger

from transformers import PrinterCallback, ProgressCallback, Trainer


def only_our_bars() -> None:
    """Hides the bars and notices of loading and saving, so that what is left on the screen is the run's own progress."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    getLogger("bitsandbytes").setLevel(ERROR)  # where it is installed without a GPU it says so at every start


class FiguresOnBar(ProgressCallback):
    """Transformers' bar, with chosen figures behind it instead of a printed dictionary per step."""

    def __init__(self, description: str, figures: Sequence[str]):
        super().__init__()
        self.description, self.figures = description, figures

    def on_train_begin(self, args, state, control, **kwargs):
        super().on_train_begin(args, state, control, **kwargs)
        if self.training_bar is not None:
            self.training_bar.set_description(self.description)

    def on_log(self, args, state, control, logs=None, **kwargs):
        if self.training_bar is not None and logs:
            shown = {key.rpartition("/")[2]: logs[key] for key in self.figures if key in logs}
            self.training_bar.set_postfix({key: f"{float(value):.3f}" for key, value in shown.items()})


def use_bar(trainer: Trainer, description: str, figures: Sequence[str]) -> None:
    """Replaces the trainer's own bar and printer."""
    for callback in (ProgressCallback, PrinterCallback):
        trainer.remove_callback(callback)
    trainer.add_callback(FiguresOnBar(description, figures))
