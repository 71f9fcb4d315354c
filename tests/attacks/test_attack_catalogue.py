"""Every attack has a run function that fits its defaults, a page, and a place in the index."""

import inspect
import pathlib
import subprocess
import sys
import typing

import jax
import pytest

from dd_jax.attacks import ATTACKS, AttackResult, Claim, Estimate, Finding, find
from dd_jax.attacks.base import exact_law, row
from dd_jax.errors import InputError

DOCS = pathlib.Path(__file__).parents[2] / "docs" / "attacks"


@pytest.mark.parametrize("name", ATTACKS)
def test_each_attack_is_found_under_its_name_and_plays_its_own_settings(name):
    attack = find(name)
    assert attack.name == name
    assert list(inspect.signature(attack.play).parameters) == ["key", "settings"]
    assert typing.get_type_hints(attack.play)["settings"] is attack.settings
    assert {"seeds", "confidence"} <= set(attack.defaults)


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
def test_each_attack_has_a_page_and_one_line(attack):
    page = (DOCS / f"{attack.name}.md").read_text()
    assert f"dd-jax attack {attack.name}" in page
    assert f"({attack.name}.md)" in (DOCS / "README.md").read_text()
    assert "\n" not in attack.summary
    assert len(attack.summary) <= 90


def test_listing_does_not_import_jax():
    code = "import sys, dd_jax.attacks, dd_jax.cli.attack; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_unknown_names_and_parameters():
    with pytest.raises(InputError, match=r"no attack 'nope'; choose one of .*fixed-model, "):
        find("nope")
    with pytest.raises(InputError) as error:
        find("sum").run(jax.random.key(0), n=4)
    assert str(error.value) == "the attack sum has no parameter n; it has seeds, confidence."


def test_common_parameters_are_checked_before_anything_runs():
    for seeds in (0, 10**8):
        with pytest.raises(InputError, match=f"seeds = {seeds} is not a whole number from 1 to"):
            find("sum").run(jax.random.key(0), seeds=seeds)
    with pytest.raises(InputError, match="passwords = 2147483648; give at most 2147483647"):
        find("password").run(jax.random.key(0), passwords=2**31)
    with pytest.raises(InputError, match=r"confidence = 0.99999999999; give at most 1 - 1e-10"):
        find("noisy-gd").run(jax.random.key(0), confidence=1 - 1e-11)
    with pytest.raises(InputError, match="confidence = 1 is not in "):
        find("median").run(jax.random.key(0), confidence=1, n=2)


def test_the_same_key_gives_the_same_result():
    first, second = (find("sum").run(jax.random.key(3), seeds=64) for _ in range(2))
    assert first == second
    assert first.parameters == {"seeds": 64, "confidence": 0.999}


def estimate(low, high):
    return Estimate((low + high) / 2, low, high, 10, 0.9)


def result(*findings):
    return AttackResult("advantage", estimate(0.2, 0.4), 0.1, "at most", findings)


def test_only_our_own_refuted_claim_counts_against_us():
    ours, theirs = Claim("c", "s", "ours"), Claim("d", "t", "paper")
    assert not result(Finding(theirs, True, ""), Finding(ours, False, "")).ours_refuted
    bad = result(Finding(theirs, False, ""), Finding(ours, True, "e"))
    assert bad.ours_refuted
    assert bad.refuted == (ours,)
    plain = bad.to_json()
    assert plain["refutes"] == ["c"]
    assert plain["confidence_interval"] == [0.2, 0.4]
    assert {"attack", "success", "bound", "trials", "confidence", "exact"} <= plain.keys()
    assert plain["findings"][1] == {
        "claim": "c",
        "source": "s",
        "owner": "ours",
        "refuted": True,
        "evidence": "e",
    }


@pytest.mark.parametrize(
    ("value", "refuted"), [(0.2, False), (0.3, False), (0.4, False), (0.19, True), (0.41, True)]
)
def test_an_exact_law_is_refuted_by_an_interval_that_misses_it(value, refuted):
    finding = exact_law("law", "here", [row({}, estimate(0.2, 0.4), value)])
    assert finding.refuted == refuted
    assert finding.claim.owner == "ours"
    forgiven = exact_law("law", "here", [row({}, estimate(0.2, 0.4), value)], rounding=0.02)
    assert not forgiven.refuted


def test_a_missed_value_is_named():
    pairs = [row({}, estimate(0.2, 0.4), value) for value in (0.3, 0.5)]
    assert exact_law("law", "here", pairs).evidence == (
        "1 of 2 intervals contain the computed value; 0.5 is outside [0.2, 0.4]"
    )


def test_rows_keep_their_labels_first():
    made = row({"step": 4}, estimate(0.2, 0.4), 0.3, bound=0.1)
    assert list(made) == ["step", "success", "low", "high", "exact", "bound"]
