"""Excess empirical risk for convex losses: a recursion on the distance to the minimiser.

Tighter than the paper's lemmas (`dd_jax.guarantees.risk_convex_paper`). M = λ+β, c = 1-ηλ.
"""

import numpy as np

from dd_jax.errors import CertificateRefused
from dd_jax.guarantees import checks

_ROUNDING = 1e-14
_EXACT_REQUESTS = 200  # requests iterated one by one before the chord bound takes over


@checks.quiet
def minimiser_shift(lipschitz, l2, n, edits_per_request=1):
    """How far replacing r records can move the minimiser of ℒ.

    ‖θ*_D - θ*_{D∘u}‖ ≤ 2 r L / (λ n)

    Guarantee: for every database and edit; attained by the linear loss.
    Assumes: convex, L-Lipschitz loss.
    Halves the constant in the proof of `lem:excess_risk_after_edit` (erratum E11).
    """
    lipschitz, l2 = checks.positive("lipschitz", lipschitz), checks.positive("l2", l2)
    share = checks.edited_share(n, edits_per_request)
    return checks.plain(checks.product(2, share, lipschitz, 1 / l2))


@checks.quiet
def stationary_variance(l2, noise_variance, step_size):
    """Variance per coordinate at which noise and contraction balance, and the default start's.

    V = σ² / (λ (1 - ηλ/2))

    Assumes: ηλ ≤ 1. The initialisation of `thm:unlearning_accuracy_convex`.
    """
    l2, step_size = checks.positive("l2", l2), checks.positive("step_size", step_size)
    return checks.plain_bound(
        checks.positive("noise_variance", noise_variance) / (l2 * (1 - step_size * l2 / 2))
    )


@checks.quiet
def excess_risk_floor(l2, smoothness, noise_variance, dim, step_size):
    """What `excess_risk_convex` tends to with ever more steps.

    (M/2) d V with V = σ² / (λ (1 - ηλ/2))

    Assumes: convex, β-smooth loss; η ≤ 2/(2λ+β).
    """
    l2, smoothness = checks.positive("l2", l2), checks.nonnegative("smoothness", smoothness)
    step_size = checks.step_size_optimal(step_size, l2, smoothness)
    variance = stationary_variance(l2, noise_variance, step_size)
    return checks.plain(checks.product(0.5, l2 + smoothness, checks.count("dim", dim), variance))


@checks.quiet
def excess_risk_convex(
    lipschitz,
    l2,
    smoothness,
    noise_variance,
    n,
    dim,
    step_size,
    learn_steps,
    delete_steps,
    edits_per_request=1,
    request=np.inf,
    init_variance=None,
):
    """Excess risk of the model released after request i, for convex smooth losses.

    m_0² = c^(2 K_L) (L²/λ² + d v₀) + d V (1 - c^(2 K_L)),   V = σ² / (λ (1 - ηλ/2)),
    m_i² = c^(2 K_U) (m_{i-1} + 2rL/(λn))² + d V (1 - c^(2 K_U)),
    err(Θ̂_i; D_i) ≤ (M/2) m_i²

    `request=0` is the learned model, `request=numpy.inf` the limit i → ∞ in closed form. The bound
    is monotone in i, so the larger of these two covers every request; with K_U = 0 it has no limit.

    Guarantee: E‖Θ̂_i - θ*_i‖² ≤ m_i² for every r-requester, adaptive ones too.
    Assumes: convex, L-Lipschitz, β-smooth loss; η ≤ 2/(2λ+β); start N(0, v₀ I), v₀ = V by default.
    Tightens `thm:unlearning_accuracy_convex`, part 3.
    """
    l2, smoothness = checks.positive("l2", l2), checks.nonnegative("smoothness", smoothness)
    step_size = checks.step_size_optimal(step_size, l2, smoothness)
    spread = checks.count("dim", dim) * stationary_variance(l2, noise_variance, step_size)
    start = _start_square(lipschitz, l2, dim, spread, init_variance)
    shift = minimiser_shift(lipschitz, l2, n, edits_per_request)
    kept, lost = _decay(step_size * l2, checks.steps("learn_steps", learn_steps))
    distance = np.hypot(np.sqrt(kept) * np.sqrt(start), np.sqrt(lost) * np.sqrt(spread))
    kept, lost = _decay(step_size * l2, checks.steps("delete_steps", delete_steps))
    distance = _iterate(distance, kept, lost, shift, spread, checks.steps("request", request))
    return checks.plain(checks.product(0.5, l2 + smoothness, distance, distance))


@checks.quiet
def learn_steps_convex(
    lipschitz,
    l2,
    smoothness,
    noise_variance,
    dim,
    step_size,
    target_excess_risk,
    init_variance=None,
):
    """Least K_L for which `excess_risk_convex` puts the learned model within a target excess risk.

    c^(2 K_L) ≤ (m² - dV) / (L²/λ² + d v₀ - dV),   m² = 2 target / M

    Assumes: as `excess_risk_convex`; a target that is not above `excess_risk_floor` is refused.
    """
    l2, smoothness = checks.positive("l2", l2), checks.nonnegative("smoothness", smoothness)
    step_size = checks.step_size_optimal(step_size, l2, smoothness)
    spread = checks.count("dim", dim) * stationary_variance(l2, noise_variance, step_size)
    start = _start_square(lipschitz, l2, dim, spread, init_variance)
    target = _target_square(target_excess_risk, l2 + smoothness, spread)
    return checks.plain(_steps_to(step_size * l2, start - target, target - spread))


@checks.quiet
def delete_steps_convex(
    lipschitz,
    l2,
    smoothness,
    noise_variance,
    n,
    dim,
    step_size,
    target_excess_risk,
    edits_per_request=1,
):
    """Least K_U that keeps every later model within a target excess risk, by `excess_risk_convex`.

    c^(2 K_U) ≤ (m² - dV) / ((m + 2rL/(λn))² - dV),   m² = 2 target / M

    Guarantee: if the learned model meets the target, so does every edited one; fewer steps leave
        the recursion's limit above it.
    Assumes: as `excess_risk_convex`; a target that is not above `excess_risk_floor` is refused.
    """
    l2, smoothness = checks.positive("l2", l2), checks.nonnegative("smoothness", smoothness)
    step_size = checks.step_size_optimal(step_size, l2, smoothness)
    spread = checks.count("dim", dim) * stationary_variance(l2, noise_variance, step_size)
    target = _target_square(target_excess_risk, l2 + smoothness, spread)
    shift = minimiser_shift(lipschitz, l2, n, edits_per_request)
    excess = shift * (2 * np.sqrt(target) + shift)
    return checks.plain(_steps_to(step_size * l2, excess, target - spread))


def _start_square(lipschitz, l2, dim, spread, init_variance):
    """L²/λ² + d v₀, a bound on E‖Θ_0 - θ*‖²; v₀ = V unless given."""
    if init_variance is not None:
        spread = checks.count("dim", dim) * checks.nonnegative("init_variance", init_variance)
    return (checks.positive("lipschitz", lipschitz) / l2) ** 2 + spread


def _decay(pull, num_steps):
    """(c^(2K), 1 - c^(2K)) for c = 1 - pull, also at c = 0, K = 0 and K = ∞."""
    log_c = np.log1p(-np.clip(pull, 1e-300, 1))
    exponent = checks.times(2 * np.maximum(log_c, -1e300), num_steps)
    return np.exp(exponent), -np.expm1(exponent)


def _iterate(distance, kept, lost, shift, spread, request):
    """m_i of m ← √(kept (m + shift)² + lost·spread), at i = request.

    The map is convex, so the chord to its fixed point bounds the later requests from above.
    """
    root = np.hypot(np.sqrt(kept) * shift, lost * np.sqrt(spread))
    limit = np.where(lost > 0, (kept * shift + root) / np.where(lost > 0, lost, 1), np.inf)
    exact = np.minimum(request, _EXACT_REQUESTS)
    start, distance = distance, np.asarray(distance)
    for i in range(int(np.max(np.where(np.isinf(request), 0, exact), initial=0))):
        distance = np.where(i < exact, _next(distance, kept, lost, shift, spread), distance)
    change = _next(distance, kept, lost, shift, spread) - distance
    slope = np.clip(np.where(distance == limit, 0, change / (distance - limit)), -1, 0)
    covered = -np.expm1(checks.times(np.log1p(slope), request - exact))
    chord = np.where(covered > 0, distance + (limit - distance) * covered, distance)
    moved = np.where(np.isinf(request), limit, chord)
    return np.where(lost > 0, moved, start + request * shift)


def _next(distance, kept, lost, shift, spread):
    return np.hypot(np.sqrt(kept) * (distance + shift), np.sqrt(lost) * np.sqrt(spread))


def _target_square(target_excess_risk, curvature, spread):
    """m² = 2·target/M, refused unless it exceeds dV."""
    target = checks.positive("target_excess_risk", target_excess_risk)
    square = 2 * target / curvature
    if not np.all(square > spread):
        target, floor, bad = np.broadcast_arrays(target, curvature / 2 * spread, square <= spread)
        raise CertificateRefused(
            f"target_excess_risk = {target[bad].flat[0]:g} is not above {floor[bad].flat[0]:g}, "
            f"the least that this noise allows; give a larger target, or less noise (more records, "
            f"or a larger budget)."
        )
    return square


def _steps_to(pull, excess, room):
    """Least K with c^(2K) ≤ room/(excess + room): 0 if excess ≤ 0, and 1 if c = 0."""
    rate = -2 * np.log1p(-np.clip(pull, 1e-300, 1))
    needed = np.log1p(np.maximum(excess, 0) / room)
    return np.where(excess > 0, np.maximum(np.ceil(needed / rate * (1 - _ROUNDING)), 1), 0)
