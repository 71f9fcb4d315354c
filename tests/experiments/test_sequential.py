import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import signed

import dd_jax as dd
from dd_jax.baselines import noisy_gd_system, pnsgd
from dd_jax.data import Dataset
from experiments import sequential_rows as rows
from experiments import sequential_runs as runs
from experiments.figures import sequential
from experiments.sequential_rows import Setting

LOGISTIC = dd.losses.logistic()
CONFIG = sequential.Config(deletions=4, noise_factors=(0.01, 1.0, 10.0))
MNIST = Setting(dd.Problem(LOGISTIC, 0.012), 11_982, 784, 1.0, 1 / 11_982, 100)


def separable(n: int) -> dd.Labelled:
    """Rows on both sides of the first axis."""
    records = signed(n, 2, seed=5)
    side = jnp.where(records.label > 0, 1.0, -1.0)
    return dd.Labelled(jnp.stack([side, jnp.zeros(n)], axis=1), records.label)


DATA = Dataset("toy", separable(24), separable(10), "none")
SETTING = Setting(dd.Problem(LOGISTIC, 0.1), 24, 2, 1.0, 1 / 24, 4)


def test_noisy_gd_passes_are_its_plan_s_and_one_each_at_the_private_noise():
    assert rows.langevin_passes(MNIST, MNIST.private_noise * (1 + 1e-9), 100, "optimal") == 100
    noise = MNIST.private_noise / 10
    plan = noisy_gd_system.calibrate(
        MNIST.problem,
        n=MNIST.n,
        dim=MNIST.dim,
        epsilon=1.0,
        delta=MNIST.delta,
        epsilon_private=1.0,
        noise_variance=MNIST.private_noise,
    )
    assert plan.delete_steps == MNIST.plan(MNIST.private_noise).delete_steps == 1
    needed = rows.langevin_passes(MNIST, noise, 100, "optimal")
    assert needed == 100 * MNIST.plan(noise).delete_steps > 100


def test_a_lazy_curator_needs_a_release_that_is_private_by_itself():
    lazy = rows.ROWS[rows.LAZY].passes
    assert lazy(MNIST, MNIST.private_noise, 128) == 10
    assert lazy(MNIST, 4 * MNIST.private_noise, 128) == 10
    assert math.isinf(lazy(MNIST, 0.99 * MNIST.private_noise, 128))


def test_published_passes_at_the_authors_noise_are_of_the_size_that_they_report():
    noise = 0.03**2
    assert rows.pnsgd_passes(MNIST, noise, 128) == 100
    reported = sequential.REPORTED
    for name, found in (
        ("PNSGD, full batch", rows.pnsgd_passes(MNIST, noise, MNIST.n)),
        ("Langevin, 5 × 20", rows.langevin_passes(MNIST, noise, 5, "published")),
        ("Langevin, 20 × 5", rows.langevin_passes(MNIST, noise, 20, "published")),
        ("Perturbed-GD, Thm 28", 100 * rows.perturbed_calibration(MNIST, "published").delete_steps),
    ):
        low, high = reported[name]
        assert low / 1.5 < found < high * 1.5, name


@pytest.mark.slow
def test_every_kind_of_step_learns_and_drowns_in_noise():
    keys = jax.random.split(jax.random.key(0), 3)
    noises = [1e-6, 1e4]
    full = runs.full_batch(SETTING, DATA, noises, 30, 40, keys[0])
    mini = runs.mini_batch(SETTING, DATA, noises, 5, 10, 40, keys[1])
    for found in (full, mini):
        assert found.shape == (2, 40)
        assert (found[0] == 1).all()
        assert 0.3 < found[1].mean() < 0.7
    quiet = rows.perturbed_calibration(SETTING, "best").replace(noise_deviation=1e-3)
    assert (runs.perturbed(SETTING, DATA, quiet, 40, keys[2]) == 1).all()


def test_the_stream_really_deletes():
    stream = runs.stream(SETTING, DATA.train)
    assert np.array_equal(stream.index, np.arange(4)[:, None])
    assert not np.asarray(stream.record.features).any()


def pretend(accuracy, **passes):
    """Results in which all steps have one accuracy per noise, and all systems cost 1000 a noise."""
    results = {
        "n": np.array(10),
        "noise": np.array([1.0, 2.0, 3.0]),
        "private_noise": np.array(2.0),
    }
    for name, row in sequential.ROWS.items():
        points = 1 if row.passes is None else 3
        results[f"passes: {name}"] = np.full(points, 1000.0)
        spread = np.array([-1e-4, 1e-4])
        results[f"accuracy: {row.steps}"] = np.array(accuracy[:points])[:, None] + spread
    for name, found in passes.items():
        results[f"passes: {name}"] = np.array(found)
    return results


def named(results, name):
    return next(e for e in sequential.table(CONFIG, results) if e.name == name)


def test_table_takes_the_cheapest_noise_within_the_margin():
    results = pretend([0.9, 0.895, 0.88], **{sequential.OURS: [300.0, 200.0, 100.0]})
    entry = named(results, sequential.OURS)
    assert (entry.passes, entry.noise, entry.gradients, entry.within) == (200, 2, 2000, True)
    assert math.isclose(entry.accuracy, 0.895)
    assert entry.low < 0.895 < entry.high
    results["accuracy: mini-batch"] = np.full((3, 2), 0.5) + np.array([[0], [0.1], [0]])
    worse = named(results, "PNSGD, mini-batch")
    assert (worse.within, worse.noise) == (False, 2.0)


@pytest.mark.parametrize(
    ("theirs", "words"),
    [
        (400.0, "PNSGD, mini-batch 2× (0.900)"),
        (200.0, "PNSGD, mini-batch costs the same"),
        (4.0, "PNSGD, mini-batch costs LESS, 4 passes"),
    ],
)
def test_caption_says_who_is_cheaper(theirs, words):
    results = pretend(
        [0.9] * 3, **{sequential.OURS: [200.0] * 3, "PNSGD, mini-batch": [theirs] * 3}
    )
    text = sequential.caption(CONFIG, results)
    assert words in text
    assert "Langevin 5× (0.900)" in text
    assert ("fewest there can be" in text) == (theirs == CONFIG.deletions)


def test_caption_owns_up_to_lost_accuracy():
    results = pretend([0.9] * 3)
    results["accuracy: mini-batch"] -= 0.1
    assert "PNSGD, mini-batch is never within the margin" in sequential.caption(CONFIG, results)
    results = pretend([0.5] * 3) | {"accuracy: mini-batch": np.full((3, 2), 0.9)}
    assert "NOT within the margin" in sequential.caption(CONFIG, results)


def test_plot_draws_every_system_and_the_reported_passes_on_their_own_data_only():
    results = pretend([0.9, 0.8, 0.7])
    for config in (CONFIG, sequential.FULL):
        curves, costs = sequential.plot(config, results).axes
        single = [name for name, row in sequential.ROWS.items() if row.single]
        assert [text.get_text() for text in curves.get_legend().get_texts()] == single
        assert len(costs.patches) == len(sequential.ROWS)
        assert len(costs.lines) == (len(sequential.REPORTED) if config is sequential.FULL else 0)


def test_passes_grow_with_what_is_asked():
    made = [rows.pnsgd_passes(MNIST, noise, 128) for noise in (1e-3, 1e-9)]
    assert made[0] < made[1]
    assert (
        pnsgd.calibrate(
            MNIST.problem,
            noise_variance=1e-9,
            batch_size=128,
            learn_epochs=1,
            requests=100,
            **MNIST.claim,
        ).stream_gradients
        == made[1] * MNIST.n
    )
