"""The power of every bound: against brute force, against simulation, and at its limits."""

import numpy as np
import pytest
from scipy import optimize, stats

from dd_jax import intervals
from dd_jax.audit import bounds, power
from dd_jax.audit.power import shifted_normals
from dd_jax.errors import InputError
from dd_jax.guarantees import renyi

SIZES = {"seeds": 4000, "fit_seeds": 1000, "confidence": 0.95}


def test_the_probability_of_refuting_is_the_sum_over_all_outcomes():
    n, rates, confidence, claim = 40, (0.7, 0.3), 0.9, 0.15
    hits = np.arange(n + 1)
    low, high = intervals.lower_limit(hits, n, 0.05), intervals.upper_limit(hits, n, 0.05)
    chances = np.outer(stats.binom.pmf(hits, n, rates[0]), stats.binom.pmf(hits, n, rates[1]))
    expected = np.sum(chances * (low[:, None] - high[None, :] > claim))
    found = power.refutation_probability(bounds.difference, claim, rates, n, confidence)
    assert found == pytest.approx(expected, abs=1e-9)
    assert 0.2 < found < 0.8


def test_grouping_counts_changes_little():
    n, rates = 3000, (0.55, 0.45)
    hits = np.arange(n + 1)
    low, high = intervals.lower_limit(hits, n, 0.025), intervals.upper_limit(hits, n, 0.025)
    pmf = [stats.binom.pmf(hits, n, rate) for rate in rates]
    # For each count of the absent arm, the least count of the present one that refutes.
    first = np.searchsorted(low, high + 0.05, side="right")
    expected = np.sum(pmf[1] * stats.binom.sf(first - 1, n, rates[0]))
    found = power.refutation_probability(bounds.difference, 0.05, rates, n, 0.95)
    assert found == pytest.approx(expected, abs=5e-3)


CASES = {
    "advantage": (bounds.advantage, 0.1, {}, renyi.advantage_from_gdp),
    "hockey_stick": (
        bounds.hockey_stick,
        0.02,
        {"epsilon": 0.5},
        lambda mu: renyi.gdp_delta(mu, 0.5),
    ),
    "epsilon_at": (bounds.epsilon_at, 1.0, {"delta": 0.01}, lambda mu: renyi.gdp_epsilon(mu, 0.01)),
    "gaussian_mu": (bounds.gaussian_mu, 0.5, {}, float),
    "renyi_binary": (bounds.renyi_binary, 0.2, {"order": 2.0}, lambda mu: mu**2),
    "renyi_bins": (bounds.renyi_bins, 0.2, {"order": 2.0}, lambda mu: mu**2),
    "renyi_variational": (bounds.renyi_variational, 0.2, {"order": 2.0}, lambda mu: mu**2),
}


@pytest.mark.parametrize("method", CASES)
def test_the_stated_power_is_the_simulated_one(method):
    bound, claim, setting, truth = CASES[method]
    value = power.detectable(method, claim, **SIZES, **setting)
    assert value > claim
    mu = optimize.brentq(lambda mu: truth(mu) - value, 1e-3, 10)
    fit, seeds, replays = SIZES["fit_seeds"], SIZES["seeds"], 150
    present, absent = shifted_normals(mu).draw((replays, fit + seeds), 1)
    refuted = [
        bound(p[:fit], s[:fit], p[fit:], s[fit:], confidence=0.95, **setting).value > claim
        for p, s in zip(present, absent, strict=True)
    ]
    assert 0.80 <= np.mean(refuted) <= 0.98


def test_more_seeds_and_less_power_catch_smaller_violations():
    few = power.detectable("gaussian_mu", 0.5, **SIZES)
    many = power.detectable("gaussian_mu", 0.5, **(SIZES | {"seeds": 16000, "fit_seeds": 4000}))
    easy = power.detectable("gaussian_mu", 0.5, **SIZES, power=0.5)
    assert 0.5 < many < few
    assert 0.5 < easy < few
    # Half as wide limits: half the distance to the claim.
    assert (many - 0.5) / (few - 0.5) == pytest.approx(0.5, abs=0.15)


def test_what_no_outcome_can_show_is_infinite():
    assert power.detectable("advantage", 1.0, **SIZES) == np.inf
    assert power.detectable("advantage", 0.99, seeds=20, confidence=0.95) == np.inf
    assert power.detectable("gaussian_mu", 50.0, **SIZES) == np.inf
    assert power.detectable("renyi_bins", 100.0, order=2.0, **SIZES) == np.inf


def test_a_claim_of_nothing_has_a_finite_answer():
    value = power.detectable("advantage", 0.0, **SIZES)
    assert 0 < value < 0.1


@pytest.mark.parametrize(
    ("method", "change", "message"),
    [
        ("guess", {}, "choose from advantage"),
        ("renyi_bins", {}, "needs order"),
        ("hockey_stick", {}, "needs epsilon"),
        ("epsilon_at", {}, "needs delta"),
        ("advantage", {"power": 1.0}, "power = 1.0"),
        ("advantage", {"seeds": 1}, "seeds = 1"),
        ("advantage", {"confidence": 1.0}, "confidence = 1.0"),
    ],
)
def test_bad_input_is_refused(method, change, message):
    with pytest.raises(InputError, match=message):
        power.detectable(method, 0.1, **(SIZES | change))
