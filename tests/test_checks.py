"""Validators: what passes, and the exact sentence for what does not."""

import re
import subprocess
import sys

import numpy as np
import pytest

from dd_jax import checks
from dd_jax.errors import CertificateRefused, InputError
from dd_jax.guarantees import floats

REFUSALS = [
    (checks.positive, ("l2", -1), "l2 = -1 is not a positive finite number; give l2 > 0."),
    (checks.positive, ("l2", 0), "l2 = 0 is not a positive finite number; give l2 > 0."),
    (checks.positive, ("l2", np.inf), "l2 = inf is not a positive finite number; give l2 > 0."),
    (checks.positive, ("l2", [1.0, -2.0]), "l2 = -2 is not a positive finite number; give l2 > 0."),
    (checks.positive, ("l2", np.nan), "l2 = nan is not a positive finite number; give l2 > 0."),
    (checks.positive, ("l2", "x"), "l2 = 'x' is not a positive finite number; give l2 > 0."),
    (checks.nonnegative, ("eps", -0.5), "eps = -0.5 is not a number ≥ 0; give eps ≥ 0."),
    (checks.order, (1,), "order = 1 is not a Rényi order; give a finite order > 1."),
    (checks.order, (np.inf,), "order = inf is not a Rényi order; give a finite order > 1."),
    (
        checks.steps,
        ("delete_steps", 1.5),
        "delete_steps = 1.5 is not a whole number ≥ 0; give 0, 1, 2, … or numpy.inf.",
    ),
    (
        checks.steps,
        ("delete_steps", -1),
        "delete_steps = -1 is not a whole number ≥ 0; give 0, 1, 2, … or numpy.inf.",
    ),
    (checks.count, ("n", 0), "n = 0 is not a finite whole number ≥ 1; give 1, 2, 3, …."),
    (checks.count, ("n", np.inf), "n = inf is not a finite whole number ≥ 1; give 1, 2, 3, …."),
    (
        checks.probability,
        ("advantage", 1.1),
        "advantage = 1.1 is not a probability; give a number between 0 and 1.",
    ),
    (checks.delta, (0,), "delta = 0 is not in (0, 1); give for example delta=1e-5."),
    (checks.delta, (1,), "delta = 1 is not in (0, 1); give for example delta=1e-5."),
]


@pytest.mark.parametrize(("check", "arguments", "text"), REFUSALS)
def test_refusals_say_what_and_how_to_mend_it(check, arguments, text):
    with pytest.raises(InputError, match=f"^{re.escape(text)}$"):
        check(*arguments)


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


def test_plain_turns_only_scalars_into_floats():
    assert type(floats.plain(np.float64(2.0))) is float
    assert type(floats.plain(np.asarray(2.0))) is float
    assert floats.plain(np.ones(1)).shape == (1,)


def test_product_overflows_to_infinity_and_never_to_nan():
    assert floats.product(1e200, 1e200) == np.inf
    assert floats.product(np.inf, 0.0) == np.inf
    assert floats.product(2, 3.5) == 7


def test_product_neither_overflows_nor_vanishes_on_the_way():
    assert floats.product(1e-200, 1e-200, 1e300, 1e300) == pytest.approx(1e200)
    assert floats.product(1e200, 1e200, 1e-300, 1e-300) == pytest.approx(1e-200)
    assert floats.product(1e-200, 1e-200) == 5e-324  # rounded up, not to 0
    assert floats.product(0.0, 1e-200, 1e-200) == 0
    np.testing.assert_array_equal(
        floats.product([1e-200, 2.0], [[1e-200], [3.0]]), [[5e-324, 2e-200], [3e-200, 6.0]]
    )
    rng = np.random.default_rng(0)
    factors = 10 ** rng.uniform(-50, 50, (6, 1000))
    np.testing.assert_array_equal(floats.product(*factors), np.multiply.reduce(factors))


def test_step_size_below_the_papers_limit():
    assert checks.step_size_strict(0.49, 1, 1) == 0.49
    text = "step_size = 0.5 is not below 1/(λ+β) = 0.5, which this bound needs; "
    with pytest.raises(CertificateRefused, match=re.escape(text + "give a step size smaller than")):
        checks.step_size_strict(0.5, 1, 1)


def test_step_size_at_most_the_optimal_limit():
    assert checks.step_size_optimal(2 / 3, 1, 1) == 2 / 3
    text = "step_size = 0.75 is not at most 2/(2λ+β) = 0.5, which this bound needs; "
    with pytest.raises(CertificateRefused, match=re.escape(text + "give a step size of at most")):
        checks.step_size_optimal([0.5, 0.75], 1, 2)


def test_a_limit_computed_in_floating_point_is_not_beyond_itself():
    rng = np.random.default_rng(0)
    l2, smoothness = 10 ** rng.uniform(-8, 3, (2, 10_000))
    checks.step_size_optimal(2 / (2 * l2 + smoothness), l2, smoothness)
    checks.step_size_optimal(1 / (l2 * (1 + smoothness / l2 / 2)), l2, smoothness)


def test_a_step_size_beyond_the_limit_by_more_than_rounding_is_refused():
    """At 2/(2λ+β) · (1 + 1e-12) a step of the loss λ/2θ² + β/2θ² is no (1-ηλ)-Lipschitz map."""
    for excess in (1e-14, 1e-12, 1e-6, 1e-3):
        with pytest.raises(CertificateRefused, match="is not at most"):
            checks.step_size_optimal(2 / 3 * (1 + excess), 1, 1)


def test_guarantees_import_neither_jax_nor_dp_accounting():
    code = (
        "import sys, dd_jax.guarantees as g; "
        "print([m for m in ('jax', 'dp_accounting', 'scipy.stats') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
