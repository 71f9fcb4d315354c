"""Exact law of Noisy-GD for any loss in one or two dimensions: densities on a grid.

One step (`alg:noisygd`) sends the density p to

    p'(y) = ∫ p(θ) N(y; θ - η∇ℒ(θ), 2ησ² I) dθ,

an integral that the trapezoid rule gives to rounding accuracy, for a smooth gradient, once the
spacing is at most half the noise's standard deviation. A gradient with kinks (Huber's, clipping)
leaves an error of second order in the spacing: refine until the result no longer changes. All terms
are positive, so tails keep their relative accuracy. A run is a list of phases, one per database.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy import optimize, special

from dd_jax import checks
from dd_jax.errors import InputError
from dd_jax.oracles.phases import per_phase

_MASS_TOLERANCE = 1e-9
_COARSEST = 0.5  # largest spacing, in standard deviations of the noise
_COARSEST_STRETCHED = 0.9  # the same in units of the scale on which a step's integrand varies
_TINY, _NEARLY_TINY = 1e-290, 1e-270  # densities below the first have lost digits
_UPSAMPLING = {1: 32, 2: 4}


# --- grids and densities --------------------------------------------------------------------------


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
        values = checks.finite("density", self.values)
        if values.shape != self.grid.size:
            raise InputError(
                f"density of shape {values.shape} is not on its grid; give {self.grid.size}."
            )
        if values.min() < 0 or not values.any():
            raise InputError("density is negative somewhere or zero everywhere; give a density.")

    @property
    def mass(self) -> float:
        """Integral over the grid: one, minus what has left it."""
        return float(self.values.sum()) * self.grid.cell

    @property
    def normalised(self) -> np.ndarray:
        """The values scaled to mass one."""
        return self.values / self.mass


def make_grid(low, high, size) -> Grid:
    """A grid from its ends and its number of points: three numbers, or three pairs for d = 2."""
    low, high = (np.atleast_1d(checks.finite(*end)) for end in (("low", low), ("high", high)))
    size = np.atleast_1d(checks.steps("size", size, least=3, endless=False)).astype(int)
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
    deviation = _noise_deviation(step_size, noise_variance)
    fineness = checks.positive("fineness", fineness)
    extent = np.subtract(checks.finite("high", high), checks.finite("low", low))
    if not np.all(extent > 0):
        raise InputError(f"low = {low} is not below high = {high}; give low < high on every axis.")
    return make_grid(low, high, np.maximum(3, np.ceil(extent / (fineness * deviation)) + 1))


def gaussian_density(grid: Grid, mean, covariance) -> Density:
    """N(mean, covariance) on the grid; a scalar covariance v stands for vI."""
    mean = np.broadcast_to(checks.finite("mean", mean), (grid.dim,))
    covariance = checks.finite("covariance", covariance)
    if covariance.ndim == 0:
        covariance = covariance * np.eye(grid.dim)
    if covariance.shape != (grid.dim, grid.dim) or np.linalg.eigvalsh(covariance)[0] <= 0:
        raise InputError(
            f"covariance = {covariance.tolist()} is not positive definite of shape "
            f"({grid.dim}, {grid.dim}); give one that is, or a fixed point as `start`."
        )
    _check_spacing(grid, np.sqrt(1 / np.diag(np.linalg.inv(covariance))), "this Gaussian")
    residual = grid.models.reshape(-1, grid.dim) - mean
    exponent = -0.5 * np.sum(residual @ np.linalg.inv(covariance) * residual, axis=1)
    scale = np.sqrt(np.linalg.det(2 * np.pi * covariance))
    return _with_all_mass(grid, np.exp(exponent).reshape(grid.size) / scale)


def gibbs_density(grid: Grid, objective, noise_variance) -> Density:
    """The Gibbs law, density ∝ exp(-ℒ(θ)/σ²) (`eqn:gibbs`), for ℒ given like a phase's gradient."""
    noise_variance = checks.positive("noise_variance", noise_variance)
    values = checks.finite("objective", objective(grid.models))
    if values.shape != grid.models.shape[:1]:
        raise InputError(
            f"objective returned shape {values.shape} for {grid.models.shape[0]} models; "
            f"return one number for each model."
        )
    values = np.exp((values.min() - values) / noise_variance).reshape(grid.size)
    edge = values[_edge_of(grid)].sum() / values.sum()
    if edge > _MASS_TOLERANCE:
        raise InputError(
            f"a share {edge:.2g} of the Gibbs law sits on the edge of the grid "
            f"{_box(grid)}; widen it, for example to {_wider_box(grid)}."
        )
    return Density(grid, values / (values.sum() * grid.cell))


def _with_all_mass(grid, values) -> Density:
    """The density, refused if more than 1e-9 of its mass has left the grid."""
    lost = abs(1 - float(values.sum()) * grid.cell)
    if not lost <= _MASS_TOLERANCE:
        raise InputError(
            f"a mass of {lost:.2g} left the grid {_box(grid)}; "
            f"widen it, for example to {_wider_box(grid)}."
        )
    return Density(grid, values)


def _check_spacing(grid, deviations, what):
    """Refuse a grid too coarse for the trapezoid rule to be exact."""
    spacing, limits = np.asarray(grid.spacing), _COARSEST * np.asarray(deviations)
    if np.all(spacing <= limits * (1 + 1e-12)):
        return
    cells = np.subtract(grid.high, grid.low) / np.minimum(limits, spacing)
    enough = tuple((np.ceil(cells - 1e-9).astype(int) + 1).tolist())
    raise InputError(
        f"spacing = {spacing.max():.3g} is too coarse for {what}, which needs "
        f"{limits.min():.3g}; take size = {enough[0] if grid.dim == 1 else enough} or more."
    )


def _noise_deviation(step_size, noise_variance) -> float:
    """√(2ησ²), the standard deviation of one step's noise."""
    step_size = checks.positive("step_size", step_size)
    return float(np.sqrt(2 * step_size * checks.positive("noise_variance", noise_variance)))


def _edge_of(grid):
    """Mask of the outermost points."""
    edge = np.ones(grid.size, dtype=bool)
    edge[(slice(1, -1),) * grid.dim] = False
    return edge


def _box(grid) -> str:
    """The box that the grid covers."""
    return " × ".join(f"[{lo:g}, {hi:g}]" for lo, hi in zip(grid.low, grid.high, strict=True))


def _wider_box(grid) -> str:
    """The box grown by half its size on either side."""
    grown = [
        ((3 * lo - hi) / 2, (3 * hi - lo) / 2) for lo, hi in zip(grid.low, grid.high, strict=True)
    ]
    return " × ".join(f"[{lo:g}, {hi:g}]" for lo, hi in grown)


# --- steps ----------------------------------------------------------------------------------------


class Phase(NamedTuple):
    """Steps taken on one database.

    Attributes:
        gradient: θ ↦ ∇ℒ(θ), the mean gradient with the regulariser's; it maps an array of models,
            shape (m,) in one dimension and (m, 2) in two, to an array of the same shape.
        steps: K, a whole number.
    """

    gradient: Callable[[np.ndarray], np.ndarray]
    steps: int


def law_after(phases: Sequence[Phase], step_size, noise_variance, start, grid: Grid) -> Density:
    """Law of the model released after the last phase.

    Args:
        phases: one per database (or step on a batch, `phases.in_turn`), in the order in which they
            are run.
        step_size: η, one for all phases or one for each.
        noise_variance: σ², likewise; a step adds N(0, 2ησ² I).
        start: the initial law as a `Density`, or a fixed model (a number; a pair for d = 2).
        grid: where the densities live; `grid_for` makes one that is fine enough.
    """
    steps = [
        _Steps(Phase(phase.gradient, checks.whole("steps", phase.steps)), *numbers)
        for phase, *numbers in zip(
            phases,
            per_phase("step_size", step_size, len(phases)),
            per_phase("noise_variance", noise_variance, len(phases)),
            strict=True,
        )
    ]
    for part in steps:
        _check_spacing(grid, np.full(grid.dim, part.deviation), "one step's noise")
    density = start
    if not isinstance(start, Density):
        density, steps = _first_step(steps, start, grid)
    elif start.grid != grid:
        raise InputError("start lives on another grid; make it on the grid of the run.")
    for part in steps:
        if part.phase.steps:
            density = _run_phase(part, density)
    return density


class _Steps(NamedTuple):
    """A phase with its η and σ²."""

    phase: Phase
    step_size: float
    noise_variance: float

    @property
    def deviation(self) -> float:
        return _noise_deviation(self.step_size, self.noise_variance)

    def target(self, models):
        """θ - η∇ℒ(θ) for every model."""
        gradient = checks.finite("gradient", self.phase.gradient(models))
        if gradient.shape != models.shape:
            raise InputError(
                f"gradient returned shape {gradient.shape} for models of shape {models.shape}; "
                f"return one gradient for each model."
            )
        return models - self.step_size * gradient


def _run_phase(part, density) -> Density:
    """All steps of one phase from a density."""
    grid, deviation = density.grid, part.deviation
    targets = part.target(grid.models)
    _check_stretch(grid, targets, deviation)
    run = _run_line if grid.dim == 1 else _run_plane
    return _with_all_mass(grid, run(grid, density.values, targets, part.phase.steps, deviation))


def _run_line(grid, values, targets, steps, deviation):
    """Steps on the line: products with the kernel matrix, or its power by repeated squaring."""
    kernel = _kernel(grid.axes[0], targets, deviation) * grid.cell
    # A matrix product costs `size` vector products but runs about 8 times as fast per number.
    if steps * 8 >= grid.size[0] * np.log2(steps + 1):
        return values @ np.linalg.matrix_power(kernel, steps)
    for _ in range(steps):
        values = values @ kernel
    return values


def _run_plane(grid, values, targets, steps, deviation):
    """Steps in the plane: p'(y₁, y₂) = Σ_θ p(θ) k(y₁ - u(θ)) k(y₂ - v(θ)), one matrix product."""
    first, second = (_kernel(axis, targets[:, i], deviation) for i, axis in enumerate(grid.axes))
    second *= grid.cell
    for _ in range(steps):
        values = (first * values.reshape(-1, 1)).T @ second
    return values


def _first_step(steps, start, grid):
    """The Gaussian law after one step from a fixed model, and the steps that are left."""
    start = checks.finite("start", start)
    if start.shape != grid.models.shape[1:]:
        raise InputError(
            f"start of shape {start.shape} is not a model of the grid; "
            f"give shape {grid.models.shape[1:]}, or a Density."
        )
    steps = [part for part in steps if part.phase.steps]
    if not steps:
        raise InputError("no step is taken from a fixed start, so there is no density; take one.")
    first, *later = steps
    density = gaussian_density(grid, first.target(start[None])[0], first.deviation**2)
    rest = first.phase._replace(steps=first.phase.steps - 1)
    return density, [first._replace(phase=rest), *later]


def _kernel(axis, targets, deviation):
    """N(y; u, deviation²) for all targets u (rows) and points y (columns)."""
    kernel = np.exp(-0.5 * ((axis[None, :] - targets[:, None]) / deviation) ** 2)
    kernel[kernel < _TINY] = 0.0  # subnormal numbers would slow every product
    return kernel / (deviation * np.sqrt(2 * np.pi))


def _check_stretch(grid, targets, deviation):
    """Refuse a grid on which θ ↦ N(y; u(θ), ς² I) is not resolved, because ‖∂u/∂θ‖ is large.

    The integrand varies on the scale ς / √(1 + ‖∂u/∂θ_j‖²) along axis j. Models whose step leaves
    the grid are left out: what mass they have is counted as lost.
    """
    targets = targets.reshape(*grid.size, grid.dim)
    inside = np.all((targets >= grid.low) & (targets <= grid.high), axis=-1)
    stretch = [
        np.linalg.norm(np.gradient(targets, spacing, axis=j), axis=-1)[inside].max(initial=0.0)
        for j, spacing in enumerate(grid.spacing)
    ]
    scale = deviation * (_COARSEST_STRETCHED / _COARSEST) / np.sqrt(1 + np.square(stretch))
    _check_spacing(grid, scale, "a step this large")


# --- what two laws differ by ----------------------------------------------------------------------


def expectation(function, density: Density) -> float:
    """E f(θ) under the density, for f given like a phase's gradient, one number per model."""
    values = checks.finite("function", function(density.grid.models))
    return float(np.sum(values * density.normalised.ravel()) * density.grid.cell)


def renyi(order, law0: Density, law1: Density) -> float:
    """Rényi divergence R_q(law0 ‖ law1) = log ∫ p₀^q p₁^{1-q} / (q - 1) (`dfn:renyi`)."""
    order = float(checks.order(order))
    first, second, inside = _common_support(law0, law1)
    log_ratio = np.log(first / second)
    exponent = order * np.log(first) + (1 - order) * np.log(second)
    _check_tail(law0.grid, inside, exponent, np.minimum(first, second))
    total = special.logsumexp(exponent) + np.log(law0.grid.cell)
    if total > 1e-3:
        return float(total / (order - 1))
    # Of nearly equal laws ∫ p^q r^(1-q) is 1 plus an excess that rounding would drown. Both have
    # mass one, so the excess is ∫ [p^q r^(1-q) - r - q(p - r)], whose terms are all ≥ 0; where the
    # ratio is near one expm1 keeps their digits.
    near = np.abs(order * log_ratio) < 0.1
    small = np.where(near, log_ratio, 0.0)
    excess = np.where(
        near,
        second * (np.expm1(order * small) - order * np.expm1(small)),
        np.exp(exponent) - second - order * (first - second),
    )
    return float(np.log1p(max(0.0, excess.sum() * law0.grid.cell)) / (order - 1))


def kl(law0: Density, law1: Density) -> float:
    """KL divergence ∫ p₀ log(p₀/p₁), the limit of R_q as q → 1."""
    first, second, inside = _common_support(law0, law1)
    log_ratio = np.log(first / second)
    with np.errstate(divide="ignore"):
        _check_tail(law0.grid, inside, np.log(first * np.abs(log_ratio)), np.minimum(first, second))
    near = np.abs(log_ratio) < 0.1  # as in `renyi`: terms ≥ 0 that keep their digits
    small = np.where(near, log_ratio, 0.0)
    terms = np.where(
        near,
        second * (small * np.exp(small) - np.expm1(small)),
        first * log_ratio - (first - second),
    )
    return float(max(0.0, terms.sum() * law0.grid.cell))


def total_variation(law0: Density, law1: Density) -> float:
    """½ ∫ |p₀ - p₁|, the best test's advantage."""
    return float(hockey_stick(0.0, law0, law1))


def hockey_stick(epsilon, law0: Density, law1: Density):
    """δ(ε) = ∫ (p₀ - e^ε p₁)₊, the least δ with which law0 is (ε, δ)-close to law1, one way."""
    epsilon, pair = checks.finite("epsilon", epsilon), _fine_pair(law0, law1)
    deltas = [pair.hockey_stick(value) for value in epsilon.ravel()]
    return np.reshape(deltas, epsilon.shape)[()]


def trade_off(type_one, null: Density, alternative: Density):
    """Least type II error of any test of null against alternative with this type I error.

    By duality T(α) = sup_ε 1 - δ(ε) - e^ε α with δ the hockey-stick divergence of the alternative
    from the null. Under μ-GDP T(α) ≥ Φ(Φ⁻¹(1 - α) - μ).
    """
    type_one, pair = checks.probability("type_one", type_one), _fine_pair(alternative, null)
    errors = [pair.least_type_two(alpha) for alpha in type_one.ravel()]
    return np.reshape(errors, type_one.shape)[()]


def _fine_pair(law0, law1) -> "_FinePair":
    _check_same_grid(law0, law1)
    return _FinePair(law0.normalised, law1.normalised, law0.grid.cell)


def _common_support(law0, law1):
    """Both densities, flat, where neither has lost digits, and the mask of those points."""
    _check_same_grid(law0, law1)
    first, second = law0.normalised, law1.normalised
    inside = (first > _TINY) & (second > _TINY)
    if not inside.any():
        raise InputError("the two laws do not overlap in float64; compare laws that are closer.")
    return first[inside], second[inside], inside


def _check_tail(grid, inside, exponent, smaller):
    """Refuse an integral whose integrand has not died out where the grid or float64 ends."""
    limit = _edge_of(grid)[inside] | (smaller < _NEARLY_TINY)
    if np.any(limit) and exponent[limit].max() > exponent.max() + np.log(_MASS_TOLERANCE):
        raise InputError(
            f"the divergence's integrand has not died out at the edge of the grid {_box(grid)}; "
            f"widen it, for example to {_wider_box(grid)}, or take a smaller order."
        )


def _check_same_grid(law0, law1):
    if law0.grid != law1.grid:
        raise InputError("the two laws live on different grids; propagate both on one grid.")


# --- integrals of a positive part -----------------------------------------------------------------
#
# The trapezoid rule is only of second order at a kink. Densities here are resolved by their grid,
# so they can be interpolated to a finer one, and the kink is then located inside its cell.


class _FinePair:
    """Two densities p₀ and p₁ on one uniform grid, interpolated to a finer one."""

    def __init__(self, first, second, cell):
        factor = _UPSAMPLING[first.ndim]
        self.first, self.second = (_upsample(values, factor) for values in (first, second))
        self.cell = cell / factor**first.ndim

    def hockey_stick(self, epsilon) -> float:
        """∫ (p₀ - e^ε p₁)₊."""
        difference = self.first - np.exp(min(epsilon, 600.0)) * self.second
        return min(1.0, _positive_part(difference, self.first) * self.cell)

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


def _positive_part(values, upper) -> float:
    """Sum of the positive part of smooth values, its kinks resolved inside their cells.

    No cell counts for more than `upper`, which bounds the values from above: rounding errors that a
    large e^ε has magnified then do no harm.
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


def _upsample(values, factor):
    """Trigonometric interpolation to `factor` times as many points along every axis."""
    for axis in range(values.ndim):
        size = values.shape[axis]
        spectrum = np.fft.rfft(values, axis=axis)
        if size % 2 == 0:  # the highest frequency stands for itself and for its negative
            last = [slice(None)] * values.ndim
            last[axis] = -1
            spectrum[tuple(last)] /= 2
        values = np.fft.irfft(spectrum, n=size * factor, axis=axis) * factor
    return values
