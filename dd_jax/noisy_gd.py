"""Noisy gradient descent (`alg:noisygd`) and the deletion mechanism built on it.

    θ ← θ + (√(2ησ²) · N(0, I) - η ∇ℒ_𝒟(θ))

Every function is pure: key first, step size, noise and clip norm may be traced. `step`, `run` and
`trajectory` are compiled once for a problem's loss and the shapes, and are then cheap to call as
they are. The noise of step k comes from `step_key(key, k)`, so a run of K_max steps passes through
the result of every shorter run.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PyTree

from dd_jax import checks
from dd_jax.databases import records_of
from dd_jax.erm import Problem, gradient
from dd_jax.errors import InputError
from dd_jax.keys import tagged
from dd_jax.plans import Plan, arithmetic
from dd_jax.types import Edit, Mechanism, is_concrete, num_records, publish_model


class Schedule(NamedTuple):
    """What a run needs to know: a `Plan` without its certificate; numbers may be traced.

    Attributes:
        step_size: η.
        noise_variance: σ²; one step adds N(0, 2ησ² I).
        init_variance: variance of the Gaussian start.
        learn_steps: K_A. delete_steps: K_Ā.
    """

    step_size: Any
    noise_variance: Any
    init_variance: Any
    learn_steps: Any
    delete_steps: Any

    @classmethod
    def of(cls, plan: Any) -> "Schedule":
        """The numbers of a plan, without its certificate."""
        return cls(*(getattr(plan, name) for name in cls._fields))


@jax.jit
def step(
    key: Array,
    params: PyTree,
    database: PyTree,
    problem: Problem,
    step_size,
    noise_variance,
) -> PyTree:
    """One update of `alg:noisygd`: θ + (√(2ησ²) N(0, I) - η ∇ℒ_𝒟(θ))."""
    update = gradient(problem, params, database)
    noise = standard_normal_like(key, params)
    return _move(params, update, noise, step_size, noise_variance)


def _move(params, update, noise, step_size, noise_variance) -> PyTree:
    def leaf(weight, slope, normal):
        eta = jnp.asarray(step_size, weight.dtype)
        # Two roots: the product of two numbers in range need not be.
        scale = jnp.sqrt(2 * eta) * jnp.sqrt(jnp.asarray(noise_variance, weight.dtype))
        # The small terms first. In any other order a drift below half a unit in the model's last
        # place is rounded away before the noise arrives, and the model never forgets.
        return weight + (scale * normal - eta * slope)

    return jax.tree.map(leaf, params, update, noise)


def standard_normal_like(key: Array, params: PyTree) -> PyTree:
    """N(0, I) in the shape of a model, drawn leaf by leaf (one key each)."""
    leaves, treedef = jax.tree.flatten(params)
    keys = [key] if len(leaves) == 1 else jax.random.split(key, len(leaves))
    draws = [
        jax.random.normal(k, leaf.shape, leaf.dtype) for k, leaf in zip(keys, leaves, strict=True)
    ]
    return jax.tree.unflatten(treedef, draws)


def step_key(key: Array, k) -> Array:
    """The key of step k of a run."""
    return jax.random.fold_in(tagged(key, "step"), k)


def run(
    key: Array,
    params: PyTree,
    database: PyTree,
    problem: Problem,
    *,
    step_size,
    noise_variance,
    num_steps,
    first_step=0,
) -> PyTree:
    """Noisy-GD(𝒟, θ, K), `alg:noisygd`: K steps from θ, as one scan.

    The number of steps may be traced: the models are the same, and one program serves a sweep over
    step counts. A run can be continued: K₁ steps and then K₂ with `first_step=K₁` and the same key
    are the same as K₁ + K₂ steps at once.
    """
    numbers = _checked(params, step_size, noise_variance, num_steps)
    if not is_concrete(num_steps):
        return _counted_steps(key, params, database, problem, numbers, first_step, num_steps)
    fixed = {"num_steps": int(num_steps), "keep": False}
    return _scanned_steps(key, params, database, problem, numbers, first_step, **fixed)[0]


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
    if not is_concrete(num_steps):
        raise InputError("num_steps is traced, and the models that are kept have a known number.")
    numbers = _checked(params, step_size, noise_variance, num_steps)
    fixed = {"num_steps": int(num_steps), "keep": True}
    return _scanned_steps(key, params, database, problem, numbers, first_step, **fixed)[1]


@functools.partial(jax.jit, static_argnames=("num_steps", "keep"))
def _scanned_steps(key, params, database, problem, numbers, first_step, *, num_steps, keep):
    """(the last model, all models where they are kept), for a number of steps that is known."""
    steps_key = tagged(key, "step")

    def body(params, k):
        key = jax.random.fold_in(steps_key, k)
        params = step(key, params, database, problem, *numbers)
        return params, (params if keep else None)

    return jax.lax.scan(body, params, first_step + jnp.arange(num_steps))


@jax.jit
def _counted_steps(key, params, database, problem, numbers, first_step, num_steps):
    """The last model, for a number of steps that one program is given anew at every call."""
    steps_key = tagged(key, "step")

    def body(k, params):
        return step(jax.random.fold_in(steps_key, k), params, database, problem, *numbers)

    return jax.lax.fori_loop(first_step, first_step + num_steps, body, params)


def _checked(params: PyTree, step_size, noise_variance, num_steps) -> tuple:
    """(η, σ²), refused where they or the number of steps cannot be run."""
    _check_steps("num_steps", num_steps)
    _check_held({"step_size": step_size, "noise_variance": noise_variance}, params)
    return step_size, noise_variance


def mechanism(problem: Problem, plan) -> Mechanism:
    """(A, Ā) of `dfn:noisy_gd_unlrn`: learn from a Gaussian start, delete from the last model.

    What a plan's mechanism publishes is the model rounded to `plans.arithmetic.publication_grid`;
    the model that it keeps is not rounded, as that would be a gap that nothing accounts for.

    Guarantee: what `plan.certify(...)` says; nothing beyond it, and nothing for a bare `Schedule`,
    whose mechanism publishes the model as it is.
    Assumes: records inside the loss's domain (the driver enforces it).

    Args:
        problem: the regularised problem.
        plan: a `Plan` made for this very problem, or a `Schedule` to run without a certificate.

    Raises:
        InputError: a number that cannot be run, a plan for another problem, or a plan that its type
            cannot run; when it is run, a database, a model or an edit of another size or type than
            planned.
    """
    _check_schedule(plan)  # before a look at what is kept: 2.0 == 2, and True == 1
    frozen = getattr(type(plan), "__dataclass_params__", None)
    if not isinstance(plan, tuple) and not (frozen and frozen.frozen):
        return _mechanism(problem, plan)  # what may have changed since is made anew
    try:
        # The same object for equal arguments, so that what was compiled for one serves the other.
        return _kept_mechanism(problem, plan)
    except TypeError:  # numbers that are arrays, or traced
        return _mechanism(problem, plan)


@functools.lru_cache(maxsize=128, typed=True)
def _kept_mechanism(problem: Problem, plan) -> Mechanism:
    return _mechanism(problem, plan)


def _mechanism(problem: Problem, plan) -> Mechanism:
    publish = publish_model
    _check_same_problem(plan, problem)
    if isinstance(plan, Plan):
        arithmetic.check(plan)
        publish = _rounded_to(arithmetic.publication_grid(plan))
    numbers: dict[str, Any] = {
        "step_size": plan.step_size,
        "noise_variance": plan.noise_variance,
    }

    def learn(key, database):
        template = problem.loss.template(records_of(database))
        _check_planned(plan, database, template)
        start = jax.tree.map(
            lambda leaf: leaf * jnp.sqrt(jnp.asarray(plan.init_variance, leaf.dtype)),
            standard_normal_like(tagged(key, "start"), template),
        )
        return run(key, start, database, problem, num_steps=plan.learn_steps, **numbers)

    def delete(key, before, edit, after, state):
        _check_planned(plan, before, state)
        _check_planned_edit(plan, edit)
        return run(key, state, after, problem, num_steps=plan.delete_steps, **numbers)

    made_from = plan if isinstance(plan, Plan) else None
    return Mechanism(learn, delete, publish, problem.loss.domain, made_from)


def _rounded_to(grid: float):
    """f_pub: the model on a grid, a power of two; numbers that are on it anyway stay."""

    def publish(key, state):
        del key

        def leaf(weight):
            spacing = jnp.asarray(grid, weight.dtype)
            whole = 2.0 ** jnp.finfo(weight.dtype).nmant  # from here on all floats are whole
            scaled = weight / spacing
            return jnp.where(jnp.abs(scaled) < whole, jnp.round(scaled) * spacing, weight)

        return jax.tree.map(leaf, state)

    return publish


def _check_schedule(plan) -> None:
    """Refuse numbers that would run into NaN or nothing."""
    for name, check in (
        ("step_size", checks.positive),
        ("noise_variance", checks.finite_nonnegative),
        ("init_variance", checks.finite_nonnegative),
    ):
        if is_concrete(getattr(plan, name)):
            check(name, getattr(plan, name))
    for name in ("learn_steps", "delete_steps"):
        _check_steps(name, getattr(plan, name))


def _check_steps(name: str, value) -> None:
    if is_concrete(value):
        checks.whole(name, value)


def _check_held(numbers: dict[str, Any], params: PyTree) -> None:
    """Refuse known numbers that the model's type would hold as 0 or as infinity."""
    for name, value in numbers.items():
        for dtype in {leaf.dtype for leaf in jax.tree.leaves(params)} if is_concrete(value) else ():
            number = np.asarray(value, np.float64)
            with np.errstate(all="ignore"):
                held = number.astype(dtype)
            tiny = float(jnp.finfo(dtype).tiny)  # below it programs may flush to 0
            if not np.all(np.isfinite(held) & ((number == 0) | (np.abs(number) >= tiny))):
                raise InputError(
                    f"{name} = {value} is beyond the range of {dtype}; run in 64 bits."
                )


def _check_same_problem(plan, problem: Problem) -> None:
    """A plan is for known numbers; a sweep over traced ones runs a `Schedule`."""
    planned = getattr(plan, "problem", None)
    if planned is not None and planned.declared != problem.constants.declared:
        raise InputError(
            f"the plan was made for {planned}, not for {problem.constants}; "
            f"plan again for the problem that is run."
        )


def _check_planned(plan, database: PyTree, model: PyTree) -> None:
    """A certificate's noise is for its own n, d and type; all are static: jit cannot hide them.

    A calibration of another system may know some of them, a bare `Schedule` knows none.
    """
    leaves = jax.tree.leaves(model)
    dim = sum(leaf.size for leaf in leaves)
    for name, found in (("n", num_records(database)), ("dim", dim)):
        planned = getattr(plan, name, found)
        if planned != found:
            raise InputError(
                f"the plan was made for {name} = {planned}, the database or model has {name} = "
                f"{found}; plan again with {name}={found}."
            )
    for leaf in leaves:
        dtype = getattr(plan, "dtype", leaf.dtype)
        if jnp.finfo(leaf.dtype).nmant < jnp.finfo(dtype).nmant:
            raise InputError(
                f"the plan was made for {plan.dtype}, the model is of {leaf.dtype}; give data of "
                f"that type with 64 bits enabled, or plan again with dtype='{leaf.dtype}'."
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
        noise = standard_normal_like(step_key(state.key, state.count), params)
        update = jax.tree.map(
            lambda slope, weight: slope + jnp.asarray(l2, weight.dtype) * weight, updates, params
        )
        zero = jax.tree.map(jnp.zeros_like, params)
        moved = _move(zero, update, noise, step_size, noise_variance)
        return moved, NoisyGDState(state.key, state.count + 1)

    return optax.GradientTransformation(init, update)
