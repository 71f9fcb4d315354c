"""Exact binomial intervals for success probabilities and membership advantages; means over seeds.

The binomial ones are made of Clopper-Pearson intervals: their coverage is at least the stated
confidence for every true probability and every number of trials. Host-side, no JAX.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import special, stats

from dd_jax import checks
from dd_jax.errors import InputError


class Estimate(NamedTuple):
    """A point estimate and an interval that contains the truth with at least the confidence.

    Attributes:
        value: the point estimate.
        low, high: the interval.
        trials: seeds behind it (per arm, for an advantage).
        confidence: of this interval alone, or of the whole family where several were made at once.
    """

    value: float
    low: float
    high: float
    trials: int
    confidence: float

    def contains(self, value: float) -> bool:
        """Whether the interval contains the value."""
        return self.low <= value <= self.high


def lower_limit(hits, trials, risk):
    """The Clopper-Pearson lower limit of a probability: too high with probability at most `risk`.

    Arrays are accepted, and so are fractions of hits, for predictions; 0 hits give 0.
    """
    hits = np.asarray(hits, dtype=np.float64)
    some = np.maximum(hits, np.finfo(np.float64).tiny)  # the beta law needs a positive shape
    return np.where(hits > 0, special.betaincinv(some, trials - hits + 1, risk), 0.0)


def upper_limit(hits, trials, risk):
    """The Clopper-Pearson upper limit: too low with probability at most `risk`; 1 if all hit."""
    hits = np.asarray(hits, dtype=np.float64)
    misses = np.maximum(trials - hits, np.finfo(np.float64).tiny)
    return np.where(hits < trials, special.betainccinv(hits + 1, misses, risk), 1.0)


def clopper_pearson(successes: int, trials: int, confidence: float) -> tuple[float, float]:
    """The two-sided Clopper-Pearson interval of a proportion, (1 - confidence)/2 on each side."""
    check_confidence(confidence)
    if trials < 1 or not 0 <= successes <= trials:
        raise InputError(
            f"{successes} successes in {trials} trials; "
            f"give at least 1 trial and 0 ≤ successes ≤ trials."
        )
    tail = (1 - confidence) / 2
    low, high = (limit(successes, trials, tail) for limit in (lower_limit, upper_limit))
    return float(low), float(high)


def proportion(successes: int, trials: int, confidence: float) -> Estimate:
    """A success probability with its exact interval."""
    low, high = clopper_pearson(successes, trials, confidence)
    return Estimate(successes / trials, low, high, trials, confidence)


def advantage(hits_present: int, hits_absent: int, trials: int, confidence: float) -> Estimate:
    """Adv = P[guess 1 | present] - P[guess 1 | absent] with a sound interval.

    Each probability gets an exact interval of confidence 1 - α/2; by the union bound both hold with
    probability 1 - α, and then the difference lies in [low₁ - high₀, high₁ - low₀].

    Args:
        hits_present: guesses of 1 where the record was present.
        hits_absent: guesses of 1 where it was absent.
        trials: independent trials in each arm.
        confidence: 1 - α.
    """
    check_confidence(confidence)
    each = 1 - (1 - confidence) / 2
    low_present, high_present = clopper_pearson(hits_present, trials, each)
    low_absent, high_absent = clopper_pearson(hits_absent, trials, each)
    value = (hits_present - hits_absent) / trials
    return Estimate(value, low_present - high_absent, high_present - low_absent, trials, confidence)


def proportions(successes: np.ndarray, confidence: float) -> list[Estimate]:
    """Success probabilities from (trials, cases) booleans; the intervals hold simultaneously."""
    table = _table(successes)
    each = simultaneous(confidence, table.shape[1])
    return [
        proportion(int(hits), len(table), each)._replace(confidence=confidence)
        for hits in table.sum(axis=0)
    ]


def advantages(present: np.ndarray, absent: np.ndarray, confidence: float) -> list[Estimate]:
    """Advantages from (trials, cases) booleans of each arm; the intervals hold simultaneously."""
    present, absent = _table(present), _table(absent)
    if present.shape != absent.shape:
        raise InputError(
            f"the arms have shapes {present.shape} and {absent.shape}; give both the same trials."
        )
    each = simultaneous(confidence, present.shape[1])
    return [
        advantage(int(ones), int(zeros), len(present), each)._replace(confidence=confidence)
        for ones, zeros in zip(present.sum(axis=0), absent.sum(axis=0), strict=True)
    ]


class Mean(NamedTuple):
    """A mean over seeds and its interval, numbers or arrays of one shape."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray


def mean_over_seeds(
    values: np.ndarray, confidence: float, *, least: float = -np.inf, most: float = np.inf
) -> Mean:
    """Means over the leading axis with Student's t; each interval alone has the confidence.

    Exact where the values are normal, and otherwise to the accuracy of the central limit theorem.

    Args:
        values: one entry (a number or an array) per seed.
        confidence: of each interval.
        least, most: the known range of every value; the interval is cut to it.
    """
    check_confidence(confidence)
    values = np.asarray(values, np.float64)
    if len(values) < 2:
        raise InputError(f"{len(values)} seed has no interval; give at least 2.")
    centre = values.mean(axis=0)
    half = stats.t.isf((1 - confidence) / 2, len(values) - 1) * stats.sem(values, axis=0)
    return Mean(centre, *(np.clip(limit, least, most) for limit in (centre - half, centre + half)))


def simultaneous(confidence: float, cases: int) -> float:
    """The confidence of each of `cases` intervals that makes all of them hold together."""
    check_confidence(confidence)
    return 1 - (1 - confidence) / cases


def check_confidence(confidence: float) -> None:
    """Refuse a confidence that is not strictly between 0 and 1."""
    checks.fraction("confidence", confidence, example=0.999)


def _table(outcomes: np.ndarray | Sequence) -> np.ndarray:
    """Booleans as (trials, cases); a vector is one case."""
    table = np.asarray(outcomes)
    if table.dtype != bool or table.ndim not in (1, 2) or table.size == 0:
        raise InputError(
            f"outcomes have shape {table.shape} and dtype {table.dtype}; "
            f"give booleans of shape (trials,) or (trials, cases)."
        )
    return table[:, None] if table.ndim == 1 else table
