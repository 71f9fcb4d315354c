"""How much noise fine-tuning needs to hide where it started from. Write ρ = 1 - ηλ."""

import math

import numpy as np

from dd_jax import checks
from dd_jax.baselines.calibration import root_slope
from dd_jax.errors import InputError
from dd_jax.guarantees import floats, renyi


def renyi_slope(noise_variance, *, model_clip, gradient_clip, step_size, l2, num_steps):
    """ε_R of R_q ≤ q ε_R between two runs of T steps on the same records from any two starts.

    λ > 0: ε_R = (2C₀ρ^T + (2C₁/λ)(1-ρ^T))² · ηλ(2-ηλ) / (2σ²(1-ρ^{2T}))
    λ = 0: ε_R = (2C₀ + 2C₁ηT)² / (2σ²T)

    Guarantee: both ways, and μ-GDP with μ = √(2ε_R).
    Assumes: 0 ≤ ηλ < 1. Koloskova et al. 2025; their code takes half of this σ² for λ = 0.
    """
    noise = checks.positive("noise_variance", noise_variance)
    decay = max(step_size * l2, np.finfo(np.float64).tiny)
    exponent = math.log1p(-decay)
    left = math.exp(num_steps * exponent)
    # Σ ρ^k and Σ ρ^{2k} over the T steps, T both for λ = 0
    grown = -math.expm1(num_steps * exponent) / decay
    spread = math.expm1(2 * num_steps * exponent) / math.expm1(2 * exponent)
    distance = 2 * model_clip * left + 2 * gradient_clip * step_size * grown
    return floats.plain(floats.product(distance, distance, 1 / (2 * noise), 1 / spread))


def noise_variance(slope, *, model_clip, gradient_clip, step_size, l2, num_steps) -> float:
    """The least σ² for which `renyi_slope` is at most ε_R = slope: it is proportional to 1/σ²."""
    slope = float(checks.positive("slope", slope))
    unit = renyi_slope(
        1.0,
        model_clip=model_clip,
        gradient_clip=gradient_clip,
        step_size=step_size,
        l2=l2,
        num_steps=num_steps,
    )
    return unit / slope * (1 + 1e-12)


def least_steps(*, model_clip, gradient_clip, step_size, l2) -> int:
    """The authors' T = min(⌈C₀/(C₁η)⌉, ⌈log(2λC₀/C₁)/(ηλ)⌉ where that is positive), at least 1."""
    candidates = [math.ceil(model_clip / (gradient_clip * step_size))]
    if l2 > 0 and 2 * l2 * model_clip > gradient_clip:
        shrink = math.log(2 * l2 * model_clip / gradient_clip) / (step_size * l2)
        candidates.append(math.ceil(shrink))
    return max(1, min(candidates))


def target_slope(epsilon, delta, accountant) -> float:
    """ε_R of R_q ≤ q ε_R that gives (ε, δ), by the authors' conversion or by exact Gaussian DP."""
    if accountant == "published":
        return root_slope(epsilon, delta) ** 2
    if accountant == "gaussian":
        return renyi.gdp_from_epsilon_delta(checks.positive("epsilon", epsilon), delta) ** 2 / 2
    raise InputError(f"accountant = {accountant!r} is not known; give 'published' or 'gaussian'.")


def decay_constant(l2, step_size) -> float:
    """λ, refused unless 0 ≤ ηλ < 1."""
    l2 = float(checks.nonnegative("l2", l2))
    if not step_size * l2 < 1:
        raise InputError(
            f"step_size · l2 = {step_size * l2:g} is not below 1; "
            f"give a step size below {1 / l2:g}."
        )
    return l2
