"""Peers under one accountant: the numbers by hand."""

import math

import numpy as np
import pytest

import dd_jax as dd
from dd_jax.guarantees import convex, renyi
from experiments.compare import accounts as file
from experiments.compare.accounts import NULL, OPTIMAL, PUBLISHED, REPLACED, RETRAINING, Promise

N, L2 = 11_982, 1e-3
LOGISTIC = dd.losses.logistic()
MU = renyi.gdp_from_epsilon_delta(1.0, 1 / N)
# A tenth of the divergence of one release.
TENTH = float(renyi.gdp_epsilon(MU / math.sqrt(10), 1 / N))
MNIST = Promise(dd.Problem(LOGISTIC, L2), N, 784, 1.0, TENTH, 1 / N, requests=5)


@pytest.fixture(scope="module")
def found():
    rows = file.accounts(MNIST, batch_sizes=(1199,), batches=(1, 10))
    return {(row.system, row.accountant, row.notion, row.batches): row for row in rows}


def test_noise_and_passes_of_mnist(found):
    ours = {m: found["Noisy-GD", OPTIMAL, REPLACED, m] for m in (1, 10)}
    assert [f"{row.noise:.3e}" for row in ours.values()] == ["2.902e-04", "3.380e-04"]
    assert [row.passes for row in ours.values()] == [289, pytest.approx(27.4)]
    null = [found["Noisy-GD", OPTIMAL, NULL, m].passes for m in (1, 10)]
    assert null == [115, pytest.approx(10.1)]
    # c^{2K} ≤ 1/10 with c = 1 - ηλ.
    contraction = 0.25 / 0.251
    assert math.ceil(math.log(10) / (-2 * math.log(contraction))) == 289
    for row in found.values():
        assert row.requests == pytest.approx(5 * N * row.passes)
        assert row.gradients == row.learning + row.requests
        assert row.spread == pytest.approx(row.noise / (L2 * (1 - L2 / 0.251 / 2)))


def test_equal_steps_have_equal_numbers(found):
    """By our accountant Langevin, PNSGD's full batch and Noisy-GD are one system."""
    for notion in (REPLACED, RETRAINING):
        first = found["Langevin", OPTIMAL, notion, 1]
        assert first[3:] == found["PNSGD, full batch", OPTIMAL, notion, 1][3:]
    assert first[3:6] == found["Noisy-GD", OPTIMAL, REPLACED, 1][3:6]
    replaced = found["Langevin", OPTIMAL, REPLACED, 1]
    assert replaced[3:] == found["Noisy-GD", OPTIMAL, REPLACED, 1][3:]


def test_our_accountant_never_asks_for_more_than_the_published_one(found):
    for (system, accountant, notion, batches), row in found.items():
        if accountant == PUBLISHED:
            ours = found[system, OPTIMAL, notion, batches]
            assert math.ceil(row.passes) >= ours.passes
            assert row.noise == ours.noise


def test_against_retraining_all_edits_add_up_as_a_geometric_series():
    """Full batches: (s²/ς²) (1+c)/(1-c) (Σ_j c^{Kj})², one block of the pool."""
    run, contraction = MNIST.run(1), 0.25 / 0.251
    for requests, passes in ((1, 7), (4, 30), (6, 1)):
        gap = 2 * run.step_size / N
        noise = 2 * run.step_size * run.noise_variance
        left = sum(contraction ** (passes * j) for j in range(1, requests + 1))
        expected = gap**2 / noise * (1 + contraction) / (1 - contraction) * left**2
        measured = file.retraining_mu_squared(run, passes, requests)
        # The constants allow features of norm 1 + 2⁻²¹.
        assert measured == pytest.approx(expected, rel=1e-5)
    single = convex.deletion_optimal(run, 7)
    assert file.retraining_mu_squared(run, 7, 1) == pytest.approx(single, rel=1e-9)


def test_against_retraining_in_batches_one_request_is_a_deletion():
    run = MNIST.run(10)
    for passes in (1, 3):
        bound = convex.deletion_optimal(run, 10 * passes)
        measured = file.retraining_mu_squared(run, passes, 1)
        assert measured == pytest.approx(bound, rel=1e-9)
    more = [file.retraining_mu_squared(run, 2, requests) for requests in (1, 2, 3, 20)]
    assert all(np.diff(more) > 0)
    fewest = file.retraining_passes(MNIST, run)
    target = MNIST.mu_dd**2
    assert file.retraining_mu_squared(run, fewest, 5) <= target
    assert file.retraining_mu_squared(run, fewest - 1, 5) > target


def test_the_published_full_batch_distance_by_hand(found):
    """K_1: c^{2K} ≤ slope 2ησ²/Z², Z = 2η/(n(1-c)); later ones by the sharper form."""
    run, contraction = MNIST.run(1), 0.25 / 0.251
    slope = (math.sqrt(math.log(N) + TENTH) - math.sqrt(math.log(N))) ** 2
    fresh = 2 * run.step_size / (N * (1 - contraction))
    distance, total = fresh, 0
    for request in range(5):
        ratio = slope * 2 * run.step_size * run.noise_variance / distance**2
        steps = 1
        share = 1.0
        while True:
            left = contraction ** (2 * steps)
            if request:
                share = (1 - contraction**2) / (1 - left)
            if share * left <= ratio:
                break
            steps += 1
        total += steps
        distance = distance * contraction**steps + fresh
    assert found["PNSGD, full batch", PUBLISHED, RETRAINING, 1].passes == total / 5


def test_the_table_has_a_line_for_every_row(found):
    text = file.as_text(found.values())
    assert len(text.splitlines()) == 2 + len(found)
    assert "289" in text
