"""ChaCha20 as a generator of JAX's keys."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dd_jax as dd
from dd_jax import InputError, chacha


def test_block_is_that_of_the_standard():
    """RFC 8439, section 2.3.2: key 00 01 … 1f, counter 1, nonce 00000009 0000004a 00000000."""
    key = jnp.asarray(np.frombuffer(bytes(range(32)), np.uint32))
    number = tuple(map(jnp.uint32, (1, 0x09000000, 0x4A000000, 0)))
    found = np.array([int(word) for word in jax.jit(chacha.block)(key, number)], np.uint32)
    expected = (
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
    )
    assert found.tobytes().hex() == expected


def test_keys_of_it_go_where_keys_go():

    def key():
        return jax.random.key(5, impl=chacha.GENERATOR)

    words = [np.asarray(jax.random.key_data(k)) for k in jax.random.split(key(), 3)]
    words += [np.asarray(jax.random.key_data(jax.random.fold_in(key(), i))) for i in range(3)]
    assert len({w.tobytes() for w in words}) == 6  # a split is not a fold here
    draws = jax.vmap(lambda k: jax.random.bits(k, (40,)))(jax.random.split(key(), 3))
    assert np.array_equal(draws[1], jax.random.bits(jax.random.split(key(), 3)[1], (40,)))
    assert abs(float(jax.random.uniform(key(), (4000,)).mean()) - 0.5) < 0.03
    assert jax.random.bits(key(), (8,), jnp.uint8).dtype == jnp.uint8


def test_secret_keys_have_256_bits():
    one, other = (dd.secret_key("chacha20") for _ in range(2))
    data = [np.asarray(jax.random.key_data(key)) for key in (one, other)]
    assert data[0].shape == (8,)
    assert not np.array_equal(*data)
    with pytest.raises(InputError, match="generator"):
        dd.secret_key("md5")
