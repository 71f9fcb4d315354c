"""Small databases and one entry per loss of the catalogue, shared by the tests."""

import os
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

import dd_jax as dd


def features(n: int, dim: int, *, seed: int = 0, norm: float = 1.0, dtype=jnp.float32):
    """Rows of random direction and of norm between norm/2 and norm."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, dim))
    rows *= norm * rng.uniform(0.5, 1.0, size=(n, 1)) / np.linalg.norm(rows, axis=1, keepdims=True)
    return jnp.asarray(rows, dtype)


def signed(n: int, dim: int, *, seed: int = 0, norm: float = 1.0, dtype=jnp.float32):
    """A database with labels ±1 that a linear model can half explain."""
    rows = features(n, dim, seed=seed, norm=norm, dtype=dtype)
    rng = np.random.default_rng(seed + 1)
    margin = np.asarray(rows) @ rng.normal(size=dim) + 0.3 * rng.normal(size=n)
    return dd.Labelled(rows, jnp.asarray(np.where(margin > 0, 1.0, -1.0), dtype))


def classes(n: int, dim: int, num_classes: int, *, seed: int = 0, norm: float = 1.0, dtype=None):
    """A database with class labels 0 … C - 1."""
    rows = features(n, dim, seed=seed, norm=norm, dtype=dtype or jnp.float32)
    labels = np.random.default_rng(seed + 1).integers(0, num_classes, n)
    return dd.Labelled(rows, jnp.asarray(labels, jnp.int32))


class Case(NamedTuple):
    """A loss and a maker of databases `(n, dim, seed, dtype) -> database` in its domain."""

    loss: dd.losses.Loss
    make: object


def _signed(norm):
    return lambda n, dim, seed, dtype: signed(n, dim, seed=seed, norm=norm, dtype=dtype)


def _bare(norm):
    return lambda n, dim, seed, dtype: features(n, dim, seed=seed, norm=norm, dtype=dtype)


def _classes(norm, count):
    return lambda n, dim, seed, dtype: classes(n, dim, count, seed=seed, norm=norm, dtype=dtype)


CATALOGUE = {
    "logistic": Case(dd.losses.logistic(feature_norm=2.0), _signed(2.0)),
    "logistic-intercept": Case(dd.losses.logistic(intercept=True), _signed(1.0)),
    "huber": Case(dd.losses.huber(threshold=0.7, feature_norm=2.0), _signed(2.0)),
    "huber-intercept": Case(dd.losses.huber(intercept=True), _signed(1.0)),
    "smoothed-hinge": Case(dd.losses.smoothed_hinge(smoothing=0.5), _signed(1.0)),
    "hinge-intercept": Case(dd.losses.smoothed_hinge(intercept=True), _signed(1.0)),
    "linear": Case(dd.losses.linear(feature_norm=3.0), _bare(3.0)),
    "squared": Case(dd.losses.squared(feature_norm=2.0, label_bound=1.0), _signed(2.0)),
    "squared-intercept": Case(dd.losses.squared(intercept=True), _signed(1.0)),
    "softmax": Case(dd.losses.softmax(num_classes=4, feature_norm=2.0), _classes(2.0, 4)),
    "softmax-intercept": Case(dd.losses.softmax(num_classes=3, intercept=True), _classes(1.0, 3)),
    "one-vs-rest": Case(dd.losses.one_vs_rest(num_classes=3, feature_norm=2.0), _classes(2.0, 3)),
    "rest-intercept": Case(dd.losses.one_vs_rest(num_classes=3, intercept=True), _classes(1.0, 3)),
    "tanh-margin": Case(dd.losses.tanh_margin(feature_norm=2.0), _signed(2.0)),
    "tanh-intercept": Case(dd.losses.tanh_margin(intercept=True), _signed(1.0)),
    "network": Case(
        dd.losses.bounded_network(hidden=5, output_norm=1.5, feature_norm=2.0), _signed(2.0)
    ),
    "network-intercept": Case(dd.losses.bounded_network(hidden=3, intercept=True), _signed(1.0)),
}


def soak(quick, full):
    """Sizes and counts of a check: the quick ones, or the full ones under `make soak`."""
    return full if os.environ.get("DD_JAX_SOAK") == "1" else quick


def deleting(curator):
    """A curator's deletion without a driver, `(key, database, edit, state) -> …`."""

    def delete(key, database, edit, state):
        return curator.delete(key, database, edit, dd.apply_edit(database, edit), state)

    return delete
