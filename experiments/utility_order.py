"""The fitted order of the excess risk, and databases with one objective for every n."""

from collections.abc import Mapping
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

import dd_jax as dd
from dd_jax.intervals import mean_over_seeds, simultaneous

# Records that synthetic databases repeat, and groups of seeds that each give a slope.
BASE, BLOCKS = 50, 10

# What `thm:unlearning_accuracy_convex` says of each column.
STATED = {
    "q d/(ε_dp n²)": ("scale", 1.0),
    "ε_dp": ("eps_dp", -1.0),
    "n": ("n", -2.0),
    "d": ("dim", 1.0),
}


def synthetic(n: int, dim: int, seed: int) -> dd.Labelled:
    """50 unit-norm records with noisy labels of a linear teacher, repeated to n rows."""
    if n % BASE:
        raise dd.InputError(f"n = {n} is no multiple of {BASE}; give one that is.")
    chance = np.random.default_rng((seed, dim))
    features = chance.normal(size=(BASE, dim))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    label = np.sign(features @ chance.normal(size=dim) + 0.3 * chance.normal(size=BASE))
    return dd.Labelled(
        jnp.asarray(np.tile(features, (n // BASE, 1)), jnp.float32),
        jnp.asarray(np.tile(label, n // BASE), jnp.float32),
    )


class Fit(NamedTuple):
    """A stated exponent, and the fitted one with its interval."""

    stated: float
    value: float
    low: float
    high: float


def exponents(
    risk: np.ndarray, columns: Mapping[str, np.ndarray], confidence: float
) -> dict[str, Fit]:
    """Fitted exponents of the mean risk, in q d/(ε_dp n²), and in each part of it that varies.

    The seeds fall into 10 blocks; each gives least-squares slopes of the logarithm of its mean
    risk, and t-intervals over the independent blocks say how sure their mean is.

    Args:
        risk: (seeds, settings).
        columns: `scale`, `eps_dp`, `n`, `dim` of every setting.
        confidence: of all intervals together.
    """
    logs = {name: np.log(columns[key]) for name, (key, _) in STATED.items()}
    whole, *parts = [name for name in logs if np.ptp(logs[name]) > 0]
    blocks = np.log([block.mean(axis=0) for block in np.array_split(risk, BLOCKS)])
    each = simultaneous(confidence, 1 + len(parts))
    fitted = {}
    for names in ([whole], parts):
        found = mean_over_seeds(_slopes([logs[name] for name in names], blocks), each)
        for name, *values in zip(names, *found, strict=True):
            fitted[name] = Fit(STATED[name][1], *map(float, values))
    return fitted


def _slopes(logs: list[np.ndarray], blocks: np.ndarray) -> np.ndarray:
    """Least-squares slopes of each block on the given logarithms, (blocks, slopes)."""
    design = np.column_stack([np.ones(blocks.shape[1]), *logs])
    return np.linalg.lstsq(design, blocks.T, rcond=None)[0][1:].T
