"""What the Newton-step systems share: Hessians and minimisers of single-index losses.

A single-index loss φ(⟨a, θ⟩, y) has gradient φ'a and Hessian φ''aaᵀ, so sums over records are
matrix products. The objective is ℒ(θ) = (1/n) Σ φ(⟨a, θ⟩, y) + (λ/2)‖θ‖², perhaps tilted by
⟨b, θ⟩/n.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from dd_jax import erm
from dd_jax.baselines.base import Cost, Replaced, cost
from dd_jax.erm import Problem
from dd_jax.errors import CertificateRefused, InputError
from dd_jax.guarantees import floats
from dd_jax.guarantees.renyi import gdp_delta
from dd_jax.types import num_records

# max |φ'''| of a catalogue loss in its score, for labels in its domain: σ'' of the sigmoid peaks
# at 1/(6√3), and a label |y| ≤ 1 enters as y³.
CURVATURE_LIPSCHITZ = {"logistic": 1 / (6 * math.sqrt(3)), "squared error": 0.0}

MAX_STEPS = 50


def require_loss(problem: Problem, names: tuple[str, ...]) -> None:
    """Refuse what a Newton-step system is not written for.

    Raises:
        InputError: another loss than the catalogue's named ones, an intercept, or clipping.
    """
    loss = problem.loss
    proved = loss.constants.established == "proved"
    if not proved or loss.name not in names or loss.scores is None:
        raise InputError(
            f"{loss.name} is not a loss that this system is written for; "
            f"use the catalogue's {' or '.join(names)} loss."
        )
    if loss.scores.intercept:
        raise InputError(
            "this system has no intercept; append a column of ones to the features instead."
        )
    if problem.clip_norm is not None:
        raise InputError(
            f"clip_norm = {problem.clip_norm}; this system needs the loss as it is: "
            f"drop the clip norm."
        )


def curvature_lipschitz(problem: Problem) -> float:
    """γ', the Lipschitz constant of φ'' in the score: 1/(6√3) for logistic, 0 for squared error."""
    return CURVATURE_LIPSCHITZ[problem.loss.name]


def lipschitz(problem: Problem) -> float:
    """The Lipschitz constant L of one record's loss; it equals the radius R for logistic loss."""
    return float(problem.constants.loss.lipschitz or 0)


def hessian_lipschitz(problem: Problem) -> float:
    """γ'R³, the Lipschitz constant of one record's Hessian, for the logistic loss."""
    return curvature_lipschitz(problem) * lipschitz(problem) ** 3


def require_gaussian(shift: float, epsilon: float, delta: float, complaint: str) -> None:
    """Check a published constant by the exact δ of a Gaussian shifted by `shift` deviations.

    Raises:
        CertificateRefused: the exact δ exceeds the target: the classical Gaussian mechanism behind
            the constant does not hold for large ε.
    """
    exact = gdp_delta(shift, epsilon)
    if exact > delta:
        raise CertificateRefused(
            f"at ε = {epsilon:g}, δ = {delta:g} {complaint} (exact δ = {exact:.3g}); "
            f"give a smaller epsilon."
        )


def least_float32_noise(problem: Problem) -> float:
    """The least noise on a minimiser that float32 resolves: 100 roundings of L/λ.

    Gradients have the size of L, and an error in the gradient moves the minimiser by 1/λ times it.
    """
    return floats.least_float32_noise(lipschitz(problem) / problem.constants.l2)


def slopes(problem: Problem, params: Array, records: PyTree) -> tuple[Array, Array, Array]:
    """(a, φ', φ'') of each record: features, slope and curvature in the score ⟨a, θ⟩."""
    scores: Any = problem.loss.scores
    features, label = scores.split(records)
    margins = params @ features.T
    slope, curvature = jax.jvp(
        lambda t: scores.slope(t, label), (margins,), (jnp.ones_like(margins),)
    )
    return features, slope, curvature


def gradient_change(problem: Problem, params: Array, change: Replaced) -> Array:
    """Δ = Σ ∇ℓ(θ; old) - Σ ∇ℓ(θ; new) over the replacements that are made."""

    def total(records):
        features, slope, _ = slopes(problem, params, records)
        return jnp.where(change.accepted, slope, 0) @ features

    return total(change.old) - total(change.new)


def hessian_change(problem: Problem, params: Array, change: Replaced) -> Array:
    """Σ ∇²ℓ(θ; new) - Σ ∇²ℓ(θ; old) over the replacements that are made."""

    def total(records):
        features, _, curvature = slopes(problem, params, records)
        return (features.T * jnp.where(change.accepted, curvature, 0)) @ features

    return total(change.new) - total(change.old)


def hessian(problem: Problem, params: Array, database: PyTree) -> Float[Array, "d d"]:
    """∇²ℒ(θ) = (1/n) Aᵀ diag(φ'') A + λI."""
    features, _, curvature = slopes(problem, params, database)
    n, dim = features.shape
    mean = (features.T * curvature) @ features / n
    return mean + jnp.asarray(problem.l2, mean.dtype) * jnp.eye(dim, dtype=mean.dtype)


class Minimum(NamedTuple):
    """What `minimise` found, and how.

    Attributes:
        params: θ*.
        gradient_norm: ‖∇ℒ(θ*)‖, tilt included.
        steps: Newton steps, each with one Hessian and one solve.
        evaluations: gradients of the whole objective, those of the line search included.
    """

    params: Float[Array, "d"]
    gradient_norm: Float[Array, ""]
    steps: Int[Array, ""]
    evaluations: Int[Array, ""]


def minimise(problem: Problem, database: PyTree, tilt: Array | None = None) -> Minimum:
    """argmin ℒ(θ) + ⟨b, θ⟩/n by Newton's method from zero; b is the tilt, zero if not given.

    A step is halved until the norm of the gradient falls, which it does along a Newton direction.
    The loop ends once the norm is that of rounding; `dd_jax.erm.minimise` takes many more steps to
    go below it.
    Assumes: a convex single-index loss, not clipped.
    """
    start = problem.loss.template(database)
    tilt = jnp.zeros_like(start) if tilt is None else tilt / num_records(database)
    rounding = 4 * jnp.finfo(start.dtype).eps

    def field(theta):
        return erm.gradient(problem, theta, database) + tilt

    def unfinished(carry):
        theta, residual, falls, steps, _ = carry
        small = _norm(residual) <= rounding * (1 + _norm(theta))
        return falls & ~small & (steps < MAX_STEPS)

    def newton(carry):
        theta, residual, _, steps, evaluations = carry
        direction = jnp.linalg.solve(hessian(problem, theta, database), residual)

        def too_long(trial):
            scale, candidate, _ = trial
            enough = _norm(candidate) <= (1 - 1e-4 * scale) * _norm(residual)
            return ~enough & (scale > 1e-6)

        def halve(trial):
            scale, _, tried = trial
            return scale / 2, field(theta - scale / 2 * direction), tried + 1

        # The loop starts at scale 2 with the gradient of the unmoved model, which counts as too
        # long a step, so that the first step it tries is the full one.
        still = (2 * jnp.ones_like(residual[0]), residual, jnp.int32(0))
        scale, candidate, tried = jax.lax.while_loop(too_long, halve, still)
        falls = _norm(candidate) < _norm(residual)
        theta = jnp.where(falls, theta - scale * direction, theta)
        residual = jnp.where(falls, candidate, residual)
        return theta, residual, falls, steps + 1, evaluations + tried

    carry = (start, field(start), jnp.array(True), jnp.int32(0), jnp.int32(1))
    theta, residual, _, steps, evaluations = jax.lax.while_loop(unfinished, newton, carry)
    return Minimum(theta, _norm(residual), steps, evaluations)


def _norm(vector: Array) -> Array:
    return jnp.sqrt(jnp.sum(vector**2))


def training_cost(minimum: Minimum, n: int) -> Cost:
    """The cost of a training: n gradients per evaluation, n Hessians and one solve per step."""
    steps = minimum.steps
    return cost(n * minimum.evaluations, n * steps, steps, retrained=1)


def spectral_norm_bound(features: Float[Array, "n d"]) -> Array:
    """An upper bound on ‖A‖₂, never below it: the largest eigenvalue of AᵀA plus its rounding.

    A computed Gram matrix differs from AᵀA by at most n·u·‖A‖_F² in norm (u the unit roundoff), and
    a symmetric eigenvalue solver errs by a small multiple of d·u·‖A‖_F²; 4(n + 8d)u·tr(AᵀA) covers
    both. A power iteration approaches the norm from below and would not be a bound.
    """
    n, dim = features.shape
    gram = features.T @ features
    rounding = 4 * (n + 8 * dim) * jnp.finfo(features.dtype).eps
    largest = jnp.linalg.eigvalsh(gram)[-1]
    return jnp.sqrt(jnp.maximum(largest, 0) + rounding * jnp.trace(gram))
