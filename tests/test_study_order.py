"""`claimwise study order`: its runs in small, stopping and going on, refusals, tables and page."""

from __future__ import annotations

import json

import pytest
from claimwise.distill import tiny
from claimwise.scripts import cli
from claimwise.scripts.quickstart_data import recipe
from claimwise.scripts.studies import order_runs
from claimwise.scripts.studies.order import OrderSettings, Task, read_settings
from claimwise.verifier.model import VisionLanguageModel
from studying import stopped_in_the_second_run

RECIPE = """
orders: [verdict, quote]
seeds: 0-1
steps: 2
evaluate_at: [1, 2]
report_at: [2]
responses: 2
glances: 1
answers: 1
probes: 1
hidden_size: 32
layers: 1
test_responses: 6
metrics: [agreement, VF, span]
contrasts: [quote - verdict]
"""


def arguments(folder, *more):
    return ["study", "order", "--out", str(folder / "out"), "--config", str(folder / "study.yaml"), *more]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A study that was stopped in its second run, and went on."""
    folder = tmp_path_factory.mktemp("order")
    (folder / "study.yaml").write_text(RECIPE)
    with stopped_in_the_second_run(order_runs) as started:
        assert cli.main(arguments(folder)) == 130
        assert len(list((folder / "out" / "runs").iterdir())) == 1
        assert cli.main(arguments(folder)) == 0
    assert len(started) == 4 + 1  # only the stopped one twice
    return folder / "out"


def test_the_tables_are_those_of_the_runs(finished):
    runs = {path.stem: json.loads(path.read_text()) for path in (finished / "runs").iterdir()}
    assert {name: [point["step"] for point in run["points"]] for name, run in runs.items()} == {
        f"{order}_seed{seed}": [1, 2] for order in ("verdict", "quote") for seed in (0, 1)
    }
    study = json.loads((finished / "study.json").read_text())
    (table,) = study["tables"]  # one at step 2, and none at equal KL: no policy is trained
    last = {name: run["points"][-1] for name, run in runs.items()}
    wanted = sum(last[f"quote_seed{s}"]["VF"] - last[f"verdict_seed{s}"]["VF"] for s in (0, 1)) / 2
    assert table["contrasts"]["quote - verdict"]["VF"]["mean"] == pytest.approx(wanted)
    assert table["means"]["verdict"]["tokens"] == 2 and table["means"]["quote"]["tokens"] > 2
    assert "GRPO" not in (finished / "study.md").read_text()


def test_the_page_shows_the_curves(finished, tmp_path):
    assert cli.main(["report", str(finished), "--out", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert "tokens a verdict" in page and "quote - verdict" in page and "NaN" not in page


def test_the_same_seed_gives_all_orders_the_same_trees():
    settings = OrderSettings(
        ["label", "quote"], ["agreement"], [], steps=2, evaluate_at=[2], report_at=[2], responses=2, probes=1
    )
    processor = tiny.build_processor()
    model = VisionLanguageModel(tiny.build_model(processor, 32, 1, 0.06), processor, "tiny")
    drawn = [list(order_runs.steps(model, settings, Task(order, 3))) for order in settings.orders]
    trees = [[[(t.prefix, t.branches) for t, _ in batch] for step in steps for batch in step] for steps in drawn]
    assert trees[0] == trees[1]
    targets = [[[t.ids for t in wanted] for _, wanted in step[-1]] for steps in drawn for step in steps]
    assert targets[:2] != targets[2:]


def test_the_shipped_recipe_is_read_and_its_orders_are_all_there_are():
    from claimwise.distill.orders import ORDERS

    settings = read_settings(recipe("study-order.yaml"), None)
    assert settings.orders == list(ORDERS) and len(settings.tasks()) == 12


@pytest.mark.parametrize(
    "change, reason",
    [
        (("[verdict, quote]", "[verdict, quotes]"), "orders: 'quotes' is unknown"),
        (("[agreement, VF, span]", "[VFF]"), "metrics: 'VFF' is unknown"),
        (("quote - verdict", "quote - label"), "'quote - label' must be `A - B`"),
        (("report_at: [2]", "report_at: [3]"), "must name steps of evaluate_at"),
        (("evaluate_at: [1, 2]", "evaluate_at: [1, 3]"), "it must rise to steps (2)"),
        (("seeds: 0-1", "seeds: x"), "'x' is no number and no range"),
        (("orders:", "order:"), "did you mean orders?"),
    ],
)
def test_a_recipe_that_cannot_be_run_is_one_line(tmp_path, capsys, change, reason):
    assert change[0] in RECIPE
    (tmp_path / "study.yaml").write_text(RECIPE.replace(*change, 1))
    assert cli.main(arguments(tmp_path)) == 2
    error = capsys.readouterr().err
    assert reason in error and error.count("\n") == 1
    assert not (tmp_path / "out").exists()
