"""Clipped convex losses that are no GLM: how far a step contracts, and what that certifies."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dd_jax.errors import CertificateRefused
from dd_jax.guarantees import clipping
from dd_jax.guarantees.convex import Descent, deletion_optimal, privacy_optimal


def clipped(gradient):
    """Each row projected on the unit ball, L = 1."""
    return gradient / np.maximum(1, np.linalg.norm(gradient, axis=-1, keepdims=True))


def field(theta, curvatures, slopes):
    """The mean of clipped gradients Hθ + g of quadratic records, at each row of θ."""
    gradients = np.einsum("rij,tj->tri", curvatures, theta) + slopes
    return clipped(gradients).mean(axis=1)


def stretch(step_size, l2, first, second, curvatures, slopes):
    """How much one step stretches the distance of each pair of models, at most."""
    steps = [
        theta - step_size * (l2 * theta + field(theta, curvatures, slopes))
        for theta in (first, second)
    ]
    ratio = np.linalg.norm(steps[0] - steps[1], axis=1) / np.linalg.norm(first - second, axis=1)
    return ratio.max()


def needle(t, smoothness, outside=1e-6):
    """One record, H = βvvᵀ, whose gradient at 0 is just above the clip norm, ⟨p, v⟩ = t, p ⊥ u."""
    stiff = np.array([np.sqrt(1 - t * t), t])
    return smoothness * np.outer(stiff, stiff)[None], np.array([[1 + outside, 0.0]])


@settings(max_examples=60)
@given(
    l2=st.floats(0.05, 2.0),
    ratio=st.floats(0.0, 12.0),
    share=st.floats(0.01, 1.0),
    seed=st.integers(0, 10**6),
)
def test_no_clipped_field_is_stretched_beyond_the_constant(l2, ratio, share, seed):
    """Random records in the plane, clipped and not, near and far pairs of models."""
    chance, smoothness, step_size = np.random.default_rng(seed), ratio * l2, share / l2
    angles = chance.uniform(0, np.pi, size=3)
    axes = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    outer = np.einsum("ri,rj->rij", axes, axes)
    soft = chance.choice([0.0, 0.3, 1.0], size=(3, 1, 1))
    curvatures = smoothness * (outer + soft * (np.eye(2) - outer))
    slopes = chance.normal(size=(3, 2))
    first = chance.normal(size=(400, 2)) * 10 ** chance.uniform(-2, 2, size=(400, 1))
    second = first + chance.normal(size=(400, 2)) * 10 ** chance.uniform(-4, 1, size=(400, 1))
    found = stretch(step_size, l2, first, second, curvatures, slopes)
    constant = clipping.contraction(step_size, l2, smoothness)
    assert found <= constant + 1e-9
    # Squares of norms alone give a larger constant.
    a, b = 1 - step_size * l2, step_size * smoothness
    assert constant <= np.sqrt(a * a + a * b / 4 + b * b) * (1 + 1e-12)


@pytest.mark.parametrize(
    ("l2", "smoothness", "step_size"), [(1, 1, 0.5), (0.2, 1, 1.2), (0.1, 1, 0.3)]
)
def test_one_record_attains_the_constant_and_breaks_smaller_ones(l2, smoothness, step_size):
    a, b = 1 - step_size * l2, step_size * smoothness
    record = needle(np.sqrt(a / (4 * a - b)), smoothness)
    angles = np.linspace(0, np.pi, 2000)
    second = 1e-9 * np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    found = stretch(step_size, l2, np.zeros((1, 2)), second, *record)
    constant = clipping.contraction(step_size, l2, smoothness)
    assert found == pytest.approx(constant, rel=1e-4)
    # What a convex loss would have, and the constant with half of the curvature.
    for smaller in (a, clipping.contraction(step_size, l2, smoothness / 2)):
        assert found > smaller * 1.005


def test_the_best_step_size_contracts_most():
    for ratio in (0.0, 0.1, 1.0, 4.0, 7.9):
        best = clipping.best_step_size(2.0, 2 * ratio)
        least = clipping.contraction(best, 2.0, 2 * ratio)
        assert least == pytest.approx(3 * np.sqrt(3) * ratio / (4 + ratio) ** 1.5)
        others = clipping.contraction(np.linspace(1e-4, 0.5, 500), 2.0, 2 * ratio)
        assert least <= others.min() * (1 + 1e-12)
    assert clipping.contraction_rate(1e-9, 1.0, 4.0) == pytest.approx(1 - 4 / 8, rel=1e-6)
    # The bounds take 1 - η·rate for the c of a step.
    for step_size in (0.1, 0.5, 0.9):
        rate = clipping.contraction_rate(step_size, 1.0, 0.8)
        assert 1 - step_size * rate == pytest.approx(clipping.contraction(step_size, 1.0, 0.8))
    # Beyond b = 3a a straight record is the worst.
    assert clipping.contraction(0.9, 1.0, 1.0) == pytest.approx(0.9 - 0.1)
    assert clipping.contraction(0.5, 1.0, 3.2) == pytest.approx(1.6 - 0.5)  # just beyond
    assert clipping.contraction(1.0, 1.0, 0.0) == 0


def test_where_no_step_contracts_nothing_is_certified():
    with pytest.raises(CertificateRefused, match="l2"):
        clipping.best_step_size(1.0, 8.0)
    assert (clipping.contraction(np.linspace(1e-3, 1, 99), 1.0, 8.0) > 1).all()
    with pytest.raises(CertificateRefused, match="step_size"):
        clipping.contraction_rate(0.5, 1.0, 6.0)
    with pytest.raises(CertificateRefused, match="step_size"):
        clipping.contraction_rate(1.5, 1.0, 1.0)


def mirrored(smoothness, stiff_share):
    """A mean field that is pushed out along e, and the slope of a record along e that balances it.

    Two needles that are mirror images about e, the most negative direction of one's Jacobian; the
    other records are linear, with a gradient of at most 1 along e.
    """
    curvature, slope = needle(0.5, smoothness, outside=1e-3)
    normal, stiff = np.array([0.0, 1.0]), np.array([np.sqrt(0.75), 0.5])
    e = normal - stiff
    mirror = 2 * np.outer(e, e) - np.eye(2)
    curvatures = np.stack([curvature[0], mirror @ curvature[0] @ mirror])
    slopes = np.stack([slope[0], mirror @ slope[0]])
    pushed = stiff_share * field(np.zeros((1, 2)), curvatures, slopes)[0]
    assert np.linalg.norm(pushed) <= 1 - stiff_share  # the linear records can balance it
    near = np.eye(2) * 1e-6
    jacobian = (field(near, curvatures, slopes) - field(-near, curvatures, slopes)).T / 2e-6
    return stiff_share * jacobian, e


@pytest.mark.parametrize("steps", [0, 4])
def test_runs_on_a_field_that_pushes_outwards_stay_below_the_certificate(steps):
    """With many records the noise is small, and the law is that of the linearised field."""
    l2, smoothness, n, order, noise_variance = 0.15, 1.0, 1e6, 2.0, 2e-12
    step_size = clipping.best_step_size(l2, smoothness)
    jacobian, e = mirrored(smoothness, 0.53)
    assert e @ jacobian @ e < -0.06 * smoothness
    move = np.eye(2) - step_size * (l2 * np.eye(2) + jacobian)
    shift, covariance = np.zeros(2), np.zeros((2, 2))
    for k in range(400 + steps):
        shift = move @ shift + (step_size * 2 / n) * e * (k < 400)
        covariance = move @ covariance @ move.T + 2 * step_size * noise_variance * np.eye(2)
    exact = order / 2 * shift @ np.linalg.solve(covariance, shift)

    def certified(l2, smoothness):
        run = Descent(order, 1.0, l2, smoothness, noise_variance, n, step_size)
        return deletion_optimal(run, steps) if steps else privacy_optimal(run, np.inf)

    assert exact <= certified(clipping.contraction_rate(step_size, l2, smoothness), 0.0)
    assert exact > 1.3 * certified(l2, smoothness)  # as if clipping kept convexity
