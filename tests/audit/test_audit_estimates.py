"""Estimates: near the truth where their assumptions hold, and never mistaken for bounds."""

import numpy as np
import pytest

from dd_jax.audit import bounds
from dd_jax.errors import InputError
from dd_jax.guarantees import renyi


def arms(seed=0, seeds=20_000, shift=(0.6, -0.3), scale=(1.0, 1.0)):
    noise = np.random.default_rng(seed).normal(size=(2, seeds, 2))
    return noise[0] * scale + shift, noise[1]


def test_a_gaussian_fit_is_the_formula_at_the_samples_moments():
    present, absent = arms(scale=(0.8, 1.1))
    found = bounds.estimated_renyi_gaussian_fit(present, absent, order=3)
    moments = [m for arm in (present, absent) for m in (arm.mean(0), np.cov(arm.T))]
    assert found == pytest.approx(renyi.renyi_gaussian(3, *moments))
    exact = renyi.renyi_gaussian(3, [0.6, -0.3], np.diag([0.64, 1.21]), [0, 0], np.eye(2))
    assert found == pytest.approx(exact, rel=0.1)
    swapped = bounds.estimated_renyi_gaussian_fit(absent, present, order=3)
    assert abs(swapped - found) > 0.1


def test_an_estimate_is_a_plain_number_and_no_bound():
    found = bounds.estimated_renyi_gaussian_fit(*arms(seeds=50), order=2)
    assert type(found) is float


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bounds.estimated_renyi_gaussian_fit([1.0], [2.0], order=2), "shapes"),
        (
            lambda: bounds.estimated_renyi_gaussian_fit(np.eye(2), np.eye(2), order=2),
            "more seeds",
        ),
        (lambda: bounds.estimated_renyi_gaussian_fit(*arms(seeds=9), order=1), "order"),
        (lambda: bounds.estimated_renyi_gaussian_fit([1, np.nan], [1, 2], order=2), "present"),
        (lambda: bounds.estimated_renyi_gaussian_fit([1, np.inf], [1, 2], order=2), "finite"),
        (
            lambda: bounds.estimated_renyi_gaussian_fit(np.ones((4, 2)), np.ones(4), order=2),
            "shapes",
        ),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()
