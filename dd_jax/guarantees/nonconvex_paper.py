"""Non-convex deletion by the paper's theorem, with both of its step conditions (erratum E4).

M = λ+β, B = exp(4b/σ²).
"""

import numpy as np

from dd_jax import checks
from dd_jax.errors import CertificateRefused
from dd_jax.guarantees import floats
from dd_jax.guarantees._gibbs_settings import (
    ROUNDING,
    least_noise,
    recursion,
    remedy,
    start_and_shift,
    whole_settings,
)


@floats.quiet
def gibbs_divergence_paper(
    order, l2, smoothness, bound, noise_variance, dim, step_size, num_steps, initial_divergence
):
    """Rényi divergence from the Gibbs law after K noisy steps on one database.

    R_q(Θ_K‖π) ≤ q exp(-ληK/(2B)) R_q(Θ_0‖π) + 32 d η q B M² / λ

    Guarantee: from any start. It also bounds KL(Θ_K‖π).
    Assumes: loss β-smooth and bounded by b; η ≤ λ / (64 B q² M²).
    `thm:convergence`.
    """
    rate, bias = _rate_paper(order, l2, smoothness, bound, noise_variance, dim, step_size)
    kept = checks.order(order) * np.exp(-floats.times(rate, checks.steps("num_steps", num_steps)))
    start = checks.nonnegative("initial_divergence", initial_divergence)
    return floats.plain_bound(floats.product(kept, start) + bias)


@floats.quiet
def step_size_limit_paper(order, l2, smoothness, bound, noise_variance, dim, eps_dd):
    """The largest step size of the paper's non-convex deletion theorem.

    η ≤ λ / (64 q B M²) · min(ε_dd/d, 1/q)

    `thm:deletion_accuracy_nonconvex` with the condition of `thm:convergence` (erratum E4).
    """
    order, dim = checks.order(order), checks.count("dim", dim)
    share = np.minimum(checks.positive("eps_dd", eps_dd) / dim, 1 / order)
    return floats.plain(
        _converging_paper(order, l2, smoothness, bound, noise_variance) * order * share
    )


@floats.quiet
def deletion_nonconvex_paper(
    order,
    l2,
    smoothness,
    bound,
    noise_variance,
    n,
    dim,
    step_size,
    learn_steps,
    delete_steps,
    edits_per_request=1,
    request=np.inf,
):
    """Rényi bound on what remains of deleted records, for given steps, by the paper's proof.

    ε_0 = a(K_L) · 2b/σ² + bias,   ε_i = a(K_U) (ε_{i-1} + 4rb/(nσ²)) + bias,
    a(K) = q exp(-ληK/(2B)),   bias = 32 d η q B M² / λ

    `request=numpy.inf` is the supremum over all requests i ≥ 1, infinite if a(K_U) ≥ 1.

    Guarantee: R_q(Θ̂_i‖π(D_i)) ≤ ε_i: (q, ε)-data-deletion of all records of a request at once, for
        every non-adaptive r-requester.
    Assumes: loss β-smooth and bounded by b; η ≤ λ / (64 B q² M²); start N(0, σ²/λ I).
    `thm:deletion_accuracy_nonconvex`, its proof's recursion.
    """
    rate, bias = _rate_paper(order, l2, smoothness, bound, noise_variance, dim, step_size)
    log_order = np.log(checks.order(order))
    learn = log_order - floats.times(rate, checks.steps("learn_steps", learn_steps))
    delete = log_order - floats.times(rate, checks.steps("delete_steps", delete_steps))
    start, shift = start_and_shift(bound, noise_variance, n, edits_per_request)
    first = np.exp(learn) * start + bias
    eps = recursion(first, delete, shift, bias, checks.steps("request", request))
    return floats.plain_bound(eps)


@floats.quiet
def settings_nonconvex_paper(
    order,
    l2,
    smoothness,
    bound,
    noise_variance,
    n,
    dim,
    eps_dd,
    edits_per_request=1,
    step_size=None,
):
    """Step size and step counts that meet a deletion budget at a given noise, by the paper's proof.

    K_L = (2B/(λη)) log(4qb/(σ² ε_dd)),   K_U = (2B/(λη)) log(2q (ε_dd + 4rb/(nσ²)) / ε_dd)

    Guarantee: (q, ε_dd)-data-deletion as in `deletion_nonconvex_paper`, after every request.
    Assumes: loss β-smooth and bounded by b; η at most, and by default, `step_size_limit_paper`;
        start N(0, σ²/λ I).
    `thm:deletion_accuracy_nonconvex`, part 2; K_U in its direct form (erratum E11).
    """
    limit = step_size_limit_paper(order, l2, smoothness, bound, noise_variance, dim, eps_dd)
    step_size = limit if step_size is None else checks.positive("step_size", step_size)
    _refuse_step_size(step_size, limit, "λ/(64qBM²) · min(ε_dd/d, 1/q)")
    start, shift = start_and_shift(bound, noise_variance, n, edits_per_request)
    order, eps_dd = checks.order(order), checks.positive("eps_dd", eps_dd)
    time = (
        2 * np.exp(4 * checks.positive("bound", bound) / noise_variance) / checks.positive("l2", l2)
    )
    learn = np.maximum(np.log(2 * order * start / eps_dd), 0)
    delete = np.log(2 * order * (1 + shift / eps_dd))
    return whole_settings(
        noise_variance, step_size, floats.times(time, learn), floats.times(time, delete)
    )


@floats.quiet
def noise_nonconvex_paper(
    order, lipschitz, l2, smoothness, bound, n, dim, eps_dp, eps_dd, edits_per_request=1
):
    """Least noise, with its steps, that meets a privacy and a deletion budget by the paper's proof.

    σ² ≥ q L² η max(K_L, K_U) / (ε_dp n²), where the steps depend on σ² through B = exp(4b/σ²)

    Guarantee: each run is (q, ε_dp)-Rényi DP, and deletion as in `settings_nonconvex_paper`.
    Assumes: loss L-Lipschitz, β-smooth and bounded by b; start N(0, σ²/λ I).
    `thm:deletion_accuracy_nonconvex`, parts 1 and 2.
    """

    def settings(noise_variance):
        return settings_nonconvex_paper(
            order, l2, smoothness, bound, noise_variance, n, dim, eps_dd, edits_per_request
        )

    return least_noise(settings, order, lipschitz, n, eps_dp)


def _converging_paper(order, l2, smoothness, bound, noise_variance):
    """λ / (64 B q² M²), the step-size limit of `thm:convergence`."""
    l2, smoothness = checks.positive("l2", l2), checks.nonnegative("smoothness", smoothness)
    ratio = checks.positive("bound", bound) / checks.positive("noise_variance", noise_variance)
    return np.exp(-4 * ratio) * l2 / (64 * (order * (l2 + smoothness)) ** 2)


def _rate_paper(order, l2, smoothness, bound, noise_variance, dim, step_size):
    """λη/(2B) and the bias 32 d η q B M²/λ, refused beyond the step-size limit."""
    order, step_size = checks.order(order), checks.positive("step_size", step_size)
    limit = _converging_paper(order, l2, smoothness, bound, noise_variance)
    _refuse_step_size(step_size, limit, "λ/(64Bq²M²)")
    rate = checks.positive("l2", l2) * step_size / 2 * np.exp(-4 * np.divide(bound, noise_variance))
    return rate, checks.count("dim", dim) * step_size / (2 * order * limit)


def _refuse_step_size(step_size, limit, condition):
    if not np.all(step_size <= limit * (1 + ROUNDING)):
        raise CertificateRefused(
            f"step_size = {np.max(step_size):g} is above {condition} = {np.min(limit):g}, which "
            f"the paper's proof needs; {remedy(np.min(limit))}, or use the tuned bound."
        )
