"""Batches that take turns, and steps and noise that vary: exact laws, step by step."""

import numpy as np
import pytest

from dd_jax.errors import InputError
from dd_jax.oracles import gaussian, grid, linear
from dd_jax.oracles.phases import in_turn, per_phase

L2 = 0.3


def batches_of(rng, rows, dim):
    """Ridge phases of batches with these numbers of rows, and their data."""
    data = [(rng.normal(size=(b, dim)), rng.normal(size=b)) for b in rows]
    return [gaussian.ridge_phase(*part, L2, 1) for part in data], data


def test_step_k_uses_batch_k_modulo_m():
    batches = [gaussian.linear_phase(np.full((1, 1), j), 1.0, 9) for j in range(3)]
    run = in_turn(batches, 4, 5)
    assert [phase.linear_term[0] for phase in run] == [1, 2, 0, 1, 2]
    assert all(phase.steps == 1 for phase in run)
    assert in_turn(batches[:1], 4, 5) == [batches[0]._replace(steps=5)]


def test_quadratic_losses_step_by_step_on_the_rows_of_each_batch():
    rng = np.random.default_rng(0)
    batches, data = batches_of(rng, (3, 2, 4), dim := 2)
    first, count = 5, 8
    etas, noises = rng.uniform(0.05, 0.3, count), rng.uniform(0.1, 2.0, count)
    mean, covariance = np.ones(dim), 0.4 * np.eye(dim)
    run = in_turn(batches, first, count)
    law = gaussian.law_after(run, etas, noises, mean, covariance)
    for k in range(count):
        features, labels = data[(first + k) % 3]

        def gradient(model, features=features, labels=labels):
            return features.T @ (features @ model - labels) / len(labels) + L2 * model

        slope = np.stack([gradient(e) - gradient(np.zeros(dim)) for e in np.eye(dim)], axis=1)
        matrix = np.eye(dim) - etas[k] * slope
        mean = mean - etas[k] * gradient(mean)
        covariance = matrix @ covariance @ matrix.T + 2 * etas[k] * noises[k] * np.eye(dim)
    assert law.mean == pytest.approx(mean, rel=1e-12)
    assert law.covariance == pytest.approx(covariance, rel=1e-12)


def test_some_releases_jointly_are_a_part_of_all_of_them():
    rng = np.random.default_rng(1)
    batches, _ = batches_of(rng, (2, 3), 2)
    run, etas = in_turn(batches, 1, 7), rng.uniform(0.05, 0.3, 7)
    all_of_them = gaussian.joint_law(run, etas, 0.3, np.ones(2), 0.4)
    some = gaussian.joint_law(run, etas, 0.3, np.ones(2), 0.4, released=[2, 6])
    kept = np.r_[4:6, 12:14]
    assert some.mean == pytest.approx(all_of_them.mean[kept], rel=1e-13)
    assert some.covariance == pytest.approx(all_of_them.covariance[np.ix_(kept, kept)], rel=1e-12)
    last = gaussian.law_after(run, etas, 0.3, np.ones(2), 0.4)
    assert some.covariance[2:, 2:] == pytest.approx(last.covariance, rel=1e-12)


def test_densities_agree_with_the_gaussian_law():
    rng = np.random.default_rng(2)
    slopes, pulls = rng.uniform(0.3, 1.5, 3), rng.normal(0, 0.05, 3)
    etas, noises = rng.uniform(0.1, 0.3, 7), rng.uniform(2e-3, 6e-3, 7)
    parts = list(zip(slopes, pulls, strict=True))
    exact = [gaussian.Phase(np.eye(1) * h, np.array([g]), 1) for h, g in parts]
    on_line = [grid.Phase(lambda theta, h=h, g=g: h * theta - g, 1) for h, g in parts]
    where = grid.make_grid(-1.0, 1.0, 401)
    for start in (0.02, grid.gaussian_density(where, 0.02, 0.003)):
        density = grid.law_after(in_turn(on_line, 2, 7), etas, noises, start, where)
        spread = 0.003 if isinstance(start, grid.Density) else 0.0
        law = gaussian.law_after(in_turn(exact, 2, 7), etas, noises, [0.02], spread)
        mean = grid.expectation(lambda theta: theta, density)
        assert mean == pytest.approx(law.mean[0], abs=1e-12)
        square = grid.expectation(np.square, density)
        assert square - mean**2 == pytest.approx(law.covariance[0, 0], rel=1e-9)


def test_linear_loss_with_batches_and_varying_steps():
    rng = np.random.default_rng(3)
    rows, count, place = [np.array([[0.5], [0.2]]), np.array([[0.1], [-0.3], [0.4]])], 9, 1
    neighbour = [rows[0], rows[1] * [[-1], [1], [1]]]  # differs in one record of batch 1
    etas, noises = rng.uniform(0.1, 1.2, count), rng.uniform(0.1, 2.0, count)
    laws = []
    for held in (rows, neighbour):
        phases = [gaussian.linear_phase(part, L2, 1) for part in held]
        run = in_turn(phases, 0, 6) + in_turn([phases[0], phases[0]], 6, 3)
        laws.append(gaussian.law_after(run, etas, noises, [0.0], 0.2))
    gap = np.where((np.arange(count) % 2 == place) & (np.arange(count) < 6), 2 * 0.1 / 3, 0.0)
    exact = linear.renyi_of_steps(3.0, L2, gap, noises, etas, init_variance=0.2)
    assert exact == pytest.approx(gaussian.renyi(3.0, *laws), rel=1e-10)
    # Full batches and steps that are all alike are the closed form.
    present = np.arange(12) < 8
    by_steps = linear.renyi_of_steps(2.0, L2, present * 2 * 1.5 / 40, 0.1, 0.4, init_variance=0.1)
    closed = linear.renyi(2.0, 1.5, L2, 0.1, 40, 0.4, 8, delete_steps=4, init_variance=0.1)
    assert by_steps == pytest.approx(closed, rel=1e-12)


def test_numbers_of_another_length_are_refused():
    assert per_phase("noise_variance", 2.0, 3).tolist() == [2.0, 2.0, 2.0]
    phase = gaussian.linear_phase(np.ones((2, 1)), 1.0, 1)
    with pytest.raises(InputError, match="step_size"):
        gaussian.law_after([phase] * 3, [0.1, 0.2], 1.0, [0.0])
    with pytest.raises(InputError, match="noise_variance"):
        grid.law_after([grid.Phase(np.sin, 1)], 0.1, [1.0, 1.0], 0.0, grid.make_grid(-9, 9, 99))
    with pytest.raises(InputError, match="released"):
        gaussian.joint_law([phase], 0.1, 1.0, [0.0], released=[1])
