"""What float32 noise can be: the 2²³ values of `jax.random.normal`, and a step's own rounding.

An observer who knows a model and its gradient counts the draws that lead from it to the next
release. Under a database that was not used there are few of them, often none.
"""

import functools
import itertools
import math
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from dd_jax.plans import Plan

DRAWS = 2**23
ROOT_TWO = np.float32(math.sqrt(2))
# A published grid is at most this share of one step's noise deviation.
GRID_SHARE = 1 / 32


@functools.cache
def quantiles() -> np.ndarray:
    """erf⁻¹(u) for every u that `jax.random.normal` can draw in float32, ascending, equally likely.

    The same operations as there: 23 random bits make a number of [1, 2), moved to (-1, 1).
    """
    lowest = np.nextafter(np.float32(-1), np.float32(0))

    def one(bits):
        unit = jax.lax.bitcast_convert_type(bits | jnp.uint32(0x3F800000), jnp.float32) - 1
        return jax.lax.erf_inv(jnp.maximum(lowest, unit * (np.float32(1) - lowest) + lowest))

    return np.asarray(jax.jit(one)(jnp.arange(DRAWS, dtype=jnp.uint32)))


class Step(NamedTuple):
    """One step as the program computes it in float32; an observer who knows θ and ∇ℒ counts draws.

    Attributes:
        step_size: η.
        scale: √(2ησ²), which multiplies √2·erf⁻¹(u) with u on a lattice of 2²³ values.
        fused: which product of θ + (noise - ηg) is not rounded before the other is subtracted;
            compilers fuse products with sums.
        merged: whether the scale and √2 were multiplied when the program was compiled.
    """

    step_size: np.float32
    scale: np.float32
    fused: Literal["drift", "noise", "none"] = "none"
    merged: bool = False

    @classmethod
    def of(cls, plan: Plan) -> "Step":
        """The step of a plan."""
        eta = np.float32(plan.step_size)
        return cls(eta, np.sqrt(np.float32(2) * eta * np.float32(plan.noise_variance)))

    @property
    def grid(self) -> float:
        """The largest power of two that is at most 1/32 of the noise's deviation."""
        return 2.0 ** math.floor(math.log2(float(self.scale) * GRID_SHARE))

    def move(self, params, slope, quantile) -> np.ndarray:
        """θ + (√(2ησ²)·√2·erf⁻¹(u) - ηg), rounded as compiled."""
        eta, scale, fused, merged = self
        factor, draw = (scale * ROOT_TWO, quantile) if merged else (scale, ROOT_TWO * quantile)
        if fused == "drift":
            return params + _fused(-eta, slope, factor * draw)
        if fused == "noise":
            return params + _fused(factor, draw, -(eta * slope))
        return params + (factor * draw - eta * slope)

    def _place(self, before, slope, after) -> np.ndarray:
        """The place in the table of the draw that leads to `after` in real numbers."""
        before, slope, after = (np.asarray(each, np.float64) for each in (before, slope, after))
        needed = after - before + float(self.step_size) * slope
        quantile = needed / (float(self.scale) * float(ROOT_TWO))
        return (special.erf(quantile) + 1) * (DRAWS / 2) - 0.5

    def exact_counts(self, before, slope, after) -> np.ndarray:
        """How many draws take `before` to exactly `after`, per coordinate: 2²³ · likelihood."""
        # How many neighbouring draws can round to one value of `after`: two spacings of floats,
        # counted in draws where they are densest, and four more for the rounding of the drift.
        ulp = np.spacing(max(np.abs(after).max(), np.abs(before).max(), float(self.scale)))
        reach = 4 + math.ceil(2 * float(ulp) * DRAWS / (math.sqrt(2 * math.pi) * float(self.scale)))
        middle = np.rint(self._place(before, slope, after)).astype(np.int64)
        near = middle[..., None] + np.arange(-reach, reach + 1)
        draws = quantiles()[np.clip(near, 0, DRAWS - 1)]
        ends = self.move(before[..., None], slope[..., None], draws)
        return np.sum((ends == after[..., None]) & (near >= 0) & (near < DRAWS), axis=-1)

    def log_counts(self, before, slope, after, total: bool = False) -> np.ndarray:
        """Log of how many draws take `before` to `after` as published, per coordinate.

        If all numbers are on the grid, each stands for a cell, and the rounding of the step itself
        is ignored. A coordinate without any draw counts as a hundredth of a draw, so that a single
        coordinate, mispredicted by a rounding, does not decide. `total` adds the counts up before
        the logarithm is taken.
        """
        after = np.asarray(after)
        cells = after.astype(np.float64) / self.grid
        if np.all(cells == np.rint(cells)):
            edges = (after.astype(np.float64) + side * self.grid / 2 for side in (-1.0, 1.0))
            places = (np.rint(self._place(before, slope, edge)) for edge in edges)
            low, high = (np.clip(place, 0, DRAWS) for place in places)
            counts = high - low
        else:
            counts = self.exact_counts(before, slope, after)
        return np.log(np.maximum(np.sum(counts) if total else counts, 0.01))

    def log_ratio(self, before, slopes, after) -> np.ndarray:
        """Log likelihood of the last hypothesis minus the first's, over all coordinates.

        Args:
            before: (…, d), the model before the step. slopes: (…, 2, d), its gradient under each.
            after: (…, d), what was published after it.
        """
        first, last = (
            self.log_counts(before, slopes[..., side, :], after).sum(axis=-1) for side in (0, 1)
        )
        return last - first

    def calibrated(self, before, slope, after) -> "Step":
        """The same step with the way of rounding that explains most of these transitions.

        XLA may fuse a product with a sum or merge constants; which it did is found by trying.
        The observer runs the program on her own data to learn how it was compiled.
        """
        ways = itertools.product(("drift", "noise", "none"), (True, False))
        steps = [self._replace(fused=fused, merged=merged) for fused, merged in ways]
        return max(steps, key=lambda step: np.mean(step.exact_counts(before, slope, after) > 0))

    def best_advantage(self, before, slopes, *, rounded: bool) -> float:
        """The best test's advantage after one step in one dimension, over all 2²³ draws: exact.

        Args:
            before: the model before the step, one float32.
            slopes: its gradient under the two hypotheses.
            rounded: whether the result is published on the grid, or as it is.
        """
        ends = [self.move(np.float32(before), np.float32(g), quantiles()) for g in slopes]
        if rounded:
            ends = [np.rint(end.astype(np.float64) / self.grid) for end in ends]
        values, place = np.unique(np.concatenate(ends), return_inverse=True)
        counts = [np.bincount(part, minlength=len(values)) for part in np.split(place, 2)]
        return float(np.abs(counts[0] - counts[1]).sum() / (2 * DRAWS))


def _fused(left, right, added) -> np.ndarray:
    """left·right + added, rounded once; float64 holds the product of two float32 exactly."""
    wide = np.float64(left) * np.asarray(right, np.float64) + np.asarray(added, np.float64)
    return wide.astype(np.float32)
