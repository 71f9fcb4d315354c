"""Noisy gradient descent in exact arithmetic: the program that `plans.lattice` accounts for.

The state θ = ΔI is kept as the two 32-bit words of each I, so that it passes through programs that
know no 64-bit types; they are switched on inside the functions here. A step is

    I ← clamp(round((I (2^m - C) - N) / 2^m) + Z),   N = round(η 2^m/Δ · mean gradient)

and all but N and the scores' rounding is arithmetic of whole numbers. The sums over records are
those of `dd_jax.gradients`, of whole numbers held as float64: no partial sum passes 2⁵³, so that
the result does not depend on chunks, on stacked models, on the form of the database, or on how many
devices share the rows. The same bits come out everywhere.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int, PyTree, UInt32

from dd_jax import databases
from dd_jax.discrete_gaussian import discrete_gaussian
from dd_jax.errors import InputError
from dd_jax.gradients import clipped_sums
from dd_jax.guarantees.schedules import first_row
from dd_jax.keys import tagged
from dd_jax.losses.base import LinearScores, Loss, loss_of_scores
from dd_jax.plans import lattice
from dd_jax.plans.lattice import Lattice
from dd_jax.types import Domain, Labelled, num_records

Words = UInt32[Array, "d 2"]


def require_loss(loss: Loss) -> None:
    """Refuse a loss without a slope in whole numbers, whatever it is called."""
    if loss.scores is None or loss.scores.exact is None:
        raise InputError(
            f"{loss.name} is not a loss of the catalogue with a slope in exact arithmetic; use "
            f"one, or plan with arithmetic='fast'."
        )


def start(key: Array, plan) -> Words:
    """A start that is free of the data: discrete Gaussian, of variance at most the planned one."""
    numbers = lattice.of(plan)
    with jax.enable_x64(True):
        if numbers.start_bits is None:
            return _words(jnp.zeros(plan.dim, jnp.int64))
        return _words(_clamped(discrete_gaussian(key, (plan.dim,), numbers.start_bits), numbers))


def run(
    key: Array,
    words: Words,
    database: PyTree,
    problem,
    plan,
    *,
    num_steps: int,
    first_batch: Array,
) -> Words:
    """K steps from a state, with the batch that comes next."""
    numbers = lattice.of(plan)
    _require_doubles()
    with jax.enable_x64(True):
        steps_key = tagged(key, "step")
        centre = centre_of(problem, database, plan)

        def one_step(carry, _):
            state, k, batch = carry
            noise_key = jax.random.fold_in(steps_key, k)
            noise = discrete_gaussian(noise_key, state.shape, numbers.noise_bits)
            state = _clamped(centre(state, batch) + noise, numbers)
            return (state, k + 1, (batch + 1) % jnp.int32(plan.batches)), None

        state = lax.bitcast_convert_type(words, jnp.int64)
        begin = (state, jnp.int32(0), jnp.asarray(first_batch, jnp.int32))
        return _words(lax.scan(one_step, begin, None, length=num_steps)[0][0])


def descent_of(problem, database: PyTree, plan) -> Callable[[Array, Array], Array]:
    """`(I, batch) -> I (2^m - C) - N`: a step without noise, in units of 2^-m Δ.

    What it gives is within ηE of θ - η∇ℒ(θ), with the E of `plans.lattice.gradient_error`.
    """
    numbers = lattice.of(plan)
    with jax.enable_x64(True):
        summed = _sums(problem, database, plan.batches, numbers)
        push = _push(plan, num_records(database), numbers)

    def descend(state, batch):
        total = summed(state.astype(jnp.float64), batch)
        gradient = jnp.rint(total * push(batch)).astype(jnp.int64)
        return state * (2**numbers.step_bits - numbers.shrink) - gradient

    return descend


def centre_of(problem, database: PyTree, plan) -> Callable[[Array, Array], Array]:
    """`(I, batch) -> the point of the lattice that noise is added to`, for whole numbers I."""
    bits, descend = lattice.of(plan).step_bits, descent_of(problem, database, plan)
    return lambda state, batch: (descend(state, batch) + 2 ** (bits - 1)) >> bits


def model(words: Words, plan) -> Array:
    """θ as floats of the plan's type: a function of the state, so nothing more of it is known."""
    numbers = lattice.of(plan)
    with jax.enable_x64(True):
        state = lax.bitcast_convert_type(words, jnp.int64)
        return (state.astype(jnp.float64) * numbers.spacing).astype(plan.dtype)


def _words(state: Int[Array, " d"]) -> Words:
    return lax.bitcast_convert_type(state, jnp.uint32)


def _clamped(state: Array, numbers: Lattice) -> Array:
    box = 2**numbers.box_bits
    return jnp.clip(state, -box, box)


def _require_doubles() -> None:
    """Refuse platforms that are not known to have a float64 of their own."""
    platform = jax.default_backend()
    if platform not in ("cpu", "gpu"):
        raise InputError(
            f"{platform} is not known to have a float64 of its own, which exact arithmetic needs; "
            f"run it on a CPU or a GPU, or plan with arithmetic='fast'."
        )


def _push(plan, n: int, numbers: Lattice):
    """`batch -> η 2^m / (b Δ 2^(G+p))`, the factor of a sum of whole slopes times features."""
    scale = math.ldexp(
        plan.step_size / numbers.spacing,
        numbers.step_bits - numbers.slope_bits - numbers.feature_bits,
    )
    if n % plan.batches == 0:
        return lambda batch: jnp.float64(scale / (n // plan.batches))
    size = n // plan.batches

    def push(batch):
        longer = first_row(n, plan.batches, batch + 1) - first_row(n, plan.batches, batch) > size
        return jnp.where(longer, jnp.float64(scale / (size + 1)), jnp.float64(scale / size))

    return push


def _sums(problem, database: PyTree, batches: int, numbers: Lattice):
    """`(I, batch) -> Σ slope · a`, whole numbers as float64."""
    loss = _whole_loss(problem.loss, numbers)
    whole, _ = databases.project(loss.domain, database)
    summed = clipped_sums(loss, whole, None, problem.row_chunk, "full", batches)
    return (lambda state, batch: summed(state)) if batches == 1 else summed


@functools.lru_cache(maxsize=64)
def _whole_loss(loss: Loss, numbers: Lattice) -> Loss:
    """The loss on whole records and whole models, for `gradients.clipped_sums`.

    Its domain turns records into whole ones: features (and the constant 1 of an intercept; times
    the label for a margin loss) as multiples of 2^-p, cut off towards 0.
    """
    scores = loss.scores
    assert scores is not None
    exact = scores.exact
    assert exact is not None
    largest = float(numbers.shape.radius * 2.0**numbers.feature_bits) ** 2

    def split_whole(records):
        features, label = (part.astype(jnp.float64) for part in scores.split(records))
        if scores.intercept:
            features = jnp.concatenate([features, jnp.ones_like(features[:, :1])], axis=1)
        if scores.margin:
            features = features * label[:, None]
        return features, label

    def project(records):
        features, label = split_whole(records)
        features = jnp.trunc(features * 2.0**numbers.feature_bits)
        # An exact sum. No record is outside where a driver has checked the domain.
        inside = jnp.sum(features**2, axis=1) <= largest
        features = jnp.where(inside[:, None], features, 0)
        most = 2.0 ** (61 - numbers.score_bits)
        label = jnp.rint(jnp.clip(label, -most, most) * 2.0**numbers.score_bits)
        return Labelled(features, label), inside

    factor = math.ldexp(numbers.spacing, numbers.score_bits - numbers.feature_bits)

    def slope(total, label):
        score = jnp.rint(total * jnp.float64(factor)).astype(jnp.int64)
        found = exact(score, label.astype(jnp.int64), numbers.score_bits, numbers.slope_bits)
        return found.astype(jnp.float64)

    whole = LinearScores(
        split=lambda records: (records.features, records.label),
        value=scores.value,
        slope=slope,
    )
    domain = Domain("whole records", lambda records: None, project)
    return loss_of_scores(whole, loss.constants, domain, None)
