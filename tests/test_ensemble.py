import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import signed

import dd_jax as dd
from dd_jax.keys import tagged
from dd_jax.noisy_gd import Schedule, mechanism

LOSS = dd.losses.logistic()
CURATOR = mechanism(dd.Problem(LOSS, 0.1), Schedule(0.5, 1e-3, 1.0, 4, 2))


def learn(key, database):
    return CURATOR.learn(key, database)


def test_every_chunk_size_gives_the_same_numbers():
    database, key = signed(20, 4), jax.random.key(0)
    expected = jnp.stack([learn(jax.random.fold_in(key, s), database) for s in range(13)])
    for chunk in (None, 1, 5, 13, 100):
        outputs = dd.over_seeds(learn, key, 13, database, chunk=chunk)
        np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-6)


def test_a_longer_run_begins_with_a_shorter_one():
    database, key = signed(20, 4), jax.random.key(0)
    short, long = (dd.over_seeds(learn, key, seeds, database, chunk=4) for seeds in (6, 9))
    np.testing.assert_allclose(long[:6], short, atol=1e-6)
    rest = dd.over_seeds(learn, key, 4, database, first_seed=5, chunk=4)
    np.testing.assert_allclose(long[5:], rest, atol=1e-6)
    later = dd.over_seeds(learn, key, 9, database, first_seed=5, chunk=4)
    whole = dd.over_seeds(learn, key, 14, database, chunk=4)
    np.testing.assert_allclose(later, whole[5:], atol=1e-6)
    assert len(np.unique(later, axis=0)) == 9, "no seed is there twice"
    for first_seed in (-1, 2**32 - 3):
        with pytest.raises(dd.InputError, match="are not all in 0 to 4294967295"):
            dd.over_seeds(learn, key, 4, database, first_seed=first_seed)


def test_progress_is_reported_between_chunks():
    seen = []
    dd.over_seeds(
        lambda key: jax.random.normal(key),
        jax.random.key(0),
        10,
        chunk=4,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen == [(4, 10), (8, 10), (10, 10)]


def test_it_compiles_once_across_calls_and_arguments():
    @chex.assert_max_traces(n=1)
    def draw(key, scale):
        return scale * jax.random.normal(key)

    for i in range(5):
        outputs = dd.over_seeds(draw, jax.random.key(i), 10, jnp.float32(i), chunk=4)
    assert outputs.shape == (10,)


def test_any_pytree_of_outputs():
    outputs = dd.over_seeds(
        lambda key: {"a": jax.random.normal(key, (2,)), "b": jnp.ones(())},
        jax.random.key(0),
        7,
        chunk=3,
    )
    assert jax.tree.map(jnp.shape, outputs) == {"a": (7, 2), "b": (7,)}


def test_neighbours_differ_in_one_record():
    database = signed(20, 4)
    edit = dd.deletion(LOSS, database, [3])
    key = jax.random.key(1)
    common = dd.neighbours(learn, jax.random.clone(key), 50, database, edit, noise="common")
    independent = dd.neighbours(learn, jax.random.clone(key), 50, database, edit)
    np.testing.assert_array_equal(common.present, independent.present)
    expected = dd.over_seeds(learn, tagged(key, "present"), 50, dd.apply_edit(database, edit))
    np.testing.assert_array_equal(common.absent, expected)
    shift = common.present - common.absent
    assert float(jnp.std(shift, axis=0).max()) < 0.1 * float(jnp.std(common.present, axis=0).min())
    assert abs(np.corrcoef(independent.present[:, 0], independent.absent[:, 0])[0, 1]) < 0.5


def test_bad_arguments_are_refused():
    database = signed(20, 4)
    with pytest.raises(dd.InputError, match="num_seeds = 0 is not a whole number ≥ 1"):
        dd.over_seeds(learn, jax.random.key(0), 0, database)
    with pytest.raises(dd.InputError, match="chunk = 0 is not a whole number ≥ 1"):
        dd.over_seeds(learn, jax.random.key(0), 5, database, chunk=0)
    with pytest.raises(dd.InputError, match="noise = 'shared'; choose 'independent' or 'common'"):
        dd.neighbours(
            learn, jax.random.key(0), 2, database, dd.deletion(LOSS, database, [3]), noise="shared"
        )
    with pytest.raises(dd.InputError, match="row 20 is out of range"):
        dd.neighbours(learn, jax.random.key(0), 2, database, dd.deletion(LOSS, database, [20]))
