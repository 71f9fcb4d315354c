"""Noisy-GD's calibrations, retraining and the fixed model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import deleting
from systems import DATABASE, DIM, PROBLEM, retrained

import dd_jax as dd
from dd_jax.baselines import fixed_model, noisy_gd_system
from dd_jax.baselines.base import label_of
from dd_jax.errors import InputError
from dd_jax.guarantees import renyi

TARGET = {"n": 500, "dim": 20, "epsilon": 0.5, "delta": 1e-5, "epsilon_private": 4.0}


def test_the_optimal_calibration_is_exact_in_pairs():
    """σ² and K_U by hand from μ: 2L²(2 - ηλ)/(λμ²n²) and ⌈log(μ_dp/μ_dd)/(-log(1 - ηλ))⌉."""
    made = noisy_gd_system.calibrate(PROBLEM, **TARGET)
    private, deleted = (renyi.gdp_from_epsilon_delta(e, 1e-5) for e in (4.0, 0.5))
    shrink = made.step_size * 0.2
    lipschitz = PROBLEM.constants.lipschitz
    variance = 2 * lipschitz**2 * (2 - shrink) / (0.2 * private**2 * 500**2)
    assert made.noise_variance == pytest.approx(variance, rel=1e-9)
    steps = np.ceil(np.log(private / deleted) / -np.log1p(-shrink))
    assert made.delete_steps == steps
    claim = noisy_gd_system.guarantee(made)
    assert (claim.notion, claim.delta, claim.order) == ("data-deletion", 1e-5, None)
    assert claim.epsilon <= 0.5


def test_the_paper_calibration_goes_through_its_own_conversion():
    """R_q ≤ qρ with ρ + 2√(ρ log(1/δ)) = ε: 4L²/(λσ²n²) for what stays, e^{-ηλK/2} of it after."""
    made = noisy_gd_system.calibrate(PROBLEM, accountant="paper", **TARGET)
    lipschitz = PROBLEM.constants.lipschitz
    staying = 4 * lipschitz**2 / (0.2 * made.noise_variance * 500**2)
    assert renyi.epsilon_simple_linear(staying, 1e-5) == pytest.approx(4.0, rel=1e-9)

    def deleted(steps):
        left = staying * np.exp(-made.step_size * 0.2 * steps / 2)
        return renyi.epsilon_simple_linear(left, 1e-5)

    assert deleted(made.delete_steps) <= 0.5 < deleted(made.delete_steps - 1)
    system = noisy_gd_system.system(PROBLEM, made, delta=1e-5)
    assert system.name == "noisy-gd-paper"
    assert system.guarantee.epsilon <= 0.5
    renyi_claim = noisy_gd_system.guarantee(made)
    assert (renyi_claim.order, renyi_claim.delta) == (2, None)


def test_a_private_release_that_need_not_delete_runs_one_step():
    made = noisy_gd_system.calibrate(PROBLEM, **TARGET | {"epsilon_private": None})
    assert made.delete_steps == 1
    with pytest.raises(InputError, match="epsilon_private"):
        noisy_gd_system.calibrate(PROBLEM, **TARGET | {"epsilon_private": 0.1})


def test_retraining_forgets_its_state():
    """The same key and edited database give the same model, whatever was there before."""
    system = retrained()
    edit = dd.deletion(PROBLEM.loss, DATABASE, [2])
    other = dd.apply_edit(DATABASE, dd.replacement([2], jax.tree.map(lambda a: a[:1], DATABASE)))

    @jax.jit
    def delete(key, database, state):
        return deleting(system)(key, database, edit, state)

    first, _ = delete(jax.random.key(1), DATABASE, np.zeros(DIM, np.float32))
    second, _ = delete(jax.random.key(1), other, np.ones(DIM, np.float32))
    np.testing.assert_array_equal(first, second)


def test_labels_follow_the_scores_of_the_loss():
    """The sign of θᵀa plus an intercept; the largest of several scores."""
    rows = jnp.array([[2.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    with_intercept = dd.Problem(dd.losses.logistic(intercept=True), 0.2)
    predict = fixed_model.system(with_intercept).predict
    np.testing.assert_array_equal(predict(jnp.array([1.0, 1.0, -1.5]), rows), [1, -1, -1])
    np.testing.assert_array_equal(
        fixed_model.system(PROBLEM).predict(jnp.array([1.0, 1.0]), rows), [1, 1, -1]
    )
    predict = label_of(dd.losses.softmax(num_classes=2))
    np.testing.assert_array_equal(predict(jnp.array([[1.0, 0.0], [0.0, 1.0]]), rows), [0, 1, 1])
