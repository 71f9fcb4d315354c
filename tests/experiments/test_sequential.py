import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dd_jax as dd
from dd_jax import data
from dd_jax.baselines import noisy_gd_system, pnsgd
from dd_jax.data import Dataset
from dd_jax.errors import InputError
from experiments.cache import Runner
from experiments.figures import sequential
from experiments.sequential import passes, runs
from experiments.sequential.passes import Setting
from experiments.sequential.rows import (
    FORMS,
    FULL_BATCH,
    LAZY,
    LONG,
    MINI_BATCH,
    OURS,
    ROWS,
    SELDOM,
)
from experiments.sequential.table import entries

LOGISTIC = dd.losses.logistic()
CONFIG = sequential.Config(deletions=20, noise_factors=(0.01, 1.0, 10.0))
MNIST = Setting(dd.Problem(LOGISTIC, 0.012), 11_982, 784, 1.0, 1 / 11_982, 100)


def sided(side, label, length=1.0) -> dd.Labelled:
    """Rows on the first axis."""
    side = length * jnp.asarray(side, jnp.float32)
    return dd.Labelled(jnp.stack([side, jnp.zeros_like(side)], axis=1), jnp.asarray(label))


def misleading(n: int) -> dd.Labelled:
    """The first half says the opposite of the second, and louder: right only once all are gone."""
    side = jnp.where(jnp.arange(n) % 2, 1.0, -1.0)
    wrong = jnp.arange(n) < n // 2
    return sided(jnp.where(wrong, 1.0, 0.5) * side, jnp.where(wrong, -side, side))


SIDES = [1.0, -1.0] * 5
DATA = Dataset("toy", misleading(24), sided(SIDES, SIDES), "none")
SETTING = Setting(dd.Problem(LOGISTIC, 0.1), 24, 2, 1.0, 1 / 24, 12)


def test_noisy_gd_passes_by_hand_and_one_each_at_the_private_noise():
    # η = 2/(2λ+¼) leaves c = 1 - ηλ of a distance; noise 10 times smaller needs c^{2K} ≤ 1/10.
    contraction = 0.25 / 0.274
    assert 1 - MNIST.long_step * 0.012 == pytest.approx(contraction)
    assert passes.noisy_gd_passes(MNIST, MNIST.private_noise * (1 + 1e-9), 100) == 100
    steps = math.ceil(math.log(10) / (2 * -math.log(contraction)))
    assert passes.noisy_gd_passes(MNIST, MNIST.private_noise / 10, 100) == 100 * steps
    grouped = math.ceil(math.log(250) / (2 * -math.log(contraction)))
    assert passes.noisy_gd_passes(MNIST, MNIST.private_noise / 10, 20) == 20 * grouped
    plan = noisy_gd_system.calibrate(
        MNIST.problem,
        n=MNIST.n,
        dim=MNIST.dim,
        epsilon=1.0,
        delta=MNIST.delta,
        step_size=MNIST.long_step,
    )
    assert (plan.noise_variance, plan.delete_steps) == (MNIST.private_noise, 1)
    assert plan.learn_steps == MNIST.learn_steps(MNIST.private_noise, MNIST.long_step)


def test_perturbed_gd_is_calibrated_for_the_last_of_all_requests():
    made = passes.perturbed_calibration(MNIST, "published")
    # T_i = I + ⌈log log(4di/δ)/log(1/γ)⌉ at i = 100, γ = S₀/(S₀+2m).
    tail = math.log(math.log(4 * 784 * 100 * 11_982)) / math.log(0.274 / 0.25)
    assert made.delete_steps - made.noise_steps == math.ceil(tail) == 34


def test_a_lazy_curator_needs_a_release_that_is_private_by_itself():
    lazy = ROWS[LAZY].passes
    assert lazy(MNIST, MNIST.private_noise, 128) == 10
    assert lazy(MNIST, 4 * MNIST.private_noise, 128) == 10
    assert math.isinf(lazy(MNIST, 0.99 * MNIST.private_noise, 128))


def test_published_passes_at_the_authors_noise_are_of_the_size_that_they_report():
    noise = 0.03**2
    assert passes.pnsgd_passes(MNIST, noise, 128) == 100
    reported = sequential.REPORTED
    for name, found in (
        ("PNSGD, full batch", passes.pnsgd_passes(MNIST, noise, MNIST.n)),
        ("Langevin, 5 × 20", passes.langevin_passes(MNIST, noise, 5)),
        ("Langevin, 20 × 5", passes.langevin_passes(MNIST, noise, 20)),
        (
            "Perturbed-GD, Thm 28",
            100 * passes.perturbed_calibration(MNIST, "published").delete_steps,
        ),
    ):
        low, high = reported[name]
        assert low / 1.5 < found < high * 1.5, name


@pytest.mark.slow
def test_every_kind_of_step_forgets_all_that_misled_it_and_drowns_in_noise():
    keys = jax.random.split(jax.random.key(0), 3)
    noises = [1e-6, 1e4]
    steps = runs.Steps(np.full(2, SETTING.long_step), np.array(noises))
    full = runs.full_batch(SETTING, DATA, steps, 30, 40, keys[0], rows=2)
    mini = runs.mini_batch(SETTING, DATA, np.array(noises), 5, 10, 40, keys[1])
    for found in (full, mini):
        assert found.shape == (2, 40)
        assert (found[0] == 1).all()
        assert 0.3 < found[1].mean() < 0.7
    quiet = passes.perturbed_calibration(SETTING, "best").replace(noise_deviation=1e-3)
    assert (runs.perturbed(SETTING, DATA, quiet, 40, keys[2]) == 1).all()


def test_every_row_gets_the_accuracy_of_its_own_steps(monkeypatch):
    """Step size, noise and rows per pass stand in for the accuracy of runs."""

    def full(setting, data, chosen, steps, seeds, key, *, rows=1):
        assert (steps, seeds) == (max(learned), CONFIG.seeds)
        return np.stack([chosen.step_size, chosen.noise, np.full(len(chosen.noise), rows)], 1)

    def mini(setting, data, noises, batch_size, epochs, seeds, key):
        assert (batch_size, epochs, seeds) == (128, 40, CONFIG.batch_seeds)
        return np.stack([np.full(len(noises), setting.step_size), noises], 1)

    noises = SETTING.private_noise * np.array([0.1, 1.0])
    learned = [SETTING.learn_steps(noise, SETTING.step_size) for noise in noises]
    monkeypatch.setattr(runs, "full_batch", full)
    monkeypatch.setattr(runs, "mini_batch", mini)
    monkeypatch.setattr(runs, "perturbed", lambda setting, data, made, seeds, key: made)
    monkeypatch.setattr(runs, "perturbed_calibration", lambda setting, form: np.array([form]))
    found = runs.accuracies(CONFIG, SETTING, DATA, noises, lambda text: None)
    short, long = SETTING.step_size, SETTING.long_step
    np.testing.assert_allclose([short, long], [1 / 0.35, 2 / 0.45], rtol=1e-5)
    for kind, step_size, rows in ((FULL_BATCH, short, 1), (LONG, long, 1), (SELDOM, long, 10)):
        expected = [[step_size, noise, rows] for noise in noises]
        np.testing.assert_allclose(found[f"accuracy: {kind}"], expected, err_msg=kind)
    np.testing.assert_allclose(found[f"accuracy: {MINI_BATCH}"], [[short, n] for n in noises])
    assert {name: found[f"accuracy: {name}"].item() for name in FORMS} == FORMS


def test_mini_batches_learn_before_they_serve(monkeypatch):
    passes_run = []

    def run(key, model, records, problem, order, *, epochs, **numbers):
        passes_run.append(epochs)
        return model

    monkeypatch.setattr(pnsgd, "run", run)
    runs.mini_batch(SETTING, DATA, np.array([1.0]), 5, 7, 2, jax.random.key(0))
    assert passes_run[0] == 7
    assert set(passes_run[1:]) == {1}


def test_passes_are_those_of_each_calibration_at_every_noise(monkeypatch):
    monkeypatch.setattr(data, "load", lambda name: DATA)
    monkeypatch.setattr(runs, "accuracies", lambda config, setting, *rest: {"setting": setting})
    found = sequential.compute(dataclasses.replace(CONFIG, batch_size=5), Runner())
    setting = found["setting"]
    assert (setting.n, setting.dim, setting.delta, setting.deletions) == (24, 2, 1 / 24, 20)
    assert (setting.problem.l2, setting.epsilon) == (CONFIG.l2, CONFIG.epsilon)
    np.testing.assert_allclose(found["noise"], setting.private_noise * np.array([0.01, 1, 10]))
    for name, form in FORMS.items():
        steps = passes.perturbed_calibration(setting, form).delete_steps
        assert found[f"passes: {name}"].tolist() == [20 * steps]
    for name, expected in {
        "PNSGD, full batch": lambda noise: passes.pnsgd_passes(setting, noise, 24),
        "Retraining": lambda noise: 20 * setting.learn_steps(noise, setting.long_step),
        f"{OURS}, 5 × 20": lambda noise: passes.noisy_gd_passes(setting, noise, 5),
        "Langevin, 20 × 5": lambda noise: passes.langevin_passes(setting, noise, 20),
    }.items():
        assert found[f"passes: {name}"].tolist() == [expected(n) for n in found["noise"]], name


@pytest.mark.parametrize("rows", [1, 4])
def test_the_stream_really_deletes(rows):
    stream = runs.stream(SETTING, DATA.train, rows)
    assert np.array_equal(stream.index, np.arange(12).reshape(-1, rows))
    assert not np.asarray(stream.record.features).any()


def test_deletions_that_cannot_be_dealt_evenly_are_refused():
    with pytest.raises(InputError, match="deletions = 30; give a multiple of 20"):
        sequential.Config(deletions=30)


def pretend(accuracy, **passes):
    """Results in which all steps have one accuracy per noise, and all systems cost 1000 a noise."""
    results = {
        "n": np.array(10),
        "held_out": np.array(123),
        "noise": np.array([1.0, 2.0, 3.0]),
        "private_noise": np.array(2.0),
    }
    for name, row in ROWS.items():
        points = 1 if row.passes is None else 3
        results[f"passes: {name}"] = np.full(points, 1000.0)
        spread = np.array([-1e-4, 1e-4])
        results[f"accuracy: {row.steps}"] = np.array(accuracy[:points])[:, None] + spread
    for name, found in passes.items():
        results[f"passes: {name}"] = np.array(found)
    return results


def named(results, name):
    return next(e for e in entries(CONFIG.margin, results) if e.name == name)


def test_table_takes_the_cheapest_noise_within_the_margin():
    results = pretend([0.9, 0.895, 0.88], **{OURS: [300.0, 200.0, 100.0]})
    entry = named(results, OURS)
    assert (entry.passes, entry.noise, entry.gradients, entry.within) == (200, 2, 2000, True)
    assert math.isclose(entry.accuracy, 0.895)
    assert entry.low < 0.895 < entry.high
    results["accuracy: mini-batch"] = np.full((3, 2), 0.5) + np.array([[0], [0.1], [0]])
    worse = named(results, "PNSGD, mini-batch")
    assert (worse.within, worse.noise) == (False, 2.0)


@pytest.mark.parametrize(
    ("theirs", "words"),
    [
        (400.0, "PNSGD, mini-batch 2× at 0.900"),
        (200.0, "PNSGD, mini-batch costs the same"),
        (20.0, "PNSGD, mini-batch costs LESS, 20 passes"),
    ],
)
def test_caption_says_who_is_cheaper(theirs, words):
    results = pretend([0.9] * 3, **{OURS: [200.0] * 3, "PNSGD, mini-batch": [theirs] * 3})
    text = sequential.caption(CONFIG, results)
    assert words in text
    assert "Langevin 5× at 0.900" in text
    assert "Langevin, 20 × 5" not in text
    assert ("fewest that both take" in text) == (theirs == CONFIG.deletions)
    assert "on 123 held-out records" in text
    assert "undecided)" not in text


@pytest.mark.parametrize(
    ("lazy", "words"), [(10.0, "less than every other"), (1e4, "NOT less than others")]
)
def test_caption_says_whether_waiting_is_cheapest(lazy, words):
    results = pretend([0.9] * 3, **{OURS: [200.0] * 3, LAZY: [math.inf, lazy, lazy]})
    text = sequential.caption(CONFIG, results)
    assert f"{lazy:,.0f} passes at 0.900" in text
    assert words in text
    results["accuracy: mini-batch"] += 0.2
    assert "so that requests could wait" in sequential.caption(CONFIG, results)


def test_an_interval_around_the_floor_leaves_it_undecided():
    results = pretend([0.9, 0.8901, 0.88])
    results[f"passes: {OURS}"] = np.array([300.0, 200.0, 100.0])
    assert (named(results, OURS).verdict, named(results, OURS).passes) == ("yes, undecided", 200)
    assert "undecided)" in sequential.caption(CONFIG, results)
    assert sequential.tables(CONFIG, results)[0].rows[0][-1] == "yes, undecided"
    results[f"passes: {OURS}"] = np.array([100.0, 200.0, 300.0])
    assert named(results, OURS).verdict == "yes"


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
        single = [name for name, row in ROWS.items() if row.single]
        assert [text.get_text() for text in curves.get_legend().get_texts()] == single
        assert len(costs.patches) == len(ROWS)
        assert len(costs.lines) == (len(sequential.REPORTED) if config is sequential.FULL else 0)


def test_passes_grow_with_what_is_asked():
    made = [passes.pnsgd_passes(MNIST, noise, 128) for noise in (1e-3, 1e-9)]
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
