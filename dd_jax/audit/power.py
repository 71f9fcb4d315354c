"""What the audit's bounds can show, and how often they are wrong: power and calibration.

`detectable` is the least true value at which the violation of a claim is seen. The reference pair
is N(μ, 1) and N(0, 1) with the likelihood ratio as the score: the worst case of μ-GDP. The bound
chooses its event, bins or critic on a few draws of part A from fixed seeds, and the power is the
mean over these choices. Given a choice, the power of one event is an exact sum over the two
binomials. For one event with independent arms, for many bins and for the critic it is a normal
probability: the mean is the bound at the expected counts, and the spread is that of first order.

`coverage` and `table` count how often each bound exceeds the truth on pairs of laws whose truth is
known: a bound of confidence 0.95 may do so in at most 5% of replays, whatever the law. The pairs
are equal laws, Gaussian shifts seen through a heavy-tailed score, and laws of a few atoms, where
scores tie. Host-side, no JAX; every draw follows from the given seed.
"""

import functools
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize, special, stats

from dd_jax import checks
from dd_jax.audit import bounds, exact_law, tails
from dd_jax.errors import InputError
from dd_jax.guarantees import renyi
from dd_jax.intervals import Estimate, check_confidence, lower_limit, proportion, upper_limit

DEFAULTS = {"epsilon": 0.5, "delta": 0.01, "order": 2.0}
# The interval around a rate is wide enough that a correct table of this size is rarely accused.
RATE_CONFIDENCE = 0.999
NEAREST, FARTHEST = 1e-6, 64.0
REACH = 7.0
_MOST_COUNTS = 101
_NEVER = 1e-12
_CANDIDATES, _DRAWS, _DRAWS_OF_BINS = 96, 32, 8


class Method(NamedTuple):
    """A bound and what is known of it.

    Attributes:
        bound: `(*scores, confidence=) -> LowerBound`, and its parameter.
        parameter: its name: "order", "epsilon" or "delta"; None where there is none.
        truth: `(μ, parameter)` to what is bounded, between N(μ, 1) and N(0, 1).
        value: `(P(E), Q(E), parameter=)` to what one event shows of it; None for many events.
        both_ways: whether it looks at an event's complement, with the arms exchanged, too.
    """

    bound: Callable
    parameter: str | None
    truth: Callable[[float, Any], Any]
    value: Callable | None = None
    both_ways: bool = False

    def of_event(self, number: Any) -> Callable:
        """`(P(E), Q(E))` to what one event shows, with this parameter."""
        assert self.value is not None
        named = {} if self.parameter is None else {self.parameter: number}
        return bounds.both_or_one(functools.partial(self.value, **named), self.both_ways)


def _renyi_truth(mu: float, order: float):
    return renyi.renyi_from_gdp(order, mu)


METHODS = {
    "advantage": Method(
        bounds.advantage, None, lambda mu, _: renyi.advantage_from_gdp(mu), bounds.difference
    ),
    "hockey_stick": Method(
        bounds.hockey_stick, "epsilon", renyi.gdp_delta, bounds.excess_mass, both_ways=True
    ),
    "epsilon_at": Method(
        bounds.epsilon_at, "delta", renyi.gdp_epsilon, bounds.log_excess_ratio, both_ways=True
    ),
    "gaussian_mu": Method(bounds.gaussian_mu, None, lambda mu, _: mu, bounds.normal_shift),
    "renyi_binary": Method(bounds.renyi_binary, "order", _renyi_truth, bounds.coin_divergence),
    "renyi_bins": Method(bounds.renyi_bins, "order", _renyi_truth),
    "renyi_variational": Method(bounds.renyi_variational, "order", _renyi_truth),
}
REPLAYED = METHODS | {
    f"{name}, independent arms": method._replace(
        bound=functools.partial(method.bound, independent=True)
    )
    for name, method in METHODS.items()
    if method.value is not None
}


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
    number = _parameter(method, {"order": order, "epsilon": epsilon, "delta": delta})
    known = METHODS[method]
    ways = _ways(known, number, claim, confidence, independent)

    def surplus(mu: float) -> float:
        truth, drawn = _reference(mu, fit_seeds, seeds, ways.draws)
        chosen = Counter(ways.choose(seen) for seen in drawn)
        chances = [ways.chance(which, truth) for which in chosen]
        return float(np.average(chances, weights=list(chosen.values()))) - power

    def surplus_of_coins(mu: float) -> float:
        rates = special.ndtr(mu / 2), special.ndtr(-mu / 2)
        sizes = (seeds, seeds)
        value = known.of_event(number)
        return _event_chance(value, claim, rates, sizes, confidence, independent) - power

    coins = one_event and known.value is not None
    mu = _least_root(surplus_of_coins if coins else surplus)
    if np.isinf(mu):
        return np.inf
    if coins:
        return float(known.of_event(number)(special.ndtr(mu / 2), special.ndtr(-mu / 2)))
    return float(known.truth(mu, number))


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
                fit_seeds, bounds.steps(arm), size=draws, random_state=arm_number
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


def _parameter(method: str, given: dict[str, float | None]) -> Any:
    """The number that the method needs, checked; None for a method without one."""
    if method not in METHODS:
        raise InputError(f"method = {method!r}; choose from {', '.join(METHODS)}.")
    name = METHODS[method].parameter
    if name is None:
        return None
    if given[name] is None:
        raise InputError(f"the power of {method!r} needs {name}; give {name}=….")
    check = {"order": checks.order, "delta": checks.delta}.get(name)
    return float(check(given[name]) if check else checks.nonnegative(name, given[name]))


class _Ways(NamedTuple):
    """How one bound fares against the reference pair.

    Attributes:
        choose: what part A shows, to what the bound takes from it, hashable.
        chance: `(that choice, the truth)` to the probability, over part B, that the claim is
            refuted.
        draws: of part A; fewer where choosing takes long.
    """

    choose: Callable[[tails.View], Hashable]
    chance: Callable[..., float]
    draws: int = _DRAWS


def _ways(method: Method, number: Any, claim, confidence, independent: bool) -> _Ways:
    if method.bound is bounds.renyi_bins:
        numbers = bounds.NUMBERS_OF_THRESHOLDS
        return _Ways(
            lambda seen: tuple(bounds.choose_bins(seen, number, confidence, numbers)),
            functools.partial(_bins_chance, claim=claim, confidence=confidence, order=number),
            _DRAWS_OF_BINS,
        )
    if method.bound is bounds.renyi_variational:
        return _Ways(
            lambda seen: tuple(map(tuple, bounds.fit_critic(seen, number, confidence))),
            functools.partial(_critic_chance, claim=claim, confidence=confidence, order=number),
        )
    value = method.of_event(number)

    def chance(chosen: int, truth: tails.View) -> float:
        rates = truth.present[chosen], truth.absent[chosen]
        return _event_chance(value, claim, rates, truth.test_sizes, confidence, independent)

    return _Ways(lambda seen: bounds.choose_event(seen, value, confidence), chance)


# --- one event ------------------------------------------------------------------------------------


def _event_chance(value, claim, rates, sizes, confidence, independent: bool) -> float:
    if independent:
        return tails.chance_beyond(value, claim, rates, sizes, confidence)
    return refutation_probability(value, claim, rates, sizes[0], confidence)


def refutation_probability(value, claim: float, rates, seeds: int, confidence: float) -> float:
    """P[f(p, s) > claim] for Clopper-Pearson limits of an event with these probabilities.

    For each count of the absent arm, s is fixed and f grows with p, so the claim is refuted from
    some count of the present arm on: from the first count with P[Bin(n, p') ≥ count] < α/2, where
    p' solves f(p', s) = claim.

    Args:
        value: f.
        claim: what f is compared with.
        rates: (P(E), Q(E)).
        seeds: n.
        confidence: 1 - α.
    """
    risk = (1 - confidence) / 2
    counts, weights = _strata(seeds, rates[1])
    high = upper_limit(counts, seeds, risk)
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


def _bins_chance(which, truth: tails.View, *, claim, confidence, order) -> float:
    """First order: the dual's weights are the derivatives of the bound by the tails."""
    chosen = np.array(which)
    risk, seeds = (1 - confidence) / (2 * len(chosen)), truth.test_sizes[0]
    low = lower_limit(truth.present[chosen] * seeds, seeds, risk)
    high = upper_limit(truth.absent[chosen] * seeds, seeds, risk)
    across, up = bounds.majorant(low, high)
    chosen = chosen[bounds.at_vertices(low, high, across, up)]
    ratios = np.log(np.diff(up) / np.diff(across))
    least = bounds.least_divergence(order, low, high)
    present = order * np.exp((order - 1) * (ratios - least))
    absent = (order - 1) * np.exp(order * ratios - (order - 1) * least)
    spread = np.hypot(
        _spread(present, bounds.steps(truth.present[chosen])),
        _spread(absent, bounds.steps(truth.absent[chosen])),
    )
    return _normal_chance(least - claim, spread / (order - 1) / np.sqrt(seeds))


def _critic_chance(critic, truth: tails.View, *, claim, confidence, order) -> float:
    """First order in the two means; their limits' own spread is of the next order."""
    chosen, values = np.array(critic[0], dtype=int), np.array(critic[1])
    present = bounds.steps(truth.present[chosen])
    absent = bounds.steps(truth.absent[chosen])
    bound = bounds.critic_bound(values, present, absent, truth.test_sizes, order, confidence)
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


# --- calibration: how often each bound exceeds a known truth -------------------------------------


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

    return KnownPair(draw, lambda method, parameter: float(METHODS[method].truth(mu, parameter)))


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
        method: one of `REPLAYED`; ε, δ and q are those of `DEFAULTS`.
        pair: one of `PAIRS`.
        replays: independent samples.
        seeds, fit_seeds: per arm, parts B and A.
        confidence: of the bound.
        seed: of the draws.
    """
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
        """Whether a rate of α or less is possible: the interval does not lie wholly above α."""
        return self.false_alarms.low <= self.allowed

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        rate = self.false_alarms._asdict()
        return vars(self) | {"false_alarms": rate, "sound": self.sound}


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
        say: called with a line of progress.
    """
    check_confidence(confidence)
    checks.whole("seeds", seeds, least=4)
    sizes = (replays, seeds // 2, seeds - seeds // 2)
    rows = []
    for pair in TABLE_PAIRS:
        for method in REPLAYED:
            say(f"coverage: {method} on {pair!r}, {replays:,} replays")
            truth, values = _replay(method, pair, sizes, confidence, seed)
            rows.append(_row(method, pair, truth, values, confidence))
    say(f"coverage: gaussian_law, {replays:,} replays")
    return [*rows, _exact_law_row(replays, seeds, confidence, seed)]


def _replay(method, pair, sizes, confidence, seed) -> tuple[float, np.ndarray]:
    """(the truth, the bound in every replay)."""
    if method not in REPLAYED or pair not in PAIRS:
        raise InputError(
            f"method = {method!r}, pair = {pair!r}; "
            f"choose from {', '.join(REPLAYED)} and {', '.join(PAIRS)}."
        )
    replays, fit_seeds, seeds = sizes
    checks.whole("replays", replays, least=1)
    bound, name, *_ = REPLAYED[method]
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
    """How many values exceed the truth by more than rounding; NaN and infinity are counted too."""
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


def _atomic_truth(laws: np.ndarray, method: str, parameter: float) -> float:
    """Exact, by the tails: with a growing ratio no other event is better."""
    if method.startswith("renyi"):
        total = np.sum(laws[0] ** parameter * laws[1] ** (1 - parameter))
        return float(np.log(total) / (parameter - 1))
    value = METHODS[method].of_event(parameter)
    return max(float(np.max(value(*np.cumsum(laws[:, :0:-1], axis=1)))), 0.0)
