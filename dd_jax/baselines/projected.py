"""Projected gradient descent on a ball: the inner loop that several compared systems share."""

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from dd_jax.erm import Problem, gradient


def project(params: PyTree, radius) -> PyTree:
    """The nearest model in the ball of radius R around 0."""
    leaves = jax.tree.leaves(params)
    norm = jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in leaves))
    limit = jnp.asarray(radius, norm.dtype)
    return jax.tree.map(lambda leaf: leaf * (limit / jnp.maximum(norm, limit)), params)


def step(params: PyTree, slope: PyTree, *, step_size, radius) -> PyTree:
    """P(θ - η g)."""
    moved = jax.tree.map(
        lambda weight, part: weight - jnp.asarray(step_size, weight.dtype) * part, params, slope
    )
    return project(moved, radius)


def descend(
    params: PyTree, database: PyTree, problem: Problem, *, step_size, radius, num_steps: int
) -> PyTree:
    """K steps θ ← P(θ - η ∇ℒ_𝒟(θ)); n K gradients of single records."""

    def body(params, _):
        slope = gradient(problem, params, database)
        return step(params, slope, step_size=step_size, radius=radius), None

    return jax.lax.scan(body, params, None, length=num_steps)[0]
