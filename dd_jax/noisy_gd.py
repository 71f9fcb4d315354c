"""Noisy gradient descent (Noisy-GD, `alg:noisygd`) and the deletion mechanism built on it.

    θ ← θ + (√(2ησ²) · N(0, I) - η ∇ℒ_𝒟(θ))

Every function is pure and takes its key first; step size, noise and clip norm may be traced. The
functions `step`, `run` and `trajectory` are compiled once for a problem's loss and the shapes, and
need no `jax.jit` around them. The noise of step k comes from `step_key(key, k)`, so a run of K_max
steps passes through the result of every shorter run.

With m > 1 batches a step takes the mean gradient over one batch of consecutive rows instead of all
rows, and the batches take turns in a fixed order (`guarantees.schedules`). Which batch is next is
public. It goes on from request to request, so a curator carries it beside its model (`AtBatch`).
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PyTree

from dd_jax import checks, exact_gd
from dd_jax.databases import records_of
from dd_jax.erm import Problem, gradient_of
from dd_jax.errors import InputError
from dd_jax.guarantees.streams import pairs
from dd_jax.keys import tagged
from dd_jax.plans import Plan, arithmetic
from dd_jax.plans import lattice as plan_lattice
from dd_jax.types import Edit, Mechanism, is_concrete, num_records, publish_model


class Schedule(NamedTuple):
    """The numbers of a run: a `Plan` without its certificate; they may be traced.

    Attributes:
        step_size: η.
        noise_variance: σ²; one step adds N(0, 2ησ² I).
        init_variance: variance of the Gaussian start.
        learn_steps: K_L. delete_steps: K_U.
        batches: m, static.
        learn_factors, delete_factors: a pair of factors of η and σ² for each step, or None.
    """

    step_size: Any
    noise_variance: Any
    init_variance: Any
    learn_steps: Any
    delete_steps: Any
    batches: int = 1
    learn_factors: Any = None
    delete_factors: Any = None

    @classmethod
    def of(cls, plan: Any) -> "Schedule":
        """The numbers of a plan, without its certificate; other systems' plans may have fewer."""
        given = {name: getattr(plan, name) for name in cls._fields if hasattr(plan, name)}
        return cls(**given)


class AtBatch(NamedTuple):
    """The state of a curator with batches: its model, and the batch that comes next (public)."""

    model: PyTree
    batch: Array


@jax.jit
def step(
    key: Array,
    params: PyTree,
    database: PyTree,
    problem: Problem,
    step_size,
    noise_variance,
) -> PyTree:
    """One update of `alg:noisygd` (`alg:ngd:updatestep`): θ + (√(2ησ²) N(0, I) - η ∇ℒ_𝒟(θ))."""
    return _step(key, params, gradient_of(problem, database), step_size, noise_variance)


def _step(key, params, slope_of, step_size, noise_variance) -> PyTree:
    noise = standard_normal_like(key, params)
    return _move(params, slope_of(params), noise, step_size, noise_variance)


def _move(params, update, noise, step_size, noise_variance) -> PyTree:
    def leaf(weight, slope, normal):
        eta = jnp.asarray(step_size, weight.dtype)
        # Two roots, because the product 2ησ² may underflow where both factors are in range.
        scale = jnp.sqrt(2 * eta) * jnp.sqrt(jnp.asarray(noise_variance, weight.dtype))
        # The small terms are added first. In any other order a drift below half a unit in the
        # model's last place is rounded away before the noise is added, and the model never forgets.
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
    batches: int = 1,
    first_batch=0,
) -> PyTree:
    """Noisy-GD(𝒟, θ, K), `alg:noisygd`: K steps from θ, as one scan.

    The number of steps may be traced; the models are the same, and a sweep over step counts needs
    only one program. A run can be continued: K₁ steps and then K₂ steps with `first_step=K₁` and
    the same key are the same as K₁ + K₂ steps at once (with batches, `first_batch` K₁ mod m).

    Args:
        key, params, database, problem: where to start, and what to descend.
        step_size, noise_variance: η and σ², one number or one for each step.
        num_steps: K. first_step: the number of the first step, for its noise.
        batches: m, in a fixed order. first_batch: the batch of the first step.
    """
    numbers = _checked(params, step_size, noise_variance, num_steps)
    _check_first_batch(first_batch, batches)
    first = (first_step, first_batch)
    if not is_concrete(num_steps):
        return _counted_steps(
            key, params, database, problem, numbers, first, num_steps, batches=batches
        )
    fixed = {"num_steps": int(num_steps), "keep": False, "batches": batches}
    return _scanned_steps(key, params, database, problem, numbers, first, **fixed)[0]


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
    batches: int = 1,
    first_batch=0,
) -> PyTree:
    """The models after 1, 2, …, K steps (leading axis K): entry k - 1 equals a `run` of k steps."""
    if not is_concrete(num_steps):
        raise InputError(
            "num_steps is traced, but a trajectory needs a known number of models; give a number, "
            "or use dd.noisy_gd.run."
        )
    numbers = _checked(params, step_size, noise_variance, num_steps)
    _check_first_batch(first_batch, batches)
    fixed = {"num_steps": int(num_steps), "keep": True, "batches": batches}
    first = (first_step, first_batch)
    return _scanned_steps(key, params, database, problem, numbers, first, **fixed)[1]


@functools.partial(jax.jit, static_argnames=("num_steps", "keep", "batches"))
def _scanned_steps(key, params, database, problem, numbers, first, *, num_steps, keep, batches):
    """(the last model, all models if `keep`), for a known number of steps."""
    one_step = _steps_of(key, database, problem, batches)
    varying = any(jnp.ndim(number) for number in numbers)
    each = tuple(jnp.broadcast_to(number, (num_steps,)) for number in numbers) if varying else None

    # The numbers of step and batch are carried along: arrays of them would be cut at every step.
    def body(carry, own):
        carry = one_step(*carry, *(own if varying else numbers))
        return carry, (carry[0] if keep else None)

    start = (params, *(jnp.asarray(number, jnp.int32) for number in first))
    (last, *_), kept = jax.lax.scan(body, start, each, length=num_steps)
    return last, kept


@functools.partial(jax.jit, static_argnames=("batches",))
def _counted_steps(key, params, database, problem, numbers, first, num_steps, *, batches):
    """The last model, for a traced number of steps: one program for all of them."""
    one_step = _steps_of(key, database, problem, batches)

    def body(k, carry):
        return one_step(*carry, *(number[k] if jnp.ndim(number) else number for number in numbers))

    start = (params, *(jnp.asarray(number, jnp.int32) for number in first))
    return jax.lax.fori_loop(0, num_steps, body, start)[0]


def _steps_of(key, database, problem, batches):
    """`(θ, k, j, η, σ²) -> (θ, k + 1, j + 1)`: step k, on batch j of m."""
    steps_key, slope_of = tagged(key, "step"), gradient_of(problem, database, batches)

    def one_step(params, k, batch, *numbers):
        slope = slope_of if batches == 1 else functools.partial(_on_batch, slope_of, batch)
        params = _step(jax.random.fold_in(steps_key, k), params, slope, *numbers)
        return params, k + 1, batch if batches == 1 else (batch + 1) % batches

    return one_step


def _on_batch(slope_of, batch, params):
    return slope_of(params, batch)


def _checked(params: PyTree, step_size, noise_variance, num_steps) -> tuple:
    """Return (η, σ²) after a check that they and the number of steps can be run."""
    _check_steps("num_steps", num_steps)
    _check_held({"step_size": step_size, "noise_variance": noise_variance}, params)
    for name, number in (("step_size", step_size), ("noise_variance", noise_variance)):
        if np.ndim(number) > 1 or (
            np.ndim(number) and is_concrete(num_steps) and np.shape(number) != (int(num_steps),)
        ):
            raise InputError(
                f"{name} has shape {np.shape(number)}; give one number, or one for each of the "
                f"{num_steps} steps."
            )
    return step_size, noise_variance


def _check_first_batch(first_batch, batches) -> None:
    """Refuse a batch that does not exist: its rows would be those of another one."""
    most = checks.whole("batches", batches, least=1) - 1
    if is_concrete(first_batch):
        checks.whole("first_batch", first_batch, most=most)


def mechanism(problem: Problem, plan) -> Mechanism:
    """The Noisy-GD curator (A, Ā), `dfn:noisy_gd_unlrn`.

    It learns from a Gaussian start and deletes from the last model. With batches its state is an
    `AtBatch`: a request begins with the batch after the last one that was used.

    A plan's mechanism publishes its model rounded to `plans.arithmetic.publication_grid`. The model
    that it keeps is not rounded, because the accounting does not cover such a rounding.

    Guarantee: what `plan.certify(...)` says and no more. A bare `Schedule` has no guarantee, and
    its mechanism publishes the model without rounding. Assumes: records inside the loss's domain
    (the driver enforces it).

    Args:
        problem: the regularised problem.
        plan: a `Plan` made for exactly this problem, or a `Schedule` to run without a certificate.

    Raises:
        InputError: a number that cannot be run, a plan for another problem, or a plan whose type is
            too coarse for it; when the mechanism is run, also a database, a model or an edit of
            another size or type than planned.
    """
    _check_schedule(plan)  # before the cache, for which 2.0 == 2 and True == 1
    frozen = getattr(type(plan), "__dataclass_params__", None)
    if not isinstance(plan, tuple) and not (frozen and frozen.frozen):
        return _mechanism(problem, plan)  # it may have changed since, so the cache is not used
    try:
        # The same object for equal arguments, so that JAX reuses what it compiled for one of them.
        return _kept_mechanism(problem, plan)
    except TypeError:  # arrays and traced numbers have no hash
        return _mechanism(problem, plan)


@functools.lru_cache(maxsize=128, typed=True)
def _kept_mechanism(problem: Problem, plan) -> Mechanism:
    return _mechanism(problem, plan)


def _mechanism(problem: Problem, plan) -> Mechanism:
    _check_same_problem(plan, problem)
    if isinstance(plan, Plan) and plan.exact:
        return _exact_mechanism(problem, plan)
    publish = publish_model
    if isinstance(plan, Plan):
        arithmetic.check(plan)
        publish = _rounded_to(arithmetic.publication_grid(plan))
    steps = Schedule.of(plan)
    batches = steps.batches
    if batches > 1:
        publish = functools.partial(_publish_at_batch, publish)

    def descend(key, model, database, batch, count, factors):
        """The steps of one request, or of learning, from the batch that comes next."""
        numbers = {"step_size": steps.step_size, "noise_variance": steps.noise_variance}
        if factors is not None:
            eta, noise = np.asarray(factors).T
            numbers = {
                "step_size": eta * steps.step_size,
                "noise_variance": noise * steps.noise_variance,
            }
        cycle = {"batches": batches, "first_batch": batch}
        model = run(key, model, database, problem, num_steps=count, **numbers, **cycle)
        return model if batches == 1 else AtBatch(model, (batch + count) % batches)

    def learn(key, database):
        template = problem.loss.template(records_of(database))
        _check_planned(plan, database, template)
        start = jax.tree.map(
            lambda leaf: leaf * jnp.sqrt(jnp.asarray(steps.init_variance, leaf.dtype)),
            standard_normal_like(tagged(key, "start"), template),
        )
        first = jnp.zeros((), jnp.int32)
        return descend(key, start, database, first, steps.learn_steps, steps.learn_factors)

    def delete(key, before, edit, after, state):
        if isinstance(state, AtBatch) != (batches > 1):
            raise InputError(
                f"the state is of a mechanism {'without' if batches > 1 else 'with'} batches, but "
                f"the plan has batches = {batches}; continue with the plan that learned it."
            )
        model, batch = (state, jnp.int32(0)) if batches == 1 else state
        _check_planned(plan, before, model)
        _check_planned_edit(plan, edit)
        return descend(key, model, after, batch, steps.delete_steps, steps.delete_factors)

    made_from = plan if isinstance(plan, Plan) else None
    return Mechanism(learn, delete, publish, problem.loss.domain, made_from)


def _exact_mechanism(problem: Problem, plan: Plan) -> Mechanism:
    """The same on a lattice (`exact_gd`): the state is the whole numbers' words, the release θ."""
    exact_gd.require_loss(problem.loss)
    plan_lattice.of(plan)  # refused here where the numbers do not fit
    batches = plan.batches

    def descend(key, words, database, batch, count):
        how = {"num_steps": count, "first_batch": batch}
        words = exact_gd.run(key, words, database, problem, plan, **how)
        return words if batches == 1 else AtBatch(words, (batch + count) % batches)

    def check(database):
        _check_planned(plan, database, problem.loss.template(records_of(database)))

    def learn(key, database):
        check(database)
        words = exact_gd.start(tagged(key, "start"), plan)
        return descend(key, words, database, jnp.zeros((), jnp.int32), plan.learn_steps)

    def delete(key, before, edit, after, state):
        words, batch = state if isinstance(state, AtBatch) else (state, jnp.int32(0))
        if isinstance(state, AtBatch) != (batches > 1) or words.shape != (plan.dim, 2):
            raise InputError(
                "the state is of a mechanism of another plan; continue with the plan that learned "
                "it."
            )
        check(before)
        _check_planned_edit(plan, edit)
        return descend(key, words, after, batch, plan.delete_steps)

    def publish(key, state):
        del key
        return exact_gd.model(state.model if isinstance(state, AtBatch) else state, plan)

    return Mechanism(learn, delete, publish, problem.loss.domain, plan)


def _rounded_to(grid: float):
    """f_pub: the model rounded to a grid, whose spacing is a power of two.

    Dividing and multiplying by a power of two is exact, so the only rounding is `jnp.round`.
    """

    def publish(key, state):
        del key

        def leaf(weight):
            spacing = jnp.asarray(grid, weight.dtype)
            # From here on every float is a whole number, so it is on the grid already; rounding it
            # could only overflow.
            whole = 2.0 ** jnp.finfo(weight.dtype).nmant
            scaled = weight / spacing
            return jnp.where(jnp.abs(scaled) < whole, jnp.round(scaled) * spacing, weight)

        return jax.tree.map(leaf, state)

    return publish


def _publish_at_batch(publish, key, state: AtBatch):
    """f_pub of the model alone: which batch comes next follows from the number of requests."""
    return publish(key, state.model)


def _check_schedule(plan) -> None:
    """Refuse numbers with which a run would give NaN or do nothing."""
    for name, check in (
        ("step_size", checks.positive),
        ("noise_variance", checks.finite_nonnegative),
        ("init_variance", checks.finite_nonnegative),
    ):
        if is_concrete(getattr(plan, name)):
            check(name, getattr(plan, name))
    for name in ("learn", "delete"):
        steps = getattr(plan, f"{name}_steps")
        _check_steps(f"{name}_steps", steps)
        factors = getattr(plan, f"{name}_factors", None)
        pairs(f"{name}_factors", factors, int(steps) if is_concrete(steps) else None)
    checks.whole("batches", getattr(plan, "batches", 1), least=1)


def _check_steps(name: str, value) -> None:
    if is_concrete(value):
        checks.whole(name, value)


def _check_held(numbers: dict[str, Any], params: PyTree) -> None:
    """Refuse known numbers that the model's type would turn into 0 or infinity."""
    for name, value in numbers.items():
        for dtype in {leaf.dtype for leaf in jax.tree.leaves(params)} if is_concrete(value) else ():
            number = np.asarray(value, np.float64)
            with np.errstate(all="ignore"):
                held = number.astype(dtype)
            tiny = float(jnp.finfo(dtype).tiny)  # compiled programs may flush smaller numbers to 0
            if not np.all(np.isfinite(held) & ((number == 0) | (np.abs(number) >= tiny))):
                raise InputError(
                    f"{name} = {value} is beyond the range of {dtype}; run in 64 bits."
                )


def _check_same_problem(plan, problem: Problem) -> None:
    """Refuse a plan for another problem.

    Traced numbers are refused too (`Problem.constants`): a sweep over them runs a `Schedule`.
    """
    planned = getattr(plan, "problem", None)
    if planned is not None and planned.declared != problem.constants.declared:
        raise InputError(
            f"the plan was made for {planned}, not for {problem.constants}; "
            f"plan again for the problem that is run."
        )


def _check_planned(plan, database: PyTree, model: PyTree) -> None:
    """Refuse a database or model of another n, d or type than the plan's noise was computed for.

    All of these are static, so the check works inside jit too. A plan of another system may know
    only some of them; a bare `Schedule` knows none.
    """
    leaves = jax.tree.leaves(model)
    dim = sum(leaf.size for leaf in leaves)
    for name, found in (("n", num_records(database)), ("dim", dim)):
        planned = getattr(plan, name, found)
        if planned != found:
            raise InputError(
                f"the plan was made for {name} = {planned}, but the database or model has {name} = "
                f"{found}; plan again with {name}={found}."
            )
    for leaf in leaves:
        dtype = getattr(plan, "dtype", leaf.dtype)
        if jnp.finfo(leaf.dtype).nmant < jnp.finfo(dtype).nmant:
            raise InputError(
                f"the plan was made for {plan.dtype}, but the model has dtype {leaf.dtype}; give "
                f"data of that type with 64 bits enabled, or plan again with dtype='{leaf.dtype}'."
            )


def _check_planned_edit(plan, edit: Edit) -> None:
    rows = edit.index.shape[0]
    planned = getattr(plan, "edits_per_request", rows)
    if rows > planned:
        raise InputError(
            f"the edit replaces {rows} rows, but the plan was made for {planned} per request; "
            f"split the edit or plan again with edits_per_request={rows}."
        )


class NoisyGDState(NamedTuple):
    """State of `as_optax`: the run's key and the number of steps taken."""

    key: Array
    count: Array


def as_optax(key: Array, *, l2, step_size, noise_variance) -> optax.GradientTransformation:
    """The step of `alg:noisygd` for an optax loop: mean clipped gradients in, updates out.

    The functions `init` and `update` follow optax. The incoming gradient is the mean of clipped
    per-record gradients WITHOUT the regulariser, which is added here, unclipped. With the same key
    it makes the same models as `run`, up to rounding.
    """

    def init(params):
        del params
        return NoisyGDState(key, jnp.zeros((), jnp.int32))

    def update(updates, state, params=None):
        if params is None:
            raise InputError(
                "params is missing, and the regulariser needs it; call update(updates, state, "
                "params)."
            )
        noise = standard_normal_like(step_key(state.key, state.count), params)
        update = jax.tree.map(
            lambda slope, weight: slope + jnp.asarray(l2, weight.dtype) * weight, updates, params
        )
        zero = jax.tree.map(jnp.zeros_like, params)
        moved = _move(zero, update, noise, step_size, noise_variance)
        return moved, NoisyGDState(state.key, state.count + 1)

    return optax.GradientTransformation(init, update)
