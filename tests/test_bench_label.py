"""claimwise bench label: what it measures is there, whatever the machine makes of it."""

import json

import pytest
from claimwise.scripts.benches.label import answers, first_sheets, request_bodies
from claimwise.scripts.cli import main
from claimwise.verifier.tables import read_verdicts

ASKED = ["label_per_s", "export_rows_per_s", "label_rss_mb", "label_peak_mb", "export_peak_mb", "peak_rss_mb"]


def figures_of(capsys, *more):
    argv = ["bench", "label", "--verdicts", "300", "--calls", "100", "--in-flight", "64", "--json", *map(str, more)]
    assert main(argv) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["client_vs_bare"] > 0 and figures["peak_rss_mb"] > 20
    return figures


@pytest.mark.slow
def test_the_last_line_is_one_json_object(capsys):
    figures = figures_of(capsys)
    assert list(figures) == ["client_vs_bare", "export_rows_per_s", "peak_rss_mb"]
    assert figures["export_rows_per_s"] > 0


@pytest.mark.slow
def test_all_verdicts_asked_for_and_none_twice(tmp_path, capsys):
    figures = figures_of(capsys, "--ask-all", tmp_path / "all")
    assert list(figures) == ["client_vs_bare", *ASKED]
    assert figures["label_per_s"] > 0 and len(figures["label_rss_mb"]) == 4
    assert figures["peak_rss_mb"] == max(figures["label_peak_mb"], figures["export_peak_mb"])
    assert answers(tmp_path / "all" / "teacher.sqlite") == 300
    assert all(row.verdict for row in read_verdicts(tmp_path / "all" / "verdicts.parquet"))
    assert figures_of(capsys, "--ask-all", tmp_path / "all")["label_per_s"] == 0  # what it stopped at is all of it


def test_the_bare_loop_sends_what_the_client_asks():
    stream = list(first_sheets(200, 0))
    bodies = request_bodies(stream)
    assert len(bodies) == 200 == len({key for sheet in stream for key in sheet.keys})
    assert len({json.dumps(body) for body in bodies}) == 200


def test_a_bench_that_there_is_none_of(capsys):
    assert main(["bench", "nothing"]) == 2
    assert "'nothing'" in capsys.readouterr().err
