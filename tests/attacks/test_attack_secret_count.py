"""`thm:unlrn_vs_forget`: the construction as stated stays bounded, the repaired one reveals all."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import soak
from scipy import integrate, stats

import dd_jax as dd
from dd_jax.attacks import find, secret_count
from dd_jax.attacks.base import row
from dd_jax.attacks.secret_count import AS_STATED, REPAIRED
from dd_jax.intervals import advantage


@pytest.mark.parametrize("shift", [0.0, 0.01, 1.0, 2_000.0])
def test_one_release_in_closed_form(shift):
    assert secret_count.optimal_advantage([shift]) == pytest.approx(
        1 - np.exp(-shift / 2), abs=1e-5
    )


def test_two_releases_by_quadrature():
    def gap(x, y, a=1.0, b=0.4):
        p = stats.laplace.pdf(x) * stats.laplace.pdf(y)
        q = stats.laplace.pdf(x - a) * stats.laplace.pdf(y - b)
        return abs(p - q) / 2

    grid = np.linspace(-14, 15, 2901)
    values = gap(grid[:, None], grid[None, :])
    expected = integrate.simpson(integrate.simpson(values, x=grid), x=grid)
    assert secret_count.optimal_advantage([1.0, 0.4]) == pytest.approx(expected, abs=2e-5)


def test_many_equal_releases_approach_the_normal_limit():
    # Λ of m releases of shift u is nearly normal with mean -m·KL and variance 2m·KL.
    shift, many = 0.02, 10_000
    divergence = many * (np.exp(-shift) - 1 + shift)
    expected = 2 * stats.norm.cdf(np.sqrt(divergence / 2)) - 1
    got = secret_count.optimal_advantage(np.full(many, shift))
    assert got == pytest.approx(expected, abs=3e-3)


def test_as_stated_the_best_test_is_bounded_for_any_number_of_releases():
    values = {
        m: secret_count.optimal_advantage(secret_count.known_shifts(AS_STATED, 1, m))
        for m in (1, 300, 3_000, 10_000)
    }
    assert 0.43 <= values[3_000] <= 0.50
    assert values[3_000] < values[10_000] < values[3_000] + 2e-4
    limit = values[3_000] + secret_count.advantage_beyond(3_000, 1.0)
    assert values[10_000] < limit < 0.47
    # What lies beyond J adds at most Pinsker's √(Σ KL/2), nearly attained by the stated cap.
    beyond = 1 / np.arange(301, 1_000_000)
    pinsker = np.sqrt(np.sum(np.exp(-beyond) - 1 + beyond) / 2)
    assert pinsker <= secret_count.advantage_beyond(300, 1.0) < 1.01 * pinsker
    later = secret_count.optimal_advantage(secret_count.known_shifts(AS_STATED, 10, 3_000))
    assert later == pytest.approx(0.128, abs=1e-3)


def test_repaired_the_best_test_wins():
    def value(step, releases):
        return secret_count.optimal_advantage(secret_count.known_shifts(REPAIRED, step, releases))

    assert 0.97 <= value(1, 100) <= 0.99
    assert value(1, 1_000) > 0.9999
    assert value(4, 10_000) > 0.99


@pytest.mark.parametrize("variant", [AS_STATED, REPAIRED])
@pytest.mark.parametrize("step", [1, 3])
def test_the_deleted_record_moves_releases_by_the_known_shifts(variant, step):
    requests = 40 + step - 1
    stream, records = secret_count.requester(10, step, requests), secret_count.database(10)
    worlds = jnp.stack([records, records.at[0].set(0)])
    centres, counts = secret_count.replay(variant, worlds, stream, requests)
    shifts = secret_count.known_shifts(variant, step, 40)
    np.testing.assert_allclose((centres[0] - centres[1])[step:], shifts, atol=2e-6)
    # After the deletion the databases are the same, and so is what retraining would release.
    np.testing.assert_array_equal(counts[0, step:], counts[1, step:])
    assert np.all((centres - counts >= -1e-6) & (centres - counts <= 1 + 1e-6))


def test_the_count_follows_the_database():
    stream, records = secret_count.requester(10, 2, 15), secret_count.database(10)
    curator, _ = dd.interact(
        jax.random.key(0),
        secret_count.mechanism(AS_STATED, 1.0),
        stream,
        records,
        num_requests=15,
    )
    assert curator.params.count == jnp.sum(curator.database)
    assert curator.database[0] == 0


@pytest.mark.slow
def test_as_stated_measured_after_3000_releases_and_no_growth_after():
    settings = secret_count.CountSettings(seeds=soak(256, 2_048), releases=3_500)
    measured = secret_count.measure(jax.random.key(1), AS_STATED, settings, 0.999)
    table = {row["releases"]: row["success"] for row in measured.rows}
    assert abs(table[3_500] - table[3_000]) < 0.02
    assert all(row["low"] <= row["exact"] <= row["high"] for row in measured.rows)
    assert measured.ratio_to_retraining <= 1 + 1e-6
    assert 0.99 < measured.ratio_sampled <= 1 + 1e-4


def test_both_variants_from_one_run():
    result = find("secret-count").run(jax.random.key(0), releases=100, seeds=2_048)
    rows = {(row["variant"], row["releases"]): row for row in result.rows}
    assert rows[REPAIRED, 100]["success"] >= 0.97
    assert rows[AS_STATED, 100]["success"] < 0.52
    assert rows[REPAIRED, 1]["success"] < rows[REPAIRED, 10]["success"]
    assert all(row["low"] <= row["exact"] <= row["high"] for row in result.rows)
    widest = max(result.rows, key=lambda row: row["high"] - row["low"])
    # Ten advantages at once, near one half in each arm: as wide as a tenth of the risk makes them.
    half = advantage(1_024 + 400, 1_024 - 400, 2_048, 1 - 0.001 / 10)
    assert widest["high"] - widest["low"] == pytest.approx(half.high - half.low, rel=0.1)
    assert [finding.refuted for finding in result.findings] == [True, True, False, False]
    assert result.theory["log_ratio_of_one_release"] <= 1 + 1e-6
    assert result.bound == pytest.approx(np.tanh(1.0))


@pytest.mark.parametrize("epsilon", [0.001, 1_000.0])
@pytest.mark.parametrize("variant", [AS_STATED, REPAIRED])
@pytest.mark.parametrize("kind", ["ratio_to_retraining", "ratio_sampled"])
def test_a_log_ratio_above_epsilon_counts_against_us(epsilon, variant, kind):
    estimate = advantage(50, 50, 100, 0.9)
    ratios = {"ratio_to_retraining": epsilon, "ratio_sampled": epsilon}
    quiet = {
        name: secret_count.Measured([row({}, estimate, 0.0)], estimate, **ratios)
        for name in (AS_STATED, REPAIRED)
    }

    def refuted(measured):
        found = secret_count._findings(measured[AS_STATED], measured[REPAIRED], epsilon, 0.5, 0.7)
        assert found[2].claim.owner == "ours"
        return found[2].refuted

    assert not refuted(quiet)
    assert refuted({**quiet, variant: quiet[variant]._replace(**{kind: 1.5 * epsilon})})


@pytest.mark.parametrize(("variant", "epsilon", "step"), [(AS_STATED, 4.0, 5), (REPAIRED, 0.3, 2)])
def test_one_release_stays_within_epsilon_at_other_settings(variant, epsilon, step):
    settings = secret_count.CountSettings(seeds=512, releases=30, epsilon=epsilon, step=step)
    measured = secret_count.measure(jax.random.key(2), variant, settings, 0.999)
    assert measured.ratio_to_retraining <= epsilon * (1 + 1e-6)
    assert measured.ratio_sampled <= epsilon * (1 + 1e-4)
    assert all(row["low"] <= row["exact"] <= row["high"] for row in measured.rows)
