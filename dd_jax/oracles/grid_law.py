"""Noisy-GD on a grid: one step of a density, and the law after a list of phases."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from dd_jax.errors import InputError
from dd_jax.oracles._common import check_finite, check_steps
from dd_jax.oracles.grid_density import (
    COARSEST,
    TINY,
    Density,
    Grid,
    check_spacing,
    gaussian_density,
    noise_deviation,
    with_all_mass,
)

# Largest spacing in units of the scale on which a step's integrand varies.
_COARSEST_STRETCHED = 0.9


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
        phases: one per database, in the order in which they are run.
        step_size: η.
        noise_variance: σ²; a step adds N(0, 2ησ² I).
        start: the initial law as a `Density`, or a fixed model (a number; a pair for d = 2).
        grid: where the densities live; `grid_for` makes one that is fine enough.
    """
    deviation = noise_deviation(step_size, noise_variance)
    check_spacing(grid, np.full(grid.dim, deviation), "one step's noise")
    phases = [Phase(p.gradient, _whole_steps(p.steps)) for p in phases]
    density = start
    if not isinstance(start, Density):
        density, phases = _first_step(phases, step_size, deviation, start, grid)
    elif start.grid != grid:
        raise InputError("start lives on another grid; make it on the grid of the run.")
    for phase in phases:
        if phase.steps:
            density = _run_phase(phase, step_size, deviation, density)
    return density


def _run_phase(phase, step_size, deviation, density) -> Density:
    """All steps of one phase from a density."""
    grid = density.grid
    targets = _step_target(phase, step_size, grid.models)
    _check_stretch(grid, targets, deviation)
    run = _run_line if grid.dim == 1 else _run_plane
    return with_all_mass(grid, run(grid, density.values, targets, phase.steps, deviation))


def _run_line(grid, values, targets, steps, deviation):
    """Steps on the line: products with the kernel matrix, or its power by repeated squaring."""
    kernel = _kernel(grid.axes[0], targets, deviation) * grid.cell
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


def _first_step(phases, step_size, deviation, start, grid):
    """The Gaussian law after one step from a fixed model, and the phases that are left."""
    start = check_finite("start", start)
    if start.shape != grid.models.shape[1:]:
        raise InputError(
            f"start of shape {start.shape} is not a model of the grid; "
            f"give shape {grid.models.shape[1:]}, or a Density."
        )
    phases = [phase for phase in phases if phase.steps]
    if not phases:
        raise InputError("no step is taken from a fixed start, so there is no density; take one.")
    target = _step_target(phases[0], step_size, start[None])[0]
    density = gaussian_density(grid, target, deviation**2)
    return density, [phases[0]._replace(steps=phases[0].steps - 1), *phases[1:]]


def _step_target(phase, step_size, models):
    """θ - η∇ℒ(θ) for every model."""
    gradient = check_finite("gradient", phase.gradient(models))
    if gradient.shape != models.shape:
        raise InputError(
            f"gradient returned shape {gradient.shape} for models of shape {models.shape}; "
            f"return one gradient for each model."
        )
    return models - step_size * gradient


def _kernel(axis, targets, deviation):
    """N(y; u, deviation²) for all targets u (rows) and points y (columns)."""
    kernel = np.exp(-0.5 * ((axis[None, :] - targets[:, None]) / deviation) ** 2)
    kernel[kernel < TINY] = 0.0  # subnormal numbers would slow every product
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
    scale = deviation * (_COARSEST_STRETCHED / COARSEST) / np.sqrt(1 + np.square(stretch))
    check_spacing(grid, scale, "a step this large")


def _whole_steps(steps) -> int:
    return int(check_steps("steps", steps, infinite_allowed=False))
