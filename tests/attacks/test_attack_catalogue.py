"""Every attack plays its own settings and has a page; what it cannot use is refused; results."""

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
def test_each_attack_plays_its_own_settings_and_has_a_page(name):
    attack = find(name)
    assert attack.name == name
    parameters = ["key", "settings", "progress"][: 3 if attack.reports else 2]
    assert list(inspect.signature(attack.play).parameters) == parameters
    assert typing.get_type_hints(attack.play)["settings"] is attack.settings
    assert {"seeds", "confidence"} <= set(attack.defaults)
    assert "\n" not in attack.summary
    assert f"dd-jax attack {name}" in (DOCS / f"{name}.md").read_text()
    assert f"({name}.md)" in (DOCS / "README.md").read_text()


def test_listing_does_not_import_jax():
    code = "import sys, dd_jax.attacks, dd_jax.cli.attack; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("name", "parameters", "word"),
    [
        ("nope", {}, "nope"),
        ("sum", {"n": 4}, "parameter n"),
        ("sum", {"seeds": 0}, "seeds"),
        ("sum", {"seeds": 10**8}, "seeds"),
        ("sum", {"confidence": 1}, "confidence"),
        ("noisy-gd", {"confidence": 1 - 1e-11}, "confidence"),
        ("noisy-gd", {"n": 4}, "n = 4"),
        ("noisy-gd", {"n": 5, "batches": 6}, "batches"),
        ("noisy-gd", {"seeds": 3}, "seeds"),
        ("median", {"n": 100}, "odd"),
        ("median", {"n": 3}, "n = 3"),
        ("median", {"step": 3}, "step"),
        ("median", {"step": 102}, "step"),
        ("secret-count", {"n": 1}, "n = 1"),
        ("secret-count", {"step": 0}, "step"),
        ("secret-count", {"releases": 0}, "releases"),
        ("secret-count", {"releases": 10**6}, "releases"),
        ("secret-count", {"epsilon": 1e-7}, "epsilon"),
        ("secret-count", {"epsilon": float("nan")}, "epsilon"),
        ("fixed-model", {"n": 1}, "n = 1"),
        ("two-outputs", {"n": 1}, "n = 1"),
        ("password", {"n": 1}, "n = 1"),
        ("password", {"passwords": 1}, "passwords"),
        ("password", {"passwords": 2**31}, "32-bit"),
        ("password", {"order": 1.0}, "order"),
        ("re-encoding", {"group": 0}, "group"),
        ("re-encoding", {"group": 101}, "group"),
        ("reconstruction", {"share": 0.01}, "share"),
        ("reconstruction", {"share": 1.0}, "share"),
        ("reconstruction", {"n": 7}, "n = 7"),
        ("reconstruction", {"seeds": 10}, "seeds"),
        ("sisa", {"shards": 5}, "even"),
        ("sisa", {"noise": 0}, "noise"),
        ("clipping", {"n": 10}, "n = 10"),
        ("clipping", {"seeds": 3}, "seeds"),
        ("recoding", {"n": 4}, "n = 4"),
        ("recoding", {"releases": 0}, "releases"),
        ("recoding", {"epsilon": 0.0}, "epsilon"),
        ("recoding", {"epsilon": 1000.0}, "epsilon"),
        ("necessity", {"n": 1}, "n = 1"),
        ("necessity", {"n": 100_000}, "n = 100000"),
        ("necessity", {"epsilon": 0.0}, "epsilon"),
        ("necessity", {"order": 1.0}, "order"),
        ("low-bits", {"n": 5}, "n = 5"),
        ("low-bits", {"releases": 1}, "releases"),
        ("low-bits", {"l2": 0.01}, "steps"),
        ("stall", {"seeds": 10}, "seeds"),
        ("stall", {"l2": 1e-7}, "steps"),
        ("coarse-products", {"n": 10}, "n = 10"),
        ("coarse-products", {"l2": 1e-4}, "steps"),
        ("early-release", {"n": 10}, "n = 10"),
        ("early-release", {"seeds": 10}, "seeds"),
    ],
)
def test_refusals(name, parameters, word):
    with pytest.raises(InputError, match=word):
        find(name).run(jax.random.key(0), **parameters)


def test_the_same_key_gives_the_same_result():
    first, second = (find("sum").run(jax.random.key(3), seeds=64) for _ in range(2))
    assert first == second
    assert first.parameters == {"seeds": 64, "confidence": 0.999}


def estimate(low, high):
    return Estimate((low + high) / 2, low, high, 10, 0.9)


def test_only_our_own_refuted_claim_counts_against_us():
    def result(*findings):
        return AttackResult("advantage", estimate(0.2, 0.4), 0.1, "at most", findings)

    ours, theirs = Claim("c", "s", "ours"), Claim("d", "t", "paper")
    assert not result(Finding(theirs, True, ""), Finding(ours, False, "")).ours_refuted
    bad = result(Finding(theirs, False, ""), Finding(ours, True, "e"))
    assert bad.ours_refuted
    assert bad.refuted == (ours,)
    plain = bad.to_json()
    assert plain["refutes"] == ["c"]
    assert plain["confidence_interval"] == [0.2, 0.4]
    assert {"attack", "success", "bound", "trials", "confidence", "exact"} <= plain.keys()
    assert [found["refuted"] for found in plain["findings"]] == [False, True]
    assert plain["findings"][1].keys() == {"claim", "source", "owner", "refuted", "evidence"}


@pytest.mark.parametrize(
    ("value", "refuted"), [(0.2, False), (0.3, False), (0.4, False), (0.19, True), (0.41, True)]
)
def test_an_exact_law_is_refuted_by_an_interval_that_misses_it(value, refuted):
    rows = [row({}, estimate(0.2, 0.4), each) for each in (None, 0.3, value)]
    finding = exact_law("law", "here", rows)
    assert finding.refuted == refuted
    assert finding.claim.owner == "ours"
    assert not exact_law("law", "here", rows, rounding=0.02).refuted
