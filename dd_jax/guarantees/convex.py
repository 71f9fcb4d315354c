"""Noisy gradient descent on a convex loss: what it reveals of a record that stays or is deleted.

One step is θ ← θ - η∇ℒ(θ) + N(0, 2ησ² I). A bound is a function of one `Descent` and of step
counts; `numpy.inf` steps give the supremum over steps. Adjacency is replace-one with n fixed, so
the mean gradient has sensitivity 2L/n. Every ε here is linear in the order, holds both ways, and is
ε(1)/σ². Write c = 1-ηλ.

Privacy is about a record that stays. Deletion (`dfn:deletion`) is about a record that was present
for K_I steps (`present`, counted from its first insertion to its last deletion), after which the
curator took K_U steps without it; the comparator is the run on the neighbouring database that never
held the record. For `records` rows judged jointly (all of one person's, or all of one request's)
every ε grows by r², and the clock runs from the last of their deletions (erratum E10).

With `batches` m > 1 every step takes one of m batches in a fixed cyclic order (`schedules`). A
bound that knows step counts alone is then about the worst batch: that of the last step with the
record. `streams.Stream` has the numbers of one batch through a stream of requests. The paper's own
bounds are for full batches and refuse m > 1.

The paper's statements here are its Rényi DP theorems for Noisy-GD, by composition (`thm:abadi`) and
under convexity (`thm:chourasia`), and its convex data-deletion theorem
(`thm:data_deletion_convex`).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from dd_jax import checks
from dd_jax.errors import CertificateRefused, InputError
from dd_jax.guarantees import floats, renyi, schedules
from dd_jax.guarantees.schedules import contraction_exponent


@dataclass(frozen=True)
class Descent:
    """Everything that a bound on noisy gradient descent depends on, except the steps.

    Fields are numbers or arrays that broadcast; they are checked once, here. Only the condition on
    the step size is left to each bound, as it differs between them.

    Attributes:
        order: q > 1, the Rényi order.
        lipschitz: L, or the clipping norm.
        l2: λ. smoothness: β, which only bounds the step size; it has no default, as 0 is right for
            a linear loss alone. `numpy.inf` says that nothing is known: `privacy_lipschitz` and the
            run sums need neither λ nor β, every other bound is then refused.
        noise_variance: σ². n: number of records. step_size: η.
        records: r, how many records are judged jointly; in a risk bound, edited by one request.
        batches: m, cyclic batches of ⌊n/m⌋ or ⌈n/m⌉ rows; 1 for full passes.
    """

    order: Any
    lipschitz: Any
    l2: Any
    smoothness: Any
    noise_variance: Any
    n: Any
    step_size: Any
    records: Any = 1
    batches: Any = 1

    def __post_init__(self):
        checked = {
            "order": checks.order(self.order),
            "lipschitz": checks.nonnegative("lipschitz", self.lipschitz),
            "l2": checks.nonnegative("l2", self.l2),
            "smoothness": checks.nonnegative("smoothness", self.smoothness),
            "noise_variance": checks.positive("noise_variance", self.noise_variance),
            "n": checks.count("n", self.n),
            "step_size": checks.positive("step_size", self.step_size),
            "records": checks.count("records", self.records),
            "batches": checks.count("batches", self.batches),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, floats.plain(value))
        if np.any(np.asarray(self.batches) > self.n):
            raise InputError(
                f"batches = {np.max(self.batches):g} leaves batches without a row; give at most "
                f"n = {np.min(self.n):g}."
            )

    def strictly_stable(self) -> None:
        """Refuse unless η < 1/(λ+β) and batches are full, which the paper's proof needs."""
        if np.any(np.asarray(self.batches) > 1):
            raise CertificateRefused(
                f"batches = {np.max(self.batches):g} have no bound by the paper's proof, which is "
                f"for full batches; use accountant='optimal' or batches=1."
            )
        checks.step_size_strict(self.step_size, self.l2, self.smoothness)

    def stable(self) -> None:
        """Refuse unless η ≤ 2/(2λ+β): every step is then a (1-ηλ)-Lipschitz map."""
        checks.step_size_optimal(self.step_size, self.l2, self.smoothness)


# --- records that stay --------------------------------------------------------------------------


def privacy_lipschitz(run: Descent, steps):
    """Rényi DP of K noisy steps for any Lipschitz loss, by composition.

    ε = q L² η K / (σ² n²), and q L² η ⌈K/m⌉ / (σ² ⌊n/m⌋²) with m batches

    Guarantee: (q, ε)-Rényi DP of the last model and of all K iterates jointly, adaptively too.
    Assumes: L-Lipschitz (or clipped) gradients; replace-one. `thm:abadi`.
    """
    uses = np.ceil(checks.steps("steps", steps) / run.batches)
    return floats.plain(floats.product(*_square_over_noise(run), run.step_size, uses))


def privacy_convex(run: Descent, steps):
    """Rényi DP of K noisy steps for convex smooth losses, as the paper states it.

    ε = 4 q L² / (λ σ² n²) · (1 - exp(-λ η K / 2))

    Guarantee: (q, ε)-Rényi DP of the last model.
    Assumes: convex, L-Lipschitz, β-smooth loss; η < 1/(λ+β); a start independent of the data.
    `thm:chourasia`; looser than `privacy_lipschitz` for few steps.
    """
    run.strictly_stable()
    decay = floats.product(0.5, run.step_size, run.l2, checks.steps("steps", steps))
    return floats.plain(floats.product(4, _scale(run, run.l2), -np.expm1(-decay)))


def privacy_paper(run: Descent, steps):
    """The smaller of the paper's two bounds: `privacy_lipschitz` and `privacy_convex`.

    Guarantee: (q, ε)-Rényi DP of the last model.
    Assumes: what `privacy_convex` assumes. `thm:abadi`, `thm:chourasia`.
    """
    return floats.plain(np.minimum(privacy_lipschitz(run, steps), privacy_convex(run, steps)))


def privacy_unrelaxed(run: Descent, steps):
    """The paper's proof without its last relaxation, or composition where that is smaller.

    ε = min{2 q L² / (c₁ σ² n²) · (1 - exp(-c₁ η K)), q L² η K / (σ² n²)},  c₁ = λ(1 - ηλ/2)

    Guarantee: (q, ε)-Rényi DP of the last model.
    Assumes: convex, L-Lipschitz, β-smooth loss; η < 1/(λ+β); a start independent of the data.
    From the proof of `thm:chourasia` (see `thm:data_deletion_convex`) and `thm:abadi`.
    """
    run.strictly_stable()
    rate = log_sobolev(run.step_size, run.l2)
    decay = floats.product(rate, run.step_size, checks.steps("steps", steps))
    convex = floats.product(2, _scale(run, rate), -np.expm1(-decay))
    return floats.plain(np.minimum(convex, privacy_lipschitz(run, steps)))


def privacy_optimal(run: Descent, steps):
    """Rényi DP of K noisy steps for convex smooth losses; no smaller bound is true.

    ε = q L² (2 - ηλ) / (λ σ² n²) · (1 - c^K) / (1 + c^K), for m = 1; `schedules.cyclic` for more

    Guarantee: (q, ε)-Rényi DP of the last model from any start that is independent of the data, and
    μ-GDP with μ = √(2ε/q).
    Assumes: convex, L-Lipschitz, β-smooth loss; η ≤ 2/(2λ+β).
    Attained by the linear loss from a fixed start. Tightens `thm:chourasia` and `thm:abadi`.
    """
    uses = np.ceil(checks.steps("steps", steps) / run.batches)
    return floats.plain(of_uses(run, uses, 0.0))


def privacy_optimal_mu(run: Descent, steps):
    """Gaussian DP of K noisy steps: μ = √(2ε/q) with the ε of `privacy_optimal`.

    Guarantee: μ-GDP of the last model, and so exact (ε, δ) by `renyi.gdp_epsilon`.
    Assumes: what `privacy_optimal` assumes.
    """
    return renyi.gdp_from_linear_renyi(2, privacy_optimal(replace(run, order=2), steps))


# --- records that go ----------------------------------------------------------------------------


def deletion_paper(run: Descent, steps):
    """Rényi bound on what remains of a deleted record, as the paper states it.

    ε(K_U) = 4 q L² / (λ σ² n²) · exp(-ηλK_U/2)

    Guarantee: (q, ε)-data-deletion for every non-adaptive requester.
    Assumes: convex, L-Lipschitz, β-smooth loss; η < 1/(λ+β); replace-one.
    `thm:data_deletion_convex`.
    """
    before = privacy_convex(run, np.inf)
    kept = floats.decay(0.5, run.step_size, run.l2, checks.steps("steps", steps))
    return floats.plain(floats.product(before, kept))


def deletion_unrelaxed(run: Descent, steps, present=np.inf):
    """Rényi bound on what remains of a deleted record, by the paper's proof without relaxations.

    ε(K_U) = 2 q L² / (c₁ σ² n²) · (1 - exp(-c₁ηK_I)) · exp(-2c₁ηK_U),  c₁ = λ(1 - ηλ/2)

    After the deletion both runs have the same drift, so the divergence falls twice as fast as
    stated.

    Guarantee: (q, ε)-data-deletion for every non-adaptive requester.
    Assumes: convex, L-Lipschitz, β-smooth loss; η < 1/(λ+β); replace-one.
    From the proof of `thm:data_deletion_convex`.
    """
    before = privacy_unrelaxed(run, present)
    rate = log_sobolev(run.step_size, run.l2)
    kept = floats.decay(2, rate, run.step_size, checks.steps("steps", steps))
    return floats.plain(floats.product(before, kept))


def deletion_optimal(run: Descent, steps, present=np.inf):
    """Rényi bound on what remains of a deleted record, for convex smooth losses.

    ε(K_U) = q L² (2 - ηλ) / (λ σ² n²) · (1 - ηλ)^(2 K_U)

    and, for a record that was present for K_I steps only, times (1 - c^K_I)² / (1 - c^(2(K_I +
    K_U))). With m batches: `schedules.cyclic`, E = ⌈K_I/m⌉ uses, the last of them just before the
    deletion.

    Guarantee: (q, ε)-data-deletion for every non-adaptive requester, from any start, and μ-GDP with
    μ = √(2ε/q).
    Assumes: convex, L-Lipschitz, β-smooth loss; η ≤ 2 / (2λ + β); replace-one.
    Attained by the linear loss from a fixed start. Tightens `thm:data_deletion_convex`.
    """
    uses = np.ceil(checks.steps("present", present) / run.batches)
    return floats.plain(of_uses(run, uses, checks.steps("steps", steps)))


def of_uses(run: Descent, uses, since):
    """ε of a record whose batch was used E times and then not for τ steps (`schedules.cyclic`).

    Guarantee, Assumes: as `deletion_optimal`.
    """
    run.stable()
    scale = (*_square_over_noise(run), run.step_size)
    return schedules.cyclic(run.step_size, run.l2, run.batches, uses, since, *scale)


def deletion_optimal_mu(run: Descent, steps, present=np.inf):
    """Gaussian DP bound on what remains of a deleted record: √(2ε/q), ε of `deletion_optimal`.

    Guarantee: telling the run from its neighbour is at least as hard as N(0, 1) from N(μ, 1), for
    every non-adaptive requester.
    Assumes: what `deletion_optimal` assumes.
    """
    return renyi.gdp_from_linear_renyi(2, deletion_optimal(replace(run, order=2), steps, present))


# --- inverses: noise and steps for a budget -----------------------------------------------------


def least_noise(bound: Callable, run: Descent, eps, steps=np.inf):
    """The least σ² for which a privacy bound is at most eps; the run's own σ² does not matter.

    Every bound is ε(1)/σ², so σ² = ε(1)/eps. For any number of steps that is

    - `privacy_lipschitz`: q L² η K / (eps n²), infinite for endless steps;
    - `privacy_paper`: 4 q L² / (λ eps n²). `thm:unlearning_accuracy_convex`;
    - `privacy_unrelaxed`: 2 q L² / (λ(1 - ηλ/2) eps n²);
    - `privacy_optimal`: q L² (2 - ηλ) / (λ eps n²). For μ-GDP give order 2 and eps = μ².
    """
    unit = bound(replace(run, noise_variance=1.0), steps)  # ε(1)
    eps = checks.positive("eps", eps)
    up = 1 + 16 * np.finfo(np.float64).eps  # so that the bound at this σ² is at most eps
    return floats.plain(floats.product(unit, up, _inverse(eps)))


def fewest_steps(bound: Callable, run: Descent, eps, present=np.inf):
    """The fewest steps K_U, at least 0, for which a deletion bound is at most eps.

    Each bound is ε(K) = ε(0) y (1-x) / (1-xy) with y = e^(-rate·K), and x = c^(2K_I) for a record
    that was present for K_I steps only, else 0. So K_U = ⌈log(ε(0)/eps (1-x) + x) / rate⌉:

    - `deletion_paper`: ⌈2/(ηλ) · log(4qL² / (λ σ² n² eps))⌉. `thm:data_deletion_convex`;
    - `deletion_unrelaxed`: ⌈log(ε(0)/eps) / (2c₁η)⌉;
    - `deletion_optimal`: ⌈log(ε_dp/eps) / (-2 log(1-ηλ))⌉. For μ-GDP give order 2 and eps = μ².

    With batches ε(K) has no such form before the last use is pooled, and K_U is found by halving.
    """
    eps = checks.positive("eps", eps)
    if bound is deletion_optimal and np.any(np.asarray(run.batches) > 1):
        return _fewest_by_halving(run, eps, present)
    rate, log_x = _fall(bound, run, present)
    known = {} if bound is deletion_paper else {"present": present}
    start = bound(run, 0, **known)
    with np.errstate(all="ignore"):
        inverse = floats.product(start, 1 / eps, -np.expm1(log_x)) + np.exp(log_x)
        steps = np.ceil(np.log(inverse) / rate)
    steps = np.where(np.isnan(steps), np.inf, np.maximum(steps, 0.0))
    for _ in range(2):  # rounding may have put the ceiling one off, either way
        steps = np.where(bound(run, steps, **known) > eps, steps + 1, steps)
    fewer = np.maximum(steps - 1, 0.0)
    return floats.plain(np.where(bound(run, fewer, **known) <= eps, fewer, steps))


def _fewest_by_halving(run, eps, present):
    """The least K with `deletion_optimal` ≤ eps: it falls with K, by c² per step in the end."""
    shape = np.broadcast_shapes(*map(np.shape, (deletion_optimal(run, 0, present), eps)))
    low = np.full(shape, -1.0)  # too few
    rate = -2 * contraction_exponent(run.step_size, run.l2, 1)
    with np.errstate(all="ignore"):
        fall = np.log(deletion_optimal(run, 0, present) / eps) / rate
    high = np.ceil(np.maximum(fall, 0)) + 2 * np.asarray(run.batches) + np.zeros(shape)
    while True:
        middle = np.floor((low + high) / 2)
        # None is left between two neighbours, which are further than 1 apart beyond 2⁵³.
        between = (low < middle) & (middle < high)
        if not np.any(between):
            break
        enough = deletion_optimal(run, np.maximum(middle, 0), present) <= eps
        low, high = (
            np.where(between & ~enough, middle, low),
            np.where(between & enough, middle, high),
        )
    return floats.plain(high)


def _fall(bound, run, present):
    """The rate at which a deletion bound falls per step, and log x of `fewest_steps`."""
    if bound is deletion_optimal:
        run.stable()
        log_c, past = (
            contraction_exponent(run.step_size, run.l2, k)
            for k in (1, checks.steps("present", present))
        )
        return -2 * log_c, 2 * past
    if bound is deletion_unrelaxed:
        return floats.product(2, log_sobolev(run.step_size, run.l2), run.step_size), -np.inf
    if bound is deletion_paper and np.all(np.isinf(present)):
        return floats.product(0.5, run.step_size, run.l2), -np.inf
    raise InputError(
        f"{getattr(bound, '__name__', bound)} has no known fewest steps with present = {present}; "
        f"give deletion_optimal or deletion_unrelaxed, or deletion_paper without present."
    )


class Accountant(NamedTuple):
    """One way to account: its two bounds and its default step size times λ+β."""

    privacy: Callable
    deletion: Callable
    default_step: float


ACCOUNTANTS = {
    "paper": Accountant(privacy_paper, deletion_paper, 0.5),
    "unrelaxed": Accountant(privacy_unrelaxed, deletion_unrelaxed, 0.5),
    "optimal": Accountant(privacy_optimal, deletion_optimal, 1.0),
}


# --- the noise as DP-SGD writes it --------------------------------------------------------------


def noise_multiplier(run: Descent):
    """DP-SGD's noise multiplier σ̂ of a run on full batches: σ̂ = √(2σ²/η) · n/L.

    DP-SGD adds N(0, (σ̂L)² I) to the sum of n clipped gradients, which is η²σ̂²L²/n² after the step,
    where Noisy-GD adds 2ησ². Replacing a record moves the sum by 2L, so that K steps are K Gaussian
    mechanisms of multiplier σ̂/2: R_q = 2qK/σ̂², which is `privacy_lipschitz`. For (ε, δ) by
    `renyi.renyi_from_epsilon_delta` σ̂ = 2√(K(ε + 2 log(1/δ)))/ε; the paper's remark below
    `thm:abadi` lacks the 2 (erratum E14).
    """
    _full_batches(run, "noise multiplier")
    root = np.sqrt(2 * np.asarray(run.noise_variance)) / np.sqrt(run.step_size)
    return floats.plain(floats.product(root, run.n, _inverse(checks.positive("L", run.lipschitz))))


def noise_of_multiplier(run: Descent, multiplier):
    """The σ² of DP-SGD's noise multiplier σ̂: σ² = η (σ̂L/n)² / 2; the run's own does not matter.

    The inverse of `noise_multiplier`.
    """
    _full_batches(run, "noise multiplier")
    half = (checks.positive("multiplier", multiplier), run.lipschitz, np.divide(1, run.n))
    return floats.plain(floats.product(0.5, run.step_size, *half, *half))


def _full_batches(run, wanted):
    if np.any(np.asarray(run.batches) > 1):
        raise CertificateRefused(
            f"batches = {np.max(run.batches):g} have no single {wanted}; give batches=1."
        )


# --- what the bounds are made of ----------------------------------------------------------------


def log_sobolev(step_size, l2):
    """c₁ = λ(1 - ηλ/2), the log-Sobolev constant of every iterate (`lem:lsi_tracing`)."""
    return l2 * (1 - step_size * l2 / 2)


def _scale(run, rate):
    """q L² r² / (rate σ² n²)."""
    return floats.product(*_square_over_noise(run), _inverse(checks.positive("l2", rate)))


def _square_over_noise(run):
    """Factors of q (Lr/b)² / σ²: Lr/b is half of how far replacing r records moves a gradient.

    The smallest batch has b = ⌊n/m⌋ rows, and all of the r rows may be in it.

    Separate factors: their product may underflow where the bound itself does not.
    """
    half = (run.lipschitz, 1 / np.floor_divide(run.n, run.batches), run.records)
    return run.order, *half, *half, _inverse(run.noise_variance)


def _inverse(x):
    with np.errstate(all="ignore"):
        return 1 / x
