"""Slopes in whole numbers, for exact arithmetic (`dd_jax.exact_gd`).

A slope takes a record's score t = ⟨a, θ⟩ and label, both as whole multiples of 2^-F, and gives the
multiple of 2^-G that is nearest to φ'(t, y): int64 in, int64 out, the same on every platform and
however a program is compiled. A margin loss has its labels in the features already, and reads none.

Where a slope is the clamp of a line it needs at most one product of floats. The logistic slope is
interpolated between the multiples of 2⁻⁸: monotone, so it is the slope of a convex loss, and never
steeper than 1/4, so L and β are those of the logistic loss. It differs from the logistic slope by
2⁻¹⁶ max|σ''|/8 < 2e-7, which is a change of the loss and no error of arithmetic.
"""

import decimal
import functools
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

Slope = Callable[[Array, Array, int, int], Array]
"""`(score, label, F, G) -> slope`."""

# The logistic slope: knots 2⁻⁸ apart, up to where it is 0 in multiples of 2⁻³².
KNOT_BITS, END, VALUE_BITS = 8, 24, 32


def linear(score: Array, label: Array, score_bits: int, slope_bits: int) -> Array:
    """φ' = -1."""
    return jnp.full_like(score, -(2**slope_bits))


def huber(threshold: float) -> Slope:
    """φ' = the residual, clamped at ±δ; δ is cut to F bits, which only makes it smaller."""

    def slope(score, label, score_bits, slope_bits):
        most = int(threshold * 2**score_bits)
        return _shifted(jnp.clip(score - label, -most, most), score_bits - slope_bits)

    return slope


def smoothed_hinge(smoothing: float) -> Slope:
    """φ' = -clip((1 - z)/γ, 0, 1)."""

    def slope(score, label, score_bits, slope_bits):
        most = int(np.ceil(smoothing * 2.0**score_bits))
        gap = jnp.clip(2**score_bits - score, 0, most).astype(jnp.float64)
        # One product and one rounding, in this order whatever a compiler does.
        share = jnp.rint(gap * jnp.float64(2.0 ** (slope_bits - score_bits) / smoothing))
        return -jnp.minimum(share.astype(jnp.int64), 2**slope_bits)

    return slope


def logistic(score: Array, label: Array, score_bits: int, slope_bits: int) -> Array:
    """φ' = -1/(1 + e^z), interpolated."""
    fine = score_bits - KNOT_BITS  # bits between two knots
    place = jnp.clip(score, -END << score_bits, END << score_bits) + (END << score_bits)
    values = jnp.asarray(logistic_knots())
    knot = jnp.minimum(place >> fine, values.size - 2)
    low, high = values[knot], values[knot + 1]
    exact = (low << fine) + (high - low) * (place - (knot << fine))
    return _shifted(exact, VALUE_BITS + fine - slope_bits)


@functools.cache
def logistic_knots() -> np.ndarray:
    """-1/(1 + e^z) at multiples of 2⁻⁸ from -24 to 24, to the nearest multiple of 2⁻³².

    By decimal arithmetic, whose exponential is correctly rounded to 40 digits.
    """
    with decimal.localcontext(decimal.Context(prec=40)):
        # e^z at every knot is a power of one number, correct to 35 digits or more.
        root = decimal.Decimal(2.0**-KNOT_BITS).exp()
        power, found = decimal.Decimal(1), []
        for _ in range((END << KNOT_BITS) + 1):
            found.append(int((2**VALUE_BITS / (1 + power)).to_integral_value()))
            power *= root
    above = np.array(found, np.int64)
    return np.concatenate([above[:0:-1] - 2**VALUE_BITS, -above])


def _shifted(value: Array, bits: int) -> Array:
    """value / 2^bits, to the nearest whole number; halves upwards."""
    if bits <= 0:
        return value << -bits
    return (value + (1 << (bits - 1))) >> bits
