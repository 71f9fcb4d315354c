"""`dd-jax attack` from end to end: JSON, exit status."""

import json
import subprocess
import sys
from dataclasses import fields, replace

import jax.numpy as jnp
import pytest

from dd_jax.attacks import ATTACKS, sum_example
from dd_jax.cli import main
from dd_jax.cli.attack import Config


def test_listing_names_every_attack_with_its_defaults(capsys):
    assert main(["attack", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == list(ATTACKS)
    assert main(["attack", "--list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["attacks"]
    assert {each["name"]: each["parameters"] for each in listed} == {
        name: attack.defaults for name, attack in ATTACKS.items()
    }


def test_every_setting_of_an_attack_has_its_option():
    options = {field.name for field in fields(Config)}
    for name, attack in ATTACKS.items():
        assert set(attack.defaults) <= options, name


def test_options_reach_the_attack_and_json_has_the_promised_keys(capsys):
    options = ["--n", "11", "--step", "5", "--seeds", "300", "--confidence", "0.99", "--seed", "2"]
    assert main(["attack", "median", *options, "--json"]) == 0
    got = json.loads(capsys.readouterr().out)
    low, high = got["confidence_interval"]
    assert low < got["success"] < high
    assert got["exact"] == pytest.approx(0.9545, abs=1e-4)
    assert got["bound"] == pytest.approx(0.8788, abs=1e-4)
    assert (got["attack"], got["trials"], got["confidence"]) == ("median", 300, 0.99)
    assert got["parameters"] == {"n": 11, "step": 5, "seeds": 300, "confidence": 0.99}
    assert got["refutes"] == [ATTACKS["median"].claim.sentence]


def test_exit_status_1_when_a_claim_of_ours_is_refuted(monkeypatch, capsys):
    monkeypatch.setattr(
        sum_example, "adversary", lambda key, view: jnp.float32(-1) + 0 * view.first
    )
    assert main(["attack", "sum", "--seeds", "300"]) == 1
    out = capsys.readouterr().out
    assert "REFUTED (ours" in out
    assert "stands (prior work" in out


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["nope"], "'nope'"),
        ([], "median"),
        (["sum", "--n", "4"], "parameter n"),
        (["sum", "--seed", str(2**32)], "--seed"),
        (["sum", "--seed", "-1"], "--seed"),
        (["sum", "--bogus", "3"], "--bogus"),
    ],
)
def test_bad_input_is_one_line_and_status_2(capsys, arguments, word):
    assert main(["attack", *arguments]) == 2
    captured = capsys.readouterr()
    assert word in captured.err
    assert (captured.out, captured.err.count("\n")) == ("", 1)


@pytest.mark.parametrize(
    ("error", "status", "word"),
    [(ZeroDivisionError("by nothing"), 3, "by nothing"), (MemoryError(), 2, "memory")],
)
def test_an_error_of_the_program_is_not_a_refuted_claim(monkeypatch, capsys, error, status, word):
    def play(key, settings):
        raise error

    monkeypatch.setattr(sum_example, "ATTACK", replace(sum_example.ATTACK, play=play))
    assert main(["attack", "sum"]) == status
    assert word in capsys.readouterr().err.splitlines()[-1]


def test_the_package_runs_as_a_module():
    # In a process of its own, which the program ends by itself.
    words = [sys.executable, "-m", "dd_jax.cli", "attack", "--list"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("sum ")
