"""Validators shared by every guarantee: float64 out, or one sentence that says what to mend.

Each takes a scalar or an array and returns `float64` of the same shape (0-d for a scalar), so that
formulas broadcast; `plain` turns a 0-d result back into a Python float.
"""

from typing import Any

import numpy as np

from dd_jax.errors import CertificateRefused, InputError

# A step size computed as `2 / (2 * l2 + smoothness)` may exceed its own limit by a rounding error.
_ROUNDING = 8 * np.finfo(np.float64).eps
_FLOAT32 = float(np.finfo(np.float32).eps)
_LEAST = np.finfo(np.float64).smallest_subnormal
_MOST = np.finfo(np.float64).max
# Formulas that may leave the range of floats on the way to a bound say so by ∞, not by a warning.
quiet = np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore")


def numbers(name, value):
    """`value` as float64, refused if it is not numeric or holds a NaN."""
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise InputError(
            f"{name} = {value!r} is not a number; give a number or an array of them."
        ) from None
    _refuse_where(np.isnan(array), name, array, "is not a number", "give a number")
    return array


def positive(name, value):
    """`value` as float64, refused unless finite and > 0 throughout."""
    array = numbers(name, value)
    bad = ~(np.isfinite(array) & (array > 0))
    _refuse_where(bad, name, array, "is not a positive finite number", f"give {name} > 0")
    return array


def nonnegative(name, value):
    """`value` as float64, refused unless ≥ 0 throughout; infinity is allowed."""
    array = numbers(name, value)
    _refuse_where(~(array >= 0), name, array, "is negative", f"give {name} ≥ 0")
    return array


def order(value):
    """The Rényi order q as float64, refused unless finite and > 1 throughout."""
    array = numbers("order", value)
    bad = ~(np.isfinite(array) & (array > 1))
    _refuse_where(bad, "order", array, "is not a Rényi order", "give a finite order > 1")
    return array


def steps(name, value):
    """A count as float64, refused unless a whole number ≥ 0 or infinite throughout."""
    array = numbers(name, value)
    bad = ~(array >= 0) | (np.isfinite(array) & (array != np.floor(array)))
    _refuse_where(bad, name, array, "is not a whole number ≥ 0", "give 0, 1, 2, … or numpy.inf")
    return array


def count(name, value):
    """A count as float64, refused unless a finite whole number ≥ 1 throughout."""
    array = steps(name, value)
    bad = ~(np.isfinite(array) & (array >= 1))
    _refuse_where(bad, name, array, "is not a finite whole number ≥ 1", "give 1, 2, 3, …")
    return array


def whole(name, value, *, least):
    """A count as a Python int, refused unless one finite whole number ≥ `least`."""
    number = steps(name, value)
    odd = isinstance(value, bool | str)
    if odd or number.ndim or np.isinf(number) or number < least:
        raise InputError(f"{name} = {value} is not a finite whole number ≥ {least}; give one.")
    return int(value)


def probability(name, value):
    """`value` as float64, refused unless in [0, 1] throughout."""
    array = numbers(name, value)
    bad = ~((array >= 0) & (array <= 1))
    _refuse_where(bad, name, array, "is not a probability", "give a number between 0 and 1")
    return array


def delta(value):
    """The δ of (ε, δ) as float64, refused unless strictly between 0 and 1 throughout."""
    array = numbers("delta", value)
    bad = ~((array > 0) & (array < 1))
    _refuse_where(bad, "delta", array, "is not in (0, 1)", "give for example delta=1e-5")
    return array


def step_size_strict(step_size, l2, smoothness):
    """η, refused unless η < 1/(λ+β): the condition of the paper's proof.

    `lem:T_is_bijective_and_lipschitz`, part 1.
    """
    step_size = positive("step_size", step_size)
    limit = 1 / (positive("l2", l2) + nonnegative("smoothness", smoothness))
    _refuse_step_size(step_size < limit, step_size, limit, "below 1/(λ+β)", "smaller than")
    return step_size


def step_size_optimal(step_size, l2, smoothness):
    """η, refused unless η ≤ 2/(2λ+β): every step is then a (1-ηλ)-Lipschitz map.

    `lem:T_is_bijective_and_lipschitz`, part 2.
    """
    step_size = positive("step_size", step_size)
    limit = 2 / (2 * positive("l2", l2) + nonnegative("smoothness", smoothness))
    fits = step_size <= limit * (1 + _ROUNDING)
    _refuse_step_size(fits, step_size, limit, "at most 2/(2λ+β)", "of at most")
    return step_size


def edited_share(n, edits_per_request):
    """r/n, refused if a request edits more records than there are."""
    n, edits = count("n", n), count("edits_per_request", edits_per_request)
    if np.any(edits > n):
        raise CertificateRefused(
            f"edits_per_request = {np.max(edits):g} exceeds n = {np.min(n):g}, but a request "
            f"replaces distinct records; give edits_per_request ≤ n."
        )
    return edits / n


def product(*factors):
    """The product, rounded to the sound side of a bound where it leaves the range of floats.

    Overflow is ∞, and so is 0·∞; a positive product below the least float is the least float. The
    order of the factors does not matter: nothing overflows or underflows on the way.
    """
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
    """A number that is positive in exact arithmetic; where it underflowed, the least float."""
    return np.where(np.asarray(x) == 0, _LEAST, x)


def plain_bound(x) -> Any:
    """`plain` for a bound that is positive in exact arithmetic."""
    return plain(rounded_up(x))


def times(rate, num_steps):
    """rate · K with 0 · ∞ = 0."""
    return np.where((num_steps == 0) | (rate == 0), 0.0, rate * num_steps)


def least_float32_noise(reach):
    """100·2⁻²³·‖θ‖: the least deviation of noise that float32 can add to a model of this norm.

    Below it the noisy model takes few values and tells the model without the noise; above it what
    rounding moves is small against the noise. A rule of thumb, not a proof.
    """
    return plain(100 * _FLOAT32 * positive("reach", reach))


def plain(x) -> Any:
    """A Python float for a scalar result, the array itself otherwise."""
    x = np.asarray(x)
    return float(x) if x.ndim == 0 else x


def _refuse_step_size(fits, step_size, limit, condition, remedy):
    if not np.all(fits):
        step_size, limit, fits = np.broadcast_arrays(step_size, limit, fits)
        worst = float(step_size[~fits].flat[0]), float(limit[~fits].flat[0])
        raise CertificateRefused(
            f"step_size = {worst[0]:.17g} is not {condition} = {worst[1]:.17g}, which this bound "
            f"needs; give a step size {remedy} {worst[1]:.17g}."
        )


def _refuse_where(bad, name, array, complaint, remedy):
    if np.any(bad):
        raise InputError(f"{name} = {float(array[bad].flat[0]):g} {complaint}; {remedy}.")
