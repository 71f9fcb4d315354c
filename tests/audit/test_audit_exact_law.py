"""The exact-law test: keeps its level under the law, and sees every way of departing from it."""

import numpy as np
import pytest
from problems import soak
from scipy import stats

from dd_jax.audit.exact_law import gaussian_law, normal_score
from dd_jax.errors import InputError

SEEDS, DIM = 400, 3
SHIFT = np.array([0.3, -0.2, 0.1])
COVARIANCE = np.array([[2.0, 0.5, 0.0], [0.5, 1.0, 0.2], [0.0, 0.2, 0.5]])


def draw(seed: int, shift=SHIFT, covariance=COVARIANCE, seeds=SEEDS):
    noise = np.random.default_rng(seed).normal(size=(2, seeds, DIM))
    noise = noise @ np.linalg.cholesky(covariance).T
    return 5 + noise[0] + shift, 5 + noise[1]


def test_the_p_values_are_those_of_the_textbook():
    present, absent = draw(0, covariance=2 * np.eye(DIM))
    found = gaussian_law(present, absent, SHIFT, 2.0, confidence=0.95)
    apart = present.mean(0) - absent.mean(0)
    half = SEEDS / 2 / 2.0
    tail = stats.ncx2.cdf(half * apart @ apart, DIM, half * SHIFT @ SHIFT)
    assert found.p_shift == pytest.approx(2 * min(tail, 1 - tail))
    residual = half * np.sum((apart - SHIFT) ** 2)
    assert found.p_direction == pytest.approx(stats.chi2.sf(residual, DIM))
    spread = np.sum((present - present.mean(0)) ** 2) / 2.0
    tail = stats.chi2.cdf(spread, DIM * (SEEDS - 1))
    assert found.p_variance_present == pytest.approx(2 * min(tail, 1 - tail))
    assert (found.seeds, found.confidence) == (SEEDS, 0.95)


@pytest.mark.parametrize("norm_only", [False, True])
def test_the_law_itself_is_refuted_no_more_often_than_stated(norm_only):
    shift, covariance = (0.4, 1.0) if norm_only else (SHIFT, COVARIANCE)
    found = []
    for seed in range(soak(200, 400)):
        true = np.array([0, 0.4, 0]) if norm_only else SHIFT
        pair = draw(seed, true, np.eye(DIM) if norm_only else COVARIANCE, seeds=50)
        found.append(gaussian_law(*pair, shift, covariance, confidence=0.9))
    # Bonferroni over three or four tests: a little below 10%, so nothing is wasted either.
    assert 0.03 < np.mean([test.refuted for test in found]) < 0.16
    names = ["p_shift", "p_variance_present", "p_variance_absent"]
    for name in names if norm_only else [*names, "p_direction"]:
        values = [getattr(test, name) for test in found]
        assert stats.kstest(values, "uniform").pvalue > 1e-3


@pytest.mark.parametrize(
    ("shift", "covariance", "blamed"),
    [
        (SHIFT * 2, COVARIANCE, "p_shift"),
        (SHIFT * 0, COVARIANCE, "p_shift"),
        (-SHIFT, COVARIANCE, "p_direction"),
        (SHIFT, COVARIANCE / 2, "p_variance_present"),
        (SHIFT, COVARIANCE * 1.5, "p_variance_absent"),
    ],
)
def test_every_departure_is_seen(shift, covariance, blamed):
    found = gaussian_law(*draw(1), shift, covariance, confidence=0.999)
    assert found.refuted
    assert getattr(found, blamed) < 1e-3
    assert not gaussian_law(*draw(1), SHIFT, COVARIANCE, confidence=0.999).refuted


def test_one_wrong_arm_is_enough():
    present, absent = draw(2)
    quiet = absent.mean(0) + 0.8 * (absent - absent.mean(0))
    found = gaussian_law(present, quiet, SHIFT, COVARIANCE, confidence=0.99)
    assert found.refuted
    assert found.p_variance_absent < 1e-4 < found.p_variance_present


def test_the_norm_alone_leaves_the_direction_open():
    present, absent = draw(3, covariance=np.eye(DIM))
    turned = gaussian_law(present, absent, float(np.linalg.norm(SHIFT)), 1.0, confidence=0.95)
    assert turned.p_direction == 1.0
    assert not turned.refuted


def test_vectors_are_one_dimension_and_a_number_is_then_signed():
    noise = np.random.default_rng(4).normal(size=(2, 500))
    assert not gaussian_law(noise[0] + 1, noise[1], 1.0, 1.0, confidence=0.99).refuted
    assert gaussian_law(noise[0] + 1, noise[1], -1.0, 1.0, confidence=0.99).p_direction < 1e-9
    assert not gaussian_law(noise[0], noise[1], 0.0, 1.0, confidence=0.99).refuted


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"present": np.ones((3, DIM))}, "shapes"),
        ({"present": np.ones((1, DIM)), "absent": np.ones((1, DIM))}, "seeds"),
        ({"present": np.full((SEEDS, DIM), np.inf)}, "finite"),
        ({"mean_difference": np.ones(2)}, "mean_difference"),
        ({"variance": -1.0}, "variance"),
        ({"variance": np.eye(2)}, "variance"),
        ({"variance": -np.eye(DIM)}, "definite"),
        ({"confidence": 1.0}, "confidence"),
        ({"mean_difference": 1.0}, "direction"),
        ({"mean_difference": SHIFT * 1e15}, "float64"),
    ],
)
def test_bad_input_is_refused(change, message):
    present, absent = draw(0)
    given = {
        "present": present,
        "absent": absent,
        "mean_difference": SHIFT,
        "variance": COVARIANCE,
        "confidence": 0.95,
    } | change
    with pytest.raises(InputError, match=message):
        gaussian_law(**given)


def test_very_far_arms_are_judged_by_a_normal_variable():
    """Where the series of the noncentral χ² give no number; close to them where they do."""
    for dim in (1, 3, 1000):
        values = 1e6 + dim + np.array([-6, -2, 0, 3, 6]) * np.sqrt(2 * (dim + 2e6))
        score = normal_score(values, dim, 1e6)
        law = stats.ncx2(dim, 1e6)
        np.testing.assert_allclose(stats.norm.cdf(score), law.cdf(values), rtol=1e-6)
        np.testing.assert_allclose(stats.norm.sf(score), law.sf(values), rtol=1e-6)
    present, absent = draw(5, np.zeros(DIM), np.eye(DIM))
    for far in (1e3, 1e5, 1e9):
        shift = np.array([0, far, 0])
        moved = present + shift
        # Along the shift (S/2)‖D‖² is the square of a normal variable, all but exactly.
        score = (moved.mean(0) - absent.mean(0) - shift)[1] * np.sqrt(SEEDS / 2)
        found = gaussian_law(moved, absent, far, 1.0, confidence=0.95)
        assert found.p_shift == pytest.approx(2 * stats.norm.sf(abs(score)), rel=1e-2)
        assert not found.refuted
        assert gaussian_law(moved, absent, 1.001 * far, 1.0, confidence=0.95).refuted


def test_a_p_value_that_is_not_a_number_refutes(monkeypatch):
    monkeypatch.setattr("dd_jax.audit.exact_law._p_shift", lambda *given: np.nan)
    assert gaussian_law(*draw(1), SHIFT, COVARIANCE, confidence=0.95).refuted
