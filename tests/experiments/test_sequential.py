import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from shown import shown

import dd_jax as dd
from dd_jax import data
from dd_jax.baselines import noisy_gd_system, pnsgd
from dd_jax.data import Dataset
from dd_jax.errors import InputError
from experiments.cache import Runner
from experiments.compare import sequential as streams
from experiments.compare.sequential import (
    FORMS,
    FULL_BATCH,
    LAZY,
    LONG,
    MINI_BATCH,
    OURS,
    SELDOM,
    SYSTEMS,
    NoisySteps,
    Stream,
    choose,
)
from experiments.figures import sequential

LOGISTIC = dd.losses.logistic()
CONFIG = sequential.Config(deletions=20, noise_factors=(0.01, 1.0, 10.0))
MNIST = Stream(dd.Problem(LOGISTIC, 0.012), 11_982, 784, 1.0, 1 / 11_982, 100)


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
DATA = Dataset("toy", misleading(24), sided(SIDES, SIDES), "none", ("-1", "1"))
STREAM = Stream(dd.Problem(LOGISTIC, 0.1), 24, 2, 1.0, 1 / 24, 12)


def test_noisy_gd_passes_by_hand_and_one_each_at_the_private_noise():
    # η = 2/(2λ+¼) leaves c = 1 - ηλ of a distance; noise 10 times smaller needs c^{2K} ≤ 1/10.
    contraction = 0.25 / 0.274
    assert 1 - MNIST.long_step * 0.012 == pytest.approx(contraction)
    assert streams.noisy_gd_passes(MNIST, MNIST.private_noise * (1 + 1e-9), 100) == 100
    steps = math.ceil(math.log(10) / (2 * -math.log(contraction)))
    assert streams.noisy_gd_passes(MNIST, MNIST.private_noise / 10, 100) == 100 * steps
    grouped = math.ceil(math.log(250) / (2 * -math.log(contraction)))
    assert streams.noisy_gd_passes(MNIST, MNIST.private_noise / 10, 20) == 20 * grouped
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
    made = streams.perturbed_calibration(MNIST, "published")
    # T_i = I + ⌈log log(4di/δ)/log(1/γ)⌉ at i = 100, γ = S₀/(S₀+2m).
    tail = math.log(math.log(4 * 784 * 100 * 11_982)) / math.log(0.274 / 0.25)
    assert made.delete_steps - made.noise_steps == math.ceil(tail) == 34


def test_a_lazy_curator_needs_a_release_that_is_private_by_itself():
    lazy = SYSTEMS[LAZY].passes
    assert lazy(MNIST, MNIST.private_noise) == 10
    assert lazy(MNIST, 4 * MNIST.private_noise) == 10
    assert math.isinf(lazy(MNIST, 0.99 * MNIST.private_noise))


def test_published_passes_at_the_authors_noise_are_of_the_size_that_they_report():
    noise = 0.03**2
    assert streams.pnsgd_passes(MNIST, noise, 128) == 100
    reported = sequential.REPORTED
    for name, found in (
        ("PNSGD, full batch", streams.pnsgd_passes(MNIST, noise, MNIST.n)),
        ("Langevin, 5 × 20", streams.langevin_passes(MNIST, noise, 5)),
        ("Langevin, 20 × 5", streams.langevin_passes(MNIST, noise, 20)),
        (
            "Perturbed-GD, Thm 28",
            100 * streams.perturbed_calibration(MNIST, "published").delete_steps,
        ),
    ):
        low, high = reported[name]
        assert low / 1.5 < found < high * 1.5, name


@pytest.mark.slow
def test_every_kind_of_step_forgets_all_that_misled_it_and_drowns_in_noise():
    keys = jax.random.split(jax.random.key(0), 3)
    noises = [1e-6, 1e4]
    steps = NoisySteps(np.full(2, STREAM.long_step), np.array(noises))
    full = streams.full_batch(keys[0], STREAM, DATA, steps, learn_steps=30, seeds=40, rows=2)
    mini = streams.mini_batch(
        keys[1], STREAM._replace(batch_size=5), DATA, np.array(noises), epochs=10, seeds=40
    )
    for found in (full, mini):
        assert found.shape == (2, 40)
        assert (found[0] == 1).all()
        assert 0.3 < found[1].mean() < 0.7
    quiet = streams.perturbed_calibration(STREAM, "best").replace(noise_deviation=1e-3)
    assert (streams.perturbed(keys[2], STREAM, DATA, quiet, 40) == 1).all()


def test_every_row_gets_the_accuracy_of_its_own_steps(monkeypatch):
    """Step size, noise and rows per pass stand in for the accuracy of streams."""

    def full(key, stream, data, steps, *, learn_steps, seeds, rows=1):
        assert (learn_steps, seeds) == (max(learned), 64)
        return np.stack([steps.step_size, steps.noise, np.full(len(steps.noise), rows)], 1)

    def mini(key, stream, data, noises, *, epochs, seeds):
        assert (stream.batch_size, epochs, seeds) == (128, 40, 32)
        return np.stack([np.full(len(noises), stream.step_size), noises], 1)

    noises = STREAM.private_noise * np.array([0.1, 1.0])
    learned = [STREAM.learn_steps(noise, STREAM.step_size) for noise in noises]
    monkeypatch.setattr(streams, "full_batch", full)
    monkeypatch.setattr(streams, "mini_batch", mini)
    monkeypatch.setattr(streams, "perturbed", lambda key, stream, data, made, seeds: made)
    monkeypatch.setattr(streams, "perturbed_calibration", lambda stream, form: np.array([form]))
    found = streams.accuracies(
        jax.random.key(0),
        STREAM,
        DATA,
        noises,
        seeds=64,
        batch_epochs=40,
        batch_seeds=32,
        say=lambda text: None,
    )
    short, long = STREAM.step_size, STREAM.long_step
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
    streams.mini_batch(jax.random.key(0), STREAM, DATA, np.array([1.0]), epochs=7, seeds=2)
    assert passes_run[0] == 7
    assert set(passes_run[1:]) == {1}


def test_passes_are_those_of_each_calibration_at_every_noise(monkeypatch):
    monkeypatch.setattr(data, "load", lambda name: DATA)
    monkeypatch.setattr(
        sequential, "accuracies", lambda key, stream, *rest, **options: {"stream": stream}
    )
    found = sequential.compute(dataclasses.replace(CONFIG, batch_size=5), Runner())
    stream = found["stream"]
    assert (stream.n, stream.dim, stream.delta, stream.deletions) == (24, 2, 1 / 24, 20)
    assert (stream.problem.l2, stream.epsilon) == (CONFIG.l2, CONFIG.epsilon)
    np.testing.assert_allclose(found["noise"], stream.private_noise * np.array([0.01, 1, 10]))
    for name, form in FORMS.items():
        steps = streams.perturbed_calibration(stream, form).delete_steps
        assert found[f"passes: {name}"].tolist() == [20 * steps]
    for name, expected in {
        "PNSGD, full batch": lambda noise: streams.pnsgd_passes(stream, noise, 24),
        "Retraining": lambda noise: 20 * stream.learn_steps(noise, stream.long_step),
        f"{OURS}, 5 × 20": lambda noise: streams.noisy_gd_passes(stream, noise, 5),
        "Langevin, 20 × 5": lambda noise: streams.langevin_passes(stream, noise, 20),
    }.items():
        assert found[f"passes: {name}"].tolist() == [expected(n) for n in found["noise"]], name


@pytest.mark.parametrize("rows", [1, 4])
def test_the_stream_really_deletes(rows):
    edits = streams.stream_edits(STREAM, DATA.train, rows)
    assert np.array_equal(edits.index, np.arange(12).reshape(-1, rows))
    assert not np.asarray(edits.record.features).any()


def test_deletions_that_cannot_be_dealt_evenly_are_refused():
    with pytest.raises(InputError, match="deletions"):
        sequential.Config(deletions=30)


def pretend(accuracy, **passes):
    """Results in which all steps have one accuracy per noise, and all systems cost 1000 a noise."""
    results = {
        "n": np.array(10),
        "held_out": np.array(123),
        "noise": np.array([1.0, 2.0, 3.0]),
        "private_noise": np.array(2.0),
    }
    for name, system in SYSTEMS.items():
        points = 1 if system.passes is None else 3
        results[f"passes: {name}"] = np.full(points, 1000.0)
        spread = np.array([-1e-4, 1e-4])
        results[f"accuracy: {system.steps}"] = np.array(accuracy[:points])[:, None] + spread
    for name, found in passes.items():
        results[f"passes: {name}"] = np.array(found)
    return results


def named(results, name):
    return next(e for e in choose(CONFIG.margin, results) if e.name == name)


def test_the_cheapest_noise_within_the_margin_is_chosen():
    results = pretend([0.9, 0.895, 0.88], **{OURS: [300.0, 200.0, 100.0]})
    entry = named(results, OURS)
    assert (entry.passes, entry.noise, entry.gradients, entry.within) == (200, 2, 2000, True)
    assert math.isclose(entry.accuracy, 0.895)
    assert entry.low < 0.895 < entry.high
    # Where no noise is within the margin, the most accurate one.
    results["accuracy: mini-batch"] = np.full((3, 2), 0.5) + np.array([[0], [0.1], [0]])
    worse = named(results, "PNSGD, mini-batch")
    assert (worse.within, worse.noise) == (False, 2.0)
    # Waiting needs a noise that makes every release private.
    results = pretend([0.9] * 3, **{LAZY: [math.inf, 10.0, 10.0]})
    assert (named(results, LAZY).passes, named(results, LAZY).noise) == (10, 2)


def test_an_interval_around_the_floor_leaves_it_undecided():
    results = pretend([0.9, 0.8901, 0.88], **{OURS: [300.0, 200.0, 100.0]})
    assert (named(results, OURS).verdict, named(results, OURS).passes) == ("yes, undecided", 200)
    results[f"passes: {OURS}"] = np.array([100.0, 200.0, 300.0])
    assert named(results, OURS).verdict == "yes"


def test_the_table_compares_every_system_with_noisy_gd():
    results = pretend([0.9] * 3, **{OURS: [200.0] * 3, "PNSGD, mini-batch": [20.0] * 3})
    results["accuracy: mini-batch"] -= 0.1
    (rows,) = shown(sequential, CONFIG, results)
    rows = {row["system"]: row for row in rows}
    assert list(rows) == list(SYSTEMS)
    ratios = {OURS: 1, "PNSGD, mini-batch": 0.1, "Langevin": 5}
    assert {name: rows[name]["× Noisy-GD"] for name in ratios} == ratios
    assert rows["PNSGD, mini-batch"]["within the margin"] == "no"
    assert rows[OURS]["within the margin"] == "yes"
    # What the authors report is drawn beside their own data only.
    for config, count in ((CONFIG, 0), (sequential.FULL, len(sequential.REPORTED))):
        _, costs = sequential.plot(config, results).axes
        assert len(costs.lines) == len(SYSTEMS) + count
