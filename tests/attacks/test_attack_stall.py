"""float32 summed in the wrong order never forgets; the library's step keeps the exact law."""

import jax
import numpy as np
import pytest
from problems import soak

from dd_jax.attacks import find, stall
from dd_jax.erm import Problem
from dd_jax.intervals import Estimate
from dd_jax.losses import huber
from dd_jax.oracles import linear
from dd_jax.plans import plan_convex

PLAN = plan_convex(Problem(huber(), 1e-4), n=100_000, dim=1, order=2.0, eps_dp=1.0, eps_dd=1e-4)


def test_the_exact_laws():
    learned, deleted = stall.laws(PLAN)
    assert learned.deviation == pytest.approx(0.2, rel=1e-3)
    assert learned.means[1] - learned.means[0] == pytest.approx(0.2, rel=1e-3)
    # With every slope saturated Huber's loss is linear: its oracle says the same.
    numbers = (1.0, PLAN.problem.l2, PLAN.noise_variance, PLAN.n, PLAN.step_size)
    gone = {"delete_steps": PLAN.delete_steps, "init_variance": PLAN.init_variance}
    exact = linear.renyi(2, *numbers, PLAN.learn_steps, **gone)
    shift = (deleted.means[1] - deleted.means[0]) / deleted.deviation
    assert shift**2 == pytest.approx(exact, rel=1e-6)
    assert deleted.advantage < 0.004


def test_limits_of_a_deviation_cover_it():
    draws = np.random.default_rng(0).normal(size=(2_000, 51))
    limits = [stall.deviation_limits(np.std(row, ddof=1), 50, 0.9) for row in draws]
    covered = np.mean([low <= 1 <= high for low, high in limits])
    assert 0.87 < covered < 0.93


@pytest.mark.slow
def test_the_order_of_summation_decides():
    # Without the backend's optimiser, as the suite runs, time grows with the seeds; the deviation
    # shows the stall with few of them, the advantage takes thousands.
    seeds = soak(100, 4_000)
    result = find("stall").run(jax.random.key(0), seeds=seeds)
    assert [finding.refuted for finding in result.findings] == [True, False]
    # The wrong order makes a random walk of K_U steps, from the learned law.
    walk = 2 * PLAN.step_size * PLAN.noise_variance * PLAN.delete_steps
    expected = np.sqrt(stall.laws(PLAN)[0].deviation ** 2 + walk)
    spread = 4 * expected / np.sqrt(4 * seeds)
    assert result.rows[0]["deviation"] == pytest.approx(expected, abs=spread)
    if seeds >= 4_000:
        assert result.estimate.low > 0.03 > result.bound


@pytest.mark.parametrize(
    ("low", "deviation", "broken"),
    [(0.0, 0.2, False), (0.01, 0.2, True), (0.0, 0.3, True), (0.0, 0.1, True)],
)
def test_more_advantage_or_another_deviation_breaks_the_law(low, deviation, broken):
    estimate = Estimate(low, low, low + 0.1, 100, 0.9)
    found = stall.Measured("", estimate, deviation, deviation - 0.01, deviation + 0.01)
    assert stall._broken(found, stall.Law((0.0, 0.0), 0.2), claimed=0.004) == broken
