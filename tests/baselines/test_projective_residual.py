"""The projective residual update against refits in NumPy: a projection of the exact update."""

import jax
import jax.numpy as jnp
import newton_reference as reference
import numpy as np
import pytest
from problems import deleting, signed

import dd_jax as dd
from dd_jax.baselines import projective_residual
from dd_jax.errors import InputError

N, DIM, L2 = 25, 4, 0.02
DATABASE = signed(N, DIM, seed=8)
PROBLEMS = {
    "squared": dd.Problem(dd.losses.squared(), l2=L2),
    "logistic": dd.Problem(dd.losses.logistic(), l2=L2),
}


@pytest.fixture(scope="module", params=PROBLEMS)
def made(request):
    """The loss's name, the state after learning, and deletion of two rows at a time, compiled."""
    system = projective_residual.system(PROBLEMS[request.param])
    state, cost = jax.jit(system.learn)(jax.random.key(0), DATABASE)
    assert cost.hessians == N * cost.solves
    return request.param, state, jax.jit(deleting(system))


def target(name, database, start):
    """What the update aims at: the ridge refit, or one Newton step of the logistic objective."""
    if name == "squared":
        return reference.ridge(database, L2)
    gradient = reference.gradient(start, database, L2)
    return start - np.linalg.solve(reference.hessian(start, database, L2), gradient)


def projector(rows):
    """Onto the span of rows, by a QR decomposition."""
    basis, _ = np.linalg.qr(np.asarray(rows, np.float64).T)
    return basis @ basis.T


def flip(rows):
    features, label = (leaf[jnp.asarray(rows)] for leaf in DATABASE)
    return dd.replacement(rows, dd.Labelled(features[:, ::-1], -label))


def test_a_deletion_projects_the_exact_update(made):
    name, state, delete = made
    edit = dd.deletion(PROBLEMS[name].loss, DATABASE, [3, 11])
    new, cost = delete(jax.random.key(1), DATABASE, edit, state)
    start = np.asarray(state.fit, np.float64)
    update = target(name, dd.apply_edit(DATABASE, edit), start) - start
    span = projector(DATABASE.features[jnp.array([3, 11])])
    np.testing.assert_allclose(new.model - state.model, span @ update, atol=1e-5)
    # A projection it is, and not the update.
    assert np.linalg.norm(update - span @ update) > 0.05 * np.linalg.norm(update)
    assert np.linalg.norm(span @ update) > 1e-2
    assert tuple(map(int, cost)) == (4, 4, 2, 0)


def test_a_replacement_projects_onto_old_and_new_rows(made):
    """Two rows out and two in span all four dimensions: the update is then exact."""
    name, state, delete = made
    edit = flip([3, 11])
    new, _ = delete(jax.random.key(1), DATABASE, edit, state)
    exact = target(name, dd.apply_edit(DATABASE, edit), np.asarray(state.fit, np.float64))
    np.testing.assert_allclose(new.model, exact, atol=2e-5)


def test_an_edit_that_is_not_applied_changes_nothing(made):
    _, state, delete = made
    outside = flip([3, 11])._replace(index=jnp.array([N, -1], jnp.int32))
    new, _ = delete(jax.random.key(1), DATABASE, outside, state)
    np.testing.assert_allclose(new.model, state.model, atol=1e-7)


def test_the_published_leave_out_formula():
    """r_i = (y_i - H_iY)/(1 - H_ii), S_ij = -H_ij/(1 - H_ii), S_ii = 1, ŷ = y - S⁻¹r."""
    gone = [3, 11]
    a, y = reference.rows(DATABASE)
    inverse = np.linalg.inv(a.T @ a + N * L2 * np.eye(DIM))
    hat = a @ inverse @ a.T
    slack = 1 - np.diag(hat)[gone]
    residual = (y - hat @ y)[gone] / slack
    system = -hat[np.ix_(gone, gone)] / slack[:, None]
    np.fill_diagonal(system, 1)
    published = y[gone] - np.linalg.solve(system, residual)
    fit = reference.ridge(DATABASE, L2)
    state = projective_residual.ProjectiveState(
        *(jnp.asarray(x, jnp.float32) for x in (fit, fit, inverse))
    )
    edit = dd.deletion(PROBLEMS["squared"].loss, DATABASE, gone)
    change = projective_residual.replaced(DATABASE, edit)
    rows, move = projective_residual.refit_predictions(PROBLEMS["squared"], state, change)
    np.testing.assert_allclose((rows @ state.fit + move)[:2], published, atol=1e-5)
    np.testing.assert_array_equal(move[2:], 0)


def test_a_later_request_moves_on_from_the_current_model(made):
    """Its own projection, with the fit of learning time, on top of what came before."""
    name, state, delete = made
    loss = PROBLEMS[name].loss
    first, second = (dd.deletion(loss, DATABASE, rows) for rows in ([3, 11], [5, 6]))
    moved, _ = delete(jax.random.key(1), DATABASE, first, state)
    after, _ = delete(jax.random.key(1), dd.apply_edit(DATABASE, first), second, moved)
    start = np.asarray(state.fit, np.float64)
    alone = target(name, dd.apply_edit(DATABASE, second), start)
    span = projector(DATABASE.features[jnp.array([5, 6])])
    expected = moved.model + span @ (alone - np.asarray(moved.model, np.float64))
    np.testing.assert_allclose(after.model, expected, atol=2e-5)


def test_other_losses_are_refused():
    for loss in (dd.losses.huber(), dd.losses.squared(intercept=True)):
        with pytest.raises(InputError):
            projective_residual.system(dd.Problem(loss, l2=L2))
    assert projective_residual.system(PROBLEMS["squared"]).guarantee.notion == "none"


def test_predictions_are_values_or_labels():
    release, rows = jnp.array([2.0, -1.0]), jnp.array([[1.0, 0.5], [0.0, 3.0]])
    for name, expected in (("squared", [1.5, -3.0]), ("logistic", [1.0, -1.0])):
        predict = projective_residual.system(PROBLEMS[name]).predict
        np.testing.assert_allclose(predict(release, rows), expected)
