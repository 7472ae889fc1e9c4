"""Credit fidelity: hand-worked groups, laws, and the command on tables whose credit is known."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from claimwise.eval.fidelity import GroupCredit, fidelity
from claimwise.scripts.cli import main
from claimwise.scripts.commands.fidelity import ARMS
from claimwise.scripts.credit_groups import RUBRIC_ARMS, credit_under, groups_of, toss
from claimwise.scripts.tokens import offsets_of
from claimwise.trainer.credit import ScoredResponse, token_advantages
from claimwise.verifier.errors import InputError
from claimwise.verifier.schema import Criterion, Example, Rollout, Verdict
from claimwise.verifier.tables import write_examples, write_rollouts, write_verdicts
from hypothesis import given
from hypothesis import strategies as st


def group(advantages, rewards):
    return GroupCredit(np.array(advantages, float), np.array(rewards, float))


def test_hand_worked():
    teacher = [group([1, 1, -1, -1], [1, 0]), group([2, 0, -2, 0], [0.5, 0.2, 0.2]), group([0, 0], [1, 1])]
    judge = [group([1, 1, -1, 0], [1, 0]), group([0, 1, 2, 0], [0.5, 0.5, 0.1]), group([0, 3], [1, 0])]
    found = fidelity(teacher, judge)
    # First: 3 / (2 sqrt 3), signs 3 of 4, same best. Second: -4 / (sqrt 8 sqrt 5), of its two credited tokens none has
    # the same sign, and of B's two tied best one is A's. Third: A gives no credit, B does.
    cosines = 3 / (2 * math.sqrt(3)), -4 / math.sqrt(40)
    assert (found["groups"], found["flat"], found["invented"], found["silent"]) == (2, 1, 1, 0)
    assert found["cosine"] == pytest.approx(sum(cosines) / 2)
    assert found["cosine_std"] == pytest.approx(np.std(cosines, ddof=1))
    assert found["sign"] == pytest.approx(3 / 8) and found["best_changes"] == pytest.approx(1 / 4)
    assert found["pooled_cosine"] == pytest.approx((3 - 4) / math.sqrt((4 + 8) * (3 + 5 + 9)))
    assert found["cosine_ci"] == pytest.approx(sorted(cosines))  # two groups: every mean from one to the other occurs


def test_a_silent_judge_scores_nothing_and_flat_groups_do_not_count():
    found = fidelity([group([1, -1], [1, 0]), group([0, 0], [1, 1])], [group([0, 0], [1, 1]), group([0, 0], [0, 0])])
    assert (found["groups"], found["silent"], found["flat"], found["invented"]) == (1, 1, 1, 0)
    assert (found["cosine"], found["sign"], found["best_changes"]) == (0, 0, 0.5)
    assert found["cosine_ci"] is None and found["cosine_std"] is None  # a single group
    nothing = fidelity([group([0, 0], [1, 1])], [group([0, 0], [1, 1])])
    assert nothing["groups"] == 0 and nothing["cosine"] is None and nothing["pooled_cosine"] is None
    json.dumps(nothing, allow_nan=False)


def test_missing_rewards_leave_the_best_response_open():
    found = fidelity([group([1, -1], [1, 0])], [group([1, -1], [math.nan, math.nan])])
    assert found["best_changes"] is None and found["cosine"] == pytest.approx(1) and found["unranked"] == 1


def test_other_groups_are_refused():
    with pytest.raises(InputError, match="1 groups on one side and 0"):
        fidelity([group([1, -1], [1, 0])], [])
    with pytest.raises(InputError, match=r"group 0: advantages_t is \(2,\) on one side and \(3,\)"):
        fidelity([group([1, -1], [1, 0])], [group([1, -1, 0], [1, 0])])


@given(st.lists(st.integers(-50, 50), min_size=2, max_size=20), st.floats(0.1, 10))
def test_scale_does_not_matter_and_the_opposite_is_the_opposite(values, scale):
    teacher = group(values, [0, 1])
    same = fidelity([teacher], [group(np.array(values) * scale, [0, 1])], draws=0)
    opposite = fidelity([teacher], [group(-np.array(values), [1, 0])], draws=0)
    if same["groups"]:
        assert same["cosine"] == pytest.approx(1) and same["sign"] == 1 and same["best_changes"] == 0
        assert opposite["cosine"] == pytest.approx(-1) and opposite["sign"] == 0 and opposite["best_changes"] == 1


CRITERIA = (Criterion("c1", "says 3", dimension="VF", label="ESSENTIAL", weight=3), Criterion("c2", "ends", weight=1))
EXAMPLE = Example("e", "What?", CRITERIA)
ROLLOUTS = [Rollout("r0", "e", "It is 3. Done.", "p"), Rollout("r1", "e", "It is 4. Done.", "p", 1)]


def table(answers):
    """Verdicts on c1 and c2 of r0, then of r1; c1's span is the first sentence, c2's the second."""
    spans = (0, 8), (9, 14)
    keys = [("e", f"r{r}", f"c{c + 1}", "j", "image") for r in range(2) for c in range(2)]
    return [
        Verdict(*key, {"y": True, "n": False}[answer], None, *spans[i % 2])
        for i, (key, answer) in enumerate(zip(keys, answers, strict=True))
    ]


def test_advantages_are_the_trainers_on_the_rubric_alone():
    groups, single = groups_of([(EXAMPLE, rollout) for rollout in ROLLOUTS])
    assert single == 0 and len(groups) == 1
    offsets = offsets_of(ROLLOUTS, None)  # words: "It", " is", " 3.", " Done."
    assert offsets["r0"].tolist() == [[0, 2], [2, 5], [5, 8], [8, 14]]
    (credit,) = credit_under(table("ynny"), groups, offsets, "prefix")
    # z = +-1/sqrt 2 (and eps 1e-4). c1 (rho 3/4) holds in r0 only, up to the third word; c2 in r1 only, everywhere.
    z = 0.5 / (math.sqrt(0.5) + 1e-4)
    first = [0.5 * z, 0.5 * z, 0.5 * z, -0.25 * z]
    assert credit.advantages_t == pytest.approx([*first, *(-x for x in first)])
    assert credit.rewards_g == pytest.approx([0.75, 0.25])
    answers = [ScoredResponse(offsets[r.rollout_id], 1, None, {}) for r in ROLLOUTS]
    assert not np.concatenate(token_advantages(CRITERIA, answers, budget=(0, 0, 1)).advantages).any()


def test_coins_leave_spans_and_missing_verdicts():
    verdicts = [*table("ynny") * 200, Verdict("e", "r0", "c1", "j", "image", None, error="no answer")]
    tossed = toss(verdicts, 0)
    assert [v.span for v in tossed] == [v.span for v in verdicts] and tossed[-1].verdict is None
    assert 0.4 < np.mean([v.verdict for v in tossed[:-1]]) < 0.6 and toss(verdicts, 1) != tossed


def test_the_command_knows_every_arm_that_credits_a_rubric():
    assert ARMS == RUBRIC_ARMS


@pytest.fixture
def files(tmp_path):
    write_examples(tmp_path / "e.jsonl", [EXAMPLE])
    write_rollouts(tmp_path / "r.jsonl", ROLLOUTS)
    write_verdicts(tmp_path / "a.jsonl", table("ynny"))
    write_verdicts(tmp_path / "b.jsonl", table("ynnn"))
    return tmp_path


def run(capsys, folder, *more):
    tables = [str(folder / "a.jsonl"), str(folder / "b.jsonl")]
    code = main(
        ["fidelity", *tables, "--examples", str(folder / "e.jsonl"), "--rollouts", str(folder / "r.jsonl"), *more]
    )
    return code, *capsys.readouterr()


def test_command(files, capsys):
    code, out, _ = run(capsys, files, "--json")
    result = json.loads(out)
    assert code == 0 and list(result["arms"]) == list(ARMS) and result["token"] == "word"
    # component: A credits r0 with (3/4 - 1/4) z, B with 3/4 z, everywhere: cosine 1. prefix: A (.5 .5 .5 -.25) z, B
    # (.75 .75 .75 0) z: 1.125 / sqrt(.8125 * 1.6875).
    assert result["arms"]["component"]["cosine"] == pytest.approx(1)
    assert result["arms"]["prefix"]["cosine"] == pytest.approx(1.125 / math.sqrt(0.8125 * 1.6875))
    assert result["arms"]["prefix"]["sign"] == pytest.approx(3 / 4)
    assert result["arms"]["prefix"]["best_changes"] == 0
    assert abs(result["arms"]["component"]["coin_flip"]["cosine"]) < 1
    code, out, _ = run(capsys, files, "--arm", "prefix")
    assert code == 0 and out.splitlines()[1].startswith("prefix  1") and "per word" in out
    assert "without a verdict" not in out


def test_command_counts_what_is_missing(files, capsys):
    a, b = table("ynny"), table("ynnn")
    write_verdicts(files / "a.jsonl", a[:3])  # r1's c2 is left out
    write_verdicts(files / "b.jsonl", [replace(v, verdict=None, error="lost") for v in b[:3]])
    code, out, _ = run(capsys, files, "--json")
    assert code == 0 and [json.loads(out)[f"missing_{side}"] for side in "ab"] == [1, 4]
    code, out, _ = run(capsys, files, "--arm", "prefix")
    assert "1 of A, 4 of B; B gives no credit at all in 1 of the groups, and 1 are not in best changes" in out


def test_command_takes_the_policys_tokens(files, capsys, assets):
    code, out, _ = run(capsys, files, "--tokenizer", str(assets / "policy"), "--json", "--arm", "prefix")
    assert code == 0 and json.loads(out)["token"] == "token"


@pytest.mark.slow
def test_bench_eval(capsys):
    sizes = ["--pairs", "2000", "--examples", "10", "--groups", "5", "--samples", "4"]
    assert main(["bench", "eval", "--json", *sizes]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    names = ["bootstrap_s", "peak_rss_mb", "credit_fidelity", "coin_flip_fidelity", "audit_recall", "audit_precision"]
    assert list(figures) == names
    # Five groups of four, cosines spread by about .1: the mean of some .9 stays far from that of tossed coins.
    assert figures["credit_fidelity"] > 0.75 > 0.5 > abs(figures["coin_flip_fidelity"])
    assert figures["audit_recall"] >= 0.8 and figures["audit_precision"] >= 0.7
    assert main(["bench", "eval", "--samples", "1"]) == 2
    assert "--samples is 1" in capsys.readouterr().err


def test_command_bad_input(files, capsys):
    for more, named in [
        (["--policy", "other"], "no example has two judged responses of 'other'"),
        (["--tokenizer", str(files)], "tokenizer"),
        (["--draws", "-1"], "--draws: it is -1; it cannot be negative"),
    ]:
        code, out, err = run(capsys, files, *more)
        assert (code, out, err.count("\n")) == (2, "", 1) and named in err
    write_examples(files / "e.jsonl", [EXAMPLE, replace(EXAMPLE, example_id="f")])
    write_rollouts(files / "r.jsonl", [replace(r, example_id="f") for r in ROLLOUTS])
    code, out, err = run(capsys, files)
    assert code == 2 and "'r0' answers example 'e', the rollouts table that it answers 'f'" in err
    write_rollouts(files / "r.jsonl", ROLLOUTS[:1])
    code, out, err = run(capsys, files)
    assert code == 2 and "rollout 'r1' is judged" in err and str(files / "r.jsonl") in err
