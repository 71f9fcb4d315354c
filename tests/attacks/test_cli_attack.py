"""`dd-jax attack` from end to end: output, JSON, exit status."""

import json
import subprocess
import sys
from dataclasses import fields, replace

import jax.numpy as jnp
import pytest

from dd_jax.attacks import ATTACKS, sum_example
from dd_jax.cli import main
from dd_jax.cli.attack import Config


def test_listing_has_one_line_each(capsys):
    assert main(["attack", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(ATTACKS)
    assert all(attack.summary in line for attack, line in zip(ATTACKS.values(), lines, strict=True))


def test_every_setting_of_an_attack_has_its_option():
    options = {field.name for field in fields(Config)}
    for name, attack in ATTACKS.items():
        assert set(attack.defaults) <= options, name


def test_listing_as_json(capsys):
    assert main(["attack", "--list", "--json"]) == 0
    attacks = json.loads(capsys.readouterr().out)["attacks"]
    assert [attack["name"] for attack in attacks] == list(ATTACKS)
    assert attacks[1]["parameters"]["step"] == 12


def test_json_has_the_promised_keys(capsys):
    assert main(["attack", "sum", "--seeds", "200", "--confidence", "0.9", "--json"]) == 0
    got = json.loads(capsys.readouterr().out)
    assert got["attack"] == "sum"
    assert got["success"] == 1.0
    assert got["confidence_interval"][0] < 1.0 == got["confidence_interval"][1]
    assert (got["bound"], got["trials"], got["confidence"]) == (0.5, 200, 0.9)
    assert got["parameters"] == {"seeds": 200, "confidence": 0.9}
    assert got["refutes"] == [ATTACKS["sum"].claim.sentence]


def test_options_reach_the_attack_and_the_text_says_what_is_refuted(capsys):
    options = ["--n", "11", "--step", "5", "--seeds", "300", "--seed", "2"]
    assert main(["attack", "median", *options]) == 0
    out = capsys.readouterr().out
    assert out.startswith("median: a 1-adaptive requester copies the released median")
    assert "success probability 0.9" in out
    assert "at confidence 0.999 (300 trials)" in out
    assert "bound 0.8788 (thm:adaptive_violation: success is at least this)" in out
    assert "exact 0.9545" in out
    assert "bound simple 0.75\n" in out
    assert "REFUTED (prior work; dfn:unlearning" in out
    assert "stands (ours; dd_jax.attacks.median.exact_success)" in out


def test_exit_status_1_when_a_claim_of_ours_is_refuted(monkeypatch, capsys):
    monkeypatch.setattr(
        sum_example, "adversary", lambda key, view: jnp.float32(-1) + 0 * view.first
    )
    assert main(["attack", "sum", "--seeds", "300"]) == 1
    out = capsys.readouterr().out
    assert "REFUTED (ours; dd_jax.attacks.sum_example)" in out
    assert "stands (prior work" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nope"], f"no attack 'nope'; choose one of {', '.join(sorted(ATTACKS))}."),
        ([], f"name an attack, one of {', '.join(sorted(ATTACKS))}."),
        (["sum", "--n", "4"], "the attack sum has no parameter n; it has seeds, confidence."),
        (["median", "--n", "10"], "n = 10; give an odd number of records from 5 to 1000001."),
        (
            ["password", "--seeds", "0"],
            "seeds = 0 is not a whole number from 1 to 10000000; give one.",
        ),
        (
            ["sum", "--seed", str(10**20)],
            f"--seed = {10**20} is not a whole number from 0 to {2**32 - 1}; give one.",
        ),
        (
            ["sum", "--seed", "-1"],
            f"--seed = -1 is not a whole number from 0 to {2**32 - 1}; give one.",
        ),
        (["sum", "--bogus", "3"], "Unrecognized options: --bogus, 3; see dd-jax attack --help."),
    ],
)
def test_bad_input_is_one_line_and_status_2(capsys, arguments, message):
    assert main(["attack", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err == f"dd-jax attack: {message}\n"
    assert captured.out == ""


def test_a_value_that_cannot_be_read_is_one_line_and_status_2(capsys):
    assert main(["attack", "sum", "--seeds", "abc"]) == 2
    error = capsys.readouterr().err
    assert error == "dd-jax attack: --seeds abc: give INT; see dd-jax attack --help.\n"


def fail(error):
    def run(*arguments, **parameters):
        raise error

    return run


def test_an_error_of_the_program_is_not_a_refuted_claim(monkeypatch, capsys):
    broken = replace(sum_example.ATTACK, play=fail(ZeroDivisionError("by nothing")))
    monkeypatch.setattr(sum_example, "ATTACK", broken)
    assert main(["attack", "sum"]) == 3
    error = capsys.readouterr().err
    assert error.startswith("Traceback")
    assert error.endswith(
        "dd-jax attack: internal error, no claim was judged: ZeroDivisionError: by nothing\n"
    )
    monkeypatch.setattr(sum_example, "ATTACK", replace(broken, play=fail(MemoryError())))
    assert main(["attack", "sum"]) == 2
    assert capsys.readouterr().err == "dd-jax attack: out of memory; ask for a smaller run.\n"


def test_the_package_runs_as_a_module():
    command = [sys.executable, "-m", "dd_jax.cli", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "0.1.0\n")
