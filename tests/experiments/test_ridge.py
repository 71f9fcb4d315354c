"""Ridge regression by noisy sums and by Noisy-GD: the analysis against draws and exact laws."""

import math

import jax
import numpy as np
import pytest
from problems import signed

import dd_jax as dd
from dd_jax.baselines import sufficient_statistics
from dd_jax.guarantees import renyi
from experiments.compare import ridge
from experiments.compare.ridge import Moments, Target

N, DIM = 20_000, 3
RECORDS = signed(N, DIM, seed=4)
MOMENTS = Moments.of(RECORDS)
TARGET = Target(N, 1.0, 1e-4)


@pytest.fixture(autouse=True)
def coarse(monkeypatch):
    """Fewer λ to choose from."""
    monkeypatch.setattr(ridge, "L2_GRID", (1e-4, 1e-3, 1e-2, 1e-1))


def excess(models):
    """Of the mean squared error, against the exact minimiser."""
    a, y = (np.asarray(leaf, np.float64) for leaf in RECORDS)

    def error(model):
        return np.mean((a @ model - y) ** 2) / 2

    least = error(np.linalg.lstsq(a, y)[0])
    return np.array([error(model) - least for model in np.asarray(models, np.float64)])


def test_the_risk_of_noisy_sums_is_that_of_releases():
    found = ridge.noisy_sums(MOMENTS, TARGET)
    problem = dd.Problem(dd.losses.squared(label_bound=1.0), found.l2)
    made = sufficient_statistics.calibrate(problem, n=N, dim=DIM, epsilon=1.0, delta=1e-4)
    system = sufficient_statistics.system(problem, made)
    state = system.learn(jax.random.key(0), RECORDS)[0]
    keys = jax.random.split(jax.random.key(1), 1000)
    models = jax.jit(jax.vmap(lambda key: system.publish(key, state)))(keys)
    measured = excess(models)
    deviation = measured.std() / math.sqrt(len(measured))
    assert abs(measured.mean() - found.risk) < 4 * deviation + 0.03 * found.risk


def test_the_risk_of_noisy_gd_is_that_of_its_stationary_law():
    found = ridge.noisy_gd(MOMENTS, TARGET)
    mu = renyi.gdp_from_epsilon_delta(1.0, 1e-4)
    # One release, deletion at a tenth: σ² = 2(2-ηλ)/(λμ²n²) by the optimal accountant.
    step = 1 / (1 + found.l2)
    noise = 2 * (2 - step * found.l2) / (found.l2 * mu**2 * N**2)
    assert (1 - step * found.l2) ** (2 * found.passes) <= 0.1 * (1 + 1e-9)
    a, y = (np.asarray(leaf, np.float64) for leaf in RECORDS)
    hessian = a.T @ a / N + found.l2 * np.eye(DIM)
    covariance = np.zeros((DIM, DIM))
    kept = np.eye(DIM) - step * hessian
    for _ in range(round(40 / (step * found.l2))):
        covariance = kept @ covariance @ kept + 2 * step * noise * np.eye(DIM)
    mean = np.linalg.solve(hessian, a.T @ y / N)
    spread = np.trace((hessian - found.l2 * np.eye(DIM)) @ covariance) / 2
    assert excess([mean])[0] + spread == pytest.approx(found.risk, rel=1e-3)
    assert found.flops == 4 * N * DIM * found.passes


def test_more_releases_cost_sums_their_privacy_and_noisy_gd_only_its_new_steps():
    many = TARGET._replace(releases=100)
    sums = [ridge.noisy_sums(MOMENTS, target).risk for target in (TARGET, many)]
    steps = [ridge.noisy_gd(MOMENTS, target).risk for target in (TARGET, many)]
    assert sums[1] / sums[0] > steps[1] / steps[0] > 1


def test_the_crossing_is_where_the_risks_meet():
    """A spectrum that falls fast: sums win in few dimensions, and in fewer the more releases."""
    curvatures = 0.5 / np.arange(60, 0, -1.0) ** 1.5
    moments = Moments(curvatures, 0.3 * curvatures)
    target = Target(20_000, 1.0, 1e-4, releases=10)
    dim = ridge.crossing(moments, target)
    assert 0 < dim < 60
    for place, wins in ((dim, True), (dim + 1, False)):
        first = Moments(*(part[-place:] for part in moments))
        sums, steps = (f(first, target).risk for f in (ridge.noisy_sums, ridge.noisy_gd))
        assert (sums < steps) == wins
    assert ridge.crossing(moments, target._replace(releases=100)) < dim


def test_the_table_has_a_line_for_every_target():
    text = ridge.as_text(MOMENTS, [TARGET], batches=(1,))
    assert len(text.splitlines()) == 3
