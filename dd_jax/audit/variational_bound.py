"""Rényi divergence from a bounded critic: the variational formula and empirical Bernstein limits.

Why it is sound. For every bounded function g of the score and every order q > 1,

    R_q(P ‖ Q) ≥ q/(q-1) · log E_P e^{(q-1)g} - log E_Q e^{qg},

with equality at g = log dP/dQ (Birrell et al. 2021; it is Hölder's inequality). Part A fixes g. On
part B the two means are of bounded independent variables; a lower limit of the first and an upper
limit of the second each fail with probability at most α/2 (Maurer & Pontil 2009), so both hold with
probability 1 - α, however the arms depend on each other. Adding a constant to g changes nothing, so
g ≤ 0 is used and no exponential overflows.
"""

import numpy as np
from scipy import optimize

from dd_jax.audit import bin_bounds, tails
from dd_jax.audit.types import LowerBound
from dd_jax.errors import InputError

HALF_WIDTHS = 2.0 ** np.arange(-4, 6)


def renyi_variational(
    fit_present, fit_absent, test_present, test_absent, *, order: float, confidence: float
) -> LowerBound:
    """R_q(present ‖ absent) is at least the variational formula's value at a critic from part A.

    Args:
        fit_present, fit_absent: scores of part A, one per seed; a large score says "present".
        test_present, test_absent: scores of part B.
        order: q > 1.
        confidence: 1 - α.
    """
    order = tails.renyi_order(order)
    checked = tails.parts(fit_present, fit_absent, test_present, test_absent, confidence)
    least = fewest_seeds(order, confidence)
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


def fewest_seeds(order: float, confidence: float) -> int:
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
    """(which thresholds, g on each step): part A's log-ratio, clipped as promises the best bound.

    The log-ratio is that of the concave majorant of part A's tails, one pseudo-seed kept back in
    the present arm and one added in the absent arm. g is at most 0.
    """
    size_present, size_absent = seen.fit_sizes
    low = seen.present * size_present / (size_present + 1)
    high = (seen.absent * size_absent + 1) / (size_absent + 1)
    across, up = bin_bounds.majorant(low, high)
    chosen = bin_bounds.at_vertices(low, high, across, up)
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
