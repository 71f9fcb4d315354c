import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import signed

import dd_jax as dd
from dd_jax.baselines import noisy_fine_tuning as tuning
from dd_jax.guarantees import renyi

SETTINGS = {"model_clip": 2.0, "gradient_clip": 0.5, "step_size": 0.1}


def hidden_layer(model, record):
    """A two-layer tanh network without any certificate, as a plain pytree."""
    units = jnp.tanh(record.features @ model["inner"])
    return jax.nn.softplus(-record.label * (units @ model["outer"]))


def empty_model(database):
    return {"inner": jnp.zeros((database.features.shape[1], 3)), "outer": jnp.zeros(3)}


def blank(database):
    return dd.Labelled(jnp.zeros(database.features.shape[1]), jnp.zeros(()))


LOSS = dd.losses.custom(hidden_layer, empty_model, name="network", null_record=blank)


def network_labels(model, features):
    return jnp.sign(jnp.tanh(features @ model["inner"]) @ model["outer"])


DATABASE = signed(10, 2, seed=3)


@functools.cache
def small(**changes):
    chosen = {"epsilon": 1.0, "delta": 0.01, "l2": 0.5, "num_steps": 4, "learn_steps": 6}
    return tuning.calibrate(**{**chosen, **SETTINGS, **changes})


@given(
    l2=st.floats(0.0, 3.0),
    start=st.floats(0.1, 5.0),
    step=st.floats(0.01, 0.3),
    steps=st.integers(1, 30),
)
def test_two_adversarial_runs_attain_the_slope(l2, start, step, steps):
    """Gradients always at their clip and opposite: Gaussian laws with one covariance."""
    added = 0.7
    apart, variance = 2 * start, 0.0
    for _ in range(steps):
        apart = (1 - step * l2) * apart + 2 * step * 0.5
        variance = (1 - step * l2) ** 2 * variance + added
    slope = tuning.renyi_slope(
        added, model_clip=start, gradient_clip=0.5, step_size=step, l2=l2, num_steps=steps
    )
    assert slope == pytest.approx(apart**2 / (2 * variance), rel=1e-9)


def test_without_decay_the_variance_is_the_corrected_one():
    """σ² = (2C₀ + 2C₁ηT)² / (2 ε_R T); a 4 in place of the 2 is half the noise that is needed."""
    made = small(l2=0.0, num_steps=10)
    slope = (math.sqrt(math.log(100) + 1) - math.sqrt(math.log(100))) ** 2
    assert made.noise_variance == pytest.approx((4 + 1) ** 2 / (2 * slope * 10), rel=1e-9)
    close = tuning.renyi_slope(made.noise_variance, **SETTINGS, l2=1e-9, num_steps=10)
    assert close == pytest.approx(slope, rel=1e-5)


@pytest.mark.parametrize("accountant", ["published", "gaussian"])
def test_the_noise_is_the_least_for_the_target(accountant):
    made = small(accountant=accountant)
    slope = tuning.renyi_slope(made.noise_variance, **SETTINGS, l2=0.5, num_steps=4)

    def epsilon(slope):
        if accountant == "gaussian":
            return renyi.gdp_epsilon(math.sqrt(2 * slope), 0.01)
        return min(renyi.epsilon_simple(q, q * slope, 0.01) for q in np.geomspace(1.01, 1e3, 4000))

    assert epsilon(slope) == pytest.approx(1.0, rel=1e-5)
    assert epsilon(slope * 1.01) > 1.0 > epsilon(slope * 0.99)
    assert small(accountant="gaussian").noise_variance < small().noise_variance


def test_steps_as_published():
    def steps(**changes):
        return tuning.least_steps(**{**SETTINGS, "l2": 0.0, **changes})

    assert steps() == 40
    assert steps(l2=0.1) == 40  # 2λC₀ < C₁: the logarithm is negative
    assert steps(l2=0.5) == math.ceil(math.log(4) / 0.05) == 28
    assert steps(model_clip=1e-3) == 1
    assert small(num_steps=None).num_steps == 28


def test_what_cannot_be_calibrated_is_refused():
    for change, message in (
        ({"accountant": "zcdp"}, "accountant"),
        ({"model_clip": 0.0}, "model_clip"),
        ({"l2": 10.0}, "step_size"),
        ({"num_steps": 0}, "num_steps"),
        ({"delta": 0.0}, "delta"),
        ({"epsilon": -1.0}, "epsilon"),
    ):
        with pytest.raises(dd.InputError, match=message):
            small(**change)


def test_a_request_is_clip_then_noisy_steps_with_a_clipped_mean_gradient():
    """By a loop of its own; the regulariser stays outside the clip."""
    made = small(gradient_clip=0.05, final_steps=1)
    model = {"inner": 3.0 * jnp.ones((2, 3)), "outer": jnp.arange(3.0)}
    quiet = dataclasses.replace(made, noise_variance=0.0)
    got = tuning.fine_tune(jax.random.key(0), LOSS, quiet, model, DATABASE)

    def flat(tree):
        return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])

    slope = jax.jit(
        jax.grad(lambda m: jnp.mean(jax.vmap(hidden_layer, in_axes=(None, 0))(m, DATABASE)))
    )
    theta = flat(model) * 2.0 / np.linalg.norm(flat(model))
    for _ in range(5):
        gradient = flat(slope({"inner": jnp.asarray(theta[:6]).reshape(2, 3), "outer": theta[6:]}))
        assert np.linalg.norm(gradient) > 0.05
        gradient *= 0.05 / np.linalg.norm(gradient)
        theta = (theta - 0.1 * (gradient + 0.5 * theta)).astype(np.float32)
    np.testing.assert_allclose(flat(got), theta, rtol=1e-4)


def test_noise_is_fresh_at_every_step_and_of_the_calibrated_size():
    """A flat loss: T steps of decay and noise from a zero model, an exact Gaussian."""
    flat = dd.losses.custom(
        lambda model, record: 0.0 * jnp.sum(model) * record.label,
        lambda database: jnp.zeros(2000),
        name="flat",
    )
    made = small(num_steps=3)
    end = tuning.fine_tune(jax.random.key(3), flat, made, jnp.zeros(2000), DATABASE)
    expected = made.noise_variance * sum(0.95 ** (2 * k) for k in range(3))
    assert np.var(end) / expected == pytest.approx(1, abs=4.5 * math.sqrt(2 / 2000))


def test_training_starts_unequal_units():
    system = tuning.system(LOSS, small(), predict=network_labels)
    model, _ = system.learn(jax.random.key(0), DATABASE)
    assert np.unique(np.asarray(model["outer"])).size == 3
