"""Many bins and the bounded critic: the convex programme, its dual, the choice, the reach."""

import itertools

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from problems import soak
from scipy import optimize

from dd_jax import intervals
from dd_jax.audit import bounds
from dd_jax.audit.power import shifted_normals
from dd_jax.errors import InputError
from dd_jax.guarantees import renyi


def split(pair, seeds: int, fit_seeds: int, seed: int):
    present, absent = (arm[0] for arm in pair.draw((1, seeds), seed))
    return present[:fit_seeds], absent[:fit_seeds], present[fit_seeds:], absent[fit_seeds:]


limits = st.integers(1, 4).flatmap(
    lambda m: st.tuples(
        *(st.lists(st.floats(0.02, 0.98), min_size=m, max_size=m).map(np.array) for _ in range(2))
    )
)


def minimise(order: float, low: np.ndarray, high: np.ndarray) -> float:
    """log least Σ p^q s^{1-q}/(q-1) over the polytope, by a general-purpose solver."""
    m = len(low)

    def laws(x):
        return x[: m + 1], x[m + 1 :]

    def objective(x):
        p, s = laws(np.maximum(x, 1e-12))
        return np.sum(p**order * s ** (1 - order))

    def slack(x):
        p, s = laws(x)
        return np.concatenate([np.cumsum(p)[:-1] - low, high - np.cumsum(s)[:-1]])

    start = np.full(2 * m + 2, 1 / (m + 1))
    totals = {"type": "eq", "fun": lambda x: [laws(x)[0].sum() - 1, laws(x)[1].sum() - 1]}
    found = optimize.minimize(
        objective,
        start,
        bounds=[(1e-9, 1)] * len(start),
        constraints=[totals, {"type": "ineq", "fun": slack}],
        method="SLSQP",
        options={"maxiter": 500, "ftol": 1e-12},
    )
    assert found.success
    assert np.min(slack(found.x)) > -1e-7
    return float(np.log(found.fun) / (order - 1))


@pytest.mark.parametrize("order", [1.5, 2.0, 4.0])
def test_the_hull_solves_the_convex_programme(order):
    cases = [
        ([0.3, 0.7], [0.1, 0.5]),
        ([0.1, 0.35, 0.8], [0.05, 0.3, 0.55]),
        ([0.2, 0.25, 0.9], [0.1, 0.4, 0.6]),  # the middle point lies below the hull
        ([0.05, 0.2], [0.1, 0.5]),  # nothing is shown
    ]
    for low, high in cases:
        low, high = np.array(low), np.array(high)
        exact = bounds.least_divergence(order, low, high)
        assert exact == pytest.approx(minimise(order, low, high), abs=2e-5)


@given(limits, st.lists(st.floats(0.01, 1), min_size=10, max_size=10), st.floats(1.1, 20))
def test_no_feasible_pair_of_laws_beats_the_dual(case, weights, order):
    """Any laws whose tails respect the limits have at least the divergence returned."""
    low, high = (np.sort(values) for values in case)
    m = len(low)
    p, s = (np.array(part[: m + 1]) / sum(part[: m + 1]) for part in (weights[:5], weights[5:]))
    low, high = np.minimum(low, np.cumsum(p)[:-1]), np.maximum(high, np.cumsum(s)[:-1])
    divergence = np.log(np.sum(p**order * s ** (1 - order))) / (order - 1)
    assert bounds.least_divergence(order, low, high) <= divergence + 1e-9


@given(limits, st.floats(1.1, 10), st.lists(st.floats(0, 5), min_size=5, max_size=5))
def test_any_falling_ratios_give_a_lower_bound_and_the_hulls_slopes_the_best(case, order, ratios):
    low, high = (np.sort(values) for values in case)
    across, up = bounds.majorant(low, high)
    ratios = np.sort(ratios)[::-1][: len(up) - 1]
    primal = np.log(np.sum(np.diff(up) ** order * np.diff(across) ** (1 - order)))
    best = bounds.least_divergence(order, low, high) * (order - 1)
    assert best == pytest.approx(primal, abs=1e-9)
    assert bounds.dual_bound(order, ratios, across, up) <= best + 1e-9


@given(limits)
@example((np.array([0.0, 0.4]), np.array([0.3, 1.0])))  # limits at the ends are not vertices
def test_the_majorant_is_concave_and_above_every_point(case):
    low, high = case
    across, up = bounds.majorant(low, high)
    assert (across[0], up[0], across[-1], up[-1]) == (0, 0, 1, 1)
    slopes = np.diff(up) / np.diff(across)
    assert np.all(np.diff(slopes) <= 1e-9)
    assert np.all(np.interp(high, across, up) >= low - 1e-12)


@pytest.mark.parametrize("stops", [1, 2, 3])
def test_the_best_path_is_found(stops):
    across = np.array([0, 0.05, 0.2, 0.4, 0.7, 1])
    up = np.array([0, 0.3, 0.6, 0.8, 0.95, 1])
    logs = bounds.segment_logs(2.0, across, up)
    value, path = bounds.best_path(logs, stops)

    def total(inner):
        whole = [0, *inner, 5]
        return np.log(sum(np.exp(logs[i, j]) for i, j in itertools.pairwise(whole)))

    best = max(itertools.combinations(range(1, 5), stops), key=total)
    assert path == list(best)
    assert value == pytest.approx(total(best))


def test_more_stops_than_points_are_not_taken():
    logs = bounds.segment_logs(2.0, np.array([0, 0.2, 1]), np.array([0, 0.6, 1]))
    assert bounds.best_path(logs, 9)[1] == [1]


def test_many_bins_attain_most_of_the_truth_whatever_the_law():
    pair = shifted_normals(np.sqrt(0.1))
    for seeds, replays, wanted in soak([(10**5, 5, 0.55)], [(10**5, 21, 0.55), (10**6, 3, 0.80)]):
        ratios = [
            bounds.renyi_bins(
                *split(pair, seeds, seeds // 10, seed), order=2, confidence=0.95
            ).value
            / 0.1
            for seed in range(replays)
        ]
        assert np.quantile(ratios, 0.1) >= wanted
        assert np.max(ratios) < 1


def test_bins_beat_one_event_and_more_seeds_take_more_of_them():
    sample = split(shifted_normals(1.0), 20_000, 4_000, 1)
    one = bounds.renyi_binary(*sample, order=2, confidence=0.95).value
    many = bounds.renyi_bins(*sample, order=2, confidence=0.95)
    two = bounds.renyi_bins(*sample, order=2, confidence=0.95, bins=2).value
    assert many.value > 1.2 * one
    assert two == pytest.approx(one, rel=0.1)
    assert int(many.method.split()[0]) > 3


def test_each_of_many_limits_takes_its_share_of_the_risk():
    """Three equal atoms, two thresholds: each limit at α/4."""
    sample = [np.repeat([0.0, 1.0, 2.0], counts) for counts in ([2, 3, 5], [5, 3, 2])]
    present, absent = (np.repeat(arm, 40) for arm in sample)
    found = bounds.renyi_bins(present, absent, present, absent, order=2, confidence=0.9, bins=3)
    low = intervals.lower_limit(np.array([200, 320]), 400, 0.025)
    high = intervals.upper_limit(np.array([80, 200]), 400, 0.025)
    p, s = np.diff([0, *low, 1]), np.diff([0, *high, 1])
    assert found.value == pytest.approx(np.log(np.sum(p**2 / s)), rel=1e-12)


def test_asking_for_many_bins_needs_more_seeds():
    few = [np.arange(9.0) for _ in range(4)]
    bounds.renyi_bins(*few, order=2, confidence=0.9)
    with pytest.raises(InputError, match="at least 11"):
        bounds.renyi_bins(*few, order=2, confidence=0.9, bins=64)


# --- the critic -----------------------------------------------------------------------------------


def test_the_width_is_that_of_maurer_and_pontil():
    values, counts = np.array([0.0, 0.25, 1.0]), np.array([3, 5, 2])
    sample = np.repeat(values, counts)
    width = bounds.bernstein_width(values, counts / 10, 10, np.log(2 / 0.01))
    expected = np.sqrt(2 * sample.var(ddof=1) * np.log(200) / 10) + 7 * np.log(200) / (3 * 9)
    assert width == pytest.approx(expected)


@pytest.mark.parametrize("order", [1.5, 2.0, 6.0])
def test_the_best_critic_attains_the_divergence(order):
    p, s = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])
    truth = np.log(np.sum(p**order * s ** (1 - order))) / (order - 1)
    best = np.log(p / s) - np.log(p / s).max()
    sizes = (10**14, 10**14)
    found = bounds.critic_bound(best, p, s, sizes, order, 0.95)
    assert found == pytest.approx(truth, rel=1e-4)
    assert found < truth
    for factor in (0.5, 1.3):
        assert bounds.critic_bound(best * factor, p, s, sizes, order, 0.95) < found


def test_each_arm_of_the_critic_takes_half_of_the_risk():
    values = np.log([1.0, 0.5])
    p, s = np.array([0.7, 0.3]), np.array([0.4, 0.6])
    found = bounds.critic_bound(values, p, s, (1000, 2000), 2.0, 0.9)
    first, second = np.array([1.0, 0.5]), np.array([1.0, 0.25])
    low = p @ first - bounds.bernstein_width(first, p, 1000, np.log(2 / 0.05))
    high = s @ second + bounds.bernstein_width(second, s, 2000, np.log(2 / 0.05))
    assert found == pytest.approx(2 * np.log(low) - np.log(high))


def test_the_critic_attains_most_of_the_truth():
    sample = split(shifted_normals(np.sqrt(0.1)), 10**5, 10**4, 2)
    found = bounds.renyi_variational(*sample, order=2, confidence=0.95).value
    assert 0.065 < found < 0.1


@pytest.mark.parametrize("order", [1.2, 2.0, 30.0])
def test_the_fewest_seeds_of_the_critic_can_show_something(order):
    least = bounds.fewest_critic_seeds(order, 0.95)
    shown = []
    for seeds in (least - 1, least):
        values = np.array([0.0, -700.0 / order])
        arms = np.array([1.0, 0.0]), np.array([0.0, 1.0])
        shown.append(bounds.critic_bound(values, *arms, (seeds, seeds), order, 0.95) > 0)
    assert shown == [False, True]


# --- the estimate ---------------------------------------------------------------------------------


def test_a_gaussian_fit_is_the_formula_at_the_samples_moments():
    noise = np.random.default_rng(0).normal(size=(2, 20_000, 2))
    present, absent = noise[0] * (0.8, 1.1) + (0.6, -0.3), noise[1]
    found = bounds.estimated_renyi_gaussian_fit(present, absent, order=3)
    moments = [m for arm in (present, absent) for m in (arm.mean(0), np.cov(arm.T))]
    assert found == pytest.approx(renyi.renyi_gaussian(3, *moments))
    exact = renyi.renyi_gaussian(3, [0.6, -0.3], np.diag([0.64, 1.21]), [0, 0], np.eye(2))
    assert found == pytest.approx(exact, rel=0.1)
    assert type(found) is float  # a plain number, not a bound


@pytest.mark.parametrize(
    ("present", "absent", "order", "message"),
    [
        ([1.0], [2.0], 2, "shapes"),
        (np.eye(2), np.eye(2), 2, "seeds"),
        (np.arange(9.0), np.arange(9.0), 1, "order"),
        ([1, np.nan], [1, 2], 2, "present"),
        (np.ones((4, 2)), np.ones(4), 2, "shapes"),
    ],
)
def test_a_fit_of_bad_samples_is_refused(present, absent, order, message):
    with pytest.raises(InputError, match=message):
        bounds.estimated_renyi_gaussian_fit(present, absent, order=order)
