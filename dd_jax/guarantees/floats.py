"""Arithmetic in float64 that rounds a bound to its sound side, and results as plain floats."""

from typing import Any

import numpy as np

from dd_jax import checks

_FLOAT32 = float(np.finfo(np.float32).eps)
_LEAST = np.finfo(np.float64).smallest_subnormal
_MOST = np.finfo(np.float64).max
# Formulas that leave the range of floats on the way to a bound return ∞, without a warning.
quiet = np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore")


def product(*factors):
    """The product, rounded to the sound side of a bound where it leaves the range of floats.

    Overflow is ∞, and so is 0·∞; a positive product below the least float is the least float. The
    order of the factors does not matter: nothing overflows or underflows on the way.
    """
    # Mantissas and exponents apart: a float's exponent cannot leave its range before the end.
    mantissa, exponent = np.float64(1.0), 0
    with np.errstate(all="ignore"):
        for factor in factors:
            part, power = np.frexp(np.asarray(factor, dtype=np.float64))
            mantissa, carry = np.frexp(mantissa * part)
            exponent = exponent + power + carry
        result = np.ldexp(mantissa, exponent)
    result = np.where((result == 0) & (mantissa > 0), _LEAST, result)
    return np.where(np.isnan(result), np.inf, result)


def decay(*factors):
    """e^-(product of finite factors or ∞), rounded up: 0 only where a factor is infinite."""
    exponent = product(*factors)
    never = np.any(np.broadcast_arrays(*map(np.isinf, factors)), axis=0)
    return np.where(never, np.exp(-exponent), power(-np.minimum(exponent, _MOST)))


def power(exponent):
    """e^exponent, rounded up: 0 only where the exponent is -∞."""
    with np.errstate(all="ignore"):
        value = np.exp(exponent)
    return np.where(np.isneginf(exponent), value, np.maximum(value, _LEAST))


def rounded_up(x):
    """A number that is positive in exact arithmetic, or the least float where it underflowed."""
    return np.where(np.asarray(x) == 0, _LEAST, x)


def plain_bound(x) -> Any:
    """`plain` for a bound that is positive in exact arithmetic."""
    return plain(rounded_up(x))


def times(rate, num_steps):
    """rate · K with 0 · ∞ = 0."""
    return np.where((num_steps == 0) | (rate == 0), 0.0, rate * num_steps)


def least_float32_noise(reach):
    """100·2⁻²³·‖θ‖: the least deviation of noise that float32 can add to a model of this norm.

    Below it the noisy model takes few values, which reveal the model without the noise; above it
    rounding changes little compared with the noise. A rule of thumb, not a proof.
    """
    return plain(100 * _FLOAT32 * checks.positive("reach", reach))


def plain(x) -> Any:
    """A Python float for a scalar result, the array itself otherwise."""
    x = np.asarray(x)
    return float(x) if x.ndim == 0 else x
