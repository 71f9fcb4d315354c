"""Every lower bound of the audit: choose on part A, judge on part B.

All take `*scores`, four vectors with one score per seed (part A present and absent, part B present
and absent; a large score says "present"), and return a `LowerBound`. For R_q(absent ‖ present),
exchange the arms and negate the scores. There are three kinds: from one event, from many bins, and
from a bounded critic. The last function is an estimate and not a bound. Host-side, no JAX.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import optimize, special

from dd_jax import checks
from dd_jax.audit import tails
from dd_jax.errors import InputError
from dd_jax.guarantees import renyi

NUMBERS_OF_THRESHOLDS = (1, 2, 3, 4, 5, 7, 9, 12, 16)
HALF_WIDTHS = 2.0 ** np.arange(-4, 6)


class LowerBound(NamedTuple):
    """A number that the truth exceeds, with at least the stated confidence.

    Attributes:
        quantity: what is bounded: "advantage", "epsilon", "hockey_stick", "renyi" or "mu".
        value: the truth is at least this, with probability at least `confidence` over the seeds.
        confidence: 1 - α of this statement.
        seeds: seeds per arm that it was tested on (the fitting seeds do not count).
        method: how it was obtained, in a few words.
    """

    quantity: str
    value: float
    confidence: float
    seeds: int
    method: str


# --- one event {score > t}: advantage, (ε, δ), Gaussian DP and Rényi divergence ------------------

# Why they are sound. Part A fixes t. On part B the hits of each arm are binomial; p ≤ P(E) fails
# with probability at most α/2 and s ≥ Q(E) with probability at most α/2 (Clopper-Pearson), so both
# hold with probability 1 - α, however the arms depend on each other. Each quantity below is at
# least f(P(E), Q(E)) for every event E, and f grows with its first argument and falls with its
# second; so it is at least f(p, s). The complement's two limits are 1 - s and 1 - p, so a bound
# that looks at an event and its complement, or at both directions, spends no further risk.


def advantage(*scores, confidence: float, independent: bool = False) -> LowerBound:
    """The membership advantage sup_E P(E) - Q(E), the total variation, is at least p - s.

    Args:
        *scores: four vectors, see above.
        confidence: 1 - α.
        independent: whether the seeds of one arm are independent of the other's; the limits are
            then narrower (`tails.corners`).
    """
    return _judge("advantage", scores, difference, confidence, independent)


def hockey_stick(
    *scores, epsilon: float, confidence: float, both_ways: bool = True, independent: bool = False
) -> LowerBound:
    """δ(ε) = sup_E P(E) - e^ε Q(E) is at least p - e^ε s.

    Args:
        epsilon: ε ≥ 0 of the claim.
        both_ways: bound the larger of δ(present ‖ absent) and δ(absent ‖ present), as claims about
            neighbours mean it; otherwise δ(present ‖ absent) alone.
        *scores, confidence, independent: as in `advantage`.
    """
    epsilon = float(checks.nonnegative("epsilon", epsilon))
    value = functools.partial(excess_mass, epsilon=epsilon)
    return _judge("hockey_stick", scores, both_or_one(value, both_ways), confidence, independent)


def epsilon_at(
    *scores, delta: float, confidence: float, both_ways: bool = True, independent: bool = False
) -> LowerBound:
    """ε at δ: P(E) ≤ e^ε Q(E) + δ for every event, so ε is at least log((p - δ)/s).

    Args:
        delta: δ of the claim, 0 included.
        both_ways: bound the larger of the two directions' ε; otherwise present ‖ absent alone.
        *scores, confidence, independent: as in `advantage`.
    """
    delta = float(checks.probability("delta", delta))
    value = functools.partial(log_excess_ratio, delta=delta)
    return _judge("epsilon", scores, both_or_one(value, both_ways), confidence, independent)


def gaussian_mu(*scores, confidence: float, independent: bool = False) -> LowerBound:
    """μ of Gaussian DP: Φ⁻¹(P(E)) - Φ⁻¹(Q(E)) ≤ μ for every event, so μ ≥ Φ⁻¹(p) - Φ⁻¹(s).

    Between N(μ, 1) and N(0, 1) every threshold attains equality: only the width of the two limits
    is lost. Guarantee: no μ'-GDP claim with μ' below the value is true. Dong, Roth, Su 2022.

    Args:
        *scores, confidence, independent: as in `advantage`.
    """
    return _judge("mu", scores, normal_shift, confidence, independent)


def renyi_of_mu(bound: LowerBound, order: float) -> LowerBound:
    """The bound R_q ≥ q μ²/2 from one on μ, for a pair that is Gaussian with one covariance.

    Guarantee: refutes "R_q ≤ ε because the pair is √(2ε/q)-GDP" for any pair; a bound on the
    divergence itself only where the law is Gaussian, as for linear losses.
    """
    value = float(renyi.renyi_from_gdp(order, bound.value))
    return bound._replace(quantity="renyi", value=value, method="Gaussian law, one threshold")


def renyi_binary(*scores, order: float, confidence: float, independent: bool = False) -> LowerBound:
    """R_q(present ‖ absent) is at least the divergence r_q(p ‖ s) of two coins: data processing.

    Args:
        order: q > 1.
        *scores, confidence, independent: as in `advantage`.
    """
    order = tails.renyi_order(order)
    value = functools.partial(coin_divergence, order=order)
    return _judge("renyi", scores, value, confidence, independent)


# --- the value of one event, from a lower limit p of P(E) and an upper limit s of Q(E) ----------


def difference(likely, unlikely):
    """P(E) - Q(E)."""
    return likely - unlikely


def excess_mass(likely, unlikely, *, epsilon: float):
    """P(E) - e^ε Q(E), with e^ε kept from overflowing (below -1 nothing changes)."""
    with np.errstate(divide="ignore"):
        return likely - np.exp(np.minimum(epsilon + np.log(unlikely), 1.0))


def log_excess_ratio(likely, unlikely, *, delta: float):
    """log((P(E) - δ)/Q(E)), -∞ where P(E) ≤ δ, whatever Q(E)."""
    beyond = np.asarray(likely) - delta
    with np.errstate(divide="ignore"):
        logs = np.log(np.where(beyond > 0, beyond, 1.0)) - np.log(unlikely)
    return np.where(beyond > 0, logs, -np.inf)


def normal_shift(likely, unlikely):
    """Φ⁻¹(P(E)) - Φ⁻¹(Q(E)); -∞ where P(E) = 0 or Q(E) = 1, finite for P(E) = 1 and Q(E) = 0."""
    sure, never = 1 - 2.0**-53, np.finfo(np.float64).tiny
    return special.ndtri(np.minimum(likely, sure)) - special.ndtri(np.maximum(unlikely, never))


def coin_divergence(likely, unlikely, *, order: float):
    """r_q(p ‖ s) = log(p^q s^{1-q} + (1-p)^q (1-s)^{1-q}) / (q-1); 0 where p ≤ s."""
    with np.errstate(divide="ignore", invalid="ignore"):
        heads = special.xlogy(order, likely) - special.xlogy(order - 1, unlikely)
        opposite = special.xlog1py(order, -likely) - special.xlog1py(order - 1, -unlikely)
        value = np.logaddexp(heads, opposite) / (order - 1)
    return np.where(likely > unlikely, np.maximum(value, 0.0), 0.0)[()]


def both_or_one(value: Callable, both_ways: bool) -> Callable:
    """One direction's value, or the larger of it and the complement's with the arms exchanged."""
    if not both_ways:
        return value
    return lambda likely, unlikely: np.maximum(
        value(likely, unlikely), value(1 - unlikely, 1 - likely)
    )


# --- choose on A, judge on B --------------------------------------------------------------------


def choose_event(seen: tails.View, value: Callable, confidence: float) -> int:
    """Which threshold promises the best bound on part A."""
    low, high = seen.promised_limits(confidence)
    found = value(low, high)
    return int(np.argmax(found if np.max(found) > 0 else seen.present - seen.absent))


def _judge(
    quantity: str, scores: tuple, value: Callable, confidence: float, independent: bool
) -> LowerBound:
    """Choose the event on part A, and bound the quantity on part B."""
    checked = tails.parts(scores, confidence)
    seen = tails.view(checked)
    chosen = choose_event(seen, value, confidence)
    arms = (checked.test_present, checked.test_absent)
    if independent:
        weights = tails.best_weights(
            value, (seen.present[chosen], seen.absent[chosen]), seen.test_sizes
        )
        hits = [int(tails.tail_counts(arm, seen.thresholds[chosen])) for arm in arms]
        low, high = tails.corners((hits[0], hits[1]), seen.test_sizes, weights, confidence)
    else:
        low, high = tails.limits(*arms, seen.thresholds[chosen], confidence)
    bound = max(float(np.min(value(low, high))), 0.0)
    method = "one event, independent arms" if independent else "one event, Clopper-Pearson"
    return LowerBound(quantity, bound, confidence, checked.seeds, method)


# --- many bins: simultaneous exact tails and the least divergence they allow ---------------------

# Why it is sound. Part A fixes thresholds t₁ > … > t_m, that is m + 1 bins. On part B each tail
# probability P(score > t_j) is at least L_j and Q(score > t_j) at most U_j, where each statement
# fails with probability at most α/(2m) (Clopper-Pearson); by the union bound all 2m hold with
# probability 1 - α. Data
# processing to the bins leaves the convex programme
#
#    minimise  Σ_i p_i^q s_i^{1-q}   over p, s ≥ 0, Σp = Σs = 1, with tails P_j ≥ L_j and S_j ≤ U_j,
#
# and R_q ≥ log(minimum)/(q-1). Its constraints say that the curve of (S_j, P_j) passes above and to
# the left of the points (U_j, L_j); the least divergence has their concave majorant for its curve,
# whose slopes are the likelihood ratios (Blackwell's order), so the programme is solved by a convex
# hull. The value returned is the dual one, sound whatever the solver does (`dual_bound`).


def renyi_bins(*scores, order: float, confidence: float, bins: int | None = None) -> LowerBound:
    """R_q(present ‖ absent) is at least the least divergence that the bins' exact limits allow.

    Args:
        *scores: four vectors, see above.
        order: q > 1.
        confidence: 1 - α.
        bins: how many bins; chosen on part A by the sample size if None.
    """
    order = tails.renyi_order(order)
    if bins is not None:
        checks.whole("bins", bins, least=2)
    checked = tails.parts(scores, confidence, cases=1 if bins is None else bins - 1)
    numbers = NUMBERS_OF_THRESHOLDS if bins is None else (bins - 1,)
    seen = tails.view(checked)
    thresholds = seen.thresholds[choose_bins(seen, order, confidence, numbers)]
    share = 1 / len(thresholds)
    low, high = tails.limits(
        checked.test_present, checked.test_absent, thresholds, confidence, share
    )
    value = max(least_divergence(order, low, high), 0.0)
    method = f"{len(thresholds) + 1} bins, simultaneous Clopper-Pearson"
    return LowerBound("renyi", value, confidence, checked.seeds, method)


def least_divergence(order: float, low, high) -> float:
    """log(least Σ p_i^q s_i^{1-q})/(q-1) given tails P_j ≥ L_j, S_j ≤ U_j: hull, then its dual."""
    across, up = majorant(low, high)
    ratios = np.minimum.accumulate(np.diff(up) / np.diff(across))
    return dual_bound(order, ratios, across, up) / (order - 1)


def majorant(low, high) -> tuple[np.ndarray, np.ndarray]:
    """The vertices (S, P) of the least concave curve above (0,0), the points (U_j, L_j), (1,1)."""
    rank = np.lexsort((-low, high))
    kept = [(0.0, 0.0)]
    for point in zip(high[rank].tolist(), low[rank].tolist(), strict=True):
        if kept[-1][0] < point[0] < 1 and point[1] > kept[-1][1]:
            _add(kept, point)
    _add(kept, (1.0, 1.0))
    across, up = np.array(kept).T
    return across, up


def _add(kept: list[tuple[float, float]], point: tuple[float, float]) -> None:
    """Append a point, after removing the earlier points that then lie on or below a chord."""
    while len(kept) > 1:
        (x, y), (x_last, y_last) = kept[-2], kept[-1]
        if (y_last - y) * (point[0] - x) > (point[1] - y) * (x_last - x):
            break
        kept.pop()
    kept.append(point)


def dual_bound(order: float, ratios, across, up) -> float:
    """log of a lower bound on Σ p_i^q s_i^{1-q}, for any ratios r_1 ≥ r_2 ≥ … ≥ 0.

    Tangents of a convex function lie below it: p^q s^{1-q} ≥ q r^{q-1} p - (q-1) r^q s. Summed over
    bins this is linear in the tails, with weight q(r_j^{q-1} - r_{j+1}^{q-1}) ≥ 0 on P_j and
    -(q-1)(r_j^q - r_{j+1}^q) ≤ 0 on S_j, so it only falls when P_j is replaced by its least and S_j
    by its greatest value. With the hull's slopes for r it equals the primal value: no gap.
    """
    rise, run = np.diff(up), np.diff(across)
    heights = rise + (order - 1) * (rise - ratios * run)
    with np.errstate(divide="ignore"):
        logs = np.where(heights == 0, -np.inf, (order - 1) * np.log(ratios))
    total, sign = special.logsumexp(logs, b=heights, return_sign=True)
    return float(total) if sign > 0 else -np.inf


# --- the choice of thresholds, on part A ----------------------------------------------------------


class _Choice(NamedTuple):
    """Which thresholds, and the log Σ p_i^q s_i^{1-q} that part A promises for them."""

    promise: float
    chosen: np.ndarray


def choose_bins(seen: tails.View, order: float, confidence: float, numbers) -> np.ndarray:
    """The best thresholds by part A: the best set of each size, and then the best of these sets."""
    choices = [_choose_number(seen, order, confidence, number) for number in numbers]
    return max(choices, key=lambda choice: choice.promise).chosen


def _choose_number(seen: tails.View, order: float, confidence: float, number: int) -> _Choice:
    """The best `number` thresholds, by dynamic programming along the majorant of part A's limits.

    Points of a concave curve keep their order and its concavity, so the value of any subset is the
    sum over neighbouring points of rise^q run^{1-q}, and the best path with `number` stops is found
    stop by stop.
    """
    low, high = seen.promised_limits(confidence, number)
    across, up = majorant(low, high)
    if len(across) == 2:
        return _Choice(-np.inf, np.array([np.argmax(seen.present - seen.absent)]))
    promise, stops = best_path(segment_logs(order, across, up), number)
    return _Choice(promise, at_vertices(low, high, across, up)[np.array(stops) - 1])


def at_vertices(low, high, across, up) -> np.ndarray:
    """Which points (U_j, L_j) are the majorant's vertices, its two ends left out."""
    inner = zip(across[1:-1], up[1:-1], strict=True)
    return np.array([np.argmax((high == x) & (low == y)) for x, y in inner], dtype=int)


def segment_logs(order: float, across, up) -> np.ndarray:
    """log(rise^q run^{1-q}) from each point of a curve to each later one, -∞ elsewhere."""
    rise, run = up[None, :] - up[:, None], across[None, :] - across[:, None]
    beyond = (rise > 0) & (run > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = order * np.log(rise) - (order - 1) * np.log(run)
    return np.where(beyond, logs, -np.inf)


def best_path(logs: np.ndarray, stops: int) -> tuple[float, list[int]]:
    """The path from the first point to the last with at most `stops` between, of largest sum.

    Args:
        logs: (G, G) logarithms of what each step adds.
        stops: the most points to stop at on the way.
    """
    stops = min(stops, len(logs) - 2)
    value, came_from = logs[0], []
    for _ in range(stops):
        steps = np.logaddexp(value[:, None], logs)
        steps = np.where(np.isfinite(value[:, None]) & np.isfinite(logs), steps, -np.inf)
        came_from.append(np.argmax(steps, axis=0))
        value = np.max(steps, axis=0)
    path, here = [], len(logs) - 1
    for origins in reversed(came_from):
        here = int(origins[here])
        path.append(here)
    return float(value[-1]), path[::-1]


# --- a bounded critic: the variational formula and empirical Bernstein limits --------------------

# Why it is sound. For every bounded function g of the score and every order q > 1,
#
#    R_q(P ‖ Q) ≥ q/(q-1) · log E_P e^{(q-1)g} - log E_Q e^{qg},
#
# with equality at g = log dP/dQ (Birrell et al. 2021; it is Hölder's inequality). Part A fixes g.
# On part B the two means are of bounded independent variables; a lower limit of the first and an
# upper limit of the second each fail with probability at most α/2 (Maurer & Pontil 2009), so both
# hold with probability 1 - α, however the arms depend on each other. Adding a constant to g changes
# nothing, so g ≤ 0 is used and no exponential overflows.


def renyi_variational(*scores, order: float, confidence: float) -> LowerBound:
    """R_q(present ‖ absent) is at least the variational formula's value at a critic from part A.

    Args:
        *scores: four vectors, see above.
        order: q > 1.
        confidence: 1 - α.
    """
    order = tails.renyi_order(order)
    checked = tails.parts(scores, confidence)
    least = fewest_critic_seeds(order, confidence)
    if checked.seeds < least:
        raise InputError(
            f"{checked.seeds} test seeds can refute nothing at order {order:.9g} and confidence "
            f"{confidence:g} by this bound; give at least {least} in each arm."
        )
    seen = tails.view(checked)
    chosen, values = fit_critic(seen, order, confidence)
    present, absent = (
        steps(tails.tail_counts(arm, seen.thresholds[chosen]) / len(arm)) for arm in checked[2:]
    )
    value = max(critic_bound(values, present, absent, seen.test_sizes, order, confidence), 0.0)
    method = "bounded critic, empirical Bernstein"
    return LowerBound("renyi", value, confidence, checked.seeds, method)


def fewest_critic_seeds(order: float, confidence: float) -> int:
    """The least number of test seeds per arm with which some outcome gives a positive bound.

    At best nothing varies and the formula reads q/(q-1) log(1 - c) - log c, where c is the limits'
    7 log(4/α)/(3(n-1)).
    """
    largest = optimize.root_scalar(
        lambda c: order / (order - 1) * np.log1p(-c) - np.log(c), bracket=(1e-300, 1 - 1e-16)
    ).root
    return int(1 + 7 * _log_risk(confidence) / (3 * largest)) + 1


def critic_bound(values, present, absent, sizes, order: float, confidence: float) -> float:
    """q/(q-1) log(lower limit of E_P e^{(q-1)g}) - log(upper limit of E_Q e^{qg}).

    Args:
        values: g on each step.
        present, absent: how often each step was met, as fractions.
        sizes: seeds behind the two.
        order: q.
        confidence: 1 - α.
    """
    log_risk = _log_risk(confidence)
    first, second = np.exp((order - 1) * values), np.exp(order * values)
    low = present @ first - bernstein_width(first, present, sizes[0], log_risk)
    high = absent @ second + bernstein_width(second, absent, sizes[1], log_risk)
    low, high = max(low, float(first.min())), min(high, float(second.max()))
    if low <= 0:
        return -np.inf
    return float(order / (order - 1) * np.log(low) - np.log(high))


def bernstein_width(values, frequencies, size, log_risk: float) -> float:
    """√(2V log(2/δ)/n) + 7 (range) log(2/δ)/(3(n-1)), V being the unbiased sample variance.

    Guarantee: a mean of n bounded independent variables is further than this above (or below) its
    expectation with probability at most δ; `log_risk` is log(2/δ). Maurer & Pontil 2009, theorem 4.
    """
    mean = frequencies @ values
    variance = frequencies @ (values - mean) ** 2 * size / (size - 1)
    spread = values.max() - values.min()
    return float(np.sqrt(2 * variance * log_risk / size) + 7 * spread * log_risk / (3 * (size - 1)))


def _log_risk(confidence: float) -> float:
    """log(2/δ) for the δ = α/2 that each arm may spend."""
    return float(np.log(4 / (1 - confidence)))


def fit_critic(seen: tails.View, order: float, confidence: float) -> tuple[np.ndarray, np.ndarray]:
    """(which thresholds, g on each step): part A's log-ratio, with the clip that promises most.

    The log-ratio is that of the concave majorant of part A's tails, one pseudo-seed kept back in
    the present arm and one added in the absent arm. g is at most 0.
    """
    size_present, size_absent = seen.fit_sizes
    low = seen.present * size_present / (size_present + 1)
    high = (seen.absent * size_absent + 1) / (size_absent + 1)
    across, up = majorant(low, high)
    chosen = at_vertices(low, high, across, up)
    logs = np.log(np.diff(up) / np.diff(across))
    present, absent = steps(seen.present[chosen]), steps(seen.absent[chosen])
    clipped = [np.clip(logs, -width, width) - min(width, logs.max()) for width in HALF_WIDTHS]
    promises = [
        critic_bound(values, present, absent, seen.sizes, order, confidence) for values in clipped
    ]
    return chosen, clipped[int(np.argmax(promises))]


def steps(fractions) -> np.ndarray:
    """The fraction on each step, from the highest step down, given those beyond each threshold."""
    return np.diff(np.concatenate([[0.0], fractions, [1.0]]))


# --- an estimate that is not a bound: nothing below may refute or support a claim ----------------

# A Gaussian fit is wrong wherever the law is not Gaussian, and it has no confidence.


def estimated_renyi_gaussian_fit(present, absent, *, order: float) -> float:
    """R_q(present ‖ absent) of the two Gaussians with the samples' means and covariances.

    Not a bound: exact only in the limit of many seeds from two Gaussians.

    Args:
        present, absent: outputs (S, d) or (S,).
        order: q > 1.
    """
    first, second = tails.tables(present, absent)
    if len(first) <= first.shape[1]:
        raise InputError(
            f"{len(first)} seeds cannot fit {first.shape[1]} dimensions; give more seeds."
        )
    covariances = [np.atleast_2d(np.cov(arm.T)) for arm in (first, second)]
    return float(
        renyi.renyi_gaussian(
            order, first.mean(axis=0), covariances[0], second.mean(axis=0), covariances[1]
        )
    )
