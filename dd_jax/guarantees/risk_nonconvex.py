"""Excess empirical risk for bounded non-convex losses, of Gibbs laws and of released models.

The paper's bounds, which are vacuous (erratum E3), and bounds without the factor exp(b/σ²).
M = λ+β, κ = M/λ, B = exp(4b/σ²).
"""

import numpy as np

from dd_jax.errors import CertificateRefused
from dd_jax.guarantees import checks

_ROUNDING = 1e-14


@checks.quiet
def gibbs_excess_risk_paper(l2, smoothness, bound, noise_variance, dim):
    """Excess risk of a sample of the Gibbs law π ∝ exp(-ℒ/σ²), as the paper states it.

    err ≤ (dσ²/2) (log κ + √B)

    Guarantee: for the Gibbs law itself, which no finite run releases.
    Assumes: loss bounded by b and β-smooth. Vacuous: never below e·d·b (erratum E3).
    `thm:gibbs_optimal`.
    """
    l2, smoothness = checks.positive("l2", l2), checks.nonnegative("smoothness", smoothness)
    noise_variance, dim = (
        checks.positive("noise_variance", noise_variance),
        checks.count("dim", dim),
    )
    root = np.exp(2 * checks.positive("bound", bound) / noise_variance)
    return checks.plain_bound(dim * noise_variance / 2 * (np.log1p(smoothness / l2) + root))


@checks.quiet
def gibbs_second_moment(lipschitz, l2, bound, noise_variance, dim):
    """E‖θ‖² under the Gibbs law π ∝ exp(-ℒ/σ²).

    E‖θ‖² ≤ min{ ((L + √(L² + 4λdσ²)) / (2λ))²,  (dσ²/λ) y },   y - 1 - log y = (2/d) KL,  y ≥ 1,
    KL(π‖N(0, σ²/λ I)) ≤ min{2b/σ², b²/(2σ⁴)}

    The first is E⟨θ, ∇ℒ⟩ = dσ²; the second is Donsker-Varadhan against the Gaussian at its best
    exponent, with Hoeffding's lemma for KL.

    Guarantee: for every database. Never above the three bounds of erratum E3.
    Assumes: loss differentiable, L-Lipschitz and bounded by b; convexity is not needed.
    """
    lipschitz, l2 = checks.positive("lipschitz", lipschitz), checks.positive("l2", l2)
    bound, noise_variance = (
        checks.positive("bound", bound),
        checks.positive("noise_variance", noise_variance),
    )
    dim = checks.count("dim", dim)
    spread = dim * noise_variance / l2
    drift = lipschitz / (2 * l2)
    entropy = np.minimum(2 * bound / noise_variance, (bound / noise_variance) ** 2 / 2)
    by_drift = (drift + np.sqrt(drift**2 + spread)) ** 2
    return checks.plain_bound(np.minimum(by_drift, spread * _moment_ratio(2 * entropy / dim)))


@checks.quiet
def gibbs_excess_risk(lipschitz, l2, smoothness, bound, noise_variance, dim):
    """Excess risk of a sample of the Gibbs law π ∝ exp(-ℒ/σ²), without the factor B.

    err ≤ min{ (dσ²/2) [1 + log(M m² / (dσ²))],  2b + λm²/2 },   m² = `gibbs_second_moment`

    Guarantee: for the Gibbs law itself; `excess_risk_nonconvex` is for released models.
    Assumes: loss L-Lipschitz, β-smooth and bounded by b.
    Replaces `thm:gibbs_optimal` (erratum E3): its proof with the greatest entropy of a given second
    moment.
    """
    square = gibbs_second_moment(lipschitz, l2, bound, noise_variance, dim)
    return checks.plain_bound(
        _risk_by_entropy(square, 0.0, l2, smoothness, bound, noise_variance, dim)
    )


@checks.quiet
def excess_risk_nonconvex_paper(lipschitz, l2, smoothness, bound, noise_variance, dim, eps_dd):
    """Excess risk of every released model under the paper's non-convex plan, as its proof has it.

    err ≤ Lσ √(2 ε_dd B / λ) + ε_dd B σ² (2λ+β) / λ + (dσ²/2) (log κ + 2√B)

    Guarantee: for every non-adaptive requester. Vacuous (erratum E3): never below 2e·d·b, while
        θ = 0 has excess at most 2b. Use `excess_risk_nonconvex`.
    Assumes: loss L-Lipschitz, β-smooth and bounded by b; (q, ε_dd)-closeness to the Gibbs law.
    `thm:deletion_accuracy_nonconvex`, part 3.
    """
    lipschitz, l2 = checks.positive("lipschitz", lipschitz), checks.positive("l2", l2)
    smoothness, eps_dd = (
        checks.nonnegative("smoothness", smoothness),
        checks.nonnegative("eps_dd", eps_dd),
    )
    bound, noise_variance = (
        checks.positive("bound", bound),
        checks.positive("noise_variance", noise_variance),
    )
    root = np.exp(2 * bound / noise_variance)
    transport = root * np.sqrt(2 * noise_variance / l2) * np.sqrt(eps_dd)
    transport = np.where(eps_dd == 0, 0.0, transport)
    moved = lipschitz * transport + (l2 + smoothness / 2) * transport**2
    entropy = np.log1p(smoothness / l2) + 2 * root
    return checks.plain_bound(moved + checks.count("dim", dim) * noise_variance / 2 * entropy)


@checks.quiet
def released_second_moment(lipschitz, l2, noise_variance, dim, step_size):
    """E‖Θ‖² of every model of a noisy gradient descent started from N(0, v₀ I), v₀ ≤ σ²/λ.

    E‖Θ‖² ≤ m²,   m = ((1-ηλ) L + √(L² + 2λ(2-ηλ) dσ²)) / (λ (2-ηλ))

    Guarantee: after any number of steps and edits, for every requester, adaptive ones too.
    Assumes: L-Lipschitz loss, convex or not; ηλ ≤ 1.
    """
    lipschitz, l2 = checks.positive("lipschitz", lipschitz), checks.positive("l2", l2)
    noise_variance, dim = (
        checks.positive("noise_variance", noise_variance),
        checks.count("dim", dim),
    )
    pull = _pull(step_size, l2)
    drift = lipschitz / l2
    noise = 2 * (2 - pull) * dim * noise_variance / l2
    return checks.plain_bound((((1 - pull) * drift + np.sqrt(drift**2 + noise)) / (2 - pull)) ** 2)


@checks.quiet
def excess_risk_nonconvex(lipschitz, l2, smoothness, bound, noise_variance, dim, step_size, eps_dd):
    """Excess risk of released models that are ε_dd-close to their Gibbs law, without the factor B.

    err ≤ min{ σ² ε_dd + (dσ²/2) [1 + log(M m² / (dσ²))],  2b + λm²/2 },

    m² the least of `released_second_moment`; (√(`gibbs_second_moment`) + W)² with the transport
    distance W² = (2σ²/λ) e^(2b/σ²) ε_dd; and (dσ²/λ) y with y - 1 - log y = (2/d) KL, y ≥ 1,
    KL = ε_dd + min{2b/σ², b²/(2σ⁴) + (2b/σ²) √(ε_dd/2)}.

    From E_μ[ℒ] = σ² [KL(μ‖π) + H(μ) - log Z]. Never above Gibbs excess + (L + λm) W + λW²/2.

    Guarantee: for the learned model and after every request, non-adaptive requesters.
    Assumes: loss L-Lipschitz, β-smooth and bounded by b; R_q(Θ̂_i‖π(D_i)) ≤ ε_dd; start
        N(0, σ²/λ I); ηλ ≤ 1.
    Replaces `thm:deletion_accuracy_nonconvex`, part 3 (erratum E3).
    """
    released = released_second_moment(lipschitz, l2, noise_variance, dim, step_size)
    gibbs = gibbs_second_moment(lipschitz, l2, bound, noise_variance, dim)
    noise_variance, eps_dd = (
        checks.positive("noise_variance", noise_variance),
        checks.nonnegative("eps_dd", eps_dd),
    )
    ratio, spread = (
        2 * checks.positive("bound", bound) / noise_variance,
        noise_variance / checks.positive("l2", l2),
    )
    transport = np.exp(ratio / 2) * np.sqrt(2 * spread) * np.sqrt(eps_dd)
    moved = (np.sqrt(gibbs) + np.where(eps_dd == 0, 0.0, transport)) ** 2
    entropy = eps_dd + np.minimum(ratio, ratio**2 / 8 + ratio * np.sqrt(eps_dd / 2))
    tilted = dim * spread * _moment_ratio(2 * entropy / dim)
    square = np.minimum(np.minimum(released, moved), tilted)
    return checks.plain_bound(
        _risk_by_entropy(square, eps_dd, l2, smoothness, bound, noise_variance, dim)
    )


def _pull(step_size, l2):
    """ηλ, refused above 1."""
    pull = checks.positive("step_size", step_size) * checks.positive("l2", l2)
    if not np.all(pull <= 1 + _ROUNDING):
        raise CertificateRefused(
            f"step_size · l2 = {np.max(pull):g} is above 1, which this bound does not allow; "
            f"give a step size of at most 1/l2."
        )
    return np.minimum(pull, 1)


def _moment_ratio(entropy):
    """The y ≥ 1 with y - 1 - log y = entropy, approached from above by Newton's method."""
    z = np.sqrt(2 * entropy) + entropy
    least = np.sqrt(2 * entropy) + 2 / 3 * entropy
    for _ in range(5):
        newton = z - (z - np.log1p(z) - entropy) * (1 + z) / z
        z = np.where(newton > least, np.minimum(newton, z), z)
    return 1 + z


def _risk_by_entropy(square, divergence, l2, smoothness, bound, noise_variance, dim):
    """min{σ²·KL + (dσ²/2)[1 + log(M m²/(dσ²))], 2b + λm²/2}."""
    l2, smoothness = checks.positive("l2", l2), checks.nonnegative("smoothness", smoothness)
    noise_variance, dim = (
        checks.positive("noise_variance", noise_variance),
        checks.count("dim", dim),
    )
    ratio = (l2 + smoothness) * square / (dim * noise_variance)
    entropy = noise_variance * (divergence + dim / 2 * (1 + np.log(ratio)))
    return np.minimum(entropy, 2 * checks.positive("bound", bound) + l2 * square / 2)
