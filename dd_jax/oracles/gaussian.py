"""Exact law of Noisy-GD for quadratic losses, through learning and any stream of edits.

While the database is fixed, ∇ℒ(θ) = Hθ - g and the law of θ stays Gaussian (`alg:noisygd`):

    m ← (I - ηH) m + ηg,    Σ ← (I - ηH) Σ (I - ηH)ᵀ + 2ησ² I.

A run is a list of phases, one for learning and one for each edit; the model is released after each.
The K steps of a phase are taken at once in the eigenbasis of H, so their number costs nothing. With
batches a phase is one step on one batch (`phases.in_turn`), and η and σ² may differ between phases.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from scipy import linalg

from dd_jax import checks
from dd_jax.errors import InputError
from dd_jax.guarantees import renyi as guarantees
from dd_jax.oracles.linear import one_minus_power, power
from dd_jax.oracles.phases import per_phase


class Phase(NamedTuple):
    """Steps taken on one database whose objective is ℒ(θ) = ½θᵀHθ - gᵀθ + constant.

    Attributes:
        hessian: H, a symmetric (d, d) matrix, the regulariser included.
        linear_term: g, of shape (d,).
        steps: K, a whole number or `math.inf` for the stationary law.
    """

    hessian: np.ndarray
    linear_term: np.ndarray
    steps: float


class GaussianLaw(NamedTuple):
    """N(mean, covariance)."""

    mean: np.ndarray
    covariance: np.ndarray


class _Transition(NamedTuple):
    """θ ↦ matrix θ + offset + N(0, covariance): all steps of one phase."""

    matrix: np.ndarray
    offset: np.ndarray
    covariance: np.ndarray


def ridge_phase(features, labels, l2, steps) -> Phase:
    """Phase of ridge regression, per-record loss ½(⟨a, θ⟩ - y)²: H = AᵀA/n + λI, g = Aᵀy/n.

    A row of zeros with label zero is the null record: its gradient is zero at every θ.
    """
    features, labels = checks.finite("features", features), checks.finite("labels", labels)
    if features.ndim != 2 or labels.shape != features.shape[:1]:
        raise InputError(
            f"features of shape {features.shape} and labels of shape {labels.shape} do not match; "
            f"give (n, d) and (n,)."
        )
    n, dim = features.shape
    l2 = checks.finite_nonnegative("l2", l2)
    return Phase(features.T @ features / n + l2 * np.eye(dim), features.T @ labels / n, steps)


def linear_phase(records, l2, steps) -> Phase:
    """Phase of the linear loss -⟨θ, x⟩: H = λI, g = mean x."""
    records = checks.finite("records", records)
    if records.ndim != 2:
        raise InputError(f"records of shape {records.shape} are not a table; give shape (n, d).")
    l2 = checks.finite_nonnegative("l2", l2)
    return Phase(l2 * np.eye(records.shape[1]), records.mean(axis=0), steps)


def law_after(phases: Sequence[Phase], step_size, noise_variance, mean0, cov0=0.0) -> GaussianLaw:
    """Law of the model released after the last phase.

    Args:
        phases: one per database (or step on a batch), in the order in which they are run.
        step_size: η, one for all phases or one for each.
        noise_variance: σ², likewise; a step adds N(0, 2ησ² I).
        mean0: mean of the initial law, shape (d,).
        cov0: its covariance, a (d, d) matrix or v for vI; 0 for a fixed start.
    """
    law = _initial_law(mean0, cov0)
    for transition in _transitions(phases, step_size, noise_variance, law.mean.size):
        law = _push(law, transition)
    return law


def joint_law(
    phases: Sequence[Phase], step_size, noise_variance, mean0, cov0=0.0, *, released=None
) -> GaussianLaw:
    """Joint law of all releases (θ̂_0, …, θ̂_i), stacked.

    Cov(θ̂_k, θ̂_j) = A_k ⋯ A_{j+1} Cov(θ̂_j) for k > j, with A_k the matrix of phase k.

    Args:
        phases, step_size, noise_variance, mean0, cov0: as in `law_after`.
        released: the phases, counted from 0, after which the model is released; all by default.
    """
    law = _initial_law(mean0, cov0)
    dim, count = law.mean.size, len(phases)
    released = range(count) if released is None else sorted(set(released))
    if not released or not 0 <= released[0] <= released[-1] < count:
        raise InputError(f"nothing is released by {count} phases; give phases that are run.")
    means, joint = [], np.zeros((0, 0))
    cross = np.zeros((dim, 0))  # of the newest model with all releases before it
    for k, transition in enumerate(_transitions(phases, step_size, noise_variance, dim)):
        checks.steps("steps of a released phase", phases[k].steps, least=1)
        law, cross = _push(law, transition), transition.matrix @ cross
        if k in released:
            joint = np.block([[joint, cross.T], [cross, law.covariance]])
            cross = np.hstack([cross, law.covariance])
            means.append(law.mean)
    return GaussianLaw(np.concatenate(means), joint)


def renyi(order, law0: GaussianLaw, law1: GaussianLaw) -> float:
    """Rényi divergence R_q(law0 ‖ law1) (`dfn:renyi`); infinite where it diverges."""
    law0, law1 = _check_pair(law0, law1)
    return guarantees.renyi_gaussian(order, *law0, *law1)


def separation(law0: GaussianLaw, law1: GaussianLaw) -> float:
    """μ = √(δᵀ Σ⁻¹ δ) of two laws of one covariance Σ with means δ apart: exactly μ-GDP."""
    law0, law1 = _check_pair(law0, law1)
    scale = np.abs(np.diag(law0.covariance)).max()
    if not np.allclose(law0.covariance, law1.covariance, rtol=0, atol=1e-9 * scale):
        raise InputError(
            "the two covariances differ, so there is no single μ; compare runs that differ in "
            "labels or linear records only, or use `renyi` or the grid oracle."
        )
    difference = law0.mean - law1.mean
    whitened = linalg.solve_triangular(_cholesky(law0.covariance), difference, lower=True)
    return float(np.linalg.norm(whitened))


def hockey_stick(epsilon, law0: GaussianLaw, law1: GaussianLaw):
    """δ(ε) = Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ), ε ≥ 0, for two laws of one covariance."""
    return guarantees.gdp_delta(separation(law0, law1), epsilon)


def advantage(law0: GaussianLaw, law1: GaussianLaw) -> float:
    """Total variation 2Φ(μ/2) - 1, the best test's advantage, for two laws of one covariance."""
    return guarantees.advantage_from_gdp(separation(law0, law1))


def excess_risk(law: GaussianLaw, hessian, linear_term) -> float:
    """E[ℒ(θ)] - min ℒ = ½ tr(HΣ) + ½ (m - θ*)ᵀH(m - θ*) for θ ~ law, with Hθ* = g, H ≻ 0."""
    hessian, linear_term = _check_quadratic(hessian, linear_term, np.size(law.mean))
    if np.linalg.eigvalsh(hessian)[0] <= 0:
        raise InputError("hessian is not positive definite, so ℒ has no minimum; give l2 > 0.")
    gap = law.mean - np.linalg.solve(hessian, linear_term)
    return float(np.sum(hessian * law.covariance) + gap @ hessian @ gap) / 2


def _transitions(phases, step_size, noise_variance, dim) -> Iterator[_Transition]:
    """All phases in order."""
    step_size = per_phase("step_size", step_size, len(phases))
    noise_variance = per_phase("noise_variance", noise_variance, len(phases))
    for phase, eta, noise in zip(phases, step_size, noise_variance, strict=True):
        yield _transition(phase, eta, noise, dim)


def _transition(phase, step_size, noise_variance, dim) -> _Transition:
    """The K steps of one phase as a single affine map with Gaussian noise."""
    hessian, linear_term = _check_quadratic(phase.hessian, phase.linear_term, dim)
    steps = checks.steps("steps", phase.steps)
    values, vectors = np.linalg.eigh(hessian)
    rate = step_size * values
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        contraction = power(rate, steps)
        drift = np.where(rate == 0, steps, one_minus_power(rate, steps) / rate)
        square = rate * (2 - rate)
        spread = np.where(square == 0, steps, one_minus_power(rate, 2 * steps) / square)
    if not np.all(np.isfinite(np.concatenate([contraction, drift, spread]))):
        raise InputError(
            f"step_size = {step_size} makes {phase.steps} steps diverge; take it below 2 over the "
            f"hessian's largest eigenvalue, and l2 > 0 if steps is infinite."
        )
    return _Transition(
        (vectors * contraction) @ vectors.T,
        step_size * vectors @ (drift * (vectors.T @ linear_term)),
        2 * step_size * noise_variance * (vectors * spread) @ vectors.T,
    )


def _push(law: GaussianLaw, transition: _Transition) -> GaussianLaw:
    """The law of matrix θ + offset + noise for θ ~ law."""
    matrix, offset, noise = transition
    covariance = matrix @ law.covariance @ matrix.T + noise
    return GaussianLaw(matrix @ law.mean + offset, (covariance + covariance.T) / 2)


def _initial_law(mean0, cov0) -> GaussianLaw:
    """The checked initial law; a scalar cov0 stands for cov0 · I."""
    mean, covariance = checks.finite("mean0", mean0), checks.finite("cov0", cov0)
    if mean.ndim != 1:
        raise InputError(f"mean0 of shape {mean.shape} is not a vector; give shape (d,).")
    if covariance.ndim == 0:
        covariance = covariance * np.eye(mean.size)
    return _check_law("cov0", GaussianLaw(mean, covariance))


def _check_law(name, law) -> GaussianLaw:
    """The law, refused unless its covariance is symmetric, positive semi-definite and (d, d)."""
    mean, covariance = checks.finite("mean", law.mean), checks.finite(name, law.covariance)
    _check_symmetric(name, covariance, mean.size)
    smallest, scale = np.linalg.eigvalsh(covariance)[0], np.abs(covariance).max()
    if smallest < -1e-12 * scale:
        raise InputError(
            f"{name} has the negative eigenvalue {smallest:.3g}; "
            f"give a positive semi-definite covariance."
        )
    return GaussianLaw(mean, covariance)


def _check_pair(law0, law1):
    """Two checked laws of one dimension."""
    law0, law1 = _check_law("covariance", law0), _check_law("covariance", law1)
    if law0.mean.shape != law1.mean.shape:
        raise InputError(
            f"the laws have dimensions {law0.mean.size} and {law1.mean.size}; "
            f"compare laws of one dimension."
        )
    return law0, law1


def _check_quadratic(hessian, linear_term, dim):
    """H and g, refused unless H is symmetric (d, d) and g has shape (d,)."""
    hessian, linear_term = (
        checks.finite("hessian", hessian),
        checks.finite("linear_term", linear_term),
    )
    _check_symmetric("hessian", hessian, dim)
    if linear_term.shape != (dim,):
        raise InputError(
            f"linear_term of shape {linear_term.shape} does not match the model; give ({dim},)."
        )
    return hessian, linear_term


def _check_symmetric(name, matrix, dim):
    """Refuse anything but a symmetric (dim, dim) matrix."""
    if matrix.shape != (dim, dim):
        raise InputError(
            f"{name} of shape {matrix.shape} does not match the model; give ({dim}, {dim})."
        )
    if not np.allclose(matrix, matrix.T, rtol=0, atol=1e-12 * np.abs(matrix).max()):
        raise InputError(f"{name} is not symmetric; give (A + Aᵀ)/2.")


def _cholesky(covariance):
    """The lower Cholesky factor, refused for a singular covariance."""
    try:
        return linalg.cholesky(covariance, lower=True)
    except linalg.LinAlgError:
        raise InputError(
            "the covariance is singular, so the laws have no densities; run at least one step."
        ) from None
