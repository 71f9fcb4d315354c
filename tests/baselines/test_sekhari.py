"""Newton-step unlearning against NumPy: one batch, however it arrives, and its noise."""

import math

import jax
import jax.numpy as jnp
import newton_reference as reference
import numpy as np
import pytest
from problems import deleting, signed

import dd_jax as dd
from dd_jax.baselines import sekhari
from dd_jax.constants import ROUNDING
from dd_jax.errors import CertificateRefused, InputError

N, DIM, L2, CAPACITY = 30, 3, 0.1, 3
PROBLEM = dd.Problem(dd.losses.logistic(), l2=L2)
DATABASE = signed(N, DIM, seed=6)
CLAIM = {"n": N, "capacity": CAPACITY, "epsilon": 1.0, "delta": 1e-3}


def flip(row):
    """Replace a row by its opposite, the largest change of gradient there is."""
    features, label = (leaf[jnp.array([row])] for leaf in DATABASE)
    return dd.replacement([row], dd.Labelled(features, -label))


@pytest.fixture(scope="module")
def made():
    """The system, and its learn and delete compiled."""
    noise = sekhari.calibrate(PROBLEM, **CLAIM)
    system = sekhari.system(PROBLEM, noise=noise, **CLAIM)
    return system, jax.jit(system.learn), jax.jit(deleting(system))


def serve(made, edits):
    """(database, state, cost) after learning and after each edit."""
    _, learn, delete = made
    database = DATABASE
    history = [(database, *learn(jax.random.key(0), database))]
    for edit in edits:
        state, cost = delete(jax.random.key(1), database, edit, history[-1][1])
        database = dd.apply_edit(database, edit)
        history.append((database, state, cost))
    return history


def batch_step(database):
    """ŵ + (Σ_rest ∇² + nλ)⁻¹ Σ(∇ℓ(old) - ∇ℓ(new)), everything at the original minimiser."""
    start = reference.minimiser(DATABASE, L2)
    change = reference.gradient_sum(start, DATABASE) - reference.gradient_sum(start, database)
    return start + np.linalg.solve(reference.hessian(start, database, L2), change)


def test_requests_join_into_one_batch_and_retrain_beyond_the_capacity(made):
    delete_row = dd.deletion(PROBLEM.loss, DATABASE, [8])
    edits = [flip(3), delete_row, flip(19), flip(3), flip(25)]
    history = serve(made, edits)
    _, state, cost = history[0]
    np.testing.assert_allclose(state.model, reference.minimiser(DATABASE, L2), atol=1e-5)
    assert cost.hessians == N * (cost.solves + 1)
    for database, state, cost in history[1:4]:
        np.testing.assert_allclose(state.model, batch_step(database), atol=1e-5)
        assert tuple(map(int, cost)) == (2, 2, 1, 0)
        exact = reference.minimiser(database, L2)
        moved = np.linalg.norm(exact - reference.minimiser(DATABASE, L2))
        missed = np.linalg.norm(exact - state.model)
        assert missed <= sekhari.distance_bound(PROBLEM, N, CAPACITY)
        assert missed < moved / 5
    # The fourth edit is one too many: a new batch begins with the minimiser of its database.
    database, state, cost = history[4]
    np.testing.assert_allclose(state.model, reference.minimiser(database, L2), atol=1e-5)
    assert int(cost.retrained) == 1
    assert int(state.edits) == 0
    assert int(history[5][1].edits) == 1


def test_the_batch_does_not_remember_its_order(made):
    edits = [flip(3), flip(19), dd.deletion(PROBLEM.loss, DATABASE, [8])]
    forth, back = serve(made, edits)[-1][1], serve(made, edits[::-1])[-1][1]
    for one, two in zip(forth, back, strict=True):
        np.testing.assert_allclose(one, two, atol=1e-6)


def test_an_edit_that_is_not_applied_changes_nothing(made):
    outside = flip(3)._replace(index=jnp.array([N], jnp.int32))
    _, (_, state, _) = serve(made, [outside])
    np.testing.assert_array_equal(state.model, state.minimum)
    assert int(state.edits) == 0


def test_the_release_carries_the_calibrated_noise(made):
    system, *_ = made
    state = sekhari.NewtonState(*(jnp.ones(50),) * 2, jnp.eye(50), jnp.zeros(50), jnp.int32(0))
    keys = jax.random.split(jax.random.key(3), 400)
    errors = np.asarray(jax.vmap(system.publish, in_axes=(0, None))(keys, state)) - 1
    noise = sekhari.calibrate(PROBLEM, **CLAIM)
    # 20000 squared normals: relative deviation 0.01.
    assert np.mean(errors**2) == pytest.approx(noise**2, rel=0.05)
    assert abs(np.mean(errors)) < 5 * noise / math.sqrt(errors.size)


def test_calibration_by_hand():
    longest = 1 + ROUNDING  # of a feature vector that the domain accepts
    bound = 2 / (6 * math.sqrt(3)) * 3**2 / (0.1**3 * 30**2) * longest**5
    assert sekhari.distance_bound(PROBLEM, N, 3) == pytest.approx(bound)
    doubled = dd.Problem(dd.losses.logistic(feature_norm=2.0), l2=0.1)
    assert sekhari.distance_bound(doubled, N, 3) == pytest.approx(2**5 * bound)
    noise = sekhari.calibrate(PROBLEM, **CLAIM | {"epsilon": 0.5})
    assert noise == pytest.approx(bound / 0.5 * math.sqrt(2 * math.log(1.25e3)))


def test_the_noise_is_never_below_what_float32_holds():
    """100 roundings of L/λ: the formula alone would give 7e-10 here, and releases no noise."""
    heavy = dd.Problem(dd.losses.logistic(feature_norm=2.0), l2=1.0)
    claim = {"n": 30_000, "epsilon": 1.0, "delta": 1e-3, "capacity": 1}
    least = 100 * 2.0**-23 * 2.0
    assert sekhari.calibrate(heavy, **claim) == pytest.approx(least)
    with pytest.raises(CertificateRefused, match="below"):
        sekhari.system(heavy, noise=0.9 * least, **claim)
    assert sekhari.calibrate(heavy, **claim | {"n": 30}) > least


def test_what_it_cannot_certify_is_refused(made):
    least = sekhari.calibrate(PROBLEM, **CLAIM)
    with pytest.raises(CertificateRefused, match="below"):
        sekhari.system(PROBLEM, noise=0.9 * least, **CLAIM)
    with pytest.raises(CertificateRefused, match="epsilon"):
        sekhari.calibrate(PROBLEM, **CLAIM | {"epsilon": 12.0, "delta": 1e-6})
    with pytest.raises(InputError):
        sekhari.system(dd.Problem(dd.losses.huber(), l2=L2), noise=1.0, **CLAIM)
    with pytest.raises(CertificateRefused, match="n = 30"):
        made[0].learn(jax.random.key(0), signed(N + 1, DIM))
