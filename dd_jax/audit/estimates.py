"""Estimates that are not bounds: nothing here may refute or support a claim.

A Gaussian fit is wrong by as much as the law is not Gaussian, and nearest neighbours are biased in
ways no sample shows; both come without a confidence. Host-side, no JAX.
"""

from typing import NamedTuple

import numpy as np
from scipy import spatial

from dd_jax import checks
from dd_jax.errors import InputError
from dd_jax.guarantees import renyi


class Estimated(NamedTuple):
    """A point estimate of a divergence. It is not a bound and has no confidence.

    Attributes:
        quantity: what is estimated: "renyi" or "kl".
        value: the estimate, above or below the truth.
        seeds: seeds per arm.
        method: how it was obtained, in a few words.
    """

    quantity: str
    value: float
    seeds: int
    method: str


def estimated_renyi_gaussian_fit(present, absent, *, order: float) -> Estimated:
    """R_q(present ‖ absent) of the two Gaussians with the samples' means and covariances.

    Not a bound: exact only in the limit of many seeds from two Gaussians.

    Args:
        present, absent: outputs (S, d) or (S,).
        order: q > 1.
    """
    first, second = _tables(present, absent)
    if len(first) <= first.shape[1]:
        raise InputError(
            f"{len(first)} seeds cannot fit {first.shape[1]} dimensions; give more seeds."
        )
    covariances = [np.atleast_2d(np.cov(arm.T)) for arm in (first, second)]
    value = renyi.renyi_gaussian(
        order, first.mean(axis=0), covariances[0], second.mean(axis=0), covariances[1]
    )
    return Estimated("renyi", float(value), len(first), "Gaussian fit (estimate, no bound)")


def estimated_kl_nearest_neighbours(present, absent, *, neighbours: int = 5) -> Estimated:
    """KL(present ‖ absent) by distances to the k-th neighbours in either arm.

    (d/S) Σ_i log(ν_i/ρ_i) + log(S'/(S-1)), ρ_i being the distance of present output i to its k-th
    neighbour among the other present outputs and ν_i among the absent ones. Not a bound. Wang,
    Kulkarni & Verdú 2009.

    Args:
        present, absent: outputs (S, d) or (S,), no two alike.
        neighbours: k.
    """
    first, second = _tables(present, absent)
    seeds, dim = first.shape
    checks.whole("neighbours", neighbours, least=1, most=seeds - 1)
    own, _ = spatial.KDTree(first).query(first, k=neighbours + 1)
    other, _ = spatial.KDTree(second).query(first, k=neighbours)
    own, other = (distances.reshape(seeds, -1)[:, -1] for distances in (own, other))
    if not (np.all(own > 0) and np.all(other > 0)):
        raise InputError(
            "some outputs are equal, and their distance is 0; this estimate is for continuous laws."
        )
    value = dim * np.mean(np.log(other) - np.log(own)) + np.log(len(second) / (seeds - 1))
    return Estimated(
        "kl", float(value), seeds, f"{neighbours} nearest neighbours (estimate, no bound)"
    )


def _tables(present, absent) -> tuple[np.ndarray, np.ndarray]:
    tables = [checks.numbers(name, arm) for name, arm in (("present", present), ("absent", absent))]
    first, second = (table[:, None] if table.ndim == 1 else table for table in tables)
    shapes = first.shape, second.shape
    if first.ndim != 2 or shapes[0][1:] != shapes[1][1:] or min(map(len, (first, second))) < 2:
        raise InputError(f"the arms have shapes {shapes[0]} and {shapes[1]}; give (seeds, d) each.")
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        raise InputError("some outputs are infinite; give finite numbers.")
    return first, second
