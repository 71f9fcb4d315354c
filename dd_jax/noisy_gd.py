"""Noisy gradient descent (`alg:noisygd`) and the deletion mechanism built on it.

    θ ← θ - η ∇ℒ_𝒟(θ) + √(2ησ²) · N(0, I)

Every function is pure: key first, step size, noise and clip norm may be traced. The noise of step k
comes from fold_in(key, k), so a run of K_max steps passes through the result of every shorter run.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PyTree

from dd_jax.databases import records_of
from dd_jax.erm import Problem, gradient
from dd_jax.errors import InputError
from dd_jax.types import Edit, Mechanism, apply_edit, is_concrete, num_records


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
    """Noisy-GD(𝒟, θ, K), `alg:noisygd`: K steps from θ, as one scan.

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
    _check_steps("num_steps", num_steps)

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
        InputError: a number that cannot be run, a plan for another problem; when it is run, a
            database or an edit of another size than planned.
    """
    _check_schedule(plan)
    _check_same_problem(plan, problem)
    numbers = {"step_size": plan.step_size, "noise_variance": plan.noise_variance}

    def learn(key, database):
        init_key, run_key = jax.random.split(key)
        template = problem.loss.template(records_of(database))
        _check_planned_sizes(plan, database, template)
        start = jax.tree.map(
            lambda leaf: leaf * jnp.sqrt(jnp.asarray(plan.init_variance, leaf.dtype)),
            standard_normal_like(init_key, template),
        )
        return run(run_key, start, database, problem, num_steps=plan.learn_steps, **numbers)

    def delete(key, database, edit, state):
        _check_planned_edit(plan, edit)
        edited = apply_edit(database, edit)
        return run(key, state, edited, problem, num_steps=plan.delete_steps, **numbers)

    return Mechanism(learn, delete, domain=problem.loss.domain)


def _check_schedule(plan) -> None:
    """Refuse numbers that would run into NaN or nothing."""
    for name, positive in (
        ("step_size", True),
        ("noise_variance", False),
        ("init_variance", False),
    ):
        value = getattr(plan, name)
        if not is_concrete(value):
            continue
        number = np.asarray(value)
        large_enough = number > 0 if positive else number >= 0
        if not np.all(np.isfinite(number) & large_enough):
            least = "> 0" if positive else "≥ 0"
            raise InputError(f"{name} = {value} cannot be run; give a finite number {least}.")
    for name in ("learn_steps", "delete_steps"):
        _check_steps(name, getattr(plan, name))


def _check_steps(name: str, value) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
        raise InputError(f"{name} = {value}; give a whole number of steps ≥ 0.")


def _check_same_problem(plan, problem: Problem) -> None:
    planned = getattr(plan, "problem", None)
    if planned is not None and is_concrete(problem) and planned != problem.constants:
        raise InputError(
            f"the plan was made for {planned}, not for {problem.constants}; "
            f"plan again for the problem that is run."
        )


def _check_planned_sizes(plan, database: PyTree, template: PyTree) -> None:
    """A certificate's noise is for its own n and d; these are static, so jit cannot hide them."""
    dim = sum(leaf.size for leaf in jax.tree.leaves(template))
    for name, found in (("n", num_records(database)), ("dim", dim)):
        planned = getattr(plan, name, found)
        if planned != found:
            raise InputError(
                f"the plan was made for {name} = {planned}, the database has {name} = {found}; "
                f"plan again with {name}={found}."
            )


def _check_planned_edit(plan, edit: Edit) -> None:
    rows = edit.index.shape[0]
    planned = getattr(plan, "edits_per_request", rows)
    if rows > planned:
        raise InputError(
            f"the edit replaces {rows} rows, the plan was made for {planned} per request; "
            f"split the edit or plan again with edits_per_request={rows}."
        )


class NoisyGDState(NamedTuple):
    """State of `as_optax`: the run's key and the number of steps taken."""

    key: Array
    count: Array


def as_optax(key: Array, *, l2, step_size, noise_variance) -> optax.GradientTransformation:
    """The step of `alg:noisygd` for an optax loop: mean clipped gradients in, updates out.

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
