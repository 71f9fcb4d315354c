"""Grids in one or two dimensions, and densities on them."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dd_jax.errors import InputError
from dd_jax.oracles._common import check_finite, check_positive, check_steps

MASS_TOLERANCE = 1e-9
COARSEST = 0.5  # largest spacing, in standard deviations of the noise
TINY = 1e-290  # densities below this have lost digits


@dataclass(frozen=True)
class Grid:
    """A uniform grid on a box; every field has one entry per dimension (one or two).

    Attributes:
        low: lower ends of the box.
        high: upper ends.
        size: numbers of points.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    size: tuple[int, ...]

    @property
    def dim(self) -> int:
        """d, 1 or 2."""
        return len(self.size)

    @property
    def spacing(self) -> tuple[float, ...]:
        """Distance of neighbouring points along every axis."""
        return tuple(
            (high - low) / (size - 1)
            for low, high, size in zip(self.low, self.high, self.size, strict=True)
        )

    @property
    def cell(self) -> float:
        """Volume that one point stands for."""
        return float(np.prod(self.spacing))

    @cached_property
    def axes(self) -> tuple[np.ndarray, ...]:
        """Coordinates along every axis."""
        return tuple(
            np.linspace(low, high, size)
            for low, high, size in zip(self.low, self.high, self.size, strict=True)
        )

    @cached_property
    def models(self) -> np.ndarray:
        """All points: shape (m,) in one dimension, (m, 2) in two, in C order."""
        if self.dim == 1:
            return self.axes[0]
        return np.stack(np.meshgrid(*self.axes, indexing="ij"), axis=-1).reshape(-1, 2)


@dataclass(frozen=True)
class Density:
    """Values of a probability density at the points of a grid, in the grid's shape."""

    grid: Grid
    values: np.ndarray

    def __post_init__(self):
        values = check_finite("density", self.values)
        if values.shape != self.grid.size:
            raise InputError(
                f"density of shape {values.shape} is not on its grid; give {self.grid.size}."
            )
        if values.min() < 0 or not values.any():
            raise InputError("density is negative somewhere or zero everywhere; give a density.")

    @property
    def mass(self) -> float:
        """Integral over the grid; one but for what has left it."""
        return float(self.values.sum()) * self.grid.cell

    @property
    def normalised(self) -> np.ndarray:
        """The values scaled to mass one."""
        return self.values / self.mass


def make_grid(low, high, size) -> Grid:
    """A grid from its ends and its number of points: three numbers, or three pairs for d = 2."""
    low, high = (np.atleast_1d(check_finite(*end)) for end in (("low", low), ("high", high)))
    size = np.atleast_1d(check_steps("size", size, least=3, infinite_allowed=False)).astype(int)
    if not (low.ndim == 1 and low.shape == high.shape == size.shape and low.size in (1, 2)):
        raise InputError(
            f"low, high and size have shapes {low.shape}, {high.shape} and {size.shape}; "
            f"give three numbers, or three pairs."
        )
    if not np.all(low < high):
        raise InputError(f"low = {low} is not below high = {high}; give low < high on every axis.")
    return Grid(tuple(low.tolist()), tuple(high.tolist()), tuple(size.tolist()))


def grid_for(low, high, step_size, noise_variance, fineness=0.4) -> Grid:
    """A grid on the box with a spacing of `fineness` standard deviations of one step's noise."""
    deviation = noise_deviation(step_size, noise_variance)
    fineness = check_positive("fineness", fineness)
    extent = np.subtract(check_finite("high", high), check_finite("low", low))
    if not np.all(extent > 0):
        raise InputError(f"low = {low} is not below high = {high}; give low < high on every axis.")
    return make_grid(low, high, np.maximum(3, np.ceil(extent / (fineness * deviation)) + 1))


def gaussian_density(grid: Grid, mean, covariance) -> Density:
    """N(mean, covariance) on the grid; a scalar covariance v stands for vI."""
    mean = np.broadcast_to(check_finite("mean", mean), (grid.dim,))
    covariance = check_finite("covariance", covariance)
    if covariance.ndim == 0:
        covariance = covariance * np.eye(grid.dim)
    if covariance.shape != (grid.dim, grid.dim) or np.linalg.eigvalsh(covariance)[0] <= 0:
        raise InputError(
            f"covariance = {covariance.tolist()} is not positive definite of shape "
            f"({grid.dim}, {grid.dim}); give one that is, or a fixed point as `start`."
        )
    check_spacing(grid, np.sqrt(1 / np.diag(np.linalg.inv(covariance))), "this Gaussian")
    residual = grid.models.reshape(-1, grid.dim) - mean
    exponent = -0.5 * np.sum(residual @ np.linalg.inv(covariance) * residual, axis=1)
    scale = np.sqrt(np.linalg.det(2 * np.pi * covariance))
    return with_all_mass(grid, np.exp(exponent).reshape(grid.size) / scale)


def gibbs_density(grid: Grid, objective, noise_variance) -> Density:
    """The Gibbs law, density ∝ exp(-ℒ(θ)/σ²) (`eqn:gibbs`), for ℒ given like a phase's gradient."""
    noise_variance = check_positive("noise_variance", noise_variance)
    values = check_finite("objective", objective(grid.models))
    if values.shape != grid.models.shape[:1]:
        raise InputError(
            f"objective returned shape {values.shape} for {grid.models.shape[0]} models; "
            f"return one number for each model."
        )
    values = np.exp((values.min() - values) / noise_variance).reshape(grid.size)
    edge = values[edge_of(grid)].sum() / values.sum()
    if edge > MASS_TOLERANCE:
        raise InputError(
            f"a share {edge:.2g} of the Gibbs law sits on the edge of the grid "
            f"{box(grid)}; widen it, for example to {wider_box(grid)}."
        )
    return Density(grid, values / (values.sum() * grid.cell))


def with_all_mass(grid, values) -> Density:
    """The density, refused if more than 1e-9 of its mass has left the grid."""
    lost = abs(1 - float(values.sum()) * grid.cell)
    if not lost <= MASS_TOLERANCE:
        raise InputError(
            f"a mass of {lost:.2g} left the grid {box(grid)}; "
            f"widen it, for example to {wider_box(grid)}."
        )
    return Density(grid, values)


def check_spacing(grid, deviations, what):
    """Refuse a grid too coarse for the trapezoid rule to be exact."""
    spacing, limits = np.asarray(grid.spacing), COARSEST * np.asarray(deviations)
    if np.all(spacing <= limits * (1 + 1e-12)):
        return
    cells = np.subtract(grid.high, grid.low) / np.minimum(limits, spacing)
    enough = tuple((np.ceil(cells - 1e-9).astype(int) + 1).tolist())
    raise InputError(
        f"spacing = {spacing.max():.3g} is too coarse for {what}, which needs "
        f"{limits.min():.3g}; take size = {enough[0] if grid.dim == 1 else enough} or more."
    )


def noise_deviation(step_size, noise_variance) -> float:
    """√(2ησ²), the standard deviation of one step's noise."""
    step_size = check_positive("step_size", step_size)
    return float(np.sqrt(2 * step_size * check_positive("noise_variance", noise_variance)))


def edge_of(grid):
    """Mask of the outermost points."""
    edge = np.ones(grid.size, dtype=bool)
    edge[(slice(1, -1),) * grid.dim] = False
    return edge


def box(grid) -> str:
    """The box that the grid covers."""
    return " × ".join(f"[{lo:g}, {hi:g}]" for lo, hi in zip(grid.low, grid.high, strict=True))


def wider_box(grid) -> str:
    """The box grown by half its size on either side."""
    grown = [
        ((3 * lo - hi) / 2, (3 * hi - lo) / 2) for lo, hi in zip(grid.low, grid.high, strict=True)
    ]
    return " × ".join(f"[{lo:g}, {hi:g}]" for lo, hi in grown)
