"""The exact sampler against the law that it claims."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import soak
from scipy import stats

from dd_jax import InputError, chacha
from dd_jax import discrete_gaussian as sampler
from dd_jax.discrete_gaussian import discrete_gaussian
from dd_jax.guarantees.lattice import DEVIATION


def draws(key, count, bits):
    with jax.enable_x64(True):
        return np.asarray(jax.jit(discrete_gaussian, static_argnums=(1, 2))(key, (count,), bits))


def expected(bits, most):
    """Probabilities of 0 … most, of one side, from the definition."""
    z = np.arange(-80 << bits, (80 << bits) + 1, dtype=float)
    mass = np.exp2(-((z / 2**bits) ** 2))
    mass /= mass.sum()
    middle = 80 << bits
    return mass[middle - most : middle + most + 1], 1 - mass[
        middle - most : middle + most + 1
    ].sum()


def test_every_value_has_its_probability():
    """Chi-square over single values and both tails; 10⁸ draws in the full run."""
    rounds, count = soak((1, 20_000), (12_500, 8_000))
    for bits in (0, 2):
        most = int(2.2 * 2**bits * (1 if rounds == 1 else 1.7))
        seen = np.zeros(2 * most + 3)
        for k in range(rounds):
            found = draws(jax.random.fold_in(jax.random.key(11), k), count, bits)
            seen += np.bincount(np.clip(found, -most - 1, most + 1) + most + 1, minlength=seen.size)
        inner, outer = expected(bits, most)
        chance = np.concatenate([[outer / 2], inner, [outer / 2]])
        assert stats.chisquare(seen, chance * rounds * count).pvalue > 1e-3


@pytest.mark.parametrize("trial", [1, 3, 7])
def test_a_trial_has_exactly_its_probabilities(trial):
    """All 4096 numbers that a trial draws from: refusals, and draws again, are counted."""
    share, whole = np.arange(4096, dtype=np.uint32), np.full(4096, 1)
    lanes = dict.fromkeys(("ones", "low", "need", "fraction", "value"), whole)
    lanes |= {"trial": trial * whole, "stage": 3 * whole, "negative": whole == 0}
    ends = []
    for heads in (0, 1):
        words = np.stack([share * 0 + (heads << 31), share * 0, share * 0, share << 20])
        with jax.enable_x64(True):
            found = sampler._round(jax.tree.map(jnp.asarray, lanes), jnp.asarray(words), 2)
            ends.append({name: np.asarray(found[name]) for name in ("stage", "trial")})
    tails, heads = ends
    again, valid = 4096 % trial, 4096 - 4096 % trial
    assert np.sum(heads["stage"] == 4) == valid
    assert np.sum(tails["stage"] == 0) == valid // trial
    assert np.sum(tails["trial"] == trial + 1) == valid - valid // trial
    assert np.sum((tails["stage"] == 3) & (tails["trial"] == trial)) == again


def test_moments_and_tails_at_full_width():
    """At 2²⁴ values per unit the law is a Gaussian to many digits."""
    bits = 24
    count = soak(20_000, 4_000_000)
    found = draws(jax.random.key(2), count, bits) / (DEVIATION * 2**bits)
    error = 1 / np.sqrt(count)
    assert abs(found.mean()) < 5 * error
    assert abs(found.var() - 1) < 5 * np.sqrt(2) * error
    assert abs((found**4).mean() - 3) < 5 * np.sqrt(96) * error
    assert stats.kstest(found, "norm").pvalue > 1e-3
    for tail in (2.0, 3.0):
        chance = 2 * stats.norm.sf(tail)
        assert abs(np.mean(np.abs(found) > tail) - chance) < 5 * np.sqrt(chance) * error
    # The low bits are even: no value of a coarser lattice is preferred.
    low = np.bincount(draws(jax.random.key(2), 10_000, bits) % 16, minlength=16)
    assert stats.chisquare(low).pvalue > 1e-3


def test_draws_depend_on_the_key_alone():
    keys = jax.random.split(jax.random.key(0, impl=chacha.GENERATOR), 3)
    with jax.enable_x64(True):
        many = jax.jit(jax.vmap(lambda key: discrete_gaussian(key, (7, 2), 20)))(keys)
        one = jax.jit(lambda key: discrete_gaussian(key, (7, 2), 20))(keys[1])
        assert many.dtype == np.int64
    assert np.array_equal(many[1], one)
    assert not np.array_equal(many[0], many[2])


def test_a_wrong_width_is_refused():
    with pytest.raises(InputError, match="bits"):
        discrete_gaussian(jax.random.key(0), (3,), 27)
