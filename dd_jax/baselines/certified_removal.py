"""Certified removal (Guo et al. 2019): a Newton step per request, and a budget of what it misses.

The model minimises L_b(w) = Σ ℓ(w; x) + (nλ/2)‖w‖² + ⟨b, w⟩ with a secret b ~ N(0, σ²I). A request
takes one Newton step; what the step leaves of the gradient is bounded and added up, and once the
sum exceeds the budget everything is retrained with a fresh b.

Edits are replacements at fixed n, so nλ stays and the published change ∇ℓ(removed) + λw becomes
Δ = Σ ∇ℓ(w; old) - Σ ∇ℓ(w; new); a null record makes the second sum zero.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dd_jax import checks
from dd_jax.baselines import newton
from dd_jax.baselines.base import (
    Guarantee,
    System,
    add_costs,
    cost,
    linear_labels,
    perturb,
    replaced,
)
from dd_jax.erm import Problem
from dd_jax.errors import CertificateRefused
from dd_jax.types import num_records


class RemovalState(NamedTuple):
    """What is carried between requests.

    Attributes:
        model: w, the release.
        perturbation: b.
        spent: bound on ‖∇L_b(w)‖ for the current database: training residual and all steps since.
    """

    model: Float[Array, "d"]
    perturbation: Float[Array, "d"]
    spent: Float[Array, ""]


def budget(noise: float, epsilon: float, delta: float) -> float:
    """The residual norm σε/√(2 log(1.5/δ)) that b of deviation σ hides (Guo et al. 2019, Thm 3).

    The classical Gaussian mechanism behind it does not hold for large ε, so the exact δ of a
    Gaussian shift by the whole budget is compared with the target.

    Raises:
        CertificateRefused: the exact δ exceeds the target.
    """
    noise = float(checks.positive("noise", noise))
    epsilon = float(checks.positive("epsilon", epsilon))
    delta = float(checks.delta(delta))
    shift = epsilon / math.sqrt(2 * math.log(1.5 / delta))
    complaint = "the published budget exceeds what Gaussian noise hides"
    newton.require_gaussian(shift, epsilon, delta, complaint)
    return noise * shift


def worst_residual(problem: Problem, n: int, edits_per_request: int = 1) -> float:
    """The residual 4γ'R³L²r²/(λ²n), the most that r replacements leave (Guo et al. 2019, Thm 1).

    ‖Δ‖ ≤ 2rL and H ≥ nλI give ‖Δw‖ ≤ 2rL/(nλ), and ‖A‖₂² ≤ nR²; L = R for the logistic loss.
    """
    newton.require_loss(problem, ("logistic",))
    n = int(checks.count("n", n))
    rows = int(checks.count("edits_per_request", edits_per_request))
    step = 2 * rows * newton.lipschitz(problem) / (n * problem.constants.l2)
    return newton.hessian_lipschitz(problem) * n * step**2


def calibrate(
    problem: Problem,
    *,
    n: int,
    epsilon: float,
    delta: float,
    requests: int,
    edits_per_request: int = 1,
    residual: float | None = None,
) -> float:
    """The σ that lets this many requests pass without retraining, and at least `least_noise`.

    The training residual, of the size of rounding, must also fit into the budget.

    Args:
        problem: logistic loss without intercept or clip norm, and λ.
        n: number of records.
        epsilon, delta: the claim.
        requests: requests between two trainings.
        edits_per_request: r.
        residual: what a request may leave; `worst_residual` unless given. The bounds that a run
            adds up are often far smaller; a smaller number here risks retraining, never the claim.
    """
    worst = worst_residual(problem, n, edits_per_request)
    each = worst if residual is None else float(checks.positive("residual", residual))
    needed = float(checks.count("requests", requests)) * each / budget(1.0, epsilon, delta)
    return max(needed, least_noise(problem, n))


def least_noise(problem: Problem, n: int) -> float:
    """The least σ that float32 resolves: b moves the minimiser by at least ‖b‖/(n(λ+β))."""
    curvature = problem.constants.l2 + float(problem.constants.loss.smoothness or 0)
    return n * curvature * newton.least_float32_noise(problem)


def residual_bound(problem: Problem, features: Array, step: Array) -> Array:
    """The bound γ'R‖A‖₂‖Δw‖‖AΔw‖ on what a Newton step leaves (Guo et al. 2019, Cor. 1).

    It bounds ‖∇L_b(w + Δw) - ∇L_b(w) - ∇²L_b(w)Δw‖. The difference is Aᵀ(c ⊙ AΔw) with
    c_i = ∫₀¹ φ''(t_i + s⟨a_i, Δw⟩) - φ''(t_i) ds, and
    |c_i| ≤ γ'|⟨a_i, Δw⟩|/2 ≤ γ'R‖Δw‖; the published form, used here, does not use the factor 1/2.
    Assumes: ‖a‖ ≤ R on every row, which the loss's domain enforces.
    """
    constant = newton.curvature_lipschitz(problem) * newton.lipschitz(problem)
    size = jnp.linalg.norm(step) * jnp.linalg.norm(features @ step)
    return constant * newton.spectral_norm_bound(features) * size


def system(problem: Problem, *, noise: float, epsilon: float, delta: float) -> System:
    """Certified removal for L2-regularised logistic regression.

    Cost: training is Newton's method, n gradients and n Hessians per step; a request evaluates 2r
    gradients and n Hessians and factors two d × d matrices (the step, ‖A‖₂), plus a training if the
    budget is spent.

    A model whose training residual alone exceeds the budget has no certificate and is withheld: the
    release is then NaN.

    Args:
        problem: logistic loss without intercept or clip norm, and λ.
        noise: σ of b, from `calibrate` or any other value.
        epsilon, delta: the claim.

    Raises:
        CertificateRefused: when learning, noise below `least_noise` for that many records.
    """
    newton.require_loss(problem, ("logistic",))
    allowed = budget(noise, epsilon, delta)

    def draw(key, database):
        return perturb(key, problem.loss.template(database), noise)

    def train(perturbation, database):
        minimum = newton.minimise(problem, database, perturbation)
        n = num_records(database)
        state = RemovalState(minimum.params, perturbation, n * minimum.gradient_norm)
        return state, newton.training_cost(minimum, n)

    def learn(key, database):
        least = least_noise(problem, num_records(database))
        if noise < least:
            raise CertificateRefused(
                f"noise = {noise:g} is lost in the rounding of float32 for "
                f"{num_records(database)} records; give at least {least:.3g}."
            )
        return train(draw(key, database), database)

    def delete(key, before, edit, after, state):
        stepped = _step(problem, replaced(before, edit), after, state)
        step_cost = cost(2 * edit.index.shape[0], num_records(before), 2)
        fresh = draw(key, before)

        def retrain():
            anew, training = train(fresh, after)
            return anew, add_costs(step_cost, training)

        return jax.lax.cond(stepped.spent > allowed, retrain, lambda: (stepped, step_cost))

    def publish(key, state):
        del key
        return jnp.where(state.spent <= allowed, state.model, jnp.nan)

    return System(
        name="certified-removal",
        learn=learn,
        delete=delete,
        publish=publish,
        predict=linear_labels,
        secret=lambda state: (state.perturbation, state.spent),
        guarantee=_guarantee(epsilon, delta),
        domain=problem.loss.domain,
    )


def _step(problem: Problem, change, edited, state: RemovalState) -> RemovalState:
    """w + H⁻¹Δ with H the Hessian of the edited database at w, and what it may have missed."""
    n = num_records(edited)
    matrix = n * newton.hessian(problem, state.model, edited)
    step = jnp.linalg.solve(matrix, newton.gradient_change(problem, state.model, change))
    features, _, _ = newton.slopes(problem, state.model, edited)
    missed = residual_bound(problem, features, step)
    return RemovalState(state.model + step, state.perturbation, state.spent + missed)


def _guarantee(epsilon: float, delta: float) -> Guarantee:
    return Guarantee(
        notion="certified removal",
        epsilon=float(epsilon),
        delta=float(delta),
        keeps="perturbation vector b, residual budget spent",
        conditions=(
            "logistic loss with L2 regulariser, ‖a‖ ≤ R on every row",
            "the training residual counts against the budget; rounding beyond it does not",
            "when everything is retrained depends on b, which the claim does not account for",
            "b stays secret and is drawn again when everything is retrained",
            "one release after the removal",
            "edits that do not depend on earlier releases",
        ),
        reference="Guo et al. 2019, Theorem 3 and Corollary 1; replacement at fixed n",
    )
