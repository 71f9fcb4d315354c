import math

import numpy as np
import pytest
from shown import column, shown

from experiments.cache import Runner
from experiments.figures import steps_needed
from experiments.figures.steps_needed import Budget, Problem

CONFIG = steps_needed.Config(points=4)


@pytest.fixture(scope="module")
def results():
    return steps_needed.compute(CONFIG, Runner())


def test_divergences_of_order_two_need_the_known_steps(results):
    # κ, ε_dd, paper, unrelaxed, optimal, then the optimal one at its own noise and three steps.
    known = [
        [2, 0.1, 19, 4, 3, 5, 2, 2],
        [2, 0.01, 37, 10, 7, 9, 4, 3],
        [10, 0.1, 93, 17, 16, 23, 11, 6],
        [10, 0.01, 185, 41, 38, 45, 22, 12],
        [100, 0.1, 922, 162, 161, 230, 115, 58],
        [100, 0.01, 1843, 393, 390, 460, 230, 116],
    ]
    found = results["table: Rényi"]
    assert np.allclose(found[:, [0, 1, 2, 3, 4, 7, 8, 9]], known)
    # At order 2 Langevin's exp(-ηλK/q) is the paper's exp(-ηλK/2), from the same start.
    assert np.array_equal(found[:, 5], found[:, 2])


def test_steps_and_noise_by_hand(results):
    slopes = [(math.sqrt(math.log(1e5) + e) - math.sqrt(math.log(1e5))) ** 2 for e in (1.0, 0.1)]
    kappa, budget = 100.0, Budget(1.0, 0.1, 1e-5)
    noise = steps_needed.paper_noise(budget)
    assert math.isclose(noise, 4 / (slopes[0] * 1e6), rel_tol=1e-9)
    row = results["table: (ε, δ)"][4]
    assert row[2] == math.ceil(4 * kappa * math.log(slopes[0] / slopes[1]))
    # PNSGD: Z = 2/(λn), ε(q)/q = Z² c^(2K) / (2ησ²).
    rate = 0.5 / kappa
    start = (2 / 1000) ** 2 / (2 * rate * noise)
    assert row[6] == math.ceil(math.log(start / slopes[1]) / (-2 * math.log1p(-rate)))
    # The noise of the optimal bound is attained, by exact Gaussian DP: less than its Rényi form.
    own = steps_needed.plan("optimal", Problem(kappa), budget).noise_variance
    assert own < noise * (2 - rate) / 4
    # The unrelaxed σ² = 2qL²/(c₁ ε_dp n²), c₁ = λ(1 - ηλ/2), over the paper's 4qL²/(λ ε_dp n²).
    unrelaxed = 1 / (2 - 0.5 / results["κ"])
    np.testing.assert_allclose(results["noise over κ: unrelaxed"], unrelaxed, rtol=1e-6)
    assert (results["noise over κ: optimal"] < unrelaxed * 0.99).all()


def test_step_sizes_beyond_an_accountant_are_left_out(results):
    budget = Budget(1.0, 0.1, order=2.0)
    assert math.isnan(steps_needed.steps("paper", Problem(10, 1.0), budget))
    assert math.isnan(steps_needed.steps("Langevin", Problem(10, 1.1), budget))
    assert steps_needed.steps("optimal", Problem(10, 20 / 11), budget) >= 1
    assert np.isnan(results["steps over ηM: paper"][-1])
    assert np.isfinite(results["steps over ηM: optimal"]).all()


def test_tables_say_who_needs_fewer_steps_than_the_optimal_bound(results):
    fewer = results | {"steps over κ: PNSGD": results["steps over κ: PNSGD"] / 1e4}
    for arrays, pnsgd in ((results, False), (fewer, True)):
        *_, compared = shown(steps_needed, CONFIG, arrays)
        expected = [False, False, None, False, pnsgd, None]
        assert column(compared, "somewhere fewer steps than optimal") == expected
