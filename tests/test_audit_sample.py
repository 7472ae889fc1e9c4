"""Drawing pairs for people: allocation and chances by hand and by law, and what the command refuses."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace

import pytest
from auditing import sample_flags, tables, write_tables
from claimwise.eval.audit_sample import allocate, draw, effective_size, mark_tells, population
from claimwise.scripts.cli import main
from claimwise.verifier.errors import InputError
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("sizes", "count", "expected"),
    [
        # lambda = 13 / (1 + 2 + 10): each N gets sqrt(N)
        ((1, 4, 100), 13, (1, 2, 10)),
        ((1, 4, 100), 6.5, (0.5, 1, 5)),
        # lambda = 26 / 13 = 2 takes 1 and 4 as a whole; 21 are left for the last
        ((1, 4, 100), 26, (1, 4, 21)),
        ((1, 4, 100), 200, (1, 4, 100)),
    ],
)
def test_allocation_by_hand(sizes, count, expected):
    assert list(allocate({(str(n),): n for n in sizes}, count).values()) == pytest.approx(expected)


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=30), st.integers(1, 4000))
def test_allocation_adds_up(sizes, count):
    expected = allocate({(str(number),): size for number, size in enumerate(sizes)}, count)
    assert sum(expected.values()) == pytest.approx(min(count, sum(sizes)))
    for number, size in enumerate(sizes):
        assert 0 < expected[str(number),] <= size


def pairs():
    examples, rollouts, a, b = tables()
    return population(examples, rollouts, {"A": a, "B": b})[0]


def test_population():
    examples, rollouts, a, b = tables()
    elsewhere = replace(a[0], rollout_id="another"), replace(a[0], criterion_id="c9")
    found, left_out, unused = population(examples, rollouts, {"A": [*a, *elsewhere], "B": b[4:]})
    assert (len(found), left_out, unused) == (44, {"A": 0, "B": 4}, {"A": 2, "B": 0})
    strata = Counter(pair.stratum for pair in population(examples, rollouts, {"A": a, "B": b})[0])
    assert strata["charts", "none", "VF", "yes", "no"] == 1  # where B differs, e0's first response
    assert strata["charts", "none", "VF", "yes", "yes"] == 1
    assert strata["charts", "none", "PITFALL", "no", "yes"] == 1
    assert strata["photos", "none", "none", "missing", "no"] == 2  # of both responses of e5; B takes it for a no
    assert sum(strata.values()) == 48


def test_both_judges_spans_are_kept_once():
    examples, rollouts, a, b = tables()
    other = [replace(b[0], span_start=2, span_end=5), *b[1:]]
    found, *_ = population(examples, rollouts, {"A": a, "B": other})
    assert found[0].spans == ((0, a[0].span_end), (2, 5))
    assert found[1].spans == ((0, a[1].span_end),)
    assert found[2].spans == ()


@settings(max_examples=30)
@given(count=st.integers(1, 60), seed=st.integers(0, 2**32))
def test_a_draw_has_its_size_and_its_strata(count, seed):
    everything = pairs()
    drawn = draw(everything, count, seed)
    keys = {(one.pair.rollout.rollout_id, one.pair.criterion.id) for one in drawn}
    assert len(keys) == len(drawn) == min(count, len(everything))
    sizes = Counter(pair.stratum for pair in everything)
    found = Counter(one.pair.stratum for one in drawn)
    for stratum, expected in allocate(sizes, count).items():
        assert math.floor(expected - 1e-9) <= found[stratum] <= math.ceil(expected + 1e-9)
        for one in drawn:
            if one.pair.stratum == stratum:
                assert one.chance == pytest.approx(expected / sizes[stratum]) and one.weight == 1 / one.chance


def test_chances_are_those_of_the_draws():
    """Of 3,000 draws each pair is in its share, and the weighted number of pairs with a missing verdict is the true 2."""
    everything, times, weighted = pairs(), Counter(), []
    chance_of = {}
    for seed in range(3000):
        drawn = draw(everything, 10, seed)
        times.update(id(one.pair) for one in drawn)
        chance_of |= {id(one.pair): one.chance for one in drawn}
        weighted.append(sum(one.weight for one in drawn if "missing" in one.pair.verdicts))
    for pair in everything:
        chance = chance_of[id(pair)]
        assert abs(times[id(pair)] / 3000 - chance) < 5 * math.sqrt(chance * (1 - chance) / 3000) + 1e-9
    assert sum(weighted) / 3000 == pytest.approx(2, abs=0.15)


def test_same_seed_same_draw_and_random_order():
    first, again, other = (draw(pairs(), 12, seed) for seed in (1, 1, 2))
    keys = [[(one.pair.rollout.rollout_id, one.pair.criterion.id) for one in of] for of in (first, again, other)]
    assert keys[0] == keys[1] != keys[2]
    strata = [one.pair.stratum for one in first]
    assert strata != sorted(strata)


def test_effective_size_and_what_marks_tell():
    drawn = draw(pairs(), 48, 0)
    assert effective_size(drawn) == 48
    two = [replace(drawn[0], chance=1.0), replace(drawn[1], chance=0.25)]
    assert effective_size(two) == pytest.approx(25 / 17)  # (1 + 4)^2 / (1 + 16)
    # c1 and c2 have a span: yes in 6 of 12 each; c3 is no in 12, c4 yes in 5, no in 5, missing in 2
    assert mark_tells(drawn) == {"marked": {"no": 12, "yes": 12}, "unmarked": {"missing": 2, "no": 17, "yes": 5}}


def test_bad_tables():
    examples, rollouts, a, b = tables()
    with pytest.raises(InputError, match=r"A judges a criterion of a rollout twice .*'secret-e0/attack-0'.*'c1'"):
        population(examples, rollouts, {"A": [*a, replace(a[0], mode="text")]})
    with pytest.raises(InputError, match="'secret-e0/attack-0' answers example 'e9', the rollouts table that it answ"):
        population(examples, rollouts, {"A": [replace(a[0], example_id="e9"), *a[1:]]})
    with pytest.raises(InputError, match="ends at 500, but the response has"):
        population(examples, rollouts, {"A": [replace(a[0], span_end=500), *a[1:]]})
    with pytest.raises(InputError, match="no criterion of these rollouts is judged in A and in B"):
        population(examples, rollouts, {"A": a[:4], "B": b[4:]})


def test_command(tmp_path, capsys):
    flags = sample_flags(write_tables(tmp_path), tmp_path / "out" / "page.html")
    assert main([*flags, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["population"], said["drawn"], said["left_out"]) == (48, 12, {f"{tmp_path}/{x}.jsonl": 0 for x in "ab"})
    rows = [json.loads(line) for line in (tmp_path / "out" / "page.key.jsonl").read_text().splitlines()]
    assert [row["id"] for row in rows] == [f"p{n:04d}" for n in range(1, 13)]
    assert all(row["weight"] == 1 / row["chance"] and len(row["verdicts"]) == 2 for row in rows)
    before = (tmp_path / "out" / "page.html").read_bytes()
    assert main(flags) == 0  # the same pairs, the same bytes
    assert (tmp_path / "out" / "page.html").read_bytes() == before
    assert "12 of 48 pairs" in capsys.readouterr().out
    assert main([*flags, "--seed", "4"]) == 2
    assert "page.key.jsonl is the key of another page" in capsys.readouterr().err
    assert (tmp_path / "out" / "page.html").read_bytes() == before


@pytest.mark.parametrize(
    ("extra", "error"),
    [
        (["--count", "0"], "the count is 0"),
        (["--seed", "-1"], "the seed -1"),
        (["--out", "page.htm"], "the page's name must end in .html"),
        (["--verdicts", "a.jsonl"], "once or twice"),
        (["--cuont", "1"], "unrecognized arguments: --cuont 1; claimwise audit sample --help shows an example"),
    ],
)
def test_command_refuses(tmp_path, capsys, extra, error):
    assert main([*sample_flags(write_tables(tmp_path), tmp_path / "page.html"), *extra]) == 2
    said = capsys.readouterr().err
    assert error in said and said.count("\n") == 1
    assert not list(tmp_path.glob("page*"))
