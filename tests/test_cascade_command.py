"""A cascade around a real verifier: as a judge, in training, and as `claimwise cascade judge`."""

from __future__ import annotations

import json
from collections import Counter

import pytest
import torch
from claimwise.distill.oracle import OracleJudge
from claimwise.scripts.cli import main
from claimwise.verifier import InputError, load_judge
from claimwise.verifier.cascade import Band, CascadeJudge, band_for
from claimwise.verifier.tables import pair_up, read_examples, read_rollouts, read_verdicts
from grpo_runs import make_examples, rubric_trainer, weights_of
from judging import content
from servers import Server


def test_a_real_verifier_before_the_oracle(world):
    """The whole range: the oracle's verdicts; nothing: the verifier's own; in between: each where it should be."""
    first = load_judge(world / "image")
    folder = world / "validation"
    pairs = pair_up(read_examples(folder / "examples.jsonl"), read_rollouts(folder / "rollouts.jsonl"))
    own, gold = first.judge(pairs), OracleJudge("image").judge(pairs)
    p_yes = sorted(abs(v.p_yes - 0.5) for v in own)
    middle = p_yes[len(p_yes) // 2]
    for width in (0.5, 0.0, middle):
        cascade = CascadeJudge(first, OracleJudge("image"), Band(0.5 - width, 0.5 + width))
        verdicts = [verdict for each in cascade.judge_each(pairs) for verdict in each]
        wanted = [g if v.p_yes in cascade.band else v for v, g in zip(own, gold, strict=True)]
        assert content(verdicts) == content(wanted)
        assert [v.judge for v in verdicts] == [v.judge for v in wanted]
    assert 0 < cascade.tally.answered < len(own)


def test_a_policy_trained_by_a_cascade_that_asks_everything_is_the_teacher_s(assets, tmp_path):
    examples, first = make_examples(4), load_judge(assets / "verifier", device="cpu")
    cascade = CascadeJudge(first, OracleJudge("image"), Band(0, 1))
    trained = []
    for name, judge_ in (("cascade", cascade), ("oracle", OracleJudge("image"))):
        trainer = rubric_trainer(assets, tmp_path / name, examples, judge_, arm="prefix", max_steps=1)
        trainer.train()
        trained.append(weights_of(trainer))
    assert all(torch.equal(value, trained[1][name]) for name, value in trained[0].items())
    assert cascade.tally.answered == cascade.tally.verdicts > 0


def command(world, out, *more):
    flags = ["cascade", "judge", "--adapter", world / "image", "--examples", world / "validation/examples.jsonl"]
    flags += ["--rollouts", world / "validation/rollouts.jsonl"]
    return list(map(str, [*flags, "--out", out, *more]))


def test_the_command_with_a_server_resumes_and_comes_to_the_same_table(world, tmp_path, capsys):
    """Three calls, then the budget of calls is greater: only what is new is asked."""
    band = {"schema_version": 1, "band": [0.0, 1.0], "verifier": {"judge": "verifier-image", "mode": "image"}}
    (tmp_path / "c.json").write_text(json.dumps(band))
    with Server() as server:
        teacher = ["--band", tmp_path / "c.json", "--teacher", server.url, "--model", "m"]
        teacher += ["--ledger", tmp_path / "l.sqlite", "--price-in", "1000", "--price-out", "1000", "--json"]
        runs = []
        for number, most in enumerate((3, 3, 8)):
            out = tmp_path / f"{number}.jsonl"
            assert main(command(world, out, *teacher, "--max-calls", most)) == 0
            runs.append((json.loads(capsys.readouterr().out), len(server.calls), read_verdicts(out)))
        assert main(command(world, tmp_path / "all.jsonl", *teacher, "--budget", "2.2")) == 0
        paid, calls = json.loads(capsys.readouterr().out), len(server.calls)
    assert [asked for _, asked, _ in runs] == [3, 3, 8]
    assert content(runs[0][2]) == content(runs[1][2])
    for found, _, verdicts in runs:
        assert found["by_judge"] == Counter(v.judge for v in verdicts)
        assert found["uncertain"] == len(verdicts) == found["answered"] + found["over_budget"]
    assert runs[0][0]["spent"] == pytest.approx(3 * 0.11)  # 100 and 10 tokens a call
    # the budget is for the ledger: the worst case of a call must fit, so it ends early and is never passed
    assert paid["spent"] <= 2.2 and paid["answered"] == calls and paid["over_budget"] == paid["uncertain"] - calls
    assert paid["failed"] == {} and paid["calls"] == calls


def test_the_command_with_the_oracle_in_words(world, tmp_path, capsys):
    out = tmp_path / "v.parquet"
    assert main(command(world, out, "--low", "0.0", "--high", "1", "--teacher", "oracle", "--max-calls", "5")) == 0
    text = capsys.readouterr().out
    assert "5 by oracle-image" in text and "5 answered by the teacher with 5 questions" in text
    rest = len(read_verdicts(out)) - 5
    assert f"{rest} beyond the budget: the verifier's verdicts stand" in text


def test_what_the_command_refuses(world, tmp_path, capsys):
    (tmp_path / "other.json").write_text(json.dumps({"schema_version": 1, "band": [0, 1], "verifier": {"judge": "v"}}))
    (tmp_path / "bad.json").write_text('{"band": 3}')
    oracle, range_ = ["--teacher", "oracle"], ["--low", "0.2", "--high", "0.8"]
    cases = [
        (oracle, "which verdicts go to the teacher?"),
        ([*oracle, "--low", "0.2"], "which verdicts go to the teacher?"),
        ([*oracle, "--low", "0.7", "--high", "0.8"], "the band is 0.7 to 0.8"),
        ([*oracle, "--band", tmp_path / "other.json"], "was chosen for a verifier with judge 'v'"),
        ([*oracle, "--band", tmp_path / "bad.json"], "is no file of claimwise cascade band"),
        ([*oracle, "--band", tmp_path / "none.json"], "is no file of claimwise cascade band"),
        ([*oracle, *range_, "--budget", "3"], "--budget is for a teacher behind a server"),
        (["--teacher", "http://localhost:1/v1", *range_], "--model is missing"),
        ([*oracle, *range_, "--max-calls", "-1"], "cannot be negative"),
    ]
    for more, told in cases:
        assert main(command(world, tmp_path / "v.jsonl", *more)) == 2
        out, err = capsys.readouterr()
        assert not out and told in err.splitlines()[-1] and "Traceback" not in err
    assert not (tmp_path / "v.jsonl").exists()
    assert main(["cascade", "no-such"]) == 2
    assert "it must be one of band, judge" in capsys.readouterr().err


def test_a_band_holds_for_one_verifier(world, tmp_path):
    band = {"schema_version": 1, "band": [0.1, 0.7], "verifier": {"judge": "verifier-image", "mode": "image"}}
    (tmp_path / "c.json").write_text(json.dumps(band))
    assert band_for(tmp_path / "c.json", world / "image") == Band(0.1, 0.7)
    with pytest.raises(InputError, match=r"with judge 'verifier-image', .*text has 'verifier-text'"):
        band_for(tmp_path / "c.json", world / "text")
    (tmp_path / "c.json").write_text(json.dumps({**band, "schema_version": 2}))
    with pytest.raises(InputError, match=r"c\.json is of version 2, this claimwise reads 1"):
        band_for(tmp_path / "c.json", world / "image")


def test_load_judge_gives_a_cascade_like_any_other_judge(world, tmp_path):
    """The band reaches from 0 to .5: of the verifier's no three go to the teacher, the nearest to .5, and no yes."""
    tables = world / "validation"
    pairs = pair_up(read_examples(tables / "examples.jsonl"), read_rollouts(tables / "rollouts.jsonl"))
    band = {"schema_version": 1, "band": [0.0, 0.5], "verifier": {"judge": "verifier-image", "mode": "image"}}
    (tmp_path / "band.json").write_text(json.dumps(band))
    teacher = OracleJudge("image")
    cascade = load_judge(world / "image", cascade=tmp_path / "band.json", teacher=teacher, max_calls=3)
    own = load_judge(world / "image").judge(pairs)
    verdicts = cascade.judge(pairs)
    by_teacher = [v for v, o in zip(verdicts, own, strict=True) if v.judge == teacher.name]
    assert by_teacher and cascade.tally.calls == 3
    assert all(v.judge == teacher.name or v.verdict == o.verdict for v, o in zip(verdicts, own, strict=True))
    assert all(not o.verdict for v, o in zip(verdicts, own, strict=True) if v.judge == teacher.name)
    with pytest.raises(InputError, match="a cascade needs a verifier's adapter"):
        load_judge(world / "image", cascade=tmp_path / "band.json")
