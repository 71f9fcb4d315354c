"""Exact Gaussian laws by plain recursion, and a test of samples against them."""

from typing import NamedTuple

import numpy as np
from scipy import stats


class Law(NamedTuple):
    mean: np.ndarray
    covariance: np.ndarray


def quadratic_law(phases, step_size, noise_variance, init_variance, dim) -> Law:
    """m ← (I - ηH)m + ηg, Σ ← (I - ηH)Σ(I - ηH) + 2ησ²I over phases (H, g, steps)."""
    mean, covariance = np.zeros(dim), init_variance * np.eye(dim)
    for hessian, linear_term, steps in phases:
        contraction = np.eye(dim) - step_size * hessian
        for _ in range(steps):
            mean = contraction @ mean + step_size * linear_term
            covariance = contraction @ covariance @ contraction.T
            covariance = covariance + 2 * step_size * noise_variance * np.eye(dim)
    return Law(mean, covariance)


def p_value(samples: np.ndarray, law: Law) -> float:
    """Two-sided test that samples (seeds, d) follow N(mean, covariance): mean, scale and shape.

    After whitening, S‖z̄‖² is χ²_d, Σ‖z - z̄‖² is χ²_{(S-1)d}, and the squared off-diagonal entries
    of √S·corr are nearly χ²; the smallest of the three p-values, Bonferroni corrected.
    """
    seeds, dim = samples.shape
    root = np.linalg.cholesky(law.covariance)
    white = np.linalg.solve(root, (samples.astype(np.float64) - law.mean).T).T
    mean = white.mean(axis=0)
    centred = white - mean
    shift = stats.chi2.sf(seeds * np.sum(mean**2), dim)
    scale = np.sum(centred**2)
    freedom = (seeds - 1) * dim
    spread = 2 * min(stats.chi2.cdf(scale, freedom), stats.chi2.sf(scale, freedom))
    off = np.triu(centred.T @ centred / np.sqrt(seeds), 1)
    shape = stats.chi2.sf(np.sum(off**2), dim * (dim - 1) / 2) if dim > 1 else 1.0
    return min(1.0, 3 * min(shift, spread, shape))
