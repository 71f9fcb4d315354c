"""What the clustering systems share: points that can be absent, seeding, Lloyd's iteration.

A clustering has no loss whose gradient a null record could make zero, so a record carries a flag: a
deleted row stays in the database with present = 0 and counts for nothing, and n stays fixed.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from dd_jax import checks
from dd_jax.errors import InputError
from dd_jax.types import Domain, Edit, check_finite, num_records, project_finite, replacement


class Points(NamedTuple):
    """A record to cluster, or n of them: a point, and whether it is there (1) or deleted (0)."""

    features: Any
    present: Any


def points(features) -> Points:
    """A database in which every row is present."""
    return Points(features, jnp.ones(features.shape[0], jnp.int32))


def deletion(database: Points, indices) -> Edit:
    """The edit that deletes rows: zero features, present = 0."""
    rows = np.size(indices)
    features = jnp.zeros((rows, *database.features.shape[1:]), database.features.dtype)
    return replacement(indices, Points(features, jnp.zeros(rows, jnp.int32)))


def _check(records) -> None:
    if not isinstance(records, Points) or jnp.ndim(records.features) != 2:
        raise InputError("records to cluster are k_means.Points of an (n, d) matrix and n flags.")
    num_records(records)
    check_finite(records)
    present = np.asarray(records.present)
    if not np.issubdtype(present.dtype, np.integer) or not np.isin(present, (0, 1)).all():
        raise InputError(f"present holds {np.unique(present)}; give whole numbers 0 or 1.")


def _project(records) -> tuple[Points, Array]:
    finite, inside = project_finite(records)
    present = jnp.where(inside & (finite.present != 0), 1, 0).astype(finite.present.dtype)
    return Points(finite.features, present), inside & (present == records.present)


DOMAIN = Domain("finite points, present 0 or 1", _check, _project)


def squared_distances(
    features: Float[Array, "n d"], centroids: Float[Array, "k d"]
) -> Float[Array, "n k"]:
    """‖x - c‖² of every point and centroid, without cancellation."""
    return jnp.sum((features[:, None, :] - centroids[None, :, :]) ** 2, axis=-1)


def nearest(centroids: Float[Array, "k d"], features: Float[Array, "n d"]) -> Int[Array, "n"]:
    """The number of the centroid that is nearest to each point; the first of equals."""
    return jnp.argmin(squared_distances(features, centroids), axis=1).astype(jnp.int32)


class Tally(NamedTuple):
    """Sums of the points of each cluster, and how many there are."""

    sums: Float[Array, "k d"]
    counts: Float[Array, "k"]


def tally(database: Points, centroids: Float[Array, "k d"]) -> Tally:
    """Assign every present point to its nearest centroid and add up."""
    k = centroids.shape[0]
    member = jax.nn.one_hot(nearest(centroids, database.features), k, dtype=centroids.dtype)
    member = member * database.present[:, None].astype(centroids.dtype)
    return Tally(member.T @ database.features, jnp.sum(member, axis=0))


class Seeds(NamedTuple):
    """The rows that became initial centroids, and the score that each won its draw with.

    A score of -∞ marks a draw in which all points coincided with earlier seeds.
    """

    rows: Int[Array, "k"]
    scores: Float[Array, "k"]


def draw_seeds(key: Array, database: Points, clusters: int) -> Seeds:
    """Initial centroids by k-means++ (Arthur & Vassilvitskii 2007), with coins that belong to rows.

    Row i is drawn with probability proportional to its squared distance to the seeds so far: it
    wins if its score, the log of that distance plus its own Gumbel variate, is the largest. With
    the same key an edit does not change the variate of any row. Where all distances are zero, any
    present row is drawn.
    """
    present = database.present.astype(database.features.dtype)

    def draw(distance, variates):
        # Before the first draw all distances are alike.
        rates = present * jnp.where(jnp.isinf(distance), 1, distance)
        scores = jnp.log(rates) + variates
        alike = jnp.all(jnp.isneginf(scores))
        row = jnp.argmax(jnp.where(alike, jnp.log(present) + variates, scores)).astype(jnp.int32)
        gap = jnp.sum((database.features - database.features[row]) ** 2, axis=1)
        return jnp.minimum(distance, gap), Seeds(row, scores[row])

    rows = jnp.arange(present.shape[0])
    variates = seed_variates(key, rows, clusters, present.dtype)
    return jax.lax.scan(draw, jnp.full_like(present, jnp.inf), variates)[1]


def seed_variates(key: Array, rows: Int[Array, "r"], clusters: int, dtype) -> Float[Array, "k r"]:
    """The Gumbel variates of rows, one for each draw of a seed; they depend on no other row."""
    keys = jax.vmap(lambda row: jax.random.fold_in(key, row))(rows)
    return jax.vmap(lambda own: jax.random.gumbel(own, (clusters,), dtype))(keys).T


def lloyd(key: Array, database: Points, *, clusters: int, iterations: int) -> Float[Array, "k d"]:
    """Seeds by k-means++, then a fixed number of Lloyd's iterations; empty clusters stay put.

    Costs n (iterations + 1) comparisons of a record with all centroids: seeding is one of them.
    """
    start = database.features[draw_seeds(key, database, clusters).rows]

    def iterate(centroids, _):
        sums, counts = tally(database, centroids)
        means = sums / jnp.maximum(counts, 1)[:, None]
        return jnp.where(counts[:, None] > 0, means, centroids), None

    return jax.lax.scan(iterate, start, None, length=iterations)[0]


def check_sizes(clusters: int, iterations: int) -> None:
    """Refuse numbers of clusters or iterations that are not whole and positive."""
    checks.count("clusters", clusters)
    checks.count("iterations", iterations)
