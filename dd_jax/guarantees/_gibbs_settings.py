"""What both proofs of non-convex deletion share: the recursion over requests, and its settings."""

from typing import NamedTuple

import numpy as np

from dd_jax import checks
from dd_jax.guarantees import floats

ROUNDING = 1e-12


class NonconvexSettings(NamedTuple):
    """What a non-convex run needs: σ², η, K_L and K_U (whole floats, possibly infinite)."""

    noise_variance: float
    step_size: float
    learn_steps: float
    delete_steps: float


def start_and_shift(bound, noise_variance, n, edits_per_request, form="tuned"):
    """Divergence of the start from its Gibbs law (over q, where "sharp"), and of one edit."""
    share = checks.edited_share(n, edits_per_request)
    ratio = checks.positive("bound", bound) / checks.positive("noise_variance", noise_variance)
    start = 2 * ratio
    if form == "sharp":
        start = np.minimum(start, floats.product(0.5, ratio, ratio))
    return start, floats.product(4, share, ratio)


def recursion(first, log_factor, shift, bias, request):
    """ε_i of ε ← a (ε + shift) + bias after i requests; i = ∞ is the supremum over i ≥ 1."""
    factor = np.exp(log_factor)
    second = factor * (first + shift) + bias
    limit = np.where(factor < 1, (factor * shift + bias) / -np.expm1(log_factor), np.inf)
    power = floats.times(log_factor, request)
    terms = np.where(log_factor == 0, request, np.expm1(power) / np.expm1(log_factor))
    later = np.exp(power) * first + terms * (factor * shift + bias)
    later = np.where(np.isinf(request), np.maximum(second, limit), later)
    return np.where(request == 0, first, later)


def whole_settings(noise_variance, step_size, learn_time, delete_time):
    """Whole step counts for the times ηK."""
    learn, delete = (
        np.where(time > 0, np.ceil(np.divide(time, step_size) * (1 + ROUNDING)), 0.0)
        for time in (learn_time, delete_time)
    )
    return NonconvexSettings(*map(floats.plain, (noise_variance, step_size, learn, delete)))


def least_noise(settings, order, lipschitz, n, eps_dp):
    """Settings at the least σ² ≥ qL²η max(K)/(ε_dp n²), by bisection in log σ²."""
    order, eps_dp = checks.order(order), checks.positive("eps_dp", eps_dp)
    reach = checks.positive("lipschitz", lipschitz) / checks.count("n", n)
    per_time = np.log(order) + 2 * np.log(reach) - np.log(eps_dp)

    def private(log_noise):
        found = settings(np.exp(log_noise))
        time = found.step_size * max(found.learn_steps, found.delete_steps)
        return found if per_time + np.log(time) <= log_noise else None

    high = per_time
    while not private(high):
        high += 1
    low = high - 1
    while private(low):
        low, high = low - 1, low
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if private(middle) else (middle, high)
    return private(high)


def remedy(limit):
    """What to give instead of a step size above the limit."""
    return f"give at most {limit:g}" if limit > 0 else "give a larger noise_variance"
