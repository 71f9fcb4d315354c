"""How often each bound exceeds the truth, measured on pairs of laws whose truth is known.

A bound of confidence 0.95 may exceed the truth in at most 5% of replays, whatever the law: here on
equal laws, on Gaussian shifts seen through a heavy-tailed score, and on laws of a few atoms, where
scores tie. Host-side, no JAX; every draw follows from the seed given.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import stats

from dd_jax.audit import bounds
from dd_jax.audit.event_bounds import excess_mass, log_excess_ratio, normal_shift
from dd_jax.errors import InputError
from dd_jax.guarantees import renyi
from dd_jax.intervals import Estimate, proportion

METHODS: dict[str, tuple[Callable, str | None]] = {
    "advantage": (bounds.advantage, None),
    "hockey_stick": (bounds.hockey_stick, "epsilon"),
    "epsilon_at": (bounds.epsilon_at, "delta"),
    "gaussian_mu": (bounds.gaussian_mu, None),
    "renyi_binary": (bounds.renyi_binary, "order"),
    "renyi_bins": (bounds.renyi_bins, "order"),
    "renyi_variational": (bounds.renyi_variational, "order"),
}
DEFAULTS = {"epsilon": 0.5, "delta": 0.01, "order": 2.0}


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
    if method not in METHODS or pair not in PAIRS:
        raise InputError(
            f"method = {method!r}, pair = {pair!r}; "
            f"choose from {', '.join(METHODS)} and {', '.join(PAIRS)}."
        )
    bound, name = METHODS[method]
    setting = {} if name is None else {name: DEFAULTS[name]}
    truth = PAIRS[pair].truth(method, DEFAULTS.get(name or "", 0.0))
    present, absent = PAIRS[pair].draw((replays, fit_seeds + seeds), seed)
    alarms = 0
    for ones, zeros in zip(present, absent, strict=True):
        parts = ones[:fit_seeds], zeros[:fit_seeds], ones[fit_seeds:], zeros[fit_seeds:]
        # Rounding alone is no false alarm.
        alarms += bound(*parts, confidence=confidence, **setting).value > truth * (1 + 1e-9)
    return proportion(int(alarms), replays, 0.95)


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
