"""The command line as a person uses it: commands, options that are refused, exit status, JSON."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dd_jax import cli
from dd_jax.cli.output import print_json
from experiments.__main__ import PROGRAM as EXPERIMENTS

INSTALLED = Path(sys.executable).parent / "dd-jax"


def refusal(capsys, *arguments, program=cli.DD_JAX):
    """The one line that a command is refused with."""
    assert cli.main(arguments, program) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    return err


@pytest.mark.parametrize("program", [cli.DD_JAX, EXPERIMENTS], ids=lambda program: program.package)
def test_every_command_explains_itself(program, capsys):
    for name in program.commands:
        assert cli.main([name, "--help"], program) == 0
        said = capsys.readouterr().out
        assert f"{program.name} {name}" in said
        assert "--json" in said


def test_the_installed_program_lists_the_commands():
    done = subprocess.run([INSTALLED, "--help"], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert all(name in done.stdout for name in cli.COMMANDS)


def test_where_nothing_can_be_said_the_status_still_says_it():
    """Not 0, and not 1 that would be a refuted claim, also where the cache has something to say."""
    environment = os.environ | {"DD_JAX_COMPILE_CACHE": "/dev/null"}
    environment.pop("PYTHONUNBUFFERED", None)  # with it nothing is left to be written at the end
    read, closed = os.pipe()
    os.close(read)
    with os.fdopen(closed, "w") as gone, open("/dev/full", "w") as full:
        for out, status in ((gone, 128 + signal.SIGPIPE), (full, 2)):
            done = subprocess.run([INSTALLED, "data"], stdout=out, stderr=full, env=environment)
            assert done.returncode == status


def test_help_does_not_load_jax():
    code = (
        "import sys; from dd_jax import cli; cli.main(['--help']); assert 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)


def test_no_command_and_an_unknown_one_are_status_2(capsys):
    assert cli.main([]) == 2
    capsys.readouterr()
    assert "plan" in refusal(capsys, "forget")
    assert "python -m experiments report" in refusal(capsys, "report")


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == "0.1.0"


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ("sweep --mesh 3", "--mesh 3"),
        ("sweep --eps_dp", "--eps-dp"),
        ("attack sum --seeds x", "--seeds x"),
        ("run --data digits-3-vs-8 --bound x", "--bound x"),
        ("plan", "--eps-dd"),
        ("run --data x.csv --rows 3 17 --rows 25", "--rows"),
        ("run --data=x.csv --data y.csv", "--data"),
        ("plan --eps-dd 1 --eps_dd=2", "--eps-dd"),
        ("audit linear --no-save --save", "--save"),
        ("data --json --json", "--json"),
    ],
)
def test_an_option_without_its_kind_of_value_or_given_twice_is_refused(options, word, capsys):
    assert word in refusal(capsys, *options.split())


def test_choices_are_listed_without_the_absence_of_one(capsys):
    options = "plan --n 9 --dim 1 --l2 1 --eps-dp 1 --eps-dd 1 --loss nope"
    said = refusal(capsys, *options.split())
    assert "logistic" in said
    assert "None" not in said


def test_bad_input_of_the_experiments_is_status_2(capsys):
    assert "--cores" in refusal(capsys, "bench", "--cores", "999", program=EXPERIMENTS)


def test_json_has_no_nan_and_plain_numbers(capsys):
    print_json({"a": np.float64(1.5), "b": float("nan"), "c": [np.inf, (1, 2)], "d": np.arange(2)})
    found = json.loads(capsys.readouterr().out)
    assert found == {"a": 1.5, "b": None, "c": [None, [1, 2]], "d": [0, 1]}
