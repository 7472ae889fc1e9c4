"""The adversarial suite: no attack meets the criterion that it aims at, by the human labels or by having no content."""

from __future__ import annotations

import dataclasses
import json
import random

import pytest
from claimwise.distill import attacks, digits
from claimwise.distill.grids import THREE
from claimwise.scripts.cli import main
from claimwise.verifier.errors import InputError
from claimwise.verifier.schema import Criterion, Example, Rollout, Verdict
from claimwise.verifier.tables import read_rollouts, read_verdicts, write_examples, write_rollouts, write_verdicts


@pytest.fixture(scope="module")
def examples():
    return [digits.make_example(random.Random(f"attack-{i}"), "test", i) for i in range(40)]


def target(examples, rollout) -> tuple[Example, Criterion]:
    example = next(e for e in examples if e.example_id == rollout.example_id)
    return example, next(c for c in example.criteria if c.id == attacks.target_of(rollout))


def test_every_kind_occurs_and_none_meets_its_criterion(examples):
    rollouts = attacks.attacks(examples, tuple(attacks.KINDS), seed=1, each=len(attacks.KINDS))
    assert {attacks.kind_of(rollout) for rollout in rollouts} == set(attacks.KINDS)
    assert len({rollout.rollout_id for rollout in rollouts}) == len(rollouts) >= 500
    for rollout in rollouts:
        example, criterion = target(examples, rollout)
        truth = digits.gold(criterion, rollout.response, digits.truth_of(example))
        assert (truth.text, truth.image) == (False, False), (rollout.edit, rollout.response[:200])


def test_content_is_what_the_kind_says(examples):
    for kind, rollout in ((attacks.kind_of(r), r) for r in attacks.attacks(examples, tuple(attacks.KINDS), 2, 15)):
        criterion = target(examples, rollout)[1]
        place, digit = digits.read_of(criterion.text)
        name, said = digits.POSITIONS[place], digits.understand(rollout.response).reads.get(place)
        if kind == "echo":
            assert criterion.text in rollout.response
        elif kind == "repeated":
            assert len(rollout.response) == attacks.REPEATED
        elif kind == "negation":
            assert f"{name} digit is not {digit}." in rollout.response or "anything but" in rollout.response
        elif kind == "contradiction":
            assert f"The {name} digit is {digit}." in rollout.response and said and said[0] != digit
        elif kind == "truncation":
            assert not rollout.response.rstrip()[-1:].isdigit()
        elif kind == "object":
            assert f" digit is {digit}." in rollout.response and (said is None or said[0] != digit)


def test_nine_digits_are_attacked_like_four():
    examples = [digits.make_example(random.Random(i), "test", i, grid=THREE) for i in range(20)]
    rollouts = attacks.attacks(examples, tuple(attacks.KINDS), seed=1, each=len(attacks.KINDS))
    assert {attacks.kind_of(rollout) for rollout in rollouts} == set(attacks.KINDS)
    for rollout in rollouts:
        example, criterion = target(examples, rollout)
        truth = digits.gold(criterion, rollout.response, digits.truth_of(example))
        assert (truth.text, truth.image) == (False, False), (rollout.edit, rollout.response[:200])


def test_some_kinds_are_never_trained_on():
    trained = {*attacks.TRAINED, *attacks.MIX}
    assert len(set(attacks.KINDS) - trained) >= 5 and trained <= set(attacks.KINDS)


def test_the_same_seed_gives_the_same_attacks(examples):
    kinds = tuple(attacks.TRAINED)
    first, again, other = (attacks.attacks(examples, kinds, seed, 1) for seed in (3, 3, 4))
    assert first == again and [r.response for r in first] != [r.response for r in other]


def test_any_other_data_gets_the_kinds_without_content():
    criteria = (
        Criterion("c1", "Does not mention pie charts.", yes_means="avoided", label="PITFALL", weight=-1.0),
        Criterion("c2", "States that sales fell in 2019.", label="ESSENTIAL", weight=5.0),
    )
    example = Example("e", "How did sales change?", criteria, source="charts")
    rollouts = attacks.attacks([example], tuple(attacks.KINDS), seed=0, each=len(attacks.KINDS))
    assert {attacks.kind_of(rollout) for rollout in rollouts} == set(attacks.CONTENT_FREE)
    assert {attacks.target_of(rollout) for rollout in rollouts} == {"c2"}  # silence does meet the first one


@pytest.mark.parametrize(
    "change",
    [
        lambda e: {"question": "What do you see?"},
        lambda e: {"question": "What does the middle row read?"},  # a row that nine digits have
        lambda e: {"example_id": f"{e.example_id}-mine"},
        lambda e: {"criteria": tuple(dataclasses.replace(c, text=f"{c.dimension}, in my words.") for c in e.criteria)},
    ],
)
def test_an_example_of_digits_put_in_other_words_is_attacked_like_other_data(examples, change):
    mine = [dataclasses.replace(e, **change(e)) for e in examples[:20:10]]
    rollouts = attacks.attacks(mine, tuple(attacks.KINDS), seed=0, each=len(attacks.KINDS))
    assert {attacks.kind_of(rollout) for rollout in rollouts} == set(attacks.CONTENT_FREE)
    truth = {m.example_id: digits.truth_of(e) for m, e in zip(mine, examples[:20:10], strict=True)}
    for rollout in rollouts:
        found = digits.gold(target(mine, rollout)[1], rollout.response, truth[rollout.example_id])
        assert (found.text, found.image) == (False, False)


def foreign(*texts: str, **more) -> Example:
    return Example("e", "What?", tuple(Criterion(f"c\n{n}", text, **more) for n, text in enumerate(texts)))


def test_no_criterion_is_aimed_at_that_an_attack_could_meet():
    """Silence commits a pitfall that is an omission; "yes" answers a question of yes and no; a statement is stated by
    its own text. Ids are any text."""
    kinds, each = tuple(attacks.CONTENT_FREE), 20 * len(attacks.CONTENT_FREE)
    for example in (
        foreign("Fails to name the unit.", label="PITFALL", weight=-1.0),
        foreign("Does not name the unit.", label="PITFALL", yes_means="avoided"),
        foreign("Fails to name the unit.", weight=-2.0),
        foreign("Answers YES.", 'The answer is "yes".'),
        foreign(),
    ):
        assert attacks.attacks([example], kinds, seed=0, each=each) == []
    example = foreign("Answers yes.", "The sum is 0.", "Names the eyes.")
    rollouts = attacks.attacks([example], kinds, seed=0, each=each)
    assert {attacks.target_of(r) for r in rollouts} == {"c\n1", "c\n2"}
    assert {attacks.kind_of(r) for r in rollouts} == set(kinds)
    assert all(len(e.criteria) == 1 for e, _ in attacks.aimed([example], rollouts))
    for rollout in rollouts:
        if attacks.kind_of(rollout) == "echo":
            assert rollout.response.startswith("The criterion is: ")
        else:
            assert "0" not in rollout.response and "eyes" not in rollout.response


def command(world, folder, examples, *more) -> list[str]:
    write_examples(folder / "e.jsonl", examples)
    flags = ["judge", "--adapter", world / "text", "--examples", folder / "e.jsonl", "--out", folder / "v.jsonl"]
    return list(map(str, [*flags, "--adversarial", *more]))


def test_the_command_counts_what_it_cannot_attack(world, tmp_path, capsys):
    fit = dataclasses.replace(foreign("The sum is 0."), example_id="f")
    assert main(command(world, tmp_path, [foreign("Answers yes."), fit])) == 0
    said = capsys.readouterr().out
    count = len(read_rollouts(tmp_path / "v-rollouts.jsonl"))
    assert f"of {count} attacks (95%: " in said and "; 1 examples have no criterion to aim at; by kind:" in said
    assert {v.example_id for v in read_verdicts(tmp_path / "v.jsonl")} == {"f"}
    before = [(path, path.read_bytes()) for path in (tmp_path / "v.jsonl", tmp_path / "v-rollouts.jsonl")]
    for examples in ([foreign("Answers yes.")], []):
        assert main(command(world, tmp_path, examples)) == 2
        assert "no example has a criterion that an attack could aim at" in capsys.readouterr().err
    write_rollouts(tmp_path / "v-rollouts.jsonl", [Rollout("r", "f", "My own.", "p")])
    assert main(command(world, tmp_path, [fit])) == 2
    assert "v-rollouts.jsonl holds other responses and would be overwritten" in capsys.readouterr().err
    assert read_rollouts(tmp_path / "v-rollouts.jsonl")[0].response == "My own." and before[0][0].exists()
    assert before[0][0].read_bytes() == before[0][1]


@pytest.mark.parametrize(("out", "blocked"), [("v.jsonl", "v-rollouts.jsonl"), ("v.jsonl", "v.jsonl"), ("", "")])
def test_where_either_table_cannot_be_written_nobody_judges(world, tmp_path, capsys, out, blocked):
    argv = command(world, tmp_path, [foreign("The sum is 0.")])
    if blocked:
        (tmp_path / blocked).mkdir()
    before = sorted(tmp_path.iterdir())
    argv[argv.index("--out") + 1] = str(tmp_path / out) if out else ""
    assert main(argv) == 2
    said = capsys.readouterr().err.splitlines()
    assert (
        len(said) == 1
        and (f"{tmp_path / blocked}: it cannot be written" if blocked else "a table's name must") in said[0]
    )
    assert sorted(tmp_path.iterdir()) == before


def test_the_attacks_are_there_before_the_verdicts_on_them(world, tmp_path, capsys, monkeypatch):
    """A disk that is full at the second table leaves the first, and the part, from which the same command goes on."""
    argv = command(world, tmp_path, [foreign("The sum is 0.")])

    def full(path, verdicts):
        raise InputError(f"{path}: it cannot be written (no space)")

    with monkeypatch.context() as patch:
        patch.setattr("claimwise.scripts.commands.judge.write_verdicts", full)
        assert main(argv) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["e.jsonl", "v-rollouts.jsonl", "v.jsonl.part"]
    assert main(argv) == 0
    assert {v.rollout_id for v in read_verdicts(tmp_path / "v.jsonl")} == {
        r.rollout_id for r in read_rollouts(tmp_path / "v-rollouts.jsonl")
    }


def test_a_criterion_that_names_no_digit_cannot_be_read():
    with pytest.raises(InputError, match="no place and digit"):
        digits.read_of("The final answer repeats the conclusion.")


def verdict(rollout, said: bool | None) -> Verdict:
    error = None if said is not None else "no answer"
    return Verdict(rollout.example_id, rollout.rollout_id, attacks.target_of(rollout), "j", "image", said, error=error)


def test_false_yes_is_over_the_known_verdicts_with_its_wilson_interval(examples):
    """1 yes of 4 known: the Wilson centre is (1 + 1.92) / (4 + 3.84), the interval .0456 to .6994 (R, binom.wilson)."""
    rollouts = attacks.attacks(examples[:5], ("echo", "hedge"), seed=5, each=1)
    assert [attacks.kind_of(rollout) for rollout in rollouts] == ["echo", "hedge", "echo", "hedge", "echo"]
    rows = [verdict(r, said) for r, said in zip(rollouts, (True, False, False, None, False), strict=True)]
    figures = attacks.attack_figures(rollouts, rows)
    assert (figures["n"], figures["missing"], figures["false_yes"]) == (4, 1, 0.25)
    assert figures["false_yes_ci"] == pytest.approx([0.0456, 0.6994], abs=1e-4)
    assert figures["by_kind"] == {"echo": 1 / 3, "hedge": 0.0}


def test_an_attack_is_judged_on_the_criterion_that_it_aims_at(examples):
    rollouts = attacks.attacks(examples[:3], attacks.TRAINED, seed=6, each=2)
    pairs = attacks.aimed(examples, rollouts)
    assert [[c.id for c in example.criteria] for example, _ in pairs] == [[attacks.target_of(r)] for r in rollouts]


def test_the_agreement_report_has_the_adversarial_slice(examples, tmp_path, capsys):
    """Two of four attacks talk it into yes: 0.5, Wilson .1500 to .8500."""
    rollouts = attacks.attacks(examples[:4], ("echo", "hedge"), seed=5, each=1)
    write_rollouts(tmp_path / "attacks-rollouts.jsonl", rollouts)
    rows = [verdict(r, said) for r, said in zip(rollouts, (True, False, True, False), strict=True)]
    write_verdicts(tmp_path / "attacks.jsonl", rows)
    told = [dataclasses.replace(rows[0], rollout_id="r1"), dataclasses.replace(rows[1], rollout_id="r2")]
    write_verdicts(tmp_path / "a.jsonl", told)
    command = ["agree", str(tmp_path / "a.jsonl"), str(tmp_path / "a.jsonl")]
    assert main([*command, "--attacks", str(tmp_path / "attacks.jsonl"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["adversarial"]
    assert (found["n"], found["false_yes"], found["by_kind"]) == (4, 0.5, {"echo": 1.0, "hedge": 0.0})
    assert found["false_yes_ci"] == pytest.approx([0.15, 0.85], abs=1e-4)
    assert main([*command, "--attacks", str(tmp_path / "attacks.jsonl")]) == 0
    line = "adversarial slice: false yes 0.500 [0.150, 0.850] of 4 attacks, 0 missing; echo 1.000, hedge 0.000"
    assert line in capsys.readouterr().out
    write_verdicts(tmp_path / "attacks.jsonl", told)
    assert main([*command, "--attacks", str(tmp_path / "attacks.jsonl")]) == 2
    assert "'r1' is no attack" in capsys.readouterr().err
