"""What float32 noise can be: the 2²³ values of `jax.random.normal`, and a step's own rounding.

A step of Noisy-GD adds √(2ησ²)·√2·erf⁻¹(u) to a known number, with u on a lattice of 2²³ values.
Who knows the number before the noise can count the u that end in the number after it: the exact
likelihood of one step, coordinate by coordinate. Compilers fuse products with sums and merge
constants, so a step is described by an `Arithmetic`; `ARITHMETICS` are all that a compiler may make
of the two orders of summation. Host-side NumPy, but for the table itself.
"""

import functools
import itertools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

BITS = 23
COUNT = 2**BITS
ROOT_TWO = np.float32(math.sqrt(2))
# A published grid is at most this share of one step's noise deviation.
GRID_SHARE = 1 / 32


@functools.cache
def quantiles() -> np.ndarray:
    """erf⁻¹(u) for every u that `jax.random.normal` can draw in float32, ascending, all likely.

    The same operations as there: 23 random bits make a number of [1, 2), moved to (-1, 1).
    """
    lowest = np.nextafter(np.float32(-1), np.float32(0))

    def one(bits):
        unit = jax.lax.bitcast_convert_type(bits | jnp.uint32(0x3F800000), jnp.float32) - 1
        return jax.lax.erf_inv(jnp.maximum(lowest, unit * (np.float32(1) - lowest) + lowest))

    return np.asarray(jax.jit(one)(jnp.arange(COUNT, dtype=jnp.uint32)))


class Step(NamedTuple):
    """η and √(2ησ²) of one step, in float32 as the program computes them."""

    step_size: np.float32
    scale: np.float32

    @classmethod
    def of(cls, plan) -> "Step":
        """The step of a plan or a schedule."""
        eta = np.float32(plan.step_size)
        return cls(eta, np.sqrt(np.float32(2) * eta * np.float32(plan.noise_variance)))

    @property
    def grid(self) -> float:
        """The largest power of two that is at most 1/32 of the noise's deviation."""
        return 2.0 ** math.floor(math.log2(float(self.scale) * GRID_SHARE))


class Arithmetic(NamedTuple):
    """How a compiled step rounds.

    Attributes:
        small_first: θ + (noise - ηg), or (θ - ηg) + noise.
        fused_drift: the product ηg is not rounded before it is added.
        fused_noise: nor is the product of the noise's scale and the draw.
        merged: the scale and √2 were multiplied when the program was compiled.
    """

    small_first: bool
    fused_drift: bool
    fused_noise: bool
    merged: bool


ARITHMETICS = tuple(
    Arithmetic(*flags)
    for flags in itertools.product((True, False), repeat=4)
    if not all(flags[:3])  # one sum of two products cannot leave both of them unrounded
)


def move(how: Arithmetic, params, slope, quantile, step: Step) -> np.ndarray:
    """One step in float32: θ - ηg + √(2ησ²)·√2·erf⁻¹(u), rounded as `how` says."""
    eta, scale = step
    factor, draw = (scale * ROOT_TWO, quantile) if how.merged else (scale, ROOT_TWO * quantile)
    if how.small_first and how.fused_drift:
        return params + _fused(-eta, slope, factor * draw)
    if how.small_first and how.fused_noise:
        return params + _fused(factor, draw, -(eta * slope))
    if how.small_first:
        return params + (factor * draw - eta * slope)
    drifted = _fused(-eta, slope, params) if how.fused_drift else params - eta * slope
    return _fused(factor, draw, drifted) if how.fused_noise else drifted + factor * draw


def _fused(left, right, added) -> np.ndarray:
    """left·right + added, rounded once; float64 holds the product of two float32 exactly."""
    wide = np.float64(left) * np.asarray(right, np.float64) + np.asarray(added, np.float64)
    return wide.astype(np.float32)


def exact_counts(how: Arithmetic, before, slope, after, step: Step) -> np.ndarray:
    """How many draws take `before` to exactly `after`: 2²³ times the likelihood, per coordinate."""
    middle = _place(_needed(before, slope, after, step))
    # Numbers that one value of `after` stands for, in draws; the drift's own rounding on top.
    ulp = np.spacing(max(np.abs(after).max(), np.abs(before).max(), float(step.scale)))
    reach = 4 + math.ceil(2 * float(ulp) * COUNT / (math.sqrt(2 * math.pi) * float(step.scale)))
    near = np.rint(middle).astype(np.int64)[..., None] + np.arange(-reach, reach + 1)
    ends = move(
        how,
        before[..., None],
        slope[..., None],
        quantiles()[np.clip(near, 0, COUNT - 1)],
        step,
    )
    return np.sum((ends == after[..., None]) & (near >= 0) & (near < COUNT), axis=-1)


def cell_counts(before, slope, after, width, step: Step) -> np.ndarray:
    """How many draws end within `width`/2 of `after`, rounding of the step itself left aside."""
    edges = [_needed(before, slope, after + side * width / 2, step) for side in (-1.0, 1.0)]
    low, high = (np.clip(np.rint(_place(edge)), 0, COUNT) for edge in edges)
    return high - low


def on_grid(values: np.ndarray, step: Step) -> bool:
    """Whether all of these numbers are multiples of the step's publication grid."""
    wide = np.asarray(values, np.float64) / step.grid
    return bool(np.all(wide == np.rint(wide)))


def log_likelihood(how: Arithmetic, before, slope, after, step: Step) -> np.ndarray:
    """Σ over coordinates of log #draws; `before` is known exactly, `after` as published.

    No draw at all counts as a hundredth of one, so that one odd coordinate decides nothing.
    """
    if on_grid(after, step):
        counts = cell_counts(before, slope, np.asarray(after, np.float64), step.grid, step)
    else:
        counts = exact_counts(how, before, slope, after, step)
    return np.sum(np.log(np.maximum(counts, 0.01)), axis=-1)


def calibrate(before, slope, after, step: Step) -> Arithmetic:
    """The arithmetic that explains most of these steps, whose true gradients are known.

    The observer runs the program on data of her own to learn how it was compiled.
    """
    explained = [np.mean(exact_counts(how, before, slope, after, step) > 0) for how in ARITHMETICS]
    return ARITHMETICS[int(np.argmax(explained))]


def _needed(before, slope, after, step: Step) -> np.ndarray:
    """The quantile that real numbers would need to go from `before` to `after`."""
    before, slope, after = (np.asarray(each, np.float64) for each in (before, slope, after))
    drift = float(step.step_size) * slope
    return (after - before + drift) / (float(step.scale) * float(ROOT_TWO))


def _place(quantile: np.ndarray) -> np.ndarray:
    """Where in the table of quantiles a number belongs, from the error function."""
    return (special.erf(quantile) + 1) * (COUNT / 2) - 0.5


def best_advantage(how: Arithmetic, before, slopes, step: Step, *, rounded: bool) -> float:
    """The best test's advantage after one step in one dimension, over all 2²³ draws: exact.

    Args:
        before: the model before the step, one float32.
        slopes: its gradient under the two hypotheses.
        rounded: whether the result is published on the step's grid, or as it is.
    """
    ends = [move(how, np.float32(before), np.float32(slope), quantiles(), step) for slope in slopes]
    if rounded:
        ends = [np.rint(end.astype(np.float64) / step.grid) for end in ends]
    values, place = np.unique(np.concatenate(ends), return_inverse=True)
    counts = [np.bincount(part, minlength=len(values)) for part in np.split(place, 2)]
    return float(np.abs(counts[0] - counts[1]).sum() / (2 * COUNT))
