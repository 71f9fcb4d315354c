"""Integrals of densities on one grid: expectations, divergences and the best test's errors."""

import numpy as np
from scipy import special

from dd_jax.errors import InputError
from dd_jax.oracles._common import check_finite, check_order
from dd_jax.oracles._kinks import FinePair
from dd_jax.oracles.grid_density import MASS_TOLERANCE, TINY, Density, box, edge_of, wider_box

_NEARLY_TINY = 1e-270


def expectation(function, density: Density) -> float:
    """E f(θ) under the density, for f given like a phase's gradient, one number per model."""
    values = check_finite("function", function(density.grid.models))
    return float(np.sum(values * density.normalised.ravel()) * density.grid.cell)


def renyi(order, law0: Density, law1: Density) -> float:
    """Rényi divergence R_q(law0 ‖ law1) = log ∫ p₀^q p₁^{1-q} / (q - 1) (`dfn:renyi`)."""
    order = float(check_order(order))
    first, second, inside = _common_support(law0, law1)
    log_ratio = np.log(first / second)
    exponent = order * np.log(first) + (1 - order) * np.log(second)
    _check_tail(law0.grid, inside, exponent, np.minimum(first, second))
    total = special.logsumexp(exponent) + np.log(law0.grid.cell)
    if total > 1e-3:
        return float(total / (order - 1))
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
    near = np.abs(log_ratio) < 0.1
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
    """δ(ε) = ∫ (p₀ - e^ε p₁)₊: law0 and law1 are (ε, δ)-close in this direction and no closer."""
    epsilon, pair = check_finite("epsilon", epsilon), _fine_pair(law0, law1)
    deltas = [pair.hockey_stick(value) for value in epsilon.ravel()]
    return np.reshape(deltas, epsilon.shape)[()]


def trade_off(type_one, null: Density, alternative: Density):
    """Least type II error of any test of null against alternative with this type I error.

    By duality T(α) = sup_ε 1 - δ(ε) - e^ε α with δ the hockey-stick divergence of the alternative
    from the null. Under μ-GDP T(α) ≥ Φ(Φ⁻¹(1 - α) - μ).
    """
    type_one, pair = check_finite("type_one", type_one), _fine_pair(alternative, null)
    if not np.all((type_one >= 0) & (type_one <= 1)):
        raise InputError(f"type_one = {type_one} is not in [0, 1]; give probabilities.")
    errors = [pair.least_type_two(alpha) for alpha in type_one.ravel()]
    return np.reshape(errors, type_one.shape)[()]


def _fine_pair(law0, law1) -> FinePair:
    _check_same_grid(law0, law1)
    return FinePair(law0.normalised, law1.normalised, law0.grid.cell)


def _common_support(law0, law1):
    """Both densities, flat, where neither has lost digits, and the mask of those points."""
    _check_same_grid(law0, law1)
    first, second = law0.normalised, law1.normalised
    inside = (first > TINY) & (second > TINY)
    if not inside.any():
        raise InputError("the two laws do not overlap in float64; compare laws that are closer.")
    return first[inside], second[inside], inside


def _check_tail(grid, inside, exponent, smaller):
    """Refuse an integral whose integrand has not died out where the grid or float64 ends."""
    limit = edge_of(grid)[inside] | (smaller < _NEARLY_TINY)
    if np.any(limit) and exponent[limit].max() > exponent.max() + np.log(MASS_TOLERANCE):
        raise InputError(
            f"the divergence's integrand has not died out at the edge of the grid {box(grid)}; "
            f"widen it, for example to {wider_box(grid)}, or take a smaller order."
        )


def _check_same_grid(law0, law1):
    if law0.grid != law1.grid:
        raise InputError("the two laws live on different grids; propagate both on one grid.")
