"""Rényi divergence from many bins: simultaneous exact tails and the least divergence they allow.

Why it is sound. Part A fixes thresholds t₁ > … > t_m, that is m + 1 bins. On part B each tail
probability P(score > t_j) is at least L_j and Q(score > t_j) at most U_j, each but for a
probability α/(2m) (Clopper-Pearson); by the union bound all 2m hold with probability 1 - α. Data
processing to the bins leaves the convex programme

    minimise  Σ_i p_i^q s_i^{1-q}   over p, s ≥ 0, Σp = Σs = 1, with tails P_j ≥ L_j and S_j ≤ U_j,

and R_q ≥ log(minimum)/(q-1). Its constraints say that the curve of (S_j, P_j) passes above and to
the left of the points (U_j, L_j); the least divergence has their concave majorant for its curve,
whose slopes are the likelihood ratios (Blackwell's order), so the programme is solved by a convex
hull. The value returned is the dual one, sound whatever the solver does (`dual_bound`).
"""

from typing import NamedTuple

import numpy as np
from scipy import special

from dd_jax import checks
from dd_jax.audit import tails
from dd_jax.audit.types import LowerBound

NUMBERS_OF_THRESHOLDS = (1, 2, 3, 4, 5, 7, 9, 12, 16)


def renyi_bins(
    fit_present,
    fit_absent,
    test_present,
    test_absent,
    *,
    order: float,
    confidence: float,
    bins: int | None = None,
) -> LowerBound:
    """R_q(present ‖ absent) is at least the least divergence that the bins' exact limits allow.

    Args:
        fit_present, fit_absent: scores of part A, one per seed; a large score says "present".
        test_present, test_absent: scores of part B.
        order: q > 1.
        confidence: 1 - α.
        bins: how many bins; chosen on part A by the sample size if None.
    """
    order = tails.renyi_order(order)
    if bins is not None:
        checks.whole("bins", bins, least=2)
    samples = (fit_present, fit_absent, test_present, test_absent)
    checked = tails.parts(*samples, confidence, cases=1 if bins is None else bins - 1)
    numbers = NUMBERS_OF_THRESHOLDS if bins is None else (bins - 1,)
    seen = tails.view(checked)
    thresholds = seen.thresholds[choose(seen, order, confidence, numbers)]
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
    """Append a point, once those that it leaves on or below a chord are gone."""
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


class Choice(NamedTuple):
    """Which thresholds, and the log Σ p_i^q s_i^{1-q} that part A promises for them."""

    promise: float
    chosen: np.ndarray


def choose(seen: tails.View, order: float, confidence: float, numbers) -> np.ndarray:
    """Which thresholds: the best of each number of them, and of these the best, all on part A."""
    choices = [_choose(seen, order, confidence, number) for number in numbers]
    return max(choices, key=lambda choice: choice.promise).chosen


def _choose(seen: tails.View, order: float, confidence: float, number: int) -> Choice:
    """The best `number` thresholds, by dynamic programming along the majorant of part A's limits.

    Points of a concave curve keep their order and its concavity, so the value of any subset is the
    sum over neighbouring points of rise^q run^{1-q}, and the best path with `number` stops is found
    stop by stop.
    """
    low, high = seen.promised_limits(confidence, number)
    across, up = majorant(low, high)
    if len(across) == 2:
        return Choice(-np.inf, np.array([np.argmax(seen.present - seen.absent)]))
    promise, stops = best_path(segment_logs(order, across, up), number)
    return Choice(promise, at_vertices(low, high, across, up)[np.array(stops) - 1])


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
