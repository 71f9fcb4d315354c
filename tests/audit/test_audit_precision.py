"""Releases that single precision cannot resolve are made again in double, and it is said."""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import soak

import dd_jax as dd
from dd_jax import sweeps
from dd_jax.audit import neighbouring_releases
from dd_jax.audit.samples import Interaction, PrecisionNotice, stands_still, too_coarse
from dd_jax.requesters import fixed_stream

DATABASE = jnp.array([[1.0], [0.5], [-0.5], [1.0]])
PROBLEM = dd.Problem(dd.losses.linear(), 1.0)
STREAM = fixed_stream(dd.Edit(jnp.zeros((1, 1), jnp.int32), jnp.array([[[0.25]]])))


def releases(noise_variance: float, database=DATABASE, curator=dd.noisy_gd.mechanism):
    schedule = dd.noisy_gd.Schedule(0.5, noise_variance, noise_variance, 30, 30)
    return neighbouring_releases(
        jax.random.key(0),
        curator(PROBLEM, schedule),
        STREAM,
        database,
        dd.replacement([0], jnp.array([[-1.0]])),
        num_requests=1,
        request=1,
        observe=(0,),
        seeds=400,
    )


def stationary_std(noise_variance: float) -> float:
    """Of θ ← (1 - η)θ + … + √(2ησ²) N(0, 1) with η = 1/2 and λ = 1: σ √(2η / (1 - (1 - η)²))."""
    return np.sqrt(noise_variance / 0.75)


def test_noise_above_the_limit_stays_in_single_precision():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pair = releases(1e-6)
    assert pair.present.dtype == np.float32
    spread = np.asarray(pair.present, np.float64).std()
    assert spread == pytest.approx(stationary_std(1e-6), rel=0.15)


@pytest.mark.parametrize(
    ("noise_variance", "rows"),
    [(1e-16, DATABASE), (1e-24, DATABASE), *soak([], [(1e-24, dd.compress(DATABASE))])],
)
def test_noise_below_it_is_run_in_double_precision_and_announced(noise_variance, rows):
    """At σ = 1e-8 single precision would show its own rounding, at 1e-12 no noise at all; the right
    spread is recovered.
    """
    with pytest.warns(PrecisionNotice, match="double"):
        pair = releases(noise_variance, rows)
    assert pair.present.dtype == np.float64
    assert np.std(pair.present) == pytest.approx(stationary_std(noise_variance), rel=0.15)
    assert np.mean(pair.present) == pytest.approx((0.25 + 0.5 - 0.5 + 1) / 4, abs=1e-8)


def test_a_mechanism_that_stays_in_single_precision_is_refused():
    def rounded(problem, schedule):
        curator = dd.noisy_gd.mechanism(problem, schedule)
        return curator._replace(
            publish=lambda key, state: curator.publish(key, state).astype(jnp.float32)
        )

    with pytest.raises(dd.InputError, match="float32"):
        releases(1e-14, curator=rounded)


@pytest.mark.parametrize("noise", [1e-12, 0.0])
def test_a_number_that_stands_still_is_looked_at_in_double_precision(noise):
    def learn(key, database):
        return 0.3 * jnp.mean(database) + noise * jax.random.normal(key, (), database.dtype)

    curator = dd.Mechanism(learn, lambda key, before, edit, after, state: learn(key, after))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        pair = releases(1e-6, curator=lambda problem, schedule: curator)
    assert [notice.category for notice in said] == [PrecisionNotice] * (noise > 0)
    assert pair.present.dtype == (np.float64 if noise else np.float32)


def test_one_world_that_is_too_coarse_is_enough():
    def learn(key, database):
        return database[0] + 1e-2 * jax.random.normal(key, (1,), database.dtype)

    curator = dd.Mechanism(learn, lambda key, before, edit, after, state: learn(key, after))
    far = dd.replacement([0], jnp.array([[1e5]]))
    with pytest.warns(PrecisionNotice):
        pair = neighbouring_releases(
            jax.random.key(0), curator, STREAM, DATABASE, far, num_requests=1, seeds=50
        )
    assert pair.present.dtype == np.float64


def test_what_counts_as_too_coarse():
    rng = np.random.default_rng(0)
    eps = np.finfo(np.float32).eps
    fine = 3 + 1000 * 3 * eps * rng.normal(size=(50, 1))
    coarse = 3 + 10 * 3 * eps * rng.normal(size=(50, 1))
    assert not too_coarse(fine.astype(np.float32))
    assert too_coarse([fine.astype(np.float32), coarse.astype(np.float32)])
    still, code = np.full((50, 1), 0.3, np.float32), np.ones((50, 1), np.float32)
    assert not any(too_coarse(outputs) for outputs in (coarse, still, np.arange(50)))
    assert stands_still(still)
    assert not any(stands_still(outputs) for outputs in (code, fine.astype(np.float32)))


def test_kept_chunks_are_made_again_in_double_precision_too(tmp_path):
    """The settings of `dd-jax audit` go through a store of chunks, in either precision."""
    schedule = dd.noisy_gd.Schedule(0.5, 1e-16, 1e-16, 30, 30)
    edits = dd.Edit(jnp.zeros((1, 1), jnp.int32), jnp.array([[[0.25]]]))
    worlds = (DATABASE, dd.replacement([0], jnp.array([[-1.0]])))
    curator = dd.noisy_gd.mechanism(PROBLEM, schedule)
    interaction = Interaction(curator, fixed_stream(edits), *worlds, (0, 1), 1, 400)
    stream = sweeps.Stream(tmp_path, "coarse", {}, 400)

    def sample():
        with pytest.warns(PrecisionNotice):
            return interaction.sample(
                jax.random.key(0), 400, functools.partial(sweeps.neighbours, stream)
            )

    first, again = sample(), sample()
    assert first.present.dtype == np.float64
    assert np.std(first.present[:, 1]) == pytest.approx(stationary_std(1e-16), rel=0.15)
    np.testing.assert_array_equal(first.absent, again.absent)
    assert len(list(tmp_path.rglob("*.npz"))) == 4, "both worlds in both precisions, made once"
