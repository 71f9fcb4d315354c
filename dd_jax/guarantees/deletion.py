"""What remains of a deleted record (`dfn:deletion`), for convex smooth losses.

The record was present for K_I steps (`present_steps`, counted from its first insertion to its last
deletion) and then the curator took K_U steps (`delete_steps`) without it. The comparator is the run
on the neighbouring database that never held the record, both ways. The claims are about one record;
for `records` rows judged jointly (all of one person's, or all of one request's) every ε grows by r²
and the clock runs from the last of their deletions (erratum E10). Write c = 1-ηλ. `smoothness` is
β, which only bounds the step size; it has no default, as 0 is right for a linear loss alone.
"""

import numpy as np

from dd_jax.guarantees import checks, privacy, renyi


def deletion_paper(
    order, lipschitz, l2, noise_variance, n, step_size, delete_steps, *, records=1, smoothness
):
    """Rényi bound on what remains of a deleted record, as the paper states it.

    ε(K_U) = 4 q L² / (λ σ² n²) · exp(-ηλK_U/2)

    Guarantee: (q, ε)-data-deletion for every non-adaptive requester.
    Assumes: convex, L-Lipschitz, β-smooth loss; η < 1/(λ+β); replace-one.
    `thm:data_deletion_convex`.
    """
    step_size = checks.step_size_strict(step_size, l2, smoothness)
    delete_steps = checks.steps("delete_steps", delete_steps)
    constants = (order, lipschitz, l2, noise_variance, n, step_size)
    present = privacy.privacy_convex(*constants, np.inf, records=records, smoothness=smoothness)
    return checks.plain(checks.product(present, checks.decay(0.5, step_size, l2, delete_steps)))


def deletion_unrelaxed(
    order,
    lipschitz,
    l2,
    noise_variance,
    n,
    step_size,
    delete_steps,
    *,
    present_steps=np.inf,
    records=1,
    smoothness,
):
    """Rényi bound on what remains of a deleted record, by the paper's proof without relaxations.

    ε(K_U) = 2 q L² / (c₁ σ² n²) · (1 - exp(-c₁ηK_I)) · exp(-2c₁ηK_U),  c₁ = λ(1 - ηλ/2)

    After the deletion both runs drift alike, so the divergence falls at twice the stated rate.

    Guarantee: (q, ε)-data-deletion for every non-adaptive requester.
    Assumes: convex, L-Lipschitz, β-smooth loss; η < 1/(λ+β); replace-one.
    From the proof of `thm:data_deletion_convex`.
    """
    step_size = checks.step_size_strict(step_size, l2, smoothness)
    delete_steps = checks.steps("delete_steps", delete_steps)
    constants = (order, lipschitz, l2, noise_variance, n, step_size)
    options = {"records": records, "smoothness": smoothness}
    present = privacy.privacy_unrelaxed(*constants, present_steps, **options)
    rate = (2, privacy.log_sobolev(step_size, l2), step_size)
    return checks.plain(checks.product(present, checks.decay(*rate, delete_steps)))


def deletion_optimal(
    order,
    lipschitz,
    l2,
    noise_variance,
    n,
    step_size,
    delete_steps,
    *,
    present_steps=np.inf,
    records=1,
    smoothness,
):
    """Rényi bound on what remains of a deleted record, for convex smooth losses.

    ε(K_U) = q L² (2 - ηλ) / (λ σ² n²) · (1 - ηλ)^(2 K_U)

    and, for a record that was present for K_I steps only, times (1 - c^K_I)² / (1 - c^(2(K_I +
    K_U))).

    Guarantee: (q, ε)-data-deletion for every non-adaptive requester, from any start, and μ-GDP with
    μ = √(2ε/q).
    Assumes: convex, L-Lipschitz, β-smooth loss; η ≤ 2 / (2λ + β); replace-one.
    Attained by the linear loss from a fixed start. Tightens `thm:data_deletion_convex`.
    """
    step_size = checks.step_size_optimal(step_size, l2, smoothness)
    delete_steps = checks.steps("delete_steps", delete_steps)
    present_steps = checks.steps("present_steps", present_steps)
    supremum = privacy.optimal_supremum(order, lipschitz, l2, noise_variance, n, step_size, records)
    remaining = _remaining(step_size, l2, present_steps, delete_steps)
    return checks.plain(checks.product(supremum, *remaining))


def deletion_optimal_mu(
    lipschitz,
    l2,
    noise_variance,
    n,
    step_size,
    delete_steps,
    *,
    present_steps=np.inf,
    records=1,
    smoothness,
):
    """Gaussian DP bound on what remains of a deleted record: √(2ε/q), ε of `deletion_optimal`.

    Guarantee: telling the run from its neighbour is at least as hard as N(0, 1) from N(μ, 1), for
    every non-adaptive requester.
    Assumes: what `deletion_optimal` assumes.
    """
    eps = deletion_optimal(
        2,
        lipschitz,
        l2,
        noise_variance,
        n,
        step_size,
        delete_steps,
        present_steps=present_steps,
        records=records,
        smoothness=smoothness,
    )
    return renyi.gdp_from_linear_renyi(2, eps)


def delete_steps_paper(
    order, lipschitz, l2, noise_variance, n, step_size, eps_dd, *, records=1, smoothness
):
    """The fewest steps for which `deletion_paper` is at most eps_dd.

    K_U = ⌈2/(ηλ) · log(4qL² / (λ σ² n² ε_dd))⌉, at least 0. `thm:data_deletion_convex`.
    """
    constants = (order, lipschitz, l2, noise_variance, n, step_size)
    options = {"records": records, "smoothness": smoothness}
    rate = checks.product(step_size, l2) / 2
    return _fewest_steps(deletion_paper, constants, options, eps_dd, rate, -np.inf)


def delete_steps_unrelaxed(
    order,
    lipschitz,
    l2,
    noise_variance,
    n,
    step_size,
    eps_dd,
    *,
    present_steps=np.inf,
    records=1,
    smoothness,
):
    """The fewest steps for which `deletion_unrelaxed` is at most eps_dd.

    K_U = ⌈log(ε(0)/ε_dd) / (2c₁η)⌉, at least 0.
    """
    constants = (order, lipschitz, l2, noise_variance, n, step_size)
    options = {"present_steps": present_steps, "records": records, "smoothness": smoothness}
    step_size = checks.positive("step_size", step_size)
    rate = checks.product(2, privacy.log_sobolev(step_size, l2), step_size)
    return _fewest_steps(deletion_unrelaxed, constants, options, eps_dd, rate, -np.inf)


def delete_steps_optimal(
    order,
    lipschitz,
    l2,
    noise_variance,
    n,
    step_size,
    eps_dd,
    *,
    present_steps=np.inf,
    records=1,
    smoothness,
):
    """The fewest steps for which `deletion_optimal` is at most eps_dd.

    K_U = ⌈log(ε_dp/ε_dd) / (-2 log(1-ηλ))⌉, at least 0, with ε_dp the bound at K_U = 0; fewer for a
    record that was present for K_I steps only.
    """
    step_size = checks.step_size_optimal(step_size, l2, smoothness)
    constants = (order, lipschitz, l2, noise_variance, n, step_size)
    options = {"present_steps": present_steps, "records": records, "smoothness": smoothness}
    present_steps = checks.steps("present_steps", present_steps)
    rate = -2 * privacy.contraction_exponent(step_size, l2, 1)
    past = 2 * privacy.contraction_exponent(step_size, l2, present_steps)
    return _fewest_steps(deletion_optimal, constants, options, eps_dd, rate, past)


def delete_steps_optimal_mu(
    lipschitz,
    l2,
    noise_variance,
    n,
    step_size,
    mu_dd,
    *,
    present_steps=np.inf,
    records=1,
    smoothness,
):
    """The fewest steps for which `deletion_optimal_mu` is at most mu_dd.

    K_U = ⌈log(μ_dp/μ_dd) / (-log(1-ηλ))⌉, at least 0.
    """
    mu_dd = checks.positive("mu_dd", mu_dd)
    return delete_steps_optimal(
        2,
        lipschitz,
        l2,
        noise_variance,
        n,
        step_size,
        mu_dd**2,
        present_steps=present_steps,
        records=records,
        smoothness=smoothness,
    )


def _remaining(step_size, l2, present_steps, delete_steps):
    """Factors of c^(2K_U) (1 - c^K_I)² / (1 - c^(2(K_I + K_U))), the share of the DP bound left.

    Factors, as their product may underflow where the bound does not.
    """
    present = -np.expm1(privacy.contraction_exponent(step_size, l2, present_steps))
    with np.errstate(all="ignore"):
        both = -np.expm1(
            2 * privacy.contraction_exponent(step_size, l2, present_steps + delete_steps)
        )
        share = np.where(present_steps == 0, 0.0, np.minimum(present / both, 1.0))
        kept = checks.power(2 * privacy.contraction_exponent(step_size, l2, delete_steps))
    return present, share, kept


def _fewest_steps(bound, constants, options, eps_dd, rate, past):
    """The least K with ε(K) = ε(0) y (1-x)/(1-xy) ≤ eps_dd, y = e^(-rate·K), x = e^past."""
    eps_dd = checks.positive("eps_dd", eps_dd)
    start = bound(*constants, 0, **options)
    with np.errstate(all="ignore"):
        inverse = checks.product(start, 1 / eps_dd, -np.expm1(past)) + np.exp(past)
        steps = np.ceil(np.log(inverse) / rate)
    steps = np.where(np.isnan(steps), np.inf, np.maximum(steps, 0.0))
    for _ in range(2):  # rounding may have put the ceiling one off, either way
        steps = np.where(bound(*constants, steps, **options) > eps_dd, steps + 1, steps)
    fewer = np.maximum(steps - 1, 0.0)
    return checks.plain(np.where(bound(*constants, fewer, **options) <= eps_dd, fewer, steps))
