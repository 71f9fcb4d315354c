"""Sound lower bounds on the Rényi divergence of two samples: one event, exact intervals.

For any event E, data processing gives R_q(P ‖ Q) ≥ r_q(P(E) ‖ Q(E)), the divergence of two coins;
it grows with P(E) and falls with Q(E) while P(E) > Q(E), so exact limits of the two probabilities
give a limit of the divergence. The event must not be chosen on the data that it is tested on: a
direction and a threshold are fitted on one half and tested on the other. Host-side, no JAX.
"""

from typing import NamedTuple

import numpy as np

from dd_jax.audit.bounds import coin_divergence
from dd_jax.errors import InputError
from dd_jax.intervals import Estimate, advantage, check_confidence, lower_limit, upper_limit

MOST_THRESHOLDS = 512
# Half of them fit an event, and a covariance needs two.
FEWEST_SAMPLES = 4


def renyi_lower_bound(order: float, hits_present, hits_absent, trials: int, confidence: float):
    """A lower bound of R_q(present ‖ absent), with the stated confidence.

    Args:
        order: q > 1.
        hits_present, hits_absent: how often the event happened in each arm; may be arrays.
        trials: independent trials in each arm.
        confidence: 1 - α. The limits are those of `intervals.advantage` (two-sided intervals of
            confidence 1 - α/2), so that one α covers a divergence and an advantage together.
    """
    check_confidence(confidence)
    tail = (1 - confidence) / 4
    low = lower_limit(hits_present, trials, tail)
    return coin_divergence(low, upper_limit(hits_absent, trials, tail), order=order)


class Event(NamedTuple):
    """{θ: ⟨direction, θ⟩ > threshold}; fit it on samples that it is not tested on."""

    direction: np.ndarray
    threshold: float

    def happened(self, models: np.ndarray) -> np.ndarray:
        """Which of the models (seeds, d) lie in the event."""
        return models @ self.direction > self.threshold


def fit_event(present, absent, order: float, confidence: float) -> Event:
    """The half-space that tells two samples (seeds, d) apart best, by `renyi_lower_bound` itself.

    The direction is Fisher's: the pooled covariance's inverse times the difference of the means.
    """
    present, absent = np.asarray(present, float), np.asarray(absent, float)
    direction = _fisher(present, absent)
    scores = [np.sort(models @ direction) for models in (present, absent)]
    pooled = np.concatenate(scores)
    thresholds = np.unique(np.quantile(pooled, np.linspace(0, 1, MOST_THRESHOLDS)))
    trials = len(present)
    ones, zeros = (trials - np.searchsorted(s, thresholds, side="right") for s in scores)
    bounds = renyi_lower_bound(order, ones, zeros, trials, confidence)
    return Event(direction, float(thresholds[np.argmax(bounds)]))


def midpoint_event(present, absent) -> Event:
    """Fisher's half-space through the midpoint of the two means: a learned membership test."""
    present, absent = np.asarray(present, float), np.asarray(absent, float)
    direction = _fisher(present, absent)
    return Event(direction, float(direction @ (present.mean(0) + absent.mean(0)) / 2))


def _fisher(present: np.ndarray, absent: np.ndarray) -> np.ndarray:
    scatter = np.atleast_2d(np.cov(present.T) + np.cov(absent.T))
    return np.linalg.lstsq(scatter, present.mean(0) - absent.mean(0), rcond=None)[0]


class Separation(NamedTuple):
    """How far apart two samples are shown to be, by one event tested on held-out halves.

    Attributes:
        renyi_low: R_q(present ‖ absent) is at least this.
        advantage: P[event | present] - P[event | absent]; it rests on the same two exact intervals,
            so both hold together with the stated confidence.
    """

    renyi_low: float
    advantage: Estimate


def separate(present, absent, order: float, confidence: float) -> Separation:
    """What two samples of models (seeds, d) show: an event fitted on half, tested on half."""
    half = len(present) // 2
    if len(present) < FEWEST_SAMPLES or len(present) != len(absent):
        raise InputError(
            f"the arms have {len(present)} and {len(absent)} samples; "
            f"give both the same number, at least {FEWEST_SAMPLES}."
        )
    event = fit_event(present[:half], absent[:half], order, confidence)
    ones, zeros = (
        int(event.happened(np.asarray(m, float)[half:]).sum()) for m in (present, absent)
    )
    trials = len(present) - half
    return Separation(
        float(renyi_lower_bound(order, ones, zeros, trials, confidence)),
        advantage(ones, zeros, trials, confidence),
    )
