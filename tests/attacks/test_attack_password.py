"""Erratum E2: the reduction theorem as stated is false."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import deleting

from dd_jax.attacks import find, password
from dd_jax.attacks.base import row
from dd_jax.guarantees.inference import advantage_soundness
from dd_jax.intervals import Estimate, clopper_pearson
from dd_jax.types import replacement

DATABASE = jnp.array([3, 4, 5], jnp.int32)


def model(phase, value):
    return password.Model(jnp.int32(phase), jnp.int32(value))


def outputs(database, edit, state, coins=40):
    keys = jax.random.split(jax.random.key(5), coins)
    delete = deleting(password.mechanism(7))
    return jax.vmap(lambda key: delete(key, database, edit, state))(keys)


def test_learning_ignores_the_data_and_is_uniform():
    learn = jax.jit(jax.vmap(password.mechanism(7).learn, in_axes=(0, None)))
    drawn, other = (
        learn(jax.random.split(jax.random.key(0), 7_000), database)
        for database in (DATABASE, DATABASE + 1)
    )
    np.testing.assert_array_equal(drawn.value, other.value)
    counts = np.bincount(drawn.value, minlength=7)
    assert counts.size == 7
    assert np.all(np.abs(counts - 1_000) < 150)


@pytest.mark.parametrize("record", [3, 4, 5])
def test_the_first_request_arms_iff_it_carries_the_password(record):
    edit = replacement([1], jnp.array([record], jnp.int32))
    got = outputs(DATABASE, edit, model(password.LEARNED, 4))
    assert np.all(got.phase == password.READY)
    assert np.all(got.value == int(record == 4))


@pytest.mark.parametrize("row", [0, 1])
def test_an_armed_curator_releases_the_deleted_records_bit_and_any_other_a_coin(row):
    edit = replacement([row], jnp.zeros(1, jnp.int32))
    armed = outputs(DATABASE, edit, model(password.READY, 1))
    assert np.all(armed.value == int(DATABASE[row]) % 2)
    for state in ((password.READY, 0), (password.DONE, 0), (password.DONE, 1)):
        coins = outputs(DATABASE, edit, model(*state)).value
        np.testing.assert_array_equal(coins, outputs(DATABASE + 1, edit, model(*state)).value)
        assert 8 <= int(coins.sum()) <= 32


@pytest.mark.parametrize("passwords", [2, 1_000])
@pytest.mark.parametrize("order", [1.5, 8.0])
def test_nonadaptive_epsilon_is_the_divergence_of_two_coins(passwords, order):
    coin = np.array([1 + 1 / passwords, 1 - 1 / passwords]) / 2
    expected = np.log(np.sum(coin**order * 0.5 ** (1 - order))) / (order - 1)
    got = password.nonadaptive_epsilon(order, passwords)
    assert got == pytest.approx(expected, rel=1e-6, abs=1e-14)
    # The blind requester's exact advantage, 1/M, is inside what the non-adaptive ε allows.
    assert 1 / passwords <= advantage_soundness(order, got)


@pytest.mark.parametrize("order", [1e3, 1e6, 1e300])
def test_nonadaptive_epsilon_at_huge_orders_is_the_largest_log_ratio(order):
    # R_∞ of the two coins; (1+a)^q itself overflows.
    assert password.nonadaptive_epsilon(order, 10) == pytest.approx(np.log(1.1), rel=0.01)


def test_a_blind_requester_beyond_the_bound_counts_against_us():
    seen = row({}, Estimate(1.0, 0.99, 1.0, 100, 0.9), 1.0)
    for low, refuted in ((0.21, True), (0.19, False)):
        blind = row({}, Estimate(0.3, low, 0.4, 100, 0.9), 1 / 4)
        finding = password._findings((seen, blind), 0.2)[1]
        assert finding.refuted == refuted
        assert finding.claim.owner == "ours"


def test_the_reduction_is_refuted_and_the_nonadaptive_claim_is_not():
    result = find("password").run(jax.random.key(0), seeds=3_000, passwords=50)
    seen, blind = result.rows
    assert seen["success"] == 1.0
    # Two advantages at once, each the difference of two proportions: a quarter of the risk each.
    low, _ = clopper_pearson(3_000, 3_000, 1 - 0.001 / 4)
    assert seen["low"] == pytest.approx(low - (1 - low))
    assert blind["low"] <= 1 / 50 <= blind["high"]
    assert blind["high"] < 0.15
    epsilon = result.theory["eps_dd_nonadaptive"]
    assert epsilon == pytest.approx(np.log1p(1 / 2_500))
    assert result.theory["eps_dp"] == 0.0
    assert result.theory["eps_dd_claimed"] == epsilon
    assert result.bound == pytest.approx(np.sqrt(2 * epsilon))
    assert result.estimate.low > 0.98 > result.bound
    assert result.theory["eps_dd_adaptive_at_least"] == pytest.approx(np.log(2))
    assert [finding.refuted for finding in result.findings] == [True, False, False]
    assert result.findings[0].claim.owner == "paper"
