"""The power of each bound: the least truth that a claim's violation must reach to be seen.

The reference pair is N(μ, 1) and N(0, 1) with the likelihood ratio for a score: μ-GDP's worst case.
The choices are those that the bound itself makes on a few draws of part A from fixed seeds, and the
power is the mean over them. Given a choice, the power of one event is an exact sum over the two
binomials; that of one event with independent arms, of many bins and of the critic is normal, with
the bound at the expected counts for its mean and its first-order spread.
"""

import functools
from collections import Counter
from collections.abc import Callable, Hashable
from typing import NamedTuple

import numpy as np
from scipy import optimize, special, stats

from dd_jax import checks
from dd_jax.audit import bin_bounds, event_bounds, joint_limits, tails, variational_bound
from dd_jax.errors import InputError
from dd_jax.guarantees import renyi
from dd_jax.intervals import check_confidence

METHODS = (
    "advantage",
    "hockey_stick",
    "epsilon_at",
    "gaussian_mu",
    "renyi_binary",
    "renyi_bins",
    "renyi_variational",
)
NEAREST, FARTHEST = 1e-6, 64.0
REACH = 7.0
_MOST_COUNTS = 101
_NEVER = 1e-12
_CANDIDATES, _DRAWS, _DRAWS_OF_BINS = 96, 32, 8


@functools.lru_cache(maxsize=1024)
def detectable(
    method: str,
    claim: float,
    *,
    seeds: int,
    confidence: float,
    fit_seeds: int | None = None,
    power: float = 0.9,
    order: float | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    independent: bool = False,
    one_event: bool = False,
) -> float:
    """The least true value that refutes the claim with probability `power`; infinite if none does.

    Args:
        method: the bound's name, one of `METHODS`.
        claim: the claimed value of what the method bounds, in its unit.
        seeds: test seeds per arm.
        confidence: of the bound, 1 - α.
        fit_seeds: seeds per arm of part A; as many as of part B if None.
        power: the probability, over the seeds, of refuting the claim.
        order: q, for the Rényi bounds.
        epsilon: ε, for "hockey_stick".
        delta: δ, for "epsilon_at".
        independent: whether the arms are taken as independent, for bounds from one event.
        one_event: the score states its event, and the reference pair is two coins Φ(±μ/2), the
            sides of the middle of N(μ, 1) and N(0, 1); for bounds from one event.
    """
    claim = float(checks.nonnegative("claim", claim))
    check_confidence(confidence)
    checks.fraction("power", power, example=0.9)
    fit_seeds = seeds if fit_seeds is None else fit_seeds
    checks.whole("seeds", seeds, least=2)
    checks.whole("fit_seeds", fit_seeds, least=1)
    gate = _gate(method, order, epsilon, delta, independent)
    if one_event and gate.value is not None:
        return _detectable_coins(gate.value, claim, (seeds, seeds), confidence, power, independent)

    def surplus(mu: float) -> float:
        truth, drawn = _reference(mu, fit_seeds, seeds, gate.draws)
        chosen = Counter(gate.choose(seen, confidence) for seen in drawn)
        chances = [gate.chance(which, truth, claim, confidence) for which in chosen]
        return float(np.average(chances, weights=list(chosen.values()))) - power

    mu = _least_root(surplus)
    return float(gate.truth(mu)) if np.isfinite(mu) else np.inf


def _detectable_coins(value, claim, sizes, confidence, power, independent) -> float:
    """`detectable` for coins Φ(±μ/2): the truth is the value of their one event."""

    def surplus(mu: float) -> float:
        rates = special.ndtr(mu / 2), special.ndtr(-mu / 2)
        return _rates_chance(rates, sizes, claim, confidence, value, independent) - power

    mu = _least_root(surplus)
    return float(value(special.ndtr(mu / 2), special.ndtr(-mu / 2))) if np.isfinite(mu) else np.inf


def _least_root(surplus: Callable[[float], float]) -> float:
    """Where a function of μ > 0 that grows from below 0 reaches 0; infinite if it does not."""
    high = 1.0
    while surplus(high) < 0:
        high *= 2
        if high > FARTHEST:
            return np.inf
    low = high / 2
    while surplus(low) >= 0:
        low, high = low / 2, low
        if high < NEAREST:
            return high
    return optimize.root_scalar(surplus, bracket=(low, high), rtol=1e-3, xtol=1e-9).root


def _reference(
    mu: float, fit_seeds: int, seeds: int, draws: int
) -> tuple[tails.View, list[tails.View]]:
    """The tails of N(μ, 1) and N(0, 1) themselves, and what some draws of part A show of them."""
    thresholds = np.linspace(mu + REACH, -REACH, _CANDIDATES)
    arms = special.ndtr(mu - thresholds), special.ndtr(-thresholds)
    sizes = (fit_seeds, fit_seeds), (seeds, seeds)
    present, absent = (
        np.cumsum(
            stats.multinomial.rvs(
                fit_seeds, variational_bound.steps(arm), size=draws, random_state=arm_number
            ),
            axis=1,
        )
        / fit_seeds
        for arm_number, arm in enumerate(arms)
    )
    drawn = [
        tails.View(thresholds, p[:-1], s[:-1], *sizes) for p, s in zip(present, absent, strict=True)
    ]
    return tails.View(thresholds, *arms, *sizes), drawn


class _Gate(NamedTuple):
    """How one bound fares against the reference pair.

    Attributes:
        choose: `(what part A shows, confidence)` to what the bound takes from it, hashable.
        chance: `(that choice, the truth, claim, confidence)` to the probability, over part B, that
            the claim is refuted.
        truth: μ to the quantity that is bounded.
        draws: of part A; fewer where choosing takes long.
        value: of one event, for bounds from one.
    """

    choose: Callable[..., Hashable]
    chance: Callable[..., float]
    truth: Callable[[float], float]
    draws: int = _DRAWS
    value: Callable | None = None


def _gate(method: str, order, epsilon, delta, independent: bool) -> _Gate:
    if method not in METHODS:
        raise InputError(f"method = {method!r}; choose from {', '.join(METHODS)}.")
    if method.startswith("renyi"):
        order = _needed(method, "order", order, checks.order)
        truth = functools.partial(renyi.renyi_from_gdp, order)
        if method == "renyi_bins":
            kernel = (
                functools.partial(_choose_bins, order=order),
                functools.partial(_bins_chance, order=order),
            )
            return _Gate(*kernel, truth, _DRAWS_OF_BINS)
        if method == "renyi_variational":
            return _Gate(
                functools.partial(_choose_critic, order=order),
                functools.partial(_critic_chance, order=order),
                truth,
            )
        value = functools.partial(event_bounds.coin_divergence, order=order)
    elif method == "hockey_stick":
        epsilon = _needed(
            method, "epsilon", epsilon, functools.partial(checks.nonnegative, "epsilon")
        )
        truth = functools.partial(renyi.gdp_delta, epsilon=epsilon)
        one_way = functools.partial(event_bounds.excess_mass, epsilon=epsilon)
        value = event_bounds.both_or_one(one_way, both_ways=True)
    elif method == "epsilon_at":
        delta = _needed(method, "delta", delta, checks.delta)
        truth = functools.partial(renyi.gdp_epsilon, delta=delta)
        one_way = functools.partial(event_bounds.log_excess_ratio, delta=delta)
        value = event_bounds.both_or_one(one_way, both_ways=True)
    elif method == "gaussian_mu":
        truth, value = float, event_bounds.normal_shift
    else:
        truth, value = renyi.advantage_from_gdp, event_bounds.difference
    choose = functools.partial(_choose_event, value=value)
    chance = functools.partial(_event_chance, value=value, independent=independent)
    return _Gate(choose, chance, truth, value=value)


def _needed(method: str, name: str, value, check: Callable) -> float:
    if value is None:
        raise InputError(f"the power of {method!r} needs {name}; give {name}=….")
    return float(check(value))


# --- one event ------------------------------------------------------------------------------------


def _choose_event(seen: tails.View, confidence: float, *, value: Callable) -> int:
    return event_bounds.choose(seen, value, confidence)


def _event_chance(
    chosen: int, truth: tails.View, claim, confidence, *, value, independent: bool
) -> float:
    rates = truth.present[chosen], truth.absent[chosen]
    return _rates_chance(rates, truth.test_sizes, claim, confidence, value, independent)


def _rates_chance(rates, sizes, claim, confidence, value: Callable, independent: bool) -> float:
    if independent:
        return joint_limits.chance_beyond(value, claim, rates, sizes, confidence)
    return refutation_probability(value, claim, rates, sizes[0], confidence)


def refutation_probability(value, claim: float, rates, seeds: int, confidence: float) -> float:
    """P[f(p, s) > claim] for Clopper-Pearson limits of an event with these probabilities.

    For each count of the absent arm, s is fixed and f grows with p, so the claim falls from some
    count of the present arm on: that where P[Bin(n, p') ≥ count] < α/2, f(p', s) = claim.

    Args:
        value: f.
        claim: what f is compared with.
        rates: (P(E), Q(E)).
        seeds: n.
        confidence: 1 - α.
    """
    risk = (1 - confidence) / 2
    counts, weights = _strata(seeds, rates[1])
    high = tails.upper_limit(counts, seeds, risk)
    least, most = np.zeros_like(high), np.ones_like(high)
    with np.errstate(all="ignore"):
        for _ in range(60):
            middle = (least + most) / 2
            enough = value(middle, high) > claim
            least, most = np.where(enough, least, middle), np.where(enough, middle, most)
    needed = stats.binom.isf(risk, seeds, most)
    return float(np.sum(weights * stats.binom.sf(needed, seeds, rates[0])))


def _strata(seeds: int, rate: float) -> tuple[np.ndarray, np.ndarray]:
    """Counts of Bin(n, rate) and their probabilities; neighbouring ones share a count if many."""
    first, last = stats.binom.ppf(_NEVER, seeds, rate), stats.binom.isf(_NEVER, seeds, rate)
    edges = np.unique(np.round(np.linspace(first, last + 1, _MOST_COUNTS)))
    weights = np.diff(stats.binom.cdf(edges - 1, seeds, rate))
    return (edges[:-1] + edges[1:] - 1) / 2, weights


# --- many bins and the critic ---------------------------------------------------------------------


def _choose_bins(seen: tails.View, confidence: float, *, order: float) -> tuple[int, ...]:
    return tuple(bin_bounds.choose(seen, order, confidence, bin_bounds.NUMBERS_OF_THRESHOLDS))


def _bins_chance(which, truth: tails.View, claim, confidence, *, order) -> float:
    """First order: the dual's weights are the derivatives of the bound by the tails."""
    chosen = np.array(which)
    risk, seeds = (1 - confidence) / (2 * len(chosen)), truth.test_sizes[0]
    low = tails.lower_limit(truth.present[chosen] * seeds, seeds, risk)
    high = tails.upper_limit(truth.absent[chosen] * seeds, seeds, risk)
    across, up = bin_bounds.majorant(low, high)
    chosen = chosen[bin_bounds.at_vertices(low, high, across, up)]
    ratios = np.log(np.diff(up) / np.diff(across))
    least = bin_bounds.least_divergence(order, low, high)
    present = order * np.exp((order - 1) * (ratios - least))
    absent = (order - 1) * np.exp(order * ratios - (order - 1) * least)
    spread = np.hypot(
        _spread(present, variational_bound.steps(truth.present[chosen])),
        _spread(absent, variational_bound.steps(truth.absent[chosen])),
    )
    return _normal_chance(least - claim, spread / (order - 1) / np.sqrt(seeds))


def _choose_critic(seen: tails.View, confidence: float, *, order: float) -> tuple:
    chosen, values = variational_bound.fit_critic(seen, order, confidence)
    return tuple(chosen), tuple(values)


def _critic_chance(critic, truth: tails.View, claim, confidence, *, order) -> float:
    """First order in the two means; their limits' own spread is of the next order."""
    chosen, values = np.array(critic[0], dtype=int), np.array(critic[1])
    present = variational_bound.steps(truth.present[chosen])
    absent = variational_bound.steps(truth.absent[chosen])
    bound = variational_bound.critic_bound(
        values, present, absent, truth.test_sizes, order, confidence
    )
    first, second = np.exp((order - 1) * values), np.exp(order * values)
    spread = np.hypot(
        order / (order - 1) * _spread(first, present) / (present @ first),
        _spread(second, absent) / (absent @ second),
    )
    return _normal_chance(bound - claim, spread / np.sqrt(truth.test_sizes[0]))


def _normal_chance(mean: float, spread: float) -> float:
    """P[N(mean, spread²) > 0]."""
    return float(special.ndtr(mean / spread)) if spread > 0 else float(mean > 0)


def _spread(values, probabilities) -> float:
    """The standard deviation of a step function."""
    mean = probabilities @ values
    return float(np.sqrt(probabilities @ (values - mean) ** 2))
