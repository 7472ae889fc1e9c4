"""claimwise bench label: what it measures is there, whatever the machine makes of it."""

import json

import pytest
from claimwise.scripts.bench_label import first_sheets, request_bodies
from claimwise.scripts.cli import main


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--ask-all"]])
def test_the_last_line_is_one_json_object(more, capsys):
    argv = ["bench", "label", "--verdicts", "300", "--calls", "100", "--in-flight", "64", "--json", *more]
    assert main(argv) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert list(figures) == ["client_vs_bare", "export_rows_per_s", "peak_rss_mb"]
    assert all(value > 0 for value in figures.values())


def test_the_bare_loop_sends_what_the_client_asks():
    stream = list(first_sheets(200, 0))
    bodies = request_bodies(stream)
    assert len(bodies) == 200 == len({key for sheet in stream for key in sheet.keys})
    assert len({json.dumps(body) for body in bodies}) == 200


def test_a_bench_that_there_is_none_of(capsys):
    assert main(["bench", "nothing"]) == 2
    assert "'nothing'" in capsys.readouterr().err
