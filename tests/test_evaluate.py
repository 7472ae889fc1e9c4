"""Policy evaluation: hand-worked figures, laws of the intervals, and the command on the shipped policy and judges."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import replace

import pytest
from claimwise.distill.digits import make_example
from claimwise.distill.oracle import OracleJudge
from claimwise.eval.policy import RULES, Judged, corrected, evaluate, judge_errors
from claimwise.scripts.cli import main
from claimwise.scripts.evaluation_text import as_markdown, as_text
from claimwise.verifier.adapter import read_card
from claimwise.verifier.schema import Criterion, Example, Rollout, Verdict
from claimwise.verifier.tables import read_rollouts, read_verdicts, write_examples
from hypothesis import given, settings
from hypothesis import strategies as st
from servers import Server, judge, say, status

NAMES = {"y": True, "n": False, "-": None}
VF, RC = Criterion("v", "Sees it.", dimension="VF"), Criterion("r", "Follows.", dimension="RC")
COMMITTED = Criterion("p", "Misreads it.", dimension="VF", label="PITFALL")
AVOIDED = replace(COMMITTED, text="Does not misread it.", yes_means="avoided")
EXAMPLES = (
    Example("e0", "?", (VF, RC, COMMITTED), answer="3", source="s"),
    Example("e1", "?", (VF, AVOIDED), answer="4", source="t"),
    Example("e2", "?", (RC,), answer="5", source="t"),
    Example("e3", "?", (VF,)),
)
#        example, answer, verdicts
TABLE = ["0y yyn", "0y nyn", "0y yyy", "1n ny", "1y -y", "1- ny", "2y y", "3  y"]


def response(row: str, index: int, policy: str = "a") -> Judged:
    example, name = EXAMPLES[int(row[0])], f"{policy}{index}"

    def verdict(criterion_id: str, said: str, judge: str) -> Verdict:
        error = "no answer" if said == "-" else None
        return Verdict(example.example_id, name, criterion_id, judge, "image", NAMES[said], error=error)

    verdicts = [verdict(c.id, said, "j") for c, said in zip(example.criteria, row[3:], strict=True)]
    answer = None if row[1] == " " else verdict("@", row[1], "j" if row[1] == "-" else RULES)
    rollout = Rollout(name, example.example_id, "", policy, finish_reason="length" if index == 0 else "stop")
    return Judged(example, rollout, verdicts, answer)


def table(rows, policy="a") -> list[Judged]:
    return [response(row, index, policy) for index, row in enumerate(rows)]


def test_hand_worked():
    found = evaluate({"a": table(TABLE)})["policies"]["a"]
    figures = {name: (one["value"], one["n"], one["examples"]) for name, one in found["figures"].items()}
    assert figures == {
        # e0: fine; VF failed; pitfall committed. e1: wrong; VF unknown and answer undecided do not count.
        "right_but_unfaithful": (2 / 4, 4, 2),
        "unfaithful_given_right": (2 / 3, 3, 1),
        "answer": (5 / 6, 6, 3),
        "pass": (12 / 16, 16, 4),
        "pass_VF": (3 / 6, 6, 3),
        "pass_RC": (4 / 4, 4, 2),
        "pass_IF": (None, 0, 0),
        "pass_PITFALL": (5 / 6, 6, 2),  # yes is good where it means avoided
    }
    assert found["figures"]["unfaithful_given_right"]["ci"] is None  # a single example
    # Among the six with an answer and a VF criterion: two are known, the missing VF and the undecided answer may be.
    assert found["headline_bounds"] == {"least": 2 / 6, "most": 4 / 6}
    counts = {"responses": 8, "truncated": 1, "verdicts": 17, "missing_verdicts": 1, "answers_by_rule": 6}
    counts |= {"answers_by_judge": 0, "undecided_answers": 1, "without_answer": 1, "without_vf": 1}
    assert {name: found[name] for name in counts} == counts
    assert found["by_source"]["t"]["answer"]["value"] == 2 / 3 and set(found["by_source"]) == {"s", "t"}
    assert found["by_difficulty"] == {}


def test_differences_are_over_shared_examples():
    found = evaluate({"a": table(TABLE), "b": table(["0y yyn", "0n yyn", "2n y"], "b")})
    (difference,) = found["differences"]
    assert (difference["a"], difference["b"]) == ("a", "b")
    # Answers are known for both in e0 and e2: 3 + 1 of 4 against 1 + 0 of 3.
    answer = difference["figures"]["answer"]
    assert (answer["a"], answer["b"], answer["examples"]) == (1.0, 1 / 3, 2)
    assert answer["difference"] == pytest.approx(-2 / 3) and answer["ci"] == pytest.approx([-1.0, -0.5])
    headline = difference["figures"]["right_but_unfaithful"]  # e0 only
    assert (headline["a"], headline["b"], headline["ci"], headline["examples"]) == (2 / 3, 0.0, None, 1)
    assert difference["figures"]["pass_IF"]["difference"] is None


def test_a_policy_without_a_response_has_no_figures():
    found = evaluate({"a": table(TABLE), "b": []})
    assert all(one["value"] is None and one["ci"] is None for one in found["policies"]["b"]["figures"].values())
    assert all(one["difference"] is None for one in found["differences"][0]["figures"].values())


rows_of_a_table = st.lists(st.sampled_from(TABLE), min_size=1, max_size=12)


@given(rows_of_a_table)
@settings(max_examples=25)
def test_more_responses_to_an_example_are_no_more_examples(rows):
    """Four copies of every response leave figures and intervals as they are: clusters are drawn, not responses. And a
    policy differs from itself by nothing."""
    once, often = (evaluate({"a": table(rows * times)}, draws=50)["policies"]["a"]["figures"] for times in (1, 4))
    for name, one in once.items():
        assert often[name]["value"] == one["value"] and often[name]["ci"] == one["ci"]
        assert one["ci"] is None or 0 <= one["ci"][0] <= one["ci"][1] <= 1
    same = evaluate({"a": table(rows), "b": table(rows, "b")}, draws=50)["differences"][0]["figures"]
    assert all(one["difference"] in (0, None) and one["ci"] in ([0, 0], None) for one in same.values())


def test_the_judges_own_errors():
    rates = {"false_yes": 0.1, "false_no": 0.2, "false_yes_ci": [0.0, 0.2], "false_no_ci": [0.1, 0.3]}
    # (.7 - .1) / .7; the least: (.6 - .2) / (1 - .2 - .1), the most: (.8 - 0) / (1 - 0 - .3), kept at 1
    found = corrected(0.7, rates, [0.6, 0.8])
    assert found["value"] == pytest.approx(6 / 7) and found["bounds"] == pytest.approx([0.4 / 0.7, 1.0])
    assert corrected(0.7, rates, None)["bounds"] is None
    assert corrected(0.7, {**rates, "false_yes": 0.8}, [0.6, 0.8])["value"] is None  # no better than a coin
    errors = judge_errors({"by_dimension": {"VF": {**rates, "n": 7}, "RC": dict.fromkeys(rates)}})
    judged = evaluate({"a": table(TABLE)}, rates=errors)["policies"]["a"]["judge"]
    # Of the scored right answers, all of e0 with one VF criterion besides the pitfall, one in five fails by mistake.
    assert judged["floor"] == pytest.approx(0.2) and set(judged["corrected"]) == {"VF"}
    assert judged["corrected"]["VF"]["value"] == pytest.approx((0.5 - 0.1) / 0.7)


@pytest.mark.parametrize("wrong", ["x", True, [0.1], -0.1, 2])
def test_a_rate_that_is_no_share_is_refused_before_anything_is_sampled(wrong, assets, heldout, tmp_path, capsys):
    for name in ("false_no", "false_yes_ci"):
        (tmp_path / "agree.json").write_text(json.dumps({"by_dimension": {"VF": {name: wrong}}}))
        more = "--verifier", "oracle", "--agreement", str(tmp_path / "agree.json")
        assert main(flags(assets, heldout, tmp_path / "run", *more)) == 2
        told = capsys.readouterr().err
        assert f"agree.json is not what claimwise agree --json prints ({name} of VF is {wrong!r})" in told
        assert not (tmp_path / "run").exists()


def test_names_stay_in_their_cells():
    policy = "a|b\n<script>"
    found = evaluate({policy: table(TABLE)})
    told = {"responses_wanted": 8, "judge": "j\n*x*", "mode": "image"}
    text, markdown = as_text({"settings": told, **found}), as_markdown({"settings": told, **found})
    assert "a|b <script>: 8 of 8 responses" in text and "j *x* in image mode" in text
    rows = [line for line in markdown.splitlines() if line.startswith("|")]
    assert rows[0] == r"|  | a\|b \<script\> |" and rows[1] == "|---|---|"
    assert all(line.replace(r"\|", "").count("|") == 3 for line in rows) and "<script" not in markdown.replace(
        r"\<", ""
    )


# The command


@pytest.fixture(scope="module")
def heldout(tmp_path_factory):
    path = tmp_path_factory.mktemp("heldout") / "examples.jsonl"
    parts = [make_example(random.Random(i), "test", i) for i in range(4)]
    write_examples(path, [replace(e, source="digits", difficulty=None) for e in parts])
    return path


def flags(assets, heldout, out, *more: str) -> list[str]:
    argv = ["evaluate", str(assets / "policy"), "--examples", str(heldout), "--out", str(out), "--samples", "2"]
    return [*argv, "--max-new-tokens", "64", "--draws", "50", *more]


def test_a_run_that_is_stopped_goes_on(assets, heldout, tmp_path, monkeypatch, capsys):
    out, judge_one, seen = tmp_path / "run", OracleJudge.judge, []
    argv = flags(assets, heldout, out, "--verifier", "oracle")

    def stopped(self, items):
        if len(seen) == 5:
            raise KeyboardInterrupt
        seen.extend(items)
        return judge_one(self, items)

    monkeypatch.setattr(OracleJudge, "judge", stopped)
    assert main(argv) == 130 and not (out / "verdicts.jsonl").exists()
    sampled = (out / "rollouts.parquet").stat().st_mtime_ns
    with (out / "verdicts.jsonl.part").open("a") as part:
        part.write('{"rollout_id": "torn')
    again = []
    monkeypatch.setattr(OracleJudge, "judge", lambda self, items: again.extend(items) or judge_one(self, items))
    assert main(argv) == 0 and len(again) == 3
    assert (out / "rollouts.parquet").stat().st_mtime_ns == sampled and not (out / "verdicts.jsonl.part").exists()
    assert "right answer, but a VF criterion failed" in capsys.readouterr().out
    rollouts, verdicts = read_rollouts(out / "rollouts.parquet"), read_verdicts(out / "verdicts.jsonl")
    assert len(rollouts) == 8 and len(verdicts) == 8 * 7
    found = json.loads((out / "evaluation.json").read_text())["policies"]["policy"]
    vf = [v.verdict for v in verdicts if v.dimension == "VF"]
    assert found["figures"]["pass_VF"]["value"] == sum(vf) / len(vf)
    assert found["figures"]["answer"]["n"] == 8 and found["by_source"].keys() == {"digits"}
    assert "| right answer |" in (out / "evaluation.md").read_text()
    monkeypatch.setattr(OracleJudge, "judge", None)  # nothing is asked any more, and other draws are no other run
    assert main([*argv, "--json", "--draws", "10"]) == 0
    assert json.loads(capsys.readouterr().out)["policies"]["policy"]["figures"]["answer"]["n"] == 8


def test_a_verifier_calibrated_anew_makes_another_run(assets, heldout, tmp_path, capsys):
    """In the same folder: its verdicts and those that are there would stand in one table."""
    folder = shutil.copytree(assets, tmp_path / "assets")
    argv = flags(folder, heldout, tmp_path / "run", "--verifier", str(folder / "verifier"), "--samples", "1")
    assert main(argv) == 0 == main(argv)
    replace(read_card(folder / "verifier"), temperature=9.0).write(folder / "verifier")
    capsys.readouterr()
    assert main(argv) == 2 and "temperature" in capsys.readouterr().err


def test_two_policies_and_a_verifier(assets, heldout, tmp_path, capsys):
    out, agreement = tmp_path / "run", tmp_path / "agree.json"
    ends = {"false_yes_ci": [0.0, 0.1], "false_no_ci": [0.0, 0.1]}
    agreement.write_text(json.dumps({"by_dimension": {"VF": {"false_yes": 0.05, "false_no": 0.05, **ends}}}))
    argv = flags(assets, heldout, out, "--verifier", str(assets / "verifier"), "--agreement", str(agreement))
    argv[2:2] = [str(assets / "policy"), "--name", "one", "--name", "two"]
    assert main(argv) == 0
    shown = capsys.readouterr().out
    assert "two less one" in shown and "VF without the judge's errors" in shown
    found = json.loads((out / "evaluation.json").read_text())
    assert found["policies"].keys() == {"one", "two"} and found["settings"]["mode"] == "image"
    assert len(read_verdicts(out / "verdicts.jsonl")) == 2 * 8 * 7


def test_servers_an_answer_for_the_judge_and_missing_verdicts(tmp_path, capsys):
    """The policy's free answer is left to the judge; calls that fail leave verdicts missing, and are made again."""
    examples, out = tmp_path / "examples.jsonl", tmp_path / "run"
    criteria = (Criterion("v", "crimson car", dimension="VF"), Criterion("w", "Says where.", dimension="VF"))
    pictures = [make_example(random.Random(n), "test", n).images for n in range(2)]
    answer = "a red car outside"
    write_examples(examples, [Example(f"e{n}", "What is it?", criteria, pictures[n], answer=answer) for n in range(2)])
    mended = []

    def judging(call):
        fails = call.question["criterion"] == "Says where." and not mended
        return status(422, "no") if fails else judge(call)

    with (
        Server(lambda call: say("Answer: a crimson car in the street", finish="length")) as policy,
        Server(judging) as judging_server,
    ):
        argv = ["evaluate", "m", "--server", policy.url, "--verifier", judging_server.url, "--verifier-model", "j"]
        argv += ["--examples", str(examples), "--samples", "1", "--out", str(out), "--json"]
        assert main(argv) == 0
        found = json.loads(capsys.readouterr().out)["policies"]["m"]
        asked = [call.question["criterion"] for call in judging_server.calls]
        assert set(asked) == {"crimson car", "Says where.", "Gives the final answer a red car outside."}
        mended.append(True)
        assert main(argv) == 0
        again = json.loads(capsys.readouterr().out)["policies"]["m"]
        assert "Says where." in [call.question["criterion"] for call in judging_server.calls[len(asked) :]]
        assert again["missing_verdicts"] == 0 and len(policy.calls) == 2
        count = len(judging_server.calls)
        assert main(argv) == 0 and len(judging_server.calls) == count  # nothing is missing any more
    assert (found["missing_verdicts"], found["answers_by_judge"], found["truncated"]) == (2, 2, 2)
    assert found["figures"]["answer"] == {"value": 0.0, "ci": [0.0, 0.0], "n": 2, "examples": 2}
    assert found["figures"]["right_but_unfaithful"]["n"] == 0 and found["figures"]["pass_VF"]["value"] == 1.0
    answers = read_verdicts(out / "answers.jsonl")
    assert [a.judge for a in answers] == ["j", "j"] and {a.criterion_id for a in answers} == {"@final-answer"}


def test_a_judge_that_mostly_fails_is_no_report(tmp_path, capsys):
    examples, out = tmp_path / "examples.jsonl", tmp_path / "run"
    write_examples(examples, [Example("e", "What is it?", (VF,), make_example(random.Random(0), "test", 0).images)])
    with Server(lambda call: say("Answer: a car")) as policy, Server(lambda call: status(422, "no")) as broken:
        argv = ["evaluate", "m", "--server", policy.url, "--verifier", broken.url, "--verifier-model", "j"]
        assert main([*argv, "--examples", str(examples), "--samples", "1", "--out", str(out)]) == 2
    assert "1 of 1 verdicts are missing" in capsys.readouterr().err and not (out / "evaluation.json").exists()


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--verifier", "nowhere"], "there is no adapter folder nowhere"),
        (["--verifier", "http://localhost:1/v1"], "go together; give both or neither"),
        (["--verifier", "oracle", "--verifier-model", "x"], "go together; give both or neither"),
        (
            ["--verifier", "oracle", "--verifier-server", "http://localhost:1"],
            "--verifier-server is for a verifier's folder",
        ),
        (
            ["--verifier", "oracle", "--verifier-base", "base"],
            "--verifier-base is for a verifier's folder",
        ),
        (["--verifier", "oracle", "--name", "a", "--name", "b"], "give one --name for each"),
        (["--verifier", "oracle", "--engine", "a=1"], "--backend vllm"),
        (["--verifier", "oracle", "--agreement", "nowhere.json"], "claimwise agree --json"),
        (["--verifier", "oracle", "--temperature", "-1"], "a temperature must be"),
    ],
)
def test_bad_input(more, told, assets, heldout, tmp_path, capsys):
    assert main(flags(assets, heldout, tmp_path / "run", *more)) == 2
    assert told in capsys.readouterr().err and not (tmp_path / "run").exists()


def test_a_mistyped_policy_leaves_no_settings_behind(heldout, tmp_path, assets, capsys):
    argv = ["evaluate", str(tmp_path / "nowhere"), "--examples", str(heldout), "--out", str(tmp_path / "run")]
    assert main([*argv, "--verifier", "oracle"]) == 2
    assert "nowhere" in capsys.readouterr().err
    assert not (tmp_path / "run" / "run.json").exists()
    argv[1] = str(assets / "policy")
    more = ["--verifier", "oracle", "--samples", "1", "--max-new-tokens", "40"]
    assert main([*argv, *more]) == 0
    assert main([*argv, *more, "--temperature", "0"]) == 2
    assert "holds a different run: temperatures" in capsys.readouterr().err
