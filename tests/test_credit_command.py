"""The command `claimwise credit`: its output, its trace, and one line with exit status 2 for whatever it cannot use."""

import copy
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from claimwise.scripts.cli import main
from claimwise.scripts.commands.credit import EXAMPLE, make_parser
from claimwise.scripts.group_file import read_group
from claimwise.trainer.credit import ARMS, PITFALLS, token_advantages

Z2 = 0.5 / (math.sqrt(0.5) + 1e-4)  # z of 1 among 1 and 0

# c1 (rho 3/4) holds in the first response, decided by its first token; c2 (rho 1/4) is missing in the second.
GROUP = {
    "criteria": [
        {"id": "c1", "weight": 3, "label": "ESSENTIAL", "dimension": "VF"},
        {"id": "c2", "weight": 1, "label": "OPTIONAL", "dimension": "IF"},
        {"id": "p1", "weight": -2, "label": "PITFALL", "dimension": "RC", "yes_means": "committed"},
    ],
    "responses": [
        {
            "token_offsets": [[0, 3], [3, 8], [8, 8]],
            "answer": 1,
            "format": None,
            "verdicts": {
                "c1": {"verdict": True, "span": [0, 3]},
                "c2": {"verdict": False, "span": None},
                "p1": {"verdict": False, "span": None},
            },
        },
        {
            "token_offsets": [[0, 4], [4, 9]],
            "answer": 0,
            "format": None,
            "verdicts": {
                "c1": {"verdict": False, "span": [4, 9]},
                "c2": {"verdict": None, "span": None},
                "p1": {"verdict": None, "span": None},
            },
        },
    ],
}


@pytest.fixture
def write(tmp_path):
    def write(group):
        path = tmp_path / "group.json"
        path.write_text(group if isinstance(group, str) else json.dumps(group), encoding="utf-8")
        return str(path)

    return write


def run(capsys, *argv):
    status = main(["credit", *argv])
    out, err = capsys.readouterr()
    assert status == 0 and not err
    return out


def test_json(write, capsys):
    """0.5 z(a) + 0.5 x 3/4 z(s_1) up to c1's last token; c2 is known once and adds nothing."""
    out = json.loads(run(capsys, write(GROUP), "--arm", "prefix", "--json"))
    high, low = 0.875 * Z2, 0.5 * Z2
    assert out["advantages"][0] == pytest.approx([high, low, low])
    assert out["advantages"][1] == pytest.approx([-high, -high])
    # c2, missing, takes the mean of its known values, 0
    assert out["rewards"] == [
        {"answer": 1, "format": None, "rubric": 0.75, "vetoed": False},
        {"answer": 0, "format": None, "rubric": 0, "vetoed": False},
    ]
    assert (out["fallbacks"], out["missing"]) == (1, 2)
    assert list(out) == ["advantages", "rewards", "fallbacks", "missing"]


def test_defaults_are_prefix_paper_veto(write, capsys):
    path = write(GROUP)
    explicit = run(capsys, path, "--arm", "prefix", "--budget", "paper", "--pitfalls", "veto", "--json")
    assert run(capsys, path, "--json") == explicit


def test_a_criterion_without_a_label_counts_like_any_other(write, capsys):
    group = copy.deepcopy(GROUP)
    group["criteria"][0]["label"] = None
    assert run(capsys, write(group), "--json") == run(capsys, write(GROUP), "--json")


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("pitfalls", PITFALLS)
def test_the_command_is_the_same_code_as_the_trainer(write, capsys, arm, pitfalls):
    group = copy.deepcopy(GROUP)
    group["responses"][1]["verdicts"]["p1"] = {"verdict": True, "span": [0, 4]}
    path = write(group)
    flags = ["--arm", arm, "--pitfalls", pitfalls, "--budget", "0.2,0.3,0.5", "--match-rms"]
    out = json.loads(run(capsys, path, *flags, "--json"))
    criteria, responses = read_group(Path(path))
    credit = token_advantages(criteria, responses, arm=arm, pitfalls=pitfalls, budget=(0.2, 0.3, 0.5), match_rms=True)
    assert out["advantages"] == [advantage.tolist() for advantage in credit.advantages]
    assert out["rewards"][1]["vetoed"] == pitfalls.startswith("veto")
    assert "responses[1]" in run(capsys, path, *flags)  # and the trace of every arm and setting prints


def test_trace_shows_how_the_numbers_come_about(write, capsys):
    lines = [" ".join(line.split()) for line in run(capsys, write(GROUP)).splitlines()]
    for line in (
        "c1 ESSENTIAL VF w 3 rho 0.7500",
        "p1 PITFALL RC w -2 not credited",
        "responses[0]: answer 1, format missing, rubric 0.75",
        "c1 yes characters 0..3",
        "c1 1 +0.7070 0.3750 +0.2651 0",  # 0.375 Z2 on the first token only
        "0 +0.6186",  # 0.875 Z2
        "1-2 +0.3535",
        "c2 missing +0.0000 0.1250 +0.0000 all 2",
    ):
        assert line in lines


def test_lenient_where_it_is_harmless(write, capsys):
    """No span, answer or format key, no entry, an unknown key, a null dimension, no tokens, a byte order mark."""
    group = {
        "criteria": [{"id": "c1", "weight": 2.5, "label": "ESSENTIAL", "dimension": None, "text": "says 3"}],
        "responses": [
            {"token_offsets": [[0, 3]], "verdicts": {"c1": {"verdict": True}}, "text": "It is 3."},
            {"token_offsets": [[0, 3]], "verdicts": {"c1": {"verdict": False}}},
            {"token_offsets": [], "verdicts": {}},
        ],
    }
    out = json.loads(run(capsys, write("\ufeff" + json.dumps(group)), "--json"))
    assert out["advantages"] == [pytest.approx([0.5 * Z2]), pytest.approx([-0.5 * Z2]), []]
    assert (out["fallbacks"], out["missing"]) == (2, 1)
    assert out["rewards"][2] == {"answer": None, "format": None, "rubric": None, "vetoed": False}


def test_help_has_an_example_that_runs(write, capsys):
    assert EXAMPLE in make_parser().format_help()
    example = EXAMPLE.split("<<'END'\n")[1].split("  END\n")[0]
    assert json.loads(run(capsys, write(example), "--json"))["missing"] == 1


def changed(path, value):
    """GROUP with the value at a path of keys replaced, or its key removed where the value is `...`."""
    group = copy.deepcopy(GROUP)
    place = group
    for key in path[:-1]:
        place = place[key]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return group


C, R = ("criteria", 0), ("responses", 1)
BAD = [
    # path to the value, what it becomes, what the line must name
    (("criteria",), ..., ["'criteria'", "missing"]),
    (("criteria",), {}, ["criteria is {}", "list"]),
    (("criteria",), [], ["no credited criterion"]),
    (("responses",), ..., ["'responses'"]),
    (("responses",), [GROUP["responses"][0]], ["a group of 1", "at least two"]),
    (("responses",), [], ["a group of 0"]),
    (C, "c1", ["criteria[0]", "object"]),
    ((*C, "id"), ..., ["criteria[0]", "'id'"]),
    ((*C, "id"), 1, ["criteria[0]", "id is 1", "string"]),
    ((*C, "id"), "c2", ["'c2'", "twice"]),
    ((*C, "weight"), ..., ["'c1'", "'weight'"]),
    ((*C, "weight"), True, ["'c1'", "weight is true"]),
    ((*C, "weight"), "5", ["'c1'", 'weight is "5"']),
    ((*C, "weight"), None, ["'c1'", "weight is null"]),
    ((*C, "weight"), math.nan, ["NaN"]),
    ((*C, "weight"), math.inf, ["Infinity"]),
    ((*C, "weight"), 10**400, ["'c1'", "weight"]),
    ((*C, "label"), "CRUCIAL", ["'c1'", "CRUCIAL", "ESSENTIAL"]),
    ((*C, "label"), ["PITFALL"], ["'c1'", "label"]),
    ((*C, "label"), ..., ["'c1'", "'label'"]),
    ((*C, "dimension"), "XX", ["'c1'", "XX"]),
    (("criteria", 2, "yes_means"), "maybe", ["'p1'", "maybe"]),
    (R, [], ["responses[1]", "object"]),
    ((*R, "token_offsets"), ..., ["responses[1]", "'token_offsets'"]),
    ((*R, "token_offsets"), "0-4", ["responses[1]", "token_offsets", "list"]),
    ((*R, "token_offsets"), [[0, 4], [4]], ["responses[1]", "token_offsets[1] is [4]"]),
    ((*R, "token_offsets"), [[0, 4], 4], ["responses[1]", "token_offsets[1] is 4"]),
    ((*R, "token_offsets"), [[0, 4], [4.0, 9]], ["responses[1]", "token_offsets[1]"]),
    ((*R, "token_offsets"), [[0, 4], [True, 9]], ["responses[1]", "token_offsets[1]"]),
    ((*R, "token_offsets"), [[-1, 4], [4, 9]], ["responses[1]", "token_offsets[0]"]),
    ((*R, "token_offsets"), [[0, 4], [9, 4]], ["responses[1]", "token_offsets[1]"]),
    ((*R, "token_offsets"), [[4, 9], [0, 4]], ["responses[1]", "backwards"]),
    ((*R, "token_offsets"), [[0, 4], [4, 10**30]], ["responses[1]", "token_offsets"]),
    ((*R, "answer"), 0.5, ["responses[1]", "answer is 0.5"]),
    ((*R, "answer"), True, ["responses[1]", "answer is true"]),
    ((*R, "answer"), "1", ["responses[1]", "answer"]),
    ((*R, "format"), 1.5, ["responses[1]", "format is 1.5"]),
    ((*R, "format"), -0.1, ["responses[1]", "format"]),
    ((*R, "format"), False, ["responses[1]", "format is false"]),
    ((*R, "verdicts"), ..., ["responses[1]", "'verdicts'"]),
    ((*R, "verdicts"), [], ["responses[1]", "verdicts"]),
    ((*R, "verdicts", "c9"), {"verdict": True}, ["responses[1]", "'c9'", "c1, c2, p1"]),
    ((*R, "verdicts", "c1"), True, ["responses[1]", "'c1'", "object"]),
    ((*R, "verdicts", "c1"), {"span": None}, ["responses[1]", "'c1'", "'verdict'"]),
    ((*R, "verdicts", "c1", "verdict"), 1, ["responses[1]", "'c1'", "verdict is 1"]),
    ((*R, "verdicts", "c1", "verdict"), "yes", ["responses[1]", "'c1'", "verdict"]),
    ((*R, "verdicts", "c1", "span"), [4, 10], ["responses[1]", "'c1'", "4..10", "outside"]),
    ((*R, "verdicts", "c1", "span"), [-4, 4], ["responses[1]", "'c1'", "-4..4"]),
    ((*R, "verdicts", "c1", "span"), [5, 4], ["responses[1]", "'c1'", "5..4"]),
    ((*R, "verdicts", "c1", "span"), [4], ["responses[1]", "'c1'", "span is [4]"]),
    ((*R, "verdicts", "c1", "span"), [4.0, 5], ["responses[1]", "'c1'", "span"]),
    ((*R, "verdicts", "c1", "span"), "4..5", ["responses[1]", "'c1'", "span"]),
]


def refused(capsys, *argv):
    """The one line that the command says on bad input."""
    assert main(["credit", *argv]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1 and err.startswith("claimwise credit: ")
    return err


@pytest.mark.parametrize(("path", "value", "names"), BAD)
def test_bad_input(write, capsys, path, value, names):
    line = refused(capsys, write(changed(path, value)), "--json")
    assert all(name in line for name in ["group.json", *names]), line


def test_weights_that_sum_to_zero(write, capsys):
    group = copy.deepcopy(GROUP)
    for criterion in group["criteria"][:2]:
        criterion["weight"] = 0
    assert "sum to zero" in refused(capsys, write(group))
    assert json.loads(run(capsys, write(group), "--pitfalls", "criterion", "--json"))  # there the pitfall weighs in


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ["not JSON"]),
        ("{", ["not JSON", "line 1"]),
        ("[1, 2]", ["the group is [1, 2]"]),
        ('{"criteria": [], "criteria": []}', ["'criteria'", "twice"]),
        ("[" * 100_000, ["not JSON"]),
    ],
)
def test_files_that_are_not_a_group(write, capsys, text, names):
    line = refused(capsys, write(text))
    assert all(name in line for name in ["group.json", *names]), line


def test_files_that_cannot_be_read(tmp_path, capsys):
    assert "nowhere.json" in refused(capsys, str(tmp_path / "nowhere.json"))
    assert str(tmp_path) in refused(capsys, str(tmp_path))
    (tmp_path / "latin.json").write_bytes(b'{"\xe9": 1}')
    assert "UTF-8" in refused(capsys, str(tmp_path / "latin.json"))


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (["--budget", "0.5,0.5,0.5"], "sum to 1"),
        (["--budget", "0.5,0.5"], "budget"),
        (["--budget", "papers"], "release-prefix"),
        (["--budget", "nan,0,1"], "budget"),
        (["--budget", "1.5,-0.5,0"], ">= 0"),
        (["--arm", "suffix"], "--arm"),
        (["--pitfalls", "on"], "--pitfalls"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_bad_flags(write, capsys, flags, name):
    assert name in refused(capsys, write(GROUP), *flags)


def test_no_file_named(capsys):
    assert "GROUP.json" in refused(capsys)


def test_it_imports_no_model_library(write):
    code = (
        "import sys; from claimwise.scripts.cli import main; status = main(['credit', sys.argv[1], '--json']); "
        "heavy = {'torch', 'transformers', 'datasets', 'trl', 'peft', 'matplotlib', 'sklearn', 'PIL'}; "
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr); sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", code, write(GROUP)], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert set(json.loads(done.stdout)) == {"advantages", "rewards", "fallbacks", "missing"}
