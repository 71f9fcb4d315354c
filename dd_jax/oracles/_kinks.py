"""Integrals of the positive part of smooth functions on a uniform grid, in one or two dimensions.

The trapezoid rule is only of second order at a kink. Densities here are resolved by their grid, so
they can be interpolated to a finer one, and the kink is then located inside its cell.
"""

from functools import cached_property

import numpy as np
from scipy import optimize

_UPSAMPLING = {1: 32, 2: 4}


class FinePair:
    """Two densities p₀ and p₁ on one uniform grid, interpolated to a finer one."""

    def __init__(self, first, second, cell):
        factor = _UPSAMPLING[first.ndim]
        self.first, self.second = (upsample(values, factor) for values in (first, second))
        self.cell = cell / factor**first.ndim

    def hockey_stick(self, epsilon) -> float:
        """∫ (p₀ - e^ε p₁)₊."""
        difference = self.first - np.exp(min(epsilon, 600.0)) * self.second
        return min(1.0, positive_part(difference, self.first) * self.cell)

    def least_type_two(self, alpha) -> float:
        """sup_ε 1 - δ(ε) - e^ε α; concave in e^ε, so a bounded line search finds it."""

        def total(epsilon):
            return self.hockey_stick(epsilon) + np.exp(epsilon) * alpha

        bounds, options = (-self._extent, self._extent), {"xatol": 1e-7}
        found = optimize.minimize_scalar(total, bounds=bounds, method="bounded", options=options)
        # Laws that are almost equal have a kink at ε = 0, which a line search only approaches.
        return max(0.0, 1.0 - min(found.fun, total(0.0)))

    @cached_property
    def _extent(self) -> float:
        """Largest |log(p₀/p₁)| where it matters."""
        matters = np.minimum(self.first, self.second) > 1e-13 * self.first.max()
        ratios = np.log(self.first[matters] / self.second[matters])
        return float(np.abs(ratios).max(initial=0.0)) + 1.0


def positive_part(values, upper) -> float:
    """Sum of the positive part of smooth values, its kinks resolved inside their cells.

    No cell counts for more than `upper` allows there, which bounds the values from above: it keeps
    rounding errors harmless that a large e^ε has blown up.
    """
    axis = _steepest_axis(values)
    values, upper = np.moveaxis(values, axis, -1), np.moveaxis(upper, axis, -1)
    left, right = values, np.roll(values, -1, -1)
    # On a cell f(t) = left + slope·t - bend·t(1-t), t in [0, 1].
    slope, bend = (
        right - left,
        (np.roll(values, 1, -1) - left - right + np.roll(values, -2, -1)) / 4,
    )
    crossing = (left > 0) != (right > 0)
    root = np.where(crossing, left / np.where(crossing, -slope, 1.0), 0.0)
    begin = np.where(left > 0, 0.0, root)
    end = np.where(right > 0, 1.0, root)

    def primitive(t):
        return left * t + slope * t**2 / 2 - bend * (t**2 / 2 - t**3 / 3)

    most = 1.01 * np.maximum(0.0, np.maximum(upper, np.roll(upper, -1, -1)))
    return float(np.sum(np.clip(primitive(end) - primitive(begin), 0.0, most)))


def _steepest_axis(values) -> int:
    """The axis along which the values cross zero most, by the size of their jumps."""
    neighbours = [np.roll(values, -1, axis) for axis in range(values.ndim)]
    jumps = [np.abs(values - n)[(values > 0) != (n > 0)].sum() for n in neighbours]
    return int(np.argmax(jumps))


def upsample(values, factor):
    """Trigonometric interpolation to `factor` times as many points along every axis."""
    for axis in range(values.ndim):
        size = values.shape[axis]
        spectrum = np.fft.rfft(values, axis=axis)
        if size % 2 == 0:
            last = [slice(None)] * values.ndim
            last[axis] = -1
            spectrum[tuple(last)] /= 2
        values = np.fft.irfft(spectrum, n=size * factor, axis=axis) * factor
    return values
