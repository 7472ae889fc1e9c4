"""The command `claimwise`: its overview, every command's help, and unknown commands."""

import json
import subprocess
import sys
from importlib import metadata

import pytest
from claimwise.scripts import cli
from claimwise.scripts.cli import COMMANDS, main
from claimwise.verifier.errors import InputError

HEAVY = ["torch", "transformers", "trl", "peft", "datasets", "sklearn", "matplotlib", "numpy", "PIL", "pyarrow"]


def call(argv) -> int:
    """The exit status, whether the command returns it or argparse leaves with it."""
    try:
        return main(argv)
    except SystemExit as stop:
        return int(stop.code or 0)


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_the_overview_lists_every_command(flag, capsys):
    assert main([flag]) == 0
    out, err = capsys.readouterr()
    assert not err and out.startswith("usage: claimwise COMMAND")
    listed = [line.split()[0] for line in out.splitlines() if line.startswith("  ")]
    assert listed == list(COMMANDS)
    wanted = {"quickstart", "rollout", "label", "distill", "judge", "train", "agree", "credit", "align", "report"}
    assert wanted <= set(listed)


def test_the_version_is_the_installed_one(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"claimwise {metadata.version('claimwise')}\n"


def test_no_command_shows_the_overview_as_an_error(capsys):
    assert main([]) == 2
    assert "usage: claimwise COMMAND" in capsys.readouterr().out


def test_the_overview_imports_nothing_heavy():
    code = (
        "import json, sys; from claimwise.scripts.cli import main; status = main(['--help']); "
        f"print(json.dumps([status, [name for name in {HEAVY} if name in sys.modules]]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == [0, []] and not done.stderr


@pytest.mark.parametrize("name", ["crédit", "Credit", "--credit", "", "../credit", "two\nlines"])
def test_an_unknown_command_is_one_line(name, capsys):
    assert main([name]) == 2
    out, err = capsys.readouterr()
    assert not out and err.count("\n") == 1 and repr(name) in err and "claimwise --help" in err


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_an_example_to_copy(name, capsys):
    assert call([name, "--help"]) == 0
    out, err = capsys.readouterr()
    assert not err and f"usage: claimwise {name}" in out
    assert "example" in out
    assert any(line.strip().startswith(f"claimwise {name}") for line in out.splitlines())


@pytest.mark.parametrize("name", COMMANDS)
def test_an_unknown_flag_is_refused(name, capsys):
    assert call([name, "--no-such-flag"]) == 2
    out, err = capsys.readouterr()
    assert not out and f"claimwise {name}: " in err


@pytest.fixture
def command(monkeypatch):
    """A command that does what the test says."""

    def install(does):
        module = type("Command", (), {"main": staticmethod(does)})
        monkeypatch.setattr(cli.importlib, "import_module", lambda *_: module)

    return install


def stops(error):
    def does(argv):
        raise error

    return does


def test_bad_input_is_one_line_and_status_2(command, capsys):
    command(stops(InputError("group.json, row 3: there is\n  no answer; add one")))
    assert main(["credit"]) == 2
    assert capsys.readouterr().err == "claimwise credit: group.json, row 3: there is no answer; add one\n"


def test_ctrl_c(command, capsys):
    command(stops(KeyboardInterrupt()))
    assert main(["train"]) == 130
    assert "the same command goes on from here" in capsys.readouterr().err


def test_a_fault_of_ours_keeps_its_traceback(command):
    command(stops(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        main(["train"])


def test_the_status_and_the_rest_of_the_arguments_pass_through(command):
    seen = []
    command(lambda argv: seen.append(argv) or 3)
    assert main(["credit", "group.json", "--json"]) == 3
    command(lambda argv: None)
    assert main(["credit"]) == 0
    assert seen == [["group.json", "--json"]]


@pytest.mark.parametrize("command", ["audit", "cascade", "study"])
def test_a_command_of_commands_lists_them(command, capsys):
    assert main([command]) == 2 and main([command, "--help"]) == 0
    out = capsys.readouterr().out
    assert out.count(f"usage: claimwise {command} ") == 2 and "example:" in out
    assert main([command, "nonsense"]) == 2
    assert f"there is no {command} 'nonsense'" in capsys.readouterr().err
