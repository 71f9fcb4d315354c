"""Products that stay in range; and a positive bound never rounds to 0, whatever the arguments."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dd_jax.guarantees import adaptive, convex, floats, inference, nonconvex, renyi, risk
from dd_jax.guarantees.convex import Descent

LEAST = np.finfo(np.float64).smallest_subnormal
ANY = st.floats(-300, 300).map(lambda power: 10.0**power)
SMALL = st.floats(-300, 0).map(lambda power: 10.0**power)
STEPS = st.integers(1, 10**18)
CONVEX = (
    convex.privacy_convex,
    convex.privacy_paper,
    convex.privacy_unrelaxed,
    convex.privacy_optimal,
    convex.deletion_paper,
    convex.deletion_unrelaxed,
    convex.deletion_optimal,
)


def test_product_neither_overflows_nor_vanishes_on_the_way():
    assert floats.product(1e-200, 1e-200, 1e300, 1e300) == pytest.approx(1e200)
    assert floats.product(1e200, 1e200, 1e-300, 1e-300) == pytest.approx(1e-200)
    assert floats.product(1e200, 1e200) == np.inf
    assert floats.product(np.inf, 0.0) == np.inf  # the sound side, and no NaN
    assert floats.product(0.0, 1e-200, 1e-200) == 0
    np.testing.assert_array_equal(
        floats.product([1e-200, 2.0], [[1e-200], [3.0]]), [[LEAST, 2e-200], [3e-200, 6.0]]
    )
    factors = 10 ** np.random.default_rng(0).uniform(-50, 50, (6, 1000))
    np.testing.assert_array_equal(floats.product(*factors), np.multiply.reduce(factors))


def test_plain_turns_only_scalars_into_floats():
    assert type(floats.plain(np.asarray(2.0))) is float
    assert floats.plain(np.ones(1)).shape == (1,)


@settings(max_examples=200)
@given(
    order=st.floats(-12, 300).map(lambda power: 10.0**power),
    size=ANY,
    l2=SMALL,
    noise=ANY,
    share=SMALL,
    n=STEPS,
    steps=STEPS,
)
def test_finitely_many_steps_leave_something(order, size, l2, noise, share, n, steps):
    step_size = 0.999 * share / l2
    assume(np.isfinite(step_size) and step_size * l2 < 1)
    run = Descent(1 + order, size, l2, 0, noise, n, step_size)
    for bound in CONVEX:
        assert bound(run, steps) > 0
    assert convex.deletion_optimal(run, steps, present=1) > 0


def test_what_is_really_nothing_stays_nothing():
    assert convex.privacy_optimal(Descent(2, 0, 1, 0, 1, 10, 0.1), 5) == 0  # L = 0
    longest = Descent(2, 1, 1, 0, 4e-4, 100, 1.0)
    assert convex.deletion_optimal(longest, 1) == 0  # c = 0: one step forgets


@pytest.mark.parametrize("steps", [400, 2000, 10**6, 10**300])
def test_many_steps_leave_the_least_float(steps):
    golden = Descent(2, 1, 1, 0, 4e-4, 100, 0.5)
    for bound in (convex.deletion_paper, convex.deletion_unrelaxed, convex.deletion_optimal):
        assert 0 < bound(golden, steps) < 1e-40
    remaining = adaptive.deletion_adaptive_intervals(golden, 5, steps, 2, [], first_inserted=1)
    assert remaining > 0


@settings(max_examples=150)
@given(eps=st.one_of(st.just(LEAST), ANY), order=ANY)
def test_advantages_of_a_positive_divergence_are_positive(eps, order):
    order = np.nextafter(1 + order, np.inf)
    assert inference.advantage_soundness(order, eps) > 0
    assert inference.advantage_soundness_paper(order, eps) > 0
    assert inference.advantage_neighbours(eps) > 0
    assert inference.advantage_neighbours_linear(order, eps) > 0
    assert inference.advantage_gdp(eps) > 0
    assert renyi.gdp_from_linear_renyi(order, eps) > 0
    assert renyi.gdp_delta(eps, 1e300) > 0


@settings(max_examples=100)
@given(ratio=SMALL, noise=ANY, steps=STEPS, l2=st.floats(1e-3, 1e3))
def test_closeness_to_the_gibbs_law_and_risks_are_never_nothing(ratio, noise, steps, l2):
    bound = ratio * noise
    assume(0 < bound < np.inf)
    problem = nonconvex.Bounded(2, 1, l2, 1e-9, bound, 100, 1)
    for formula in (nonconvex.deletion_nonconvex_paper, nonconvex.deletion_nonconvex_tuned):
        assert formula(problem, noise, 1e-5 / l2, steps, steps) > 0
        assert formula(problem, noise, 1e-5 / l2, steps, steps, request=1) > 0
    run = Descent(2, 1e-200, l2, 0, noise, 100, 0.1 / l2)
    assert risk.excess_risk_convex(run, 1, steps, steps) > 0
    flat = nonconvex.Bounded(2, 1.0, l2, 0.0, bound, 100, 1)
    assert risk.excess_risk_nonconvex(flat, noise, 0.1 / l2, 0.1) > 0
    assert risk.minimiser_shift(1e-300, 1e300, 10) > 0
