"""Privacy bounds against golden values, the linear loss's exact law and dp_accounting."""

import dp_accounting
import numpy as np
import pytest
from dp_accounting import rdp
from hypothesis import given, settings
from hypothesis import strategies as st

from dd_jax.errors import CertificateRefused, InputError
from dd_jax.guarantees import deletion, privacy

GOLDEN = (1, 1, 4e-4, 100, 0.25)  # L, λ, σ², n, η; β = 1
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
    assert privacy.privacy_optimal(2, *GOLDEN, 5, smoothness=1) / 2 == pytest.approx(
        0.26968, abs=5e-6
    )
    assert privacy.privacy_optimal(2, *GOLDEN, np.inf, smoothness=1) / 2 == pytest.approx(0.4375)
    assert privacy.privacy_convex(2, *GOLDEN, 5, smoothness=1) / 2 == pytest.approx(
        0.4647, abs=5e-5
    )
    assert privacy.privacy_convex(2, *GOLDEN, np.inf, smoothness=1) / 2 == pytest.approx(1.0)
    assert privacy.privacy_lipschitz(2, 1, 4e-4, 100, 0.25, 5) / 2 == pytest.approx(0.3125)
    assert privacy.privacy_paper(2, *GOLDEN, 5, smoothness=1) / 2 == pytest.approx(0.3125)
    assert privacy.privacy_paper(2, *GOLDEN, 50, smoothness=1) == privacy.privacy_convex(
        2, *GOLDEN, 50, smoothness=0
    )
    assert privacy.privacy_unrelaxed(2, *GOLDEN, np.inf, smoothness=0) / 2 == pytest.approx(
        0.5 / 0.875
    )
    assert privacy.privacy_unrelaxed(2, *GOLDEN, 20, smoothness=0) / 2 == pytest.approx(
        0.5 / 0.875 * (1 - np.exp(-0.875 * 0.25 * 20))
    )


def test_exact_golden_values_of_the_linear_loss_lie_below():
    paper_start = 4e-4 / 0.875
    assert linear_exact(1, *GOLDEN, 5) == pytest.approx(0.26968, abs=5e-6)
    assert linear_exact(1, *GOLDEN, 5, paper_start) == pytest.approx(0.2545, abs=5e-5)


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
    cases["num_steps"] = np.floor(10 ** np.random.default_rng(2).uniform(0, 5, 20_000))
    product = cases["step_size"].astype(np.longdouble) * cases["l2"]
    contraction = np.maximum(1 - product, 0)
    total = 1 - contraction ** cases["num_steps"]
    shift = 2 * cases["lipschitz"] / (cases["n"] * cases["l2"].astype(np.longdouble)) * total
    variance = 2 * cases["step_size"] * cases["noise_variance"]
    variance = variance * (1 - contraction ** (2 * cases["num_steps"])) / (1 - contraction**2)
    exact = (cases["order"] * shift**2 / (2 * variance)).astype(float)

    optimal = privacy.privacy_optimal(**cases)
    np.testing.assert_allclose(optimal, exact, rtol=1e-9)

    strict = cases["step_size"] < 1 / (cases["l2"] + cases["smoothness"])
    assert 5_000 < strict.sum() < 19_000
    cases = {name: value[strict] for name, value in cases.items()}
    unrelaxed, paper = privacy.privacy_unrelaxed(**cases), privacy.privacy_paper(**cases)
    assert np.all(optimal[strict] <= unrelaxed * (1 + 1e-9))
    assert np.all(unrelaxed <= paper * (1 + 1e-9))
    np.testing.assert_array_less(
        optimal[strict],
        privacy.privacy_lipschitz(
            **{k: v for k, v in cases.items() if k not in ("l2", "smoothness")}
        )
        * (1 + 1e-9),
    )


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
        bound = privacy.privacy_all_releases(
            order,
            lipschitz,
            l2,
            noise_variance,
            n,
            step_size,
            learn,
            delete,
            requests,
            smoothness=0,
        )
        assert bound == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("num_steps", [1, 7, 1000])
def test_bounds_are_zero_concentrated_as_dp_accounting_composes_them(num_steps):
    lipschitz, l2, noise_variance, n, step_size = 1.3, 0.4, 0.02, 250, 0.3
    unit = lipschitz**2 / (noise_variance * n**2)
    contraction = 1 - step_size * l2
    rate = l2 * (1 - step_size * l2 / 2)
    expected = {
        privacy.privacy_convex: 4 * unit / l2 * (1 - np.exp(-l2 * step_size * num_steps / 2)),
        privacy.privacy_unrelaxed: min(
            2 * unit / rate * (1 - np.exp(-rate * step_size * num_steps)),
            unit * step_size * num_steps,
        ),
        privacy.privacy_optimal: unit
        * (2 - step_size * l2)
        / l2
        * (1 - contraction**num_steps)
        / (1 + contraction**num_steps),
    }
    for bound, rho in expected.items():
        mine = bound(ORDERS, lipschitz, l2, noise_variance, n, step_size, num_steps, smoothness=0.5)
        np.testing.assert_allclose(mine, composed(rho), rtol=1e-12)
    mine = privacy.privacy_lipschitz(ORDERS, lipschitz, noise_variance, n, step_size, num_steps)
    np.testing.assert_allclose(mine, composed(unit * step_size * num_steps), rtol=1e-12)


def composed(rho):
    accountant = rdp.RdpAccountant(ORDERS)
    accountant.compose(dp_accounting.ZCDpEvent(rho))
    return accountant.rdp


def test_one_step_is_the_gaussian_mechanism():
    # sensitivity η·2L/n, standard deviation √(2ησ²)
    mu = 0.1 * 2 * 1.5 / 200 / np.sqrt(2 * 0.1 * 0.03)
    assert privacy.privacy_optimal_mu(1.5, 0.7, 0.03, 200, 0.1, 1, smoothness=0) == pytest.approx(
        mu, rel=1e-13
    )
    assert privacy.privacy_lipschitz_mu(1.5, 0.03, 200, 0.1, 1) == pytest.approx(mu, rel=1e-13)
    assert privacy.privacy_lipschitz_mu(1.5, 0.03, 200, 0.1, 9) == pytest.approx(3 * mu, rel=1e-13)


def test_a_contraction_of_zero_still_has_the_privacy_value():
    # β = 0 and η = 1/λ: every step forgets everything, so each K ≥ 1 is one Gaussian mechanism.
    value = privacy.privacy_optimal(2, 1, 1, 0.01, 100, 1.0, [0, 1, 5, np.inf], smoothness=0)
    np.testing.assert_allclose(value, [0, 0.02, 0.02, 0.02])


def test_adaptive_multiples():
    assert privacy.privacy_adaptive(0.3, 0) == 0.3
    assert privacy.privacy_adaptive(0.3, 4) == pytest.approx(1.5)
    assert privacy.privacy_adaptive_mu(0.3, 3) == pytest.approx(0.6)


def test_records_multiply_by_their_square():
    for bound in (privacy.privacy_convex, privacy.privacy_unrelaxed, privacy.privacy_optimal):
        one = bound(2, *GOLDEN, 5, smoothness=0)
        assert bound(2, *GOLDEN, 5, records=3, smoothness=0) == pytest.approx(9 * one)


@pytest.mark.parametrize("num_steps", [3, 400, np.inf])
def test_calibrated_noise_meets_the_budget_and_no_more(num_steps):
    pairs = [
        (privacy.noise_variance_paper, privacy.privacy_paper),
        (privacy.noise_variance_unrelaxed, privacy.privacy_unrelaxed),
        (privacy.noise_variance_optimal, privacy.privacy_optimal),
    ]
    budgets = 10.0 ** np.arange(-12, 4)
    for noise, bound in pairs:
        variance = noise(3, budgets, 1.7, 0.3, 1000, 0.2, num_steps, smoothness=2)
        reached = bound(3, 1.7, 0.3, variance, 1000, 0.2, num_steps, smoothness=2)
        assert np.all(reached <= budgets)
        np.testing.assert_allclose(reached, budgets, rtol=1e-13)
    variance = privacy.noise_variance_lipschitz(3, budgets, 1.7, 1000, 0.2, 50)
    reached = privacy.privacy_lipschitz(3, 1.7, variance, 1000, 0.2, 50)
    assert np.all(reached <= budgets)
    np.testing.assert_allclose(reached, budgets, rtol=1e-13)


def test_calibrated_noise_by_formula():
    assert privacy.noise_variance_paper(2, 0.5, 3, 0.1, 50, 0.2, smoothness=0) == pytest.approx(
        4 * 2 * 9 / (0.1 * 0.5 * 2500)
    )
    assert privacy.noise_variance_unrelaxed(2, 0.5, 3, 0.1, 50, 0.2, smoothness=0) == pytest.approx(
        2 * 2 * 9 / (0.1 * 0.99 * 0.5 * 2500)
    )
    assert privacy.noise_variance_optimal(2, 0.5, 3, 0.1, 50, 0.2, smoothness=0) == pytest.approx(
        2 * 9 * 1.98 / (0.1 * 0.5 * 2500)
    )
    assert privacy.noise_variance_optimal_mu(0.7, 3, 0.1, 50, 0.2, smoothness=0) == pytest.approx(
        2 * 9 * 1.98 / (0.1 * 0.49 * 2500)
    )
    variance = privacy.noise_variance_optimal_mu(0.7, 3, 0.1, 50, 0.2, 20, smoothness=0)
    assert privacy.privacy_optimal_mu(3, 0.1, variance, 50, 0.2, 20, smoothness=0) == pytest.approx(
        0.7
    )


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
        "num_steps": num_steps,
        "smoothness": smoothness,
    }
    slack = 1 + 1e-12
    values = []
    for bound in (privacy.privacy_optimal, privacy.privacy_unrelaxed, privacy.privacy_paper):
        value = bound(**base)
        assert isinstance(value, float)
        assert 0 < value < np.inf
        values.append(value)
        for name in ("order", "lipschitz", "num_steps"):
            assert value <= bound(**base | {name: 2 * base[name]}) * slack
        for name in ("noise_variance", "n"):
            assert value >= bound(**base | {name: 2 * base[name]}) / slack
        wider = base | {"l2": 1.01 * l2, "step_size": 0.99 * step_size}
        assert bound(**base | {"step_size": 0.99 * step_size}) >= bound(**wider) / slack
        assert bound(**base | {"num_steps": 0}) == 0
    assert values[0] <= values[1] * slack
    assert values[1] <= values[2] * slack


def test_absurd_magnitudes_overflow_quietly():
    assert (
        privacy.privacy_optimal(1e6, 1e300, 1e-300, 1e-300, 1, 1e-3, np.inf, smoothness=0) == np.inf
    )
    assert privacy.privacy_lipschitz(2, 1, 1, 10, 0.1, np.inf) == np.inf
    assert privacy.privacy_optimal(2, 0, 1, 1, 10, 0.1, np.inf, smoothness=0) == 0.0
    assert privacy.noise_variance_lipschitz(2, 1, 1, 10, 0.1, np.inf) == np.inf


def test_a_small_sensitivity_is_not_lost_before_it_meets_small_noise():
    tiny = (2, 1e-170, 1e-100, 1e-250, 1, 1.0)  # L²/(λσ²) = 1e10, though L² underflows
    assert privacy.privacy_optimal(*tiny, np.inf, smoothness=0) == pytest.approx(4e10)
    assert privacy.privacy_unrelaxed(*tiny, np.inf, smoothness=0) == pytest.approx(4e10)
    assert privacy.privacy_paper(*tiny, np.inf, smoothness=0) == pytest.approx(8e10)
    assert deletion.deletion_optimal(*tiny, 3, smoothness=0) == pytest.approx(4e10)
    assert deletion.deletion_paper(*tiny, 3, smoothness=0) == pytest.approx(8e10)
    assert privacy.privacy_lipschitz(2, 1e-170, 1e-300, 10, 1, 1e42) == pytest.approx(2.0)
    assert privacy.noise_variance_optimal(
        2, 4e10, 1e-170, 1e-100, 1, 1.0, smoothness=0
    ) == pytest.approx(1e-250)
    # Shrunk by one factor in L and its square in the noise, a bound stays what it was.
    shrink = 10.0 ** -np.arange(0, 161, 20)
    values = privacy.privacy_optimal(2, 3 * shrink, 0.1, 0.2 * shrink**2, 50, 0.3, 7, smoothness=0)
    finite = shrink**2 > 1e-300
    assert values[finite] == pytest.approx(values[0])
    assert privacy.privacy_optimal(2, 1e-200, 1, 1, 10, 0.1, np.inf, smoothness=0) > 0


def test_arrays_broadcast_and_scalars_stay_floats():
    value = privacy.privacy_optimal(
        [[2.0], [4.0]], 1, 1, [0.1, 0.2, 0.3], 100, 0.2, 5, smoothness=0
    )
    assert value.shape == (2, 3)
    assert (
        type(privacy.privacy_all_releases(2, 1, 1, 0.1, 100, 0.2, 5, 3, 2, smoothness=0)) is float
    )
    assert value[1, 2] == privacy.privacy_optimal(4, 1, 1, 0.3, 100, 0.2, 5, smoothness=0)


@pytest.mark.parametrize(
    "bound", [privacy.privacy_convex, privacy.privacy_paper, privacy.privacy_unrelaxed]
)
def test_the_papers_step_condition_is_enforced(bound):
    with pytest.raises(
        CertificateRefused, match=r"not below 1/\(λ\+β\) = 0\.5, .* smaller than 0\.5"
    ):
        bound(2, 1, 1, 0.1, 100, 0.5, 5, smoothness=1)


def test_the_optimal_step_condition_is_enforced():
    for bound in (privacy.privacy_optimal, privacy.noise_variance_optimal):
        with pytest.raises(
            CertificateRefused, match=r"not at most 2/\(2λ\+β\) = 0\.5, .* at most 0\.5"
        ):
            bound(2, 1, 1, 1, 100, 0.6, 5, smoothness=2)
    with pytest.raises(CertificateRefused, match="not at most"):
        privacy.privacy_all_releases(2, 1, 1, 0.1, 100, 0.6, 5, 5, 2, smoothness=2)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"order": 1.0}, "order = 1 is not a Rényi order"),
        ({"lipschitz": -1}, "lipschitz = -1 is negative"),
        ({"l2": 0}, "l2 = 0 is not a positive finite number"),
        ({"noise_variance": 0}, "noise_variance = 0 is not a positive finite number"),
        ({"n": 0.5}, "n = 0.5 is not a whole number"),
        ({"step_size": -0.1}, "step_size = -0.1 is not a positive finite number"),
        ({"num_steps": 2.5}, "num_steps = 2.5 is not a whole number"),
        ({"records": 0}, "records = 0 is not a finite whole number ≥ 1"),
        ({"smoothness": -1}, "smoothness = -1 is negative"),
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
        "num_steps": 5,
        "smoothness": 0,
    }
    for bound in (privacy.privacy_paper, privacy.privacy_unrelaxed, privacy.privacy_optimal):
        with pytest.raises(InputError, match=text):
            bound(**good | changed)
