"""Carries a study out: tunes the learning rate of each cell, runs every cell with every seed, and can be stopped.

In: the settings, a folder, where the verifiers lie, and how many processes. Out: a file of results per run, under
`tuning/` and `runs/`, `rates.json`, and the start policy of a world that ships none. What has its file is not run again,
so the same command goes on where it was stopped. Seeds come first to last, all cells of one before the next, so that a
study that was stopped compares whole seeds.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ...verifier.errors import InputError
from ...verifier.rundir import write_atomic
from .settings import Cell, StudySettings, numbers

if TYPE_CHECKING:
    from tqdm import tqdm

    from .runs import Task

RATES = "rates.json"


class Runnable(Protocol):
    """One run of the cell `key`; `file` is where its result goes, below the study's folder."""

    @property
    def key(self) -> str: ...

    @property
    def seed(self) -> int: ...

    @property
    def file(self) -> str: ...


def run_study(settings: StudySettings, out: Path, judges: Mapping[str, str], jobs: int) -> None:
    """Runs what has no file yet, with one bar over all of it."""
    from tqdm import tqdm

    from .runs import Task, carry_out
    from .worlds import start_policies

    one_thread()
    models = {**judges, **start_policies(settings.worlds, out)}
    tuning = tuning_tasks(settings)
    waiting = planned(settings)
    done = sum((out / task.file).is_file() for task in [*tuning, *waiting])
    with tqdm(total=len(tuning) + len(waiting), initial=done, desc="study", unit="run") as bar:
        work = partial(carry_out, settings=settings, models=models)
        run_all(tuning, work, out, jobs, bar)
        rates = chosen_rates(settings, out)
        write_atomic(out / RATES, json.dumps(rates, indent=2) + "\n")
        run_all([Task(t.cell, t.seed, rates[t.cell.key]) for t in waiting], work, out, jobs, bar)


def planned(settings: StudySettings) -> list[Task]:
    """The runs that are compared; their rates are not known yet."""
    from .runs import Task

    return [Task(cell, seed, 0.0) for seed in numbers(settings.seeds) for cell in settings.cells()]


def tuning_tasks(settings: StudySettings) -> list[Task]:
    """None where there is only one learning rate to choose from."""
    from .runs import Task

    if len(settings.learning_rates) < 2:
        return []
    seeds, rates = numbers(settings.tuning_seeds), settings.learning_rates
    return [Task(cell, seed, rate, "tuning") for seed in seeds for cell in settings.cells() for rate in rates]


def chosen_rates(settings: StudySettings, out: Path) -> dict[str, float]:
    """Per cell the rate with the highest mean of `tuned_by` over the tuning seeds and all evaluations but the start, so
    that learning fast counts too where every rate ends alike; one with nothing to measure counts as 0. Raises InputError
    where a file of the tuning is gone."""
    scores: dict[tuple[str, float], list[float]] = {}
    for task in tuning_tasks(settings):
        if not (out / task.file).is_file():
            raise InputError(f"{out / task.file} is missing; the same command without --report makes it")
        points = json.loads((out / task.file).read_text())["points"][1:]
        reached = [point[name] for point in points for name in settings.tuned_by if point[name] is not None]
        scores.setdefault((task.cell.key, task.learning_rate), []).extend(reached)

    def score(cell: Cell, rate: float) -> float:
        known = scores.get((cell.key, rate), [])
        return sum(known) / max(len(known), 1)

    return {cell.key: max(settings.learning_rates, key=lambda rate: score(cell, rate)) for cell in settings.cells()}


def run_all(tasks: Sequence[Runnable], work: Callable[[Any], dict[str, Any]], out: Path, jobs: int, bar: tqdm) -> None:
    """Does the work of each task that has no file yet; `work` must be picklable where there are several jobs."""
    missing = [task for task in tasks if not (out / task.file).is_file()]
    for task, result in _results(missing, work, jobs):
        write_atomic(out / task.file, json.dumps(result, indent=1) + "\n")
        bar.set_postfix_str(task.file.removesuffix(".json"))
        bar.update()


def _results(
    tasks: Sequence[Runnable], work: Callable[[Any], dict[str, Any]], jobs: int
) -> Iterator[tuple[Runnable, dict[str, Any]]]:
    """As they are finished. One thread a run, whatever `jobs`: the same numbers, and no two runs wait for each other."""
    one_thread()
    if jobs == 1 or len(tasks) < 2:
        for task in tasks:
            yield task, work(task)
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _start_worker) as pool:
        futures: dict[Future, Runnable] = {pool.submit(work, task): task for task in tasks}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BrokenProcessPool as error:
            raise InputError(
                "a process of the study was killed, perhaps for want of memory; the same command goes on from here, with "
                "fewer --jobs if need be"
            ) from error
        except BaseException:
            for worker in multiprocessing.active_children():
                worker.terminate()  # what it was at is run again
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends a worker without a traceback; the parent has the word
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    one_thread()


def _leave_with_parent() -> None:
    """A parent that is killed cannot end its workers, and they would wait for work for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def one_thread() -> None:
    import torch

    from ...verifier.progress import only_our_bars

    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    only_our_bars()


def read_results(tasks: Sequence[Runnable], out: Path) -> dict[str, dict[int, dict[str, Any]]]:
    """What is finished: cell key -> seed -> result."""
    found: dict[str, dict[int, dict[str, Any]]] = {task.key: {} for task in tasks}
    for task in tasks:
        if (out / task.file).is_file():
            found[task.key][task.seed] = json.loads((out / task.file).read_text())
    return found
