"""Convex bounds: golden values, the linear loss's exact law, dp_accounting, and inverses."""

import itertools
from dataclasses import replace

import dp_accounting
import numpy as np
import pytest
from dp_accounting import rdp
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import soak

from dd_jax.errors import CertificateRefused, InputError
from dd_jax.guarantees import convex, renyi
from dd_jax.guarantees.convex import Descent

GOLDEN = Descent(2, 1, 1, 1, 4e-4, 100, 0.25)  # q, L, λ, β, σ², n, η
PRIVACY = (convex.privacy_optimal, convex.privacy_unrelaxed, convex.privacy_paper)
DELETION = (convex.deletion_optimal, convex.deletion_unrelaxed, convex.deletion_paper)
ORDERS = np.array([1.5, 2.0, 8.0, 64.0])
UP = 1 + 1e-9


def test_golden_values():
    assert convex.privacy_optimal(GOLDEN, 5) / 2 == pytest.approx(0.26968, abs=5e-6)
    assert convex.privacy_optimal(GOLDEN, np.inf) / 2 == pytest.approx(0.4375)
    assert convex.privacy_convex(GOLDEN, 5) / 2 == pytest.approx(0.4647, abs=5e-5)
    assert convex.privacy_convex(GOLDEN, np.inf) / 2 == pytest.approx(1.0)
    assert convex.privacy_lipschitz(GOLDEN, 5) / 2 == pytest.approx(0.3125)
    assert convex.privacy_paper(GOLDEN, 5) / 2 == pytest.approx(0.3125)
    assert convex.privacy_paper(GOLDEN, 50) == convex.privacy_convex(GOLDEN, 50)
    assert convex.privacy_unrelaxed(GOLDEN, 20) / 2 == pytest.approx(
        0.5 / 0.875 * (1 - np.exp(-0.875 * 0.25 * 20))
    )
    optimal = convex.deletion_optimal(GOLDEN, 5, present=400)
    assert optimal / 2 == pytest.approx(0.02464, abs=5e-6)
    assert convex.deletion_paper(GOLDEN, 5) / 2 == pytest.approx(0.5353, abs=5e-5)
    assert convex.deletion_unrelaxed(GOLDEN, 5) / 2 == pytest.approx(
        0.5 / 0.875 * np.exp(-2 * 0.875 * 0.25 * 5)
    )


# κ, ε_dd, then K_U: paper, unrelaxed and optimal with the paper's noise, optimal with its own noise
# at η = 1/(2M), 1/M and 2/(2λ+β).
TABLE = [
    (2, 0.1, 19, 4, 3, 5, 2, 2),
    (2, 0.01, 37, 10, 7, 9, 4, 3),
    (10, 0.1, 93, 17, 16, 23, 11, 6),
    (10, 0.01, 185, 41, 38, 45, 22, 12),
    (100, 0.1, 922, 162, 161, 230, 115, 58),
    (100, 0.01, 1843, 393, 390, 460, 230, 116),
]


@pytest.mark.parametrize("order", [1.5, 50])
@pytest.mark.parametrize(("kappa", "eps_dd", "paper", "unrelaxed", "optimal", *"abc"), TABLE)
def test_table_of_deletion_steps(order, kappa, eps_dd, paper, unrelaxed, optimal, a, b, c):
    l2, smoothness, n = 0.3, 0.3 * (kappa - 1), 1000
    step_size = 1 / (2 * (l2 + smoothness))
    run = Descent(order, 2.0, l2, smoothness, 1.0, n, step_size)
    noise = convex.least_noise(convex.privacy_paper, run, 1.0)
    run = replace(run, noise_variance=noise)
    for bound, expected in zip(DELETION, (optimal, unrelaxed, paper), strict=True):
        assert convex.fewest_steps(bound, run, eps_dd) == expected
    sizes = np.array([step_size, 2 * step_size, 2 / (2 * l2 + smoothness)])
    run = replace(run, step_size=sizes)
    own = convex.least_noise(convex.privacy_optimal, run, 1.0)
    mine = convex.fewest_steps(convex.deletion_optimal, replace(run, noise_variance=own), eps_dd)
    assert mine.tolist() == [a, b, c]
    assert np.all((own / noise > 0.32) & (own / noise <= 0.5))


# --- the linear loss attains the optimum ----------------------------------------------------------


def linear_cases(count, seed):
    """Random runs, deletion steps from 0 on, and steps with the record."""
    rng = np.random.default_rng(seed)
    l2 = 10 ** rng.uniform(-4, 1, count)
    smoothness = np.where(rng.random(count) < 0.1, 0.0, l2 * 10 ** rng.uniform(-2, 4, count))
    share = np.where(rng.random(count) < 0.1, 1.0, rng.uniform(0.01, 1, count))
    run = Descent(
        order=1 + 10 ** rng.uniform(-1, 3, count),
        lipschitz=10 ** rng.uniform(-2, 2, count),
        l2=l2,
        smoothness=smoothness,
        noise_variance=10 ** rng.uniform(-6, 1, count),
        n=np.floor(10 ** rng.uniform(0, 6, count)),
        step_size=share * 2 / (2 * l2 + smoothness),
    )
    present = np.floor(10 ** rng.uniform(0, 4, count))
    return run, np.floor(10 ** rng.uniform(0, 3, count)) - 1, present


def linear_exact(run, delete, present, start_variance=0.0):
    """R_q of the linear loss in closed form, in extended precision."""
    c = 1 - run.step_size.astype(np.longdouble) * run.l2
    rounded = np.maximum(1 - run.step_size * run.l2, 0)
    c = np.where(np.abs(c) < 1e-15, rounded, c)  # η = 1/λ is exact only up to rounding
    reach = 2 * run.lipschitz / (run.n * run.l2.astype(np.longdouble))
    shift = reach * (1 - c**present) * c**delete
    forgotten = c ** (2 * (present + delete))
    variance = 2 * run.step_size * run.noise_variance * (1 - forgotten) / (1 - c**2)
    variance = variance + forgotten * start_variance
    return (run.order * shift**2 / (2 * variance)).astype(float)


def test_linear_cases_are_ordered_and_the_optimum_is_attained():
    run, delete, present = linear_cases(soak(5_000, 20_000), seed=4)
    private = convex.privacy_optimal(run, present)
    np.testing.assert_allclose(private, linear_exact(run, 0, present), rtol=1e-9)
    optimal = convex.deletion_optimal(run, delete, present)
    exact = linear_exact(run, delete, present)
    np.testing.assert_allclose(optimal, exact, rtol=1e-9, atol=1e-290)
    v = run.noise_variance / (run.l2 * (1 - run.step_size * run.l2 / 2))
    assert np.all(linear_exact(run, delete, present, v) <= optimal * UP + 1e-290)
    supremum = convex.deletion_optimal(run, delete)
    assert np.all(optimal <= supremum * UP)

    strict = run.step_size < 1 / (run.l2 + run.smoothness)
    assert 0.2 < strict.mean() < 0.95
    fields = {name: value[strict] for name, value in vars(run).items() if np.ndim(value)}
    run, delete, present = replace(run, **fields), delete[strict], present[strict]
    chains = (
        [private[strict], *(bound(run, present) for bound in PRIVACY[1:])],
        [optimal[strict], convex.deletion_unrelaxed(run, delete, present)],
        [supremum[strict], *(bound(run, delete) for bound in DELETION[1:])],
    )
    for chain in chains:
        for smaller, larger in itertools.pairwise(chain):
            assert np.all(smaller <= larger * UP)
    assert np.all(private[strict] <= convex.privacy_lipschitz(run, present) * UP)


def test_joint_deletion_of_several_records_is_attained_too():
    run, *steps = linear_cases(500, seed=5)
    records = np.random.default_rng(6).integers(1, 20, 500)
    together = linear_exact(replace(run, lipschitz=records * run.lipschitz), *steps)
    bound = convex.deletion_optimal(replace(run, records=records), *steps)
    np.testing.assert_allclose(bound, together, rtol=1e-9, atol=1e-290)
    for bound in (*PRIVACY, convex.privacy_lipschitz, *DELETION):
        assert bound(replace(GOLDEN, records=3), 5) == pytest.approx(9 * bound(GOLDEN, 5))


def test_one_step_is_the_gaussian_mechanism():
    # sensitivity η·2L/n, standard deviation √(2ησ²)
    mu = 0.1 * 2 * 1.5 / 200 / np.sqrt(2 * 0.1 * 0.03)
    run = Descent([1.5, 7], 1.5, 0.7, 0, 0.03, 200, 0.1)  # of any order
    assert convex.privacy_optimal_mu(run, 1) == pytest.approx(mu, rel=1e-13)
    composed = convex.privacy_lipschitz(replace(run, order=2), [1, 9])  # of K releases, μ² = ε
    assert np.sqrt(composed) == pytest.approx([mu, 3 * mu], rel=1e-13)


@pytest.mark.parametrize("steps", [1, 1000])
def test_bounds_are_zero_concentrated_as_dp_accounting_composes_them(steps):
    lipschitz, l2, noise_variance, n, step_size = 1.3, 0.4, 0.02, 250, 0.3
    run = Descent(ORDERS, lipschitz, l2, 0.5, noise_variance, n, step_size)
    unit = lipschitz**2 / (noise_variance * n**2)
    rate, kept = l2 * (1 - step_size * l2 / 2), (1 - step_size * l2) ** steps
    lipschitz_rho = unit * step_size * steps
    relaxed = 2 * unit / rate * (1 - np.exp(-rate * step_size * steps))
    expected = {
        convex.privacy_lipschitz: lipschitz_rho,
        convex.privacy_convex: 4 * unit / l2 * (1 - np.exp(-l2 * step_size * steps / 2)),
        convex.privacy_unrelaxed: min(relaxed, lipschitz_rho),
        convex.privacy_optimal: unit * (2 - step_size * l2) / l2 * (1 - kept) / (1 + kept),
    }
    for bound, rho in expected.items():
        accountant = rdp.RdpAccountant(ORDERS)
        accountant.compose(dp_accounting.ZCDpEvent(rho))
        np.testing.assert_allclose(bound(run, steps), accountant.rdp, rtol=1e-12)


def test_the_noise_as_dp_sgd_writes_it_is_dp_accountings():
    """Replacing a record moves the sum of gradients by 2L: multiplier σ̂/2 for dp_accounting."""
    run, steps = Descent(ORDERS, 1.3, 0.4, 0.5, 0.02, 250, 0.3), 7
    multiplier = convex.noise_multiplier(run)
    assert pytest.approx((0.3 * multiplier * 1.3 / 250) ** 2) == 2 * 0.3 * 0.02  # the same noise
    accountant = rdp.RdpAccountant(ORDERS)
    event = dp_accounting.GaussianDpEvent(multiplier / 2)
    accountant.compose(dp_accounting.SelfComposedDpEvent(event, steps))
    np.testing.assert_allclose(convex.privacy_lipschitz(run, steps), accountant.rdp, rtol=1e-12)
    other = replace(run, noise_variance=5.0)
    assert convex.noise_of_multiplier(other, multiplier) == pytest.approx(0.02, rel=1e-12)
    with pytest.raises(CertificateRefused, match="batches"):
        convex.noise_multiplier(replace(run, batches=2))


def test_the_papers_multiplier_lacks_a_factor_two():
    """Erratum E14, at ε = 1: four times the divergence that the footnote asks for."""
    epsilon, delta, steps = 1.0, 1e-5, 10
    order, needed = renyi.renyi_from_epsilon_delta(epsilon, delta)
    run = Descent(order, 1.0, 0.1, 0.0, 1.0, 100, 0.5)
    stated = np.sqrt(steps * (epsilon + 2 * np.log(1 / delta))) / epsilon
    for multiplier, eps in ((stated, 2.0), (2 * stated, needed)):
        noise = convex.noise_of_multiplier(run, multiplier)
        found = convex.privacy_lipschitz(replace(run, noise_variance=noise), steps)
        assert found == pytest.approx(eps)
    assert needed == 0.5


def test_limits():
    present = np.array([1, 5, 400, np.inf])
    np.testing.assert_allclose(
        convex.deletion_optimal(GOLDEN, 0, present=present),
        convex.privacy_optimal(GOLDEN, present),
        rtol=1e-14,
    )
    assert convex.deletion_unrelaxed(GOLDEN, 0) == convex.privacy_unrelaxed(GOLDEN, np.inf)
    assert convex.deletion_paper(GOLDEN, 0) == convex.privacy_convex(GOLDEN, np.inf)
    assert all(bound(GOLDEN, np.inf) == 0 for bound in DELETION)
    # A record that was never there leaves nothing.
    assert convex.deletion_optimal(GOLDEN, 0, present=0) == 0
    assert convex.deletion_unrelaxed(GOLDEN, 3, present=0) == 0
    assert convex.fewest_steps(convex.deletion_optimal, GOLDEN, 0.1, present=0) == 0


def test_a_contraction_of_zero_forgets_in_one_step_and_not_in_none():
    run = Descent(2, 1, 1, 0, 0.01, 100, 1.0)  # β = 0, η = 1/λ: each K ≥ 1 is one mechanism
    steps = [0, 1, 5, np.inf]
    np.testing.assert_allclose(convex.privacy_optimal(run, steps), [0, 0.02, 0.02, 0.02])
    np.testing.assert_allclose(convex.deletion_optimal(run, steps), [0.02, 0, 0, 0])
    needed = convex.fewest_steps(convex.deletion_optimal, run, [1e-9, 0.03])
    assert needed.tolist() == [1, 0]


# --- inverses -------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [3, np.inf])
def test_calibrated_noise_meets_the_budget_and_no_more(steps):
    run, budgets = Descent(3, 1.7, 0.3, 2, 1.0, 1000, 0.2), 10.0 ** np.arange(-12, 4)
    for bound, count in [*((bound, steps) for bound in PRIVACY), (convex.privacy_lipschitz, 50)]:
        variance = convex.least_noise(bound, run, budgets, count)
        reached = bound(replace(run, noise_variance=variance), count)
        assert np.all(reached <= budgets)
        np.testing.assert_allclose(reached, budgets, rtol=1e-13)


def test_calibrated_noise_by_formula():
    run = Descent(2, 3, 0.1, 0, 123.0, 50, 0.2)  # whatever σ² it has
    unit = 2 * 9 / (0.1 * 0.5 * 2500)
    for bound, factor in zip(PRIVACY, (1.98, 2 / 0.99, 4), strict=True):
        assert convex.least_noise(bound, run, 0.5) == pytest.approx(factor * unit)
    variance = convex.least_noise(convex.privacy_optimal, run, 0.7**2, 20)
    mu = convex.privacy_optimal_mu(replace(run, noise_variance=variance), 20)
    assert mu == pytest.approx(0.7)


def test_gaussian_forms():
    eps = convex.deletion_optimal(replace(GOLDEN, order=7), 5, present=9)
    mu = convex.deletion_optimal_mu(GOLDEN, 5, present=9)
    assert mu == pytest.approx(np.sqrt(2 * eps / 7), rel=1e-14)
    start = convex.deletion_optimal_mu(GOLDEN, 0)
    steps = convex.fewest_steps(convex.deletion_optimal, GOLDEN, 0.01**2)
    assert steps == np.ceil(np.log(start / 0.01) / -np.log(0.75))


@pytest.mark.parametrize("bound", DELETION)
def test_steps_are_the_fewest_that_meet_the_budget(bound):
    run, *_ = linear_cases(1_000, seed=7)
    run = replace(run, step_size=0.99 * np.minimum(run.step_size, 1 / (run.l2 + run.smoothness)))
    eps_dd = 10 ** np.random.default_rng(8).uniform(-12, 3, 1_000)
    needed = convex.fewest_steps(bound, run, eps_dd)
    assert np.all(bound(run, needed) <= eps_dd)
    one_less = bound(run, np.maximum(needed - 1, 0))
    assert np.all((one_less > eps_dd) | (needed == 0))
    assert (needed == 0).any()
    assert (needed > 1e4).any()


def test_a_budget_met_exactly_needs_no_further_step():
    steps = np.arange(0, 60.0)
    for contraction in (0.5, 0.4, 0.9):
        run = Descent(2, 1, 1, 0, 0.25, 8, 1 - contraction)
        budgets = convex.deletion_optimal(run, steps)
        needed = convex.fewest_steps(convex.deletion_optimal, run, budgets)
        np.testing.assert_array_equal(needed, steps)


def test_a_short_stay_needs_fewer_steps():
    present = np.array([1.0, 3, 10, 100, 1e6, np.inf])
    run = Descent(2, 1, 1e-3, 0, 4e-4, 100, 0.25)
    needed = convex.fewest_steps(convex.deletion_optimal, run, 0.1, present=present)
    assert np.all(np.diff(needed) >= 0)
    assert needed[0] < needed[-1] / 10
    assert np.all(convex.deletion_optimal(run, needed, present) <= 0.1)
    assert np.all(convex.deletion_optimal(run, needed - 1, present) > 0.1)


# --- magnitudes -----------------------------------------------------------------------------------


def magnitude(low, high):
    return st.floats(np.log10(low), np.log10(high)).map(lambda x: float(10**x))


def whole(high):
    return magnitude(1, high).map(lambda x: float(round(x)))


@settings(max_examples=100)
@given(
    order=magnitude(1e-3, 1e6).map(lambda x: 1 + x),
    n=whole(1e12),
    kappa=magnitude(1, 1e8),
    l2=magnitude(1e-6, 1e3),
    lipschitz=magnitude(1e-3, 1e3),
    noise_variance=magnitude(1e-12, 1e6),
    eps_dd=magnitude(1e-12, 1e3),
    share=st.floats(1e-3, 0.999),
    present=st.one_of(st.just(np.inf), whole(1e10)),
    steps=st.one_of(st.just(0.0), whole(1e10)),
)
def test_extreme_magnitudes_stay_ordered_and_monotone(
    order, n, kappa, l2, lipschitz, noise_variance, eps_dd, share, present, steps
):
    smoothness = l2 * (kappa - 1)
    step_size = share / (l2 + smoothness)
    base = Descent(order, lipschitz, l2, smoothness, noise_variance, n, step_size)
    up = 1 + 1e-12

    def grows(bound, count):
        """The bound, finite, and monotone in what only scales it."""
        value = bound(base, count)
        assert isinstance(value, float)
        assert 0 <= value < np.inf
        for name in ("order", "lipschitz"):
            more = replace(base, **{name: 2 * getattr(base, name)})
            assert value <= bound(more, count) * up
        for name in ("noise_variance", "n"):
            less = replace(base, **{name: 2 * getattr(base, name)})
            assert value >= bound(less, count) / up
        return value

    values = [grows(bound, present) for bound in PRIVACY]
    assert 0 < values[0] <= values[1] * up <= values[2] * up**2
    for bound, value in zip(PRIVACY, values, strict=True):
        assert value <= bound(base, 2 * present) * up
        shorter = replace(base, step_size=0.99 * step_size)
        assert bound(shorter, present) >= bound(replace(shorter, l2=1.01 * l2), present) / up
        assert bound(base, 0) == 0
    values = [grows(bound, steps) for bound in DELETION]
    assert values[0] <= values[1] * up <= values[2] * up**2
    for bound, value in zip(DELETION, values, strict=True):
        assert bound(base, 2 * steps + 1) <= value
        needed = convex.fewest_steps(bound, base, eps_dd)
        assert 0 <= needed == np.floor(needed)
        assert bound(base, needed) <= eps_dd * up
        assert needed >= convex.fewest_steps(bound, base, 2 * eps_dd)
    short, longer = (convex.deletion_optimal(base, steps, k) for k in (present, 2 * present))
    assert short <= longer * up <= values[0] * up**2


def test_absurd_magnitudes_overflow_quietly():
    huge = Descent(1e6, 1e300, 1e-300, 0, 1e-300, 1, 1e-3)
    assert convex.privacy_optimal(huge, np.inf) == np.inf
    run = Descent(2, 1, 1, 0, 1, 10, 0.1)
    assert convex.privacy_lipschitz(run, np.inf) == np.inf
    assert convex.privacy_optimal(replace(run, lipschitz=0), np.inf) == 0.0
    assert convex.least_noise(convex.privacy_lipschitz, run, 1) == np.inf


def test_a_small_sensitivity_is_not_lost_before_it_meets_small_noise():
    tiny = Descent(2, 1e-170, 1e-100, 0, 1e-250, 1, 1.0)  # L²/(λσ²) = 1e10, though L² underflows
    for bound, value in zip((*PRIVACY, *DELETION), (4e10, 4e10, 8e10) * 2, strict=True):
        assert bound(tiny, np.inf if bound in PRIVACY else 3) == pytest.approx(value)
    shorter = Descent(2, 1e-170, 0, np.inf, 1e-300, 10, 1)
    assert convex.privacy_lipschitz(shorter, 1e42) == pytest.approx(2.0)
    assert convex.least_noise(convex.privacy_optimal, tiny, 4e10) == pytest.approx(1e-250)


def test_arrays_broadcast_and_a_run_of_numbers_is_a_value():
    run = Descent([[2.0], [4.0]], 1, 1, 0, [0.1, 0.2, 0.3], 100, 0.2)
    value = convex.privacy_optimal(run, 5)
    assert value.shape == (2, 3)
    one = Descent(4, 1, 1, 0, 0.3, 100, 0.2)
    assert value[1, 2] == convex.privacy_optimal(one, 5)
    assert len({GOLDEN, replace(GOLDEN), replace(GOLDEN, n=7)}) == 2
    with pytest.raises(TypeError, match="step_size"):
        Descent(2, 1, 1, 4e-4, 100, 0.25)  # smoothness has no default


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", [*PRIVACY, convex.privacy_convex, *DELETION])
def test_the_step_condition_is_enforced(bound):
    """η ≤ 2/(2λ+β) for the optimal bounds, η < 1/(λ+β) for those of the paper's proof."""
    limit = 0.5 if bound in (PRIVACY[0], DELETION[0]) else 1 / 3
    run = Descent(2, 1, 1, 2, 0.1, 100, limit * (1 - 1e-9))
    assert bound(run, 5) > 0
    inverse = convex.fewest_steps if bound in DELETION else convex.least_noise
    long = replace(run, step_size=limit * (1 + 1e-9))
    for call in (lambda run: bound(run, 5), lambda run: inverse(bound, run, 0.1)):
        with pytest.raises(CertificateRefused, match="step_size"):
            call(long)
        with pytest.raises(CertificateRefused, match="step_size"):
            call(replace(run, smoothness=np.inf))  # nothing is known of β
    unknown = replace(GOLDEN, smoothness=np.inf)
    assert convex.privacy_lipschitz(unknown, 5) == convex.privacy_lipschitz(GOLDEN, 5)


@pytest.mark.parametrize(
    ("changed", "steps", "name"),
    [
        ({"order": 1.0}, 5, "order"),
        ({"lipschitz": -1}, 5, "lipschitz"),
        ({"l2": 0}, 5, "l2"),
        ({"noise_variance": 0}, 5, "noise_variance"),
        ({"n": 0.5}, 5, "n = "),
        ({"step_size": -0.1}, 5, "step_size"),
        ({"records": 0}, 5, "records"),
        ({"smoothness": -1}, 5, "smoothness"),
        ({}, 2.5, "steps"),
        ({}, -1, "steps"),
    ],
)
def test_bad_input_is_named(changed, steps, name):
    for bound in (*PRIVACY, *DELETION):
        with pytest.raises(InputError, match=name):
            bound(replace(GOLDEN, **changed), steps)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: convex.deletion_optimal(GOLDEN, 1, 0.5), "present"),
        (lambda: convex.fewest_steps(convex.deletion_paper, GOLDEN, 1, 5), "present"),
        (lambda: convex.fewest_steps(convex.privacy_optimal, GOLDEN, 1), "privacy_optimal"),
        (lambda: convex.fewest_steps(convex.deletion_paper, GOLDEN, 0), "eps"),
        (lambda: convex.least_noise(convex.privacy_paper, GOLDEN, 0), "eps"),
    ],
)
def test_what_has_no_inverse_is_named(call, name):
    with pytest.raises(InputError, match=name):
        call()
