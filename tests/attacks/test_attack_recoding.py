"""Errata E2 and E9: a requester that saw one release carries a deleted record past all deletion."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import soak
from scipy import stats

import dd_jax as dd
from dd_jax.attacks import find, recoding
from dd_jax.intervals import Estimate, advantage

PLAN = recoding.make_plan(20, 2.0, 1.0)
EVERYWHERE = [(-math.inf, math.inf)]
POSITIVE = [(0.0, math.inf)]


def transcript(*, deletes, observe=(0,)):
    records = jnp.zeros((6, 1)).at[0].set(1)
    problem = dd.Problem(dd.losses.linear(), 1.0)
    plan = recoding.make_plan(6, 2.0, 1.0)
    requester = recoding.requester(6, deletes=deletes)
    options = {"num_requests": 3, "observe": observe}
    curator = dd.noisy_gd.mechanism(problem, plan)
    return dd.interact(jax.random.key(1), curator, requester, records, **options)


def test_the_other_rows_take_the_sign_of_the_first_release_and_the_target_goes():
    curator, happened = transcript(deletes=True)
    sign = np.sign(happened.releases[0, 0])
    np.testing.assert_array_equal(curator.database[:, 0], [0] + [sign] * 5)
    np.testing.assert_array_equal(happened.edits.record[0], happened.edits.record[2])
    assert happened.rejected.sum() == 0


def test_a_target_that_stays_is_left_alone_and_nothing_seen_is_nothing_written():
    curator, happened = transcript(deletes=False)
    assert curator.database[0, 0] == 1
    assert 0 not in np.asarray(happened.edits.index)
    curator, _ = transcript(deletes=True, observe=())
    np.testing.assert_array_equal(curator.database, np.zeros((6, 1)))


@pytest.mark.parametrize(("present", "deleted"), [(0, 22), (0, 500), (22, 0), (500, 0)])
def test_the_law_is_a_law_and_mirrors_itself(present, deleted):
    law = recoding.law(PLAN, present, deleted)
    for side in (1, -1):
        assert law.probability(side, EVERYWHERE) == pytest.approx(1)
    assert law.probability(1, POSITIVE) == pytest.approx(1 - law.probability(-1, POSITIVE))


def test_the_limits_are_a_coin_and_a_coin_on_top_of_epsilon_dp():
    gone, stays = recoding.law(PLAN, 0, 500), recoding.law(PLAN, 500, 0)
    assert gone.advantage(POSITIVE) == pytest.approx(2 * stats.norm.cdf(0.5) - 1, abs=1e-4)
    assert recoding.exact_renyi(PLAN, 2.0, 0, 500) == pytest.approx(0.523, abs=1e-3)
    assert recoding.exact_renyi(PLAN, 2.0, 500, 0) == pytest.approx(1.523, abs=1e-3)
    # Coin and Gaussian together: P[+] = p Φ(1/2 + l) + (1-p) Φ(1/2 - l), l = log(p/(1-p)).
    p = stats.norm.cdf(0.5)
    lead = math.log(p / (1 - p))
    expected = p * stats.norm.cdf(0.5 + lead) + (1 - p) * stats.norm.cdf(0.5 - lead)
    assert stays.advantage(stays.staying_test()) == pytest.approx(2 * expected - 1, abs=1e-3)


def test_bounds_for_one_release_seen():
    limits = recoding.bounds(PLAN, 2.0)
    assert limits.plain["stays"] == pytest.approx((1, 2 * stats.norm.cdf(0.5) - 1))
    assert limits.plain["is deleted"][0] <= 0.01
    eps = 1 + limits.plain["is deleted"][0]
    assert limits.certified["is deleted"] == pytest.approx(
        (eps, 2 * stats.norm.cdf(math.sqrt(eps) / 2) - 1)
    )
    assert limits.certified["stays"] == pytest.approx((2, 2 * stats.norm.cdf(math.sqrt(0.5)) - 1))


def test_half_the_noise_would_break_the_certificate():
    half = replace(PLAN, noise_variance=PLAN.noise_variance / 2, init_variance=0.0)
    certified = recoding.bounds(PLAN, 2.0).certified
    assert recoding.law(half, 0, 500).advantage(POSITIVE) > certified["is deleted"][1] + 0.1


def test_the_largest_epsilon_still_has_a_law():
    plan = recoding.make_plan(20, 1.01, recoding.LARGEST_EPSILON)
    law = recoding.law(plan, 100, 0)
    assert law.coin() < 1
    assert 0.99 < law.advantage(law.staying_test()) <= 1 + 1e-6


def found(target, low, renyi_low):
    return recoding.Measured(
        target, 22, Estimate(low, low, low + 0.1, 100, 0.9), low, renyi_low, 0.5
    )


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize(("low", "renyi_low"), [(0.9, 0.0), (0.0, 3.0)])
def test_any_release_beyond_its_certificate_counts_against_us(place, low, renyi_low):
    limits = recoding.bounds(PLAN, 2.0)
    targets = ["is deleted", "is deleted", "stays"]
    quiet = [found(target, 0.0, 0.0) for target in targets]
    assert not recoding._findings(quiet, limits)[2].refuted
    quiet[place] = found(targets[place], low, renyi_low)
    finding = recoding._findings(quiet, limits)[2]
    assert finding.refuted
    assert finding.claim.owner == "ours"


@pytest.mark.slow
def test_measured_exact_and_certified():
    seeds = soak(3_000, 20_000)
    result = find("recoding").run(jax.random.key(0), seeds=seeds, releases=4)
    assert [finding.refuted for finding in result.findings] == [True, True, False, False]
    assert [finding.claim.owner for finding in result.findings[2:]] == ["ours", "ours"]
    assert result.findings[0].claim.owner == "paper"
    *gone, stays = result.rows
    assert [r["steps after"] for r in gone] == [22, 44, 88]
    # Four intervals at once; the two arms are about mirror images.
    hits = round(seeds * (1 + gone[-1]["success"]) / 2)
    alike = advantage(hits, seeds - hits, seeds, 1 - 0.001 / 4)
    assert gone[-1]["high"] - gone[-1]["low"] == pytest.approx(alike.high - alike.low, rel=0.01)
    for r in gone:
        # However many steps: above what ε_dd allows, inside what ε_dd + ε_dp certifies.
        assert r["p0_bound"] < 0.05 < r["low"] < r["exact"] < r["certified"]
        assert r["renyi_low"] < r["renyi"] < result.theory["eps_dd_certified"]
        assert r["renyi_low"] > 0.3
    assert stays["p0_bound"] < stays["low"] < stays["exact"] < stays["certified"]
    assert result.theory["eps_dp"] < stays["renyi"] < result.theory["eps_dp_certified"]
    assert result.theory["renyi_deleted"] == pytest.approx(0.523, abs=1e-3)
    assert result.theory["renyi_stays"] == pytest.approx(1.523, abs=1e-3)
