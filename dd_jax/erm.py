"""Regularised empirical risk minimisation: ℒ_𝒟(θ) = (1/n) Σ ℓ(θ; x) + (λ/2)‖θ‖² (`eqn:objective`).

The sum of the records' clipped gradients comes from `dd_jax.gradients`. Each record's gradient is
clipped; the regulariser never is.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from dd_jax import checks, products
from dd_jax.constants import PRECISIONS, Precision, ProblemConstants
from dd_jax.databases import records_of, weighted
from dd_jax.errors import InputError
from dd_jax.gradients import (
    clipped_sums,
    feature_norms,
    reference_sum,
    slope_limit,
    sum_over_rows,
)
from dd_jax.guarantees.schedules import check_batches, first_row
from dd_jax.losses.base import LinearScores, Loss, linear_scores
from dd_jax.types import Edit, Labelled, apply_edit, is_concrete, num_records

# Parameters up to which a minimiser forms its d × d Hessian.
MOST_SOLVED = 2000
# Most steps of conjugate gradients in one Newton step.
_CONJUGATE_STEPS = 1000


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("l2", "clip_norm"),
    meta_fields=("loss", "row_chunk", "precision"),
)
@dataclass(frozen=True)
class Problem:
    """A loss, an L2 regulariser and an optional clip norm; a pytree whose numbers may be traced.

    Attributes:
        loss: the per-record loss (static).
        l2: λ > 0.
        clip_norm: norm that each record's gradient is clipped to, or None.
        row_chunk: rows per pass of the gradient (static); None chooses them from the shapes
            (`dd_jax.gradients.chunk_rows`), or takes 1024 where the loss has no linear scores.
        precision: how every product with θ, slopes or records is computed (static): "full", or
            "bfloat16x3", three bfloat16 passes on accelerators (`dd_jax.products`).
    """

    loss: Loss
    l2: Any
    clip_norm: Any = None
    row_chunk: int | None = None
    precision: Precision = "full"

    def __post_init__(self):
        if not isinstance(self.loss, Loss):
            raise InputError(
                f"loss = {self.loss!r} is not a loss; give for example dd.losses.logistic()."
            )
        if self.row_chunk is not None:
            checks.whole("row_chunk", self.row_chunk, least=1)
        checks.choice("precision", self.precision, PRECISIONS)
        _check_positive("l2", self.l2)
        if self.clip_norm is not None:
            _check_positive("clip_norm", self.clip_norm)

    @property
    def constants(self) -> ProblemConstants:
        """What accounting needs to know about this problem, as host numbers."""
        if not is_concrete((self.l2, self.clip_norm)):
            raise InputError(
                "the problem's l2 or clip_norm is traced; read its constants outside jit and vmap."
            )
        clip_norm = None if self.clip_norm is None else float(self.clip_norm)
        return ProblemConstants(self.loss.constants, float(self.l2), clip_norm, self.precision)


def _check_positive(name: str, value: Any) -> None:
    """Refuse numbers (one, or an array to vmap over) that are not positive and finite.

    Tracers have no values to check, and pytree operations build Problems whose numbers are
    placeholders; neither is checked.
    """
    if isinstance(value, str | int | float | np.ndarray | jax.Array) and is_concrete(value):
        checks.positive(name, value)


def gradient(problem: Problem, params: PyTree, database: PyTree) -> PyTree:
    """∇ℒ_𝒟(θ) = (1/n) Σ clip(∇ℓ(θ; x)) + λθ (`eqn:objective`, `ssec:clipping`).

    The regulariser is never clipped.
    """
    return gradient_of(problem, database)(params)


def gradient_of(problem: Problem, database: PyTree, batches: int = 1) -> Callable[..., PyTree]:
    """∇ℒ_𝒟, the function of θ; what depends on the database alone is computed here, once.

    With m > 1 batches it is a function of θ and of the number of a batch: the mean over the rows
    of that batch, and the regulariser. Batch j has the rows from ⌊jn/m⌋ to ⌊(j+1)n/m⌋.
    """
    batches = check_batches(num_records(database), batches)
    how = (problem.clip_norm, problem.row_chunk, problem.precision)
    summed = clipped_sums(problem.loss, database, *how, batches)

    def slope(params, *batch):
        count = _rows(database, batches, *batch)
        return _regularised(problem, params, summed(params, *batch), count)

    return slope


def reference_gradient(
    problem: Problem, params: PyTree, database: PyTree, batches: int = 1, batch=None
) -> PyTree:
    """∇ℒ_𝒟(θ) with one explicit gradient per record: what `gradient` must equal."""
    how = (problem.clip_norm, problem.row_chunk, problem.precision, batches, batch)
    total = reference_sum(problem.loss, params, database, *how)
    return _regularised(problem, params, total, _rows(database, batches, batch))


def _rows(database: PyTree, batches: int, batch: Any = None):
    """The number of rows of a batch, or of the database."""
    n = num_records(database)
    if n % batches == 0:
        return n // batches
    return first_row(n, batches, batch + 1) - first_row(n, batches, batch)


def _regularised(problem: Problem, params: PyTree, total: PyTree, count) -> PyTree:
    def leaf(total, weight):
        rows = count if isinstance(count, int) else count.astype(total.dtype)
        return total / rows + jnp.asarray(problem.l2, weight.dtype) * weight

    return jax.tree.map(leaf, total, params)


@products.full
def objective(problem: Problem, params: PyTree, database: PyTree) -> Array:
    """ℒ_𝒟(θ), the function that `gradient` is the gradient of.

    Where a convex single-index loss is clipped, this is the objective of the Huberised loss φ̃(t) =
    φ(0) + ∫₀ᵗ clip(φ'). For any other clipped loss such a function may not exist (erratum E1), and
    this is the unclipped objective.
    """
    values = sum_over_rows(
        lambda rows, weight: jnp.sum(weighted(_record_values(problem, params, rows), weight)),
        database,
        problem.row_chunk,
    )
    return values / num_records(database) + _penalty(problem, params, params)


@products.full
def excess_risk(problem: Problem, params: PyTree, database: PyTree, optimum: PyTree) -> Array:
    """ℒ_𝒟(θ) - ℒ_𝒟(θ*), summed record by record so that small differences survive rounding.

    The difference of two sums would lose all digits below the rounding of ℒ itself. For the same
    reason ‖θ‖² - ‖θ*‖² is computed as ⟨θ - θ*, θ + θ*⟩.
    """

    def one_chunk(rows, weight):
        difference = _record_values(problem, params, rows) - _record_values(problem, optimum, rows)
        return jnp.sum(weighted(difference, weight))

    losses = sum_over_rows(one_chunk, database, problem.row_chunk) / num_records(database)
    difference, total = optax.tree.sub(params, optimum), optax.tree.add(params, optimum)
    return losses + _penalty(problem, difference, total)


def _penalty(problem: Problem, left: PyTree, right: PyTree) -> Array:
    """(λ/2)⟨left, right⟩."""
    inner = jnp.asarray(optax.tree.vdot(left, right))
    return jnp.asarray(problem.l2, inner.dtype) / 2 * inner


def _record_values(problem: Problem, params, rows) -> Array:
    """ℓ (Huberised where clipping acts on a convex single-index loss) of each row."""
    loss = problem.loss
    constants = loss.constants
    if problem.clip_norm is None or not (constants.convex and constants.single_index):
        return jax.vmap(loss.value, in_axes=(None, 0))(params, rows)
    scores = loss.scores
    assert scores is not None
    features, label = scores.split(rows)
    limit = slope_limit(feature_norms(scores, features), problem.clip_norm)
    return huberised_value(scores, linear_scores(scores, params, features), label, limit)


def huberised_value(scores: LinearScores, t: Array, label: Array, limit: Array) -> Array:
    """φ̃(t) = φ(0) + ∫₀ᵗ clip(φ'(s), ±limit) ds for a convex φ, to rounding.

    The slope φ' is non-decreasing, so between 0 and t it crosses -limit and +limit at most once
    each. The two points are found by bisection; the integral is φ between them and linear outside.
    """
    low, high = jnp.minimum(t, 0), jnp.maximum(t, 0)
    enters = _crossing(scores, label, low, high, -limit)
    leaves = _crossing(scores, label, low, high, limit)
    middle = scores.value(leaves, label) - scores.value(enters, label)
    integral = middle + limit * (high - leaves) - limit * (enters - low)
    return scores.value(jnp.zeros_like(t), label) + jnp.sign(t) * integral


def _crossing(scores: LinearScores, label, low, high, level) -> Array:
    """The point of [low, high] where the non-decreasing slope passes `level`, or an end."""

    def halve(_, bracket):
        left, right = bracket
        middle = left + (right - left) / 2
        below = scores.slope(middle, label) < level
        return jnp.where(below, middle, left), jnp.where(below, right, middle)

    # Each halving gains one bit: as many as a number has, and a few more for a crossing near 0.
    bits = jnp.finfo(low.dtype).nmant + 8
    left, right = jax.lax.fori_loop(0, bits, halve, (low, high))
    # Where the slope passes the level outside the interval, bisection only comes close to an end:
    # take the end itself.
    return jnp.where(
        scores.slope(low, label) >= level,
        low,
        jnp.where(scores.slope(high, label) <= level, high, left + (right - left) / 2),
    )


class Minimum(NamedTuple):
    """What `minimise` found.

    Attributes:
        params: θ*.
        gradient_norm: ‖∇ℒ(θ*)‖; the excess risk of θ* is at most its square over 2λ.
        steps: Newton steps taken.
        converged: whether the gradient is zero up to rounding. Check it before relying on θ*.
    """

    params: PyTree
    gradient_norm: Array
    steps: Array
    converged: Array


@products.full
def minimise(
    problem: Problem, database: PyTree, params: PyTree | None = None, *, max_steps: int = 200
) -> Minimum:
    """θ* = argmin ℒ_𝒟 (`eqn:objective`) by damped Newton steps, to machine precision.

    Up to `MOST_SOLVED` parameters the Hessian is formed and solved. Beyond that every step solves
    its system by conjugate gradients, which need a few vectors instead of a d × d matrix.

    Assumes: a convex loss, and single-index if clipped (otherwise the field need not be a
    gradient). Works in the database's precision; enable 64-bit for a reference optimum.

    Raises:
        InputError: the loss is not convex, or clipped and not single-index.
    """
    _require_minimisable(problem)
    start, unravel = ravel_pytree(
        problem.loss.template(records_of(database)) if params is None else params
    )
    field = functools.partial(_flat_gradient, problem, unravel, database)
    direction_of = _solved if start.size <= MOST_SOLVED else _conjugate

    def descent(candidate, theta):
        return -excess_risk(problem, unravel(candidate), database, unravel(theta))

    def unfinished(carry):
        _, _, improved, steps = carry
        return improved & (steps < max_steps)

    def newton(carry):
        theta, residual, _, steps = carry
        direction = direction_of(field, theta, residual)
        candidate = _backtrack(descent, theta, residual, direction)
        candidate_residual = field(candidate)
        # Far from the optimum the objective falls. Close to it the objective no longer changes
        # within rounding (it is flat there, the gradient is linear), and only the gradient shows
        # progress.
        improved = (descent(candidate, theta) > 0) | (_norm(candidate_residual) < _norm(residual))
        theta = jnp.where(improved, candidate, theta)
        residual = jnp.where(improved, candidate_residual, residual)
        return theta, residual, improved, steps + 1

    carry = (start, field(start), jnp.array(True), jnp.array(0))
    theta, residual, _, steps = jax.lax.while_loop(unfinished, newton, carry)
    # A mean of n terms and λθ are each rounded to a few units of their size; 100 leaves a margin.
    rounding = 100 * jnp.finfo(theta.dtype).eps * (1 + _norm(theta))
    return Minimum(unravel(theta), _norm(residual), steps, _norm(residual) <= rounding)


@products.full
def descend(
    problem: Problem, database: PyTree, params: PyTree | None = None, *, max_steps: int = 20_000
) -> Minimum:
    """A stationary point of ℒ_𝒟 by descent with η = 1/(λ+β), for losses that need not be convex.

    Started at the model 0 by default. Where the loss is not convex the point need not be the least,
    and its gradient bounds no excess risk.
    """
    theta, unravel = ravel_pytree(
        problem.loss.template(records_of(database)) if params is None else params
    )
    field = functools.partial(_flat_gradient, problem, unravel, database)
    constants = problem.loss.constants
    curvature = jnp.asarray(problem.l2 + (constants.smoothness or 0.0), theta.dtype)

    def rounding(theta):
        return 100 * jnp.finfo(theta.dtype).eps * (1 + _norm(theta))

    def unfinished(carry):
        theta, residual, steps = carry
        return (_norm(residual) > rounding(theta)) & (steps < max_steps)

    def step(carry):
        theta, residual, steps = carry
        theta = theta - residual / curvature
        return theta, field(theta), steps + 1

    theta, residual, steps = jax.lax.while_loop(
        unfinished, step, (theta, field(theta), jnp.array(0))
    )
    norm = _norm(residual)
    return Minimum(unravel(theta), norm, steps, norm <= rounding(theta))


def _solved(field: Callable, theta: Array, residual: Array) -> Array:
    """Newton's direction, from the whole (generalised) Hessian."""
    return jnp.linalg.solve(jax.jacfwd(field)(theta), residual)


def _conjugate(field: Callable, theta: Array, residual: Array) -> Array:
    """Newton's direction to three digits, from products of the Hessian with vectors.

    Every step of conjugate gradients from 0 gives a direction in which the objective falls, however
    early they stop; three digits are three digits of the gradient for each Newton step.
    """

    def times(vector):
        return jax.jvp(field, (theta,), (vector,))[1]

    return jax.scipy.sparse.linalg.cg(times, residual, tol=1e-3, maxiter=_CONJUGATE_STEPS)[0]


def _require_minimisable(problem: Problem) -> None:
    constants = problem.loss.constants
    if not constants.convex:
        raise InputError(
            f"{constants.name} is not convex, so no minimiser can be certified; "
            f"compare objective values instead, or search a grid for d ≤ 2."
        )
    if problem.clip_norm is not None and not constants.single_index:
        raise InputError(
            f"{constants.name} with clipping is not the gradient of a function (erratum E1), so it "
            f"has no minimiser; drop clip_norm to minimise the unclipped objective."
        )


def _flat_gradient(problem: Problem, unravel: Callable, database: PyTree, theta: Array) -> Array:
    return ravel_pytree(gradient(problem, unravel(theta), database))[0]


def _backtrack(descent: Callable, theta: Array, residual: Array, direction: Array) -> Array:
    """The first of the steps 1, 1/2, 1/4, … along the Newton direction with Armijo's decrease.

    The objective ℒ is strongly convex and its generalised Hessian is at least λI, so the direction
    descends and the halving ends. Where the decrease is below rounding, the full step is taken.
    """
    slope = jnp.vdot(residual, direction)
    rounding = jnp.finfo(theta.dtype).eps * 10

    def too_long(scale):
        enough = 1e-4 * scale * slope
        return (descent(theta - scale * direction, theta) < enough - rounding) & (scale > 1e-9)

    scale = jax.lax.while_loop(too_long, lambda scale: scale / 2, jnp.ones((), theta.dtype))
    return theta - scale * direction


def _norm(vector: Array) -> Array:
    return jnp.sqrt(jnp.sum(vector**2))


# --- how good releases are ------------------------------------------------------------------------


class Judged(NamedTuple):
    """Releases of a stream, each judged on the database that it was trained on.

    Attributes:
        risk: excess risk, (judged, k) for k models of each release.
        minimum: `Minimum` of each database, leading axis `judged`.
    """

    risk: Array
    minimum: Minimum


@products.full
def judge_stream(
    problem: Problem, releases: PyTree, database: PyTree, edits: Edit, judged: Sequence[int]
) -> Judged:
    """Excess risk of releases along a stream of edits.

    Each search for a minimiser starts at the last one found. A loss that is not convex is judged
    against the point that `descend` finds, so its excess risk may be negative.

    Args:
        problem: what is minimised.
        releases: the releases to judge, leaves (judged, k, …) with k models (one per seed) of each.
        database: 𝒟_0. edits: the edits of all requests, with a leading axis of requests.
        judged: the increasing numbers of the requests that the releases followed; 0 for learning.
    """
    search = minimise if problem.loss.constants.convex else descend
    ends = np.asarray(judged)
    begins = np.concatenate([[0], ends[:-1]])
    longest = max(int(np.max(ends - begins)), 1)
    requests = ends[:, None] - 1 - np.arange(longest)[::-1]
    # A scan needs blocks of equal length: shorter gaps between releases are padded with edits of
    # row -1, which is out of range and therefore dropped.
    due = jnp.asarray(requests >= begins[:, None]).reshape(*requests.shape, 1)
    blocks = jax.tree.map(lambda leaf: leaf[np.maximum(requests, 0)], edits)
    blocks = blocks._replace(index=jnp.where(due, blocks.index, -1))

    def judge(carry, xs):
        database, optimum = carry
        models, block = xs
        edited = jax.lax.scan(lambda rows, edit: (apply_edit(rows, edit), None), database, block)[0]
        found = search(problem, edited, optimum)
        risk = jax.vmap(lambda model: excess_risk(problem, model, edited, found.params))
        return (edited, found.params), Judged(risk(models), found)

    start = (database, problem.loss.template(records_of(database)))
    return jax.lax.scan(judge, start, (releases, blocks))[1]


@products.full
def accuracy(models: Any, held_out: Labelled) -> Any:
    """Share of records that each linear model gets right; see `correct`."""
    return correct(models, held_out).mean(axis=-1)


@products.full
def correct(models: Any, held_out: Labelled) -> Any:
    """Which records each linear model gets right: the sign, or the class of the largest score.

    Labels of an integer type are numbers of classes, and models have shape (…, d, C); other labels
    are ±1, and models have shape (…, d). A score of 0 counts as wrong for a sign. NumPy arrays give
    a NumPy result, JAX arrays a JAX result.
    """
    features, label = held_out
    if jnp.issubdtype(label.dtype, jnp.integer):
        return (features @ models).argmax(axis=-1) == label
    return models @ features.T * label > 0
