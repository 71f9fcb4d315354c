"""A density in the plane that flows to a Gibbs law with three modes.

Three groups of records pull the model in three directions at 120° under -tanh(y⟨a, θ⟩): whichever
two groups it satisfies, it fails the third. Noise and step size are those of a picture, far from
what a certificate would allow.
"""

from typing import NamedTuple

import numpy as np

from dd_jax.oracles import grid as oracle

L2, NOISE_VARIANCE, STEP_SIZE, REACH = 0.06, 0.02, 1.0, 5.2
_ANGLES = np.pi * (-0.5 + 2 / 3 * np.arange(3))
_DIRECTIONS = np.stack([np.cos(_ANGLES), np.sin(_ANGLES)], axis=1)


class Snapshots(NamedTuple):
    """Densities on one grid.

    Attributes:
        axis: coordinates along either axis.
        laws: densities after each number of steps, (snapshots, size, size).
        gibbs: the Gibbs law, (size, size).
    """

    axis: np.ndarray
    laws: np.ndarray
    gibbs: np.ndarray


def objective(models: np.ndarray) -> np.ndarray:
    """ℒ at every model (m, 2)."""
    return -np.tanh(models @ _DIRECTIONS.T).mean(axis=1) + L2 / 2 * np.sum(models**2, axis=1)


def gradient(models: np.ndarray) -> np.ndarray:
    """∇ℒ at every model (m, 2)."""
    slopes = 1 - np.tanh(models @ _DIRECTIONS.T) ** 2
    return -slopes @ _DIRECTIONS / len(_DIRECTIONS) + L2 * models


def snapshots(steps: tuple[int, ...]) -> Snapshots:
    """The law after each number of steps, in rising order, from N(0, σ²/λ I)."""
    ends = np.full(2, REACH)
    grid = oracle.grid_for(-ends, ends, STEP_SIZE, NOISE_VARIANCE, fineness=0.5)
    law = oracle.gaussian_density(grid, 0.0, NOISE_VARIANCE / L2)
    laws, done = [], 0
    for count in steps:
        phase = oracle.Phase(gradient, count - done)
        law, done = oracle.law_after([phase], STEP_SIZE, NOISE_VARIANCE, law, grid), count
        laws.append(law)
    gibbs = oracle.gibbs_density(grid, objective, NOISE_VARIANCE)
    return Snapshots(grid.axes[0], np.stack([law.values for law in laws]), gibbs.values)


def mass_level(values: np.ndarray, share: float) -> float:
    """The density above which this share of the mass lies."""
    ranked = np.sort(values.ravel())[::-1]
    reached = np.cumsum(ranked) >= share * ranked.sum()
    return float(ranked[np.argmax(reached)])
