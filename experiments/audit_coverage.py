"""False alarms of every bound, counted: replays on pairs of laws whose truth is known.

A bound at confidence 1 - α may exceed the truth in a share α of replays. Three pairs are replayed:
one law twice, where every truth is 0; N(μ, 1) against N(0, 1), which attains Gaussian DP; and two
coins, which attain whatever is said of a single event.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array
from scipy import special

from dd_jax.audit import bounds
from dd_jax.audit.exact_law import gaussian_law
from dd_jax.errors import InputError
from dd_jax.guarantees import inference, renyi
from dd_jax.intervals import Estimate, check_confidence, proportion
from dd_jax.oracles import linear

ORDER, EPSILON, DELTA, MU = 2.0, 0.25, 1e-2, 1.0
HEADS = float(special.ndtr(MU / 2))
SAME, GAUSSIANS, COINS = "one law twice", "N(1, 1), N(0, 1)", "coins Φ(½), Φ(-½)"
PAIRS = (SAME, GAUSSIANS, COINS)
# Where the law is Gaussian it is tested itself; the value is 1 where it was refuted.
EXACT_LAW, SHIFTS = "gaussian_law", {SAME: 0.0, GAUSSIANS: MU}
# The interval around a rate is wide enough that a correct table of this size is rarely accused.
RATE_CONFIDENCE = 0.999
BATCH = 100


class Bound(NamedTuple):
    """A bound with its setting, and what it bounds: for the two Gaussians and the two coins."""

    bound: Callable[..., Any]
    options: dict[str, float]
    gaussians: float
    coins: float

    def truth(self, pair: str) -> float:
        """The true value for a pair."""
        return {SAME: 0.0, GAUSSIANS: self.gaussians, COINS: self.coins}[pair]


def _renyi(name: str) -> Bound:
    truths = (renyi.renyi_from_gdp(ORDER, MU), float(linear.coin_renyi(ORDER, MU)))
    return Bound(getattr(bounds, name), {"order": ORDER}, *truths)


BOUNDS: dict[str, Bound] = {
    "advantage": Bound(bounds.advantage, {}, inference.advantage_gdp(MU), 2 * HEADS - 1),
    "hockey_stick": Bound(
        bounds.hockey_stick,
        {"epsilon": EPSILON},
        renyi.gdp_delta(MU, EPSILON),
        HEADS - math.exp(EPSILON) * (1 - HEADS),
    ),
    "epsilon_at": Bound(
        bounds.epsilon_at,
        {"delta": DELTA},
        renyi.gdp_epsilon(MU, DELTA),
        math.log((HEADS - DELTA) / (1 - HEADS)),
    ),
    "gaussian_mu": Bound(bounds.gaussian_mu, {}, MU, MU),
} | {name: _renyi(name) for name in ("renyi_binary", "renyi_bins", "renyi_variational")}


@dataclass(frozen=True)
class Row:
    """How often one bound exceeded the truth of one pair.

    Attributes:
        bound: its name, or that of the exact law's test.
        pair: the two laws. truth: of what the bound bounds.
        false_alarms: share of replays in which the bound was above it, with an exact interval.
        positive: share of replays in which it said anything at all: above 0.
        allowed: α.
    """

    bound: str
    pair: str
    truth: float
    false_alarms: Estimate
    positive: float
    allowed: float

    @property
    def sound(self) -> bool:
        """Whether the rate may be α or less: its interval is not wholly above."""
        return self.false_alarms.low <= self.allowed

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        found = {name: getattr(self, name) for name in ("bound", "pair", "truth")}
        return found | {
            "false_alarms": self.false_alarms._asdict(),
            "positive": self.positive,
            "allowed": self.allowed,
            "sound": self.sound,
        }


def run(
    key: Array,
    *,
    replays: int = 2000,
    seeds: int = 1000,
    confidence: float = 0.95,
    say: Callable[[str], None] = lambda text: None,
) -> list[Row]:
    """Replay every bound on every pair.

    Args:
        key: for all draws.
        replays: independent audits per bound and pair.
        seeds: seeds per world of one audit, half to choose on and half to judge on.
        confidence: 1 - α of each bound.
        say: told how far it is.
    """
    check_confidence(confidence)
    if replays < 1 or seeds < 4:
        raise InputError(
            f"replays = {replays}, seeds = {seeds}; give at least 1 replay of 4 seeds."
        )
    rows = []
    for number, pair in enumerate(PAIRS):
        values = _replay(jax.random.fold_in(key, number), pair, replays, seeds, confidence, say)
        rows += [_row(name, pair, found, confidence) for name, found in values.items()]
    return rows


def _replay(key, pair, replays, seeds, confidence, say) -> dict[str, np.ndarray]:
    """Every bound's value in every replay, and 1 where the exact law was refuted; same draws."""
    names = [*BOUNDS, EXACT_LAW] if pair in SHIFTS else [*BOUNDS]
    values = {name: np.empty(replays) for name in names}
    for first in range(0, replays, BATCH):
        draws = _draws(jax.random.fold_in(key, first), pair, seeds)
        for place in range(first, min(first + BATCH, replays)):
            for name, judged in BOUNDS.items():
                found = judged.bound(*draws[place - first], confidence=confidence, **judged.options)
                values[name][place] = found.value
            if pair in SHIFTS:
                present, absent = draws[place - first, 2:]
                tested = gaussian_law(present, absent, SHIFTS[pair], 1.0, confidence=confidence)
                values[EXACT_LAW][place] = tested.refuted
        say(f"coverage, {pair}: {min(first + BATCH, replays):,} of {replays:,} replays")
    return values


def _draws(key, pair: str, seeds: int) -> np.ndarray:
    """(replays, part and world, seeds) scores: normals around ±μ/2, their signs, or around 0."""
    normals = np.asarray(jax.random.normal(key, (BATCH, 4, seeds // 2)), np.float64)
    if pair == SAME:
        return normals
    moved = normals + MU / 2 * np.array([1, -1, 1, -1])[:, None]
    return np.sign(moved) if pair == COINS else moved


def _row(name: str, pair: str, values: np.ndarray, confidence: float) -> Row:
    truth = float(BOUNDS[name].truth(pair)) if name in BOUNDS else 0.0
    # Rounding in the truth's own formula is no false alarm.
    alarms = int(np.sum(values > truth * (1 + 1e-9)))
    return Row(
        name,
        pair,
        truth,
        proportion(alarms, len(values), RATE_CONFIDENCE),
        float(np.mean(values > 0)),
        1 - confidence,
    )
