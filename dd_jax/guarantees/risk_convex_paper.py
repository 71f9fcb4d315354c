"""Excess empirical risk for convex losses, as the paper's lemmas and theorem state it.

κ = (λ+β)/λ. `dd_jax.guarantees.risk_convex` has tighter bounds.
"""

import numpy as np

from dd_jax.guarantees import checks


@checks.quiet
def excess_risk_after_edit(lipschitz, l2, smoothness, n, edits_per_request, excess_risk):
    """Excess risk of an unchanged model once r records are replaced.

    err(Θ; D∘u) ≤ κ [2 err(Θ; D) + 16 r² L² / (λ n²)]

    Guarantee: for every model, database and edit of at most r records.
    Assumes: convex, L-Lipschitz, β-smooth loss.
    `lem:excess_risk_after_edit`.
    """
    lipschitz, l2 = checks.positive("lipschitz", lipschitz), checks.positive("l2", l2)
    kappa = 1 + checks.nonnegative("smoothness", smoothness) / l2
    share = checks.edited_share(n, edits_per_request)
    before = checks.nonnegative("excess_risk", excess_risk)
    edited = checks.product(16, share, share, lipschitz, lipschitz, 1 / l2)
    return checks.plain(checks.product(kappa, 2 * before + edited))


@checks.quiet
def excess_risk_noisy_gd(
    l2, smoothness, noise_variance, dim, step_size, num_steps, initial_excess_risk
):
    """Excess risk after K steps of noisy gradient descent.

    err(Θ_K) ≤ err(Θ_0) exp(-ληK/2) + κ d σ²

    Guarantee: on any one database, from any start.
    Assumes: convex, Lipschitz, β-smooth loss; η < 1/(λ+β).
    `lem:excess_risk_convex`.
    """
    l2, smoothness = checks.positive("l2", l2), checks.nonnegative("smoothness", smoothness)
    step_size = checks.step_size_strict(step_size, l2, smoothness)
    left = np.exp(-checks.times(l2 * step_size / 2, checks.steps("num_steps", num_steps)))
    start = checks.nonnegative("initial_excess_risk", initial_excess_risk)
    noise = (
        (1 + smoothness / l2)
        * checks.count("dim", dim)
        * checks.positive("noise_variance", noise_variance)
    )
    return checks.plain_bound(checks.product(start, left) + noise)


@checks.quiet
def excess_risk_convex_paper(order, lipschitz, l2, smoothness, n, dim, eps_dp):
    """Excess risk of every released model under the paper's convex plan.

    err(Θ̂_i; D_i) ≤ 10 κ q d L² / (λ ε_dp n²) for all i ≥ 0

    Guarantee: for every r-requester, adaptive ones too.
    Assumes: convex, L-Lipschitz, β-smooth loss; η = 1/(2M); σ² = 4qL²/(λ ε_dp n²); the start is
        N(0, σ²/(λ(1-ηλ/2)) I); at least `learn_steps_convex_paper` and `delete_steps_convex_paper`
        steps.
    `thm:unlearning_accuracy_convex`, part 3, with the constant of its proof.
    """
    order, lipschitz, l2 = (
        checks.order(order),
        checks.positive("lipschitz", lipschitz),
        checks.positive("l2", l2),
    )
    kappa = 1 + checks.nonnegative("smoothness", smoothness) / l2
    n, dim, eps_dp = (
        checks.count("n", n),
        checks.count("dim", dim),
        checks.positive("eps_dp", eps_dp),
    )
    share = lipschitz / n
    return checks.plain(checks.product(10, kappa, order, dim, share, share, 1 / l2, 1 / eps_dp))


@checks.quiet
def learn_steps_convex_paper(order, l2, smoothness, n, dim, eps_dp):
    """Learning steps for `excess_risk_convex_paper`.

    K_L = max(0, ⌈4κ log(ε_dp n² / (4 q d))⌉)

    `thm:unlearning_accuracy_convex`, part 3.
    """
    order, l2, dim = checks.order(order), checks.positive("l2", l2), checks.count("dim", dim)
    kappa = 1 + checks.nonnegative("smoothness", smoothness) / l2
    gap = checks.positive("eps_dp", eps_dp) * checks.count("n", n) ** 2 / (4 * order * dim)
    return checks.plain(np.ceil(4 * kappa * np.maximum(np.log(gap), 0)))


@checks.quiet
def delete_steps_convex_paper(order, l2, smoothness, dim, eps_dp, edits_per_request=1):
    """Deletion steps for `excess_risk_convex_paper` (utility only; deletion may need more).

    K_U = ⌈4κ log max{5κ, 8 ε_dp r² / (q d)}⌉

    `thm:unlearning_accuracy_convex`, part 3.
    """
    order, l2, dim = checks.order(order), checks.positive("l2", l2), checks.count("dim", dim)
    kappa = 1 + checks.nonnegative("smoothness", smoothness) / l2
    edits = checks.count("edits_per_request", edits_per_request)
    jump = 8 * checks.positive("eps_dp", eps_dp) * edits**2 / (order * dim)
    return checks.plain(np.ceil(4 * kappa * np.log(np.maximum(5 * kappa, jump))))
