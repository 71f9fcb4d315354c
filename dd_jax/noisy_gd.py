"""Noisy gradient descent (`alg:noisygd`) and the deletion mechanism built on it.

    θ ← θ - η ∇ℒ_𝒟(θ) + √(2ησ²) · N(0, I)

Every function is pure: key first, step size, noise and clip norm may be traced. The noise of step k
comes from fold_in(key, k), so a run of K_max steps passes through the result of every shorter run.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from dd_jax.erm import Problem, gradient
from dd_jax.errors import InputError
from dd_jax.types import Mechanism, apply_edit, is_concrete


class Schedule(NamedTuple):
    """What a run needs to know: a `Plan` without its certificate; numbers may be traced.

    Attributes:
        step_size: η.
        noise_variance: σ²; one step adds N(0, 2ησ² I).
        init_variance: variance of the Gaussian start.
        learn_steps: K_A, static.
        delete_steps: K_Ā, static.
    """

    step_size: Any
    noise_variance: Any
    init_variance: Any
    learn_steps: int
    delete_steps: int


def step(
    key: Array,
    params: PyTree,
    database: PyTree,
    problem: Problem,
    step_size,
    noise_variance,
) -> PyTree:
    """One update of `alg:noisygd`: θ - η ∇ℒ_𝒟(θ) + √(2ησ²) N(0, I)."""
    update = gradient(problem, params, database)
    noise = standard_normal_like(key, params)
    return _move(params, update, noise, step_size, noise_variance)


def _move(params, update, noise, step_size, noise_variance) -> PyTree:
    def leaf(weight, slope, normal):
        eta = jnp.asarray(step_size, weight.dtype)
        scale = jnp.sqrt(2 * eta * jnp.asarray(noise_variance, weight.dtype))
        return weight - eta * slope + scale * normal

    return jax.tree.map(leaf, params, update, noise)


def standard_normal_like(key: Array, params: PyTree) -> PyTree:
    """N(0, I) in the shape of a model, drawn leaf by leaf (one key each)."""
    leaves, treedef = jax.tree.flatten(params)
    keys = [key] if len(leaves) == 1 else jax.random.split(key, len(leaves))
    draws = [
        jax.random.normal(k, leaf.shape, leaf.dtype) for k, leaf in zip(keys, leaves, strict=True)
    ]
    return jax.tree.unflatten(treedef, draws)


def run(
    key: Array,
    params: PyTree,
    database: PyTree,
    problem: Problem,
    *,
    step_size,
    noise_variance,
    num_steps: int,
    first_step=0,
) -> PyTree:
    """Noisy-GD(𝒟, θ, K): K steps from θ, as one scan.

    A run can be continued: K₁ steps and then K₂ with `first_step=K₁` and the same key are the same
    as K₁ + K₂ steps at once.
    """
    return _scan(
        key, params, database, problem, step_size, noise_variance, num_steps, first_step, keep=False
    )[0]


def trajectory(
    key: Array,
    params: PyTree,
    database: PyTree,
    problem: Problem,
    *,
    step_size,
    noise_variance,
    num_steps: int,
    first_step=0,
) -> PyTree:
    """The models after 1, 2, …, K steps (leading axis K): entry k - 1 equals a `run` of k steps."""
    return _scan(
        key, params, database, problem, step_size, noise_variance, num_steps, first_step, keep=True
    )[1]


def _scan(
    key, params, database, problem, step_size, noise_variance, num_steps, first_step, *, keep
):
    if num_steps < 0:
        raise InputError(f"num_steps = {num_steps}; give a whole number of steps ≥ 0.")

    def body(params, k):
        step_key = jax.random.fold_in(key, k)
        params = step(step_key, params, database, problem, step_size, noise_variance)
        return params, (params if keep else None)

    return jax.lax.scan(body, params, first_step + jnp.arange(num_steps))


def mechanism(problem: Problem, plan) -> Mechanism:
    """(A, Ā) of `dfn:noisy_gd_unlrn`: learn from a Gaussian start, delete from the last model.

    Guarantee: what `plan.certificate(...)` says; nothing beyond it, and nothing for a bare
    `Schedule`.
    Assumes: records inside the loss's domain (the driver enforces it).

    Args:
        problem: the regularised problem.
        plan: a `Plan` made for this very problem, or a `Schedule` to run without a certificate.

    Raises:
        InputError: the plan was made for another problem.
    """
    planned = getattr(plan, "problem", None)
    if planned is not None and is_concrete(problem) and planned != problem.constants:
        raise InputError(
            f"the plan was made for {planned}, not for {problem.constants}; "
            f"plan again for the problem that is run."
        )
    numbers = {"step_size": plan.step_size, "noise_variance": plan.noise_variance}

    def learn(key, database):
        init_key, run_key = jax.random.split(key)
        template = problem.loss.template(database)
        start = jax.tree.map(
            lambda leaf: leaf * jnp.sqrt(jnp.asarray(plan.init_variance, leaf.dtype)),
            standard_normal_like(init_key, template),
        )
        return run(run_key, start, database, problem, num_steps=plan.learn_steps, **numbers)

    def delete(key, database, edit, state):
        edited = apply_edit(database, edit)
        return run(key, state, edited, problem, num_steps=plan.delete_steps, **numbers)

    return Mechanism(learn, delete, domain=problem.loss.domain)


class NoisyGDState(NamedTuple):
    """State of `as_optax`: the run's key and the number of steps taken."""

    key: Array
    count: Array


def as_optax(key: Array, *, l2, step_size, noise_variance) -> optax.GradientTransformation:
    """The same step for an optax loop: turns mean clipped gradients into Noisy-GD updates.

    `init` and `update` follow optax; the incoming gradient is the mean of clipped per-record
    gradients WITHOUT the regulariser, which is added here, unclipped. With the same key it makes
    the same models as `run`.
    """

    def init(params):
        del params
        return NoisyGDState(key, jnp.zeros((), jnp.int32))

    def update(updates, state, params=None):
        if params is None:
            raise InputError("as_optax adds the regulariser: call update(updates, state, params).")
        noise = standard_normal_like(jax.random.fold_in(state.key, state.count), params)
        update = jax.tree.map(
            lambda slope, weight: slope + jnp.asarray(l2, weight.dtype) * weight, updates, params
        )
        zero = jax.tree.map(jnp.zeros_like, params)
        moved = _move(zero, update, noise, step_size, noise_variance)
        return moved, NoisyGDState(state.key, state.count + 1)

    return optax.GradientTransformation(init, update)
