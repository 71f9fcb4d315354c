"""Limits of an event's two probabilities at once, for arms that are independent of each other.

Two Clopper-Pearson limits at α/2 each hold however the arms depend on each other, and pay for it:
to mislead, independent arms must be unlucky together. Here the two exact tests are added up.

Why it is sound. For a hypothetical P(E) = a let z(a) = Φ⁻¹(1 - P[Bin(n, a) ≥ hits]) be the evidence
that the truth is larger, and z'(b) the same for Q(E) = b being smaller. At the true (a, b) each is
stochastically at most a standard normal (its p-value is at least uniform), and so is w z + w' z'
with w² + w'² = 1 if the arms are independent. Hence with probability 1 - α the true (a, b) is where

    w z(a) + w' z'(b) ≤ Φ⁻¹(1 - α'),   z(a) ≤ Z,   z'(b) ≤ Z,

with Z spending a small part of α on either side and α' the rest. That region is covered by boxes
[low, 1] × [0, high], whose corners are returned: a quantity that grows with P(E) and falls with
Q(E) is at least its least value over the corners. Host-side, no JAX.
"""

from collections.abc import Callable

import numpy as np
from scipy import special

from dd_jax.audit import tails

# The part of α spent on either side's outer limit, and the number of boxes.
OUTER = 1e-3
BOXES = 200
_LEAST_WEIGHT = 0.05
_NUDGE = 1e-6


def corners(
    hits: tuple[float, float],
    trials: tuple[int, int],
    weights: tuple[float, float],
    confidence: float,
) -> tuple[np.ndarray, np.ndarray]:
    """(low, high) of boxes of which one holds (P(E), Q(E)) with probability at least 1 - α.

    Args:
        hits, trials: of part B, (present, absent).
        weights: w and w', positive, fixed without looking at part B.
        confidence: 1 - α.
    """
    alpha = 1 - confidence
    outer = -special.ndtri(OUTER * alpha)
    joint = -special.ndtri((1 - 2 * OUTER) * alpha)
    own, other = np.asarray(weights) / np.hypot(*weights)
    # Present's evidence along the region's edge, and the most that absent's can then be.
    evidence = np.linspace((joint - other * outer) / own, outer, BOXES + 1)
    against = np.minimum((joint - own * evidence[:-1]) / other, outer)
    low = tails.lower_limit(hits[0], trials[0], special.ndtr(-evidence))
    high = tails.upper_limit(hits[1], trials[1], special.ndtr(-np.append(outer, against)))
    return low, high


def best_weights(value: Callable, rates, trials) -> tuple[float, float]:
    """The weights that lose least to first order: how far each arm's chance moves the value.

    `rates` are guesses from part A; equal weights where the value does not move there.
    """
    moves = _moves(value, rates, trials)
    if not np.all(np.isfinite(moves)) or np.any(moves <= 0):
        return 1.0, 1.0
    own, other = np.maximum(moves / np.hypot(*moves), _LEAST_WEIGHT)
    return float(own), float(other)


def chance_beyond(value: Callable, claim: float, rates, trials, confidence: float) -> float:
    """P[the bound from these corners > claim] for an event of these rates, to first order."""
    spread = float(np.hypot(*_moves(value, rates, trials)))
    surplus = float(value(*_inside(rates, trials))) - claim
    if not spread > 0:
        return float(surplus > 0)
    return float(special.ndtr(surplus / spread + special.ndtri(1 - confidence)))


def _moves(value: Callable, rates, trials) -> np.ndarray:
    """What one standard deviation of each arm's count moves the value by."""
    present, absent = inside = _inside(rates, trials)
    by_present, by_absent = _NUDGE * np.sqrt(inside * (1 - inside) / np.asarray(trials))
    with np.errstate(all="ignore"):
        here = value(present, absent)
        up, down = value(present + by_present, absent), value(present, absent + by_absent)
        return np.array([up - here, here - down]) / _NUDGE


def _inside(rates, trials) -> np.ndarray:
    """The rates moved half a seed into (0, 1)."""
    return (np.asarray(rates) * trials + 0.5) / (np.asarray(trials) + 1)
