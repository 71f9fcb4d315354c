"""Keys: one for each purpose, and secret ones for deployments.

In JAX `split(key)[0]` and `fold_in(key, 0)` are the same key, so two functions that get one key can
draw the same noise although each of them is right. Every purpose in this package therefore has a
separate tag; counters (a step, a request, a seed) are folded only into keys that have a tag
already.
"""

import os
import zlib
from typing import Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from dd_jax import chacha, checks

Generator = Literal["default", "chacha20"]


def tagged(key: Array, purpose: str) -> Array:
    """The key for one purpose.

    The highest bit of a tag is set, so that no tag equals a counter folded into the same key.
    """
    return jax.random.fold_in(key, np.uint32(zlib.crc32(purpose.encode()) | 1 << 31))


def secret_key(generator: Generator = "default") -> Array:
    """A key from the operating system's entropy: all 64 bits that JAX's generator (threefry) takes.

    A key made by `jax.random.key(seed)` has 32 bits of its seed, few enough to try them all. Use a
    fixed seed for experiments and a secret key where someone relies on a certificate; never publish
    or store it. Threefry is not a cryptographic generator, and certificates say so; "chacha20" is
    one, with 256 bits of key (`dd_jax.chacha`), and exact arithmetic asks for it.
    """
    if checks.choice("generator", generator, get_args(Generator)) == "chacha20":
        words = np.frombuffer(os.urandom(4 * chacha.KEY_WORDS), dtype=np.uint32)
        return jax.random.wrap_key_data(jnp.asarray(words), impl=chacha.GENERATOR)
    # The shape of the data depends on the generator that JAX is configured with.
    shape = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0))).shape
    words = np.frombuffer(os.urandom(4 * int(np.prod(shape))), dtype=np.uint32)
    return jax.random.wrap_key_data(jnp.asarray(words.reshape(shape)))
