"""SISA (Bourtoule et al. 2021): shards with a model each, slices with checkpoints, a majority vote.

Records are dealt into s shards of R slices once, at random, when learning. A shard is trained in R
stages, stage k on its first k slices, for 2e/(R + 1) epochs each, which visits as many records as e
epochs over the whole shard. A request goes back, in the shards that it hits, to the checkpoint
before the first slice that it hits, and does not touch the other shards. The deal is a secret state
that no request draws again: publishing is not the identity, and the type shows it (the comparison
with Gupta et al., `subsec:gupta_compare`).

An epoch is one full-batch gradient step. Deletions are replacements at fixed n, so the replaced
record keeps its place in the deal.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PyTree

from dd_jax import checks, noisy_gd
from dd_jax.baselines import base
from dd_jax.baselines.base import Guarantee, System, cost, label_of
from dd_jax.erm import Problem
from dd_jax.errors import InputError
from dd_jax.guarantees import renyi
from dd_jax.losses import Loss, deletion
from dd_jax.types import Mechanism, num_records


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


class SisaState(NamedTuple):
    """The deal (row numbers per shard; n and beyond for an empty place) and the shards' models.

    `checkpoints` holds the models after all stages but the last, leading axes (s, R - 1).
    """

    deal: Int[Array, "shards places"]
    models: PyTree
    checkpoints: PyTree


def calibrate(num_steps: int, slices: int = 1, *, epsilon: float, delta: float) -> float:
    """The noise multiplier z for which one training of a shard is (ε, δ)-private.

    A record of the first slice is seen by K = 2eR/(R + 1) steps, and replacing it moves the sum of
    clipped gradients by 2C: z = 2√K/μ with the μ that exact Gaussian DP allows for (ε, δ).

    Guarantee: (ε, δ)-DP of all checkpoints of one training, for records of that shard, replace-one.
    No certificate of adaptive unlearning follows from it here. Gupta et al. 2021; Bok et al. 2024.
    """
    steps = slices * stage_steps(num_steps, slices)
    mu = renyi.gdp_from_epsilon_delta(float(checks.positive("epsilon", epsilon)), delta)
    return 2 * math.sqrt(steps) / mu


def system(training: Training, shards: int, slices: int = 1) -> System:
    """SISA with s shards of R slices; releases the last model of every shard.

    Guarantee: exact unlearning for requests fixed in advance; none against adaptive requests, which
    can learn the deal from the models, and no privacy unless shards are trained privately.
    Cost: in the hit shards and from the hit slice on, 2e/(R + 1) gradients for each record of the
    slices trained on; empty places cost nothing. Only the shards that a request can hit are run;
    the stages before the hit slice are run and discarded (shapes are static), and are not counted.

    Raises:
        InputError: fewer than 2 shards, a fraction of a step per slice, noise that is negative,
            traced or without a clip norm, or (when learning) a loss that has no null record to fill
            empty places with.
    """
    private = _check(training, shards)
    stage_steps(training.num_steps, slices)

    def learn(key, database):
        deal_key, train_key = jax.random.split(key)
        deal = draw_deal(deal_key, num_records(database), shards, slices)
        keys = jax.random.split(train_key, shards)
        stages = train_shards(keys, training, slices, database, deal)
        spent = jnp.sum(stage_gradients(deal, num_records(database), training, slices))
        return _state(deal, stages), cost(spent, retrained=1)

    def delete(key, before, edit, after, state):
        n = num_records(before)
        hit, first = _first_slices(hit_places(state.deal, edit.index, n), slices)
        # A request of r rows hits at most r shards: they come first in this order.
        some = jnp.argsort(~hit)[: min(shards, edit.index.shape[0])]
        kept = _stages(state)
        chosen = jax.tree.map(lambda leaf: leaf[some], kept)
        start = jnp.where(hit, first, slices)
        keys = jax.random.split(key, shards)[some]
        again = train_shards(keys, training, slices, after, state.deal[some], chosen, start[some])
        stages = jax.tree.map(lambda old, new: old.at[some].set(new), kept, again)
        redone = jnp.arange(slices) >= start[:, None]
        gradients = stage_gradients(state.deal, n, training, slices)
        spent = jnp.sum(jnp.where(redone, gradients, 0))
        return _state(state.deal, stages), cost(spent, retrained=jnp.all(start == 0))

    return System(
        name="sisa-private" if private else "sisa",
        learn=learn,
        delete=delete,
        publish=publish_models,
        predict=vote_of(training.problem.loss),
        secret=lambda state: (state.deal, state.checkpoints),
        guarantee=_guarantee(private),
        domain=training.problem.loss.domain,
    )


def mechanism(training: Training, shards: int, slices: int = 1) -> Mechanism:
    """`system` without its meter."""
    return base.mechanism(system(training, shards, slices))


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


def publish_models(key: Array, state: SisaState) -> PyTree:
    """f_pub: the last model of each shard, leading axis s; deal and checkpoints stay secret."""
    del key
    return state.models


def draw_deal(key: Array, n: int, shards: int, slices: int = 1) -> Int[Array, "shards places"]:
    """A uniform deal of n rows into s shards of R slices of ⌈n/(sR)⌉ places.

    Places beyond n are dealt too, so that all shards have the same law.
    """
    places = slices * -(-n // (shards * slices))
    return jax.random.permutation(key, shards * places).astype(jnp.int32).reshape(shards, places)


def hit_places(deal: Array, index: Array, n: int) -> Bool[Array, "shards places"]:
    """Which places hold a row that the edit names; rows out of range hit none."""
    named = jnp.zeros(n, bool).at[jnp.where(index < 0, n, index)].set(True, mode="drop")
    return named.at[deal].get(mode="fill", fill_value=False)


def vote_of(loss: Loss) -> Callable[[PyTree, Array], Array]:
    """The label that most shard models give to a row; for labels ±1, a tie gives 0."""
    label = label_of(loss)

    def vote(models, features):
        labels = jax.vmap(label, in_axes=(0, None))(models, features)
        if loss.scores is None or loss.scores.num_scores is None:
            return jnp.sign(jnp.sum(labels, axis=0))
        return jnp.argmax(jnp.sum(jax.nn.one_hot(labels, loss.scores.num_scores), axis=0), axis=-1)

    return vote


def _first_slices(places: Array, slices: int) -> tuple[Array, Array]:
    """Which shards are hit, and the first slice that is, in each."""
    by_slice = jnp.any(places.reshape(places.shape[0], slices, -1), axis=2)
    return jnp.any(by_slice, axis=1), jnp.argmax(by_slice, axis=1)


def _stages(state: SisaState) -> PyTree:
    """The models after every stage, leading axes (s, R)."""
    return jax.tree.map(
        lambda earlier, last: jnp.concatenate([earlier, last[:, None]], axis=1),
        state.checkpoints,
        state.models,
    )


def _state(deal: Array, stages: PyTree) -> SisaState:
    models, earlier = (jax.tree.map(lambda leaf, k=k: leaf[:, k], stages) for k in (-1, slice(-1)))
    return SisaState(deal, models, earlier)


def _guarantee(private: bool) -> Guarantee:
    return Guarantee(
        notion="exact unlearning",
        epsilon=0.0,
        delta=0.0,
        private="partly: one training of one shard" if private else "no",
        adaptive="(α,β,γ)-adaptive unlearning is claimed; its constants are not known here"
        if private
        else "no: the models tell the deal (Gupta et al. 2021)",
        keeps="the deal and the checkpoints",
        conditions=("requests fixed in advance",),
        reference="Bourtoule et al. 2021" + ("; Gupta et al. 2021" if private else ""),
    )


def _check(training: Training, shards: int) -> bool:
    """Refuse what SISA cannot run; whether shards are trained with noise (decides the claim)."""
    checks.whole("shards", shards, least=2)
    noisy = bool(checks.nonnegative("noise_multiplier", training.noise_multiplier) > 0)
    if training.problem.clip_norm is None and noisy:
        raise InputError(
            "the noise of a private shard is a multiple of the clip norm; "
            "give the problem a clip_norm."
        )
    return noisy
