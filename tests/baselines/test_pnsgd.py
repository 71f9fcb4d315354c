import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import deleting, signed

import dd_jax as dd
from dd_jax.baselines import pnsgd
from dd_jax.baselines.base import stored_bytes
from dd_jax.guarantees.convex import Descent

L2, N = 0.012, 11982
PROBLEM = dd.Problem(dd.losses.logistic(), l2=L2)
TARGET = {"n": N, "epsilon": 1.0, "delta": 1 / N, "learn_epochs": 30, "noise_variance": 9e-4}


def least_passes(batch_size, requests, *, radius=0.0, records=1, noise=9e-4):
    """K_s by brute force over passes and a grid of orders, straight from the formulas."""
    eta = 1 / (L2 + 0.25)
    c, batches = 1 - eta * L2, math.ceil(N / batch_size)
    orders = 1 + np.geomspace(1e-2, 1e5, 20_001)
    fresh = 2 * eta * records / batch_size / (1 - c**batches)
    distance, found = fresh + 2 * radius * c ** (30 * batches), []
    for request in range(requests):
        passes = 0
        best = math.inf
        while best > 1:
            passes += 1
            left = c ** (2 * passes * batches)
            share = 1 if request == 0 else (1 - c**2) / (1 - left)
            curve = orders * distance**2 / (2 * eta * noise) * left * share
            best = np.min(curve + math.log(N) / (orders - 1))
        found.append(passes)
        distance = distance * c ** (passes * batches) + fresh
    return tuple(found)


@pytest.mark.parametrize(
    ("batch_size", "options"),
    [
        (N, {}),
        (N, {"radius": 1 / L2, "records": 2}),
        (512, {"noise": 1e-7}),
        (100, {"noise": 1e-11, "records": 3}),
        (128, {}),
    ],
)
def test_passes_are_the_least_by_brute_force(batch_size, options):
    made = pnsgd.calibrate(
        PROBLEM,
        batch_size=batch_size,
        requests=12,
        radius=options.get("radius"),
        edits_per_request=options.get("records", 1),
        **{**TARGET, "noise_variance": options.get("noise", 9e-4)},
    )
    assert made.request_steps == least_passes(batch_size, 12, **options)


def test_the_reported_order_attains_the_claim():
    made = pnsgd.calibrate(PROBLEM, batch_size=N, requests=6, **TARGET)
    c = 1 - made.step_size * L2
    for s, (passes, distance, order) in enumerate(
        zip(made.request_steps, made.distances, made.orders, strict=True)
    ):
        eps = pnsgd.unlearning_renyi(order, distance, c, 9e-4, made.step_size, passes, sharp=s > 0)
        assert eps + math.log(N) / (order - 1) <= 1 + 1e-12
        assert eps < 0.6  # without its order's share of δ the divergence looks far too good
    assert pnsgd.guarantee(made).order == made.orders[-1]


def test_one_step_may_forget_all():
    """β = 0 and η = 1/λ: c = 0."""
    linear = dd.Problem(dd.losses.linear(), l2=0.5)
    made = pnsgd.calibrate(
        linear,
        n=6,
        epsilon=1.0,
        delta=0.1,
        noise_variance=1e-9,
        batch_size=2,
        learn_epochs=1,
        radius=2.0,
        requests=3,
    )
    assert made.request_steps == (1, 1, 1)
    assert made.distances == pytest.approx((2.0, 2.0, 2.0), rel=1e-6)


def test_an_unconverged_start_costs_passes_and_needs_a_real_radius():
    """A radius of zero would delete the term that pays for stopping early."""
    options = {"batch_size": N, **TARGET}
    converged = pnsgd.calibrate(PROBLEM, **options)
    early = pnsgd.calibrate(PROBLEM, radius=1 / L2, **options)
    assert early.request_steps[0] > 10 * converged.request_steps[0]
    gap = early.distances[0] - converged.distances[0]
    c = 1 - early.step_size * L2
    np.testing.assert_allclose(gap, 2 / L2 * c**30, rtol=1e-12)
    with pytest.raises(dd.InputError, match="radius"):
        pnsgd.calibrate(PROBLEM, radius=0.0, **options)


@given(
    l2=st.floats(0.05, 2.0),
    share=st.floats(0.05, 0.95),
    batches=st.integers(1, 5),
    place=st.integers(0, 4),
    passes=st.lists(st.integers(1, 5), min_size=1, max_size=4),
)
def test_the_claim_is_never_below_the_exact_divergence(l2, share, batches, place, passes):
    """Linear loss, converged runs over batches of 3, the same place edited at every request."""
    eta, sigma2, b, order = share / l2, 0.1, 3, 4.0
    c = 1 - eta * l2
    place = place % batches
    arrival = 2 * eta / b * c ** (batches - 1 - place)  # what one pass adds for one record
    fresh = arrival / (1 - c**batches)
    distance = 0.0
    run = Descent(order, 1.0, l2, 0.0, sigma2, b * batches, eta)
    bound = pnsgd.batch_distance(run, b)
    reach = bound
    for s, count in enumerate(passes):
        distance = (distance + fresh) * c ** (count * batches)
        exact = order * distance**2 / (2 * (2 * eta * sigma2 / (1 - c**2)))
        arguments = (order, reach, c, sigma2, eta, count * batches)
        plain = pnsgd.unlearning_renyi(*arguments, sharp=False)
        sharp = pnsgd.unlearning_renyi(*arguments, sharp=True)
        assert exact <= sharp / 2 * (1 + 1e-12)
        assert sharp <= plain * (1 + 1e-12)
        assert s > 0 or exact <= plain
        reach = reach * c ** (count * batches) + bound


def test_what_cannot_be_calibrated_is_refused():
    good = {"batch_size": 128, **TARGET}
    for change, message in (
        ({"batch_size": N + 1}, "batch_size"),
        ({"batch_size": 0}, "batch_size"),
        ({"step_size": 4.0}, "step_size"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"learn_epochs": 0}, "learn_steps"),
    ):
        with pytest.raises(dd.InputError, match=message):
            pnsgd.calibrate(PROBLEM, **{**good, **change})
    with pytest.raises(dd.InputError, match="order"):
        pnsgd.unlearning_renyi(1.0, 0.1, 0.9, 1.0, 0.5, 3, sharp=True)
    with pytest.raises(dd.InputError, match="steps"):
        pnsgd.unlearning_renyi(2.0, 0.1, 0.9, 1.0, 0.5, 0, sharp=True)


# --- runs ----------------------------------------------------------------------------------------

SMALL = dd.Problem(dd.losses.logistic(), l2=0.2)
DATABASE = signed(11, 2, seed=3)


@functools.cache
def small():
    return pnsgd.calibrate(
        SMALL,
        n=11,
        epsilon=1.0,
        delta=1e-2,
        noise_variance=0.2,
        batch_size=4,
        learn_epochs=1,
        radius=5.0,
        requests=3,
    )


def test_the_order_is_kept_and_every_request_has_its_own_passes():
    made, system = small(), pnsgd.system(SMALL, small())
    assert made.request_steps == (2, 1, 2)
    learn, delete = jax.jit(system.learn), jax.jit(deleting(system))
    state, cost = learn(jax.random.key(0), DATABASE)
    order = np.asarray(state.order)
    assert sorted(order.ravel().tolist()) == list(range(12))
    other, _ = learn(jax.random.key(1), DATABASE)
    assert not np.array_equal(order, other.order)
    assert stored_bytes(system, state) == 4 * 12 + 4
    counts = [int(cost.gradients)]
    for row in range(4):  # beyond the claim the last count is kept
        edit = dd.deletion(SMALL.loss, DATABASE, [row])
        state, cost = delete(jax.random.key(2 + row), DATABASE, edit, state)
        counts.append(int(cost.gradients))
        np.testing.assert_array_equal(state.order, order)
    assert counts == [11, 22, 11, 22, 22]
    with pytest.raises(dd.InputError, match="edits_per_request"):
        delete(jax.random.key(9), DATABASE, dd.deletion(SMALL.loss, DATABASE, [1, 2]), state)
    with pytest.raises(dd.InputError, match="n = 11"):
        system.learn(jax.random.key(0), signed(12, 2))


def test_the_start_is_the_published_one_projected(monkeypatch):
    """N(0, 2σ²/λ I), of which nearly all lies beyond a ball of radius 0.1."""
    made = dataclasses.replace(small(), radius=0.1)
    assert made.init_variance == pytest.approx(2 * 0.2 / 0.2)
    monkeypatch.setattr(pnsgd, "run", lambda key, model, *arguments, **options: model)
    state, _ = pnsgd.system(SMALL, made).learn(jax.random.key(0), DATABASE)
    assert np.linalg.norm(state.model) == pytest.approx(0.1, rel=1e-5)


def test_a_pass_is_gradient_descent_over_the_batches_in_order():
    """Without noise, by a loop of its own; empty places teach nothing but weigh nothing either."""
    order = jnp.asarray([[3, 0, 7, 11], [1, 2, 10, 4], [9, 8, 6, 5]], jnp.int32)
    model = np.array([0.3, -0.2], np.float64)
    rows, labels = (np.asarray(leaf, np.float64) for leaf in DATABASE)
    got = pnsgd.run(
        jax.random.key(0),
        jnp.asarray(model, jnp.float32),
        DATABASE,
        SMALL,
        order,
        step_size=2.0,
        noise_variance=0.0,
        epochs=2,
        radius=0.5,
    )
    for batch in [[3, 0, 7], [1, 2, 10, 4], [9, 8, 6, 5]] * 2:
        slopes = -labels[batch] / (1 + np.exp(labels[batch] * (rows[batch] @ model)))
        model = model - 2.0 * (slopes @ rows[batch] / 4 + 0.2 * model)
        model *= min(1, 0.5 / np.linalg.norm(model))
    np.testing.assert_allclose(got, model, rtol=1e-5)


def test_a_loss_without_null_record_needs_full_batches():
    problem = dd.Problem(dd.losses.squared(intercept=True), l2=0.2, clip_norm=1.0)
    made = pnsgd.calibrate(
        problem, n=11, epsilon=1.0, delta=0.1, noise_variance=1.0, batch_size=4, learn_epochs=1
    )
    with pytest.raises(dd.InputError, match="null record"):
        pnsgd.system(problem, made).learn(jax.random.key(0), DATABASE)
