"""Exact laws of quadratic losses."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dd_jax.errors import InputError
from dd_jax.oracles import gaussian
from dd_jax.oracles.gaussian import GaussianLaw, Phase

ETA, NOISE = 0.2, 0.3


def random_phases(rng, dim, count=3, most=12):
    phases = []
    for _ in range(count):
        features, labels = rng.normal(size=(9, dim)), rng.normal(size=9)
        phases.append(gaussian.ridge_phase(features, labels, 0.1, int(rng.integers(1, most))))
    return phases


def step_by_step(phases, mean, covariance):
    for hessian, linear_term, steps in phases:
        matrix = np.eye(mean.size) - ETA * hessian
        for _ in range(steps):
            mean = matrix @ mean + ETA * linear_term
            covariance = matrix @ covariance @ matrix.T + 2 * ETA * NOISE * np.eye(mean.size)
    return mean, covariance


@given(seed=st.integers(0, 2**32 - 1), dim=st.integers(1, 4))
@settings(max_examples=25)
def test_phases_at_once_equal_step_by_step(seed, dim):
    rng = np.random.default_rng(seed)
    phases, root = random_phases(rng, dim), rng.normal(size=(dim, dim))
    mean, covariance = rng.normal(size=dim), root @ root.T
    law = gaussian.law_after(phases, ETA, NOISE, mean, covariance)
    by_steps = step_by_step(phases, mean, covariance)
    assert law.mean == pytest.approx(by_steps[0], rel=1e-10, abs=1e-12)
    assert law.covariance == pytest.approx(by_steps[1], rel=1e-10, abs=1e-12)


@pytest.mark.parametrize("eigenvalue", [0.0, 1e-13, 5.0, 7.0, 10.0, -0.5])
def test_degenerate_and_expanding_eigenvalues(eigenvalue):
    """H singular, a step that lands on zero, one that overshoots, a = -1, and a concave axis."""
    phases = [Phase(np.diag([eigenvalue, 1.0]), np.array([0.7, -0.2]), 7)]
    start = np.array([1.0, 2.0]), np.array([[2.0, 0.5], [0.5, 1.0]])
    law = gaussian.law_after(phases, ETA, NOISE, *start)
    by_steps = step_by_step(phases, *start)
    assert law.mean == pytest.approx(by_steps[0], rel=1e-12, abs=1e-14)
    assert law.covariance == pytest.approx(by_steps[1], rel=1e-12, abs=1e-14)


def test_stationary_law_and_many_steps():
    hessian, linear_term = np.array([[2.0, 0.3], [0.3, 0.5]]), np.array([1.0, -1.0])
    stationary = gaussian.law_after(
        [Phase(hessian, linear_term, math.inf)], ETA, NOISE, np.zeros(2)
    )
    late = gaussian.law_after([Phase(hessian, linear_term, 10**6)], ETA, NOISE, np.ones(2), 5.0)
    assert stationary.mean == pytest.approx(np.linalg.solve(hessian, linear_term), rel=1e-13)
    expected = 2 * NOISE * np.linalg.inv(hessian @ (2 * np.eye(2) - ETA * hessian))
    assert stationary.covariance == pytest.approx(expected, rel=1e-12)
    assert late.covariance == pytest.approx(expected, rel=1e-12)


def test_ridge_phase_is_the_gradient_of_the_ridge_objective():
    rng = np.random.default_rng(0)
    features, labels, model = rng.normal(size=(5, 3)), rng.normal(size=5), rng.normal(size=3)
    hessian, linear_term, steps = gaussian.ridge_phase(features, labels, 0.7, 4)
    per_record = [(a @ model - y) * a for a, y in zip(features, labels, strict=True)]
    gradient = np.mean(per_record, axis=0) + 0.7 * model
    assert hessian @ model - linear_term == pytest.approx(gradient, rel=1e-13)
    assert steps == 4


def test_joint_law_has_the_marginals_and_cross_covariances():
    rng = np.random.default_rng(5)
    phases, dim = random_phases(rng, 2, most=4), 2
    joint = gaussian.joint_law(phases, ETA, NOISE, np.ones(dim), 0.4)
    assert joint.mean.shape == (6,)
    assert joint.covariance == pytest.approx(joint.covariance.T, rel=1e-13)
    for k in range(3):
        marginal = gaussian.law_after(phases[: k + 1], ETA, NOISE, np.ones(dim), 0.4)
        block = slice(k * dim, (k + 1) * dim)
        assert joint.mean[block] == pytest.approx(marginal.mean, rel=1e-12)
        assert joint.covariance[block, block] == pytest.approx(marginal.covariance, rel=1e-12)
    cross = gaussian.law_after(phases[:1], ETA, NOISE, np.ones(dim), 0.4).covariance
    for hessian, _, steps in phases[1:]:
        cross = np.linalg.matrix_power(np.eye(dim) - ETA * hessian, steps) @ cross
    assert joint.covariance[4:, :2] == pytest.approx(cross, rel=1e-10)


@pytest.mark.parametrize(("requests", "learn", "after"), [(0, 7, 3), (1, 1, 1), (5, math.inf, 2)])
@pytest.mark.parametrize("step_size", [0.01, 0.9])
def test_all_releases_jointly_attain_their_bound(requests, learn, after, step_size):
    """ε_dp [(1-c^K_L)/(1+c^K_L) + i (1-c^K_U)/(1+c^K_U)], ε_dp = q L² (2-ηλ)/(λσ²n²)."""
    order, l2, n = 3.0, 1.0, 50
    rows, joint = np.zeros((n, 1)), []
    for side in (1, -1):
        held = rows.copy()
        held[0] = side
        phases = [gaussian.linear_phase(held, l2, steps) for steps in [learn] + [after] * requests]
        joint.append(gaussian.joint_law(phases, step_size, 1e-3, np.zeros(1)))
    eps_dp = order * (2 - step_size * l2) / (l2 * 1e-3 * n**2)
    first, later = ((1 - c) / (1 + c) for c in (1 - step_size * l2) ** np.array([learn, after]))
    assert gaussian.renyi(order, *joint) == pytest.approx(
        eps_dp * (first + requests * later), rel=1e-9
    )


def test_renyi_of_unequal_covariances():
    """Against direct integration of p^q r^(1-q)."""
    first = GaussianLaw(np.array([0.3]), np.array([[1.0]]))
    second = GaussianLaw(np.array([-0.2]), np.array([[1.3]]))
    points = np.linspace(-40, 40, 8001)
    p, r = (
        stats.norm.logpdf(points, law.mean[0], law.covariance[0, 0] ** 0.5)
        for law in (first, second)
    )
    brute = np.log(np.exp(3 * p - 2 * r).sum() * 0.01) / 2
    assert gaussian.renyi(3, first, second) == pytest.approx(brute, rel=1e-12)
    assert gaussian.renyi(9, second, first) == math.inf


def test_label_replacement_is_equal_covariance_and_gaussian_dp():
    rng = np.random.default_rng(1)
    features, labels = rng.normal(size=(6, 2)), rng.normal(size=6)
    other = labels.copy()
    other[2] += 3
    laws = [
        gaussian.law_after([gaussian.ridge_phase(features, y, 0.2, 9)], ETA, NOISE, np.zeros(2))
        for y in (labels, other)
    ]
    mu = gaussian.separation(*laws)
    assert gaussian.renyi(5, *laws) == pytest.approx(2.5 * mu**2, rel=1e-10)
    assert gaussian.advantage(*laws) == pytest.approx(2 * stats.norm.cdf(mu / 2) - 1, rel=1e-12)
    assert gaussian.hockey_stick(0.0, *laws) == pytest.approx(gaussian.advantage(*laws), rel=1e-12)
    expected = stats.norm.cdf(mu / 2 - 0.3 / mu) - math.exp(0.3) * stats.norm.cdf(
        -mu / 2 - 0.3 / mu
    )
    assert gaussian.hockey_stick(0.3, *laws) == pytest.approx(expected, rel=1e-10)
    direction = np.linalg.solve(laws[0].covariance, laws[0].mean - laws[1].mean)
    gap = (
        direction
        @ (laws[0].mean - laws[1].mean)
        / np.sqrt(direction @ laws[0].covariance @ direction)
    )
    assert mu == pytest.approx(gap, rel=1e-12)


def test_excess_risk_by_simulation_and_at_the_minimum():
    hessian, linear_term = np.array([[2.0, 0.3], [0.3, 0.5]]), np.array([1.0, -1.0])
    law = gaussian.law_after([Phase(hessian, linear_term, 3)], ETA, NOISE, np.zeros(2))
    models = np.random.default_rng(2).multivariate_normal(law.mean, law.covariance, 50_000)

    def objective(m):
        return np.sum(m @ hessian * m, axis=-1) / 2 - m @ linear_term

    best = objective(np.linalg.solve(hessian, linear_term))
    assert gaussian.excess_risk(law, hessian, linear_term) == pytest.approx(
        objective(models).mean() - best, rel=0.03
    )


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=25)
def test_divergence_properties(seed):
    rng = np.random.default_rng(seed)
    ours, shared = random_phases(rng, 2, 1), random_phases(rng, 2, 1)
    theirs = [ours[0]._replace(linear_term=ours[0].linear_term + rng.normal(size=2))]
    start = rng.normal(size=2)

    def laws(extra, mean0=start):
        return [gaussian.law_after([*p, *extra], ETA, NOISE, mean0) for p in (ours, theirs)]

    before, after = laws([]), laws(shared)
    assert gaussian.renyi(2, *after) <= gaussian.renyi(2, *before) * (1 + 1e-9)  # data processing
    assert gaussian.renyi(2, *before) <= gaussian.renyi(3, *before)  # monotone in the order
    moved = [GaussianLaw(law.mean + 10, law.covariance) for law in before]
    assert gaussian.renyi(2, *moved) == pytest.approx(gaussian.renyi(2, *before), rel=1e-9)
    assert gaussian.renyi(2, *before) == pytest.approx(gaussian.renyi(2, *before[::-1]), rel=1e-9)
    elsewhere = laws([], mean0=start + 5)
    assert gaussian.renyi(2, *elsewhere) == pytest.approx(gaussian.renyi(2, *before), rel=1e-9)


EYE = np.eye(2)


def after(phase, step_size=ETA, noise=1, mean0=(1.0, 1.0)):
    return lambda: gaussian.law_after([phase], step_size, noise, np.asarray(mean0))


def compared(compare, *covariances):
    laws = [GaussianLaw(np.ones(len(c)), np.asarray(c)) for c in covariances]
    return lambda: compare(*laws)


ONES = np.ones(2)
STEP = Phase(EYE, ONES, 2)


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: gaussian.ridge_phase(np.ones((3, 2)), ONES, 1, 1), "labels"),
        (lambda: gaussian.linear_phase(np.ones(3), 1, 1), "records"),
        (lambda: gaussian.ridge_phase(np.full((3, 2), np.nan), np.ones(3), 1, 1), "features"),
        (after(STEP._replace(steps=2.5)), "steps"),
        (after(STEP, noise=-1), "noise_variance"),
        (after(STEP, step_size=0), "step_size"),
        (after(STEP, mean0=0.0), "mean0"),
        (after(STEP._replace(hessian=np.eye(3))), "hessian"),
        (after(STEP._replace(hessian=np.array([[1.0, 1], [0, 1]]))), "symmetric"),
        (after(STEP._replace(linear_term=np.ones(3))), "linear_term"),
        (after(Phase(0 * EYE, ONES, math.inf)), "diverge"),
        (after(Phase(99 * EYE, ONES, 10**4)), "diverge"),
        (lambda: gaussian.law_after([], ETA, 1, ONES, -EYE), "cov0"),
        (lambda: gaussian.joint_law([], ETA, 1, ONES), "phases"),
        (lambda: gaussian.joint_law([STEP._replace(steps=0)], ETA, 1, ONES), "steps"),
        (compared(gaussian.separation, EYE, 2 * EYE), "covariances"),
        (compared(gaussian.separation, 0 * EYE, 0 * EYE), "singular"),
        (compared(lambda p, r: gaussian.renyi(2, p, r), EYE, np.eye(1)), "dimensions"),
        (compared(lambda p: gaussian.renyi(1, p, p), EYE), "order"),
        (compared(lambda p: gaussian.excess_risk(p, 0 * EYE, ONES), EYE), "hessian"),
    ],
)
def test_bad_input_is_refused(call, word):
    with pytest.raises(InputError, match=word):
        call()
