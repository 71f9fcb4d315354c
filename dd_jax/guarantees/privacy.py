"""What the releases of noisy gradient descent say about a record that stays.

One step is θ ← θ - η∇ℒ(θ) + N(0, 2ησ² I). Adjacency is replace-one with n fixed, so the mean
gradient has sensitivity 2L/n; with `records` rows of one person replaced it is 2Lr/n and every ε
grows by r². All bounds are linear in the order and two-sided. `num_steps=numpy.inf` gives the
supremum over steps. Write c = 1-ηλ. `smoothness` is β, which only bounds the step size; it has no
default, as 0 is right for a linear loss alone.
"""

import numpy as np

from dd_jax.guarantees import checks, renyi


def privacy_lipschitz(order, lipschitz, noise_variance, n, step_size, num_steps, *, records=1):
    """Rényi DP of K noisy steps for any Lipschitz loss, by composition.

    ε = q L² η K / (σ² n²)

    Guarantee: (q, ε)-Rényi DP of the last model and of all K iterates jointly, adaptively too.
    Assumes: L-Lipschitz (or clipped) gradients; replace-one. `thm:abadi`.
    """
    order = checks.order(order)
    step_size = checks.positive("step_size", step_size)
    num_steps = checks.steps("num_steps", num_steps)
    shift = _half_sensitivity(lipschitz, n, records)
    noise = checks.positive("noise_variance", noise_variance)
    factors = (order, *shift, *shift, step_size, num_steps, _inverse(noise))
    return checks.plain(checks.product(*factors))


def privacy_convex(
    order, lipschitz, l2, noise_variance, n, step_size, num_steps, *, records=1, smoothness
):
    """Rényi DP of K noisy steps for convex smooth losses, as the paper states it.

    ε = 4 q L² / (λ σ² n²) · (1 - exp(-λ η K / 2))

    Guarantee: (q, ε)-Rényi DP of the last model.
    Assumes: convex, L-Lipschitz, β-smooth loss; η < 1/(λ+β); a start independent of the data.
    `thm:chourasia`; looser than `privacy_lipschitz` for few steps.
    """
    step_size = checks.step_size_strict(step_size, l2, smoothness)
    num_steps = checks.steps("num_steps", num_steps)
    scale = _scale(order, lipschitz, l2, noise_variance, n, records)
    decay = checks.product(0.5, step_size, l2, num_steps)
    return checks.plain(checks.product(4, scale, -np.expm1(-decay)))


def privacy_paper(
    order, lipschitz, l2, noise_variance, n, step_size, num_steps, *, records=1, smoothness
):
    """The smaller of the paper's two bounds: `privacy_lipschitz` and `privacy_convex`.

    Guarantee: (q, ε)-Rényi DP of the last model.
    Assumes: what `privacy_convex` assumes. `thm:abadi`, `thm:chourasia`.
    """
    return checks.plain(
        np.minimum(
            privacy_lipschitz(
                order, lipschitz, noise_variance, n, step_size, num_steps, records=records
            ),
            privacy_convex(
                order,
                lipschitz,
                l2,
                noise_variance,
                n,
                step_size,
                num_steps,
                records=records,
                smoothness=smoothness,
            ),
        )
    )


def privacy_unrelaxed(
    order, lipschitz, l2, noise_variance, n, step_size, num_steps, *, records=1, smoothness
):
    """The paper's proof without its last relaxation, or composition where that is smaller.

    ε = min{2 q L² / (c₁ σ² n²) · (1 - exp(-c₁ η K)), q L² η K / (σ² n²)},  c₁ = λ(1 - ηλ/2)

    Guarantee: (q, ε)-Rényi DP of the last model.
    Assumes: convex, L-Lipschitz, β-smooth loss; η < 1/(λ+β); a start independent of the data.
    From the proof of `thm:chourasia` (see `thm:data_deletion_convex`) and `thm:abadi`.
    """
    step_size = checks.step_size_strict(step_size, l2, smoothness)
    num_steps = checks.steps("num_steps", num_steps)
    rate = log_sobolev(step_size, l2)
    scale = _scale(order, lipschitz, rate, noise_variance, n, records)
    convex = checks.product(2, scale, -np.expm1(-checks.product(rate, step_size, num_steps)))
    composed = privacy_lipschitz(
        order, lipschitz, noise_variance, n, step_size, num_steps, records=records
    )
    return checks.plain(np.minimum(convex, composed))


def privacy_optimal(
    order, lipschitz, l2, noise_variance, n, step_size, num_steps, *, records=1, smoothness
):
    """Rényi DP of K noisy steps for convex smooth losses; no smaller bound is true.

    ε = q L² (2 - ηλ) / (λ σ² n²) · (1 - c^K) / (1 + c^K)

    Guarantee: (q, ε)-Rényi DP of the last model from any start that is independent of the data, and
    μ-GDP with μ = √(2ε/q).
    Assumes: convex, L-Lipschitz, β-smooth loss; η ≤ 2/(2λ+β).
    Attained by the linear loss from a fixed start. Tightens `thm:chourasia` and `thm:abadi`.
    """
    step_size = checks.step_size_optimal(step_size, l2, smoothness)
    num_steps = checks.steps("num_steps", num_steps)
    supremum = optimal_supremum(order, lipschitz, l2, noise_variance, n, step_size, records)
    growth = np.tanh(-contraction_exponent(step_size, l2, num_steps) / 2)
    return checks.plain(checks.product(supremum, growth))


def privacy_optimal_mu(
    lipschitz, l2, noise_variance, n, step_size, num_steps, *, records=1, smoothness
):
    """Gaussian DP of K noisy steps: μ = √(2ε/q) with the ε of `privacy_optimal`.

    Guarantee: μ-GDP of the last model, hence exact (ε, δ) by `renyi.gdp_epsilon`.
    Assumes: what `privacy_optimal` assumes.
    """
    eps = privacy_optimal(
        2,
        lipschitz,
        l2,
        noise_variance,
        n,
        step_size,
        num_steps,
        records=records,
        smoothness=smoothness,
    )
    return renyi.gdp_from_linear_renyi(2, eps)


def privacy_lipschitz_mu(lipschitz, noise_variance, n, step_size, num_steps, *, records=1):
    """Gaussian DP of K noisy steps for any Lipschitz loss: μ = √(2 L² η K / (σ² n²)).

    Guarantee: μ-GDP of all K iterates jointly (K Gaussian mechanisms composed).
    Assumes: what `privacy_lipschitz` assumes. `thm:abadi`.
    """
    eps = privacy_lipschitz(2, lipschitz, noise_variance, n, step_size, num_steps, records=records)
    return renyi.gdp_from_linear_renyi(2, eps)


def privacy_adaptive(eps_dp, adaptivity):
    """One release, when the requester has seen p releases since the record's insertion.

    ε = (p + 1) ε_dp

    Guarantee: (q, ε)-Rényi DP of the next release against p-adaptive requesters, convex losses; it
    covers an observer who also holds the p releases seen.
    Assumes: eps_dp bounds one release from any fixed start (every convex bound here does).
    Erratum E9: ε_dp alone is false for p ≥ 1.
    """
    eps_dp = checks.nonnegative("eps_dp", eps_dp)
    adaptivity = checks.steps("adaptivity", adaptivity)
    return checks.plain(checks.product(adaptivity + 1, eps_dp))


def privacy_adaptive_mu(mu_dp, adaptivity):
    """`privacy_adaptive` for Gaussian DP: μ = √(p + 1) μ_dp."""
    mu_dp = checks.nonnegative("mu_dp", mu_dp)
    adaptivity = checks.steps("adaptivity", adaptivity)
    return checks.plain(checks.product(np.sqrt(adaptivity + 1), mu_dp))


def privacy_all_releases(
    order,
    lipschitz,
    l2,
    noise_variance,
    n,
    step_size,
    learn_steps,
    delete_steps,
    requests,
    *,
    records=1,
    smoothness,
):
    """All i+1 releases jointly, for a record that stays through i requests.

    ε = ε_dp [(1 - c^{K_L}) / (1 + c^{K_L}) + i (1 - c^{K_U}) / (1 + c^{K_U})],  ε_dp = sup_K

    Guarantee: (q, ε)-Rényi DP of (θ̂₀, …, θ̂_i) jointly, against requesters of any adaptivity, and
    μ-GDP with μ = √(2ε/q).
    Assumes: what `privacy_optimal` assumes. Attained by the linear loss from a fixed start.
    """
    constants = (order, lipschitz, l2, noise_variance, n, step_size)
    options = {"records": records, "smoothness": smoothness}
    requests = checks.steps("requests", requests)
    learned = privacy_optimal(*constants, learn_steps, **options)
    per_request = privacy_optimal(*constants, delete_steps, **options)
    later = np.where(requests == 0, 0.0, checks.product(requests, per_request))
    return checks.plain(learned + later)


def noise_variance_lipschitz(order, eps_dp, lipschitz, n, step_size, num_steps, *, records=1):
    """The least σ² for which `privacy_lipschitz` is at most eps_dp.

    σ² = q L² η K / (ε_dp n²)
    """
    unit = privacy_lipschitz(order, lipschitz, 1.0, n, step_size, num_steps, records=records)
    return _noise_for(unit, eps_dp)


def noise_variance_paper(
    order, eps_dp, lipschitz, l2, n, step_size, num_steps=np.inf, *, records=1, smoothness
):
    """The least σ² for which `privacy_paper` is at most eps_dp.

    σ² = 4 q L² / (λ ε_dp n²) for any number of steps. `thm:unlearning_accuracy_convex`.
    """
    unit = privacy_paper(
        order, lipschitz, l2, 1.0, n, step_size, num_steps, records=records, smoothness=smoothness
    )
    return _noise_for(unit, eps_dp)


def noise_variance_unrelaxed(
    order, eps_dp, lipschitz, l2, n, step_size, num_steps=np.inf, *, records=1, smoothness
):
    """The least σ² for which `privacy_unrelaxed` is at most eps_dp.

    σ² = 2 q L² / (λ(1 - ηλ/2) ε_dp n²) for any number of steps.
    """
    unit = privacy_unrelaxed(
        order, lipschitz, l2, 1.0, n, step_size, num_steps, records=records, smoothness=smoothness
    )
    return _noise_for(unit, eps_dp)


def noise_variance_optimal(
    order, eps_dp, lipschitz, l2, n, step_size, num_steps=np.inf, *, records=1, smoothness
):
    """The least σ² for which `privacy_optimal` is at most eps_dp.

    σ² = q L² (2 - ηλ) / (λ ε_dp n²) for any number of steps.
    """
    unit = privacy_optimal(
        order, lipschitz, l2, 1.0, n, step_size, num_steps, records=records, smoothness=smoothness
    )
    return _noise_for(unit, eps_dp)


def noise_variance_optimal_mu(
    mu_dp, lipschitz, l2, n, step_size, num_steps=np.inf, *, records=1, smoothness
):
    """The least σ² for which `privacy_optimal_mu` is at most mu_dp.

    σ² = 2 L² (2 - ηλ) / (λ μ_dp² n²) for any number of steps.
    """
    mu_dp = checks.positive("mu_dp", mu_dp)
    return noise_variance_optimal(
        2,
        mu_dp**2,
        lipschitz,
        l2,
        n,
        step_size,
        num_steps,
        records=records,
        smoothness=smoothness,
    )


def optimal_supremum(order, lipschitz, l2, noise_variance, n, step_size, records=1):
    """q L² r² (2 - ηλ) / (λ σ² n²): `privacy_optimal` for any number of steps."""
    product = np.clip(checks.positive("step_size", step_size) * l2, 0.0, 1.0)
    return checks.product(2 - product, _scale(order, lipschitz, l2, noise_variance, n, records))


def contraction_exponent(step_size, l2, num_steps):
    """K log(1 - ηλ), so that c^K is its exp and 1 - c^K minus its expm1; c⁰ = 1 even for c = 0."""
    product = np.clip(checks.product(step_size, l2), np.finfo(np.float64).tiny, 1.0)
    with np.errstate(all="ignore"):
        log_c = np.log1p(-product)
        exponent = num_steps * log_c
        # Finitely many steps of c > 0 leave something, also where K log c overflows.
        endless = np.isinf(num_steps) | (product == 1)
        exponent = np.where(endless, exponent, np.maximum(exponent, -1e300))
        return np.where(num_steps == 0, 0.0, exponent)


def log_sobolev(step_size, l2):
    """c₁ = λ(1 - ηλ/2), the log-Sobolev constant of every iterate (`lem:lsi_tracing`)."""
    return l2 * (1 - step_size * l2 / 2)


def _scale(order, lipschitz, l2, noise_variance, n, records):
    """q L² r² / (λ σ² n²)."""
    order = checks.order(order)
    l2 = checks.positive("l2", l2)
    noise = checks.positive("noise_variance", noise_variance)
    shift = _half_sensitivity(lipschitz, n, records)
    return checks.product(order, *shift, *shift, _inverse(l2), _inverse(noise))


def _half_sensitivity(lipschitz, n, records):
    """Factors of Lr/n, half of how far replacing r records moves the mean gradient.

    Factors, as their product or its square may underflow where the bound does not.
    """
    lipschitz = checks.nonnegative("lipschitz", lipschitz)
    return lipschitz, 1 / checks.count("n", n), checks.count("records", records)


def _noise_for(unit, eps_dp):
    """Every bound is ε(1)/σ²; rounded up, so that the bound at this σ² is at most eps_dp."""
    eps_dp = checks.positive("eps_dp", eps_dp)
    up = 1 + 16 * np.finfo(np.float64).eps
    return checks.plain(checks.product(unit, up, _inverse(eps_dp)))


def _inverse(x):
    with np.errstate(all="ignore"):
        return 1 / x
