"""The lattice of Q-k-means: its spacing, and how centroids are rounded to it."""

import math

import jax.numpy as jnp
from jaxtyping import Array, Int

from dd_jax import checks
from dd_jax.baselines import k_means
from dd_jax.baselines.k_means import Tally
from dd_jax.errors import InputError


def calibrate(
    *,
    n: int,
    dim: int,
    clusters: int,
    iterations: int,
    diameter: float,
    retrain_probability: float,
    balance: float = 0.2,
) -> float:
    """The spacing q at which deleting a uniformly random record reruns with at most this chance.

    One record moves one centroid per iteration by at most B/(γn/k), where B = D + T√d q/2 is the
    diameter and what rounding adds to it; a coordinate that moves by s is rounded otherwise with
    probability s/q, and the record is a seed with probability k/n. So the chance is at most
    T√d k/(γn) · (D/q + T√d/2) + k/n, which is solved for q.

    Assumes: records within a ball of diameter D; n counts present records.

    Raises:
        InputError: no spacing reaches the probability, or one too fine for float32 does.
    """
    check_balance(balance)
    k_means.check_sizes(clusters, iterations)
    seeds = float(clusters / checks.count("n", n))
    spread = iterations * math.sqrt(checks.count("dim", dim))
    target = float(checks.probability("retrain_probability", retrain_probability))
    diameter = float(checks.positive("diameter", diameter))
    rate = spread * seeds / balance
    spare = target - seeds - rate * spread / 2
    if spare <= 0:
        raise InputError(
            f"retrain_probability = {target:g} is out of reach at any spacing; give at least "
            f"{target - spare:.3g}, more records or fewer iterations."
        )
    spacing = rate * diameter / spare
    if diameter >= spacing * 2**23:
        raise InputError(
            f"a spacing of {spacing:.3g} is finer than float32 holds over a diameter of "
            f"{diameter:g}; give a smaller retrain_probability."
        )
    return spacing


def round_centroids(counted: Tally, previous, phase, n: int, spacing, balance) -> Int[Array, "k d"]:
    """Lattice points of the new centroids, small clusters averaged with their previous centroid.

    A cluster of s < γn/k points has centroid (sum + (γn/k - s) · previous)/(γn/k).
    """
    least = balance * n / previous.shape[0]
    weight = jnp.maximum(least - counted.counts, 0)[:, None]
    centroids = (counted.sums + weight * previous) / jnp.maximum(counted.counts, least)[:, None]
    return lattice_points(centroids, phase, spacing)


def lattice_points(centroids: Array, phase: Array, spacing) -> Int[Array, "k d"]:
    """Numbers of the lattice points that are nearest, with the phase φ."""
    return jnp.round(centroids / spacing + (phase - 0.5)).astype(jnp.int32)


def from_lattice(lattice: Array, phase: Array, spacing) -> Array:
    """q (z - (φ - ½)), the point that a lattice number z stands for."""
    return spacing * (lattice.astype(phase.dtype) - (phase - 0.5))


def check_balance(balance: float) -> None:
    """Refuse a γ outside of (0, 1]."""
    checks.positive("balance", balance, most=1)
