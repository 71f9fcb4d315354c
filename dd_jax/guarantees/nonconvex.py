"""Data deletion for bounded non-convex losses, by convergence to the Gibbs law π(D) ∝ exp(-ℒ_D/σ²).

The comparator is the Gibbs law of the edited database and the bound is one-sided, R_q(Θ̂_i‖π(D_i));
it needs the start N(0, σ²/λ I) exactly (erratum E11) and a non-adaptive requester (erratum E2).
A bound is a function of one `Bounded`, of σ² and η, and of step counts.

There are two proofs, each in both directions (steps for a budget, budget for given steps) and with
the noise that privacy needs. `…_paper` follows the non-convex trade-off theorem
(`thm:deletion_accuracy_nonconvex`) and the convergence theorem it rests on (`thm:convergence`),
with both step conditions (erratum E4), B = exp(4b/σ²). `…_tuned` keeps the constants of the proof
and needs only the oscillation of the loss (erratum E5), in three forms, each valid and tighter than
the one before:

* "tuned": LSI constant λ/Λ, Λ = exp(2b/σ²), and the discretisation error with its constants;
* "refined": also keeps the factor (q-1)/q of the KL step;
* "sharp": also lets the discretisation error build up only as the start is forgotten, and takes the
  start's divergence from Hoeffding's lemma, R_q ≤ q b²/(2σ⁴), where that is smaller.

Notation: M = λ+β, κ = M/λ. Step counts are whole floats, infinite where they overflow.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dd_jax import checks
from dd_jax.errors import CertificateRefused
from dd_jax.guarantees import floats

FORMS = ("tuned", "refined", "sharp")
_ROUNDING = 1e-12
_LOG_2 = np.log(2)


@dataclass(frozen=True)
class Bounded:
    """Everything that a bound on a bounded loss depends on, except the noise and the steps.

    Fields are numbers or arrays that broadcast; they are checked once, here.

    Attributes:
        order: q > 1, the Rényi order.
        lipschitz: L, which only the noise for a privacy budget depends on.
        l2: λ. smoothness: β. bound: b, on the loss's absolute value.
        n: number of records. dim: d.
        records: r, how many records one request edits.
    """

    order: Any
    lipschitz: Any
    l2: Any
    smoothness: Any
    bound: Any
    n: Any
    dim: Any
    records: Any = 1

    def __post_init__(self):
        checked = {
            "order": checks.order(self.order),
            "lipschitz": checks.positive("lipschitz", self.lipschitz),
            "l2": checks.positive("l2", self.l2),
            "smoothness": checks.nonnegative("smoothness", self.smoothness),
            "bound": checks.positive("bound", self.bound),
            "n": checks.count("n", self.n),
            "dim": checks.count("dim", self.dim),
            "records": checks.count("records", self.records),
        }
        checks.edited_share(checked["n"], checked["records"])
        for name, value in checked.items():
            object.__setattr__(self, name, value)  # arrays of NumPy's overflow to ∞, as they should

    @property
    def curvature(self):
        """M = λ+β."""
        return self.l2 + self.smoothness


class NonconvexSettings(NamedTuple):
    """What a non-convex run needs: σ², η, K_L and K_U (whole floats, possibly infinite)."""

    noise_variance: float
    step_size: float
    learn_steps: float
    delete_steps: float


# --- the paper's proof --------------------------------------------------------------------------


@floats.quiet
def gibbs_divergence_paper(
    problem: Bounded, noise_variance, step_size, num_steps, initial_divergence
):
    """Rényi divergence from the Gibbs law after K noisy steps on one database.

    R_q(Θ_K‖π) ≤ q exp(-ληK/(2B)) R_q(Θ_0‖π) + 32 d η q B M² / λ

    Guarantee: from any start. It also bounds KL(Θ_K‖π).
    Assumes: loss β-smooth and bounded by b; η ≤ λ / (64 B q² M²).
    `thm:convergence`.
    """
    rate, bias = _rate_paper(problem, noise_variance, step_size)
    kept = problem.order * np.exp(-floats.times(rate, checks.steps("num_steps", num_steps)))
    start = checks.nonnegative("initial_divergence", initial_divergence)
    return floats.plain_bound(floats.product(kept, start) + bias)


@floats.quiet
def step_size_limit_paper(problem: Bounded, noise_variance, eps_dd):
    """The largest step size of the paper's non-convex deletion theorem.

    η ≤ λ / (64 q B M²) · min(ε_dd/d, 1/q)

    `thm:deletion_accuracy_nonconvex` with the condition of `thm:convergence` (erratum E4).
    """
    order = problem.order
    share = np.minimum(checks.positive("eps_dd", eps_dd) / problem.dim, 1 / order)
    return floats.plain(_converging_paper(problem, noise_variance) * order * share)


@floats.quiet
def deletion_nonconvex_paper(
    problem: Bounded, noise_variance, step_size, learn_steps, delete_steps, request=np.inf
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
    rate, bias = _rate_paper(problem, noise_variance, step_size)
    log_order = np.log(problem.order)
    learn = log_order - floats.times(rate, checks.steps("learn_steps", learn_steps))
    delete = log_order - floats.times(rate, checks.steps("delete_steps", delete_steps))
    start, shift = _start_and_shift(problem, noise_variance)
    first = np.exp(learn) * start + bias
    eps = _recursion(first, delete, shift, bias, checks.steps("request", request))
    return floats.plain_bound(eps)


@floats.quiet
def settings_nonconvex_paper(problem: Bounded, noise_variance, eps_dd, step_size=None):
    """Step size and step counts that meet a deletion budget at a given noise, by the paper's proof.

    K_L = (2B/(λη)) log(4qb/(σ² ε_dd)),   K_U = (2B/(λη)) log(2q (ε_dd + 4rb/(nσ²)) / ε_dd)

    Guarantee: (q, ε_dd)-data-deletion as in `deletion_nonconvex_paper`, after every request.
    Assumes: loss β-smooth and bounded by b; η at most, and by default, `step_size_limit_paper`;
        start N(0, σ²/λ I).
    `thm:deletion_accuracy_nonconvex`, part 2; K_U in its direct form (erratum E11).
    """
    limit = step_size_limit_paper(problem, noise_variance, eps_dd)
    step_size = limit if step_size is None else checks.positive("step_size", step_size)
    _refuse_step_size(step_size, limit, "λ/(64qBM²) · min(ε_dd/d, 1/q)")
    start, shift = _start_and_shift(problem, noise_variance)
    order, eps_dd = problem.order, checks.positive("eps_dd", eps_dd)
    time = 2 * np.exp(4 * problem.bound / noise_variance) / problem.l2
    learn = np.maximum(np.log(2 * order * start / eps_dd), 0)
    delete = np.log(2 * order * (1 + shift / eps_dd))
    return _whole_settings(
        noise_variance, step_size, floats.times(time, learn), floats.times(time, delete)
    )


def noise_nonconvex_paper(problem: Bounded, eps_dp, eps_dd):
    """Least noise, with its steps, that meets a privacy and a deletion budget by the paper's proof.

    σ² ≥ q L² η max(K_L, K_U) / (ε_dp n²), where the steps depend on σ² through B = exp(4b/σ²)

    Guarantee: each run is (q, ε_dp)-Rényi DP, and deletion as in `settings_nonconvex_paper`.
    Assumes: loss L-Lipschitz, β-smooth and bounded by b; start N(0, σ²/λ I).
    `thm:deletion_accuracy_nonconvex`, parts 1 and 2. Scalars only.
    """
    return _least_noise(
        lambda noise_variance: settings_nonconvex_paper(problem, noise_variance, eps_dd),
        problem,
        eps_dp,
    )


def _converging_paper(problem, noise_variance):
    """λ / (64 B q² M²), the step-size limit of `thm:convergence`."""
    ratio = problem.bound / checks.positive("noise_variance", noise_variance)
    return np.exp(-4 * ratio) * problem.l2 / (64 * (problem.order * problem.curvature) ** 2)


def _rate_paper(problem, noise_variance, step_size):
    """λη/(2B) and the bias 32 d η q B M²/λ, refused beyond the step-size limit."""
    step_size = checks.positive("step_size", step_size)
    limit = _converging_paper(problem, noise_variance)
    _refuse_step_size(step_size, limit, "λ/(64Bq²M²)")
    rate = problem.l2 * step_size / 2 * np.exp(-4 * np.divide(problem.bound, noise_variance))
    return rate, problem.dim * step_size / (2 * problem.order * limit)


def _refuse_step_size(step_size, limit, condition):
    if not np.all(step_size <= limit * (1 + _ROUNDING)):
        raise CertificateRefused(
            f"step_size = {np.max(step_size):g} is above {condition} = {np.min(limit):g}, which "
            f"the paper's proof needs; {_remedy(np.min(limit))}, or use the tuned bound."
        )


# --- the same proof with its constants kept, in three forms ---------------------------------------


@floats.quiet
def gibbs_divergence_tuned(
    problem: Bounded, noise_variance, step_size, num_steps, initial_divergence, form="sharp"
):
    """Rényi divergence from the Gibbs law after K noisy steps on one database, tuned.

    R_q(Θ_K‖π) ≤ q e^(-c₁ηK) R_q(Θ_0‖π) + (16 q d η M² (ηM + log 2) / c₁) (1 - e^(-c₁ηK)),
    c₁ = 2 (3/4 - ϑ) λ/Λ,   ϑ = 8 η q² M² (η + 2Λ(q-1)/(qλ)) < 3/4

    The form "tuned" has 1 for (q-1)/q; only "sharp" keeps the last factor.

    Guarantee: from any start. It also bounds KL(Θ_K‖π).
    Assumes: loss β-smooth and bounded by b; ϑ < 3/4.
    Tightens `thm:convergence` through `lem:lsi_perturbation` (erratum E5).
    """
    rate, bias = _rate_tuned(problem, noise_variance, step_size, form)
    exponent = -floats.times(rate, checks.steps("num_steps", num_steps))
    start = checks.nonnegative("initial_divergence", initial_divergence)
    built = -np.expm1(exponent) if form == "sharp" else 1.0
    kept = floats.product(problem.order, np.exp(exponent), start)
    return floats.plain_bound(kept + bias * built)


@floats.quiet
def deletion_nonconvex_tuned(
    problem: Bounded,
    noise_variance,
    step_size,
    learn_steps,
    delete_steps,
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
    rate, bias = _rate_tuned(problem, noise_variance, step_size, form)
    start, shift = _start_and_shift(problem, noise_variance, form)
    learn = -floats.times(rate, checks.steps("learn_steps", learn_steps))
    delete = -floats.times(rate, checks.steps("delete_steps", delete_steps))
    built = (-np.expm1(learn), -np.expm1(delete)) if form == "sharp" else (1.0, 1.0)
    first = np.exp(learn) * problem.order * start + bias * built[0]
    request = checks.steps("request", request)
    eps = _recursion(first, delete, problem.order * shift, bias * built[1], request)
    return floats.plain_bound(eps)


@floats.quiet
def settings_nonconvex_tuned(
    problem: Bounded, noise_variance, eps_dd, step_size=None, form="sharp"
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
    order, curvature = problem.order, problem.curvature
    eps_dd = checks.positive("eps_dd", eps_dd)
    start, shift = _start_and_shift(problem, noise_variance, form)
    log_scale = _log_scale(problem, noise_variance)
    need = order * start / eps_dd, order * shift / eps_dd

    def needed(log_speed):
        return _times_tuned(problem, eps_dd, log_speed, log_scale, need, form)

    if step_size is None:
        log_speed = _best_speed(problem, eps_dd, needed, log_scale, form)
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
    return _whole_settings(
        noise_variance, step_size, floats.times(time, learn), floats.times(time, delete)
    )


def noise_nonconvex_tuned(problem: Bounded, eps_dp, eps_dd, form="sharp"):
    """Least noise, with its steps, that meets a privacy and a deletion budget by the tuned proof.

    σ² ≥ q L² η max(K_L, K_U) / (ε_dp n²), where the steps depend on σ² through Λ = exp(2b/σ²)
    and the step size η is the one with the fewest steps at each σ².

    Guarantee: each run is (q, ε_dp)-Rényi DP, and deletion as in `settings_nonconvex_tuned`.
    Assumes: loss L-Lipschitz, β-smooth and bounded by b; start N(0, σ²/λ I).
    Tightens `thm:deletion_accuracy_nonconvex`, parts 1 and 2. Scalars only.
    """
    return _least_noise(
        lambda noise_variance: settings_nonconvex_tuned(problem, noise_variance, eps_dd, form=form),
        problem,
        eps_dp,
    )


def _rate_tuned(problem, noise_variance, step_size, form):
    """c₁η and the bias 16 q d η M² (ηM + log 2)/c₁, refused where the proof does not reach."""
    noise_variance = checks.positive("noise_variance", noise_variance)
    move = checks.positive("step_size", step_size) * problem.curvature
    log_scale = _log_scale(problem, noise_variance)
    speed = move * np.exp(log_scale)
    slack = _slack(move, speed, problem.order, form)
    if not np.all(slack > 0):
        safe = _safe_move(problem.order, log_scale, form) / problem.curvature
        raise CertificateRefused(
            f"step_size = {np.max(move / problem.curvature):g} is too large for the tuned bound, "
            f"which needs ϑ = 8ηq²M²(η + 2Λ/λ) < 3/4; {_remedy(np.min(safe))}."
        )
    bias = 8 * problem.dim * problem.order * speed * (move + _LOG_2) / slack
    return 2 * slack * move * np.exp(-log_scale), bias


def _log_scale(problem, noise_variance):
    """log(κΛ)."""
    return np.log(problem.curvature / problem.l2) + 2 * problem.bound / noise_variance


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
    checks.choice("form", form, FORMS)
    return np.ones_like(order) if form == "tuned" else (order - 1) / order


def _times_tuned(problem, eps_dd, log_speed, log_scale, need, form):
    """(3/4 - ϑ, c₁ηK_L, c₁ηK_U); the first is not positive where the step is too large."""
    move, speed = np.exp(log_speed - log_scale), np.exp(log_speed)
    slack = _slack(move, speed, problem.order, form)
    share = 8 * problem.dim * problem.order * speed * (move + _LOG_2) / (slack * eps_dd)
    room = np.where((slack > 0) & (share < 1), 1 - share, np.nan)
    if form == "sharp":
        learn, delete = np.log1p((need[0] - 1) / room), np.log1p(need[1] / room)
    else:
        learn, delete = np.log(need[0] / room), np.log1p((need[1] + share) / room)
    return np.where(np.isnan(room), -1.0, slack), np.where(learn > 0, learn, 0), delete


def _best_speed(problem, eps_dd, needed, log_scale, form):
    """log(ηMκΛ) with the least K_L + K_U: a grid below the limits, narrowed around its best."""
    order = problem.order
    limits = (
        np.log(3 / 64) - 2 * np.log(order) - np.log(_kl_factor(order, form)),
        np.log(3 / 32 / _LOG_2) + np.log(eps_dd) - np.log(order * problem.dim),
        np.log(3 / 32) / 2 - np.log(order) + log_scale,
    )
    # Beyond a limit ϑ or the bias alone is too large; far below it ever more steps are needed.
    low, high = min(limits) - 10, min(limits)
    for _ in range(5):
        grid = np.linspace(low, high, 80)
        slack, learn, delete = needed(grid)
        cost = np.where(slack > 0, np.log((learn + delete) / slack) - grid, np.inf)
        best = np.argmin(cost)
        low, high = grid[max(best - 1, 0)], grid[min(best + 1, grid.size - 1)]
    return grid[best]


class Proof(NamedTuple):
    """One way to account: what remains, the steps for a budget, the least noise for budgets."""

    deletion: Callable
    settings: Callable
    noise: Callable


PROOFS = {
    "paper": Proof(deletion_nonconvex_paper, settings_nonconvex_paper, noise_nonconvex_paper),
    **{
        form: Proof(
            partial(deletion_nonconvex_tuned, form=form),
            partial(settings_nonconvex_tuned, form=form),
            partial(noise_nonconvex_tuned, form=form),
        )
        for form in FORMS
    },
}


# --- what both proofs share -----------------------------------------------------------------------


def _start_and_shift(problem, noise_variance, form="tuned"):
    """Divergence of the start from its Gibbs law (over q, where "sharp"), and of one edit."""
    ratio = problem.bound / checks.positive("noise_variance", noise_variance)
    start = 2 * ratio
    if form == "sharp":
        start = np.minimum(start, floats.product(0.5, ratio, ratio))
    return start, floats.product(4, problem.records / problem.n, ratio)


def _recursion(first, log_factor, shift, bias, request):
    """ε_i of ε ← a (ε + shift) + bias after i requests; i = ∞ is the supremum over i ≥ 1."""
    factor = np.exp(log_factor)
    second = factor * (first + shift) + bias
    limit = np.where(factor < 1, (factor * shift + bias) / -np.expm1(log_factor), np.inf)
    power = floats.times(log_factor, request)
    terms = np.where(log_factor == 0, request, np.expm1(power) / np.expm1(log_factor))
    later = np.exp(power) * first + terms * (factor * shift + bias)
    later = np.where(np.isinf(request), np.maximum(second, limit), later)
    return np.where(request == 0, first, later)


def _whole_settings(noise_variance, step_size, learn_time, delete_time):
    """Whole step counts for the times ηK."""
    learn, delete = (
        np.where(time > 0, np.ceil(np.divide(time, step_size) * (1 + _ROUNDING)), 0.0)
        for time in (learn_time, delete_time)
    )
    return NonconvexSettings(*map(floats.plain, (noise_variance, step_size, learn, delete)))


@floats.quiet
def _least_noise(settings, problem, eps_dp):
    """Settings at the least σ² ≥ qL²η max(K)/(ε_dp n²), by bisection in log σ²."""
    reach = problem.lipschitz / problem.n
    per_time = np.log(problem.order) + 2 * np.log(reach)
    per_time = per_time - np.log(checks.positive("eps_dp", eps_dp))

    def private(log_noise):
        found = settings(np.exp(log_noise))
        time = found.step_size * max(found.learn_steps, found.delete_steps)
        return found if per_time + np.log(time) <= log_noise else None

    # ηK falls as σ² grows, so there is one crossing: bracket it in steps of e, then bisect.
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


def _remedy(limit):
    """What to give instead of a step size above the limit."""
    return f"give at most {limit:g}" if limit > 0 else "give a larger noise_variance"
