import functools
import math

import jax
import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import deleting, signed, soak

import dd_jax as dd
from dd_jax.baselines import langevin
from dd_jax.baselines.base import stored_bytes
from dd_jax.guarantees import renyi
from dd_jax.guarantees.convex import Descent

PROBLEM = dd.Problem(dd.losses.logistic(), l2=0.012)
TARGET = {"n": 11982, "epsilon": 1.0, "delta": 1 / 11982, "learn_steps": 1000}


def claimed(order, steps, *, l2, eta, sigma2, n, r):
    """The published recursion as it reads, at any precision (mpmath numbers allowed)."""
    start = 4 * order * r**2 / (l2 * sigma2 * n**2)
    decay = mpmath.exp(-eta * l2 * steps[-1] / order)
    if len(steps) == 1:
        return decay * start
    doubled = {"l2": l2, "eta": eta, "sigma2": sigma2, "n": n, "r": r}
    earlier = 2 * start + claimed(2 * order, steps[:-1], **doubled)
    return decay * (order - mpmath.mpf(1) / 2) / (order - 1) * earlier


def epsilon_of(steps, delta, **constants):
    """min over orders of the claim plus log(1/δ)/(q-1), by a search of its own: golden section."""

    def value(log_excess):
        order = 1 + mpmath.exp(log_excess)
        return claimed(order, steps, **constants) + mpmath.log(1 / delta) / (order - 1)

    grid = [mpmath.mpf(j) / 4 for j in range(0, 60)]
    best = min(grid, key=value)
    low, high = best - mpmath.mpf(1) / 4, best + mpmath.mpf(1) / 4
    golden = (mpmath.sqrt(5) - 1) / 2
    for _ in range(40):
        left, right = high - golden * (high - low), low + golden * (high - low)
        if value(left) < value(right):
            high = right
        else:
            low = left
    return value((low + high) / 2)


@pytest.mark.parametrize(("records", "requests"), soak([(20, 4)], [(1, 3), (20, 4), (5, 6)]))
def test_steps_are_the_least_by_an_independent_computation(records, requests):
    """No K_s is one too many or one too few."""
    made = langevin.calibrate(
        PROBLEM, noise_variance=9e-4, requests=requests, edits_per_request=records, **TARGET
    )
    constants = {"l2": 0.012, "eta": 1 / 0.262, "sigma2": 9e-4, "n": 11982, "r": records}
    for s in range(1, requests + 1):
        steps = list(made.request_steps[:s])
        assert epsilon_of(steps, TARGET["delta"], **constants) <= 1 + 1e-12
        if steps[-1] > 1:
            steps[-1] -= 1
            assert epsilon_of(steps, TARGET["delta"], **constants) > 1


def test_noise_that_float32_cannot_hold_is_refused():
    """The stationary deviation √(σ²/(λ(1 - ηλ/2))) against √(2 log 2/λ), what a model can have."""
    reach, shrink = math.sqrt(2 * math.log(2) / 0.012), 1 - 0.012 / 0.262 / 2
    least = (100 * 2.0**-23 * reach) ** 2 * 0.012 * shrink
    for factor in (0.99, 1.01):
        made = langevin.calibrate(
            PROBLEM, noise_variance=factor * least, accountant="optimal", **TARGET
        )
        if factor > 1:
            langevin.system(PROBLEM, made)
            continue
        with pytest.raises(dd.CertificateRefused, match="noise_variance"):
            langevin.system(PROBLEM, made)


def test_the_claim_holds_at_the_order_that_is_reported():
    made = langevin.calibrate(
        PROBLEM, noise_variance=9e-4, requests=5, edits_per_request=20, **TARGET
    )
    constants = (1.0, 0.012, 0.25, 9e-4, 11982, made.step_size)
    for s, order in enumerate(made.orders, 1):
        run = Descent(order, *constants, records=20)
        eps = langevin.unlearning_renyi(run, made.request_steps[:s])
        assert renyi.epsilon_simple(order, eps, TARGET["delta"]) <= 1 + 1e-9
    reported = langevin.guarantee(made)
    assert (reported.order, reported.epsilon, reported.delta) == (made.orders[-1], 1.0, 1 / 11982)
    # The divergence alone, without its order's share of δ, would have passed with fewer steps.
    assert eps < 0.5


def test_a_hundred_requests_cost_far_more_than_a_hundred_times_one():
    """The order doubles with every request; the deletion certificate's steps stay as they are."""
    requests = {"requests": 100, "noise_variance": 9e-4, **TARGET}
    published = langevin.calibrate(PROBLEM, **requests)
    ours = langevin.calibrate(PROBLEM, accountant="optimal", **requests)
    assert published.request_steps[0] == 1
    assert published.request_steps[-1] > 8000
    assert set(ours.request_steps) == {1}
    # ε_s(q) ≈ 2^s e^{-2ηλK_s/q}: request s - j decays at order 2^j q, and Σ 2^{-j} = 2.
    growth = np.diff(published.request_steps[50:])
    expected = published.orders[-1] * math.log(2) / (2 * published.step_size * 0.012)
    np.testing.assert_allclose(growth, expected, rtol=0.03)


def test_optimal_steps_are_the_least_for_exact_gaussian_dp():
    made = langevin.calibrate(
        PROBLEM,
        noise_variance=1e-4,
        requests=7,
        edits_per_request=3,
        accountant="optimal",
        **TARGET,
    )
    c = 1 - made.step_size * 0.012

    def delta_left(steps):
        mu = math.sqrt(2 * 9 * (1 + c) / (0.012 * 1e-4 * 11982**2)) * c**steps
        return renyi.gdp_delta(mu, 1.0)

    assert made.init_variance == pytest.approx(2 * 1e-4 / 0.012, rel=1e-12)
    steps = made.request_steps[0]
    assert set(made.request_steps) == {steps}
    assert steps > 1
    assert delta_left(steps) <= 1 / 11982 < delta_left(steps - 1)


@given(
    l2=st.floats(0.05, 2.0),
    share=st.floats(0.05, 1.0),
    order=st.floats(1.01, 50.0),
    steps=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    records=st.integers(1, 3),
)
def test_the_claim_is_never_below_the_exact_divergence(l2, share, order, steps, records):
    """Linear loss from the stationary law: the mean's distance from retraining, over requests."""
    eta, sigma2, n = share / l2, 0.1, 10
    c = 1 - eta * l2
    distance = 0.0
    for count in steps:
        distance = (distance + 2 * records / (n * l2)) * c**count
    exact = order * distance**2 / (2 * (2 * eta * sigma2 / (1 - c**2)))
    run = Descent(order, 1.0, l2, 0.0, sigma2, n, eta, records)
    bound = langevin.unlearning_renyi(run, steps)
    assert bound >= exact


def test_what_cannot_be_calibrated_is_refused():
    good = {"noise_variance": 1e-3, **TARGET}
    for change, message in (
        ({"accountant": "ours"}, "accountant"),
        ({"step_size": 4.0}, "step_size"),
        ({"noise_variance": 0.0}, "noise_variance"),
        ({"delta": 1.0}, "delta"),
        ({"requests": 0}, "requests"),
        ({"requests": 1000}, "requests"),
    ):
        with pytest.raises(dd.InputError, match=message):
            langevin.calibrate(PROBLEM, **{**good, **change})
    with pytest.raises(dd.CertificateRefused, match="convex"):
        langevin.calibrate(dd.Problem(dd.losses.tanh_margin(), l2=0.1), **good)
    with pytest.raises(dd.InputError, match="order"):
        langevin.unlearning_renyi(Descent(1.0, 1.0, 0.1, 0.0, 1.0, 10, 0.5), [3])
    with pytest.raises(dd.InputError, match="steps"):
        langevin.unlearning_renyi(Descent(2.0, 1.0, 0.1, 0.0, 1.0, 10, 0.5), [])


# --- runs ----------------------------------------------------------------------------------------

SMALL = dd.Problem(dd.losses.logistic(), l2=0.2)
DATABASE = signed(12, 2, seed=3)


@functools.cache
def small(accountant="published", requests=3):
    return langevin.calibrate(
        SMALL,
        n=12,
        epsilon=1.0,
        delta=1e-2,
        noise_variance=0.3,
        learn_steps=5,
        requests=requests,
        accountant=accountant,
    )


def test_every_request_takes_its_own_number_of_steps():
    made, system = small(), langevin.system(SMALL, small())
    assert len(set(made.request_steps)) > 1
    state, cost = system.learn(jax.random.key(0), DATABASE)
    counts = [int(cost.gradients)]
    delete = jax.jit(deleting(system))
    for row in range(4):  # beyond the claim the last count is kept
        edit = dd.deletion(SMALL.loss, DATABASE, [row])
        state, cost = delete(jax.random.key(1 + row), DATABASE, edit, state)
        counts.append(int(cost.gradients))
    assert counts == [12 * k for k in (5, *made.request_steps, made.request_steps[-1])]
    assert stored_bytes(system, state) == 4
    assert int(state.served) == 4
    with pytest.raises(dd.InputError, match="edits_per_request"):
        delete(jax.random.key(9), DATABASE, dd.deletion(SMALL.loss, DATABASE, [1, 2]), state)


def test_equal_steps_need_no_counter_and_are_noisy_gd():
    made = small("optimal")
    system = langevin.system(SMALL, made)
    state, _ = system.learn(jax.random.key(1), DATABASE)
    assert stored_bytes(system, state) == 0
    edit = dd.deletion(SMALL.loss, DATABASE, [4])
    after, cost = deleting(system)(jax.random.key(2), DATABASE, edit, state)
    same = deleting(dd.noisy_gd.mechanism(SMALL, made))(
        jax.random.key(2), DATABASE, edit, state.model
    )
    np.testing.assert_allclose(after.model, same, rtol=1e-6)
    assert int(cost.gradients) == 12 * made.delete_steps


def test_what_was_not_calibrated_for_is_not_run():
    system = langevin.system(SMALL, small())
    with pytest.raises(dd.InputError, match="n = 12"):
        system.learn(jax.random.key(0), signed(13, 2))
    with pytest.raises(dd.InputError, match="plan"):
        langevin.system(dd.Problem(SMALL.loss, l2=0.3), small())
