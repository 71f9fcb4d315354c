"""The exact law as a null hypothesis: are two samples N(m, Σ) and N(m + Δ, Σ), as stated?

Where the law is known (linear losses, ridge with a replaced label) the law itself can be tested,
which sees more than any bound: noise, shift or spread that is too large or too small. It assumes
independent seeds in independent arms. Host-side, no JAX.
"""

from typing import NamedTuple

import numpy as np
from scipy import special, stats

from dd_jax import checks
from dd_jax.audit import tails
from dd_jax.errors import InputError
from dd_jax.intervals import check_confidence

# Noncentralities. Beyond the first, SciPy's series for the noncentral χ² give no number, while the
# normal approximation is right to seven digits; beyond the second, float64 loses the noise in the
# shift.
_LARGE = 1e6
_LARGEST = 1e24


class LawTest(NamedTuple):
    """Whether samples refute a stated Gaussian law.

    Attributes:
        refuted: some p-value is below α divided by the number of tests (Bonferroni).
        p_shift: of the distance between the two means, two-sided.
        p_direction: of the difference of the means being Δ itself, upper tail; 1 if only the
            norm of Δ was stated.
        p_variance_present, p_variance_absent: of the spread of each arm, two-sided.
        confidence: 1 - α: a true law is refuted with probability at most α.
        seeds: per arm.
    """

    refuted: bool
    p_shift: float
    p_direction: float
    p_variance_present: float
    p_variance_absent: float
    confidence: float
    seeds: int


def gaussian_law(present, absent, mean_difference, variance, *, confidence: float) -> LawTest:
    """Test that the arms are N(m + Δ, Σ) and N(m, Σ) for some m, with Δ and Σ as stated.

    With S seeds per arm, whitened by Σ and D the difference of the sample means: (S/2)‖D‖² is
    noncentral χ²_d with parameter (S/2)‖Δ‖², (S/2)‖D - Δ‖² is central χ²_d, and (S-1) times the
    trace of either sample covariance is χ²_{d(S-1)}, all exactly.

    Args:
        present, absent: outputs (S, d) or (S,) of independent seeds.
        mean_difference: Δ = E[present] - E[absent], of shape (d,); or, for d > 1 and a variance
            that is a number, its norm alone.
        variance: the common variance of every coordinate, or the common covariance (d, d).
        confidence: 1 - α.
    """
    check_confidence(confidence)
    first, second = tails.tables(present, absent)
    seeds, dim = first.shape
    whiten = _whitener(variance, dim)
    shift, directed = _shift(mean_difference, variance, whiten, dim)
    first, second = whiten(first), whiten(second)
    apart = first.mean(axis=0) - second.mean(axis=0)
    half = seeds / 2
    p_shift = _p_shift(half * apart @ apart, dim, half * shift @ shift)
    p_direction = (
        float(stats.chi2.sf(half * np.sum((apart - shift) ** 2), dim)) if directed else 1.0
    )
    p_present, p_absent = (
        _p_central(np.sum((arm - arm.mean(axis=0)) ** 2), dim * (seeds - 1))
        for arm in (first, second)
    )
    p_values = [p_shift, p_present, p_absent] + ([p_direction] if directed else [])
    # Written as "not all are large" so that a p-value of NaN refutes.
    stands = np.all(np.array(p_values) >= (1 - confidence) / len(p_values))
    refuted = not bool(stands)
    return LawTest(refuted, p_shift, p_direction, p_present, p_absent, confidence, seeds)


def _p_central(value, freedom: int) -> float:
    """Twice the smaller tail of χ²."""
    return _two_sided(stats.chi2.cdf(value, freedom), stats.chi2.sf(value, freedom))


def _p_shift(value, dim: int, noncentrality) -> float:
    """Twice the smaller tail of the noncentral χ²; by a normal variable if the shift is large."""
    if not noncentrality <= _LARGEST:
        raise InputError(
            "the stated shift is too many standard deviations for float64 to hold the noise; "
            "give a law with a smaller mean_difference."
        )
    if noncentrality == 0:
        return _p_central(value, dim)
    if noncentrality > _LARGE:
        score = normal_score(value, dim, noncentrality)
        return _two_sided(special.ndtr(score), special.ndtr(-score))
    law = stats.ncx2(dim, noncentrality)
    return _two_sided(law.cdf(value), law.sf(value))


def _two_sided(below, above) -> float:
    return float(np.minimum(2 * np.minimum(below, above), 1.0))


def normal_score(value, dim: int, noncentrality):
    """The standard normal variable that noncentral χ² is close to after a power h; Sankaran 1963.

    With k = d and λ the noncentrality, (X/(k+λ))^h is nearly normal at
    h = 1 - 2(k+λ)(k+3λ)/(3(k+2λ)²), its skewness gone to first order; the error falls with 1/λ.
    """
    total, twice = dim + noncentrality, dim + 2 * noncentrality
    power = 1 - 2 * (total / twice) * ((dim + 3 * noncentrality) / twice) / 3
    spread = twice / total / total
    skew = (power - 1) * (1 - 3 * power)
    mean = 1 + power * spread * (power - 1 - 0.5 * (2 - power) * skew * spread)
    deviation = power * np.sqrt(2 * spread) * (1 + 0.5 * skew * spread)
    return ((value / total) ** power - mean) / deviation


def _whitener(variance, dim: int):
    """The map x ↦ Σ^{-1/2} x on rows."""
    variance = checks.numbers("variance", variance)
    if variance.ndim == 0:
        scale = np.sqrt(checks.positive("variance", variance))
        return lambda rows: rows / scale
    if variance.shape != (dim, dim):
        raise InputError(
            f"variance has shape {variance.shape}; give a number or a ({dim}, {dim}) covariance."
        )
    try:
        root = np.linalg.cholesky(variance)
    except np.linalg.LinAlgError:
        raise InputError(
            "variance is not a positive definite matrix; give a covariance with eigenvalues > 0."
        ) from None
    return lambda rows: np.linalg.solve(root, rows.T).T


def _shift(mean_difference, variance, whiten, dim: int) -> tuple[np.ndarray, bool]:
    """The whitened Δ, and whether its direction was stated."""
    difference = checks.numbers("mean_difference", mean_difference)
    if difference.shape == (dim,) or (difference.ndim == 0 and dim == 1):
        return whiten(difference.reshape(1, dim))[0], True
    if difference.ndim == 0 and np.ndim(variance) > 0:
        raise InputError(
            "mean_difference is a number and variance a matrix: the law depends on the direction; "
            f"give the vector ({dim},), or a variance that is a number."
        )
    if difference.ndim == 0:
        return whiten(np.eye(1, dim) * difference)[0], False
    raise InputError(
        f"mean_difference has shape {difference.shape}; give ({dim},), or its norm as a number."
    )
