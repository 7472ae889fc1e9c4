"""`claimwise study`: its runs in small, stopping and going on, refusals, and what the tables say."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass

import pytest
from claimwise.scripts import cli
from claimwise.scripts.studies import plan as study_plan
from claimwise.scripts.studies import runs as study_runs
from claimwise.scripts.studies.settings import read_settings
from claimwise.verifier import InputError
from studying import stopped_in_the_second_run
from tqdm import tqdm

RECIPE = """
compare: arm
arms: [prefix-shuffled, prefix]
judges: [oracle]
budgets: [paper]
match_rms: [false]
metrics: [digits, answer]
contrasts: [prefix - prefix-shuffled]
seeds: 0-1
steps: 2
evaluate_at: [0, 1, 2]
report_at: [2]
training_pictures: 4
test_pictures: 6
learning_rates: [0.0003, 0.003]
tuning_seeds: "100"
tuned_by: [digits]
"""
SMALL_GRPO = """
arm: prefix
learning_rate: 3.0e-4
lr_scheduler_type: constant
per_device_train_batch_size: 8
num_generations: 4
max_completion_length: 48
beta: 0.0
bf16: false
gradient_checkpointing: false
save_strategy: "no"
report_to: none
dataloader_pin_memory: false
"""
RUNS = 2 * 2 * 1 + 2 * 2  # cells x rates x tuning seeds, then cells x seeds


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A folder with a small study and a GRPO recipe of two groups of four a step."""
    folder = tmp_path_factory.mktemp("study")
    (folder / "grpo.yaml").write_text(SMALL_GRPO)
    (folder / "study.yaml").write_text(RECIPE + f"recipe: {folder / 'grpo.yaml'}\n")
    return folder


def arguments(folder, *more, out="out", config="study.yaml"):
    return ["study", "arms", "--out", str(folder / out), "--config", str(folder / config), *more]


@pytest.fixture(scope="module")
def finished(small):
    """A study that was stopped in its second run, and went on."""
    with stopped_in_the_second_run(study_runs) as started:
        assert cli.main(arguments(small)) == 130
        done = sorted((small / "out").glob("*/*.json"))
        assert len(done) == 1 and not (small / "out" / "study.json").exists()
        before = done[0].stat().st_mtime_ns
        assert cli.main(arguments(small)) == 0
    assert done[0].stat().st_mtime_ns == before and len(started) == RUNS + 1  # only the stopped one twice
    return small / "out"


@pytest.mark.slow
def test_every_run_has_its_file(finished):
    assert len(list((finished / "runs").iterdir())) == 4 and len(list((finished / "tuning").iterdir())) == 4
    for path in (finished / "runs").iterdir():
        run = json.loads(path.read_text())
        assert [point["step"] for point in run["points"]] == [0, 1, 2]
        first, _, last = run["points"]
        assert first["kl"] == pytest.approx(0, abs=1e-9) and last["kl"] > 0
    starts = [
        json.loads(path.read_text())["points"][0] for path in finished.glob("*/*.json") if path.parent.name == "runs"
    ]
    assert all(start == starts[0] for start in starts)  # the same pictures, the same start


@pytest.mark.slow
def test_rates_are_tuned_on_other_seeds_and_used(finished):
    rates = json.loads((finished / "rates.json").read_text())
    scores = {}
    for path in (finished / "tuning").iterdir():
        run = json.loads(path.read_text())
        assert run["seed"] == 100
        scores[run["cell"]["arm"], run["learning_rate"]] = sum(point["digits"] for point in run["points"][1:])
    for key, rate in rates.items():
        arm = key.split("_")[1]
        assert scores[arm, rate] == max(scores[arm, r] for r in (0.0003, 0.003))
        used = {json.loads(p.read_text())["learning_rate"] for p in (finished / "runs").glob(f"{key}*")}
        assert used == {rate}


@pytest.mark.slow
def test_the_tables_are_those_of_the_runs(finished):
    study = json.loads((finished / "study.json").read_text())
    assert (study["finished"], study["planned"]) == (4, 4)
    steps, kl = study["tables"]
    assert steps["at"] == "step 2" and kl["at"].startswith("KL ")
    last = {}
    for path in (finished / "runs").iterdir():
        run = json.loads(path.read_text())
        last[run["cell"]["arm"], run["seed"]] = run["points"][-1]["digits"]
    contrast = steps["contrasts"]["prefix - prefix-shuffled"]["digits"]
    assert contrast["n"] == 2
    assert contrast["mean"] == pytest.approx(sum(last["prefix", s] - last["prefix-shuffled", s] for s in (0, 1)) / 2)
    page = (finished / "study.md").read_text()
    assert "nan" not in page.lower() and "| prefix - prefix-shuffled |" in page


@pytest.mark.slow
def test_report_writes_the_tables_again_and_trains_nothing(finished, monkeypatch, capsys):
    monkeypatch.setattr(study_plan, "run_study", None)
    page = (finished / "study.md").read_text()
    (finished / "study.md").unlink()
    assert cli.main(arguments(finished.parent, "--report")) == 0
    assert (finished / "study.md").read_text() == page and page in capsys.readouterr().out


@pytest.mark.slow
def test_two_processes_give_the_numbers_of_one(small):
    recipe = (small / "study.yaml").read_text().replace("[0.0003, 0.003]", "[0.0003]")
    (small / "two.yaml").write_text(recipe.replace("seeds: 0-1", 'seeds: "0"'))
    for jobs in ("1", "2"):
        assert cli.main(arguments(small, "--jobs", jobs, out=f"jobs{jobs}", config="two.yaml")) == 0
    for path in (small / "jobs1" / "runs").iterdir():
        one, other = (json.loads((small / f"jobs{jobs}" / "runs" / path.name).read_text()) for jobs in "12")
        assert one["points"] == other["points"]


@pytest.mark.slow
def test_another_study_in_the_same_folder_is_refused(finished, capsys):
    before = sorted(finished.rglob("*"))
    assert cli.main(arguments(finished.parent, "--seeds", "0-2")) == 2
    assert "seeds ('0-1' there, '0-2' now)" in capsys.readouterr().err
    assert sorted(finished.rglob("*")) == before


@pytest.mark.parametrize(
    "change, reason",
    [
        (("[prefix-shuffled, prefix]", "[prefix-shuffled, prefixx]"), "arms: 'prefixx' is unknown"),
        (("[digits, answer]", "[digit]"), "metrics: 'digit' is unknown"),
        (("prefix - prefix-shuffled", "prefix - span"), "'prefix - span' must be `A - B`"),
        (("report_at: [2]", "report_at: [3]"), "must name steps of evaluate_at"),
        (("[0, 1, 2]", "[0, 1]"), "it must rise from 0 to steps (2)"),
        (('tuning_seeds: "100"', 'tuning_seeds: "1"'), "seed 1 is in seeds and in tuning_seeds"),
        (("tuned_by: [digits]", "tuned_by: []"), "say in tuned_by"),
        (("seeds: 0-1", "seeds: 1-0"), "'1-0' is no number and no range"),
        (("judges: [oracle]", "judges: [oracle, text]"), "no verifier is given for it"),
        (("compare: arm", "compare: budget"), "compare is 'budget'"),
        (("arms:", "armz:"), "did you mean arms?"),
        (("steps: 2", "steps: 2\nrecipe: other.yaml"), "there is no file other.yaml"),
    ],
)
def test_a_recipe_that_cannot_be_run_is_one_line(tmp_path, capsys, change, reason):
    assert change[0] in RECIPE
    (tmp_path / "study.yaml").write_text(RECIPE.replace(*change))
    assert cli.main(arguments(tmp_path)) == 2
    error = capsys.readouterr().err
    assert reason in error and error.count("\n") == 1 and not (tmp_path / "out").exists()


@pytest.mark.parametrize("argv", [["arm"], ["arms"], ["judges", "--out", "x"], ["arms", "--out", "x", "--jobs", "0"]])
def test_what_is_missing_or_unknown_is_one_line(argv, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["study", *argv]) == 2
    error = capsys.readouterr().err
    assert error.startswith("claimwise study: ") and error.count("\n") == 1 and not list(tmp_path.iterdir())


def test_a_folder_without_a_verifier_is_refused(tmp_path, capsys):
    flags = ["--verifier-image", str(tmp_path), "--verifier-text", str(tmp_path)]
    assert cli.main(["study", "judges", "--out", str(tmp_path / "out"), *flags]) == 2
    assert "--verifier-image" in capsys.readouterr().err and not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["arms", "order"])
def test_a_report_of_nothing_is_refused_and_leaves_nothing(name, tmp_path, capsys):
    """No folder that another --quick or recipe would then be told of."""
    assert cli.main(["study", name, "--out", str(tmp_path / "out"), "--report"]) == 2
    assert "out holds no study to report" in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_rates_by_hand_and_what_is_not_measured(tmp_path):
    """Mean of digits and answer over steps 1 and 2: (.2 + .4 + .9 + .9) / 4 = .6 against .5 measured alone; for the
    placebo nothing was measured at the first rate."""
    (tmp_path / "study.yaml").write_text(RECIPE.replace("tuned_by: [digits]", "tuned_by: [digits, answer]"))
    settings = read_settings(tmp_path / "study.yaml", None, "study arms")
    points = {
        ("prefix", 0.0003): [(0.2, 0.4), (0.9, 0.9)],
        ("prefix", 0.003): [(0.5, None), (None, None)],
        ("prefix-shuffled", 0.0003): [(None, None)] * 2,
        ("prefix-shuffled", 0.003): [(0.1, None)] * 2,
    }
    for task in study_plan.tuning_tasks(settings):
        rows = [{"digits": d, "answer": a} for d, a in points[task.cell.arm, task.learning_rate]]
        file = tmp_path / task.file
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps({"points": [{"digits": 1, "answer": 1}, *rows]}))
    rates = study_plan.chosen_rates(settings, tmp_path)
    assert {key.split("_")[1]: rate for key, rate in rates.items()} == {"prefix": 0.0003, "prefix-shuffled": 0.003}
    file.unlink()
    with pytest.raises(InputError, match=f"{file.name} is missing; the same command without --report makes it"):
        study_plan.chosen_rates(settings, tmp_path)


@dataclass(frozen=True)
class Deadly:
    """A run whose process is killed, where it says so."""

    seed: int
    key: str = "k"

    @property
    def file(self):
        return f"runs/{self.seed}.json"


def carried_out(task):
    if task.seed == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"seed": task.seed}


@pytest.mark.slow
def test_a_process_that_is_killed_is_one_line_and_the_study_goes_on(tmp_path):
    (tmp_path / "runs").mkdir()
    with tqdm(disable=True) as bar, pytest.raises(InputError, match="a process of the study was killed"):
        study_plan.run_all([Deadly(0), Deadly(1)], carried_out, tmp_path, 2, bar)
    with tqdm(disable=True) as bar:
        study_plan.run_all([Deadly(1), Deadly(2)], carried_out, tmp_path, 2, bar)
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"1.json", "2.json"}


@pytest.mark.parametrize("name", ["arms", "judges"])
def test_help_shows_an_example(name, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["study", name, "--help"])
    assert stop.value.code == 0 and f"claimwise study {name} --out" in capsys.readouterr().out
