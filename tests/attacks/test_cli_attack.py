"""`dd-jax attack` from end to end: output, JSON, exit status."""

import json

import jax.numpy as jnp
import pytest

from dd_jax.attacks import ATTACKS, sum_example
from dd_jax.cli import main


def test_listing_has_one_line_each(capsys):
    assert main(["attack", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(ATTACKS)
    assert all(attack.summary in line for attack, line in zip(ATTACKS.values(), lines, strict=True))


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
        (["password", "--seeds", "0"], "seeds = 0; give at least 1."),
    ],
)
def test_bad_input_is_one_line_and_status_2(capsys, arguments, message):
    assert main(["attack", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err == f"dd-jax attack: {message}\n"
    assert captured.out == ""
