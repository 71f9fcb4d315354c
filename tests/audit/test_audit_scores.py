"""Scores: the likelihood ratio is exact, Fisher finds the direction, nothing fails on constants."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import dd_jax as dd
from dd_jax.audit import deleted_record_loss, gaussian_likelihood_ratio, likelihood_ratio, scores
from dd_jax.errors import InputError

COVARIANCE = np.array([[1.0, 0.9, 0.0], [0.9, 1.0, 0.0], [0.0, 0.0, 4.0]])
SHIFT = np.array([0.0, 0.3, 0.0])


def draw(seed, seeds, shift=0.0, covariance=COVARIANCE):
    noise = np.random.default_rng(seed).multivariate_normal(
        np.zeros(len(covariance)), covariance, seeds
    )
    return noise + shift


def separation(score, present, absent, fit=None):
    """Difference of the mean scores of fresh samples in units of their deviation."""
    scorer = score.fit(*(fit or (present, absent)))
    high, low = scorer(present), scorer(absent)
    spread = np.sqrt((np.var(high) + np.var(low)) / 2)
    return (np.mean(high) - np.mean(low)) / spread


@pytest.mark.parametrize(
    ("first", "second"), [(COVARIANCE, None), (COVARIANCE, 2 * COVARIANCE), (2.0, COVARIANCE)]
)
def test_gaussian_likelihood_ratio_is_the_difference_of_the_log_densities(first, second):
    table = draw(0, 50)
    score = gaussian_likelihood_ratio(SHIFT, -SHIFT, first, second)
    found = score.fit(table, table)(table)
    law = stats.multivariate_normal
    expected = law(SHIFT, first).logpdf(table)
    expected -= law(-SHIFT, first if second is None else second).logpdf(table)
    np.testing.assert_allclose(found - found[0], expected - expected[0], atol=1e-9)
    assert found @ expected > 0


def test_an_indefinite_covariance_is_refused():
    with pytest.raises(InputError, match="definite"):
        gaussian_likelihood_ratio(SHIFT, SHIFT, -np.eye(3))


def test_fisher_finds_the_best_direction_whatever_the_units():
    # The optimum is √(δᵀΣ⁻¹δ) = 0.688; the mean difference alone, without Σ, reaches 0.3.
    units = np.array([1e-6, 1.0, 1e6])
    present, absent = (draw(seed, 20_000, shift) * units for seed, shift in ((2, SHIFT), (3, 0)))
    fresh = draw(4, 20_000, SHIFT) * units, draw(5, 20_000) * units
    best = np.sqrt(SHIFT @ np.linalg.solve(COVARIANCE, SHIFT))
    found = separation(scores.linear(), *fresh, fit=(present, absent))
    assert found == pytest.approx(best, abs=0.03)
    assert separation(scores.linear(1.0), *fresh, fit=(present, absent)) < 0.5


def test_fisher_works_with_as_many_coordinates_as_seeds():
    covariance, shift = np.eye(60), np.full(60, 0.4)
    fit = draw(6, 60, shift, covariance), draw(7, 60, 0, covariance)
    fresh = draw(8, 2000, shift, covariance), draw(9, 2000, 0, covariance)
    assert separation(scores.linear(), *fresh, fit=fit) > 0.6 * np.linalg.norm(shift)


def test_very_long_outputs_take_a_diagonal_covariance(monkeypatch):
    present, absent = draw(2, 5000, SHIFT), draw(3, 5000)
    monkeypatch.setattr(scores, "_MOST_COLUMNS", 2)
    assert separation(scores.linear(), present, absent) == pytest.approx(0.3, abs=0.05)


@pytest.mark.parametrize("make", ["linear", "network"])
def test_constant_outputs_are_scored(make):
    score = scores.linear() if make == "linear" else CRITIC
    constant = np.tile([0.1, 2.0, 0.0], (1000, 1))
    np.testing.assert_array_equal(score.fit(constant, constant)(constant), np.zeros(1000))
    moved = constant + np.array([0.0, 1e-4, 0.0])
    scorer = score.fit(moved, constant)
    assert scorer(moved).min() > scorer(constant).max()


@pytest.mark.parametrize("shrinkage", [0.0, 1.5, np.nan])
def test_shrinkage_out_of_range_is_refused(shrinkage):
    with pytest.raises(InputError, match="shrinkage"):
        scores.linear(shrinkage)


CRITIC = scores.network(jax.random.key(0), steps=200, width=16, batch=256)


def test_the_network_sees_what_a_line_cannot():
    wide = np.diag([9.0, 1.0, 1.0])
    arms = draw(10, 1000, 0, wide), draw(11, 1000, 0, np.eye(3))
    fresh = draw(12, 1000, 0, wide), draw(13, 1000, 0, np.eye(3))
    assert separation(CRITIC, *fresh, fit=arms) > 1.0
    assert separation(scores.linear(), *fresh, fit=arms) < 0.2
    first, second = (CRITIC.fit(*arms)(fresh[0]) for _ in range(2))
    np.testing.assert_array_equal(first, second)


# --- the deleted record's loss -------------------------------------------------------------------


def test_the_record_s_loss_is_read_from_every_release():
    loss = dd.losses.logistic()
    record = dd.Labelled(jnp.array([0.6, -0.8]), jnp.array(1.0))
    rng = np.random.default_rng(0)
    # Two releases: only the second tells, and it tells by its loss.
    present = rng.normal(size=(300, 2, 2))
    absent = rng.normal(size=(300, 2, 2))
    present[:, 1] += np.array([0.6, -0.8])
    score = deleted_record_loss(loss, record, jnp.zeros(2))
    scorer = score.fit(present.reshape(300, 4), absent.reshape(300, 4))
    values = np.log1p(np.exp(-absent[:, 1] @ np.array([0.6, -0.8])))
    found = scorer(absent.reshape(300, 4))
    assert np.corrcoef(found, values)[0, 1] < -0.9  # a small loss says "present"
    assert np.mean(scorer(present.reshape(300, 4))) > np.mean(found)


def test_models_of_several_leaves_are_put_together_again():
    template = {"bias": jnp.zeros(()), "slope": jnp.zeros(2)}
    rng = np.random.default_rng(1)
    models = {"bias": rng.normal(size=(50, 3)), "slope": rng.normal(size=(50, 3, 2))}
    table = np.concatenate([models["bias"], models["slope"].reshape(50, 6)], axis=1)

    def value(params, record):
        return params["bias"] + params["slope"] @ record

    record = jnp.array([2.0, -1.0])
    score = deleted_record_loss(value, record, template)
    losses = models["bias"] + models["slope"] @ np.array([2.0, -1.0])
    expected = scores.linear().fit(losses + 1, losses)
    moved = table.copy()
    moved[:, :3] += 1
    np.testing.assert_allclose(score.fit(moved, table)(table), expected(losses), atol=1e-4)


def test_outputs_that_are_not_whole_models_are_refused():
    score = deleted_record_loss(lambda p, r: p @ r, jnp.ones(2), jnp.zeros(2))
    with pytest.raises(InputError, match="template"):
        score.fit(np.zeros((4, 3)), np.zeros((4, 3)))


def test_outputs_that_are_not_two_releases_are_refused():
    plan = dd.plan_convex(
        dd.Problem(dd.losses.linear(), 1.0), n=20, dim=1, order=2, eps_dp=1.0, eps_dd=0.5
    )
    score = scores.float_noise(plan, lambda params: jnp.stack([params, params]))
    with pytest.raises(InputError, match="release"):
        score.fit(np.zeros((4, 3)), np.zeros((4, 3)))


@pytest.mark.parametrize(
    "bad", [lambda t: t, lambda t: t[:1, 0], lambda t: t[:, 0] * np.nan, lambda t: t[:, 0] + np.inf]
)
def test_scores_that_are_not_numbers_are_refused(bad):
    score = likelihood_ratio(bad, "mine")
    with pytest.raises(InputError, match="mine"):
        scores.evaluate(score, score.fit(SHIFT, SHIFT), np.ones((3, 2)))


def test_what_is_not_a_score_is_refused():
    assert [s.name for s in scores.score_list(None)] == ["linear"]
    for wrong in ((), "linear", [scores.linear(), 3]):
        with pytest.raises(InputError, match="scores"):
            scores.score_list(wrong)
