"""Checks and powers that the oracles share."""

import numpy as np

from dd_jax.errors import InputError


def check_positive(name, value, zero_allowed=False):
    """The value as float64 scalar or array; refused unless finite and > 0 (≥ 0)."""
    array = np.asarray(value, dtype=np.float64)
    if not np.all(np.isfinite(array) & ((array >= 0) if zero_allowed else (array > 0))):
        wanted = "≥ 0" if zero_allowed else "> 0"
        raise InputError(f"{name} = {value} is not a finite number {wanted}; give one that is.")
    return array


def check_order(order):
    """The order q of a Rényi divergence; refused unless finite and > 1."""
    order = np.asarray(order, dtype=np.float64)
    if not np.all(np.isfinite(order) & (order > 1)):
        raise InputError(f"order = {order} is not a finite number > 1; give q > 1, for example 2.")
    return order


def check_finite(name, value):
    """The value as a float64 array; refused if any entry is NaN or infinite."""
    array = np.asarray(value, dtype=np.float64)
    if not np.all(np.isfinite(array)):
        raise InputError(f"{name} has an entry that is not finite; give finite numbers only.")
    return array


def check_steps(name, value, least=0, infinite_allowed=True):
    """The number of steps as float64; refused unless a whole number ≥ least (or infinity)."""
    array = np.asarray(value, dtype=np.float64)
    whole = np.isfinite(array) & (array == np.floor(array))
    if infinite_allowed:
        whole |= np.isposinf(array)
    if not np.all(whole & (array >= least)):
        raise InputError(f"{name} = {value} is not a whole number ≥ {least}; give one that is.")
    return array


def power(rate, steps):
    """(1 - rate)^steps, accurate for tiny rates and for an infinite number of steps."""
    sign, exponent = _signed_exponent(rate, steps)
    return sign * np.exp(exponent)


def one_minus_power(rate, steps):
    """1 - (1 - rate)^steps without cancellation."""
    sign, exponent = _signed_exponent(rate, steps)
    return np.where(sign > 0, -np.expm1(exponent), 1 + np.exp(exponent))


def _signed_exponent(rate, steps):
    """Sign and logarithm of |1 - rate|^steps."""
    rate, steps = np.broadcast_arrays(np.float64(rate), np.float64(steps))
    with np.errstate(divide="ignore", invalid="ignore"):
        log_base = np.where(rate <= 1, np.log1p(-np.minimum(rate, 1)), np.log(np.abs(rate - 1)))
        exponent = np.where((steps == 0) | (log_base == 0), 0.0, steps * log_base)
        odd = np.where(np.isfinite(steps), np.mod(steps, 2), 0) == 1
    return np.where((rate > 1) & odd, -1.0, 1.0), exponent
