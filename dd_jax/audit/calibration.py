"""How often each bound exceeds the truth, measured on pairs of laws whose truth is known.

A bound of confidence 0.95 may exceed the truth in at most 5% of replays, whatever the law: here on
equal laws, on Gaussian shifts seen through a heavy-tailed score, and on laws of a few atoms, where
scores tie. Host-side, no JAX; every draw follows from the seed given.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from dd_jax import checks
from dd_jax.audit import bounds, event_bounds, exact_law
from dd_jax.audit.event_bounds import excess_mass, log_excess_ratio, normal_shift
from dd_jax.errors import InputError
from dd_jax.guarantees import renyi
from dd_jax.intervals import Estimate, check_confidence, proportion

METHODS: dict[str, tuple[Callable, str | None]] = {
    "advantage": (bounds.advantage, None),
    "hockey_stick": (bounds.hockey_stick, "epsilon"),
    "epsilon_at": (bounds.epsilon_at, "delta"),
    "gaussian_mu": (bounds.gaussian_mu, None),
    "renyi_binary": (bounds.renyi_binary, "order"),
    "renyi_bins": (bounds.renyi_bins, "order"),
    "renyi_variational": (bounds.renyi_variational, "order"),
}
METHODS |= {
    f"{name}, independent arms": (functools.partial(bound, independent=True), parameter)
    for name, (bound, parameter) in METHODS.items()
    if bound.__module__ == event_bounds.__name__
}
DEFAULTS = {"epsilon": 0.5, "delta": 0.01, "order": 2.0}
# The interval around a rate is wide enough that a correct table of this size is rarely accused.
RATE_CONFIDENCE = 0.999


class KnownPair(NamedTuple):
    """Two laws of a score whose distance is known in every sense.

    Attributes:
        draw: `(shape, seed)` to scores of both arms.
        truth: `(method, parameter)` to what the method bounds.
    """

    draw: Callable
    truth: Callable[[str, float], float]


def shifted_normals(mu: float) -> KnownPair:
    """N(μ, 1) and N(0, 1), the score an increasing, heavy-tailed function of the output."""

    def draw(shape, seed: int):
        noise = np.asarray(stats.norm.rvs(size=(2, *shape), random_state=seed))
        return np.sinh(3 * (noise[0] + mu)), np.sinh(3 * noise[1])

    return KnownPair(draw, lambda method, parameter: _normal_truth(mu, method, parameter))


def atoms(present, absent) -> KnownPair:
    """Laws on scores 0, 1, 2, …, the ratio of probabilities growing with the score."""
    laws = np.array([present, absent], dtype=np.float64)

    def draw(shape, seed: int):
        levels = np.asarray(stats.uniform.rvs(size=(2, *shape), random_state=seed))
        edges = np.cumsum(laws, axis=1)[:, :-1]
        first, second = (np.searchsorted(edges[arm], levels[arm], side="right") for arm in (0, 1))
        return first.astype(np.float64), second.astype(np.float64)

    return KnownPair(draw, lambda method, parameter: _atomic_truth(laws, method, parameter))


PAIRS = {
    "equal": shifted_normals(0.0),
    "shift, R₂ = 0.1": shifted_normals(np.sqrt(0.1)),
    "shift, R₂ = 1": shifted_normals(1.0),
    "equal atoms": atoms([0.5, 0.5], [0.5, 0.5]),
    "three atoms": atoms([0.3, 0.3, 0.4], [0.5, 0.3, 0.2]),
    "a rare atom": atoms([0.6, 0.35, 0.05], [0.64, 0.355, 0.005]),
}
TABLE_PAIRS = ("equal", "shift, R₂ = 1", "three atoms", "a rare atom")


def coverage(
    method: str,
    pair: str,
    *,
    replays: int = 2000,
    seeds: int = 200,
    fit_seeds: int = 100,
    confidence: float = 0.95,
    seed: int = 0,
) -> Estimate:
    """How often a bound exceeds the truth, with an exact 95% interval; 1 - confidence is allowed.

    Args:
        method: one of `METHODS`; ε, δ and q are those of `DEFAULTS`.
        pair: one of `PAIRS`.
        replays: independent samples.
        seeds, fit_seeds: per arm, parts B and A.
        confidence: of the bound.
        seed: of the draws.
    """
    _check(method, pair, replays)
    truth, values = _replay(method, pair, (replays, fit_seeds, seeds), confidence, seed)
    return proportion(_count_alarms(values, truth), replays, 0.95)


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


def table(
    *,
    replays: int = 2000,
    seeds: int = 400,
    confidence: float = 0.95,
    seed: int = 0,
    say: Callable[[str], None] = lambda text: None,
) -> list[Row]:
    """Every bound, and the test of an exact law, replayed on every pair of `TABLE_PAIRS`.

    Args:
        replays: independent audits per bound and pair.
        seeds: per arm of one audit, half to choose on and half to judge on.
        confidence: 1 - α of each bound.
        seed: of the draws.
        say: told how far it is.
    """
    check_confidence(confidence)
    checks.whole("seeds", seeds, least=4)
    sizes = (replays, seeds // 2, seeds - seeds // 2)
    rows = []
    for pair in TABLE_PAIRS:
        for method in METHODS:
            _check(method, pair, replays)
            say(f"coverage: {method} on {pair!r}, {replays:,} replays")
            truth, values = _replay(method, pair, sizes, confidence, seed)
            rows.append(_row(method, pair, truth, values, confidence))
    say(f"coverage: gaussian_law, {replays:,} replays")
    return [*rows, _exact_law_row(replays, seeds, confidence, seed)]


def _check(method: str, pair: str, replays: int) -> None:
    if method not in METHODS or pair not in PAIRS:
        raise InputError(
            f"method = {method!r}, pair = {pair!r}; "
            f"choose from {', '.join(METHODS)} and {', '.join(PAIRS)}."
        )
    checks.whole("replays", replays, least=1)


def _replay(method, pair, sizes, confidence, seed) -> tuple[float, np.ndarray]:
    """(the truth, the bound in every replay)."""
    replays, fit_seeds, seeds = sizes
    bound, name = METHODS[method]
    setting = {} if name is None else {name: DEFAULTS[name]}
    truth = PAIRS[pair].truth(method.split(",")[0], DEFAULTS.get(name or "", 0.0))
    present, absent = PAIRS[pair].draw((replays, fit_seeds + seeds), seed)
    values = [
        bound(
            *(ones[:fit_seeds], zeros[:fit_seeds], ones[fit_seeds:], zeros[fit_seeds:]),
            confidence=confidence,
            **setting,
        ).value
        for ones, zeros in zip(present, absent, strict=True)
    ]
    return truth, np.array(values)


def _count_alarms(values: np.ndarray, truth: float) -> int:
    """Rounding alone is no false alarm; a value that is no number, or infinite, is one."""
    return int(np.sum(~(np.isfinite(values) & (values <= truth * (1 + 1e-9)))))


def _row(bound: str, pair: str, truth: float, values: np.ndarray, confidence: float) -> Row:
    alarms = proportion(_count_alarms(values, truth), len(values), RATE_CONFIDENCE)
    return Row(bound, pair, truth, alarms, float(np.mean(values > 0)), 1 - confidence)


def _exact_law_row(replays: int, seeds: int, confidence: float, seed: int) -> Row:
    """The test of a stated Gaussian law, on that law: 1 where it was refuted."""
    draws = np.asarray(stats.norm.rvs(size=(replays, 2, seeds), random_state=seed))
    refuted = [
        exact_law.gaussian_law(present + 1, absent, 1.0, 1.0, confidence=confidence).refuted
        for present, absent in draws
    ]
    pair = "N(1, 1), N(0, 1)"
    return _row("gaussian_law", pair, 0.0, np.array(refuted, dtype=float), confidence)


def _normal_truth(mu: float, method: str, parameter: float) -> float:
    if method.startswith("renyi"):
        return float(renyi.renyi_from_gdp(parameter, mu))
    return {
        "advantage": lambda: float(renyi.advantage_from_gdp(mu)),
        "hockey_stick": lambda: float(renyi.gdp_delta(mu, parameter)),
        "epsilon_at": lambda: float(renyi.gdp_epsilon(mu, parameter)),
        "gaussian_mu": lambda: mu,
    }[method]()


def _atomic_truth(laws: np.ndarray, method: str, parameter: float) -> float:
    """Exact, by the tails: with a growing ratio no other event is better."""
    if method.startswith("renyi"):
        total = np.sum(laws[0] ** parameter * laws[1] ** (1 - parameter))
        return float(np.log(total) / (parameter - 1))
    likely, unlikely = np.cumsum(laws[:, :0:-1], axis=1)
    both = np.concatenate([[likely, unlikely], [1 - unlikely, 1 - likely]], axis=1)
    values = {
        "advantage": lambda: likely - unlikely,
        "hockey_stick": lambda: excess_mass(*both, epsilon=parameter),
        "epsilon_at": lambda: log_excess_ratio(*both, delta=parameter),
        "gaussian_mu": lambda: normal_shift(likely, unlikely),
    }[method]()
    return max(float(np.max(values)), 0.0)
