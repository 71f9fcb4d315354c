"""Excess empirical risk err(Θ; D) = E[ℒ_D(Θ)] - min ℒ_D of learned and edited models.

For convex losses: a recursion on the distance to the minimiser, and what it tightens: the paper's
lemmas on the risk after an edit (`lem:excess_risk_after_edit`) and after K steps
(`lem:excess_risk_convex`), and part 3 of its convex trade-off theorem
(`thm:unlearning_accuracy_convex`). For bounded non-convex losses: the paper's bounds, its theorem
on the Gibbs law's risk (`thm:gibbs_optimal`) and part 3 of the non-convex trade-off theorem
(`thm:deletion_accuracy_nonconvex`), both vacuous (erratum E3), and bounds without the factor
exp(b/σ²). Notation: M = λ+β, κ = M/λ, c = 1-ηλ, B = exp(4b/σ²).

A bound on a run takes a `Descent`, whose `records` is r, the number of records that one request
edits; its order does not matter here. A bound for bounded losses takes a `Bounded`, whose q, n and
r do not matter. A bound that depends on few constants takes those alone.
"""

import numpy as np

from dd_jax import checks
from dd_jax.errors import CertificateRefused
from dd_jax.guarantees import floats
from dd_jax.guarantees.convex import Descent, contraction_exponent
from dd_jax.guarantees.nonconvex import Bounded

_ROUNDING = 1e-14
_EXACT_REQUESTS = 200  # requests iterated one by one before the chord bound takes over


# --- convex losses: the recursion -----------------------------------------------------------------


@floats.quiet
def minimiser_shift(lipschitz, l2, n, edits_per_request=1):
    """How far replacing r records can move the minimiser of ℒ.

    ‖θ*_D - θ*_{D∘u}‖ ≤ 2 r L / (λ n)

    Guarantee: for every database and edit; attained by the linear loss.
    Assumes: convex, L-Lipschitz loss.
    Halves the constant in the proof of `lem:excess_risk_after_edit` (erratum E11).
    """
    lipschitz, l2 = checks.positive("lipschitz", lipschitz), checks.positive("l2", l2)
    share = checks.edited_share(n, edits_per_request)
    return floats.plain(floats.product(2, share, lipschitz, 1 / l2))


@floats.quiet
def stationary_variance(l2, noise_variance, step_size):
    """Variance per coordinate at which noise and contraction balance, and the default start's.

    V = σ² / (λ (1 - ηλ/2))

    Assumes: ηλ ≤ 1. The initialisation of `thm:unlearning_accuracy_convex`.
    """
    l2, step_size = checks.positive("l2", l2), checks.positive("step_size", step_size)
    return floats.plain_bound(
        checks.positive("noise_variance", noise_variance) / (l2 * (1 - step_size * l2 / 2))
    )


@floats.quiet
def excess_risk_floor(run: Descent, dim):
    """What `excess_risk_convex` tends to with ever more steps.

    (M/2) d V with V = σ² / (λ (1 - ηλ/2))

    Assumes: convex, β-smooth loss; η ≤ 2/(2λ+β).
    """
    run.stable()
    variance = stationary_variance(run.l2, run.noise_variance, run.step_size)
    return floats.plain(floats.product(0.5, _curvature(run), checks.count("dim", dim), variance))


@floats.quiet
def excess_risk_convex(
    run: Descent, dim, learn_steps, delete_steps, request=np.inf, init_variance=None
):
    """Excess risk of the model released after request i, for convex smooth losses.

    m_0² = c^(2 K_L) (L²/λ² + d v₀) + d V (1 - c^(2 K_L)),   V = σ² / (λ (1 - ηλ/2)),
    m_i² = c^(2 K_U) (m_{i-1} + 2rL/(λn))² + d V (1 - c^(2 K_U)),
    err(Θ̂_i; D_i) ≤ (M/2) m_i²

    `request=0` is the learned model, `request=numpy.inf` the limit i → ∞ in closed form. The bound
    is monotone in i, so the larger of these two covers every request; with K_U = 0 it has no limit.

    With batches the run circles around points near θ*: m_i grows by `_cycle`'s distances, which
    are large unless ηm is small against 1/M.

    Guarantee: E‖Θ̂_i - θ*_i‖² ≤ m_i² for every r-requester, adaptive ones too.
    Assumes: convex, L-Lipschitz, β-smooth loss; η ≤ 2/(2λ+β); start N(0, v₀ I), v₀ = V by default.
    Tightens `thm:unlearning_accuracy_convex`, part 3.
    """
    spread = _spread(run, dim)
    start = _start_square(run, dim, spread, init_variance)
    radius, pull = _cycle(run)
    # An edit moves the minimiser, and the circle with it.
    shift = minimiser_shift(run.lipschitz, run.l2, run.n, run.records) + 2 * radius
    kept, lost = _decay(run, checks.steps("learn_steps", learn_steps))
    distance = np.hypot(np.sqrt(kept) * np.sqrt(start), np.sqrt(lost) * np.sqrt(spread))
    kept, lost = _decay(run, checks.steps("delete_steps", delete_steps))
    distance = _iterate(distance, kept, lost, shift, spread, checks.steps("request", request))
    distance = distance + pull + radius
    return floats.plain(floats.product(0.5, _curvature(run), distance, distance))


@floats.quiet
def learn_steps_convex(run: Descent, dim, target_excess_risk, init_variance=None):
    """Least K_L for which `excess_risk_convex` puts the learned model within a target excess risk.

    c^(2 K_L) ≤ (m² - dV) / (L²/λ² + d v₀ - dV),   m² = 2 target / M

    Assumes: as `excess_risk_convex`; a target that is not above `excess_risk_floor` is refused.
    """
    spread = _spread(run, dim)
    start = _start_square(run, dim, spread, init_variance)
    target = _target_square(target_excess_risk, _curvature(run), spread)
    return floats.plain(_steps_to(run, start - target, target - spread))


@floats.quiet
def delete_steps_convex(run: Descent, dim, target_excess_risk):
    """Least K_U that keeps every later model within a target excess risk, by `excess_risk_convex`.

    c^(2 K_U) ≤ (m² - dV) / ((m + 2rL/(λn))² - dV),   m² = 2 target / M

    Guarantee: if the learned model meets the target, so does every edited one; fewer steps leave
        the recursion's limit above it.
    Assumes: as `excess_risk_convex`; a target that is not above `excess_risk_floor` is refused.
    """
    spread = _spread(run, dim)
    target = _target_square(target_excess_risk, _curvature(run), spread)
    shift = minimiser_shift(run.lipschitz, run.l2, run.n, run.records)
    excess = shift * (2 * np.sqrt(target) + shift)
    return floats.plain(_steps_to(run, excess, target - spread))


# --- convex losses: as the paper states it --------------------------------------------------------


@floats.quiet
def excess_risk_after_edit(lipschitz, l2, smoothness, n, edits_per_request, excess_risk):
    """Excess risk of an unchanged model once r records are replaced.

    err(Θ; D∘u) ≤ κ [2 err(Θ; D) + 16 r² L² / (λ n²)]

    Guarantee: for every model, database and edit of at most r records.
    Assumes: convex, L-Lipschitz, β-smooth loss.
    `lem:excess_risk_after_edit`.
    """
    kappa, lipschitz = _kappa(l2, smoothness), checks.positive("lipschitz", lipschitz)
    share = checks.edited_share(n, edits_per_request)
    before = checks.nonnegative("excess_risk", excess_risk)
    edited = floats.product(16, share, share, lipschitz, lipschitz, np.divide(1, l2))
    return floats.plain(floats.product(kappa, 2 * before + edited))


@floats.quiet
def excess_risk_noisy_gd(run: Descent, dim, num_steps, initial_excess_risk):
    """Excess risk after K steps of noisy gradient descent.

    err(Θ_K) ≤ err(Θ_0) exp(-ληK/2) + κ d σ²

    Guarantee: on any one database, from any start.
    Assumes: convex, Lipschitz, β-smooth loss; η < 1/(λ+β).
    `lem:excess_risk_convex`.
    """
    run.strictly_stable()
    pull = run.l2 * run.step_size / 2
    left = np.exp(-floats.times(pull, checks.steps("num_steps", num_steps)))
    start = checks.nonnegative("initial_excess_risk", initial_excess_risk)
    noise = (1 + run.smoothness / run.l2) * checks.count("dim", dim) * run.noise_variance
    return floats.plain_bound(floats.product(start, left) + noise)


@floats.quiet
def excess_risk_convex_paper(order, lipschitz, l2, smoothness, n, dim, eps_dp):
    """Excess risk of every released model under the paper's convex plan.

    err(Θ̂_i; D_i) ≤ 10 κ q d L² / (λ ε_dp n²) for all i ≥ 0

    Guarantee: for every r-requester, adaptive ones too.
    Assumes: convex, L-Lipschitz, β-smooth loss; η = 1/(2M); σ² = 4qL²/(λ ε_dp n²); the start is
        N(0, σ²/(λ(1-ηλ/2)) I); at least `learn_steps_convex_paper` and `delete_steps_convex_paper`
        steps.
    `thm:unlearning_accuracy_convex`, part 3, with the constant of its proof.
    """
    kappa, order, dim = _kappa(l2, smoothness), checks.order(order), checks.count("dim", dim)
    share = checks.positive("lipschitz", lipschitz) / checks.count("n", n)
    inverses = np.divide(1, l2), 1 / checks.positive("eps_dp", eps_dp)
    return floats.plain(floats.product(10, kappa, order, dim, share, share, *inverses))


@floats.quiet
def learn_steps_convex_paper(order, l2, smoothness, n, dim, eps_dp):
    """Learning steps for `excess_risk_convex_paper`.

    K_L = max(0, ⌈4κ log(ε_dp n² / (4 q d))⌉)

    `thm:unlearning_accuracy_convex`, part 3.
    """
    kappa, order, dim = _kappa(l2, smoothness), checks.order(order), checks.count("dim", dim)
    gap = checks.positive("eps_dp", eps_dp) * checks.count("n", n) ** 2 / (4 * order * dim)
    return floats.plain(np.ceil(4 * kappa * np.maximum(np.log(gap), 0)))


@floats.quiet
def delete_steps_convex_paper(order, l2, smoothness, dim, eps_dp, edits_per_request=1):
    """Deletion steps for `excess_risk_convex_paper` (utility only; deletion may need more).

    K_U = ⌈4κ log max{5κ, 8 ε_dp r² / (q d)}⌉

    `thm:unlearning_accuracy_convex`, part 3.
    """
    kappa, order, dim = _kappa(l2, smoothness), checks.order(order), checks.count("dim", dim)
    edits = checks.count("edits_per_request", edits_per_request)
    jump = 8 * checks.positive("eps_dp", eps_dp) * edits**2 / (order * dim)
    return floats.plain(np.ceil(4 * kappa * np.log(np.maximum(5 * kappa, jump))))


@floats.quiet
def least_risk_order(lipschitz, l2, n, dim, epsilon):
    """The order of the least excess risk that any (ε, δ)-DP algorithm can promise.

    (L²/λ) min{1, d / (ε² n²)}

    Guarantee: up to a constant factor that is not known, no such algorithm has a smaller risk on
        every database, for δ = o(1/n).
    Assumes: L-Lipschitz, λ-strongly convex and smooth losses.
    Bassily, Smith and Thakurta 2014; what the paper compares its risk with, below
    `thm:unlearning_accuracy_convex`.
    """
    exact = checks.nonnegative("epsilon", epsilon) * checks.count("n", n)
    share = np.minimum(1.0, checks.count("dim", dim) / np.square(exact))
    lipschitz = checks.positive("lipschitz", lipschitz)
    return floats.plain(floats.product(lipschitz, lipschitz, 1 / checks.positive("l2", l2), share))


# --- bounded non-convex losses --------------------------------------------------------------------


@floats.quiet
def gibbs_excess_risk_paper(problem: Bounded, noise_variance):
    """Excess risk of a sample of the Gibbs law π ∝ exp(-ℒ/σ²), as the paper states it.

    err ≤ (dσ²/2) (log κ + √B)

    Guarantee: for the Gibbs law itself, which no finite run releases.
    Assumes: loss bounded by b and β-smooth. Vacuous: never below e·d·b (erratum E3).
    `thm:gibbs_optimal`.
    """
    noise_variance = checks.positive("noise_variance", noise_variance)
    root = np.exp(2 * problem.bound / noise_variance)
    entropy = np.log1p(problem.smoothness / problem.l2) + root
    return floats.plain_bound(problem.dim * noise_variance / 2 * entropy)


@floats.quiet
def gibbs_second_moment(problem: Bounded, noise_variance):
    """E‖θ‖² under the Gibbs law π ∝ exp(-ℒ/σ²).

    E‖θ‖² ≤ min{ ((L + √(L² + 4λdσ²)) / (2λ))²,  (dσ²/λ) y },   y - 1 - log y = (2/d) KL,  y ≥ 1,
    KL(π‖N(0, σ²/λ I)) ≤ min{2b/σ², b²/(2σ⁴)}

    The first is E⟨θ, ∇ℒ⟩ = dσ²; the second is Donsker-Varadhan against the Gaussian at its best
    exponent, with Hoeffding's lemma for KL.

    Guarantee: for every database. Never above the three bounds of erratum E3.
    Assumes: loss differentiable, L-Lipschitz and bounded by b; convexity is not needed.
    """
    noise_variance = checks.positive("noise_variance", noise_variance)
    spread = problem.dim * noise_variance / problem.l2
    drift = problem.lipschitz / (2 * problem.l2)
    ratio = problem.bound / noise_variance
    entropy = np.minimum(2 * ratio, ratio**2 / 2)
    by_drift = (drift + np.sqrt(drift**2 + spread)) ** 2
    by_entropy = spread * _moment_ratio(2 * entropy / problem.dim)
    return floats.plain_bound(np.minimum(by_drift, by_entropy))


@floats.quiet
def gibbs_excess_risk(problem: Bounded, noise_variance):
    """Excess risk of a sample of the Gibbs law π ∝ exp(-ℒ/σ²), without the factor B.

    err ≤ min{ (dσ²/2) [1 + log(M m² / (dσ²))],  2b + λm²/2 },   m² = `gibbs_second_moment`

    Guarantee: for the Gibbs law itself; `excess_risk_nonconvex` is for released models.
    Assumes: loss L-Lipschitz, β-smooth and bounded by b.
    Replaces `thm:gibbs_optimal` (erratum E3): its proof with the greatest entropy of a given second
    moment.
    """
    square = gibbs_second_moment(problem, noise_variance)
    return floats.plain_bound(_risk_by_entropy(problem, noise_variance, square, 0.0))


@floats.quiet
def excess_risk_nonconvex_paper(problem: Bounded, noise_variance, eps_dd):
    """Excess risk of every released model under the paper's non-convex plan, as its proof has it.

    err ≤ Lσ √(2 ε_dd B / λ) + ε_dd B σ² (2λ+β) / λ + (dσ²/2) (log κ + 2√B)

    Guarantee: for every non-adaptive requester. Vacuous (erratum E3): never below 2e·d·b, while
        θ = 0 has excess at most 2b. Use `excess_risk_nonconvex`.
    Assumes: loss L-Lipschitz, β-smooth and bounded by b; (q, ε_dd)-closeness to the Gibbs law.
    `thm:deletion_accuracy_nonconvex`, part 3.
    """
    noise_variance = checks.positive("noise_variance", noise_variance)
    eps_dd = checks.nonnegative("eps_dd", eps_dd)
    root = np.exp(2 * problem.bound / noise_variance)
    transport = root * np.sqrt(2 * noise_variance / problem.l2) * np.sqrt(eps_dd)
    transport = np.where(eps_dd == 0, 0.0, transport)
    steepness = problem.l2 + problem.smoothness / 2
    moved = problem.lipschitz * transport + steepness * transport**2
    entropy = np.log1p(problem.smoothness / problem.l2) + 2 * root
    return floats.plain_bound(moved + problem.dim * noise_variance / 2 * entropy)


@floats.quiet
def released_second_moment(lipschitz, l2, noise_variance, dim, step_size):
    """E‖Θ‖² of every model of a noisy gradient descent started from N(0, v₀ I), v₀ ≤ σ²/λ.

    E‖Θ‖² ≤ m²,   m = ((1-ηλ) L + √(L² + 2λ(2-ηλ) dσ²)) / (λ (2-ηλ))

    Guarantee: after any number of steps and edits, for every requester, adaptive ones too.
    Assumes: L-Lipschitz loss, convex or not; ηλ ≤ 1.
    """
    lipschitz, l2 = checks.positive("lipschitz", lipschitz), checks.positive("l2", l2)
    noise_variance = checks.positive("noise_variance", noise_variance)
    pull = checks.positive("step_size", step_size) * l2
    if not np.all(pull <= 1 + _ROUNDING):
        raise CertificateRefused(
            f"step_size · l2 = {np.max(pull):g} is above 1, which this bound does not allow; "
            f"give a step size of at most 1/l2."
        )
    pull, drift = np.minimum(pull, 1), lipschitz / l2
    noise = 2 * (2 - pull) * checks.count("dim", dim) * noise_variance / l2
    return floats.plain_bound((((1 - pull) * drift + np.sqrt(drift**2 + noise)) / (2 - pull)) ** 2)


@floats.quiet
def excess_risk_nonconvex(problem: Bounded, noise_variance, step_size, eps_dd):
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
    released = released_second_moment(
        problem.lipschitz, problem.l2, noise_variance, problem.dim, step_size
    )
    gibbs = gibbs_second_moment(problem, noise_variance)
    eps_dd = checks.nonnegative("eps_dd", eps_dd)
    ratio = 2 * problem.bound / noise_variance
    spread = noise_variance / problem.l2
    transport = np.exp(ratio / 2) * np.sqrt(2 * spread) * np.sqrt(eps_dd)
    moved = (np.sqrt(gibbs) + np.where(eps_dd == 0, 0.0, transport)) ** 2
    entropy = eps_dd + np.minimum(ratio, ratio**2 / 8 + ratio * np.sqrt(eps_dd / 2))
    tilted = problem.dim * spread * _moment_ratio(2 * entropy / problem.dim)
    square = np.minimum(np.minimum(released, moved), tilted)
    return floats.plain_bound(_risk_by_entropy(problem, noise_variance, square, eps_dd))


# --- what the bounds are made of ------------------------------------------------------------------


def _kappa(l2, smoothness):
    """κ = (λ+β)/λ."""
    return 1 + checks.nonnegative("smoothness", smoothness) / checks.positive("l2", l2)


def _curvature(run):
    """M = λ+β."""
    return np.add(run.l2, run.smoothness)


def _spread(run, dim):
    """dV, the spread at which noise and contraction balance; refuses an unstable step size."""
    run.stable()
    variance = stationary_variance(run.l2, run.noise_variance, run.step_size)
    return checks.count("dim", dim) * variance


def _start_square(run, dim, spread, init_variance):
    """L²/λ² + d v₀, a bound on E‖Θ_0 - θ*‖²; v₀ = V unless given."""
    if init_variance is not None:
        spread = checks.count("dim", dim) * checks.nonnegative("init_variance", init_variance)
    return (checks.positive("lipschitz", run.lipschitz) / run.l2) ** 2 + spread


def _decay(run, num_steps):
    """(c^(2K), 1 - c^(2K)), also at c = 0, K = 0 and K = ∞."""
    exponent = 2 * contraction_exponent(run.step_size, run.l2, num_steps)
    return np.exp(exponent), -np.expm1(exponent)


def _cycle(run):
    """Radius ρ of the points that cyclic batches circle through around θ*, and the pull off them.

    Let f_j be the objective on batch j, so that Σ b_j ∇f_j(θ*) = 0. The points
    x_{k+1} = x_k - η (b_j m/n) ∇f_j(θ*) start at θ* and come back to it after m steps. With
    ‖∇f_j(θ*)‖ ≤ G = 2L and |b_j m/n - 1| ≤ m/n they stay within ρ = η G ⌊m/2⌋ (1 + m/n) of θ*.
    A step maps x_k to within ηMρ + ηG m/n of x_{k+1}; as steps contract by c = 1 - ηλ, the run
    stays within κρ + (G/λ) m/n of the points, beside noise and start. The terms in m/n are there
    only if m does not divide n, and for m = 1 all are 0.
    """
    gradient = 2 * np.asarray(run.lipschitz)
    uneven = np.where(np.mod(run.n, run.batches) == 0, 0.0, np.divide(run.batches, run.n))
    radius = run.step_size * gradient * np.floor_divide(run.batches, 2) * (1 + uneven)
    pull = (_curvature(run) / run.l2) * radius + gradient / run.l2 * uneven
    return radius, pull


def _iterate(distance, kept, lost, shift, spread, request):
    """m_i of m ← √(kept (m + shift)² + lost·spread), at i = request.

    The first requests are iterated one by one. As the map is convex, the chord to its fixed point
    bounds all later ones from above, in closed form.
    """
    root = np.hypot(np.sqrt(kept) * shift, lost * np.sqrt(spread))
    limit = np.where(lost > 0, (kept * shift + root) / np.where(lost > 0, lost, 1), np.inf)
    exact = np.minimum(request, _EXACT_REQUESTS)
    start, distance = distance, np.asarray(distance)
    for i in range(int(np.max(np.where(np.isinf(request), 0, exact), initial=0))):
        distance = np.where(i < exact, _next(distance, kept, lost, shift, spread), distance)
    change = _next(distance, kept, lost, shift, spread) - distance
    slope = np.clip(np.where(distance == limit, 0, change / (distance - limit)), -1, 0)
    covered = -np.expm1(floats.times(np.log1p(slope), request - exact))
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


def _steps_to(run, excess, room):
    """Least K with c^(2K) ≤ room/(excess + room): 0 if excess ≤ 0, and 1 if c = 0."""
    rate = -2 * contraction_exponent(run.step_size, run.l2, 1)
    needed = np.log1p(np.maximum(excess, 0) / room)
    return np.where(excess > 0, np.maximum(np.ceil(needed / rate * (1 - _ROUNDING)), 1), 0)


def _moment_ratio(entropy):
    """The y ≥ 1 with y - 1 - log y = entropy, approached from above by Newton's method."""
    z = np.sqrt(2 * entropy) + entropy
    # For a small z the difference z - log(1+z) loses its digits, so that a Newton step may fall
    # below the root; it is taken only where it stays above this lower bound of the root.
    least = np.sqrt(2 * entropy) + 2 / 3 * entropy
    for _ in range(5):
        newton = z - (z - np.log1p(z) - entropy) * (1 + z) / z
        z = np.where(newton > least, np.minimum(newton, z), z)
    return 1 + z


def _risk_by_entropy(problem, noise_variance, square, divergence):
    """min{σ²·KL + (dσ²/2)[1 + log(M m²/(dσ²))], 2b + λm²/2}."""
    ratio = problem.curvature * square / (problem.dim * noise_variance)
    entropy = noise_variance * (divergence + problem.dim / 2 * (1 + np.log(ratio)))
    return np.minimum(entropy, 2 * problem.bound + problem.l2 * square / 2)
