"""Divergences and conversions against mpmath quadrature, dp_accounting and their own inverses."""

import mpmath
import numpy as np
import pytest
from dp_accounting import gaussian_mechanism, rdp
from hypothesis import given, settings
from hypothesis import strategies as st

from dd_jax.errors import CertificateRefused, InputError
from dd_jax.guarantees import renyi


def quadrature_renyi(order, first, second):
    """R_q between two normals by integrating their densities."""
    with mpmath.workdps(40):
        (m0, v0), (m1, v1) = ((mpmath.mpf(m), mpmath.mpf(v)) for m, v in (first, second))
        order = mpmath.mpf(order)

        def power(x):
            exponent = -order * (x - m0) ** 2 / (2 * v0) - (1 - order) * (x - m1) ** 2 / (2 * v1)
            return mpmath.exp(exponent)

        mixed = (1 - order) * v0 + order * v1
        centre = (order * m0 * v1 + (1 - order) * m1 * v0) / mixed
        width = mpmath.sqrt(v0 * v1 / mixed)
        points = [centre + k * width for k in range(-14, 15, 2)]
        scale = (2 * mpmath.pi * v0) ** (-order / 2) * (2 * mpmath.pi * v1) ** ((order - 1) / 2)
        return float(mpmath.log(scale * mpmath.quad(power, points)) / (order - 1))


@pytest.mark.parametrize(
    ("order", "first", "second"),
    [
        (2, (0, 1), (1, 1)),
        (1.5, (0.3, 0.5), (-0.2, 0.8)),
        (5, (0, 1), (0.1, 1.3)),
        (2, (0, 1.9), (0.4, 1)),
        (30, (0, 1), (0, 1.001)),
        (1.01, (2, 3), (0, 0.1)),
    ],
)
def test_normal_divergence_is_its_integral(order, first, second):
    exact = quadrature_renyi(order, first, second)
    as_matrix = renyi.renyi_gaussian(order, [first[0]], [[first[1]]], [second[0]], [[second[1]]])
    assert as_matrix == pytest.approx(exact, rel=1e-10)


def test_multivariate_divergence_is_the_formula_with_determinants():
    rng = np.random.default_rng(0)
    for _ in range(50):
        root, other = rng.normal(size=(2, 4, 4))
        first, second = root @ root.T + np.eye(4), root @ root.T + np.eye(4) + 0.3 * other @ other.T
        shift, order = rng.normal(size=4), 1 + rng.exponential(3)
        mixed = (1 - order) * first + order * second
        logdet = [np.linalg.slogdet(m)[1] for m in (mixed, first, second)]
        expected = order / 2 * shift @ np.linalg.solve(mixed, shift)
        expected -= (logdet[0] - (1 - order) * logdet[1] - order * logdet[2]) / (2 * (order - 1))
        got = renyi.renyi_gaussian(order, shift, first, np.zeros(4), second)
        assert got == pytest.approx(expected, rel=1e-9)


def test_divergence_is_infinite_where_the_mixed_covariance_is_not_positive():
    # v_q = (1-q)·2 + q·1 vanishes at q = 2
    orders = np.array([1.9, 2.0, 2.1])
    value = renyi.renyi_gaussian(orders, np.zeros(2), np.diag([1.0, 2]), np.zeros(2), np.eye(2))
    assert np.isfinite(value).tolist() == [True, False, False]


def test_equal_covariances_and_batches():
    batch = renyi.renyi_gaussian(
        [2.0, 3.0], np.zeros((2, 3)), 2 * np.eye(3), np.ones((2, 3)), 2 * np.eye(3)
    )
    np.testing.assert_allclose(batch, [2 * 3 / 4, 3 * 3 / 4])
    assert renyi.renyi_gaussian(2, [0], [[1]], [0], [[1]]) == 0
    assert renyi.renyi_gaussian(1e6, [0], [[1]], [0], [[1 + 1e-9]]) >= 0


def test_bounded_perturbation():
    assert renyi.renyi_bounded_perturbation(0.3, 0.5) == pytest.approx(1.2)
    # Nearly attained: ℒ' = 0 and ℒ = -c on a rare event, c elsewhere; at a high order R_q → 2c.
    c, rare, order = 1.0, 1e-3, 500.0
    log_ratio = np.array([c, -c]) - np.log(rare * np.exp(c) + (1 - rare) * np.exp(-c))
    exact = np.logaddexp(*(np.log([rare, 1 - rare]) + order * log_ratio)) / (order - 1)
    assert 0.99 * 2 * c < exact <= renyi.renyi_bounded_perturbation(c, 1.0)


def test_composition_and_triangle():
    assert renyi.compose_renyi(0.1, 0.2, [0.0, 1.0]).tolist() == pytest.approx([0.3, 1.3])
    assert renyi.weak_triangle(0.2, 0.5) == pytest.approx(0.7)
    assert renyi.at_lower_order(4, 0.3, 2) == 0.3
    with pytest.raises(CertificateRefused, match="order"):
        renyi.at_lower_order(2, 0.3, 4)


def test_triangle_and_monotonicity_hold_for_discrete_laws():
    rng = np.random.default_rng(1)
    for _ in range(200):
        p, m, q = rng.dirichlet(np.ones(4), 3) * 0.99 + 0.0025
        first = np.log(np.sum(p**3 / m**2)) / 2
        whole = np.log(np.sum(p**3 / q**2)) / 2
        lower = np.log(np.sum(p**2 / q))
        assert whole <= renyi.weak_triangle(first, np.log(np.max(m / q))) + 1e-12
        assert lower <= renyi.at_lower_order(3, whole, 2) + 1e-12


# --- (ε, δ) -------------------------------------------------------------------------------------


def test_golden_conversions_at_mu_one():
    assert renyi.gdp_epsilon(1, 1e-5) == pytest.approx(4.38, abs=5e-3)
    assert renyi.epsilon_tight_linear(0.5, 1e-5) == pytest.approx(4.73, abs=5e-3)
    assert renyi.epsilon_simple_linear(0.5, 1e-5) == pytest.approx(5.30, abs=5e-3)


@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.3])
def test_tight_conversion_is_dp_accountings(delta):
    for order in (1.02, 1.5, 2.0, 16.0, 1e4):
        for eps in (1e-4, 0.1, 40.0):
            theirs = rdp.compute_epsilon([order], [eps], delta)[0]
            mine = renyi.epsilon_tight(order, eps, delta)
            if theirs > 0:
                assert mine == pytest.approx(theirs, rel=1e-10)
            assert theirs <= mine + 1e-12
            assert mine <= renyi.epsilon_simple(order, eps, delta)


def test_conversions_by_formula():
    assert renyi.epsilon_simple(5, 0.3, 1e-4) == pytest.approx(0.3 + np.log(1e4) / 4)
    assert renyi.epsilon_tight(5, 0.0, 0.5) == 0.0  # clamped


def test_linear_from_epsilon_delta_is_the_inverse():
    for epsilon in (1e-4, 0.1, 1.0, 30.0):
        for delta in (1e-12, 1e-5):
            slope = renyi.linear_from_epsilon_delta(epsilon, delta)
            assert renyi.epsilon_tight_linear(slope, delta) <= epsilon
            assert renyi.epsilon_tight_linear(slope * 1.0001, delta) > epsilon * (1 - 1e-9)


@settings(max_examples=60)
@given(log_slope=st.floats(-12, 3), log_delta=st.floats(-300, -1e-3))
def test_best_order_beats_every_order_on_a_grid(log_slope, log_delta):
    slope, delta = 10**log_slope, 10**log_delta
    best = renyi.epsilon_tight_linear(slope, delta)
    simple = renyi.epsilon_simple_linear(slope, delta)
    orders = 1 + np.logspace(-8, 12, 400)
    assert 0 <= best <= simple
    assert best <= renyi.epsilon_tight(orders, orders * slope, delta).min() * (1 + 1e-10)
    assert simple <= renyi.epsilon_simple(orders, orders * slope, delta).min() * (1 + 1e-10)
    order = renyi.best_order_linear(slope, delta)
    assert renyi.epsilon_tight(order, order * slope, delta) >= best * (1 - 1e-9)
    assert renyi.gdp_epsilon(np.sqrt(2 * slope), delta) <= best * (1 + 1e-9) + 1e-13


def quadrature_delta(mu, epsilon):
    """δ = ∫ (p - e^ε q)₊ between N(μ, 1) and N(0, 1), integrated in 50 digits."""
    with mpmath.workdps(50):
        mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
        start = epsilon / mu + mu / 2  # where p = e^ε q

        def excess(t):  # density ratio form, so that nothing cancels
            x = start + t
            return mpmath.npdf(x, mu) * -mpmath.expm1(-mu * t)

        reach = max(mu - start, 0)
        scale = 1 / max(1, start - mu)
        points = [0] + [reach + scale * mpmath.mpf(k) ** 2 / 4 for k in range(1, 26)]
        return float(mpmath.quad(excess, points))


@pytest.mark.parametrize(
    ("mu", "epsilon"),
    [
        (1.0, 0.0),
        (1.0, 20.0),
        (0.01, 0.05),
        (1e-4, 1e-9),
        (1e-6, 1e-6),
        (0.7, 12.0),
        (3.0, 2.0),
        (12.0, 100.0),
        (0.05, 1.0),
        (1e-3, 0.035),
        (100.0, 4900.0),
    ],
)
def test_gaussian_delta_is_its_integral(mu, epsilon):
    exact = quadrature_delta(mu, epsilon)
    assert renyi.gdp_delta(mu, epsilon) == pytest.approx(exact, rel=1e-10)


@pytest.mark.parametrize("mu", [0.1, 1.0, 4.0])
def test_gaussian_epsilon_is_dp_accountings(mu):
    for delta in (1e-12, 1e-6, 0.01):
        theirs = gaussian_mechanism.get_epsilon_gaussian(1 / mu, delta)
        assert renyi.gdp_epsilon(mu, delta) == pytest.approx(theirs, rel=1e-8)


def test_gaussian_inverses_are_exact_and_on_the_sound_side():
    mu = np.logspace(-6, 1.5, 30)[:, None]
    delta = np.array([1e-300, 1e-30, 1e-10, 1e-5, 0.01, 0.3, 0.9])
    epsilon = renyi.gdp_epsilon(mu, delta)
    reached = renyi.gdp_delta(mu, epsilon)
    assert np.all(reached <= delta * (1 + 1e-12))
    inside = epsilon > 0
    np.testing.assert_allclose(
        reached[inside], np.broadcast_to(delta, inside.shape)[inside], rtol=1e-9
    )
    back = renyi.gdp_from_epsilon_delta(epsilon, delta)
    np.testing.assert_allclose(back[inside], np.broadcast_to(mu, inside.shape)[inside], rtol=1e-9)
    assert np.all(back >= mu * (1 - 1e-9))


@settings(max_examples=60)
@given(log_mu=st.floats(-12, 3), log_epsilon=st.floats(-12, 3), log_delta=st.floats(-300, -1e-3))
def test_gaussian_conversions_are_monotone_at_every_magnitude(log_mu, log_epsilon, log_delta):
    mu, epsilon, delta = 10**log_mu, 10**log_epsilon, 10**log_delta
    slack = 1 + 1e-10
    value = renyi.gdp_delta(mu, epsilon)
    assert 0 <= value <= 1
    assert renyi.gdp_delta(mu, 1.01 * epsilon) <= value * slack
    assert renyi.gdp_delta(1.01 * mu, epsilon) >= value / slack
    assert value <= renyi.advantage_from_gdp(mu) * slack
    needed = renyi.gdp_epsilon(mu, delta)
    assert 0 <= needed < np.inf
    assert renyi.gdp_epsilon(1.01 * mu, delta) >= needed / slack
    assert renyi.gdp_epsilon(mu, 0.99 * delta) >= needed / slack
    allowed = renyi.gdp_from_epsilon_delta(epsilon, delta)
    assert 0 < allowed < np.inf
    assert renyi.gdp_delta(allowed, epsilon) <= delta * slack
    assert renyi.gdp_from_epsilon_delta(1.01 * epsilon, delta) >= allowed / slack


def test_gaussian_limits():
    assert renyi.gdp_delta(0, 0) == 0
    assert renyi.gdp_delta(0, 1) == 0
    assert renyi.gdp_delta(np.inf, 1) == 1
    np.testing.assert_allclose(renyi.gdp_delta([80.0, 1e3, 1e100], 1.0), 1.0)
    assert renyi.gdp_epsilon(0, 1e-5) == 0
    assert renyi.gdp_epsilon(np.inf, 1e-5) == np.inf
    assert renyi.gdp_from_epsilon_delta(np.inf, 1e-5) == np.inf
    assert renyi.gdp_delta(1, np.inf) == 0


def test_gaussian_renyi_and_advantage():
    assert renyi.renyi_from_gdp(4, 0.5) == pytest.approx(0.5)
    assert renyi.gdp_from_linear_renyi(4, 0.5) == pytest.approx(0.5)
    mu = np.logspace(-8, 0.9, 20)
    np.testing.assert_allclose(
        renyi.gdp_from_advantage(renyi.advantage_from_gdp(mu)), mu, rtol=1e-7
    )
    assert renyi.advantage_from_gdp(0.3) == pytest.approx(renyi.gdp_delta(0.3, 0.0), rel=1e-12)
    assert type(renyi.gdp_epsilon(1, 1e-5)) is float
    assert renyi.gdp_epsilon([1, 2], [[1e-5], [1e-6]]).shape == (2, 2)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: renyi.epsilon_simple(2, 1, 0), "delta"),
        (lambda: renyi.epsilon_tight(1, 1, 0.1), "order"),
        (lambda: renyi.gdp_epsilon(-1, 0.1), "mu"),
        (lambda: renyi.best_order_linear(0, 0.1), "slope"),
        (lambda: renyi.gdp_from_advantage(2), "advantage"),
        (lambda: renyi.renyi_gaussian(2, [0], [[-1]], [0], [[1]]), "covariance_first"),
        (lambda: renyi.renyi_gaussian(2, [0], [[1]], [0], [[0]]), "covariance_second"),
    ],
)
def test_bad_input_is_named(call, name):
    with pytest.raises(InputError, match=name):
        call()


@given(epsilon=st.floats(1e-3, 50), log_delta=st.floats(-40, -0.1))
def test_the_papers_order_for_epsilon_and_delta(epsilon, log_delta):
    """R_q ≤ ε/2 at q = 1 + (2/ε) log(1/δ) gives exactly (ε, δ), and its linear form is inverted."""
    delta = np.exp(log_delta)
    order, half = renyi.renyi_from_epsilon_delta(epsilon, delta)
    assert (order, half) == pytest.approx((1 - 2 * log_delta / epsilon, epsilon / 2))
    assert renyi.epsilon_simple(order, half, delta) == pytest.approx(epsilon)
    slope = half / order
    assert renyi.epsilon_paper_linear(slope, delta) == pytest.approx(epsilon)
    assert renyi.epsilon_simple_linear(slope, delta) <= epsilon * (1 + 1e-12)
    assert renyi.epsilon_paper_linear(0.0, delta) == 0
