"""Tail events of a score in two arms: thresholds chosen on part A, exact limits from part B.

Every bound of the audit rests on events {score > t}. Thresholds are chosen on part A of the seeds;
given part A they are fixed numbers, so the counts of part B are binomial and Clopper-Pearson limits
hold exactly, for any law of the score, ties and atoms included. Only `corners` assumes that the two
arms are independent of each other; everywhere else risks are added. Host-side, no JAX.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

from dd_jax import checks
from dd_jax.errors import InputError
from dd_jax.intervals import check_confidence, lower_limit, upper_limit

MOST_CANDIDATES = 256
# The risk at which part A chooses, as a fraction of α. At α itself the best-looking threshold is
# mostly a lucky one far out in a tail, where part B then shows little; at a much smaller risk part
# A chooses a threshold of which it is sure.
CAUTION = 1e-6
# Divergences are logarithms divided by q - 1: at orders closer to 1 the rounding of the logarithm,
# divided by q - 1, would look like a positive bound.
LEAST_ORDER = 1 + 1e-6
# The part of α spent on either side's outer limit, and the number of boxes (`corners`).
OUTER = 1e-3
BOXES = 200
_LEAST_WEIGHT = 0.05
_NUDGE = 1e-6


class Parts(NamedTuple):
    """The scores of both arms, part A to choose by and part B to judge by, each sorted.

    Attributes:
        fit_present, fit_absent: part A.
        test_present, test_absent: part B.
    """

    fit_present: np.ndarray
    fit_absent: np.ndarray
    test_present: np.ndarray
    test_absent: np.ndarray

    @property
    def seeds(self) -> int:
        """Seeds per arm of part B; the smaller number if the arms differ."""
        return min(len(self.test_present), len(self.test_absent))


def parts(scores: Sequence, confidence: float, cases: int = 1) -> Parts:
    """The four samples as sorted float64 vectors; refuses NaN and too few seeds to show anything.

    With n test seeds the best limits are (α/2)^{1/n} below and 1 - (α/2)^{1/n} above; unless the
    first exceeds the second no outcome could refute any claim. `cases` events that share the risk
    need (α/(2·cases))^{1/n}.
    """
    check_confidence(confidence)
    named = zip(Parts._fields, scores, strict=True)
    checked = Parts(*(np.sort(_scores(name, values)) for name, values in named))
    least = fewest_seeds(confidence, cases)
    if checked.seeds < least:
        raise InputError(
            f"{checked.seeds} test seeds can refute nothing at confidence {confidence:g}; "
            f"give at least {least} in each arm."
        )
    return checked


def fewest_seeds(confidence: float, cases: int = 1) -> int:
    """The least number of test seeds per arm with which some outcome shows a difference."""
    check_confidence(confidence)
    return int(np.floor(np.log2(2 * cases / (1 - confidence)))) + 1


def renyi_order(order: float) -> float:
    """The order q of a Rényi bound; refused where rounding divided by q - 1 would be visible."""
    order = float(checks.order(order))
    if order < LEAST_ORDER:
        raise InputError(
            f"order = {order!r} is too near 1 to be audited; give an order ≥ 1.000001."
        )
    return order


def _scores(name: str, values) -> np.ndarray:
    try:
        scores = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name} is not numeric; give a vector of scores.") from None
    if scores.ndim != 1 or scores.size == 0:
        raise InputError(f"{name} has shape {scores.shape}; give a vector with one score per seed.")
    if np.isnan(scores).any():
        raise InputError(
            f"{name} has {int(np.isnan(scores).sum())} NaN scores; correct the mechanism or the "
            f"score."
        )
    return scores


def tables(present, absent) -> tuple[np.ndarray, np.ndarray]:
    """Two arms of finite outputs as (seeds, d) tables of one shape, with at least 2 seeds."""
    first, second = (
        table[:, None] if table.ndim == 1 else table
        for table in (checks.finite("present", present), checks.finite("absent", absent))
    )
    if first.shape != second.shape or first.ndim != 2 or len(first) < 2 or not first.size:
        raise InputError(
            f"the arms have shapes {first.shape} and {second.shape}; "
            f"give both the same (seeds, d), at least 2 seeds."
        )
    return first, second


def tail_counts(ordered: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """How many of the sorted scores exceed each threshold."""
    return len(ordered) - np.searchsorted(ordered, thresholds, side="right")


def limits(present, absent, thresholds, confidence: float, share: float = 1.0):
    """(p, s) for each threshold: p ≤ P(E) and s ≥ Q(E), each failing with at most share · α/2."""
    risk = share * (1 - confidence) / 2
    low = lower_limit(tail_counts(present, thresholds), len(present), risk)
    high = upper_limit(tail_counts(absent, thresholds), len(absent), risk)
    return low, high


# --- what part A shows ----------------------------------------------------------------------------


class View(NamedTuple):
    """What part A shows to those who choose by it.

    Attributes:
        thresholds: descending candidates.
        present, absent: the fraction of each arm's part A beyond each threshold.
        fit_sizes, test_sizes: seeds of parts A and B, (present, absent).
    """

    thresholds: np.ndarray
    present: np.ndarray
    absent: np.ndarray
    fit_sizes: tuple[int, int]
    test_sizes: tuple[int, int]

    @property
    def sizes(self) -> tuple[float, float]:
        """The seeds to make predictions for: the geometric mean of both parts, for each arm.

        Part B's limits are narrower than part A's if it has more seeds, but the fractions of part A
        are too noisy to choose as if they were part B's.
        """
        pairs = zip(self.fit_sizes, self.test_sizes, strict=True)
        present, absent = (float(np.sqrt(fit * test)) for fit, test in pairs)
        return present, absent

    def promised_limits(self, confidence: float, cases: int = 1):
        """(p, s) for each threshold, at a cautious risk, as if the fractions were of `sizes` seeds.

        Wilson's score limits: approximate, which a choice may be, and quick to compute.
        """
        size_present, size_absent = self.sizes
        deviation = special.ndtri(CAUTION * (1 - confidence) / (2 * cases))
        low = _score_limit(self.present, size_present, deviation)
        return low, _score_limit(self.absent, size_absent, -deviation)


def _score_limit(fraction, size: float, deviation: float):
    """Wilson's limit: the probability that the fraction is `deviation` standard deviations from."""
    share = deviation**2 / size
    middle = fraction + share / 2
    width = np.sqrt(fraction * (1 - fraction) * share + share**2 / 4)
    return np.clip((middle + np.sign(deviation) * width) / (1 + share), 0.0, 1.0)


def view(checked: Parts) -> View:
    """Part A's tails at pooled order statistics, and how many seeds there are.

    The ranks are evenly spaced in log-odds, so both tails are searched down to single seeds.
    """
    pooled = np.sort(np.concatenate([checked.fit_present, checked.fit_absent]))
    reach = np.log(len(pooled))
    levels = special.expit(np.linspace(-reach, reach, MOST_CANDIDATES))
    ranks = np.minimum((levels * len(pooled)).astype(int), len(pooled) - 1)
    thresholds = np.unique(pooled[ranks])[::-1]
    present, absent = (tail_counts(arm, thresholds) / len(arm) for arm in checked[:2])
    fit_sizes = len(checked.fit_present), len(checked.fit_absent)
    test_sizes = len(checked.test_present), len(checked.test_absent)
    return View(thresholds, present, absent, fit_sizes, test_sizes)


# --- both probabilities at once, for arms that are independent of each other ----------------------


def corners(
    hits: tuple[float, float],
    trials: tuple[int, int],
    weights: tuple[float, float],
    confidence: float,
) -> tuple[np.ndarray, np.ndarray]:
    """(low, high) of boxes; with probability at least 1 - α one box holds (P(E), Q(E)).

    Two Clopper-Pearson limits at α/2 each hold however the arms depend on each other, and are wider
    for it. Independent arms mislead only if both are unlucky together, so here the evidence of the
    two exact tests is added.

    Why it is sound. For a hypothetical P(E) = a let z(a) = Φ⁻¹(1 - P[Bin(n, a) ≥ hits]) be the
    evidence that the truth is larger, and z'(b) the same for Q(E) = b being smaller. At the true
    (a, b) each is stochastically at most a standard normal (its p-value is at least uniform), and
    so is w z + w' z' with w² + w'² = 1 if the arms are independent. So with probability 1 - α the
    true (a, b) satisfies

        w z(a) + w' z'(b) ≤ Φ⁻¹(1 - α'),   z(a) ≤ Z,   z'(b) ≤ Z,

    where Z spends a small part of α on each side and α' is the rest. That region is covered by
    boxes [low, 1] × [0, high], whose corners are returned: a quantity that grows with P(E) and
    falls with Q(E) is at least its least value over the corners.

    Assumes: the arms are independent of each other.

    Args:
        hits, trials: of part B, (present, absent).
        weights: w and w', positive, fixed without looking at part B.
        confidence: 1 - α.
    """
    alpha = 1 - confidence
    outer = -special.ndtri(OUTER * alpha)
    joint = -special.ndtri((1 - 2 * OUTER) * alpha)
    own, other = np.asarray(weights) / np.hypot(*weights)
    # Present's evidence along the region's edge, and the most that absent's can then be.
    evidence = np.linspace((joint - other * outer) / own, outer, BOXES + 1)
    against = np.minimum((joint - own * evidence[:-1]) / other, outer)
    low = lower_limit(hits[0], trials[0], special.ndtr(-evidence))
    high = upper_limit(hits[1], trials[1], special.ndtr(-np.append(outer, against)))
    return low, high


def best_weights(value: Callable, rates, trials) -> tuple[float, float]:
    """The best weights to first order: by how much each arm's randomness moves the value.

    `rates` are guesses from part A; equal weights where the value does not move there.
    """
    moves = _moves(value, rates, trials)
    if not np.all(np.isfinite(moves)) or np.any(moves <= 0):
        return 1.0, 1.0
    own, other = np.maximum(moves / np.hypot(*moves), _LEAST_WEIGHT)
    return float(own), float(other)


def chance_beyond(value: Callable, claim: float, rates, trials, confidence: float) -> float:
    """P[the bound from these corners > claim] for an event of these rates, to first order."""
    spread = float(np.hypot(*_moves(value, rates, trials)))
    surplus = float(value(*_inside(rates, trials))) - claim
    if not spread > 0:
        return float(surplus > 0)
    return float(special.ndtr(surplus / spread + special.ndtri(1 - confidence)))


def _moves(value: Callable, rates, trials) -> np.ndarray:
    """What one standard deviation of each arm's count moves the value by."""
    present, absent = inside = _inside(rates, trials)
    by_present, by_absent = _NUDGE * np.sqrt(inside * (1 - inside) / np.asarray(trials))
    with np.errstate(all="ignore"):
        here = value(present, absent)
        up, down = value(present + by_present, absent), value(present, absent + by_absent)
        return np.array([up - here, here - down]) / _NUDGE


def _inside(rates, trials) -> np.ndarray:
    """The rates moved half a seed into (0, 1)."""
    return (np.asarray(rates) * trials + 0.5) / (np.asarray(trials) + 1)
