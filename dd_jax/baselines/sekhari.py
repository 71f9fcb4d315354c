"""Newton-step unlearning (Sekhari et al. 2021): the exact minimiser is kept, a noisy one published.

Learning keeps the minimiser ŵ and the Hessian of the objective there. Unlearning a batch takes one
Newton step from ŵ with the batch's gradients and Hessians exchanged, and publishes it with Gaussian
noise that covers the distance to the minimiser of the edited database.

The published analysis has one batch of r records, fixed in advance. Here later requests join the
batch: the step is always taken from the original ŵ with all edits so far, whose sums are kept, so
the state is a function of the batch and not of its order. When the edits exceed the capacity r that
the noise was made for, everything is retrained and a new batch begins; that is this library's
addition. Every release draws fresh noise around nearly the same point, which many releases average
away: the claim is for one release.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dd_jax import checks
from dd_jax.baselines import newton
from dd_jax.baselines.base import (
    Guarantee,
    System,
    add_costs,
    check_planned,
    cost,
    linear_labels,
    perturb,
    replaced,
)
from dd_jax.erm import Problem
from dd_jax.errors import CertificateRefused


class NewtonState(NamedTuple):
    """What is carried between requests; all of it is secret.

    Attributes:
        model: the model before noise: ŵ after learning, ŵ + H⁻¹Δ/n after edits.
        minimum: ŵ, the minimiser that the batch began with.
        hessian: H, the Hessian at ŵ of the mean objective on the current database.
        gradient: Δ/n, the mean of ∇ℓ(ŵ; old) - ∇ℓ(ŵ; new) over all edits of the batch.
        edits: rows edited since ŵ was trained.
    """

    model: Float[Array, "d"]
    minimum: Float[Array, "d"]
    hessian: Float[Array, "d d"]
    gradient: Float[Array, "d"]
    edits: Int[Array, ""]


def distance_bound(problem: Problem, n: int, capacity: int) -> float:
    """The bound 2M r²L²/(λ³n²) on the distance to the edited minimiser (Sekhari et al. 2021).

    For replacements at fixed n the regulariser cancels: ‖Δ/n‖ ≤ 2rL/n with L of the loss alone, so
    ‖step‖ ≤ 2rL/(λn); the gradient left behind is at most M‖step‖²/2, and λ-strong convexity
    divides it by λ. M = γ'R³ is the Lipschitz constant of one record's Hessian. The published
    constant for deletions, with L + λ‖w‖ in place of L, has the same form.
    """
    newton.require_loss(problem, ("logistic",))
    share = float(checks.count("capacity", capacity) / checks.count("n", n))
    moved = share * newton.lipschitz(problem)
    return 2 * newton.hessian_lipschitz(problem) * moved**2 / problem.constants.l2**3


def calibrate(problem: Problem, *, n: int, epsilon: float, delta: float, capacity: int) -> float:
    """The noise deviation (g/ε)√(2 log(1.25/δ)) for g = `distance_bound` (Sekhari et al. 2021).

    The distance g falls with n², and the minimiser is found up to rounding: noise below
    `newton.least_float32_noise` would hide nothing, so the noise is at least that.

    Raises:
        CertificateRefused: the classical Gaussian mechanism does not hold at this ε.
    """
    epsilon, delta = float(checks.positive("epsilon", epsilon)), float(checks.delta(delta))
    multiple = math.sqrt(2 * math.log(1.25 / delta)) / epsilon
    newton.require_gaussian(1 / multiple, epsilon, delta, "the published noise is too small")
    published = distance_bound(problem, n, capacity) * multiple
    return max(published, newton.least_float32_noise(problem))


def system(
    problem: Problem, *, n: int, noise: float, capacity: int, epsilon: float, delta: float
) -> System:
    """Newton-step unlearning for L2-regularised logistic regression.

    Cost: training is Newton's method and one Hessian more; a request evaluates 2r gradients and 2r
    Hessians and solves one d × d system, whatever n is, plus a training when the capacity is
    exceeded.

    Args:
        problem: logistic loss without intercept or clip norm, and λ.
        n: number of records.
        noise: deviation of the published noise, at least what `calibrate` gives.
        capacity: r, edited rows per batch.
        epsilon, delta: the claim.

    Raises:
        CertificateRefused: the noise is too small for the claim.
    """
    least = calibrate(problem, n=n, epsilon=epsilon, delta=delta, capacity=capacity)
    if float(checks.positive("noise", noise)) < least * (1 - 1e-9):
        raise CertificateRefused(
            f"noise = {noise:g} is below the {least:g} that (ε, δ) = ({epsilon:g}, {delta:g}) "
            f"needs for {capacity} edits; give at least that or a smaller capacity."
        )

    def train(database):
        minimum = newton.minimise(problem, database)
        matrix = newton.hessian(problem, minimum.params, database)
        zero = jnp.zeros_like(minimum.params)
        state = NewtonState(minimum.params, minimum.params, matrix, zero, jnp.int32(0))
        return state, add_costs(newton.training_cost(minimum, n), cost(hessians=n))

    def learn(key, database):
        del key
        check_planned(database, n)
        return train(database)

    def delete(key, before, edit, after, state):
        del key
        change = replaced(before, edit)
        edits = state.edits + jnp.sum(change.accepted, dtype=jnp.int32)
        rows = 2 * edit.index.shape[0]

        def join():
            return _join(problem, n, change, state, edits), cost(rows, rows, 1)

        return jax.lax.cond(edits > capacity, lambda: train(after), join)

    return System(
        name="sekhari",
        learn=learn,
        delete=delete,
        publish=lambda key, state: perturb(key, state.model, noise),
        predict=linear_labels,
        secret=lambda state: state,
        guarantee=_guarantee(epsilon, delta, capacity),
        domain=problem.loss.domain,
    )


def _join(problem: Problem, n: int, change, state: NewtonState, edits: Array) -> NewtonState:
    """All edits of the batch so far, this one included, as one Newton step from ŵ."""
    anchor = state.minimum
    matrix = state.hessian + newton.hessian_change(problem, anchor, change) / n
    gradient = state.gradient + newton.gradient_change(problem, anchor, change) / n
    model = anchor + jnp.linalg.solve(matrix, gradient)
    return NewtonState(model, anchor, matrix, gradient, edits)


def _guarantee(epsilon: float, delta: float, capacity: int) -> Guarantee:
    return Guarantee(
        notion="(ε,δ)-unlearning",
        epsilon=float(epsilon),
        delta=float(delta),
        keeps="un-noised model, Hessian, gradient sum of the batch",
        conditions=(
            f"one batch of at most {capacity} edited rows, fixed in advance",
            "logistic loss with L2 regulariser, ‖a‖ ≤ R on every row",
            "the minimiser is exact up to rounding, which the noise outweighs",
            "one release after the batch",
        ),
        reference="Sekhari et al. 2021, strongly convex losses; replacement at fixed n",
    )
