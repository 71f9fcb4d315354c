"""Advantage bounds: constants, inverses, and truth for the Gaussian pair they are attained by."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import soak
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp, ndtr

from dd_jax.errors import InputError
from dd_jax.guarantees import inference, renyi

ORDERS = 1 + np.logspace(-3, 6, 40)
EPSILONS = np.logspace(-12, 3, 61)


def test_soundness_by_formula():
    assert inference.advantage_soundness(2, 1e-4) == pytest.approx(np.sqrt(2e-4))
    assert inference.advantage_soundness(2, 0.3) == pytest.approx(np.sqrt(2) * np.exp(0.15) - 1)
    assert inference.advantage_soundness(2, 100) == 1.0
    assert inference.advantage_soundness(2, 0) == 0.0
    # Attained at every order by two points and their even mixture: R_q = log 2, advantage 1.
    for order in (1.5, 300.0):
        attained = inference.epsilon_from_advantage_soundness(order, 1.0)
        assert attained == pytest.approx(np.log(2))
    # q = 2: the paper's 2 e^{ε/2} √2 - 1 is above 1 for every ε, so Pinsker's side decides.
    assert inference.advantage_soundness_paper(2, 0.3) == pytest.approx(np.sqrt(0.6))
    order, eps = 1e6, 0.05
    stated = (
        order * np.exp(eps * (order - 1) / order) / (order - 1) * (2 * (order - 1)) ** (1 / order)
        - 1
    )
    assert stated < np.sqrt(2 * eps)
    assert inference.advantage_soundness_paper(order, eps) == pytest.approx(stated, rel=1e-10)


def test_soundness_holds_for_random_laws_and_a_common_comparator():
    rng = np.random.default_rng(3)
    tightest = 0.0
    for _ in range(soak(800, 3000)):
        order = 1 + 10 ** rng.uniform(-1.5, 2)
        size = int(rng.integers(2, 5))
        first, second, common = rng.dirichlet(np.full(size, 10 ** rng.uniform(-1, 1)), 3) + 1e-12
        if rng.random() < 0.5:
            common = (first + second) / 2
        first, second, common = (law / law.sum() for law in (first, second, common))
        eps = max(
            logsumexp(order * np.log(law) + (1 - order) * np.log(common)) / (order - 1)
            for law in (first, second)
        )
        advantage = np.abs(first - second).sum() / 2
        bound = inference.advantage_soundness(order, max(eps, 0.0))
        assert advantage <= bound * (1 + 1e-9) + 1e-9
        assert bound <= inference.advantage_soundness_paper(order, max(eps, 0.0))
        tightest = max(tightest, advantage / bound)
    assert tightest > 0.9


@pytest.mark.parametrize(("order", "eps"), [(50.0, 0.01), (300.0, 0.02), (1e4, 1e-3)])
def test_the_papers_soundness_is_the_best_delta_of_its_proof(order, eps):
    def at(log_delta):
        delta = np.exp(log_delta)
        return np.exp(renyi.epsilon_simple(order, eps, delta)) - 1 + 2 * delta

    best = minimize_scalar(at, bounds=(-40, -1e-6), method="bounded", options={"xatol": 1e-12}).fun
    got = inference.advantage_soundness_paper(order, eps)
    assert got == pytest.approx(min(best, np.sqrt(2 * eps)), rel=1e-9)
    hockey = inference.epsilon_from_advantage_soundness_paper(order, best)
    assert hockey == pytest.approx(max(eps, best**2 / 2), rel=1e-6)


def test_soundness_and_its_inverse_are_exact():
    order, eps = np.meshgrid(ORDERS, EPSILONS)
    advantage = inference.advantage_soundness(order, eps)
    assert np.all((advantage > 0) & (advantage <= 1))
    inside = advantage < 1
    back = inference.epsilon_from_advantage_soundness(order[inside], advantage[inside])
    np.testing.assert_allclose(back, eps[inside], rtol=1e-9)


def test_necessary_privacy_by_formula_and_inverse():
    order, delta = 1e3, 0.9
    second = np.log(order - 1) + order / (order - 1) * np.log(
        (1 + delta**2) / (order * 2 ** (1 / order))
    )
    assert second > delta**4 / 2
    assert inference.deletion_necessary_paper(order, delta) == pytest.approx(second, rel=1e-12)
    tighter = (order * np.log(1 + delta**2) - np.log(2)) / (order - 1)
    assert tighter > second
    assert inference.deletion_necessary(order, delta) == pytest.approx(tighter, rel=1e-12)
    assert inference.deletion_necessary(2, 0.5) == pytest.approx(0.5**4 / 2)
    grid_order, grid_delta = np.meshgrid(ORDERS, np.linspace(0.01, 0.99, 40))
    eps = inference.deletion_necessary(grid_order, grid_delta)
    back = inference.privacy_necessary(grid_order, eps)
    np.testing.assert_allclose(back, grid_delta, rtol=1e-9)


def test_neighbours_by_formula():
    assert inference.advantage_neighbours(0.02) == pytest.approx(0.1)
    assert inference.advantage_neighbours_linear(4, 0.08) == pytest.approx(0.1)
    assert inference.advantage_neighbours(50) == 1.0
    assert inference.advantage_gdp(1.0) == pytest.approx(2 * ndtr(0.5) - 1, rel=1e-14)


@settings(max_examples=100)
@given(log_order=st.floats(-3, 6), log_eps=st.floats(-12, 3))
def test_every_bound_holds_for_the_gaussian_pair_and_they_are_ordered(log_order, log_eps):
    order, eps = 1 + 10**log_order, 10**log_eps
    mu = renyi.gdp_from_linear_renyi(order, eps)
    truth = renyi.advantage_from_gdp(mu)
    bounds = [
        inference.advantage_gdp(mu),
        inference.advantage_neighbours_linear(order, eps),
        inference.advantage_neighbours(eps),
    ]
    assert 0 < truth <= 1
    assert truth == bounds[0]
    assert np.all(np.diff(bounds) >= 0)
    assert truth <= inference.advantage_soundness(order, eps)
    assert inference.epsilon_from_advantage_soundness(order, truth) <= eps * (1 + 1e-12)


def test_pinsker_constant_cannot_be_halved():
    # The true advantage is 0.798 of √(ε/(2q)) for a small shift: any constant below that is false.
    bound = inference.advantage_neighbours_linear(3, renyi.renyi_from_gdp(3, 1e-4))
    assert inference.advantage_gdp(1e-4) / bound == pytest.approx(np.sqrt(2 / np.pi), rel=1e-6)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: inference.deletion_necessary(2, -0.1), "advantage"),
        (lambda: inference.advantage_soundness(1, 0.1), "order"),
        (lambda: inference.advantage_neighbours(-1), "eps"),
    ],
)
def test_bad_input_is_named(call, name):
    with pytest.raises(InputError, match=name):
        call()
