"""Keys for deployments: noise that an adversary could guess protects nobody."""

import os

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array


def secret_key() -> Array:
    """A key from the operating system's entropy, all of its bits.

    `jax.random.key(seed)` keeps 32 bits of its seed, few enough to try them all. Use a fixed seed
    for experiments and a secret key where a certificate is relied on; never publish or store it.
    """
    shape = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0))).shape
    words = np.frombuffer(os.urandom(4 * int(np.prod(shape))), dtype=np.uint32)
    return jax.random.wrap_key_data(jnp.asarray(words.reshape(shape)))
