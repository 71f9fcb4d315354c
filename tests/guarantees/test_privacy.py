"""Privacy bounds against golden values, the linear loss's exact law and dp_accounting."""

from dataclasses import replace

import dp_accounting
import numpy as np
import pytest
from dp_accounting import rdp
from hypothesis import given, settings
from hypothesis import strategies as st

from dd_jax.errors import CertificateRefused, InputError
from dd_jax.guarantees import adaptive, convex
from dd_jax.guarantees.convex import Descent

GOLDEN = Descent(2, 1, 1, 1, 4e-4, 100, 0.25)  # q, L, λ, β, σ², n, η
ORDERS = np.array([1.5, 2.0, 8.0, 64.0])


def magnitude(low, high):
    return st.floats(np.log10(low), np.log10(high)).map(lambda x: float(10**x))


EXTREME = {
    "order": magnitude(1e-3, 1e6).map(lambda x: 1 + x),
    "n": magnitude(1, 1e12).map(lambda x: float(round(x))),
    "kappa": magnitude(1, 1e8),
    "l2": magnitude(1e-6, 1e3),
    "lipschitz": magnitude(1e-3, 1e3),
    "noise_variance": magnitude(1e-12, 1e6),
    "share": st.floats(1e-3, 0.999),
    "num_steps": st.one_of(st.just(np.inf), magnitude(1, 1e10).map(lambda x: float(round(x)))),
}


def linear_exact(order, lipschitz, l2, noise_variance, n, step_size, num_steps, start_variance=0.0):
    """R_q of K steps on -⟨θ, x⟩, by the recurrences of mean shift and variance."""
    contraction, shift, variance = 1 - step_size * l2, 0.0, start_variance
    for _ in range(num_steps):
        shift = contraction * shift + step_size * 2 * lipschitz / n
        variance = contraction**2 * variance + 2 * step_size * noise_variance
    return order * shift**2 / (2 * variance)


def test_golden_values():
    assert convex.privacy_optimal(GOLDEN, 5) / 2 == pytest.approx(0.26968, abs=5e-6)
    assert convex.privacy_optimal(GOLDEN, np.inf) / 2 == pytest.approx(0.4375)
    assert convex.privacy_convex(GOLDEN, 5) / 2 == pytest.approx(0.4647, abs=5e-5)
    assert convex.privacy_convex(GOLDEN, np.inf) / 2 == pytest.approx(1.0)
    assert convex.privacy_lipschitz(GOLDEN, 5) / 2 == pytest.approx(0.3125)
    assert convex.privacy_paper(GOLDEN, 5) / 2 == pytest.approx(0.3125)
    assert convex.privacy_paper(GOLDEN, 50) == convex.privacy_convex(GOLDEN, 50)
    assert convex.privacy_unrelaxed(GOLDEN, np.inf) / 2 == pytest.approx(0.5 / 0.875)
    assert convex.privacy_unrelaxed(GOLDEN, 20) / 2 == pytest.approx(
        0.5 / 0.875 * (1 - np.exp(-0.875 * 0.25 * 20))
    )


def test_exact_golden_values_of_the_linear_loss_lie_below():
    fixed, paper_start = (1, 1, 4e-4, 100, 0.25), 4e-4 / 0.875
    assert linear_exact(1, *fixed, 5) == pytest.approx(0.26968, abs=5e-6)
    assert linear_exact(1, *fixed, 5, paper_start) == pytest.approx(0.2545, abs=5e-5)


def random_linear_cases(count, seed=1):
    rng = np.random.default_rng(seed)
    l2 = 10 ** rng.uniform(-4, 1, count)
    smoothness = np.where(rng.random(count) < 0.1, 0.0, l2 * 10 ** rng.uniform(-2, 4, count))
    share = np.where(rng.random(count) < 0.1, 1.0, rng.uniform(0.01, 1, count))
    return {
        "order": 1 + 10 ** rng.uniform(-1, 3, count),
        "lipschitz": 10 ** rng.uniform(-2, 2, count),
        "l2": l2,
        "noise_variance": 10 ** rng.uniform(-6, 1, count),
        "n": np.floor(10 ** rng.uniform(0, 6, count)),
        "step_size": share * 2 / (2 * l2 + smoothness),
        "smoothness": smoothness,
    }


def test_20000_linear_cases_are_ordered_and_the_optimum_is_attained():
    cases = random_linear_cases(20_000)
    steps = np.floor(10 ** np.random.default_rng(2).uniform(0, 5, 20_000))
    product = cases["step_size"].astype(np.longdouble) * cases["l2"]
    contraction = np.maximum(1 - product, 0)
    total = 1 - contraction**steps
    shift = 2 * cases["lipschitz"] / (cases["n"] * cases["l2"].astype(np.longdouble)) * total
    variance = 2 * cases["step_size"] * cases["noise_variance"]
    variance = variance * (1 - contraction ** (2 * steps)) / (1 - contraction**2)
    exact = (cases["order"] * shift**2 / (2 * variance)).astype(float)

    optimal = convex.privacy_optimal(Descent(**cases), steps)
    np.testing.assert_allclose(optimal, exact, rtol=1e-9)

    strict = cases["step_size"] < 1 / (cases["l2"] + cases["smoothness"])
    assert 5_000 < strict.sum() < 19_000
    run, steps = Descent(**{name: value[strict] for name, value in cases.items()}), steps[strict]
    unrelaxed, paper = convex.privacy_unrelaxed(run, steps), convex.privacy_paper(run, steps)
    assert np.all(optimal[strict] <= unrelaxed * (1 + 1e-9))
    assert np.all(unrelaxed <= paper * (1 + 1e-9))
    composed = convex.privacy_lipschitz(run, steps)
    np.testing.assert_array_less(optimal[strict], composed * (1 + 1e-9))


def test_all_releases_jointly_are_attained_by_the_linear_loss():
    rng = np.random.default_rng(3)
    for _ in range(100):
        requests = int(rng.integers(0, 6))
        learn, delete = int(rng.integers(1, 40)), int(rng.integers(1, 20))
        order, lipschitz, l2 = 1 + rng.exponential(2), rng.uniform(0.1, 3), rng.uniform(0.1, 2)
        noise_variance, n, step_size = rng.uniform(0.01, 1), 50, rng.uniform(0.05, 1) / l2
        contraction = 1 - step_size * l2
        times = learn + delete * np.arange(requests + 1)
        shift = 2 * lipschitz / (n * l2) * (1 - contraction**times)
        variance = 2 * step_size * noise_variance * (1 - contraction ** (2 * times))
        variance /= 1 - contraction**2
        earlier = np.minimum.outer(np.arange(requests + 1), np.arange(requests + 1))
        covariance = contraction ** np.abs(np.subtract.outer(times, times)) * variance[earlier]
        exact = order / 2 * shift @ np.linalg.solve(covariance, shift)
        run = Descent(order, lipschitz, l2, 0, noise_variance, n, step_size)
        bound = adaptive.privacy_all_releases(run, learn, delete, requests)
        assert bound == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("num_steps", [1, 7, 1000])
def test_bounds_are_zero_concentrated_as_dp_accounting_composes_them(num_steps):
    lipschitz, l2, noise_variance, n, step_size = 1.3, 0.4, 0.02, 250, 0.3
    run = Descent(ORDERS, lipschitz, l2, 0.5, noise_variance, n, step_size)
    unit = lipschitz**2 / (noise_variance * n**2)
    contraction = 1 - step_size * l2
    rate = l2 * (1 - step_size * l2 / 2)
    expected = {
        convex.privacy_convex: 4 * unit / l2 * (1 - np.exp(-l2 * step_size * num_steps / 2)),
        convex.privacy_unrelaxed: min(
            2 * unit / rate * (1 - np.exp(-rate * step_size * num_steps)),
            unit * step_size * num_steps,
        ),
        convex.privacy_optimal: unit
        * (2 - step_size * l2)
        / l2
        * (1 - contraction**num_steps)
        / (1 + contraction**num_steps),
    }
    for bound, rho in expected.items():
        np.testing.assert_allclose(bound(run, num_steps), composed(rho), rtol=1e-12)
    mine = convex.privacy_lipschitz(run, num_steps)
    np.testing.assert_allclose(mine, composed(unit * step_size * num_steps), rtol=1e-12)


def composed(rho):
    accountant = rdp.RdpAccountant(ORDERS)
    accountant.compose(dp_accounting.ZCDpEvent(rho))
    return accountant.rdp


def test_one_step_is_the_gaussian_mechanism():
    # sensitivity η·2L/n, standard deviation √(2ησ²)
    mu = 0.1 * 2 * 1.5 / 200 / np.sqrt(2 * 0.1 * 0.03)
    run = Descent([1.5, 7], 1.5, 0.7, 0, 0.03, 200, 0.1)  # of any order
    assert convex.privacy_optimal_mu(run, 1) == pytest.approx(mu, rel=1e-13)
    composed = convex.privacy_lipschitz(replace(run, order=2), [1, 9])  # of K releases, μ² = ε
    assert np.sqrt(composed) == pytest.approx([mu, 3 * mu], rel=1e-13)


def test_a_contraction_of_zero_still_has_the_privacy_value():
    # β = 0 and η = 1/λ: every step forgets everything, so each K ≥ 1 is one Gaussian mechanism.
    value = convex.privacy_optimal(Descent(2, 1, 1, 0, 0.01, 100, 1.0), [0, 1, 5, np.inf])
    np.testing.assert_allclose(value, [0, 0.02, 0.02, 0.02])


def test_adaptive_multiples():
    assert adaptive.privacy_adaptive(0.3, 0) == 0.3
    assert adaptive.privacy_adaptive(0.3, 4) == pytest.approx(1.5)


def test_records_multiply_by_their_square():
    for bound in (convex.privacy_convex, convex.privacy_unrelaxed, convex.privacy_optimal):
        assert bound(replace(GOLDEN, records=3), 5) == pytest.approx(9 * bound(GOLDEN, 5))


@pytest.mark.parametrize("num_steps", [3, 400, np.inf])
def test_calibrated_noise_meets_the_budget_and_no_more(num_steps):
    run, budgets = Descent(3, 1.7, 0.3, 2, 1.0, 1000, 0.2), 10.0 ** np.arange(-12, 4)
    bounds = [(rules.privacy, num_steps) for rules in convex.ACCOUNTANTS.values()]
    for bound, steps in [*bounds, (convex.privacy_lipschitz, 50)]:
        variance = convex.least_noise(bound, run, budgets, steps)
        reached = bound(replace(run, noise_variance=variance), steps)
        assert np.all(reached <= budgets)
        np.testing.assert_allclose(reached, budgets, rtol=1e-13)


def test_calibrated_noise_by_formula():
    run = Descent(2, 3, 0.1, 0, 123.0, 50, 0.2)  # whatever σ² it has
    unit = 2 * 9 / (0.1 * 0.5 * 2500)
    for bound, factor in (
        (convex.privacy_paper, 4),
        (convex.privacy_unrelaxed, 2 / 0.99),
        (convex.privacy_optimal, 1.98),
    ):
        assert convex.least_noise(bound, run, 0.5) == pytest.approx(factor * unit)
    variance = convex.least_noise(convex.privacy_optimal, run, 0.7**2, 20)
    mu = convex.privacy_optimal_mu(replace(run, noise_variance=variance), 20)
    assert mu == pytest.approx(0.7)


@settings(max_examples=150, deadline=None)
@given(**EXTREME)
def test_extreme_magnitudes_stay_ordered_and_monotone(
    order, n, kappa, l2, lipschitz, noise_variance, share, num_steps
):
    smoothness = l2 * (kappa - 1)
    step_size = share / (l2 + smoothness)
    base = {
        "order": order,
        "lipschitz": lipschitz,
        "l2": l2,
        "noise_variance": noise_variance,
        "n": n,
        "step_size": step_size,
        "smoothness": smoothness,
    }
    slack = 1 + 1e-12
    values = []
    for bound in (convex.privacy_optimal, convex.privacy_unrelaxed, convex.privacy_paper):
        value = bound(Descent(**base), num_steps)
        assert isinstance(value, float)
        assert 0 < value < np.inf
        values.append(value)
        assert value <= bound(Descent(**base), 2 * num_steps) * slack
        for name in ("order", "lipschitz"):
            assert value <= bound(Descent(**base | {name: 2 * base[name]}), num_steps) * slack
        for name in ("noise_variance", "n"):
            assert value >= bound(Descent(**base | {name: 2 * base[name]}), num_steps) / slack
        shorter = Descent(**base | {"step_size": 0.99 * step_size})
        wider = replace(shorter, l2=1.01 * l2)
        assert bound(shorter, num_steps) >= bound(wider, num_steps) / slack
        assert bound(Descent(**base), 0) == 0
    assert values[0] <= values[1] * slack
    assert values[1] <= values[2] * slack


def test_absurd_magnitudes_overflow_quietly():
    huge = Descent(1e6, 1e300, 1e-300, 0, 1e-300, 1, 1e-3)
    assert convex.privacy_optimal(huge, np.inf) == np.inf
    run = Descent(2, 1, 1, 0, 1, 10, 0.1)
    assert convex.privacy_lipschitz(run, np.inf) == np.inf
    assert convex.privacy_optimal(replace(run, lipschitz=0), np.inf) == 0.0
    assert convex.least_noise(convex.privacy_lipschitz, run, 1) == np.inf


def test_a_small_sensitivity_is_not_lost_before_it_meets_small_noise():
    tiny = Descent(2, 1e-170, 1e-100, 0, 1e-250, 1, 1.0)  # L²/(λσ²) = 1e10, though L² underflows
    assert convex.privacy_optimal(tiny, np.inf) == pytest.approx(4e10)
    assert convex.privacy_unrelaxed(tiny, np.inf) == pytest.approx(4e10)
    assert convex.privacy_paper(tiny, np.inf) == pytest.approx(8e10)
    assert convex.deletion_optimal(tiny, 3) == pytest.approx(4e10)
    assert convex.deletion_paper(tiny, 3) == pytest.approx(8e10)
    shorter = Descent(2, 1e-170, 0, np.inf, 1e-300, 10, 1)
    assert convex.privacy_lipschitz(shorter, 1e42) == pytest.approx(2.0)
    assert convex.least_noise(convex.privacy_optimal, tiny, 4e10) == pytest.approx(1e-250)
    # Shrunk by one factor in L and its square in the noise, a bound stays what it was.
    shrink = 10.0 ** -np.arange(0, 161, 20)
    values = convex.privacy_optimal(Descent(2, 3 * shrink, 0.1, 0, 0.2 * shrink**2, 50, 0.3), 7)
    finite = shrink**2 > 1e-300
    assert values[finite] == pytest.approx(values[0])
    assert convex.privacy_optimal(Descent(2, 1e-200, 1, 0, 1, 10, 0.1), np.inf) > 0


def test_arrays_broadcast_and_scalars_stay_floats():
    run = Descent([[2.0], [4.0]], 1, 1, 0, [0.1, 0.2, 0.3], 100, 0.2)
    value = convex.privacy_optimal(run, 5)
    assert value.shape == (2, 3)
    one = Descent(4, 1, 1, 0, 0.3, 100, 0.2)
    assert type(adaptive.privacy_all_releases(one, 5, 3, 2)) is float
    assert value[1, 2] == convex.privacy_optimal(one, 5)


def test_a_run_of_numbers_is_a_value():
    assert Descent(2, 1, 1, 0, 0.1, 100, 0.2) == Descent(2.0, 1.0, 1.0, 0.0, 0.1, 100.0, 0.2, 1.0)
    assert len({GOLDEN, replace(GOLDEN), replace(GOLDEN, n=7)}) == 2
    with pytest.raises(TypeError, match="step_size"):
        Descent(2, 1, 1, 4e-4, 100, 0.25)  # smoothness has no default


@pytest.mark.parametrize(
    "bound", [convex.privacy_convex, convex.privacy_paper, convex.privacy_unrelaxed]
)
def test_the_papers_step_condition_is_enforced(bound):
    with pytest.raises(
        CertificateRefused, match=r"not below 1/\(λ\+β\) = 0\.5, .* smaller than 0\.5"
    ):
        bound(Descent(2, 1, 1, 1, 0.1, 100, 0.5), 5)


def test_the_optimal_step_condition_is_enforced():
    long = Descent(2, 1, 1, 2, 0.1, 100, 0.6)
    for call in (
        lambda: convex.privacy_optimal(long, 5),
        lambda: convex.least_noise(convex.privacy_optimal, long, 1, 5),
        lambda: adaptive.privacy_all_releases(long, 5, 5, 2),
    ):
        with pytest.raises(
            CertificateRefused, match=r"not at most 2/\(2λ\+β\) = 0\.5, .* at most 0\.5"
        ):
            call()


@pytest.mark.parametrize("bound", [rules.privacy for rules in convex.ACCOUNTANTS.values()])
def test_a_loss_of_unknown_smoothness_has_the_composed_bound_alone(bound):
    unknown = replace(GOLDEN, smoothness=np.inf)
    assert convex.privacy_lipschitz(unknown, 5) == convex.privacy_lipschitz(GOLDEN, 5)
    with pytest.raises(CertificateRefused, match="step_size"):
        bound(unknown, 5)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"order": 1.0}, "is not a Rényi order"),
        ({"lipschitz": -1}, "lipschitz = -1 is not a number ≥ 0"),
        ({"l2": 0}, "l2 = 0.* is not a positive finite number"),
        ({"noise_variance": 0}, "noise_variance = 0 is not a positive finite number"),
        ({"n": 0.5}, "n = 0.5 is not a finite whole number"),
        ({"step_size": -0.1}, "step_size = -0.1 is not a positive finite number"),
        ({"steps": 2.5}, "steps = 2.5 is not a whole number"),
        ({"records": 0}, "records = 0 is not a finite whole number ≥ 1"),
        ({"smoothness": -1}, "smoothness = -1 is not a number ≥ 0"),
    ],
)
def test_bad_input_is_named(changed, text):
    good = {
        "order": 2,
        "lipschitz": 1,
        "l2": 1,
        "noise_variance": 0.1,
        "n": 100,
        "step_size": 0.2,
        "smoothness": 0,
    } | changed
    steps = good.pop("steps", 5)
    for bound in (convex.privacy_paper, convex.privacy_unrelaxed, convex.privacy_optimal):
        with pytest.raises(InputError, match=text):
            bound(Descent(**good), steps)
