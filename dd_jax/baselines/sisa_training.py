"""How SISA trains its shards: in stages over growing numbers of slices, perhaps privately."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from dd_jax import checks, noisy_gd
from dd_jax.baselines.base import cost
from dd_jax.erm import Problem
from dd_jax.errors import InputError
from dd_jax.losses import Loss, deletion
from dd_jax.types import num_records


class Training(NamedTuple):
    """How one shard's model is made: full-batch gradient descent from zero, perhaps private.

    Attributes:
        problem: loss, regulariser and clip norm C (None unless private).
        num_steps: e, gradient steps over the whole shard, static.
        step_size: η.
        noise_multiplier: z; each step adds N(0, z²C² I) to the sum of clipped gradients, as
            DP-SGD does; 0 for none.
    """

    problem: Problem
    num_steps: int
    step_size: Any
    noise_multiplier: Any = 0.0


def stage_steps(num_steps: int, slices: int) -> int:
    """2e/(R + 1), the steps of each of the R stages.

    Raises:
        InputError: no slice, or not a whole number of steps.
    """
    slices = int(checks.count("slices", slices))
    steps, rest = divmod(2 * num_steps, slices + 1)
    if rest:
        raise InputError(
            f"num_steps = {num_steps} is not a multiple of (R + 1)/2 for R = {slices} slices; "
            f"give for example {-(-num_steps // (slices + 1)) * (slices + 1)}."
        )
    return steps


def stage_gradients(deal: Array, n: int, training: Training, slices: int) -> Array:
    """Gradients of single records that each stage of each shard takes, (s, R).

    Raises:
        InputError: more of them than the meter can hold.
    """
    cost(n * slices * stage_steps(training.num_steps, slices))
    sizes = jnp.sum((deal < n).reshape(deal.shape[0], slices, -1), axis=2, dtype=jnp.int32)
    return stage_steps(training.num_steps, slices) * jnp.cumsum(sizes, axis=1, dtype=jnp.int32)


def train_shards(keys, training, slices, database, deal, kept=None, first=None) -> PyTree:
    """The stages of shards: those before `first` as kept, the others trained; all by default."""

    def one(key, rows, kept, first):
        shard = _shard(training.problem.loss, database, rows)
        return _train(key, training, slices, shard, kept, first)

    axes = (0, 0, None if kept is None else 0, None if first is None else 0)
    return jax.vmap(one, axes)(keys, deal, kept, first)


def _shard(loss: Loss, database: PyTree, rows: Array) -> PyTree:
    """The shard's records; the null record in empty places."""
    n = num_records(database)
    padding = deletion(loss, database, [n]).record
    padded = jax.tree.map(lambda leaf, null: jnp.concatenate([leaf, null]), database, padding)
    return jax.tree.map(lambda leaf: leaf[jnp.minimum(rows, n)], padded)


def _train(key, training: Training, slices: int, shard: PyTree, kept, first) -> PyTree:
    """The models after each stage, leading axis R."""
    steps = stage_steps(training.num_steps, slices)
    size = num_records(shard) // slices
    model, stages = training.problem.loss.template(shard), []
    for k in range(slices):
        seen = jax.tree.map(lambda leaf, k=k: leaf[: (k + 1) * size], shard)
        model = _descend(key, training, seen, model, steps, k * steps)
        if kept is not None:
            model = jax.tree.map(
                lambda new, old, k=k: jnp.where(k >= first, new, old[k]), model, kept
            )
        stages.append(model)
    return jax.tree.map(lambda *models: jnp.stack(models), *stages)


def _descend(key, training: Training, records, model, num_steps: int, first_step: int) -> PyTree:
    """η-steps on the records' objective; noise z·C/m on the mean gradient is σ² = η(zC/m)²/2."""
    problem, eta = training.problem, training.step_size
    clip_norm = 0.0 if problem.clip_norm is None else problem.clip_norm
    deviation = training.noise_multiplier * clip_norm / num_records(records)
    return noisy_gd.run(
        key,
        model,
        records,
        problem,
        step_size=eta,
        noise_variance=eta * deviation**2 / 2,
        num_steps=num_steps,
        first_step=first_step,
    )
