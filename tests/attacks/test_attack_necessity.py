"""`thm:dp_necessary`: the product of two tests, erratum E8's condition, the bound on ε."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import dd_jax as dd
from dd_jax.attacks import find, necessity
from dd_jax.attacks.necessity import (
    CURATORS,
    REMEMBERS,
    RETRAINS,
    TRACKS,
    exact,
    mechanism,
    noise_scale,
)
from dd_jax.guarantees import inference
from dd_jax.intervals import Estimate, advantage


@functools.partial(jax.jit, static_argnames="observe")
def interaction(curator, side, swapped, observe=(0,)):
    """The last database, the rows edited and the releases, all but without noise."""
    records = jnp.zeros(5).at[4].set(side)
    kept, transcript = dd.interact(
        jax.random.key(3),
        mechanism(curator, 5, jnp.float32(1e-3)),
        necessity.requester(5, swapped),
        records,
        num_requests=5,
        observe=observe,
    )
    return kept.database, transcript.edits.index[:, 0], transcript.releases


def served(curator, side=1.0, swapped=False, **options):
    place = jnp.int32(CURATORS.index(curator))
    return interaction(place, jnp.float32(side), jnp.asarray(swapped), **options)


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("side", [1.0, -1.0])
def test_the_test_becomes_a_database(side, swapped):
    database, rows, releases = served(RETRAINS, side, swapped)
    expected = -side if swapped else side
    np.testing.assert_array_equal(database, [expected, 0, 0, 0, 0])
    np.testing.assert_array_equal(rows, np.arange(5))
    assert releases[5] == pytest.approx(expected / 5, abs=0.01)
    # Shown nothing, what is written does not depend on the target.
    assert served(RETRAINS, side, observe=())[0][0] == -1
    # The one that tracks leans against whatever was written.
    database, _, releases = served(TRACKS, side, swapped)
    np.testing.assert_allclose(releases[1:5], database[0] / 5)
    assert releases[5] == pytest.approx(0, abs=0.01)


def test_the_one_that_remembers_leans_against_its_model():
    _, _, releases = served(REMEMBERS)
    np.testing.assert_array_equal(releases[:5], np.full(5, releases[0]))
    # +1 in row 0 and a positive model: the two cancel.
    assert releases[5] == pytest.approx(0, abs=0.01)


def test_noise_makes_the_mean_private():
    scale = noise_scale(10, 3.0, 2.0)
    assert 3.0 * (2 / 10) ** 2 / (2 * scale**2) == pytest.approx(2.0)


def test_exact_values_from_the_conditional_probabilities():
    n, scale = 10, 0.08
    lead = 1 / (n * scale)
    seen = stats.norm.cdf([lead, -lead])  # P[Test = 1] on the two databases

    def attack(rate, swapped):
        """Σ over what Test said: P[said | 𝒟] · P[Test̄ = 1 | recoded row, sign of φ_0]."""
        flip = -1 if swapped else 1
        yes, no = rate(flip, 1), rate(-flip, -1)
        return (seen[0] - seen[1]) * (yes - no)

    rates = {
        RETRAINS: lambda row, model: stats.norm.cdf(lead * row),
        REMEMBERS: lambda row, model: stats.norm.cdf(lead * (row - model)),
    }
    for curator, rate in rates.items():
        got = exact(curator, n, scale)
        assert got.learner == pytest.approx(seen[0] - seen[1])
        for index, model in enumerate((1, -1)):
            assert got.rates[index] == pytest.approx(rate(1, model))
            assert got.deleter == pytest.approx(rate(1, model) - rate(-1, model))
        assert got.attack == pytest.approx(attack(rate, False))
        assert got.swapped == pytest.approx(attack(rate, True))
    retrains, remembers = (exact(curator, n, scale) for curator in rates)
    # The model before the deletion is the row itself: 0 is left of it, whichever was written.
    tracks = exact(TRACKS, n, scale)
    assert tracks == remembers._replace(swapped=0.0)
    assert retrains.attack == pytest.approx(retrains.learner * retrains.deleter)
    assert remembers.attack == 0
    assert abs(remembers.swapped) == pytest.approx(2 * remembers.learner * remembers.deleter)


@pytest.mark.slow
def test_the_product_law_its_condition_and_the_bound_on_epsilon():
    result = find("necessity").run(jax.random.key(0), seeds=4_000)
    refuted = [True, False, False, True, False, False]
    assert [finding.refuted for finding in result.findings] == refuted
    assert [result.findings[i].claim.owner for i in (0, 3)] == ["paper", "control"]
    assert not result.ours_refuted
    found = {(row["curator"], row["what"]): row for row in result.rows}
    for row in result.rows:
        assert row["low"] <= row["exact"] <= row["high"]
    attack = found[RETRAINS, "Adv(MI)"]
    # 21 intervals at once; the two arms are about mirror images.
    hits = round(2_000 * (1 + attack["success"]))
    alike = advantage(hits, 4_000 - hits, 4_000, 1 - 0.001 / 21)
    assert attack["high"] - attack["low"] == pytest.approx(alike.high - alike.low, rel=0.01)
    law = found[RETRAINS, "Adv(Test)"]["exact"] * found[RETRAINS, "Adv(Test̄) from θ = +1"]["exact"]
    assert attack["low"] <= law <= attack["high"]
    assert attack["high"] - attack["low"] < 0.15
    # The condition: the same rate from both starts where it holds, far apart where it does not.
    starts = [f"P[Test̄ = 1] from θ = {start}" for start in ("+1", "-1")]
    assert found[RETRAINS, starts[0]]["low"] < found[RETRAINS, starts[1]]["high"]
    assert found[REMEMBERS, starts[0]]["high"] < found[REMEMBERS, starts[1]]["low"] - 0.3
    assert found[REMEMBERS, "Adv(MI)"]["high"] < 0.1
    # The bound: the measured δ, inverted through thm:soundness, and its inverse.
    delta, implied = result.theory["both_tests_at_least"], result.theory["epsilon_at_least"]
    lows = [row["low"] for (curator, what), row in found.items() if "Adv(Test" in what]
    assert delta == pytest.approx(min(lows[:3]))
    assert implied == pytest.approx(max(delta**4 / 2, np.log((1 + delta**2) ** 2 / 8)))
    assert inference.privacy_necessary(2.0, implied) == pytest.approx(delta)
    assert implied < result.theory["epsilon_at_least_exactly"] < result.parameters["epsilon"]


def about(value):
    return Estimate(value, value - 0.01, value + 0.01, 100, 0.9)


def judged(implied=0.1, **changes):
    """Findings on the exact values, each 0.01 wide, with some measured values changed."""
    truth = {curator: exact(curator, 10, 0.1) for curator in CURATORS}
    measured = {
        curator: necessity.Measured(
            about(t.learner),
            [about(t.deleter)] * 2,
            [about(rate) for rate in t.rates],
            about(t.attack),
            about(t.swapped),
        )
        for curator, t in truth.items()
    }
    for curator, fields in changes.items():
        measured[curator] = measured[curator]._replace(**fields)
    rows = [each for c in CURATORS for each in necessity._rows(c, measured[c], truth[c])]
    findings = necessity._findings(measured, rows, implied, 1.0)
    return [finding.refuted for finding in findings]


def test_what_is_measured_decides_every_claim():
    assert judged() == [True, False, False, True, False, False]
    # The product is 0.466: an advantage on either side of it refutes the law.
    for value in (0.3, 0.6):
        assert judged(retrains={"attack": about(value)})[1]
    # An interval that reaches the product refutes nothing.
    assert not judged(remembers={"attack": about(0.32)})[0]
    # The product is 0.326: one of the two requesters has to reach it.
    assert judged(remembers={"swapped": about(-0.2)})[2]
    assert not judged(remembers={"swapped": about(0.34)})[2]
    assert not judged(tracks={"swapped": about(-0.34)})[3]
    assert judged(implied=1.1)[4]
    assert not judged(implied=0.9)[4]
    assert judged(tracks={"swapped": about(0.02)})[5]


@pytest.mark.parametrize("order", [1.5, 8.0])
@pytest.mark.parametrize("epsilon", [0.01, 1.0])
def test_the_exact_advantage_never_implies_more_than_the_certified_epsilon(order, epsilon):
    learner = exact(RETRAINS, 10, noise_scale(10, order, epsilon)).learner
    assert inference.deletion_necessary(order, learner) <= epsilon
