"""Noisy-m-A-SGD: calibration, the exact law of one coupled step, a true history, an exact meter."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import deleting, soak
from scipy import stats
from systems import ACCELERATED, BATCH, DATABASE, DIM, PROBLEM, STEPS, N, accelerated

import dd_jax as dd
from dd_jax.baselines import noisy_m_a_sgd
from dd_jax.baselines.base import Constants
from dd_jax.errors import CertificateRefused, InputError
from dd_jax.intervals import clopper_pearson

CONSTANTS = Constants(0.1, 0.35, 2.0, 1.0, 10.0)
SEEDS = soak(200, 400)


@pytest.mark.parametrize(
    ("n", "dim", "rho", "batch", "term"),
    [(1000, 20, 0.5, 50, 0), (1000, 500, 0.05, 100, 1), (1000, 800, 1.0, 10, 2)],
)
def test_calibration_is_the_theorem(n, dim, rho, batch, term):
    made = noisy_m_a_sgd.calibrate(CONSTANTS, n=n, dim=dim, stability=rho, batch_size=batch)
    terms = (
        rho**2 * n**2 / (batch * dim),
        (0.35 * 20.0 * rho * n / (2.0 * dim**0.5)) ** 0.5,
        (n * rho / (4 * batch)) ** 2,
    )
    assert np.argmax(terms) == term
    steps = math.ceil(max(terms))
    assert made.num_steps == steps
    sigma = 8 * 2.0 * steps**0.5 / (n * rho)
    assert made.noise_deviation == pytest.approx(sigma, rel=1e-12)
    slow = 20.0 * steps**-1.5 / (2 * 4.0 / batch + dim * sigma**2) ** 0.5
    assert made.step_size == pytest.approx(min(slow, 1 / 0.7), rel=1e-12)
    # T steps, hit with probability b/n, and TV ≤ ‖Δ‖/(2σ) ≤ G/(bσ) to reject.
    expected = steps * (batch / n) * 2.0 / (batch * sigma)
    assert made.recompute_bound() == pytest.approx(min(1.0, expected), rel=1e-12)
    assert made.recompute_bound(3) == pytest.approx(min(1.0, 3 * expected), rel=1e-12)


def test_the_momentum_is_the_papers():
    now, before = jnp.array([1.0, 2.0]), jnp.array([0.0, 5.0])
    for t in range(1, 5):
        alpha = (1 - t) / (t + 2)
        point = noisy_m_a_sgd.look_ahead(jnp.asarray(t), now, before)
        np.testing.assert_allclose(point, (1 - alpha) * now + alpha * before, rtol=1e-6)
    # At t = 0 both iterates are the start.
    np.testing.assert_allclose(noisy_m_a_sgd.look_ahead(jnp.asarray(0), now, now), now, rtol=1e-6)


def test_one_coupled_step_has_exactly_the_law_of_retraining():
    """One record, one step, from 0: ξ ~ N(g, σ²) must become N(g', σ²), by rejection and mirror."""
    loss, sigma = dd.losses.linear(feature_norm=2.0), 0.7
    made = noisy_m_a_sgd.Calibration(1.0, 1, 1, 1, 1.0, 50.0, sigma)
    system = noisy_m_a_sgd.system(dd.Problem(loss, 0.1), made)
    old, new = jnp.array([[0.5, -0.2]]), jnp.array([[-0.4, 0.3]])

    def go(key):
        learn_key, delete_key = jax.random.split(key)
        state, _ = system.learn(learn_key, old)
        after, spent = deleting(system)(delete_key, old, dd.replacement([0], new), state)
        return state.model, after.model, after.history.noises[0], spent

    seeds = soak(5000, 20_000)
    keys = jax.random.split(jax.random.key(5), seeds)
    before, after, noises, spent = jax.jit(jax.vmap(go))(keys)
    # θ = -η(g + noise) with g = -x, so that the law of the model is N(x, σ²).
    for k in range(2):
        assert stats.kstest(before[:, k], "norm", (old[0, k], sigma)).pvalue > 1e-3
        assert stats.kstest(after[:, k], "norm", (new[0, k], sigma)).pvalue > 1e-3
        assert stats.kstest(noises[:, k], "norm", (0, sigma)).pvalue > 1e-3
        # Most models do not move, and those left behind alone would be told from N(x', σ²).
        assert stats.kstest(before[:, k], "norm", (new[0, k], sigma)).pvalue < 1e-9
    shift = float(np.linalg.norm(old - new))
    total_variation = 2 * stats.norm.cdf(shift / (2 * sigma)) - 1
    rejected = int(np.sum(spent.retrained))
    low, high = clopper_pearson(rejected, seeds, 0.999)
    assert low <= total_variation <= high
    moved = np.any(np.asarray(before != after), axis=1)
    np.testing.assert_array_equal(moved, np.asarray(spent.retrained, bool))
    assert np.all(np.asarray(spent.gradients) == 2)


@pytest.fixture(scope="module")
def served():
    """Histories before and after a request that replaces rows 2 and 5, with its cost."""
    system = accelerated()
    record = dd.Labelled(jnp.array([[1.0, 0.0], [0.0, 0.9]]), jnp.array([-1.0, 1.0]))
    edit = dd.replacement([2, 5], record)

    def go(key):
        learn_key, delete_key = jax.random.split(key)
        before, _ = system.learn(learn_key, DATABASE)
        after, spent = deleting(system)(delete_key, DATABASE, edit, before)
        return before, after, spent

    keys = jax.random.split(jax.random.key(0), SEEDS)
    result = jax.tree.map(np.asarray, jax.jit(jax.vmap(go))(keys))
    return edit, result


def mean_gradient(theta, database, rows):
    features, label = (np.asarray(leaf, np.float64)[rows] for leaf in database)
    pull = label / (1 + np.exp(label * (features @ theta)))
    return 0.2 * theta - pull @ features / len(rows)


def replay(batches, noises, database):
    """The iterates that these batches and noises give on this database, in float64."""
    now = before = np.zeros(DIM)
    for t, (rows, noise) in enumerate(zip(batches, noises, strict=True)):
        momentum = (t - 1) / (t + 2) if t else 0.0
        point = now + momentum * (now - before)
        move = point - ACCELERATED.step_size * (mean_gradient(point, database, rows) + noise)
        move *= min(1.0, ACCELERATED.radius / np.linalg.norm(move))
        now, before = move, now
    return now


def test_the_kept_history_is_always_a_true_one(served):
    """What is kept after a request is a run of the learner on the edited database."""
    edit, (before, after, _) = served
    edited = dd.apply_edit(DATABASE, edit)
    for states, database in ((before, DATABASE), (after, edited)):
        for seed in range(soak(20, 60)):
            history = jax.tree.map(lambda leaf, seed=seed: leaf[seed], states.history)
            assert all(len(set(rows)) == BATCH for rows in history.batches.tolist())
            model = replay(history.batches, history.noises, database)
            np.testing.assert_allclose(states.model[seed], model, atol=2e-5)
            want = mean_gradient(history.iterates[0], database, history.batches[0])
            np.testing.assert_allclose(history.gradients[0], want, atol=1e-5)


def test_the_meter_counts_what_a_request_needs(served):
    _, (before, after, spent) = served
    kinds = set()
    for seed in range(SEEDS):
        batches, noises = before.history.batches[seed], before.history.noises[seed]
        mirrored = [np.array_equal(after.history.noises[seed][t], -noises[t]) for t in range(STEPS)]
        first = mirrored.index(True) if any(mirrored) else STEPS
        compared = sum(np.isin([2, 5], rows).sum() for rows in batches[: first + 1])
        rerun = BATCH * max(STEPS - 1 - first, 0)
        assert spent.gradients[seed] == 2 * compared + rerun
        assert spent.retrained[seed] == (first == 0)
        same = np.array_equal(after.history.batches[seed][: first + 1], batches[: first + 1])
        assert same
        kinds.add(first)
    assert {0, STEPS - 1, STEPS} <= kinds


def test_full_batches_without_noise_retrain_exactly():
    quiet = dataclasses.replace(ACCELERATED, batch_size=N, noise_deviation=0.0)
    system = noisy_m_a_sgd.system(PROBLEM, quiet)
    edit = dd.deletion(PROBLEM.loss, DATABASE, [2])

    def go(key):
        keys = jax.random.split(key, 3)
        state, _ = system.learn(keys[0], DATABASE)
        after, spent = deleting(system)(keys[1], DATABASE, edit, state)
        return after.model, spent.gradients

    model, spent = jax.jit(go)(jax.random.key(1))
    every_row = np.tile(np.arange(N), (STEPS, 1))
    want = replay(every_row, np.zeros((STEPS, DIM)), dd.apply_edit(DATABASE, edit))
    np.testing.assert_allclose(model, want, atol=1e-5)
    assert spent == 2 + (STEPS - 1) * N


def test_privacy_is_claimed_for_calibrated_noise_alone():
    sizes = {"n": N, "dim": DIM, "stability": 0.5, "batch_size": BATCH}
    made = noisy_m_a_sgd.calibrate(Constants.of_problem(PROBLEM), **sizes)
    assert noisy_m_a_sgd.system(PROBLEM, made).guarantee.private.startswith("yes")
    silent = dataclasses.replace(made, noise_deviation=0.0)
    assert noisy_m_a_sgd.system(PROBLEM, silent).guarantee.private == "no"
    assert accelerated().guarantee.private == "no"
    with pytest.raises(CertificateRefused, match="another problem"):
        noisy_m_a_sgd.system(dd.Problem(dd.losses.logistic(), 0.1), made)


def test_refusals():
    arguments = {"n": 100, "dim": 3, "stability": 0.5, "batch_size": 5}
    with pytest.raises(CertificateRefused, match="stability"):
        noisy_m_a_sgd.calibrate(CONSTANTS, **arguments | {"stability": 1.5})
    with pytest.raises(InputError, match="batch_size"):
        noisy_m_a_sgd.calibrate(CONSTANTS, **arguments | {"batch_size": 101})
    with pytest.raises(CertificateRefused, match="at least 7"):
        noisy_m_a_sgd.calibrate(CONSTANTS, num_steps=6, **arguments)
    with pytest.raises(InputError, match="stability"):
        noisy_m_a_sgd.calibrate(CONSTANTS, **arguments | {"stability": 0})
    with pytest.raises(InputError, match="calibrated"):
        accelerated().learn(jax.random.key(0), jax.tree.map(lambda leaf: leaf[1:], DATABASE))


@pytest.mark.parametrize(("n", "size"), [(5, 3), (4, 4), (6, 1)])
def test_every_set_of_rows_is_drawn_alike(n, size):
    keys = jax.random.split(jax.random.key(0), 20_000)
    draw = jax.jit(jax.vmap(lambda key: noisy_m_a_sgd.draw_batch(key, n, size)))
    sets, counts = np.unique(np.sort(draw(keys), axis=1), axis=0, return_counts=True)
    assert all(len(set(rows)) == size for rows in sets.tolist())
    assert len(sets) == math.comb(n, size)
    assert stats.chisquare(counts).pvalue > 1e-4 or len(sets) == 1
