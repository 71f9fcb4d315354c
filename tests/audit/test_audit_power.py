"""Power against brute force and simulation; false alarms where the truth is known."""

import numpy as np
import pytest
from problems import soak
from scipy import optimize, stats

from dd_jax import intervals
from dd_jax.audit import bounds, power
from dd_jax.audit.power import PAIRS, REPLAYED, atoms, coverage, shifted_normals
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


@pytest.mark.parametrize("method", [*CASES, "gaussian_mu, independent arms"])
def test_the_stated_power_is_the_simulated_one(method):
    name, _, independent = method.partition(", ")
    bound, claim, setting, truth = CASES[name]
    value = power.detectable(name, claim, **SIZES, **setting)
    if independent:
        setting = {"independent": True}
        narrower = power.detectable(name, claim, **SIZES, **setting)
        assert narrower < value
        value = narrower
    assert value > claim
    mu = optimize.brentq(lambda mu: truth(mu) - value, 1e-3, 10)
    fit, seeds, replays = SIZES["fit_seeds"], SIZES["seeds"], soak(80, 150)
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


# --- calibration: how often each bound exceeds a known truth -------------------------------------


@pytest.mark.parametrize(
    ("method", "pair"),
    [
        (method, pair)
        for method in REPLAYED
        for pair in ("shift, R₂ = 1", "three atoms")
        # The joint limits' coverage is also proved by enumeration, with atoms of every size.
        if pair != "three atoms" or "independent" not in method
    ],
)
def test_at_most_one_false_alarm_in_twenty(method, pair):
    assert coverage(method, pair, replays=soak(250, 1000), seed=11).high < 0.05


def replace_bound(monkeypatch, bound):
    """Replay only the advantage, computed by another function."""
    for name in set(REPLAYED) - {"advantage"}:
        monkeypatch.delitem(REPLAYED, name)
    monkeypatch.setitem(REPLAYED, "advantage", REPLAYED["advantage"]._replace(bound=bound))


def test_the_replays_notice_a_bound_that_is_too_high(monkeypatch):
    """Part B choosing its own event, at confidence 0.3, is not a bound of confidence 0.95."""

    def careless(fit_present, fit_absent, test_present, test_absent, *, confidence):
        return bounds.advantage(*(test_present, test_absent) * 2, confidence=0.3)

    replace_bound(monkeypatch, careless)
    assert coverage("advantage", "equal", replays=100).low > 0.05


def test_values_beyond_the_truth_and_nan_are_counted(monkeypatch):
    values = iter([np.nan, np.inf, 1.0, 0.0])

    def broken(*parts, confidence):
        return bounds.advantage(*parts, confidence=confidence)._replace(value=next(values))

    replace_bound(monkeypatch, broken)
    found = coverage("advantage", "shift, R₂ = 1", replays=4)
    assert (found.value, found.low, found.high) == (
        0.75,
        *intervals.clopper_pearson(3, 4, 0.95),
    )


def test_draws_follow_the_stated_laws():
    present, absent = PAIRS["three atoms"].draw((1, 100_000), 0)
    frequencies = [np.bincount(arm[0].astype(int)) / 100_000 for arm in (present, absent)]
    np.testing.assert_allclose(frequencies, [[0.3, 0.3, 0.4], [0.5, 0.3, 0.2]], atol=0.01)
    present, absent = PAIRS["shift, R₂ = 1"].draw((1, 100_000), 0)
    assert np.mean(np.arcsinh(present) / 3) == pytest.approx(1, abs=0.02)
    assert np.mean(np.arcsinh(absent) / 3) == pytest.approx(0, abs=0.02)


@pytest.mark.parametrize(
    ("method", "parameter", "expected"),
    [
        ("advantage", 0.0, 0.2),
        ("hockey_stick", np.log(1.5), 0.1),
        ("epsilon_at", 0.0, np.log(2)),
        ("renyi_bins", 2.0, np.log(0.09 / 0.5 + 0.3 + 0.16 / 0.2)),
    ],
)
def test_the_truth_of_atoms_by_hand(method, parameter, expected):
    pair = atoms([0.3, 0.3, 0.4], [0.5, 0.3, 0.2])
    assert pair.truth(method, parameter) == pytest.approx(expected)


def test_the_table_tells_sound_bounds_from_a_plug_in_and_a_wrong_law(monkeypatch):
    rows = power.table(replays=10, seeds=400)
    assert len(rows) == len(power.TABLE_PAIRS) * len(REPLAYED) + 1
    assert all(row.sound for row in rows)
    said = {(row.bound, row.pair): row.positive for row in rows}
    assert said["gaussian_mu", "shift, R₂ = 1"] > 0.9  # it is not silent where it may be
    assert "sound" in rows[0].to_dict()

    def plug_in(*parts, confidence):
        """The difference of two frequencies, called a lower bound."""
        found = bounds.advantage(*parts, confidence=confidence)
        return found._replace(value=np.mean(parts[2] > 0.5) - np.mean(parts[3] > 0.5))

    real = power.exact_law.gaussian_law
    monkeypatch.setattr(
        power.exact_law,
        "gaussian_law",
        lambda present, absent, shift, variance, *, confidence: real(
            present, absent, shift + 0.5, variance, confidence=confidence
        ),
    )
    replace_bound(monkeypatch, plug_in)
    unsound = {row.pair for row in power.table(replays=40, seeds=400) if not row.sound}
    assert {"equal", "shift, R₂ = 1", "N(1, 1), N(0, 1)"} <= unsound


@pytest.mark.parametrize(
    ("call", "change", "message"),
    [
        ("guess", {}, "method"),
        ("renyi_bins", {}, "order"),
        ("hockey_stick", {}, "epsilon"),
        ("epsilon_at", {}, "delta"),
        ("advantage", {"power": 1.0}, "power"),
        ("advantage", {"seeds": 1}, "seeds"),
        ("advantage", {"confidence": 1.0}, "confidence"),
        (power.table, {"replays": 0}, "replays"),
        (power.table, {"seeds": 3}, "seeds"),
        (power.table, {"confidence": 1.0}, "confidence"),
        (coverage, {"method": "advantage", "pair": "unknown"}, "pair"),
    ],
)
def test_bad_input_is_refused(call, change, message):
    if isinstance(call, str):
        call, change = power.detectable, SIZES | {"method": call, "claim": 0.1} | change
    with pytest.raises(InputError, match=message):
        call(**change)
