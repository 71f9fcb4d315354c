"""Sound lower bounds on a divergence: known values, coverage, held-out halves."""

import numpy as np
import pytest
from scipy import stats

from dd_jax.attacks import separation
from dd_jax.audit.bounds import coin_divergence
from dd_jax.errors import InputError
from dd_jax.intervals import clopper_pearson


def test_the_bound_is_the_coins_of_the_exact_limits():
    low = clopper_pearson(80, 100, 0.995)[0]
    high = clopper_pearson(10, 100, 0.995)[1]
    expected = coin_divergence(low, high, order=2.0)
    assert separation.renyi_lower_bound(2.0, 80, 10, 100, 0.99) == pytest.approx(expected)
    bounds = separation.renyi_lower_bound(2.0, [80, 0, 100], [10, 0, 100], 100, 0.99)
    assert bounds == pytest.approx([expected, 0, 0])


def test_the_bound_holds_as_often_as_it_says():
    trials, counts = 15, np.arange(16)
    bounds = separation.renyi_lower_bound(2.0, counts[:, None], counts[None, :], trials, 0.8)
    for p in np.linspace(0.05, 0.95, 7):
        for s in np.linspace(0.05, 0.95, 7):
            truth = max(coin_divergence(p, s, order=2.0), coin_divergence(1 - p, 1 - s, order=2.0))
            weights = np.outer(
                stats.binom.pmf(counts, trials, p), stats.binom.pmf(counts, trials, s)
            )
            assert weights[bounds <= truth + 1e-12].sum() >= 0.8


def gaussians(rng, shift, seeds=4_000, dim=2):
    samples = rng.normal(size=(2, seeds, dim))
    samples[0, :, 0] += shift
    return samples


def test_an_event_is_found_and_tested_below_the_truth():
    present, absent = gaussians(np.random.default_rng(0), 2.0)
    found = separation.separate(present, absent, 2.0, 0.999)
    # R_2 of unit Gaussians 2 apart is 4; the best half-space shows 2.4 of it.
    assert 1.5 < found.renyi_low < 2.42
    assert found.advantage.trials == 2_000
    assert found.advantage.low > 0.2


def test_what_was_fitted_does_not_count():
    rng = np.random.default_rng(1)
    present, absent = gaussians(rng, 0.0, seeds=40, dim=30)
    event = separation.fit_event(present[:20], absent[:20], 2.0, 0.9)
    in_sample = [event.happened(models[:20]).mean() for models in (present, absent)]
    assert in_sample[0] - in_sample[1] > 0.7
    assert separation.separate(present, absent, 2.0, 0.9).renyi_low == 0


def test_false_alarms_are_as_rare_as_stated():
    rng = np.random.default_rng(2)
    alarms = sum(
        separation.separate(*gaussians(rng, 0.0, seeds=60), 2.0, 0.9).renyi_low > 0
        for _ in range(300)
    )
    assert alarms <= 30


def test_unequal_or_tiny_arms_are_refused():
    with pytest.raises(InputError, match="3 and 2"):
        separation.separate(np.ones((3, 1)), np.ones((2, 1)), 2.0, 0.9)
    with pytest.raises(InputError, match="3 and 3"):
        separation.separate(np.ones((3, 1)), np.ones((3, 1)), 2.0, 0.9)
    four = gaussians(np.random.default_rng(3), 0.0, seeds=4)
    assert separation.separate(*four, 2.0, 0.9).renyi_low == 0
