"""Keys: one for each purpose, and secret ones for deployments.

`split(key)[0]` and `fold_in(key, 0)` are the same key, so two functions that are handed one key can
draw the same noise without either being wrong. Every purpose of this package therefore has a tag of
its own; counters (a step, a request, a seed) are folded into keys that were tagged before.
"""

import os
import zlib

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array


def tagged(key: Array, purpose: str) -> Array:
    """The key for one purpose.

    The tag has its highest bit set, so that it never meets a counter folded into the same key.
    """
    return jax.random.fold_in(key, np.uint32(zlib.crc32(purpose.encode()) | 1 << 31))


def secret_key() -> Array:
    """A key from the operating system's entropy: all 64 bits that JAX's generator (threefry) takes.

    `jax.random.key(seed)` keeps 32 bits of its seed, few enough to try them all. Use a fixed seed
    for experiments and a secret key where a certificate is relied on; never publish or store it.
    Threefry is no cryptographic generator, and certificates say so.
    """
    shape = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0))).shape
    words = np.frombuffer(os.urandom(4 * int(np.prod(shape))), dtype=np.uint32)
    return jax.random.wrap_key_data(jnp.asarray(words.reshape(shape)))
