"""A row of the table, and what its samples say of its claims."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from scipy import stats

from dd_jax.baselines import base
from dd_jax.intervals import Estimate

ADVERSARIES = ("one release", "many releases", "adaptive requester")
BEYOND, WITHIN = "beyond its claim", "within its claim"
LEAKS, LEAKS_MORE = "leaks", "leaks more than its claim allows one release"
NOT_SHOWN = "no leak shown"
VERDICTS = (BEYOND, WITHIN, LEAKS, LEAKS_MORE, NOT_SHOWN)
SUCCESS = (BEYOND, LEAKS, LEAKS_MORE)


class Mean(NamedTuple):
    """A mean over seeds with a 95% interval by Student's t."""

    value: float
    low: float
    high: float


def mean_over_seeds(values) -> Mean:
    """The mean with its interval."""
    values = np.asarray(values, np.float64)
    centre = float(np.mean(values))
    half = float(stats.t.isf(0.025, len(values) - 1) * stats.sem(values))
    return Mean(centre, centre - half, centre + half)


@dataclass(frozen=True)
class Row:
    """A system on one data set; None where something does not apply, with the reason beside it.

    Attributes:
        data, system, setting: which, and the numbers chosen.
        guarantee: the claim as data.
        learn_gradients, gradients, hessians: per-record evaluations: to learn, and of the mean
            request of a stream of deletions. retrained: share of requests that trained anew.
        seconds: wall time of a request, one interaction on its own.
        retrain_ratio: learn_gradients / gradients.
        secret_bytes: kept besides the release.
        excess_risk, accuracy: of the release after the target's deletion.
        advantages: of the three adversaries. allowed: by the system's own claim.
        seeds: in each world.
        drained: Gupta et al.'s indicator against SISA, 1/2 under retraining; see `gupta`.
        reasons: for every value that is None, by its name.
    """

    data: str
    system: str
    setting: str
    guarantee: base.Guarantee
    learn_gradients: float
    gradients: float
    hessians: float
    retrained: float
    seconds: float
    retrain_ratio: float | None
    secret_bytes: int
    excess_risk: Mean | None
    accuracy: Mean | None
    advantages: tuple[Estimate, Estimate, Estimate]
    allowed: tuple[float | None, float | None, float | None]
    seeds: int
    drained: Estimate | None = None
    reasons: dict[str, str] = field(default_factory=dict)

    def verdict(self, adversary: int) -> str:
        """What the samples say of one adversary, one of `VERDICTS`.

        Where nothing is claimed against this adversary, the claim for one release is the measure of
        how much it gets.
        """
        low, bound, single = (
            self.advantages[adversary].low,
            self.allowed[adversary],
            self.allowed[0],
        )
        if bound is not None:
            return BEYOND if low > bound else WITHIN
        if low <= 0:
            return NOT_SHOWN
        return LEAKS_MORE if single is not None and low > single else LEAKS

    @property
    def attacks(self) -> tuple[str, ...]:
        """The paper's attacks that succeed: refute the row's claim, or leak where none is made."""
        names = ("reading one release", "averaging releases", "copying by an adaptive requester")
        found = [name for place, name in enumerate(names) if self.verdict(place) in SUCCESS]
        if self.drained is not None and self.drained.low > 0.5:
            found.append("draining shards (Gupta et al.)")
        return tuple(found)


class Comparison(NamedTuple):
    """The rows that were measured, and why others could not be, by data set and system."""

    rows: list[Row]
    left_out: dict[tuple[str, str], str]
