"""Limits for independent arms: exact coverage by enumeration, what they gain, when they fail."""

import itertools

import numpy as np
import pytest
from problems import soak
from scipy import stats

from dd_jax.audit import AdvantageClaim, GaussianClaim, RenyiClaim, audit, bounds, tails
from dd_jax.audit.bounds import difference, normal_shift
from dd_jax.audit.power import shifted_normals

ALPHA = 0.2
TRIALS = (9, 14)
WEIGHTS = [(1.0, 1.0), (0.2, 1.0), (1.0, 0.3)]


@pytest.fixture(scope="module")
def boxes():
    """The corners for every outcome of two small arms, by weights."""
    outcomes = itertools.product(range(TRIALS[0] + 1), range(TRIALS[1] + 1))
    return {
        (weights, outcome): tails.corners(outcome, TRIALS, weights, 1 - ALPHA)
        for outcome in outcomes
        for weights in WEIGHTS
    }


def misses(corners, present: float, absent: float) -> bool:
    low, high = corners
    return not np.any((low <= present + 1e-12) & (absent <= high + 1e-12))


@pytest.mark.parametrize("weights", WEIGHTS)
def test_the_truth_is_in_some_box_with_the_stated_probability(boxes, weights):
    chances = []
    for present, absent in itertools.product(np.linspace(0, 1, soak(6, 9)), repeat=2):
        chance = sum(
            stats.binom.pmf(outcome[0], TRIALS[0], present)
            * stats.binom.pmf(outcome[1], TRIALS[1], absent)
            for (w, outcome), corners in boxes.items()
            if w == weights and misses(corners, present, absent)
        )
        chances.append(chance)
    assert max(chances) <= ALPHA
    assert max(chances) > ALPHA / 10  # and it is not an idle limit


def test_arms_that_are_unlucky_together_break_it():
    """Why it is not the default: here absent's hits are present's misses."""
    trials, rate = (200, 200), 0.5
    chance = sum(
        stats.binom.pmf(hits, 200, rate)
        for hits in range(201)
        if misses(tails.corners((hits, 200 - hits), trials, (1, 1), 0.95), rate, rate)
    )
    assert chance > 0.08


def test_both_outer_limits_are_among_the_corners():
    low, high = tails.corners((30, 10), (50, 50), (1, 1), 0.95)
    tail = tails.OUTER * 0.05
    assert min(low) == pytest.approx(stats.beta.ppf(tail, 30, 21))
    assert max(high) == pytest.approx(stats.beta.isf(tail, 11, 40))
    assert np.all(np.diff(low) <= 0)
    assert np.all(np.diff(high) <= 0)


@pytest.mark.parametrize("weights", [(1.0, 1.0), (0.3, 2.0), (7.0, 1.0)])
def test_the_boxes_cover_the_region_and_little_more(weights):
    """The region's edge by its definition, w z + w' z' = Φ⁻¹(1 - α') with w² + w'² = 1.

    Every point of it is in some box, those between corners and on the outer limits too, and a
    little further out is none; a common factor of the weights changes nothing.
    """
    hits, trials, alpha = (30, 10), (50, 60), 0.05
    outer, joint = (stats.norm.isf(risk * alpha) for risk in (tails.OUTER, 1 - 2 * tails.OUTER))
    own, other = np.array(weights) / np.hypot(*weights)
    boxes = tails.corners(hits, trials, weights, 1 - alpha)

    def at(evidence: float, against: float) -> tuple[float, float]:
        """Where the two exact tests show this much evidence."""
        present = stats.beta.ppf(stats.norm.sf(evidence), hits[0], trials[0] - hits[0] + 1)
        absent = stats.beta.isf(stats.norm.sf(against), hits[1] + 1, trials[1] - hits[1])
        return present, absent

    start = (joint - other * outer) / own
    for evidence in np.append(np.linspace(start, outer, 37), start - 0.5):
        against = min((joint - own * evidence) / other, outer)
        assert not misses(boxes, *at(evidence, against))
    equal = joint / (own + other)
    two_boxes = 2 * (outer - start) / tails.BOXES
    assert misses(boxes, *at(equal + two_boxes, equal))
    for factor in (0.1, 30.0):
        scaled = (factor * weights[0], factor * weights[1])
        np.testing.assert_allclose(tails.corners(hits, trials, scaled, 1 - alpha), boxes)


def test_weights_follow_what_each_arm_moves():
    assert tails.best_weights(difference, (0.5, 0.5), (100, 100)) == pytest.approx(
        (np.sqrt(0.5), np.sqrt(0.5)), rel=1e-4
    )
    own, other = tails.best_weights(difference, (0.5, 0.5), (100, 400))
    assert own / other == pytest.approx(2, rel=1e-2)
    # Nothing moves where the value is flat.
    flat = tails.best_weights(lambda p, s: np.zeros_like(p), (0.5, 0.5), (100, 100))
    assert flat == (1.0, 1.0)


def samples(mu: float, seeds: int, seed: int):
    present, absent = (arm[0] for arm in shifted_normals(mu).draw((1, seeds), seed))
    cut = seeds // 10
    return present[:cut], absent[:cut], present[cut:], absent[cut:]


def test_more_of_the_truth_is_shown():
    """R₂ = 0.1 from 100,000 seeds at 95%, the likelihood-ratio score, a tenth choosing."""
    arms = [samples(np.sqrt(0.1), 100_000, seed) for seed in range(soak(3, 8))]
    joint, apart = (
        np.array([bounds.gaussian_mu(*a, confidence=0.95, independent=i).value for a in arms]) ** 2
        for i in (True, False)
    )
    assert np.median(joint) / 0.1 > 0.9
    assert np.all(joint / 0.1 >= 0.85)
    assert np.all(joint > apart)
    assert np.all(joint < 0.1)


def test_a_power_without_spread_is_all_or_nothing():
    def flat(present, absent):
        return 1.0 + 0 * (present + absent)

    assert tails.chance_beyond(flat, 0.5, (0.5, 0.5), (10, 10), 0.9) == 1.0
    assert tails.chance_beyond(flat, 2.0, (0.5, 0.5), (10, 10), 0.9) == 0.0
    assert tails.chance_beyond(normal_shift, 0.0, (0.5, 0.5), (10**6, 10**6), 0.9) == pytest.approx(
        0.1, abs=1e-3
    )


def test_audit_uses_it_for_gates_of_one_event_only():
    present, absent = shifted_normals(1.0).draw((4000, 1), 3)
    claims = [GaussianClaim(2.0), AdvantageClaim(0.9), RenyiClaim(2, 9.0)]
    joint, apart = (
        audit((present, absent), claims, independent=independent).verdicts
        for independent in (True, False)
    )
    for with_it, without in zip(joint[:2], apart[:2], strict=True):
        assert with_it.lower_bound.value > without.lower_bound.value
        assert with_it.detectable < without.detectable
        assert "independent arms" in with_it.lower_bound.method
    assert joint[2].lower_bound == apart[2].lower_bound
    coin, binned = (
        audit((present, absent), RenyiClaim(2, 9.0), gates=[gate], independent=True).verdicts[0]
        for gate in ("renyi_binary", "renyi_bins")
    )
    assert "independent arms" in coin.lower_bound.method
    assert "independent arms" not in binned.lower_bound.method
