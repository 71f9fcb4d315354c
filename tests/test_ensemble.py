"""Seeds get the same numbers in any chunks, and neighbouring runs differ in one record."""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import signed

import dd_jax as dd
from dd_jax import ensemble
from dd_jax.keys import tagged
from dd_jax.noisy_gd import Schedule, mechanism

LOSS = dd.losses.logistic()
CURATOR = mechanism(dd.Problem(LOSS, 0.1), Schedule(0.5, 1e-3, 1.0, 4, 2))


def learn(key, database):
    return CURATOR.learn(key, database)


def test_every_chunk_size_gives_the_same_numbers():
    database, key = signed(20, 4), jax.random.key(0)
    expected = jnp.stack([learn(jax.random.fold_in(key, s), database) for s in range(13)])
    for chunk in (None, 1, 5):
        outputs = dd.over_seeds(learn, key, 13, database, chunk=chunk)
        np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-6)
    shorter = dd.over_seeds(learn, key, 6, database, chunk=5)
    np.testing.assert_allclose(shorter, expected[:6], atol=1e-6)
    later = dd.over_seeds(learn, key, 8, database, first_seed=5, chunk=5)
    np.testing.assert_allclose(later, expected[5:], atol=1e-6)
    assert len(np.unique(later, axis=0)) == 8, "no seed is there twice"


def test_progress_is_reported_between_chunks_of_any_pytree():
    seen = []
    outputs = dd.over_seeds(
        lambda key: {"a": jax.random.normal(key, (2,)), "b": jnp.ones(())},
        jax.random.key(0),
        10,
        chunk=4,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen == [(4, 10), (8, 10), (10, 10)]
    assert jax.tree.map(jnp.shape, outputs) == {"a": (10, 2), "b": (10,)}


def test_it_compiles_once_across_calls_and_arguments():
    @chex.assert_max_traces(n=1)
    def draw(key, scale):
        return scale * jax.random.normal(key)

    for i in range(5):
        outputs = dd.over_seeds(draw, jax.random.key(i), 10, jnp.float32(i), chunk=4)
    assert outputs.shape == (10,)


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
    database, key = signed(20, 4), jax.random.key(0)
    edits = [dd.deletion(LOSS, database, [row]) for row in (3, 20)]
    for word, call in {
        "num_seeds": lambda: dd.over_seeds(learn, key, 0, database),
        "chunk": lambda: dd.over_seeds(learn, key, 5, database, chunk=0),
        "-1": lambda: dd.over_seeds(learn, key, 4, database, first_seed=-1),
        "seeds": lambda: dd.over_seeds(learn, key, 4, database, first_seed=2**32 - 3),
        "noise": lambda: dd.neighbours(learn, key, 2, database, edits[0], noise="shared"),
        "row 20": lambda: dd.neighbours(learn, key, 2, database, edits[1]),
    }.items():
        with pytest.raises(dd.InputError, match=word):
            call()


# --- the compiler's options -----------------------------------------------------------------------


def _scaled(key, scale):
    return scale * jax.random.normal(key)


def test_it_runs_inside_other_transformations():
    """JAX refuses a compiler's options anywhere but in the outermost jit."""
    key, scale = jax.random.key(0), jnp.ones(2)
    plain = dd.over_seeds(_scaled, key, 5, scale)
    traced = jax.jit(lambda key: dd.over_seeds(_scaled, key, 5, scale))(key)
    constant = jax.jit(lambda: dd.over_seeds(_scaled, key, 5, scale))()
    slope = jax.grad(lambda scale: dd.over_seeds(_scaled, key, 5, scale).sum())(scale)
    chex.assert_trees_all_close(traced, plain)
    chex.assert_trees_all_close(constant, plain)
    chex.assert_trees_all_close(slope, plain.sum(0), rtol=1e-5)


def test_a_compiler_that_does_not_know_the_options_never_gets_them(monkeypatch):
    unknown = {"xla_cpu_no_such_option": 1}
    refused = jax.jit(ensemble._one_chunk, static_argnums=(0, 1, 2), compiler_options=unknown)
    monkeypatch.setattr(ensemble, "CPU_OPTIONS", unknown)
    monkeypatch.setattr(ensemble, "_for_cpu", refused)
    key, scale = jax.random.key(0), jnp.ones(2)
    assert ensemble._options_known(), "those of this version"
    with pytest.raises(jax.errors.JaxRuntimeError):
        dd.over_seeds(_scaled, key, 3, scale)
    ensemble._options_known.cache_clear()
    try:
        assert dd.over_seeds(_scaled, key, 3, scale).shape == (3, 2)
    finally:
        ensemble._options_known.cache_clear()


def test_only_cpus_get_the_options(monkeypatch):
    key = jax.random.key(0)
    assert ensemble._compiled(None, key) is ensemble._for_cpu
    chip = type("Chip", (), {"platform": "tpu"})()
    mesh: Any = type("Chips", (), {"devices": np.array([[chip]])})()
    assert ensemble._compiled(mesh, key) is ensemble._plain
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert ensemble._compiled(None, key) is ensemble._plain
