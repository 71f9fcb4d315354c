"""Rényi divergence, (ε, δ) and Gaussian DP: exact values and conversions between them.

A claim R_q(P‖Q) ≤ ε is one-sided: it bounds P[O] by Q[O], not the reverse. A *linear* claim holds
at every order, R_q ≤ qρ; the convex certificates are of this kind. The claim of μ-GDP means that
telling P from Q is at least as hard as telling N(0, 1) from N(μ, 1); it implies R_q ≤ qμ²/2, both
ways.
"""

import numpy as np
from scipy import special

from dd_jax import checks
from dd_jax.errors import CertificateRefused, InputError
from dd_jax.guarantees import floats

_LEGENDRE_NODES, _LEGENDRE_WEIGHTS = np.polynomial.legendre.leggauss(16)


# --- exact divergences -------------------------------------------------------------------------


def renyi_gaussian(order, mean_first, covariance_first, mean_second, covariance_second):
    """R_q(N(m₀, Σ₀) ‖ N(m₁, Σ₁)) in d dimensions.

    (q/2) δᵀ Σ_q⁻¹ δ - [logdet Σ_q - (1-q) logdet Σ₀ - q logdet Σ₁] / (2(q-1)),  Σ_q = (1-q)Σ₀ + qΣ₁

    Infinite unless Σ_q ≻ 0. Means are (…, d), covariances (…, d, d); the order and leading axes
    broadcast. The definition of the divergence: `dfn:renyi`.
    """
    order = checks.order(order)
    root = _cholesky("covariance_first", covariance_first)
    second = checks.numbers("covariance_second", covariance_second)
    _cholesky("covariance_second", second)
    shift = checks.numbers("mean_first", mean_first) - checks.numbers("mean_second", mean_second)
    first = root @ np.swapaxes(root, -1, -2)
    half = np.linalg.solve(root, second - first)
    excess, axes = np.linalg.eigh(np.linalg.solve(root, np.swapaxes(half, -1, -2)))
    whitened = np.linalg.solve(root, shift[..., None])
    whitened = np.squeeze(np.swapaxes(axes, -1, -2) @ whitened, -1)
    return floats.plain(_renyi_whitened(order[..., None], whitened**2, excess).sum(-1))


def _renyi_whitened(order, squared_shift, excess):
    """R_q(N(δ, 1) ‖ N(0, 1 + excess)), infinite where 1 + q·excess ≤ 0."""
    with np.errstate(all="ignore"):
        mixed = 1 + order * excess
        quadratic = order * squared_shift / (2 * mixed)
        volume = (order * np.log1p(excess) - np.log1p(order * excess)) / (2 * (order - 1))
        value = quadratic + np.maximum(volume, 0.0)
    return np.where((mixed > 0) & ~np.isnan(value), value, np.inf)


def _cholesky(name, covariance):
    try:
        return np.linalg.cholesky(checks.numbers(name, covariance))
    except np.linalg.LinAlgError:
        raise InputError(
            f"{name} is not a positive definite matrix; give a symmetric one with eigenvalues > 0."
        ) from None


def renyi_bounded_perturbation(perturbation, noise_variance):
    """R_q between Gibbs laws ∝ e^{-ℒ/σ²} and ∝ e^{-ℒ'/σ²} with |ℒ - ℒ'| ≤ c: at most 2c/σ².

    Guarantee: for every order, both ways. The lemma on bounded perturbations,
    `lem:bounded_perturbation_renyi`.
    """
    perturbation = checks.nonnegative("perturbation", perturbation)
    inverse = 1 / checks.positive("noise_variance", noise_variance)
    return floats.plain(floats.product(2, perturbation, inverse))


# --- composition and triangles -----------------------------------------------------------------


def compose_renyi(*epsilons):
    """R_q of several releases, each ε_j given those before it: Σ ε_j."""
    return floats.plain(sum(checks.nonnegative("epsilon", e) for e in epsilons))


def weak_triangle(eps_first, eps_infinite):
    """The weak triangle inequality, `thm:triangle_inequality`: R_q(P‖Q) ≤ R_q(P‖M) + R_∞(M‖Q)."""
    eps_first = checks.nonnegative("eps_first", eps_first)
    return floats.plain(eps_first + checks.nonnegative("eps_infinite", eps_infinite))


def at_lower_order(order, eps, lower_order):
    """Monotonicity in the order, `thm:monotonicity`: R_q ≤ ε gives R_{q'} ≤ ε for q' ≤ q."""
    order, lower = checks.order(order), checks.order(lower_order)
    eps = checks.nonnegative("eps", eps)
    if np.any(lower > order):
        raise CertificateRefused(
            f"a bound at order {np.min(order):g} says nothing at order {np.max(lower):g}; "
            f"give lower_order ≤ order."
        )
    return floats.plain(eps + 0 * (order + lower))


# --- Rényi to (ε, δ) ----------------------------------------------------------------------------


def epsilon_simple(order, eps, delta):
    """(ε', δ) from R_q ≤ ε, one-sided: ε' = ε + log(1/δ)/(q-1).

    The remark on one-sided conversion, `rem:renyi_onesided`.
    """
    order, delta = checks.order(order), checks.delta(delta)
    eps = checks.nonnegative("eps", eps)
    with np.errstate(all="ignore"):
        return floats.plain(eps - np.log(delta) / (order - 1))


def epsilon_tight(order, eps, delta):
    """(ε', δ) from R_q ≤ ε, one-sided: ε' = ε + log((q-1)/q) - (log δ + log q)/(q-1), at least 0.

    Never above `epsilon_simple`, which it tightens. `rem:renyi_onesided`.
    """
    order, delta = checks.order(order), checks.delta(delta)
    eps = checks.nonnegative("eps", eps)
    return floats.plain(np.maximum(eps + _tight_overhead(order, delta), 0.0))


def _tight_overhead(order, delta):
    """log((q-1)/q) - (log δ + log q)/(q-1), with log q/(q-1) kept accurate near q = 1."""
    below = order - 1
    with np.errstate(all="ignore"):
        return np.log(below / order) - (np.log(delta) + np.log1p(below)) / below


def epsilon_simple_linear(slope, delta):
    """`epsilon_simple` at the best order for a linear claim R_q ≤ qρ: ρ + 2√(ρ log(1/δ))."""
    slope, delta = checks.nonnegative("slope", slope), checks.delta(delta)
    return floats.plain(slope + 2 * np.sqrt(slope) * np.sqrt(-np.log(delta)))


def epsilon_tight_linear(slope, delta):
    """`epsilon_tight` at the best order for a linear claim R_q ≤ qρ, at least 0.

    The best order solves ρ(q-1)² = log(1/(δq)): `best_order_linear`.
    """
    slope, delta = checks.nonnegative("slope", slope), checks.delta(delta)
    order = 1 + _best_order_minus_one(slope, delta)
    value = np.maximum(floats.product(slope, order) + _tight_overhead(order, delta), 0.0)
    simple = epsilon_simple_linear(slope, delta)
    return floats.plain(np.where(slope == 0, 0.0, np.fmin(value, simple)))


def linear_from_epsilon_delta(epsilon, delta):
    """The largest ρ ≤ ε for which R_q ≤ qρ gives (ε, δ) by `epsilon_tight_linear`, rounded down."""
    epsilon, delta = np.broadcast_arrays(checks.positive("epsilon", epsilon), checks.delta(delta))
    # For an ordinary δ the converted ε is above ρ. Bisected in log ρ.
    low, high = np.full(epsilon.shape, -700.0), np.log(epsilon)
    for _ in range(80):
        middle = (low + high) / 2
        above = epsilon_tight_linear(np.exp(middle), delta) > epsilon
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return floats.plain(np.exp(low))


def best_order_linear(slope, delta):
    """The order at which `epsilon_tight` is least for a linear claim R_q ≤ qρ, ρ > 0."""
    slope, delta = checks.positive("slope", slope), checks.delta(delta)
    return floats.plain(1 + _best_order_minus_one(slope, delta))


def _best_order_minus_one(slope, delta):
    """The root of log(1+x) + ρx² = log(1/δ), increasing on the left; bisected in log x."""
    slope, delta = np.broadcast_arrays(slope, delta)
    with np.errstate(all="ignore"):
        log_slope, target = np.log(slope), -np.log(delta)
        low, high = np.full(slope.shape, -400.0), target + 1.0
        for _ in range(80):
            middle = (low + high) / 2
            left = np.logaddexp(0.0, middle) + np.exp(log_slope + 2 * middle)
            low, high = np.where(left < target, middle, low), np.where(left < target, high, middle)
        return np.exp(high)


def renyi_from_epsilon_delta(epsilon, delta):
    """(q, ε_q) with which R_q ≤ ε_q gives (ε, δ): q = 1 + (2/ε) log(1/δ) and ε_q = ε/2.

    The paper's choice, in its footnote on the lower bound of private learning: `epsilon_simple`
    with half of ε for the divergence and half for δ. From `rem:renyi_onesided`.
    """
    epsilon, delta = checks.positive("epsilon", epsilon), checks.delta(delta)
    order = 1 - 2 * np.log(delta) / epsilon
    return floats.plain(order), floats.plain(epsilon / 2 + 0 * order)


def epsilon_paper_linear(slope, delta):
    """The ε that a linear claim R_q ≤ qρ has by `renyi_from_epsilon_delta`: its inverse.

    ε = ρ + √(ρ² + 4ρ log(1/δ)), where q = 1 + (2/ε) log(1/δ) and qρ = ε/2. Never below
    `epsilon_simple_linear`, whose order is the best.
    """
    slope, delta = checks.nonnegative("slope", slope), checks.delta(delta)
    root = np.hypot(slope, 2 * np.sqrt(slope) * np.sqrt(-np.log(delta)))
    return floats.plain(slope + root)


# --- Gaussian DP --------------------------------------------------------------------------------


def renyi_from_gdp(order, mu):
    """R_q ≤ q μ²/2 for every μ-GDP pair, both ways."""
    mu = checks.nonnegative("mu", mu)
    return floats.plain(floats.product(0.5, checks.order(order), mu, mu))


def gdp_from_linear_renyi(order, eps):
    """μ = √(2ε/q), the μ whose Rényi curve passes through (q, ε).

    Guarantee: μ-GDP only where the ε was itself proved as Gaussian DP (`privacy_optimal`,
    `deletion_optimal`, `privacy_lipschitz`); a Rényi bound by itself does not imply it.
    """
    slope = 2 / checks.order(order)
    return floats.plain(np.sqrt(floats.product(slope, checks.nonnegative("eps", eps))))


def advantage_from_gdp(mu):
    """The best test's advantage (total variation) between N(0,1) and N(μ,1): 2Φ(μ/2) - 1."""
    return floats.plain(special.erf(floats.product(np.sqrt(0.125), checks.nonnegative("mu", mu))))


def gdp_from_advantage(advantage):
    """The μ whose best advantage is this: μ = 2Φ⁻¹((1 + a)/2); a μ-GDP claim below it is false."""
    advantage = checks.probability("advantage", advantage)
    return floats.plain(2 * np.sqrt(2) * special.erfinv(advantage))


def gdp_delta(mu, epsilon):
    """The exact δ of μ-GDP at ε: Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ), accurate for tiny δ too."""
    mu = checks.nonnegative("mu", mu)
    epsilon = checks.nonnegative("epsilon", epsilon)
    delta = np.exp(_gdp_log_delta(mu, epsilon))
    return floats.plain(np.where((mu == 0) | np.isinf(epsilon), delta, floats.rounded_up(delta)))


def gdp_epsilon(mu, delta):
    """The exact ε of μ-GDP at δ, at least 0, rounded up."""
    mu, delta = np.broadcast_arrays(checks.nonnegative("mu", mu), checks.delta(delta))
    target = np.log(delta)
    with np.errstate(all="ignore"):
        # As δ(ε) ≤ Φ(μ/2 - ε/μ), this ε is large enough.
        high = np.maximum(mu * (mu / 2 - special.ndtri(delta)), 0.0) * (1 + 1e-12)
        low = np.zeros_like(high)
        for _ in range(110):  # ε may be far smaller than its bound: halve to its last digits
            middle = (low + high) / 2
            above = _gdp_log_delta(mu, middle) > target
            low, high = np.where(above, middle, low), np.where(above, high, middle)
    enough = _gdp_log_delta(mu, np.zeros_like(mu)) <= target
    high = np.where(np.isinf(mu), np.inf, floats.rounded_up(high))
    return floats.plain(np.where(enough, 0.0, high))


def gdp_from_epsilon_delta(epsilon, delta):
    """The largest μ for which μ-GDP gives (ε, δ) exactly, rounded down."""
    epsilon, delta = np.broadcast_arrays(
        checks.nonnegative("epsilon", epsilon), checks.delta(delta)
    )
    target = np.log(delta)
    # In log μ, from the least normal float to a μ whose δ is 1 for every ε below 1e300.
    low, high = np.full(epsilon.shape, -706.0), np.full(epsilon.shape, 350.0)
    for _ in range(80):
        middle = (low + high) / 2
        above = _gdp_log_delta(np.exp(middle), epsilon) > target
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return floats.plain(np.where(np.isinf(epsilon), np.inf, np.exp(low)))


def _gdp_log_delta(mu, epsilon):
    """log δ. With u = (ε/μ - μ/2)/√2: δ = e^{-u²} [erfcx(u) - erfcx(u + μ/√2)] / 2."""
    with np.errstate(all="ignore"):
        u = np.maximum((epsilon / mu - mu / 2) / np.sqrt(2), -40.0)  # from there on δ rounds to 1
        value = np.minimum(np.log(_erfcx_drop(u, mu / np.sqrt(2))) - np.log(2) - u**2, 0.0)
    return np.where((mu == 0) | np.isinf(epsilon) | np.isnan(value), -np.inf, value)


def _erfcx_drop(u, width):
    """erfcx(u) - erfcx(u + width) for width ≥ 0 without cancellation.

    The difference of close values would lose its digits; the integral of the slope keeps them, and
    sixteen nodes are exact to rounding while the interval is short.
    """
    nodes = u[..., None] + width[..., None] * (1 + _LEGENDRE_NODES) / 2
    integral = width / 2 * (_erfcx_slope(nodes) @ _LEGENDRE_WEIGHTS)
    direct = special.erfcx(u) - special.erfcx(u + width)
    return np.where(width <= 0.5 * np.maximum(1.0, u), integral, direct)


def _erfcx_slope(x):
    """-erfcx'(x) = 2/√π - 2x erfcx(x); it cancels only where δ is far below every float."""
    return 2 / np.sqrt(np.pi) - 2 * x * special.erfcx(x)
