"""Records of a scene, with room for the target's own feature."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from dd_jax import data
from dd_jax.types import Labelled

SYNTHETIC_DIM = 10


class Records(NamedTuple):
    """A task with room for the target's own feature, which is the last one."""

    train: Labelled
    test: Labelled
    words: str


def load(name: str) -> Records:
    """A task of `dd_jax.data`."""
    loaded = data.load(name)
    train, test = (
        Labelled(_with_own_feature(part.features), part.label)
        for part in (loaded.train, loaded.test)
    )
    return Records(train, test, loaded.preprocessing)


def _with_own_feature(features: Array) -> Array:
    return jnp.concatenate([features, jnp.zeros((features.shape[0], 1), features.dtype)], axis=1)


def synthetic(records: int, seed: int) -> Records:
    """Two overlapping classes on the sphere: L = 1, β = 1/4 and ‖a‖ = 1 hold by construction."""
    label_key, noise_key = jax.random.split(jax.random.key(seed))
    count = 2 * records
    label = jnp.where(jax.random.bernoulli(label_key, shape=(count,)), 1.0, -1.0)
    draws = jax.random.normal(noise_key, (count, SYNTHETIC_DIM))
    features = draws.at[:, 0].add(1.5 * label)
    features = features / jnp.linalg.norm(features, axis=1, keepdims=True)
    whole = Labelled(_with_own_feature(features), label)
    train, test = (
        jax.tree.map(lambda leaf, part=part: leaf[part], whole)
        for part in (slice(records), slice(records, None))
    )
    return Records(train, test, f"two Gaussian classes in {SYNTHETIC_DIM} dimensions, unit norm")
