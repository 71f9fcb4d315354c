"""Bounds from one event: exact values, invariances, what they attain, and refusals."""

import numpy as np
import pytest
from problems import soak
from scipy import stats

from dd_jax.audit import bounds, tails
from dd_jax.audit.power import shifted_normals
from dd_jax.errors import InputError
from dd_jax.intervals import clopper_pearson

ALL = {
    "advantage": (bounds.advantage, {}),
    "hockey_stick": (bounds.hockey_stick, {"epsilon": 0.5}),
    "epsilon_at": (bounds.epsilon_at, {"delta": 0.01}),
    "gaussian_mu": (bounds.gaussian_mu, {}),
    "renyi_binary": (bounds.renyi_binary, {"order": 2}),
    "renyi_bins": (bounds.renyi_bins, {"order": 2}),
    "renyi_variational": (bounds.renyi_variational, {"order": 2}),
}
every_bound = pytest.mark.parametrize(("bound", "setting"), ALL.values(), ids=ALL)


def coins(ones: int, trials: int) -> np.ndarray:
    return np.repeat([1.0, 0.0], [ones, trials - ones])


def split(pair, seeds: int, fit_seeds: int, seed: int):
    """The four samples of one replay: part A, then part B."""
    present, absent = (arm[0] for arm in pair.draw((1, seeds), seed))
    return present[:fit_seeds], absent[:fit_seeds], present[fit_seeds:], absent[fit_seeds:]


FULL = [(10**5, 21, 0.85), (10**6, 3, 0.93)]


def ratio_to_truth(bound, divergence: float, seeds: int, replays: int) -> np.ndarray:
    """Audited over exact, a tenth of the seeds choosing; q = 2."""
    pair = shifted_normals(np.sqrt(divergence))
    samples = (split(pair, seeds, seeds // 10, seed) for seed in range(replays))
    return np.array([bound(*sample).value for sample in samples]) / divergence


def test_a_score_at_the_threshold_does_not_exceed_it():
    ordered = np.array([-np.inf, 0.0, 1.0, 1.0, 2.0, np.inf])
    counts = tails.tail_counts(ordered, np.array([np.inf, 2.0, 1.0, 0.5, -np.inf]))
    np.testing.assert_array_equal(counts, [0, 1, 2, 4, 5])


def test_each_arm_s_limit_counts_its_own_seeds():
    present, absent = np.sort(coins(200, 300)), np.sort(coins(20, 77))
    low, high = tails.limits(present, absent, np.array([0.5]), 0.95, share=0.5)
    assert low[0] == pytest.approx(clopper_pearson(200, 300, 0.975)[0], rel=1e-12)
    assert high[0] == pytest.approx(clopper_pearson(20, 77, 0.975)[1], rel=1e-12)


def test_independent_arms_by_hand_with_the_weights_of_part_a():
    """Part B has rates of its own, which may not touch the weights."""
    arms = (coins(9, 10), coins(1, 10), coins(150, 300), coins(20, 77))
    found = bounds.advantage(*arms, confidence=0.95, independent=True)
    weights = tails.best_weights(bounds.difference, (0.9, 0.1), (300, 77))
    other = tails.best_weights(bounds.difference, (150 / 300, 20 / 77), (300, 77))
    assert weights[0] / weights[1] != pytest.approx(other[0] / other[1], rel=1e-3)
    low, high = tails.corners((150, 20), (300, 77), weights, 0.95)
    assert found.value == pytest.approx(np.min(low - high), rel=1e-12)
    assert found.value > 0


HITS_PRESENT, HITS_ABSENT, TRIALS = 70, 20, 100
P, S = clopper_pearson(HITS_PRESENT, TRIALS, 0.95)[0], clopper_pearson(HITS_ABSENT, TRIALS, 0.95)[1]
E03 = np.exp(0.3)
COINS = (coins(7, 10), coins(2, 10), coins(HITS_PRESENT, TRIALS), coins(HITS_ABSENT, TRIALS))


@pytest.mark.parametrize(
    ("bound", "setting", "expected"),
    [
        (bounds.advantage, {}, P - S),
        (bounds.hockey_stick, {"epsilon": 0.3, "both_ways": False}, P - np.exp(0.3) * S),
        (bounds.hockey_stick, {"epsilon": 0.3}, max(P - E03 * S, 1 - S - E03 * (1 - P))),
        (bounds.epsilon_at, {"delta": 0.05, "both_ways": False}, np.log((P - 0.05) / S)),
        (bounds.epsilon_at, {"delta": 0.0}, max(np.log(P / S), np.log((1 - S) / (1 - P)))),
        (bounds.gaussian_mu, {}, stats.norm.ppf(P) - stats.norm.ppf(S)),
        (bounds.renyi_binary, {"order": 2}, np.log(P**2 / S + (1 - P) ** 2 / (1 - S))),
        (bounds.renyi_binary, {"order": 3}, np.log(P**3 / S**2 + (1 - P) ** 3 / (1 - S) ** 2) / 2),
        (bounds.renyi_bins, {"order": 3}, np.log(P**3 / S**2 + (1 - P) ** 3 / (1 - S) ** 2) / 2),
    ],
)
def test_two_coins_by_hand(bound, setting, expected):
    found = bound(*COINS, confidence=0.95, **setting)
    assert found.value == pytest.approx(expected, rel=1e-12)
    assert (found.confidence, found.seeds) == (0.95, TRIALS)


def test_the_other_direction_can_be_the_larger_one():
    arms = (coins(10, 10), coins(9, 10), coins(1000, 1000), coins(900, 1000))
    one_way = bounds.epsilon_at(*arms, delta=0.0, confidence=0.95, both_ways=False)
    both = bounds.epsilon_at(*arms, delta=0.0, confidence=0.95)
    low, high = clopper_pearson(1000, 1000, 0.95)[0], clopper_pearson(900, 1000, 0.95)[1]
    assert one_way.value == pytest.approx(np.log(low / high))
    assert both.value == pytest.approx(np.log((1 - high) / (1 - low)))
    assert both.value > 10 * one_way.value


@pytest.mark.parametrize("independent", [False, True])
@pytest.mark.parametrize(("bound", "setting"), list(ALL.values())[:5], ids=list(ALL)[:5])
def test_no_hit_or_all_hits_give_a_number_and_show_nothing(bound, setting, independent):
    fit = coins(60, 200), coins(0, 200)
    for hits in (0, 50):
        arms = (*fit, coins(hits, 50), coins(hits, 50))
        found = bound(*arms, confidence=0.95, independent=independent, **setting)
        assert found.value == 0
    apart = (*fit, coins(50, 50), coins(0, 50))
    shown = bound(*apart, confidence=0.95, independent=independent, **setting).value
    assert 0 < shown < np.inf


def test_the_ends_of_each_value_show_no_more_than_is_true():
    """(P(E), Q(E)) = (0, 0), (1, 1), (0, 1), (δ, 0), (δ/2, 0), (1, 0)."""
    likely, unlikely = np.array([0, 1, 0, 0.1, 0.05, 1]), np.array([0, 1, 1, 0, 0, 0.0])
    ratio = bounds.log_excess_ratio(likely, unlikely, delta=0.1)
    np.testing.assert_array_equal(ratio[[0, 2, 3, 4, 5]], [-np.inf] * 4 + [np.inf])
    assert ratio[1] == pytest.approx(np.log(0.9))
    shift = bounds.normal_shift(likely, unlikely)
    np.testing.assert_array_equal(shift[:3], [-np.inf] * 3)
    assert np.all((shift[3:] > 30) & (shift[3:] < 50))
    mass = bounds.excess_mass(likely, unlikely, epsilon=0.5)
    np.testing.assert_allclose(mass, likely - np.exp(0.5) * unlikely)


def test_divergence_of_two_coins():
    heads, tails = stats.norm.cdf(0.5), stats.norm.cdf(-0.5)
    assert bounds.coin_divergence(heads, tails, order=2.0) == pytest.approx(0.523, abs=5e-4)
    expected = np.log(0.7**3 / 0.2**2 + 0.3**3 / 0.8**2) / 2
    assert bounds.coin_divergence(0.7, 0.2, order=3.0) == pytest.approx(expected)
    assert bounds.coin_divergence(0.2, 0.7, order=2.0) == 0
    assert bounds.coin_divergence(1.0, 0.25, order=2.0) == pytest.approx(np.log(4))


def test_carrying_mu_to_the_divergence():
    mu = bounds.gaussian_mu(*COINS, confidence=0.95)
    carried = bounds.renyi_of_mu(mu, 3)
    assert carried.quantity == "renyi"
    assert carried.value == pytest.approx(1.5 * mu.value**2)


@pytest.mark.parametrize("divergence", [0.1, 1.0])
@pytest.mark.parametrize(("seeds", "replays", "wanted"), soak([(10**5, 5, 0.85)], FULL))
def test_the_gaussian_route_attains_most_of_the_truth(divergence, seeds, replays, wanted):
    def audited(*sample):
        return bounds.renyi_of_mu(bounds.gaussian_mu(*sample, confidence=0.95), 2)

    ratios = ratio_to_truth(audited, divergence, seeds, replays)
    assert wanted <= np.median(ratios) <= 1


@every_bound
def test_only_the_order_of_scores_matters(bound, setting):
    sample = split(shifted_normals(1.0), 600, 200, 3)
    twisted = [np.arctan(scores / 7) - 5 for scores in sample]
    first = bound(*sample, confidence=0.9, **setting)
    assert first.value > 0
    assert bound(*twisted, confidence=0.9, **setting) == first


@every_bound
def test_more_confidence_says_less(bound, setting):
    sample = split(shifted_normals(1.5), 900, 300, 4)
    values = [bound(*sample, confidence=c, **setting).value for c in (0.5, 0.95, 0.9999, 1 - 1e-12)]
    assert values == sorted(values, reverse=True)
    assert values[0] > values[2]


@every_bound
def test_equal_or_constant_scores_show_nothing(bound, setting):
    constant = np.zeros(50)
    assert bound(*[constant] * 4, confidence=0.95, **setting).value == 0
    mixed = coins(20, 50)
    assert bound(*[mixed] * 4, confidence=0.95, **setting).value == 0


@every_bound
def test_separate_scores_show_the_most_that_so_many_seeds_can(bound, setting):
    low, high = np.full(40, -np.inf), np.full(40, np.inf)
    found = bound(high, low, high, low, confidence=0.95, **setting).value
    blurred = bound(high, low, coins(39, 40), -coins(40, 40), confidence=0.95, **setting).value
    assert 0 < found < np.inf
    assert blurred <= found


def test_the_choice_sees_part_a_alone():
    sample = split(shifted_normals(1.0), 300, 100, 5)
    seen = tails.view(tails.parts(sample, 0.95))
    other = tails.view(tails.parts((*sample[:2], -sample[2], sample[3] * 0), 0.95))
    for mine, theirs in zip(seen, other, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_large_orders_neither_overflow_nor_exceed_the_ratio():
    low, high = P, S
    for order in (50.0, 1e4, 1e8):
        for bound in (bounds.renyi_binary, bounds.renyi_bins):
            value = bound(*COINS, order=order, confidence=0.95).value
            assert np.log(low / high) * 0.9 < value < np.log(low / high) * order / (order - 1)
        assert 0 <= bounds.renyi_variational(*COINS, order=order, confidence=0.95).value < 1
    assert bounds.hockey_stick(*COINS, epsilon=1e4, confidence=0.95).value == 0


@every_bound
def test_too_few_seeds_for_the_confidence_are_refused(bound, setting):
    for confidence in (0.95, 0.999):
        least = tails.fewest_seeds(confidence)
        assert (1 - confidence) / 2 < 0.5 ** (least - 1)
        few = [coins(1, 3), coins(1, 3), coins(least - 1, least - 1), coins(0, least - 1)]
        with pytest.raises(InputError, match="seeds"):
            bound(*few, confidence=confidence, **setting)
        enough = (coins(least, least), coins(0, least)) * 2
        assert bounds.advantage(*enough, confidence=confidence).value > 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bounds.renyi_binary(*COINS, order=1 + 1e-9, confidence=0.9), "order"),
        (lambda: bounds.renyi_bins(*COINS, order=1 + 1e-9, confidence=0.9), "order"),
        (lambda: bounds.renyi_variational(*COINS, order=1.0, confidence=0.9), "order"),
        (lambda: bounds.renyi_bins(*COINS, order=2, confidence=0.9, bins=1), "bins"),
        (lambda: bounds.hockey_stick(*COINS, epsilon=-1, confidence=0.9), "epsilon"),
        (lambda: bounds.epsilon_at(*COINS, delta=1.5, confidence=0.9), "delta"),
        (lambda: bounds.advantage(*COINS[:3], np.eye(9), confidence=0.9), "shape"),
        (lambda: bounds.advantage([], *COINS[1:], confidence=0.9), "shape"),
        (lambda: bounds.advantage(["a"], *COINS[1:], confidence=0.9), "numeric"),
        (lambda: bounds.advantage([np.nan], *COINS[1:], confidence=0.9), "NaN"),
        (lambda: bounds.advantage(*COINS[:3], [*COINS[3], np.nan], confidence=0.9), "NaN"),
        (lambda: bounds.advantage(*COINS, confidence=1.0), "confidence"),
        (lambda: bounds.renyi_bins(*COINS, order=2, confidence=float("nan")), "confidence"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()
