"""Non-convex deletion by the paper's proof with its constants kept (erratum E5), in three forms.

Each form is valid and tighter than the one before:

* "tuned": LSI constant λ/Λ, Λ = exp(2b/σ²), and the discretisation error with its constants;
* "refined": also keeps the factor (q-1)/q of the KL step;
* "sharp": also lets the discretisation error build up only as the start is forgotten, and takes the
  start's divergence from Hoeffding's lemma, R_q ≤ q b²/(2σ⁴), where that is smaller.

M = λ+β, κ = M/λ.
"""

import numpy as np

from dd_jax import checks
from dd_jax.errors import CertificateRefused, InputError
from dd_jax.guarantees import floats
from dd_jax.guarantees._gibbs_settings import (
    least_noise,
    recursion,
    remedy,
    start_and_shift,
    whole_settings,
)

FORMS = ("tuned", "refined", "sharp")
_LOG_2 = np.log(2)


@floats.quiet
def gibbs_divergence_tuned(
    order,
    l2,
    smoothness,
    bound,
    noise_variance,
    dim,
    step_size,
    num_steps,
    initial_divergence,
    form="sharp",
):
    """Rényi divergence from the Gibbs law after K noisy steps on one database, tuned.

    R_q(Θ_K‖π) ≤ q e^(-c₁ηK) R_q(Θ_0‖π) + (16 q d η M² (ηM + log 2) / c₁) (1 - e^(-c₁ηK)),
    c₁ = 2 (3/4 - ϑ) λ/Λ,   ϑ = 8 η q² M² (η + 2Λ(q-1)/(qλ)) < 3/4

    The form "tuned" has 1 for (q-1)/q; only "sharp" keeps the last factor.

    Guarantee: from any start. It also bounds KL(Θ_K‖π).
    Assumes: loss β-smooth and bounded by b; ϑ < 3/4.
    Tightens `thm:convergence` through `lem:lsi_perturbation` (erratum E5).
    """
    rate, bias = _rate_tuned(order, l2, smoothness, bound, noise_variance, dim, step_size, form)
    exponent = -floats.times(rate, checks.steps("num_steps", num_steps))
    start = checks.nonnegative("initial_divergence", initial_divergence)
    built = -np.expm1(exponent) if form == "sharp" else 1.0
    kept = floats.product(checks.order(order), np.exp(exponent), start)
    return floats.plain_bound(kept + bias * built)


@floats.quiet
def deletion_nonconvex_tuned(
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
    form="sharp",
):
    """Rényi bound on what remains of deleted records, for given steps, by the tuned proof.

    ε_0 = e^(-c₁ηK_L) q·start + bias,   ε_i = e^(-c₁ηK_U) (ε_{i-1} + 4qrb/(nσ²)) + bias,
    start = 2b/σ²,   bias = 16 q d η M² (ηM + log 2) / c₁,   c₁ as in `gibbs_divergence_tuned`;
    "sharp": start = min{2b/σ², b²/(2σ⁴)} and bias times 1 - e^(-c₁ηK)

    `request=numpy.inf` is the supremum over all requests i ≥ 1, infinite if K_U = 0.

    Guarantee: R_q'(Θ̂_i‖π(D_i)) ≤ (q'/q) ε_i for all q' ≤ q: (q, ε)-data-deletion of all records of
        a request at once, for every non-adaptive r-requester.
    Assumes: loss β-smooth and bounded by b; ϑ < 3/4; start N(0, σ²/λ I).
    Tightens `thm:deletion_accuracy_nonconvex`, part 2 (erratum E5).
    """
    rate, bias = _rate_tuned(order, l2, smoothness, bound, noise_variance, dim, step_size, form)
    start, shift = start_and_shift(bound, noise_variance, n, edits_per_request, form)
    order = checks.order(order)
    learn = -floats.times(rate, checks.steps("learn_steps", learn_steps))
    delete = -floats.times(rate, checks.steps("delete_steps", delete_steps))
    built = (-np.expm1(learn), -np.expm1(delete)) if form == "sharp" else (1.0, 1.0)
    first = np.exp(learn) * order * start + bias * built[0]
    request = checks.steps("request", request)
    eps = recursion(first, delete, order * shift, bias * built[1], request)
    return floats.plain_bound(eps)


@floats.quiet
def settings_nonconvex_tuned(
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
    form="sharp",
):
    """Step size and step counts that meet a deletion budget at a given noise, by the tuned proof.

    With f = bias/ε_dd < 1 (the share of the budget that discretisation takes):
    K_L = log(q·start / ((1-f) ε_dd)) / (c₁η),
    K_U = log((1 + 4qrb/(nσ² ε_dd)) / (1-f)) / (c₁η);
    "sharp": K_L = log((q·start/ε_dd - f) / (1-f)) / (c₁η),
    K_U = log(1 + 4qrb/(nσ² ε_dd) / (1-f)) / (c₁η)

    By default η is chosen, through f, so that K_L + K_U is least.

    Guarantee: (q, ε_dd)-data-deletion as in `deletion_nonconvex_tuned`, after every request.
    Assumes: loss β-smooth and bounded by b; ϑ < 3/4; f < 1; start N(0, σ²/λ I).
    Tightens `thm:deletion_accuracy_nonconvex`, part 2 (erratum E5). Scalars only.
    """
    order, l2 = checks.order(order), checks.positive("l2", l2)
    curvature = l2 + checks.nonnegative("smoothness", smoothness)
    eps_dd, dim = checks.positive("eps_dd", eps_dd), checks.count("dim", dim)
    start, shift = start_and_shift(bound, noise_variance, n, edits_per_request, form)
    log_scale = np.log(curvature / l2) + 2 * checks.positive("bound", bound) / noise_variance
    need = order * start / eps_dd, order * shift / eps_dd

    def needed(log_speed):
        return _times_tuned(log_speed, order, dim, eps_dd, log_scale, need, form)

    if step_size is None:
        log_speed = _best_speed(needed, order, dim, eps_dd, log_scale, form)
    else:
        log_speed = np.log(checks.positive("step_size", step_size) * curvature) + log_scale
    slack, learn, delete = needed(log_speed)
    if not slack > 0:
        given = "the best step size" if step_size is None else f"step_size = {float(step_size):g}"
        raise CertificateRefused(
            f"{given} leaves no room for this deletion budget: its "
            f"discretisation error alone reaches eps_dd = {float(eps_dd):g}; give a smaller step "
            f"size, or none to have it chosen."
        )
    step_size = np.exp(log_speed - log_scale) / curvature
    time = np.exp(log_scale) / (2 * slack * curvature)
    return whole_settings(
        noise_variance, step_size, floats.times(time, learn), floats.times(time, delete)
    )


@floats.quiet
def noise_nonconvex_tuned(
    order,
    lipschitz,
    l2,
    smoothness,
    bound,
    n,
    dim,
    eps_dp,
    eps_dd,
    edits_per_request=1,
    form="sharp",
):
    """Least noise, with its steps, that meets a privacy and a deletion budget by the tuned proof.

    σ² ≥ q L² η max(K_L, K_U) / (ε_dp n²), where the steps depend on σ² through Λ = exp(2b/σ²);
    η is the one with the fewest steps at each σ²

    Guarantee: each run is (q, ε_dp)-Rényi DP, and deletion as in `settings_nonconvex_tuned`.
    Assumes: loss L-Lipschitz, β-smooth and bounded by b; start N(0, σ²/λ I).
    Tightens `thm:deletion_accuracy_nonconvex`, parts 1 and 2. Scalars only.
    """

    def settings(noise_variance):
        return settings_nonconvex_tuned(
            order,
            l2,
            smoothness,
            bound,
            noise_variance,
            n,
            dim,
            eps_dd,
            edits_per_request,
            form=form,
        )

    return least_noise(settings, order, lipschitz, n, eps_dp)


def _rate_tuned(order, l2, smoothness, bound, noise_variance, dim, step_size, form):
    """c₁η and the bias 16 q d η M² (ηM + log 2)/c₁, refused where the proof does not reach."""
    order, l2 = checks.order(order), checks.positive("l2", l2)
    curvature = l2 + checks.nonnegative("smoothness", smoothness)
    noise_variance = checks.positive("noise_variance", noise_variance)
    move = checks.positive("step_size", step_size) * curvature
    log_scale = np.log(curvature / l2) + 2 * checks.positive("bound", bound) / noise_variance
    speed = move * np.exp(log_scale)
    slack = _slack(move, speed, order, form)
    if not np.all(slack > 0):
        raise CertificateRefused(
            f"step_size = {np.max(move / curvature):g} is too large for the tuned bound, which "
            f"needs ϑ = 8ηq²M²(η + 2Λ/λ) < 3/4; "
            f"{remedy(np.min(_safe_move(order, log_scale, form) / curvature))}."
        )
    bias = 8 * checks.count("dim", dim) * order * speed * (move + _LOG_2) / slack
    return 2 * slack * move * np.exp(-log_scale), bias


def _slack(move, speed, order, form):
    """3/4 - ϑ for move = ηM and speed = ηMκΛ; positive, it implies the proof's η ≤ 1/(2√2 M)."""
    spent = 8 * (order * move) ** 2 + 16 * order**2 * _kl_factor(order, form) * speed
    return 0.75 - spent


def _safe_move(order, log_scale, form):
    """A value of ηM with ϑ ≤ 1/2."""
    by_speed = np.exp(-log_scale) / (64 * order**2 * _kl_factor(order, form))
    return np.minimum(by_speed, 1 / (6 * order))


def _kl_factor(order, form):
    """The factor that the KL step leaves: 1, or (q-1)/q."""
    if form not in FORMS:
        raise InputError(f"form = {form!r} is not known; give one of {', '.join(FORMS)}.")
    return np.ones_like(order) if form == "tuned" else (order - 1) / order


def _times_tuned(log_speed, order, dim, eps_dd, log_scale, need, form):
    """(3/4 - ϑ, c₁ηK_L, c₁ηK_U); the first is not positive where the step is too large."""
    move, speed = np.exp(log_speed - log_scale), np.exp(log_speed)
    slack = _slack(move, speed, order, form)
    share = 8 * dim * order * speed * (move + _LOG_2) / (slack * eps_dd)
    room = np.where((slack > 0) & (share < 1), 1 - share, np.nan)
    if form == "sharp":
        learn, delete = np.log1p((need[0] - 1) / room), np.log1p(need[1] / room)
    else:
        learn, delete = np.log(need[0] / room), np.log1p((need[1] + share) / room)
    return np.where(np.isnan(room), -1.0, slack), np.where(learn > 0, learn, 0), delete


def _best_speed(needed, order, dim, eps_dd, log_scale, form):
    """log(ηMκΛ) with the least K_L + K_U: a grid below the limits, narrowed around its best."""
    limits = (
        np.log(3 / 64) - 2 * np.log(order) - np.log(_kl_factor(order, form)),
        np.log(3 / 32 / _LOG_2) + np.log(eps_dd) - np.log(order * dim),
        np.log(3 / 32) / 2 - np.log(order) + log_scale,
    )
    low, high = min(limits) - 10, min(limits)
    for _ in range(5):
        grid = np.linspace(low, high, 80)
        slack, learn, delete = needed(grid)
        cost = np.where(slack > 0, np.log((learn + delete) / slack) - grid, np.inf)
        best = np.argmin(cost)
        low, high = grid[max(best - 1, 0)], grid[min(best + 1, grid.size - 1)]
    return grid[best]
