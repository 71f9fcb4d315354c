"""Q-k-means and DC-k-means: seeds, rounding, exactness coin by coin, meters and calibrations."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import deleting, features, soak
from scipy import stats

import dd_jax as dd
from dd_jax.baselines import dc_k_means, k_means, q_k_means
from dd_jax.errors import InputError

SEEDS = 2000
N, CLUSTERS, ITERATIONS, SPACING, BALANCE = 16, 2, 3, 0.25, 0.2
POINTS = k_means.points(features(N, 2, seed=4))
DELETION = k_means.deletion(POINTS, [3])
INSERTION = dd.replacement(
    [6], k_means.Points(jnp.array([[1.5, 0.4]], jnp.float32), jnp.ones(1, jnp.int32))
)


def batched(fn):
    """`fn(key, *args)` for the keys of a seed, compiled."""
    many = jax.jit(lambda keys, *args: jax.vmap(lambda key: fn(key, *args))(keys))
    return lambda seed, *args: many(jax.random.split(jax.random.key(seed), SEEDS), *args)


draw_pairs = batched(lambda key, database: k_means.draw_seeds(key, database, 2))


def draw(database):
    """Pairs of seeds of five points on a line, over all keys."""
    return draw_pairs(0, database)


def test_seeds_follow_k_means_plus_plus():
    """The law of the pair of seeds, in closed form; an absent point is never drawn."""
    places = np.array([0.0, 1.0, 3.0, 7.0, 7.5])
    present = np.array([1, 1, 1, 0, 1])
    database = k_means.Points(jnp.asarray(places[:, None], jnp.float32), jnp.asarray(present))
    rows = np.asarray(draw(database).rows)
    gaps = present * (places[:, None] - places) ** 2
    law = (present / present.sum())[:, None] * gaps / gaps.sum(axis=1, keepdims=True)
    counts = np.zeros_like(law)
    np.add.at(counts, tuple(rows.T), 1)
    assert np.all(counts[law == 0] == 0)
    possible = law > 0
    assert stats.chisquare(counts[possible], SEEDS * law[possible]).pvalue > 1e-3
    uniform = np.where(possible, 1 / possible.sum(), 0)
    assert stats.chisquare(counts[possible], SEEDS * uniform[possible]).pvalue < 1e-6


def test_points_that_coincide_can_still_be_seeds():
    chosen = draw(k_means.Points(jnp.ones((5, 1)), jnp.array([0, 1, 1, 0, 0])))
    rows, scores = np.asarray(chosen.rows), np.asarray(chosen.scores)
    assert np.all(np.isin(rows, (1, 2)))
    np.testing.assert_array_equal(np.isneginf(scores), np.broadcast_to([False, True], scores.shape))


def test_rounding_is_the_published_formula():
    """eps (round(c/eps + (φ-½)) - (φ-½)), small clusters averaged with their last centroid."""
    phase, spacing, n = np.array([0.2, 0.9]), 0.4, 20
    previous = np.array([[1.0, 1.0], [-2.0, 0.5]])
    counted = k_means.Tally(jnp.array([[12.0, 3.0], [1.0, 1.0]]), jnp.array([10.0, 1.0]))
    lattice = q_k_means.round_centroids(
        counted, jnp.asarray(previous), jnp.asarray(phase), n, spacing, 0.3
    )
    made = q_k_means.from_lattice(lattice, jnp.asarray(phase), spacing)
    least = 0.3 * n / 2
    second = (1 / least) * np.array([1.0, 1.0]) + (1 - 1 / least) * previous[1]
    analog = np.array([[1.2, 0.3], second])
    expected = spacing * (np.round(analog / spacing + (phase - 0.5)) - (phase - 0.5))
    np.testing.assert_allclose(made, expected, atol=1e-6)


@pytest.fixture(scope="module")
def quantised():
    """Learning and serving of Q-k-means over many keys, and what they gave on `POINTS`."""
    system = q_k_means.system(
        clusters=CLUSTERS, iterations=ITERATIONS, spacing=SPACING, balance=BALANCE
    )
    learn = batched(system.learn)
    serve = jax.jit(
        jax.vmap(
            lambda state, database, edit: deleting(system)(None, database, edit, state),
            (0, None, None),
        )
    )
    return learn, serve, learn(0, POINTS)


@pytest.mark.parametrize("edits", [[INSERTION], [DELETION, INSERTION, DELETION]])
def test_a_request_leaves_what_learning_with_the_same_coins_would(quantised, edits):
    """Exactness, coin by coin: state and release are those of the edited database."""
    learn, serve, (states, _) = quantised
    first, database, reruns = states, POINTS, 0
    for edit in edits:
        states, costs = serve(states, database, edit)
        database = dd.apply_edit(database, edit)
        retrained = np.asarray(costs.retrained)
        expected = (2 * ITERATIONS + 1) + retrained * N * (ITERATIONS + 1)
        np.testing.assert_array_equal(costs.gradients, expected)
        reruns += retrained.sum()
    assert 0 < reruns < len(edits) * SEEDS
    anew, _ = learn(0, database)
    for kept, fresh in zip(jax.tree.leaves(states), jax.tree.leaves(anew), strict=True):
        np.testing.assert_allclose(kept, fresh, atol=1e-5)
    if len(edits) == 1:
        # Rerun where a seed went or a centroid moved, and nowhere else.
        seeded = np.any(np.asarray(first.seeds.rows) == int(edits[0].index[0]), axis=1)
        moved = [
            np.any(np.abs(np.asarray(old) - np.asarray(new)) > 1e-4, axis=tuple(range(1, old.ndim)))
            for old, new in ((first.model, anew.model), (first.starts, anew.starts))
        ]
        np.testing.assert_array_equal(retrained > 0, seeded | moved[0] | moved[1])


def test_learning_is_quantised_lloyd(quantised):
    """One key's whole run, replayed in NumPy from its seeds and its phases."""
    _, _, (states, costs) = quantised
    state = jax.tree.map(lambda leaf: leaf[0], states)
    points = np.asarray(POINTS.features, np.float64)
    draw_phases = jax.jit(lambda coins: q_k_means._phases(coins, ITERATIONS, POINTS))
    phases = np.asarray(draw_phases(state.coins), np.float64)
    centroids = points[np.asarray(state.seeds.rows)]
    least = BALANCE * N / CLUSTERS
    for phase in phases:
        home = np.linalg.norm(points[:, None] - centroids, axis=2).argmin(axis=1)
        for j, previous in enumerate(centroids.copy()):
            own = points[home == j]
            short = max(least - len(own), 0)
            centre = (own.sum(axis=0) + short * previous) / (len(own) + short)
            shift = phase - 0.5
            centroids[j] = SPACING * (np.round(centre / SPACING + shift) - shift)
    np.testing.assert_allclose(state.model, centroids, atol=1e-5)
    assert np.all(np.asarray(costs.gradients) == N * (ITERATIONS + 1))


def test_rerunning_with_fresh_coins_is_not_exact(quantised):
    """The published rerun: phases that survive the check are biased, fresh ones do not mend it.

    One record moves the left cluster's mean by 0.075 = 0.3 q. A check with three phases is passed
    with chance 0.7³, and then the last phase avoids 0.3 of its range.
    """
    learn, serve, _ = quantised
    left = np.where(np.arange(N) < 8, 0.0, 10.0)
    left[0] = 0.6
    database = k_means.points(jnp.asarray(np.stack([left, 0 * left], axis=1), jnp.float32))
    edit = k_means.deletion(database, [0])
    served, costs = serve(learn(1, database)[0], database, edit)
    edited = dd.apply_edit(database, edit)
    anew, fresh = (learn(seed, edited)[0] for seed in (2, 3))

    def left_end(states):
        return np.round(np.min(states.model[:, :, 0], axis=1), 4)

    ours = left_end(served)
    published = np.where(costs.retrained > 0, left_end(fresh), ours)
    assert stats.ks_2samp(ours, left_end(anew)).pvalue > 1e-3
    assert stats.ks_2samp(published, left_end(anew)).pvalue < 1e-6


def test_calibrated_spacing_keeps_its_probability():
    sizes = {"n": 64, "dim": 1, "clusters": 2, "iterations": 2, "diameter": 2.0}
    spacing = q_k_means.calibrate(**sizes, retrain_probability=0.5, balance=0.5)
    rate = 2 * 2 / (0.5 * 64)
    assert rate * (2.0 / spacing + 1) + 2 / 64 == pytest.approx(0.5)
    with pytest.raises(InputError, match="retrain_probability"):
        q_k_means.calibrate(**sizes, retrain_probability=0.05)
    with pytest.raises(InputError, match="float32"):
        q_k_means.calibrate(**sizes | {"n": 10**10}, retrain_probability=1.0)


def test_reruns_stay_below_the_calibrated_chance(quantised):
    """Over all rows and keys, at the spacing of the fixture."""
    _, serve, (states, _) = quantised
    edits = [k_means.deletion(POINTS, [row]) for row in range(0, N, soak(4, 1))]
    rate = np.mean([np.mean(serve(states, POINTS, edit)[1].retrained) for edit in edits])
    share = CLUSTERS / N
    spread = ITERATIONS * math.sqrt(2)
    bound = spread * share / BALANCE * (2.0 / SPACING + spread / 2) + share
    assert share < rate < min(bound, 1)


@pytest.fixture(scope="module")
def tree():
    """DC-k-means of height 2: learning over keys, one state, and its deletion of two rows."""
    system = dc_k_means.system(clusters=2, iterations=2, branching=2, height=2)
    state, cost = jax.jit(system.learn)(jax.random.key(0), POINTS)
    return state, cost, jax.jit(deleting(system))


def test_only_the_paths_of_a_request_are_rerun(tree):
    state, cost, delete = tree
    leaves = np.asarray(state.deal)
    assert sorted(leaves.ravel()) == list(range(N))
    per_leaf, per_node = (N // 4) * 3, 4 * 3
    assert int(cost.gradients) == 4 * per_leaf + 3 * per_node
    for first, second in ((0, 0), (0, 1), (1, 3), (2, 0)):
        rows = [leaves[first, 0], leaves[second, 1]]
        served, price = delete(jax.random.key(5), POINTS, k_means.deletion(POINTS, rows), state)
        inner, outer = served.nodes
        hit = {first, second}
        for leaf in range(4):
            same = np.array_equal(outer.features[leaf], state.nodes[1].features[leaf])
            assert same == (leaf not in hit)
        for node in {0, 1} - {leaf // 2 for leaf in hit}:
            np.testing.assert_array_equal(inner.features[node], state.nodes[0].features[node])
        paths = len({leaf // 2 for leaf in hit})
        assert int(price.gradients) == len(hit) * per_leaf + (paths + 1) * per_node
        assert not np.array_equal(served.model, state.model)
        assert int(price.retrained) == 0


def test_an_emptied_leaf_hands_nothing_up(tree):
    """With every record but two leaves' gone, the model lies among what is left."""
    state, _, delete = tree
    database = POINTS
    for rows in np.asarray(state.deal)[[0, 1]].reshape(-1, 2):
        edit = k_means.deletion(POINTS, rows)
        state, _ = delete(jax.random.key(7), database, edit, state)
        database = dd.apply_edit(database, edit)
    np.testing.assert_array_equal(state.nodes[1].present, [0, 0, 1, 1])
    np.testing.assert_array_equal(state.nodes[0].present, [0, 1])
    assert np.all(np.linalg.norm(np.asarray(state.model), axis=1) > 0)


def test_a_request_that_hits_every_leaf_is_a_retraining():
    system = dc_k_means.system(clusters=2, iterations=1, branching=2)
    deal = jnp.arange(N, dtype=jnp.int32).reshape(2, -1)
    nodes = (k_means.Points(jnp.zeros((2, 2, 2)), jnp.ones(2, jnp.int32)),)
    state = dc_k_means.TreeState(jnp.zeros((2, 2)), deal, nodes)
    delete = jax.jit(deleting(system))
    for rows, whole in (([0, 1], 0), ([0, N - 1], 1), ([3, N], 0)):
        _, price = delete(jax.random.key(0), POINTS, k_means.deletion(POINTS, rows), state)
        assert int(price.retrained) == whole


def test_every_node_of_a_path_has_coins_of_its_own(monkeypatch):
    """Clustering that only shows its coins: node 0 of each level, which one request redoes."""

    def coins(key, members, clusters, iterations):
        return jax.random.uniform(key, (clusters, members.features.shape[1]))

    monkeypatch.setattr(k_means, "lloyd", coins)
    system = dc_k_means.system(clusters=2, iterations=2, branching=2, height=2)
    deal = jnp.arange(N, dtype=jnp.int32).reshape(4, -1)
    nodes = [k_means.Points(jnp.zeros((w, 2, 2)), jnp.ones(w, jnp.int32)) for w in (2, 4)]
    state = dc_k_means.TreeState(jnp.zeros((2, 2)), deal, tuple(nodes))
    delete = jax.jit(deleting(system))
    served, _ = delete(jax.random.key(1), POINTS, k_means.deletion(POINTS, [0]), state)
    drawn = [served.model, served.nodes[0].features[0], served.nodes[1].features[0]]
    for one, two in itertools.combinations(drawn, 2):
        assert not np.any(np.asarray(one == two))


def test_branching_makes_requests_cheapest():
    assert dc_k_means.calibrate(n=10000, clusters=4) == 50
    assert dc_k_means.calibrate(n=2, clusters=5) == 2
    for height in (1, 2):
        best = dc_k_means.calibrate(n=500, clusters=3, height=height)
        price = {w: math.ceil(500 / w**height) + height * w * 3 for w in range(2, 23)}
        assert price[best] == min(price.values())


def test_bad_input_is_refused_and_projected():
    flags = k_means.Points(POINTS.features, POINTS.present.at[2].set(3))
    with pytest.raises(InputError, match="present"):
        k_means.DOMAIN.check(flags)
    with pytest.raises(InputError, match="Points"):
        k_means.DOMAIN.check(POINTS.features)
    broken = flags._replace(features=POINTS.features.at[4, 0].set(jnp.nan))
    projected, inside = k_means.DOMAIN.project(broken)
    np.testing.assert_array_equal(np.flatnonzero(~np.asarray(inside)), [2, 4])
    np.testing.assert_array_equal(projected.present, np.arange(N) != 4)
    k_means.DOMAIN.check(projected)
    with pytest.raises(InputError, match="balance"):
        q_k_means.system(clusters=2, iterations=1, spacing=0.1, balance=1.5)
    with pytest.raises(InputError, match="branching"):
        dc_k_means.system(clusters=2, iterations=1, branching=1)
    with pytest.raises(InputError, match="clusters"):
        dc_k_means.system(clusters=0, iterations=1, branching=2)
