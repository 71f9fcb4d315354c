"""SISA with slices: stages by hand, checkpoints, an exact meter, the noise of private shards."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import deleting
from systems import CLIPPED, DATABASE, DIM, PROBLEM, SHARDS, SLICES, N, sharded

import dd_jax as dd
from dd_jax.baselines import sisa
from dd_jax.errors import InputError
from dd_jax.guarantees import renyi

STAGE = 2  # steps of each of the two stages: 2e/(R + 1) with e = 3


@pytest.fixture(scope="module")
def deletes():
    """One learned state, and the request that replaces any two rows, compiled once."""
    system = sharded()
    state, _ = jax.jit(system.learn)(jax.random.key(0), DATABASE)
    return state, jax.jit(deleting(system))


RECORDS = dd.Labelled(jnp.array([[1.0, 0.0], [0.0, 0.9]]), jnp.array([-1.0, 1.0]))


def edit_of(*rows):
    return dd.Edit(jnp.array(rows, jnp.int32), RECORDS)


def by_hand(database, rows):
    """The models after both stages of one shard, in float64."""
    features, label = (np.asarray(leaf, np.float64)[rows] for leaf in database)
    theta, stages = np.zeros(DIM), []
    for size in (len(rows) // 2, len(rows)):
        for _ in range(STAGE):
            pull = label[:size] / (1 + np.exp(label[:size] * (features[:size] @ theta)))
            theta = theta - 2.0 * (0.2 * theta - pull @ features[:size] / size)
        stages.append(theta)
    return stages


def check_models(state, database):
    for shard, rows in enumerate(np.asarray(state.deal)):
        first, last = by_hand(database, rows)
        np.testing.assert_allclose(state.checkpoints[shard, 0], first, atol=1e-5)
        np.testing.assert_allclose(state.models[shard], last, atol=1e-5)


def test_stages_grow_over_the_slices(deletes):
    state, _ = deletes
    assert state.deal.shape == (SHARDS, N // SHARDS)
    check_models(state, DATABASE)


def place_of(state, row):
    shard, place = np.argwhere(np.asarray(state.deal) == row)[0]
    return int(shard), int(place) // (N // SHARDS // SLICES)


def gradients_by_hand(state, rows) -> int:
    """Each hit shard is trained anew from its first hit slice on, 3 and 6 records a stage."""
    first: dict[int, int] = {}
    for row in rows:
        shard, part = place_of(state, row)
        first[shard] = min(part, first.get(shard, SLICES))
    return sum(STAGE * (3 * (part == 0) + 6) for part in first.values())


def test_a_request_goes_back_to_the_checkpoint_before_the_hit_slice(deletes):
    state, delete = deletes
    seen = set()
    deal = np.asarray(state.deal)
    for row in deal[:, [0, N // SHARDS - 1]].ravel():  # the first and the last slice of each shard
        # The second replacement names no row: it must neither count nor hit.
        after, spent = delete(jax.random.key(1), DATABASE, edit_of(row, N), state)
        check_models(after, dd.apply_edit(DATABASE, edit_of(row, N)))
        shard, part = place_of(state, row)
        other = 1 - shard
        np.testing.assert_array_equal(after.models[other], state.models[other])
        kept = np.array_equal(after.checkpoints[shard], state.checkpoints[shard])
        assert kept == (part == 1)
        assert spent.gradients == gradients_by_hand(state, [row]) == (18 if part == 0 else 12)
        assert spent.retrained == 0
        seen.add((shard, part))
    assert len(seen) == SHARDS * SLICES


def test_two_rows_can_hit_two_shards(deletes):
    state, delete = deletes
    costs = set()
    for rows in ((0, 1), (2, 7), (4, 9), (3, 11), (5, 6), (8, 10)):
        after, spent = delete(jax.random.key(1), DATABASE, edit_of(*rows), state)
        check_models(after, dd.apply_edit(DATABASE, edit_of(*rows)))
        assert spent.gradients == gradients_by_hand(state, rows)
        assert bool(spent.retrained) == (int(spent.gradients) == 36)
        costs.add(int(spent.gradients))
    assert max(costs) == 36
    assert min(costs) <= 18


def test_a_request_that_names_no_row_costs_nothing(deletes):
    state, delete = deletes
    after, spent = delete(jax.random.key(1), DATABASE, edit_of(N, -1), state)
    assert spent.gradients == 0
    for old, new in zip(jax.tree.leaves(state), jax.tree.leaves(after), strict=True):
        np.testing.assert_array_equal(old, new)


def test_empty_places_are_dealt_and_cost_nothing():
    deal = np.asarray(sisa.draw_deal(jax.random.key(0), 10, 2, 3))
    assert deal.shape == (2, 6)
    np.testing.assert_array_equal(np.sort(deal.ravel()), np.arange(12))
    training = sisa.Training(PROBLEM, num_steps=4, step_size=1.0)
    spent = np.asarray(sisa.stage_gradients(jnp.asarray(deal), 10, training, 3))
    for shard in range(2):
        real = [int(np.sum(deal[shard, : 2 * k] < 10)) for k in (1, 2, 3)]
        np.testing.assert_array_equal(spent[shard], 2 * np.array(real))


@pytest.mark.parametrize(
    ("steps", "slices", "epsilon", "delta"), [(30, 1, 1.0, 1e-5), (6, 2, 4, 0.01)]
)
def test_the_noise_of_private_shards_meets_its_budget(steps, slices, epsilon, delta):
    multiplier = sisa.calibrate(steps, slices, epsilon=epsilon, delta=delta)
    seen = slices * 2 * steps / (slices + 1)  # steps that see a record of the first slice
    mu = math.sqrt(seen) * 2 / multiplier  # each moves the sum by 2C under noise of z·C
    assert renyi.gdp_epsilon(mu, delta) == pytest.approx(epsilon, rel=1e-6)
    assert renyi.gdp_epsilon(mu * 1.01, delta) > epsilon


def test_every_stage_draws_its_own_noise():
    """On blank records a step is θ ← (1 - ηλ)θ + (ηzC/m)N with η = 2, λ = 0.2, z = 1, C = 0.5."""
    blank = jax.tree.map(jnp.zeros_like, DATABASE)
    learn = jax.jit(jax.vmap(sharded(private=True).learn, in_axes=(0, None)))
    state, _ = learn(jax.random.split(jax.random.key(0), 2000), blank)
    first = np.asarray(state.checkpoints)[:, :, 0].ravel()
    added = np.asarray(state.models).ravel() - 0.6**STAGE * first
    unit = 2.0 * 0.5 * math.sqrt(1 + 0.6**2)
    # 8000 draws: 4 deviations are 3%.
    assert np.std(first) == pytest.approx(unit / 3, rel=0.03)
    assert np.std(added) == pytest.approx(unit / 6, rel=0.03)
    assert abs(np.corrcoef(first, added)[0, 1]) < 0.05


def test_clipping_alone_is_not_private():
    clipped = sisa.Training(CLIPPED, num_steps=3, step_size=2.0, noise_multiplier=0.0)
    made = sisa.system(clipped, SHARDS, SLICES)
    assert (made.name, made.guarantee) == ("sisa", sharded().guarantee)
    assert sisa.system(clipped._replace(noise_multiplier=1e-3), SHARDS).name == "sisa-private"
    with pytest.raises(InputError, match="noise_multiplier"):
        sisa.system(clipped._replace(noise_multiplier=-1), SHARDS)

    def traced(noise):
        sisa.system(clipped._replace(noise_multiplier=noise), SHARDS)
        return noise

    with pytest.raises(InputError, match="noise_multiplier"):
        jax.eval_shape(traced, 1.0)


def test_shards_that_one_request_hits_draw_their_own_noise():
    """On blank records two shards differ by their noise alone."""
    system = sharded(private=True)
    blank = jax.tree.map(jnp.zeros_like, DATABASE)
    deal = jnp.arange(N, dtype=jnp.int32).reshape(SHARDS, -1)
    state = sisa.SisaState(deal, jnp.zeros((SHARDS, DIM)), jnp.zeros((SHARDS, SLICES - 1, DIM)))
    both = dd.deletion(PROBLEM.loss, blank, [0, N // SHARDS])
    after, _ = jax.jit(deleting(system))(jax.random.key(4), blank, both, state)
    gaps = np.abs(np.asarray(after.models[0] - after.models[1]))
    assert np.all(gaps > 1e-3)


def test_shards_vote_by_the_scores_of_the_loss():
    rows = jnp.array([[1.0], [-1.0], [0.5]])
    models = jnp.array([[1.0, -0.7], [1.0, 0.7], [1.0, 0.7]])  # weight, intercept
    vote = sisa.vote_of(dd.losses.logistic(intercept=True))
    np.testing.assert_array_equal(vote(models, rows), [1, -1, 1])
    classes = jnp.array([[[0.0, 1.0, 2.0]], [[0.0, 2.0, 1.0]], [[0.0, 1.0, 2.0]]])
    vote = sisa.vote_of(dd.losses.softmax(num_classes=3))
    np.testing.assert_array_equal(vote(classes, rows), [2, 0, 2])


def test_a_meter_that_would_overflow_is_refused():
    deal = jnp.zeros((2, 4), jnp.int32)
    training = sisa.Training(PROBLEM, num_steps=3, step_size=1.0)
    with pytest.raises(InputError, match="meter"):
        sisa.stage_gradients(deal, 2**30, training, 2)


def test_refusals():
    training = sisa.Training(PROBLEM, num_steps=4, step_size=1.0)
    with pytest.raises(InputError, match="num_steps"):
        sisa.system(training, 2, 2)
    with pytest.raises(InputError, match="slices"):
        sisa.system(training, 2, 0)
    with pytest.raises(InputError, match="shards"):
        sisa.system(training, 1)
    with pytest.raises(InputError, match="epsilon"):
        sisa.calibrate(4, epsilon=0, delta=1e-5)
