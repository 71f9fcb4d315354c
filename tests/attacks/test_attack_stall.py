"""float32 summed in the wrong order never forgets; the library's step keeps the exact law."""

import jax
import numpy as np
import pytest

from dd_jax.attacks import find, stall
from dd_jax.erm import Problem
from dd_jax.errors import InputError
from dd_jax.losses import huber
from dd_jax.oracles import linear
from dd_jax.plans import plan_convex

PROBLEM = Problem(huber(), 1e-4)
PLAN = plan_convex(PROBLEM, n=100_000, dim=1, order=2.0, eps_dp=1.0, eps_dd=1e-4)


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


@pytest.mark.parametrize(("order", "broken"), [(stall.DRIFT_FIRST, True), (stall.LIBRARY, False)])
def test_the_order_of_summation_decides(order, broken):
    found = stall.measure(jax.random.key(1), PLAN, PROBLEM, order, 200, 0.999)
    _, exact = stall.laws(PLAN)
    assert stall._broken(found, exact, exact.advantage) == broken
    if broken:  # a random walk of K_U steps from the learned law
        walk = 2 * PLAN.step_size * PLAN.noise_variance * PLAN.delete_steps
        expected = np.sqrt(stall.laws(PLAN)[0].deviation ** 2 + walk)
        assert found.deviation_low < expected < found.deviation_high


def test_limits_of_a_deviation_cover_it():
    draws = np.random.default_rng(0).normal(size=(2_000, 51))
    limits = [stall.deviation_limits(np.std(row, ddof=1), 50, 0.9) for row in draws]
    covered = np.mean([low <= 1 <= high for low, high in limits])
    assert 0.87 < covered < 0.93


@pytest.mark.parametrize(
    ("parameters", "word"), [({"seeds": 10}, "seeds = 10"), ({"l2": 1e-7}, "steps per request")]
)
def test_refusals(parameters, word):
    with pytest.raises(InputError, match=word):
        find("stall").run(jax.random.key(0), **parameters)


@pytest.mark.slow
def test_the_whole_attack():
    result = find("stall").run(jax.random.key(0))
    assert [finding.refuted for finding in result.findings] == [True, False]
    assert result.estimate.low > 0.03 > result.bound
