"""Scores: one number per output, large where the record seems present.

A score is fitted on part A of the seeds and only applied to part B, so it may be any function at
all: a bad score costs power, never soundness. Whole sequences of releases are one long row.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from dd_jax import checks, products
from dd_jax.audit.float_steps import Step
from dd_jax.errors import InputError
from dd_jax.plans import Plan

_MOMENTUM = 0.9
_OWN_RUNS = 32  # of part A, enough to see how a step was compiled
_MOST_COLUMNS = 2048  # beyond this the covariance is taken to be diagonal

Scorer = Callable[[np.ndarray], np.ndarray]
"""(S, D) outputs to (S,) scores."""


class Score(NamedTuple):
    """A way of ordering outputs by how strongly they suggest that the record was present.

    Attributes:
        name: as reports print it.
        fit: `(present, absent) -> scorer` from the (S, D) tables of part A.
        share: the part of the seeds that is worth spending on fitting.
        one_event: whether it takes two values only, so that no event is left to choose.
    """

    name: str
    fit: Callable[[np.ndarray, np.ndarray], Scorer]
    share: float = 0.5
    one_event: bool = False


def evaluate(score: Score, scorer: Scorer, table: np.ndarray) -> np.ndarray:
    """Scores of a table as float64, refused unless finite and one per row."""
    values = np.asarray(scorer(table), dtype=np.float64)
    if values.shape != (len(table),) or not np.isfinite(values).all():
        raise InputError(
            f"the score {score.name!r} gave shape {values.shape} for {len(table)} outputs, or NaN "
            f"or infinity; return one finite number per row."
        )
    return values


def likelihood_ratio(log_ratio: Scorer, name: str = "likelihood ratio") -> Score:
    """log p(x)/q(x) under a law that is known: the best of all scores (Neyman and Pearson, 1933).

    Only thresholds are left to choose, so a fifth of the seeds is spent on choosing.

    Args:
        log_ratio: (S, D) outputs to (S,) log ratios, up to any increasing function.
        name: as reports print it.
    """
    return Score(name, lambda present, absent: log_ratio, share=0.2)


def gaussian_likelihood_ratio(
    mean_present, mean_absent, covariance_present, covariance_absent=None
) -> Score:
    """The likelihood ratio of two known Gaussian laws of the flattened outputs.

    ½ (x - m₀)ᵀ Σ₀⁻¹ (x - m₀) - ½ (x - m₁)ᵀ Σ₁⁻¹ (x - m₁) + const, with 1 for present, 0 for absent.

    Args:
        mean_present, mean_absent: (D,).
        covariance_present, covariance_absent: (D, D), or a number v for v I. Absent: as present.
    """
    means = [np.atleast_1d(np.asarray(m, np.float64)) for m in (mean_present, mean_absent)]
    second = covariance_present if covariance_absent is None else covariance_absent
    roots = [_cholesky(c, means[0].size) for c in (covariance_present, second)]

    def distances(table, mean, root):
        return np.sum(np.linalg.solve(root, (table - mean).T) ** 2, axis=0)

    def log_ratio(table):
        near, far = (distances(table, *law) for law in zip(means, roots, strict=True))
        return (far - near) / 2

    return likelihood_ratio(log_ratio)


def _cholesky(covariance, dim: int) -> np.ndarray:
    matrix = np.asarray(covariance, np.float64)
    try:
        return np.linalg.cholesky(matrix * np.eye(dim) if matrix.ndim == 0 else matrix)
    except np.linalg.LinAlgError:
        raise InputError(
            "the covariance is not positive definite; give a symmetric one with eigenvalues > 0."
        ) from None


def linear(shrinkage: float | None = None) -> Score:
    """Fisher's discriminant: xᵀ [(1-s)Σ + s I]⁻¹ (m₁ - m₀) on standardised coordinates.

    Σ is the covariance within the arms. The best score for Gaussians of equal covariance, and
    defined for constant outputs and for fewer seeds than coordinates. Fisher (1936).

    Args:
        shrinkage: s in (0, 1]; default D / (D + seeds), so that it fades as seeds grow.
    """
    if shrinkage is not None:
        checks.positive("shrinkage", shrinkage, most=1)

    def fit(present, absent) -> Scorer:
        standardise = _standardiser(present, absent)
        weights = _fisher(standardise(present), standardise(absent), shrinkage)
        return lambda table: standardise(table) @ weights

    return Score("linear", fit)


def quadratic() -> Score:
    """Fisher's discriminant of all numbers and their squares, which also sees a wrong spread."""
    plain = linear()

    def fit(present, absent) -> Scorer:
        standardise = _standardiser(present, absent)

        def features(table):
            scaled = standardise(table)
            return np.concatenate([scaled, scaled**2], axis=1)

        scorer = plain.fit(features(present), features(absent))
        return lambda table: scorer(features(table))

    return Score("quadratic", fit, plain.share)


def _standardiser(present, absent) -> Scorer:
    """Centre and scale each coordinate by its spread over both arms; constants become 0."""
    both = np.concatenate([present, absent])
    centre, spread = both.mean(axis=0), both.std(axis=0)
    # A constant has a spread of a few roundings; dividing by that would invent differences.
    spread = np.where(spread > 1e-12 * np.abs(centre), spread, np.inf)
    return lambda table: (table - centre) / spread


def _fisher(present, absent, shrinkage) -> np.ndarray:
    rows, columns = 2 * len(present), present.shape[1]
    shift = present.mean(axis=0) - absent.mean(axis=0)
    within = np.concatenate([present - present.mean(axis=0), absent - absent.mean(axis=0)])
    shrink = columns / (columns + rows) if shrinkage is None else shrinkage
    if columns > _MOST_COLUMNS:
        return shift / ((1 - shrink) * np.mean(within**2, axis=0) + shrink)
    covariance = (1 - shrink) * (within.T @ within) / rows
    return np.linalg.solve(covariance + shrink * np.eye(columns), shift)


def atoms() -> Score:
    """How much more often exactly this output was seen with the record than without it.

    log((1/2 + times in present) / (1/2 + times in absent)) over part A: for laws on few points,
    whatever their shape. An output that was not seen before scores 0.
    """

    def fit(present, absent) -> Scorer:
        seen: dict[bytes, np.ndarray] = {}
        for arm, table in enumerate((present, absent)):
            for output, times in zip(*np.unique(table, axis=0, return_counts=True), strict=True):
                seen.setdefault(output.tobytes(), np.full(2, 0.5))[arm] += times
        ratios = {output: np.log(times[0] / times[1]) for output, times in seen.items()}
        return lambda table: np.array([ratios.get(output.tobytes(), 0.0) for output in table])

    return Score("atoms", fit)


class _Critic(NamedTuple):
    """x ↦ ⟨a, x⟩ + ⟨b, tanh(W x + c)⟩: a linear score and one hidden layer beside it."""

    direct: Array
    hidden: Array
    offset: Array
    out: Array


def network(
    key: Array, *, width: int = 32, steps: int = 400, batch: int = 512, learning_rate: float = 0.1
) -> Score:
    """A small critic trained to tell the arms apart by logistic loss; for laws far from Gaussian.

    Starts as Fisher's discriminant and adds a hidden layer to it. The same key gives the same
    critic.

    Args:
        key: for the initial weights.
        width: hidden units. steps, batch, learning_rate: of gradient descent with momentum.
    """

    def fit(present, absent) -> Scorer:
        standardise = _standardiser(present, absent)
        present, absent = standardise(present), standardise(absent)
        direct = jnp.asarray(_fisher(present, absent, None), jnp.float32)
        arms = jnp.asarray(np.stack([present, absent]), jnp.float32)
        rate = jnp.float32(learning_rate)
        critic = _train(jax.random.clone(key), arms, direct, rate, width, steps, batch)
        return lambda table: _apply(critic, jnp.asarray(standardise(table), jnp.float32))

    return Score("network", fit)


@jax.jit
@products.full
def _apply(critic: _Critic, rows: Array) -> Array:
    hidden = jnp.tanh(rows @ critic.hidden.T + critic.offset)
    return rows @ critic.direct + hidden @ critic.out


@functools.partial(jax.jit, static_argnums=(4, 5, 6))
@products.full
def _train(key, arms, direct, learning_rate, width, steps, batch) -> _Critic:
    """Gradient descent with momentum on batches of consecutive seeds; compiled once per shape."""
    rows, columns = arms.shape[1:]
    batch = min(batch, rows)
    hidden = jax.random.normal(key, (width, columns)) / jnp.sqrt(jnp.float32(columns))
    critic = _Critic(direct, hidden, jnp.zeros(width), jnp.zeros(width))

    def loss(critic, present, absent):
        speaks_for, speaks_against = _apply(critic, present), _apply(critic, absent)
        return jnp.mean(jax.nn.softplus(-speaks_for)) + jnp.mean(jax.nn.softplus(speaks_against))

    def step(carry, number):
        critic, velocity = carry
        # Seeds are independent, so consecutive ones are as good a batch as random ones.
        first = number * batch % (rows - batch + 1)
        present, absent = jax.lax.dynamic_slice_in_dim(arms, first, batch, axis=1)
        slopes = jax.grad(loss)(critic, present, absent)
        velocity = jax.tree.map(lambda v, g: _MOMENTUM * v - learning_rate * g, velocity, slopes)
        return (jax.tree.map(jnp.add, critic, velocity), velocity), None

    start = (critic, jax.tree.map(jnp.zeros_like, critic))
    (critic, _), _ = jax.lax.scan(step, start, jnp.arange(steps))
    return critic


def deleted_record_loss(loss: Any, record: PyTree, template: PyTree) -> Score:
    """The loss of the judged record under every released model, combined by Fisher's discriminant.

    The classical membership score (Yeom et al., 2018), for one release or a whole sequence.

    Args:
        loss: a `dd.losses.Loss`, or `(params, record) -> scalar`.
        record: the record that was deleted, without a row axis.
        template: one released model, for its structure and shapes (`loss.template(database)`).
    """
    value = getattr(loss, "value", loss)
    leaves, structure = jax.tree.flatten(template)
    sizes = [int(np.size(leaf)) for leaf in leaves]

    @jax.jit
    @products.full
    def losses(models, record):
        each_release = jax.vmap(value, in_axes=(0, None))
        return jax.vmap(each_release, in_axes=(0, None))(models, record)

    def features(table):
        if table.shape[1] % sum(sizes):
            raise InputError(
                f"an output has {table.shape[1]} numbers, a model {sum(sizes)}; "
                f"release whole models, or give the template of what is released."
            )
        count = table.shape[1] // sum(sizes)
        columns = np.split(table, np.cumsum(count * np.array(sizes))[:-1], axis=1)
        models = [
            jnp.asarray(part.reshape(-1, count, *np.shape(leaf)), jnp.result_type(leaf))
            for part, leaf in zip(columns, leaves, strict=True)
        ]
        found = losses(jax.tree.unflatten(structure, models), record)
        return np.asarray(found, np.float64).reshape(len(table), count)

    def fit(present, absent) -> Scorer:
        scorer = linear().fit(features(present), features(absent))
        return lambda table: scorer(features(table))

    return Score("deleted record's loss", fit)


def float_noise(plan: Plan, slopes: Callable[[Array], Array]) -> Score:
    """Whether float32 noise leads from one release to the next, with the record or without it.

    The noise of a step takes 2²³ values. The score counts the draws that lead from θ to exactly the
    release after it, under either database: log of the count with the record, minus that without,
    over all coordinates. How the step was compiled is learned on part A. For releases without
    float noise, or rounded to a publication grid, the counts say little.

    Args:
        plan: of the run, for η and σ² of the one step between the releases (K_U = 1).
        slopes: `θ -> (2, d)`, the gradient with the record and without it, as the program computes
            it. The outputs are rows (θ, release after it) of 2d numbers.
    """
    step = Step.of(plan)
    gradients = jax.jit(jax.vmap(slopes))

    def transitions(table):
        if table.shape[1] % 2:
            raise InputError(
                f"an output has {table.shape[1]} numbers; give rows of a model and the release "
                f"that follows it by one step, as many numbers each."
            )
        before, after = np.split(np.asarray(table, np.float32), 2, axis=1)
        return before, np.asarray(gradients(before)), after

    def fit(present, absent) -> Scorer:
        before, found, after = transitions(present[:_OWN_RUNS])
        compiled = step.calibrated(before, found[:, 0], after)

        def scorer(table):
            before, found, after = transitions(table)
            return -compiled.log_ratio(before, found, after)

        return scorer

    return Score("float noise", fit, share=0.2)


def score_list(scores: Score | Sequence[Score] | None) -> tuple[Score, ...]:
    """One or several scores as a tuple; `linear()` where none is named."""
    if scores is None:
        return (linear(),)
    found = (scores,) if isinstance(scores, Score) else tuple(scores)
    if not found or not all(isinstance(score, Score) for score in found):
        raise InputError(
            f"scores = {scores!r}; give one or several of dd.audit's scores, e.g. audit.linear()."
        )
    return found
