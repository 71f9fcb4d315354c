"""Exact laws on a lattice: the linear loss, rounded to integers, with discrete Gaussian noise.

The linear loss moves every coordinate by itself, so that its law in d dimensions is a product of
laws on the integers, which are enumerated here. The spacing is 1: lengths are in units of Δ.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dd_jax import checks

# A step's noise is cut off beyond so many deviations, where less than 1e-150 of its mass is, and a
# divergence is summed where the first law has more than this: there the second one is accurate.
_DEVIATIONS = 26
_SUMMED = 1e-40


class Law(NamedTuple):
    """Probabilities of consecutive integers, the first of which is `first`."""

    first: int
    mass: np.ndarray


def noise(deviation: float, cut: float = _DEVIATIONS) -> Law:
    """The discrete Gaussian P(z) ∝ exp(-z²/(2ς²)), cut off where nothing is left of it."""
    reach = int(np.ceil(cut * float(checks.positive("deviation", deviation))))
    z = np.arange(-reach, reach + 1)
    mass = np.exp(-0.5 * (z / deviation) ** 2)
    return Law(-reach, mass / mass.sum())


def linear_law(
    contraction: float,
    drift,
    deviation: float,
    *,
    error: Callable | None = None,
    rounding: Callable = np.rint,
    start: int = 0,
) -> Law:
    """The law of one coordinate after steps θ ← round(cθ + h_k + e_k(θ)) + Z, from a point.

    Args:
        contraction: c. drift: h_k, one per step. deviation: ς.
        error: `(k, θ) -> e_k(θ)`, what the program computes wrongly; nothing by default.
        rounding: to an integer; to the nearest by default.
    """
    law, fresh = Law(int(start), np.ones(1)), noise(deviation)
    for k, push in enumerate(np.atleast_1d(checks.numbers("drift", drift)).tolist()):
        states = law.first + np.arange(len(law.mass))
        computed = contraction * states + push + (0.0 if error is None else error(k, states))
        ends = rounding(computed).astype(np.int64)
        least = int(ends.min())
        moved = np.bincount(ends - least, weights=law.mass)
        law = Law(least + fresh.first, np.convolve(moved, fresh.mass))
    return law


def renyi(order, first: Law, second: Law) -> float:
    """R_q of one coordinate, over the integers where the first law has some mass.

    Its far tails, where both laws are cut off, are left out, so that this is never above the exact
    value but for rounding. Infinite where the second law has no mass and the first one has some.
    """
    order = float(checks.order(order))
    places = first.first + np.flatnonzero(first.mass > _SUMMED)
    p, there = first.mass[places - first.first], places - second.first
    inside = (there >= 0) & (there < len(second.mass))
    r = np.where(inside, second.mass[np.clip(there, 0, len(second.mass) - 1)], 0.0)
    if not np.all(r > 0):
        return float("inf")
    exponent = order * np.log(p) + (1 - order) * np.log(r)
    largest = exponent.max()
    return float((largest + np.log(np.exp(exponent - largest).sum())) / (order - 1))
