"""The validators of the library: each returns a checked number or says in one sentence what to fix.

The validators of ranges take a scalar or an array and return `float64` of the same shape (0-d for a
scalar), so that formulas broadcast; `whole` is for one count and returns a Python int. Every
message reads "NAME = VALUE is not …; give …." There is no JAX here: a caller whose values may be
traced checks first that they are concrete.
"""

import functools
import operator
from collections.abc import Callable, Collection
from typing import ParamSpec, TypeVar

import numpy as np

from dd_jax.errors import CertificateRefused, InputError

# A step size computed as `2 / (2 * l2 + smoothness)` may exceed its own limit by a rounding error.
_ROUNDING = 8 * np.finfo(np.float64).eps
_P = ParamSpec("_P")
_T = TypeVar("_T")


# --- numbers and arrays of them -------------------------------------------------------------------


def numbers(name, value):
    """`value` as float64, refused if it is text, a Boolean, not numeric, or contains a NaN."""
    return _array(name, value, lambda x: ~np.isnan(x), "a number", "give a number or an array")


def finite(name, value):
    """`value` as float64, refused unless finite throughout."""
    return _array(name, value, np.isfinite, "a finite number", "give finite numbers only")


def positive(name, value, *, most=np.inf):
    """`value` as float64, refused unless finite, > 0 and at most `most` throughout."""
    bounded = most < np.inf
    return _array(
        name,
        value,
        lambda x: np.isfinite(x) & (x > 0) & (x <= most),
        f"a number in (0, {most:g}]" if bounded else "a positive finite number",
        "give one that is" if bounded else f"give {name} > 0",
    )


def nonnegative(name, value):
    """`value` as float64, refused unless ≥ 0 throughout; infinity is allowed."""
    return _array(name, value, lambda x: x >= 0, "a number ≥ 0", f"give {name} ≥ 0")


def finite_nonnegative(name, value):
    """`value` as float64, refused unless finite and ≥ 0 throughout."""
    return _array(
        name, value, lambda x: np.isfinite(x) & (x >= 0), "a finite number ≥ 0", f"give {name} ≥ 0"
    )


def within(name, value, low, high):
    """`value` as float64, refused unless low ≤ value ≤ high throughout."""
    what = f"a number in [{low:g}, {high:g}]"
    return _array(name, value, lambda x: (x >= low) & (x <= high), what, "give one that is")


def probability(name, value):
    """`value` as float64, refused unless in [0, 1] throughout."""
    remedy = "give a number between 0 and 1"
    return _array(name, value, lambda x: (x >= 0) & (x <= 1), "a probability", remedy)


def fraction(name, value, example: float | str = 0.5):
    """`value` as float64, refused unless strictly between 0 and 1 throughout."""
    remedy = f"give for example {name}={example}"
    return _array(name, value, lambda x: (x > 0) & (x < 1), "in (0, 1)", remedy)


def delta(value):
    """The δ of (ε, δ) as float64, refused unless strictly between 0 and 1 throughout."""
    return fraction("delta", value, example="1e-5")


def order(value):
    """The Rényi order q as float64, refused unless finite and > 1 throughout."""
    remedy = "give a finite order > 1"
    return _array("order", value, lambda x: np.isfinite(x) & (x > 1), "a Rényi order", remedy)


def steps(name, value, *, least=0, endless=True):
    """A count as float64, refused unless a whole number ≥ least, or infinite, throughout."""

    def fits(x):
        whole = np.isfinite(x) & (x == np.floor(x)) & (x >= least)
        return whole | np.isposinf(x) if endless else whole

    what = f"a {'' if endless else 'finite '}whole number ≥ {least}"
    remedy = f"give {least}, {least + 1}, {least + 2}, …" + " or numpy.inf" * endless
    return _array(name, value, fits, what, remedy)


def count(name, value):
    """A count as float64, refused unless a finite whole number ≥ 1 throughout."""
    return steps(name, value, least=1, endless=False)


def _array(name, value, fits, what, remedy):
    """`value` as float64, refused unless it fits throughout; a NaN never does."""
    try:
        array = None if isinstance(value, bool | str) else np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        array = None
    if array is None:
        raise InputError(f"{name} = {value!r} is not {what}; {remedy}.")
    good = fits(array)
    if not np.all(good):
        shown = value if array.ndim == 0 else f"{array[~good].flat[0]:g}"
        raise InputError(f"{name} = {shown} is not {what}; {remedy}.")
    return array


def representable(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """The function, which refuses numbers for which its formulas leave the range of float64.

    Each number may be fine alone, as 1e200 is, and its square not. What comes out of infinities
    then is no bound.
    """

    @functools.wraps(function)
    def checked(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            with np.errstate(over="raise", invalid="raise", divide="raise"):
                return function(*args, **kwargs)
        except ArithmeticError as error:  # of Python's floats or of NumPy's
            raise InputError(
                f"a formula leaves the range of 64-bit floats ({error.args[-1]}); give numbers "
                f"that are less large or small."
            ) from None

    return checked


# --- one count, one choice ------------------------------------------------------------------------


def is_whole(value) -> bool:
    """Whether the value is one integer of Python, NumPy or JAX, and not a Boolean."""
    try:
        operator.index(value)
    except TypeError:
        return False
    return not isinstance(value, bool)


def is_number(value) -> bool:
    """Whether the value is an int or a float of Python, and not a Boolean."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def whole(name, value, *, least=0, most=None) -> int:
    """A count as a Python int, refused unless one whole number from `least` to `most`."""
    if is_whole(value) and value >= least and (most is None or value <= most):
        return int(value)
    range_ = f"≥ {least}" if most is None else f"from {least} to {most}"
    raise InputError(f"{name} = {value} is not a whole number {range_}; give one.")


def choice(name, value, known: Collection[str]) -> str:
    """One of the known words, refused otherwise."""
    if value not in known:
        raise InputError(f"{name} = {value!r} is not known; give one of {', '.join(known)}.")
    return value


# --- conditions of theorems -----------------------------------------------------------------------


def step_size_strict(step_size, l2, smoothness):
    """The step size η, refused unless η < 1/(λ+β): the condition of the paper's proof.

    Part 1 of the lemma on the map of one step, `lem:T_is_bijective_and_lipschitz`.
    """
    step_size = positive("step_size", step_size)
    limit = 1 / (positive("l2", l2) + nonnegative("smoothness", smoothness))
    _refuse_step_size(step_size < limit, step_size, limit, "below 1/(λ+β)", "smaller than")
    return step_size


def step_size_optimal(step_size, l2, smoothness):
    """The step size η, refused unless η ≤ 2/(2λ+β): a step is then (1-ηλ)-Lipschitz.

    Part 2 of the lemma on the map of one step, `lem:T_is_bijective_and_lipschitz`.
    """
    step_size = positive("step_size", step_size)
    limit = 2 / (2 * positive("l2", l2) + nonnegative("smoothness", smoothness))
    fits = step_size <= limit * (1 + _ROUNDING)
    _refuse_step_size(fits, step_size, limit, "at most 2/(2λ+β)", "of at most")
    return step_size


def edited_share(n, edits_per_request):
    """The share r/n, refused if a request edits more records than there are."""
    n, edits = count("n", n), count("edits_per_request", edits_per_request)
    if np.any(edits > n):
        raise CertificateRefused(
            f"edits_per_request = {np.max(edits):g} exceeds n = {np.min(n):g}, but a request "
            f"replaces distinct records; give edits_per_request ≤ n."
        )
    return edits / n


def _refuse_step_size(fits, step_size, limit, condition, remedy):
    if not np.all(fits):
        step_size, limit, fits = np.broadcast_arrays(step_size, limit, fits)
        worst = float(step_size[~fits].flat[0]), float(limit[~fits].flat[0])
        raise CertificateRefused(
            f"step_size = {worst[0]:.17g} is not {condition} = {worst[1]:.17g}, which this bound "
            f"needs; give a step size {remedy} {worst[1]:.17g}."
        )
