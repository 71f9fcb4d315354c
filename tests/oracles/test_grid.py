"""Densities on a grid against closed forms, simulation and the properties every law has."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dd_jax.errors import InputError
from dd_jax.oracles import gaussian, grid
from dd_jax.oracles.grid import Density, Phase

ETA, NOISE = 0.25, 4e-4
LINE = grid.grid_for(-0.25, 0.25, ETA, NOISE)
PLANE = grid.grid_for((-0.2, -0.22), (0.2, 0.22), ETA, NOISE)


def quadratic(hessian, linear_term, steps):
    """One phase of ½Hθ² - gθ for both oracles, on the line or in the plane."""
    hessian, linear_term = np.atleast_2d(hessian), np.atleast_1d(linear_term)
    exact = gaussian.Phase(hessian, linear_term, steps)
    if linear_term.size == 1:
        return Phase(lambda models: hessian[0, 0] * models - linear_term[0], steps), exact
    return Phase(lambda models: models @ hessian - linear_term, steps), exact


def both(phases, start, where):
    """The law on the grid and the exact Gaussian law."""
    dim = where.dim
    on_grid = grid.law_after([p[0] for p in phases], ETA, NOISE, start, where)
    start = np.zeros(dim) if isinstance(start, Density) else np.atleast_1d(start)
    return on_grid, gaussian.law_after([p[1] for p in phases], ETA, NOISE, start)


def gaussian_trade_off(type_one, mu):
    return stats.norm.cdf(stats.norm.ppf(1 - np.asarray(type_one)) - mu)


def logistic(records):
    """∇ℒ for 1-D logistic loss, labels absorbed into the records, λ = 1."""
    return lambda models: (
        models - np.mean(records / (1 + np.exp(np.multiply.outer(models, records))), axis=-1)
    )


@pytest.mark.parametrize("steps", [1, 3, 4000])
def test_line_agrees_with_the_gaussian_law(steps):
    pairs = [both([quadratic(1.0, g, steps)], 0.01, LINE) for g in (0.01, -0.01)]
    (p, exact_p), (r, exact_r) = pairs
    for order in (1.01, 2, 5):
        expected = gaussian.renyi(order, exact_p, exact_r)
        assert grid.renyi(order, p, r) == pytest.approx(expected, rel=1e-10)
    mu = gaussian.separation(exact_p, exact_r)
    assert grid.kl(p, r) == pytest.approx(mu**2 / 2, rel=1e-10)
    assert grid.total_variation(p, r) == pytest.approx(
        gaussian.advantage(exact_p, exact_r), abs=2e-9
    )
    epsilon = np.array([0.0, 0.3, 1.5, 6.0, 25.0, 60.0, 1e4])
    expected = gaussian.hockey_stick(epsilon, exact_p, exact_r)
    assert grid.hockey_stick(epsilon, p, r) == pytest.approx(expected, abs=2e-9)
    alphas = np.array([0.0, 0.01, 0.2, 0.5, 0.9, 1.0])
    assert grid.trade_off(alphas, p, r) == pytest.approx(gaussian_trade_off(alphas, mu), abs=1e-8)


def test_negative_epsilon_is_the_other_direction():
    """∫(p - e^ε r)₊ = 1 - e^ε + e^ε ∫(r - e^{-ε} p)₊."""
    (p, _), (r, _) = (both([quadratic(1.0, g, 3)], 0.0, LINE) for g in (0.01, -0.01))
    reverse = math.exp(-0.4) * grid.hockey_stick(0.4, r, p)
    assert grid.hockey_stick(-0.4, p, r) == pytest.approx(1 - math.exp(-0.4) + reverse, abs=1e-9)


def test_streams_with_unequal_curvature_on_the_line():
    ours = [quadratic(1.0, 0.01, 4), quadratic(0.7, 0.0, 3), quadratic(1.2, -0.01, 2)]
    theirs = [quadratic(1.1, -0.01, 4), quadratic(0.8, 0.01, 3), quadratic(1.2, -0.01, 2)]
    (p, exact_p), (r, exact_r) = (both(phases, 0.0, LINE) for phases in (ours, theirs))
    assert grid.renyi(3, p, r) == pytest.approx(gaussian.renyi(3, exact_p, exact_r), rel=1e-9)
    assert grid.renyi(3, r, p) == pytest.approx(gaussian.renyi(3, exact_r, exact_p), rel=1e-9)


def test_tiny_divergences_keep_their_digits():
    """Far below the 1e-16 that log ∫ p^q r^(1-q) by itself would drown in."""
    (p, exact_p), (r, exact_r) = (both([quadratic(1.0, g, 5)], 0.0, LINE) for g in (1e-10, -1e-10))
    expected = gaussian.renyi(2, exact_p, exact_r)
    assert expected < 1e-16
    assert grid.renyi(2, p, r) == pytest.approx(expected, rel=1e-5, abs=0)
    assert grid.kl(p, r) == pytest.approx(expected / 2, rel=1e-5, abs=0)
    assert grid.renyi(2, p, p) == 0
    assert grid.kl(p, p) == 0


def test_trade_off_tells_null_from_alternative():
    """A wider alternative is accepted for |θ| large: α = 2Φ(-t), β = 2Φ(t/s) - 1."""
    narrow, wide = (grid.gaussian_density(LINE, 0.0, v) for v in (4e-4, 9e-4))
    alphas = np.array([0.01, 0.2, 0.7])
    threshold = stats.norm.ppf(1 - alphas / 2)
    expected = 2 * stats.norm.cdf(threshold / 1.5) - 1
    assert grid.trade_off(alphas, narrow, wide) == pytest.approx(expected, abs=1e-8)
    threshold = stats.norm.ppf((1 + alphas) / 2)
    expected = 2 * stats.norm.cdf(-1.5 * threshold)
    assert grid.trade_off(alphas, wide, narrow) == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("shape", [(12,), (9,), (8, 7)])
def test_interpolation_keeps_the_points(shape):
    values = np.random.default_rng(0).normal(size=shape)
    kept = grid._upsample(values, 4)[(slice(None, None, 4),) * len(shape)]
    assert kept == pytest.approx(values, abs=1e-13)


def test_equal_laws_trade_off_along_the_diagonal():
    (p, _), (r, _) = (both([quadratic(1.0, g, 5)], 0.0, LINE) for g in (1e-12, 0.0))
    alphas = np.array([0.0, 0.25, 0.5, 1.0])
    for null in (p, r):
        assert grid.trade_off(alphas, null, p) == pytest.approx(1 - alphas, abs=2e-10)


def test_plane_agrees_with_the_gaussian_law():
    curved, stiffer = np.array([[1.0, 0.3], [0.3, 0.8]]), np.array([[1.05, 0.3], [0.3, 0.8]])
    shared = quadratic(stiffer, [0.0, 0.004], 4)
    runs = [
        both([quadratic(h, g, 6), shared], (0.01, -0.02), PLANE)
        for h, g in ((curved, [0.02, 0.004]), (curved, [-0.02, 0.0]), (stiffer, [-0.02, 0.0]))
    ]
    (p, exact_p), (r, exact_r), (s, exact_s) = runs
    assert grid.renyi(2, p, r) == pytest.approx(gaussian.renyi(2, exact_p, exact_r), rel=1e-9)
    assert grid.renyi(3, p, s) == pytest.approx(gaussian.renyi(3, exact_p, exact_s), rel=1e-8)
    mu = gaussian.separation(exact_p, exact_r)
    assert grid.total_variation(p, r) == pytest.approx(
        gaussian.advantage(exact_p, exact_r), abs=2e-6
    )
    assert grid.hockey_stick(0.5, p, r) == pytest.approx(
        gaussian.hockey_stick(0.5, exact_p, exact_r), abs=2e-6
    )
    assert grid.trade_off(0.3, p, r) == pytest.approx(gaussian_trade_off(0.3, mu), abs=2e-6)
    means = [grid.expectation(lambda models, i=i: models[:, i], p) for i in (0, 1)]
    assert means == pytest.approx(exact_p.mean, abs=1e-12)
    second = grid.expectation(lambda m: (m[:, 0] - means[0]) * (m[:, 1] - means[1]), p)
    assert second == pytest.approx(exact_p.covariance[0, 1], rel=1e-9)


@pytest.mark.parametrize("axis", [0, 1])
def test_plane_kink_along_either_axis(axis):
    shift = np.zeros(2)
    shift[axis] = 0.01
    (p, exact_p), (r, exact_r) = (
        both([quadratic(np.eye(2), g, 5)], (0.0, 0.0), PLANE) for g in (shift, -shift)
    )
    assert grid.total_variation(p, r) == pytest.approx(
        gaussian.advantage(exact_p, exact_r), abs=2e-6
    )


def test_plane_factorises_for_a_separable_objective():
    """Non-Gaussian: the plane's law is the product of two laws on the line."""
    first, second = grid.grid_for(-0.2, 0.2, ETA, NOISE), grid.grid_for(-0.22, 0.22, ETA, NOISE)

    def bent(models):
        return models + 0.02 * np.tanh(40 * models)

    plane = grid.law_after([Phase(bent, 7)], ETA, NOISE, (0.03, -0.01), PLANE)
    lines = [
        grid.law_after([Phase(bent, 7)], ETA, NOISE, start, where)
        for start, where in ((0.03, first), (-0.01, second))
    ]
    assert plane.values == pytest.approx(np.outer(*(law.values for law in lines)), rel=1e-11)


@pytest.mark.parametrize("steps", [37, 400])
def test_matrix_powers_equal_single_steps(steps):
    """Slow mixing, so that one step more or less still shows after 400."""
    where = grid.grid_for(-0.25, 0.25, 0.02, NOISE)
    phase = Phase(lambda models: models + 0.02 * np.tanh(40 * models - 1), steps)
    at_once = grid.law_after([phase], 0.02, NOISE, 0.1, where)
    one_by_one = grid.law_after([phase._replace(steps=1)] * steps, 0.02, NOISE, 0.1, where)
    assert at_once.values == pytest.approx(one_by_one.values, rel=1e-10, abs=1e-200)


def test_refining_the_grid_changes_nothing_for_a_smooth_loss():
    records = np.array([1.0, -0.5, 0.8, -1.0])
    other = np.array([1.0, -0.5, 0.8, 1.0])
    noise = 0.05
    results = []
    for fineness in (0.5, 0.2):
        where = grid.grid_for(-4, 4, ETA, noise, fineness)
        p, r = (
            grid.law_after(
                [Phase(logistic(d), 6), Phase(logistic(other), 2)], ETA, noise, 0.3, where
            )
            for d in (records, other)
        )
        results.append((grid.renyi(2, p, r), grid.kl(p, r), grid.total_variation(p, r)))
    assert results[0] == pytest.approx(results[1], rel=1e-8)


def test_distance_to_the_gibbs_law():
    """A quadratic's Gibbs law is N(g/h, σ²/h); the stationary law is wider by 1/(1 - ηh/2)."""
    gibbs = grid.gibbs_density(LINE, lambda m: m**2 / 2 - 0.01 * m + 7.0, NOISE)
    expected = grid.gaussian_density(LINE, 0.01, NOISE)
    assert gibbs.values == pytest.approx(expected.values, rel=1e-9)
    late = grid.law_after([quadratic(1.0, 0.01, 500)[0]], ETA, NOISE, 0.0, LINE)
    mean = np.array([0.01])
    laws = [gaussian.GaussianLaw(mean, np.array([[v]])) for v in (NOISE / (1 - ETA / 2), NOISE)]
    assert grid.renyi(2, late, gibbs) == pytest.approx(gaussian.renyi(2, *laws), rel=1e-9)
    bound = grid.expectation(lambda m: (m - 0.01) ** 2 / 2, late)
    assert bound == pytest.approx(laws[0].covariance[0, 0] / 2, rel=1e-10)


def test_a_density_is_a_start():
    start = grid.gaussian_density(LINE, 0.005, 2e-4)
    law = grid.law_after([quadratic(1.0, 0.01, 6)[0]], ETA, NOISE, start, LINE)
    exact = gaussian.law_after(
        [quadratic(1.0, 0.01, 6)[1]], ETA, NOISE, np.array([0.005]), np.array([[2e-4]])
    )
    assert grid.expectation(lambda m: m, law) == pytest.approx(exact.mean[0], rel=1e-10)
    spread = grid.expectation(lambda m: (m - exact.mean[0]) ** 2, law)
    assert spread == pytest.approx(exact.covariance[0, 0], rel=1e-10)
    assert grid.law_after([Phase(None, 0)], ETA, NOISE, start, LINE) is start


@given(
    records=st.lists(st.floats(-1, 1), min_size=2, max_size=5),
    changed=st.floats(-1, 1),
    steps=st.tuples(*[st.integers(1, 12)] * 2),
)
@settings(max_examples=15)
def test_properties_of_every_pair_of_logistic_runs(records, changed, steps):
    noise = 0.05
    where = grid.grid_for(-4, 4, ETA, noise)
    ours, theirs = np.array(records), np.array([changed, *records[1:]])
    before, after = (
        [
            grid.law_after([Phase(logistic(d), steps[0]), *extra], ETA, noise, 0.0, where)
            for d in (ours, theirs)
        ]
        for extra in ([], [Phase(logistic(theirs), steps[1])])
    )
    slack = 1 + 1e-9
    for divergence in (lambda *laws: grid.renyi(2, *laws), grid.kl, grid.total_variation):
        assert divergence(*after) <= divergence(*before) * slack + 1e-9  # data processing
    r2, r3, kl = grid.renyi(2, *before), grid.renyi(3, *before), grid.kl(*before)
    assert kl <= r2 * slack + 1e-14
    assert r2 <= r3 * slack + 1e-14
    variation = grid.total_variation(*before)
    assert variation == pytest.approx(grid.total_variation(*before[::-1]), abs=1e-9)
    assert variation <= math.sqrt(kl / 2) + 1e-8  # Pinsker
    alphas = np.linspace(0, 1, 5)
    curve = grid.trade_off(alphas, *before)
    assert np.all(curve <= 1 - alphas + 1e-9)
    assert np.all(curve >= 1 - alphas - variation - 1e-8)
    assert np.all(np.diff(grid.hockey_stick([0.0, 0.1, 0.5], *before)) <= 1e-9)


def still(models):
    return np.zeros_like(models)


SMALL = grid.make_grid(-1, 1, 101)
FLAT = Density(SMALL, np.full(101, 0.5))


STILL = Phase(still, 2)


def after(phase=STILL, start=0.0, where=LINE, noise=NOISE):
    return lambda: grid.law_after([phase], ETA, noise, start, where)


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (after(where=grid.make_grid(-1, 1, 51)), "coarse"),
        (after(start=(0.0, 0.0), where=grid.make_grid((-1, -2), (1, 2), (9, 999))), "coarse"),
        (after(Phase(lambda m: 14 * m, 3)), "coarse"),  # the step itself stretches
        (after(Phase(still, 900)), "left"),
        (after(start=3.0), "left"),
        (after(Phase(still, 1), start=0.25 - 4.75 * math.sqrt(2e-4)), "left"),  # a mass of 3e-7
        (after(Phase(still, 1.5)), "steps"),
        (after(Phase(still, math.inf)), "steps"),
        (after(Phase(still, 0)), "step"),
        (after(start=(0.0, 0.0)), "start"),
        (after(start=FLAT), "start"),
        (after(Phase(lambda m: 0.0, 2)), "gradient"),
        (after(Phase(lambda m: m * np.nan, 2)), "gradient"),
        (after(noise=-NOISE), "noise_variance"),
        (lambda: grid.gibbs_density(LINE, still, NOISE), "edge"),
        (lambda: grid.gibbs_density(LINE, lambda m: 1.0, NOISE), "objective"),
        (lambda: grid.gaussian_density(LINE, 0.0, -1.0), "covariance"),
        (lambda: grid.gaussian_density(LINE, 0.0, 1e-6), "coarse"),
        (lambda: grid.renyi(1.0, FLAT, FLAT), "order"),
        (lambda: grid.renyi(2, FLAT, FLAT), "edge"),
        (lambda: grid.kl(FLAT, Density(LINE, np.ones(LINE.size))), "grid"),
        (
            lambda: grid.renyi(2, Density(SMALL, np.eye(101)[0]), Density(SMALL, np.eye(101)[1])),
            "overlap",
        ),
        (lambda: grid.trade_off(1.5, FLAT, FLAT), "type_one"),
        (lambda: Density(SMALL, np.ones(7)), "shape"),
        (lambda: Density(SMALL, -np.ones(101)), "negative"),
        (lambda: grid.make_grid(1, -1, 50), "low"),
        (lambda: grid.make_grid((0, 0, 0), (1, 1, 1), (9, 9, 9)), "shapes"),
        (lambda: grid.make_grid(0, 1, 2), "size"),
        (lambda: grid.grid_for(1, -1, ETA, NOISE), "low"),
    ],
)
def test_bad_input_is_refused(call, word):
    with pytest.raises(InputError, match=word):
        call()


def test_an_order_that_reaches_past_the_grid_or_float64_is_refused():
    (p, _), (r, _) = (both([quadratic(1.0, g, 30)], 0.0, LINE) for g in (0.01, -0.01))
    with pytest.raises(InputError, match="edge"):
        grid.renyi(12, p, r)
    # The integrand peaks at 50 deviations, where the second density has underflowed.
    where = grid.make_grid(-1, 1, 1001)
    p, r = (grid.gaussian_density(where, mean, 1e-4) for mean in (0.1, -0.1))
    exact = [gaussian.GaussianLaw(np.array([m]), np.array([[1e-4]])) for m in (0.1, -0.1)]
    assert grid.renyi(1.3, p, r) == pytest.approx(gaussian.renyi(1.3, *exact), rel=1e-10)
    with pytest.raises(InputError, match="edge"):
        grid.renyi(3, p, r)


def test_the_coarsest_grid_is_half_a_deviation_of_the_noise():
    """2/(size - 1) ≤ √(2ησ²)/2 from 284 points on."""
    with pytest.raises(InputError, match="284"):
        after(where=grid.make_grid(-1, 1, 283))()
    after(where=grid.make_grid(-1, 1, 284))()
