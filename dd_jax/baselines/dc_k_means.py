"""DC-k-means (Ginart et al. 2019): a tree of small k-means problems; a request reruns one path.

Rows are dealt at random into the leaves of a tree of branching w and height h. Every leaf clusters
its records; every node above clusters its children's centroids; the root's centroids are the model.
A request reruns the leaves that it hits and the nodes above them with fresh coins, whatever the
records are, so the law is that of retraining. Here the leaves have equal sizes, ⌈n/w^h⌉ places
each, so that arrays have fixed shapes; the leaf of a row does not depend on what the row holds.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dd_jax import checks
from dd_jax.baselines import k_means
from dd_jax.baselines.base import Guarantee, System, cost, publish_part
from dd_jax.baselines.k_means import Points
from dd_jax.baselines.sisa import draw_deal
from dd_jax.types import acceptable_rows, num_records

GUARANTEE = Guarantee(
    notion="exact unlearning",
    epsilon=0.0,
    delta=0.0,
    keeps="the deal of rows into leaves, centroids of every node below the root",
    conditions=("requests that do not depend on releases",),
    reference="Ginart et al. 2019, DC-k-means; replacement at fixed n, even leaves",
)


class TreeState(NamedTuple):
    """What is carried between requests.

    Attributes:
        model: the root's centroids, the release.
        deal: row numbers of each leaf; n and beyond for an empty place.
        nodes: per level below the root, every node's centroids and whether it holds any record.
    """

    model: Float[Array, "k d"]
    deal: Int[Array, "leaves places"]
    nodes: tuple[Points, ...]


def calibrate(*, n: int, clusters: int, height: int = 1) -> int:
    """The branching w that makes a request cheapest: ⌈n/wʰ⌉ + h·w·k comparisons per iteration.

    For one level that is about √(n/k); the authors take n^0.3.
    """
    for name, value in (("n", n), ("clusters", clusters), ("height", height)):
        checks.count(name, value)
    choices = [w for w in range(2, max(n, 2) + 1) if w**height <= max(n, 2**height)]
    return min(choices, key=lambda w: -(-n // w**height) + height * w * clusters)


def system(*, clusters: int, iterations: int, branching: int, height: int = 1) -> System:
    """DC-k-means with k clusters, T iterations per node, branching w and height h.

    Guarantee: exact unlearning for requests fixed in advance.
    Cost: places (T + 1) comparisons of a record with all centroids per leaf and w k (T + 1) per
    node above, for all nodes to learn and for those on the paths of a request; empty places count.
    """
    k_means.check_sizes(clusters, iterations)
    checks.count("height", height)
    checks.whole("branching", branching, least=2)
    widths = [branching**level for level in range(height + 1)]

    def cluster(key, members: Points) -> Points:
        centroids = k_means.lloyd(key, members, clusters=clusters, iterations=iterations)
        return Points(centroids, jnp.max(members.present))

    def price(level: int, places: int) -> int:
        return (places if level == height else branching * clusters) * (iterations + 1)

    def learn(key, database):
        deal_key, tree_key = jax.random.split(key)
        deal = draw_deal(deal_key, num_records(database), widths[-1])
        members = _leaf_members(database, deal)
        levels = []
        for level in reversed(range(height + 1)):
            keys = jax.random.split(jax.random.fold_in(tree_key, level), widths[level])
            levels.insert(0, jax.vmap(cluster)(keys, members))
            if level:
                members = _node_members(levels[0], jnp.arange(widths[level - 1]), branching)
        total = sum(widths[level] * price(level, deal.shape[1]) for level in range(height + 1))
        return TreeState(levels[0].features[0], deal, tuple(levels[1:])), cost(total, retrained=1)

    def delete(key, before, edit, after, state):
        n = num_records(before)
        hit = jnp.any(state.deal == edit.index[:, None, None], axis=2)
        leaf = jnp.where(acceptable_rows(edit.index, n), jnp.argmax(hit, axis=1), widths[-1])
        members = _leaf_members(after, state.deal[leaf])
        nodes, gradients, path = list(state.nodes), jnp.int32(0), leaf
        whole = jnp.sum(acceptable_rows(leaf, widths[-1]), dtype=jnp.int32) == widths[-1]
        for level in reversed(range(height + 1)):
            distinct = jnp.sum(acceptable_rows(path, widths[level]), dtype=jnp.int32)
            gradients = gradients + distinct * price(level, state.deal.shape[1])
            level_key = jax.random.fold_in(key, level)
            # Two rows of one leaf rerun it with the same key, so that they agree on its result.
            keys = jax.vmap(lambda node, level_key=level_key: jax.random.fold_in(level_key, node))(
                path
            )
            fresh = jax.vmap(cluster)(keys, members)
            if level == 0:
                model = jnp.where(distinct > 0, fresh.features[jnp.argmin(path)], state.model)
                return TreeState(model, state.deal, tuple(nodes)), cost(gradients, retrained=whole)
            nodes[level - 1] = jax.tree.map(
                lambda kept, new, path=path: kept.at[path].set(new, mode="drop"),
                nodes[level - 1],
                fresh,
            )
            path = path // branching
            members = _node_members(nodes[level - 1], path, branching)
        raise AssertionError("level 0 returns")

    return System(
        name="dc-k-means",
        learn=learn,
        delete=delete,
        publish=publish_part,
        predict=k_means.nearest,
        secret=lambda state: state[1:],
        guarantee=GUARANTEE,
        domain=k_means.DOMAIN,
    )


def _leaf_members(database: Points, rows: Int[Array, "leaves places"]) -> Points:
    """The records of each leaf; empty places are absent."""
    features = database.features.at[rows].get(mode="fill", fill_value=0)
    return Points(features, database.present.at[rows].get(mode="fill", fill_value=0))


def _node_members(children: Points, parents: Int[Array, "nodes"], branching: int) -> Points:
    """What the given nodes cluster: their children's centroids, absent if the child is empty."""
    width, clusters, dim = children.features.shape
    features = children.features.reshape(-1, branching * clusters, dim)
    present = jnp.repeat(children.present, clusters).reshape(width // branching, -1)
    return Points(features[parents], present[parents])
