"""Rényi divergence from a bounded critic: the variational formula and empirical Bernstein limits.

Why it is sound. For every bounded function g of the score and every order q > 1,

    R_q(P ‖ Q) ≥ q/(q-1) · log E_P e^{(q-1)g} - log E_Q e^{qg},

with equality at g = log dP/dQ (Birrell et al. 2021; it is Hölder's inequality). Part A fixes g. On
part B the two means are of bounded independent variables; a lower limit of the first and an upper
limit of the second each fail with probability at most α/2 (Maurer & Pontil 2009), so both hold with
probability 1 - α, however the arms depend on each other. Adding a constant to g changes nothing, so
g ≤ 0 is used and no exponential overflows.
"""

from typing import NamedTuple

import numpy as np
from scipy import optimize

from dd_jax.audit import bin_bounds, tails
from dd_jax.audit.types import LowerBound
from dd_jax.errors import InputError
from dd_jax.guarantees import checks

HALF_WIDTHS = 2.0 ** np.arange(-4, 6)


class Critic(NamedTuple):
    """g, a step function of the score: values[j] where the j highest thresholds are not exceeded.

    Attributes:
        thresholds: descending; the event of step j is score > thresholds[j].
        values: g on each of the steps, one more than thresholds, at most 0.
    """

    thresholds: np.ndarray
    values: np.ndarray


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
    order = float(checks.order(order))
    checked = tails.parts(fit_present, fit_absent, test_present, test_absent, confidence)
    least = fewest_seeds(order, confidence)
    if checked.seeds < least:
        raise InputError(
            f"{checked.seeds} test seeds can refute nothing at order {order:g} and confidence "
            f"{confidence:g} by this bound; give at least {least} in each arm."
        )
    critic = fit_critic(checked, order, confidence)
    present = step_frequencies(checked.test_present, critic.thresholds)
    absent = step_frequencies(checked.test_absent, critic.thresholds)
    sizes = len(checked.test_present), len(checked.test_absent)
    value = max(critic_bound(critic.values, present, absent, sizes, order, confidence), 0.0)
    method = "bounded critic, empirical Bernstein"
    return LowerBound("renyi", value, confidence, checked.seeds, method)


def fewest_seeds(order: float, confidence: float) -> int:
    """The least number of test seeds per arm with which some outcome gives a positive bound.

    At best nothing varies and the formula reads q/(q-1) log(1 - c) - log c, where c is the limits'
    7 log(4/α)/(3(n-1)).
    """
    largest = optimize.brentq(
        lambda c: order / (order - 1) * np.log1p(-c) - np.log(c), 1e-300, 1 - 1e-16
    )
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


def step_frequencies(ordered: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """The fraction of the sorted scores on each step, from the highest step down."""
    counts = tails.tail_counts(ordered, thresholds)
    return np.diff(np.concatenate([[0], counts, [len(ordered)]])) / len(ordered)


def fit_critic(checked: tails.Parts, order: float, confidence: float) -> Critic:
    """The log-ratio that part A shows, clipped where part A promises the best bound.

    The log-ratio is that of the concave majorant of part A's tails, one pseudo-seed kept back in
    the present arm and one added in the absent arm.
    """
    grid = tails.candidates(checked)
    present, absent = checked.fit_present, checked.fit_absent
    low = tails.tail_counts(present, grid) / (len(present) + 1)
    high = (tails.tail_counts(absent, grid) + 1) / (len(absent) + 1)
    across, up = bin_bounds.majorant(low, high)
    thresholds = bin_bounds.at_vertices(grid, low, high, across, up)
    logs = np.log(np.diff(up) / np.diff(across))
    frequencies = [step_frequencies(scores, thresholds) for scores in (present, absent)]
    sizes = tuple(
        np.sqrt(len(fit) * len(test)) for fit, test in zip(checked[:2], checked[2:], strict=True)
    )
    clipped = [np.clip(logs, -width, width) - min(width, logs.max()) for width in HALF_WIDTHS]
    promises = [critic_bound(values, *frequencies, sizes, order, confidence) for values in clipped]
    return Critic(thresholds, clipped[int(np.argmax(promises))])
