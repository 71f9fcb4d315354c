"""Validators: what passes, and what is refused by its name."""

import numpy as np
import pytest

from dd_jax import checks
from dd_jax.errors import CertificateRefused, InputError


@pytest.mark.parametrize(
    ("check", "arguments"),
    [
        *((checks.positive, ("l2", bad)) for bad in (-1, 0, np.inf, np.nan, [1.0, -2.0], "x")),
        (checks.nonnegative, ("eps", -0.5)),
        (checks.steps, ("delete_steps", 1.5)),
        (checks.steps, ("delete_steps", -1)),
        (checks.count, ("n", 0)),
        (checks.count, ("n", np.inf)),
        (checks.probability, ("advantage", 1.1)),
        (checks.whole, ("row", True)),
        (checks.whole, ("row", 1.5)),
        (checks.choice, ("form", "odd", ("a", "b"))),
    ],
)
def test_a_refusal_names_the_argument(check, arguments):
    with pytest.raises(InputError, match=f"^{arguments[0]} = ") as error:
        check(*arguments)
    assert str(error.value).count("; give") == 1  # what is wrong, and the remedy


@pytest.mark.parametrize(("check", "bad"), [(checks.order, (1, np.inf)), (checks.delta, (0, 1))])
def test_ends_of_open_ranges_are_refused(check, bad):
    for value in bad:
        with pytest.raises(InputError, match=check.__name__):
            check(value)


@pytest.mark.parametrize(
    ("check", "value"),
    [
        (checks.positive, [1e-300, 1e300]),
        (checks.nonnegative, [0, np.inf]),
        (checks.steps, [0, 3, 1e12, np.inf]),
        (checks.count, [1, 10**12]),
        (checks.probability, [0, 0.5, 1]),
    ],
)
def test_accepted_values_come_back_as_float64(check, value):
    result = check("value", value)
    assert result.dtype == np.float64
    np.testing.assert_array_equal(result, value)
    assert check("value", 1).shape == ()


@pytest.mark.parametrize(
    ("check", "limit"), [(checks.step_size_strict, 1 / 3), (checks.step_size_optimal, 0.5)]
)
def test_step_size_limits(check, limit):
    """1/(λ+β), which is excluded, and 2/(2λ+β), which is not, for λ = 1 and β = 2."""
    below, above = limit * (1 - 1e-9), limit * (1 + 1e-9)
    assert check(below, 1, 2) == below
    for bad in (above, [below, above]):
        with pytest.raises(CertificateRefused, match="step_size"):
            check(bad, 1, 2)


def test_the_limit_itself():
    assert checks.step_size_optimal(0.5, 1, 2) == 0.5
    with pytest.raises(CertificateRefused, match="step_size"):
        checks.step_size_strict(0.5, 1, 1)


def test_a_limit_computed_in_floating_point_is_not_beyond_itself():
    rng = np.random.default_rng(0)
    l2, smoothness = 10 ** rng.uniform(-8, 3, (2, 10_000))
    checks.step_size_optimal(2 / (2 * l2 + smoothness), l2, smoothness)
    checks.step_size_optimal(1 / (l2 * (1 + smoothness / l2 / 2)), l2, smoothness)


def test_a_step_size_beyond_the_limit_by_more_than_rounding_is_refused():
    """At 2/(2λ+β) · (1 + 1e-12) a step on (λ/2)θ² + (β/2)θ² is not a (1-ηλ)-Lipschitz map."""
    for excess in (1e-14, 1e-12, 1e-6):
        with pytest.raises(CertificateRefused, match="step_size"):
            checks.step_size_optimal(2 / 3 * (1 + excess), 1, 1)


@pytest.mark.parametrize(
    "formula",
    [lambda x: x**2, lambda x: np.float64(x) ** 2, lambda x: np.float64(x - x) / 0.0 * x],
)
def test_a_formula_that_leaves_the_range_of_floats_is_refused(formula):
    with pytest.raises(InputError, match="range"):
        checks.representable(formula)(1e200)
    assert checks.representable(lambda x: x**2)(3.0) == 9.0
