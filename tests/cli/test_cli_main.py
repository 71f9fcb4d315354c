"""The command line as a person uses it: the installed program, its output and exit status."""

import subprocess
import sys
from pathlib import Path

import pytest

from dd_jax import cli
from experiments.__main__ import PROGRAM as EXPERIMENTS

ROOT = Path(__file__).parents[2]
PROGRAM = Path(sys.executable).parent / "dd-jax"


def dd_jax(*arguments):
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, check=False)


def test_help_lists_every_command_without_loading_jax():
    done = dd_jax("--help")
    assert done.returncode == 0
    for name, summary in cli.COMMANDS.items():
        assert name in done.stdout
        assert summary in done.stdout
    code = (
        "import sys; from dd_jax import cli; cli.main(['--help']); sys.exit('jax' in sys.modules)"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode
        == 0
    )


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_explains_itself(name):
    done = dd_jax(name, "--help")
    assert done.returncode == 0
    assert f"usage: dd-jax {name}" in done.stdout
    assert "--json" in done.stdout


@pytest.mark.parametrize("name", EXPERIMENTS.commands)
def test_every_command_of_the_experiments_explains_itself(name):
    command = [sys.executable, "-m", "experiments", name, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0
    assert f"usage: python -m experiments {name}" in done.stdout
    assert "--json" in done.stdout


def test_no_command_shows_the_usage_and_an_unknown_one_says_so():
    assert cli.main([]) == 2
    done = dd_jax("forget")
    assert done.returncode == 2
    assert done.stderr == (
        f"dd-jax: no command 'forget'; choose one of {', '.join(sorted(cli.COMMANDS))}.\n"
    )


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == "0.1.0"


def test_bad_input_is_one_line_and_status_2(capsys):
    assert cli.main(["bench", "--cores", "999"], EXPERIMENTS) == 2
    error = capsys.readouterr().err
    assert error.startswith("python -m experiments bench: --cores 999: this machine lets us use ")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("sweep", "--mesh", "3"), "--mesh 3: give INT INT"),
        (("audit", "--mesh", "a", "b"), "--mesh a b: give INT INT"),
        (("attack", "sum", "--seeds", "x"), "--seeds x: give INT"),
        (("run", "--data", "digits-3-vs-8", "--l2", "x"), "--l2 x: give FLOAT"),
        (("run", "--data", "digits-3-vs-8", "--bound", "x"), "--bound x: give FLOAT"),
    ],
)
def test_a_value_of_the_wrong_kind_is_told_in_the_users_words(options, words, capsys):
    assert cli.main(options) == 2
    said = capsys.readouterr().err
    assert said == f"dd-jax {options[0]}: {words}; see dd-jax {options[0]} --help.\n"


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (("run", "--data", "x.csv", "--rows", "3", "17", "--rows", "25"), "--rows"),
        (("run", "--data=x.csv", "--data", "y.csv"), "--data"),
        (("plan", "--eps-dd", "1", "--eps_dd=2"), "--eps-dd"),
        (("audit", "linear", "--no-save", "--save"), "--save"),
        (("attack", "sum", "--seeds", "9", "--seeds", "9"), "--seeds"),
        (("data", "--json", "--json"), "--json"),
    ],
)
def test_an_option_given_twice_is_refused_before_anything_runs(options, name, capsys):
    assert cli.main(options) == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"dd-jax {options[0]}: {name} is given twice")
    assert (said.out, said.err.count("\n")) == ("", 1)


def test_a_closed_pipe_is_no_error():
    done = subprocess.run(
        f"{PROGRAM} --help | true", shell=True, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
