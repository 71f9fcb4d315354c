"""Q-k-means (Ginart et al. 2019): k-means with rounded centroids, which hide a single record.

Every iteration rounds the centroids to a lattice of spacing q with a random phase, and clusters
smaller than γn/k are averaged with their previous centroid, so that one record moves a centroid
little. A request updates the sums that its records touch; if no rounded centroid and no seed would
change, retraining would give the same model and nothing else is done. Otherwise everything is
rerun.

Exactness needs the rerun to use the coins of learning, kept as a key: the release is then a fixed
function of coins and database, whatever was requested. (A rerun with fresh phases, as in the
authors' program, is not exact: phases that passed the check are not uniform, and the rerun does not
correct this.) For the same reason seeds are drawn with coins that belong to rows, and a fixed
number of iterations is run.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dd_jax import checks
from dd_jax.baselines import k_means
from dd_jax.baselines.base import (
    Guarantee,
    Replaced,
    System,
    add_costs,
    cost,
    publish_part,
    replaced,
)
from dd_jax.baselines.k_means import Points, Seeds, Tally
from dd_jax.errors import InputError
from dd_jax.types import num_records

GUARANTEE = Guarantee(
    notion="exact unlearning",
    epsilon=0.0,
    delta=0.0,
    keeps="coins (a key), seeds, sums and centroids of every iteration",
    conditions=(
        "requests that do not depend on releases",
        "sums without rounding errors, records within 2²³ spacings of the origin",
    ),
    reference="Ginart et al. 2019, Q-k-means; replacement at fixed n, coins kept when rerun",
)


class QState(NamedTuple):
    """What is carried between requests.

    Attributes:
        model: the last rounded centroids, the release.
        coins: the words of a key that seeds and phases are drawn from.
        seeds: the initial centroids' rows and scores.
        starts: centroids that each iteration began with, seeds first.
        tallies: sums and counts of each iteration's clusters.
    """

    model: Float[Array, "k d"]
    coins: Int[Array, "words"]
    seeds: Seeds
    starts: Float[Array, "T k d"]
    tallies: Tally


def calibrate(
    *,
    n: int,
    dim: int,
    clusters: int,
    iterations: int,
    diameter: float,
    retrain_probability: float,
    balance: float = 0.2,
) -> float:
    """The spacing q at which deleting a uniformly random record reruns with at most this chance.

    One record moves one centroid per iteration by at most B/(γn/k), where B = D + T√d q/2 is the
    diameter and what rounding adds to it; a coordinate that moves by s changes its rounded value
    with probability s/q, and the record is a seed with probability k/n. So the chance is at most
    T√d k/(γn) · (D/q + T√d/2) + k/n, which is solved for q.

    Assumes: records within a ball of diameter D; n counts present records.

    Raises:
        InputError: no spacing reaches the probability, or one too fine for float32 does.
    """
    checks.positive("balance", balance, most=1)
    k_means.check_sizes(clusters, iterations)
    seeds = float(clusters / checks.count("n", n))
    spread = iterations * math.sqrt(checks.count("dim", dim))
    target = float(checks.probability("retrain_probability", retrain_probability))
    diameter = float(checks.positive("diameter", diameter))
    rate = spread * seeds / balance
    spare = target - seeds - rate * spread / 2
    if spare <= 0:
        raise InputError(
            f"retrain_probability = {target:g} is out of reach at any spacing; give at least "
            f"{target - spare:.3g}, more records or fewer iterations."
        )
    spacing = rate * diameter / spare
    if diameter >= spacing * 2**23:
        raise InputError(
            f"a spacing of {spacing:.3g} is finer than float32 holds over a diameter of "
            f"{diameter:g}; give a smaller retrain_probability."
        )
    return spacing


def system(*, clusters: int, iterations: int, spacing: float, balance: float = 0.2) -> System:
    """Q-k-means with k clusters, T iterations, lattice spacing q and balance γ.

    Guarantee: exact unlearning for requests fixed in advance: the state after a request is the one
    that learning with the same coins on the edited database would give.
    Cost: n (T + 1) comparisons of a record with all centroids to learn, r (2T + 1) to serve a
    request, and a training more where something changed.
    """
    k_means.check_sizes(clusters, iterations)
    checks.positive("spacing", spacing)
    checks.positive("balance", balance, most=1)

    def train(coins, phases, database):
        n = num_records(database)
        chosen = k_means.draw_seeds(_seed_key(coins), database, clusters)

        def iterate(centroids, phase):
            counted = k_means.tally(database, centroids)
            lattice = round_centroids(counted, centroids, phase, n, spacing, balance)
            return from_lattice(lattice, phase, spacing), (centroids, counted)

        start = database.features[chosen.rows]
        model, (starts, tallies) = jax.lax.scan(iterate, start, phases)
        state = QState(model, coins, chosen, starts, tallies)
        return state, cost(n * (iterations + 1), retrained=1)

    def learn(key, database):
        coins = jax.random.bits(key, (2,), jnp.uint32)
        return train(coins, _phases(coins, iterations, database), database)

    def delete(key, before, edit, after, state):
        del key
        change = replaced(before, edit)
        phases = _phases(state.coins, iterations, before)
        tallies = jax.vmap(lambda counted, start: _exchange(counted, change, start))(
            state.tallies, state.starts
        )
        ends = jnp.concatenate([state.starts[1:], state.model[None]])
        lattices = jax.vmap(round_centroids, in_axes=(0, 0, 0, None, None, None))(
            tallies, state.starts, phases, num_records(before), spacing, balance
        )
        kept = jax.vmap(lambda end, phase: lattice_points(end, phase, spacing))(ends, phases)
        same = jnp.all(lattices == kept) & _same_seeds(edit.index, change, state)
        checked = cost(edit.index.shape[0] * (2 * iterations + 1))

        def keep():
            return state._replace(tallies=tallies), checked

        def rerun():
            anew, training = train(state.coins, phases, after)
            return anew, add_costs(checked, training)

        return jax.lax.cond(same, keep, rerun)

    return System(
        name="q-k-means",
        learn=learn,
        delete=delete,
        publish=publish_part,
        predict=k_means.nearest,
        secret=lambda state: state[1:],
        guarantee=GUARANTEE,
        domain=k_means.DOMAIN,
    )


def round_centroids(counted: Tally, previous, phase, n: int, spacing, balance) -> Int[Array, "k d"]:
    """Lattice points of the new centroids, small clusters averaged with their previous centroid.

    A cluster of s < γn/k points has centroid (sum + (γn/k - s) · previous)/(γn/k).
    """
    least = balance * n / previous.shape[0]
    weight = jnp.maximum(least - counted.counts, 0)[:, None]
    centroids = (counted.sums + weight * previous) / jnp.maximum(counted.counts, least)[:, None]
    return lattice_points(centroids, phase, spacing)


def lattice_points(centroids: Array, phase: Array, spacing) -> Int[Array, "k d"]:
    """Numbers of the lattice points that are nearest, with the phase φ."""
    return jnp.round(centroids / spacing + (phase - 0.5)).astype(jnp.int32)


def from_lattice(lattice: Array, phase: Array, spacing) -> Array:
    """q (z - (φ - ½)), the point that a lattice number z stands for."""
    return spacing * (lattice.astype(phase.dtype) - (phase - 0.5))


def _seed_key(coins: Array) -> Array:
    """The key that rows are folded into when seeds are drawn."""
    return jax.random.wrap_key_data(coins, impl="threefry2x32")


def _phases(coins: Array, iterations: int, database: Points) -> Float[Array, "T d"]:
    """φ ~ U[0, 1]^d of every iteration."""
    features = database.features
    # No row has this number, so the key differs from the keys of all rows.
    key = jax.random.fold_in(_seed_key(coins), jnp.uint32(2**32 - 1))
    return jax.random.uniform(key, (iterations, features.shape[1]), features.dtype)


def _exchange(counted: Tally, change: Replaced, centroids: Array) -> Tally:
    """One iteration's sums with the old records taken out and the new ones put in."""

    def part(records):
        return k_means.tally(
            Points(records.features, jnp.where(change.accepted, records.present, 0)), centroids
        )

    return jax.tree.map(
        lambda a, out, into: a - out + into, counted, part(change.old), part(change.new)
    )


def _same_seeds(index: Array, change: Replaced, state: QState) -> Array:
    """Whether the draws of the seeds come out as before: none lost, none won by a new record."""
    start = state.starts[0]
    clusters, dtype = start.shape[0], start.dtype
    distances = k_means.squared_distances(change.new.features, start)
    so_far = jnp.concatenate(
        [jnp.ones_like(distances[:, :1]), jax.lax.cummin(distances, axis=1)[:, :-1]], axis=1
    )
    there = (change.accepted & (change.new.present != 0))[:, None].astype(dtype)
    variates = k_means.seed_variates(_seed_key(state.coins), index, clusters, dtype).T
    won = jnp.log(there * so_far) + variates >= state.seeds.scores
    lost = (index[:, None] == state.seeds.rows) & change.accepted[:, None]
    return ~(jnp.any(won) | jnp.any(lost))
