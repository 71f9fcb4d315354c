"""Exact law of Noisy-GD for any loss in one or two dimensions: densities on a grid.

One step (`alg:noisygd`) sends the density p to

    p'(y) = ∫ p(θ) N(y; θ - η∇ℒ(θ), 2ησ² I) dθ,

an integral that the trapezoid rule gets right to rounding, for a smooth gradient, once the spacing
is at most half the noise's standard deviation. A gradient with kinks (Huber's, clipping) leaves an
error of second order in the spacing: refine until nothing moves. All terms are positive, so tails
keep their relative accuracy. A run is a list of phases, one per database.

`grid_density` has the grids and their densities, `grid_law` the steps, `grid_divergences` what two
laws differ by.
"""

from dd_jax.oracles.grid_density import (
    Density,
    Grid,
    gaussian_density,
    gibbs_density,
    grid_for,
    make_grid,
)
from dd_jax.oracles.grid_divergences import (
    expectation,
    hockey_stick,
    kl,
    renyi,
    total_variation,
    trade_off,
)
from dd_jax.oracles.grid_law import (
    Phase,
    law_after,
)

__all__ = [
    "Density",
    "Grid",
    "Phase",
    "expectation",
    "gaussian_density",
    "gibbs_density",
    "grid_for",
    "hockey_stick",
    "kl",
    "law_after",
    "make_grid",
    "renyi",
    "total_variation",
    "trade_off",
]
