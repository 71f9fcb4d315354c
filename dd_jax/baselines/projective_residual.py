"""The projective residual update (Izzo et al. 2021): move the model in the span of removed rows.

For ridge regression the predictions that a refit without k rows would make on these rows follow
from the hat matrix; the update moves θ within the span of the rows until it makes these
predictions. It is only the projection of the exact update θ_refit - θ onto that span. Logistic
regression is treated as its last Newton step, a weighted ridge regression on working responses; the
update is then the projection of one Newton step.

Adapted to replacement at fixed n: the regulariser nλ stays, and rows that enter are rows of the
same linear algebra with the opposite sign, so the span is that of old and new rows together; null
records are zero rows and drop out. In place of the n × n hat matrix the d × d inverse inside it is
kept. The authors treat one batch: a later request is served with the hat matrix and the fit of
learning time, so rows deleted before it still weigh in its predictions. (With that inverse kept, an
exact ridge refit would cost about as much; the update is here for the comparison.)
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from dd_jax.baselines import newton
from dd_jax.baselines.base import (
    Guarantee,
    Replaced,
    System,
    add_costs,
    cost,
    linear_labels,
    publish_part,
    replaced,
)
from dd_jax.erm import Problem
from dd_jax.types import num_records

LOSSES = ("squared error", "logistic")

GUARANTEE = Guarantee(
    notion="none",
    epsilon=None,
    delta=None,
    adaptive="no",
    keeps="the inverse inside the hat matrix, the fit of learning time",
    conditions=("one batch", "squared or logistic loss with L2 regulariser"),
    reference="Izzo et al. 2021, linear regression and its extension to logistic regression",
)


class ProjectiveState(NamedTuple):
    """What is carried between requests.

    Attributes:
        model: θ, the release.
        fit: θ̂, the exact minimiser of learning time.
        inverse: K = (AᵀWA + nλI)⁻¹ at θ̂; the hat matrix is W^½AKAᵀW^½.
    """

    model: Float[Array, "d"]
    fit: Float[Array, "d"]
    inverse: Float[Array, "d d"]


def system(problem: Problem) -> System:
    """The projective residual update for ridge or logistic regression; it has no calibration.

    Guarantee: none. For one batch of ridge regression the model agrees with an exact refit on the
    span of the edited rows and with the old model across it.
    Cost: training is Newton's method, one Hessian more and its inverse; a request evaluates 2r
    gradients and 2r curvatures and factors two matrices of 2r rows, whatever n is.
    """
    newton.require_loss(problem, LOSSES)

    def learn(key, database):
        del key
        n = num_records(database)
        minimum = newton.minimise(problem, database)
        inverse = jnp.linalg.inv(n * newton.hessian(problem, minimum.params, database))
        state = ProjectiveState(minimum.params, minimum.params, inverse)
        return state, add_costs(newton.training_cost(minimum, n), cost(hessians=n, solves=1))

    def delete(key, before, edit, after, state):
        del key
        rows, move = refit_predictions(problem, state, replaced(before, edit))
        # Towards the refit's predictions from the model as it is now, not from the fit.
        short = rows @ state.fit + move - rows @ state.model
        model = state.model + jnp.linalg.pinv(rows) @ short
        count = 2 * edit.index.shape[0]
        return state._replace(model=model), cost(count, count, 2)

    return System(
        name="projective-residual",
        learn=learn,
        delete=delete,
        publish=publish_part,
        predict=_values if problem.loss.name == "squared error" else linear_labels,
        secret=lambda state: (state.fit, state.inverse),
        guarantee=GUARANTEE,
        domain=problem.loss.domain,
    )


def refit_predictions(
    problem: Problem, state: ProjectiveState, change: Replaced
) -> tuple[Float[Array, "rows d"], Float[Array, "rows"]]:
    """Weighted rows Z that leave or enter, and Z(θ' - θ̂) for the refit θ' on the edited database.

    With s = -1 for rows that leave and 1 for rows that enter, e the weighted residuals -φ'/√φ'' at
    θ̂ and H = ZKZᵀ: Z(θ' - θ̂) = (I + H diag(s))⁻¹ H diag(s) e. For deletions alone this is the
    published leave-k-out formula, y - ŷ = (I - H)⁻¹(y - Zθ̂). Exact for squared error; for the
    logistic loss θ' is one Newton step from θ̂.
    """
    old, old_residual = _weighted(problem, state.fit, change.old, change.accepted)
    new, new_residual = _weighted(problem, state.fit, change.new, change.accepted)
    rows = jnp.concatenate([old, new])
    residual = jnp.concatenate([old_residual, new_residual])
    sign = jnp.concatenate([-jnp.ones_like(old_residual), jnp.ones_like(new_residual)])
    signed_hat = (rows @ state.inverse @ rows.T) * sign
    identity = jnp.eye(rows.shape[0], dtype=rows.dtype)
    return rows, jnp.linalg.solve(identity + signed_hat, signed_hat @ residual)


def _weighted(problem: Problem, params: Array, records, accepted: Array) -> tuple[Array, Array]:
    """(√φ'' a, -φ'/√φ''); zero where a replacement is not made or the record is null."""
    features, slope, curvature = newton.slopes(problem, params, records)
    counted = accepted & (curvature > 0)
    root = jnp.sqrt(jnp.where(counted, curvature, 1))
    rows = jnp.where(counted[:, None], root[:, None] * features, 0)
    return rows, jnp.where(counted, -slope / root, 0)


def _values(release: Array, features: Array) -> Array:
    """The regression's predictions."""
    return features @ release
