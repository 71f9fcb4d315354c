"""SISA (Bourtoule et al. 2021) as a `Mechanism`: shards, one model each, a majority vote.

Records are dealt into s shards once, at random, when learning; a request retrains the shards that
it hits and leaves the others. The deal is a secret state that no request draws anew: publishing is
not the identity, and the type shows it (`subsec:gupta_compare`). One slice per shard.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from dd_jax import noisy_gd
from dd_jax.erm import Problem
from dd_jax.errors import InputError
from dd_jax.losses import Loss, deletion
from dd_jax.types import Mechanism, apply_edit, num_records


class Training(NamedTuple):
    """How one shard's model is made: full-batch gradient descent from zero, perhaps private.

    Attributes:
        problem: loss, regulariser and clip norm C (None unless private).
        num_steps: gradient steps over the whole shard, static.
        step_size: η.
        noise_multiplier: z; each step adds N(0, z²C² I) to the sum of clipped gradients, as
            DP-SGD does; 0 for none.
    """

    problem: Problem
    num_steps: int
    step_size: Any
    noise_multiplier: Any = 0.0


class SisaState(NamedTuple):
    """The deal (row numbers per shard; n and beyond for an empty place) and one model per shard."""

    deal: Int[Array, "shards places"]
    models: PyTree


def mechanism(training: Training, shards: int) -> Mechanism:
    """SISA with s shards and one slice; releases all shard models.

    Guarantee: exact unlearning for requests fixed in advance; none against adaptive requests,
    which can learn the deal from the models, and no privacy unless shards are trained privately.

    Raises:
        InputError: fewer than 2 shards, noise without a clip norm, or (when learning) a loss that
            has no null record to fill empty places with.
    """
    _check(training, shards)

    def learn(key, database):
        deal_key, train_key = jax.random.split(key)
        deal = draw_deal(deal_key, num_records(database), shards)
        return SisaState(deal, _train_all(train_key, training, database, deal))

    def delete(key, database, edit, state):
        models = _train_all(key, training, apply_edit(database, edit), state.deal)
        hit = hit_shards(state.deal, edit.index, num_records(database))
        return SisaState(state.deal, _choose(hit, models, state.models))

    return Mechanism(learn, delete, publish_models, training.problem.loss.domain)


def publish_models(key: Array, state: SisaState) -> PyTree:
    """f_pub: all shard models, leading axis s; the deal stays secret."""
    del key
    return state.models


def draw_deal(key: Array, n: int, shards: int) -> Int[Array, "shards places"]:
    """A uniform deal of n rows into s shards of ⌈n/s⌉ places.

    Places beyond n are dealt too, so that no shard differs from another before the cards fall.
    """
    places = -(-n // shards)
    return jax.random.permutation(key, shards * places).astype(jnp.int32).reshape(shards, places)


def hit_shards(deal: Array, index: Array, n: int) -> Array:
    """Which shards hold a row that the edit names; rows out of range hit none."""
    named = jnp.zeros(n, bool).at[jnp.where(index < 0, n, index)].set(True, mode="drop")
    return jnp.any(named.at[deal].get(mode="fill", fill_value=False), axis=1)


def majority_vote(models: Array, features: Array) -> Array:
    """The label ±1 that most linear shard models give to each row; 0 where they are divided."""
    return jnp.sign(jnp.sum(jnp.sign(models @ features.T), axis=0))


def _train_all(key: Array, training: Training, database: PyTree, deal: Array) -> PyTree:
    def one(shard_key, rows):
        return _train(shard_key, training, _shard(training.problem.loss, database, rows))

    return jax.vmap(one)(jax.random.split(key, deal.shape[0]), deal)


def _shard(loss: Loss, database: PyTree, rows: Array) -> PyTree:
    """The shard's records; the null record in empty places."""
    n = num_records(database)
    padding = deletion(loss, database, [n]).record
    padded = jax.tree.map(lambda leaf, null: jnp.concatenate([leaf, null]), database, padding)
    return jax.tree.map(lambda leaf: leaf[jnp.minimum(rows, n)], padded)


def _train(key: Array, training: Training, shard: PyTree) -> PyTree:
    """η-steps on the shard's objective; noise z·C/m on the mean gradient is σ² = η(zC/m)²/2."""
    problem, eta = training.problem, training.step_size
    clip_norm = 0.0 if problem.clip_norm is None else problem.clip_norm
    deviation = training.noise_multiplier * clip_norm / num_records(shard)
    return noisy_gd.run(
        key,
        problem.loss.template(shard),
        shard,
        problem,
        step_size=eta,
        noise_variance=eta * deviation**2 / 2,
        num_steps=training.num_steps,
    )


def _choose(hit: Array, new: PyTree, old: PyTree) -> PyTree:
    """The new model of each shard that was hit, the old one of the others."""
    return jax.tree.map(
        lambda fresh, kept: jnp.where(hit.reshape(-1, *(1,) * (fresh.ndim - 1)), fresh, kept),
        new,
        old,
    )


def _check(training: Training, shards: int) -> None:
    if shards < 2:
        raise InputError(f"shards = {shards}; SISA needs at least 2.")
    if training.problem.clip_norm is None and training.noise_multiplier > 0:
        raise InputError(
            "the noise of a private shard is a multiple of the clip norm; "
            "give the problem a clip_norm."
        )
