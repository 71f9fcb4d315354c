"""Exact intervals: known values, coverage by enumeration, multiplicity, refusals."""

import numpy as np
import pytest
from scipy import stats

from dd_jax import intervals
from dd_jax.errors import InputError


def test_clopper_pearson_solves_its_defining_equations():
    low, high = intervals.clopper_pearson(7, 20, 0.95)
    assert stats.binom.sf(6, 20, low) == pytest.approx(0.025)
    assert stats.binom.cdf(7, 20, high) == pytest.approx(0.025)


@pytest.mark.parametrize("trials", [1, 10, 1000])
def test_clopper_pearson_at_the_ends_has_closed_forms(trials):
    assert intervals.clopper_pearson(0, trials, 0.98) == pytest.approx(
        (0, 1 - 0.01 ** (1 / trials))
    )
    assert intervals.clopper_pearson(trials, trials, 0.98) == pytest.approx(
        (0.01 ** (1 / trials), 1)
    )


@pytest.mark.parametrize("trials", [1, 5, 30])
def test_proportion_covers_every_probability(trials):
    table = [intervals.proportion(k, trials, 0.9) for k in range(trials + 1)]
    for p in np.linspace(0, 1, 41):
        weights = stats.binom.pmf(np.arange(trials + 1), trials, p)
        covered = sum(w for w, e in zip(weights, table, strict=True) if e.contains(p))
        assert covered >= 0.9 - 1e-12


def test_advantage_covers_every_pair_of_probabilities():
    trials = 12
    table = [
        [intervals.advantage(a, b, trials, 0.8) for b in range(trials + 1)]
        for a in range(trials + 1)
    ]
    counts = np.arange(trials + 1)
    for p in np.linspace(0, 1, 9):
        for q in np.linspace(0, 1, 9):
            weights = np.outer(
                stats.binom.pmf(counts, trials, p), stats.binom.pmf(counts, trials, q)
            )
            inside = [[e.contains(p - q) for e in row] for row in table]
            assert weights[np.array(inside)].sum() >= 0.8 - 1e-12


def test_advantage_is_the_difference_of_two_intervals_at_half_the_risk_each():
    got = intervals.advantage(90, 20, 100, 0.99)
    present = intervals.clopper_pearson(90, 100, 0.995)
    absent = intervals.clopper_pearson(20, 100, 0.995)
    assert got.value == pytest.approx(0.7)
    assert got.low == pytest.approx(present[0] - absent[1])
    assert got.high == pytest.approx(present[1] - absent[0])
    assert (got.trials, got.confidence) == (100, 0.99)


def test_families_split_the_risk():
    outcomes = np.arange(100)[:, None] < np.array([30, 60])
    many = intervals.proportions(outcomes, 0.9)
    assert many[0][:3] == intervals.proportion(30, 100, 0.95)[:3]
    assert [e.confidence for e in many] == [0.9, 0.9]
    both = intervals.advantages(outcomes, ~outcomes, 0.9)
    assert both[1][:3] == intervals.advantage(60, 40, 100, 0.95)[:3]
    assert both[0].value == pytest.approx(-0.4)


def test_a_vector_is_one_case():
    outcomes = np.arange(10) < 4
    assert intervals.proportions(outcomes, 0.9) == [intervals.proportion(4, 10, 0.9)]
    assert intervals.advantages(outcomes, outcomes, 0.9)[0].value == 0


def test_means_over_seeds_are_students():
    values = np.random.default_rng(0).normal(0.3, 2.0, (50, 3))
    found = intervals.mean_over_seeds(values, 0.99, least=-0.5, most=0.9)
    expected = stats.t.interval(0.99, 49, values.mean(axis=0), stats.sem(values))
    assert found.value == pytest.approx(values.mean(axis=0))
    assert found.low == pytest.approx(np.maximum(expected[0], -0.5))
    assert found.high == pytest.approx(np.minimum(expected[1], 0.9))


ONE = np.ones(2, bool)


@pytest.mark.parametrize(
    ("call", "word"),
    [
        *(
            (lambda c=c: intervals.advantage(1, 1, 2, c), "confidence")
            for c in (0.0, 1.0, -1.0, 2.0, float("nan"))
        ),
        (lambda: intervals.clopper_pearson(5, 4, 0.9), "successes"),
        (lambda: intervals.clopper_pearson(0, 0, 0.9), "trial"),
        (lambda: intervals.proportions(np.ones(3), 0.9), "booleans"),
        (lambda: intervals.advantages(ONE, np.ones(3, bool), 0.9), "shapes"),
        (lambda: intervals.mean_over_seeds(np.ones(1), 0.9), "seed"),
    ],
)
def test_refusals(call, word):
    with pytest.raises(InputError, match=word):
        call()
