"""Deletion bounds against golden values, the table of steps, and the linear loss's exact law."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dd_jax.errors import CertificateRefused, InputError
from dd_jax.guarantees import convex
from dd_jax.guarantees.convex import Descent

GOLDEN = Descent(2, 1, 1, 1, 4e-4, 100, 0.25)  # q, L, λ, β, σ², n, η
BOUNDS = (convex.deletion_optimal, convex.deletion_unrelaxed, convex.deletion_paper)


def magnitude(low, high):
    return st.floats(np.log10(low), np.log10(high)).map(lambda x: float(10**x))


def whole(high):
    return magnitude(1, high).map(lambda x: float(round(x)))


def test_golden_values():
    value = convex.deletion_optimal(GOLDEN, 5, present=400) / 2
    assert value == pytest.approx(0.02464, abs=5e-6)
    assert convex.deletion_paper(GOLDEN, 5) / 2 == pytest.approx(0.5353, abs=5e-5)
    assert convex.deletion_optimal(GOLDEN, 5) / 2 == pytest.approx(0.4375 * 0.75**10)
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


@pytest.mark.parametrize("order", [1.5, 2, 50])
@pytest.mark.parametrize(("kappa", "eps_dd", "paper", "unrelaxed", "optimal", *"abc"), TABLE)
def test_table_of_deletion_steps(order, kappa, eps_dd, paper, unrelaxed, optimal, a, b, c):
    l2, smoothness, n = 0.3, 0.3 * (kappa - 1), 1000
    step_size = 1 / (2 * (l2 + smoothness))
    run = Descent(order, 2.0, l2, smoothness, 1.0, n, step_size)
    noise = convex.least_noise(convex.privacy_paper, run, 1.0)
    run = replace(run, noise_variance=noise)
    assert convex.fewest_steps(convex.deletion_paper, run, eps_dd) == paper
    assert convex.fewest_steps(convex.deletion_unrelaxed, run, eps_dd) == unrelaxed
    assert convex.fewest_steps(convex.deletion_optimal, run, eps_dd) == optimal
    sizes = np.array([step_size, 2 * step_size, 2 / (2 * l2 + smoothness)])
    run = replace(run, step_size=sizes)
    own = convex.least_noise(convex.privacy_optimal, run, 1.0)
    mine = convex.fewest_steps(convex.deletion_optimal, replace(run, noise_variance=own), eps_dd)
    assert mine.tolist() == [a, b, c]
    assert np.all((own / noise > 0.32) & (own / noise <= 0.5))


def random_linear_cases(count, seed):
    rng = np.random.default_rng(seed)
    l2 = 10 ** rng.uniform(-4, 1, count)
    smoothness = np.where(rng.random(count) < 0.1, 0.0, l2 * 10 ** rng.uniform(-2, 4, count))
    share = np.where(rng.random(count) < 0.1, 1.0, rng.uniform(0.01, 1, count))
    cases = {
        "order": 1 + 10 ** rng.uniform(-1, 3, count),
        "lipschitz": 10 ** rng.uniform(-2, 2, count),
        "l2": l2,
        "noise_variance": 10 ** rng.uniform(-6, 1, count),
        "n": np.floor(10 ** rng.uniform(0, 6, count)),
        "step_size": share * 2 / (2 * l2 + smoothness),
        "smoothness": smoothness,
    }
    present = np.floor(10 ** rng.uniform(0, 4, count))
    return Descent(**cases), np.floor(10 ** rng.uniform(0, 3, count)) - 1, present


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


def part(run, chosen):
    """The run at some of its settings."""
    fields = {name: value for name, value in vars(run).items() if np.ndim(value)}
    return replace(run, **{name: value[chosen] for name, value in fields.items()})


def test_20000_linear_cases_are_ordered_and_the_optimum_is_attained():
    run, delete, present = random_linear_cases(20_000, seed=4)
    optimal = convex.deletion_optimal(run, delete, present)
    exact = linear_exact(run, delete, present)
    np.testing.assert_allclose(optimal, exact, rtol=1e-9, atol=1e-290)
    v = run.noise_variance / (run.l2 * (1 - run.step_size * run.l2 / 2))
    assert np.all(linear_exact(run, delete, present, v) <= optimal * (1 + 1e-9) + 1e-290)
    supremum = convex.deletion_optimal(run, delete)
    assert np.all(optimal <= supremum * (1 + 1e-9))

    strict = run.step_size < 1 / (run.l2 + run.smoothness)
    run, delete, present = part(run, strict), delete[strict], present[strict]
    unrelaxed = convex.deletion_unrelaxed(run, delete, present)
    endless = convex.deletion_unrelaxed(run, delete)
    paper = convex.deletion_paper(run, delete)
    assert np.all(optimal[strict] <= unrelaxed * (1 + 1e-9))
    assert np.all(supremum[strict] <= endless * (1 + 1e-9))
    assert np.all(endless <= paper * (1 + 1e-9))
    assert np.all(unrelaxed <= paper * (1 + 1e-9))


def test_joint_deletion_of_several_records_is_attained_too():
    run, *steps = random_linear_cases(500, seed=5)
    records = np.random.default_rng(6).integers(1, 20, 500)
    together = linear_exact(replace(run, lipschitz=records * run.lipschitz), *steps)
    bound = convex.deletion_optimal(replace(run, records=records), *steps)
    np.testing.assert_allclose(bound, together, rtol=1e-9, atol=1e-290)
    alone = convex.deletion_optimal(run, *steps)
    np.testing.assert_allclose(bound, records**2 * alone, rtol=1e-12, atol=1e-290)
    three = convex.deletion_paper(replace(GOLDEN, records=3), 5)
    assert three == pytest.approx(9 * convex.deletion_paper(GOLDEN, 5))


def test_without_deletion_steps_what_remains_is_the_privacy_value():
    present = np.array([1, 5, 400, np.inf])
    np.testing.assert_allclose(
        convex.deletion_optimal(GOLDEN, 0, present=present),
        convex.privacy_optimal(GOLDEN, present),
        rtol=1e-14,
    )
    assert convex.deletion_unrelaxed(GOLDEN, 0) == convex.privacy_unrelaxed(GOLDEN, np.inf)
    assert convex.deletion_paper(GOLDEN, 0) == convex.privacy_convex(GOLDEN, np.inf)


def test_a_contraction_of_zero_forgets_in_one_step_and_not_in_none():
    run = Descent(2, 1, 1, 0, 0.01, 100, 1.0)  # β = 0, η = 1/λ
    value = convex.deletion_optimal(run, [0, 1, 2, np.inf])
    np.testing.assert_allclose(value, [0.02, 0, 0, 0])
    needed = convex.fewest_steps(convex.deletion_optimal, run, [1e-9, 0.03])
    assert needed.tolist() == [1, 0]


def test_a_record_never_present_leaves_nothing():
    assert convex.deletion_optimal(GOLDEN, 0, present=0) == 0
    assert convex.deletion_unrelaxed(GOLDEN, 3, present=0) == 0
    assert convex.fewest_steps(convex.deletion_optimal, GOLDEN, 0.1, present=0) == 0


def test_infinitely_many_steps_leave_nothing():
    for bound in BOUNDS:
        assert bound(GOLDEN, np.inf) == 0


def test_gaussian_forms():
    eps = convex.deletion_optimal(replace(GOLDEN, order=7), 5, present=9)
    mu = convex.deletion_optimal_mu(GOLDEN, 5, present=9)
    assert mu == pytest.approx(np.sqrt(2 * eps / 7), rel=1e-14)
    start = convex.deletion_optimal_mu(GOLDEN, 0)
    steps = convex.fewest_steps(convex.deletion_optimal, GOLDEN, 0.01**2)
    assert steps == np.ceil(np.log(start / 0.01) / -np.log(0.75))
    assert convex.deletion_optimal_mu(GOLDEN, steps) <= 0.01
    assert convex.deletion_optimal_mu(GOLDEN, steps - 1) > 0.01


@pytest.mark.parametrize("bound", BOUNDS)
def test_steps_are_the_fewest_that_meet_the_budget(bound):
    run, *_ = random_linear_cases(2_000, seed=7)
    run = replace(run, step_size=0.99 * np.minimum(run.step_size, 1 / (run.l2 + run.smoothness)))
    eps_dd = 10 ** np.random.default_rng(8).uniform(-12, 3, 2_000)
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
    after = convex.deletion_optimal(run, needed, present)
    before = convex.deletion_optimal(run, needed - 1, present)
    assert np.all(after <= 0.1)
    assert np.all(before > 0.1)


@settings(max_examples=150, deadline=None)
@given(
    order=magnitude(1e-3, 1e6).map(lambda x: 1 + x),
    n=whole(1e12),
    kappa=magnitude(1, 1e8),
    l2=magnitude(1e-6, 1e3),
    eps_dp=magnitude(1e-12, 1e3),
    eps_dd=magnitude(1e-12, 1e3),
    share=st.floats(1e-3, 0.999),
    present_steps=st.one_of(st.just(np.inf), whole(1e10)),
    delete_steps=st.one_of(st.just(0.0), whole(1e10)),
)
def test_extreme_magnitudes_stay_ordered_and_monotone(
    order, n, kappa, l2, eps_dp, eps_dd, share, present_steps, delete_steps
):
    smoothness = l2 * (kappa - 1)
    step_size = share / (l2 + smoothness)
    base = Descent(order, 1.0, l2, smoothness, 1.0, n, step_size)
    noise = convex.least_noise(convex.privacy_optimal, base, eps_dp)
    base = replace(base, noise_variance=noise)

    def doubled(name):
        return replace(base, **{name: 2 * getattr(base, name)})

    slack = 1 + 1e-12
    values = []
    for bound in BOUNDS:
        value = bound(base, delete_steps)
        assert isinstance(value, float)
        assert 0 <= value < np.inf
        values.append(value)
        assert bound(base, 2 * delete_steps + 1) <= value
        for name in ("order", "lipschitz"):
            assert value <= bound(doubled(name), delete_steps) * slack
        for name in ("noise_variance", "n"):
            assert value >= bound(doubled(name), delete_steps) / slack
        needed = convex.fewest_steps(bound, base, eps_dd)
        assert needed >= 0
        assert needed == np.floor(needed)
        assert bound(base, needed) <= eps_dd * slack
        assert needed >= convex.fewest_steps(bound, base, 2 * eps_dd)
    assert values[0] <= values[1] * slack
    assert values[1] <= values[2] * slack
    short, longer = (
        convex.deletion_optimal(base, delete_steps, present)
        for present in (present_steps, 2 * present_steps)
    )
    assert 0 <= short <= longer * slack
    assert longer <= values[0] * slack


def test_step_conditions_are_enforced():
    paper, long = Descent(2, 1, 1, 1, 0.1, 100, 0.5), Descent(2, 1, 1, 2, 0.1, 100, 0.6)
    for bound in (convex.deletion_paper, convex.deletion_unrelaxed):
        with pytest.raises(
            CertificateRefused, match=r"not below 1/\(λ\+β\) = 0\.5.*smaller than 0\.5"
        ):
            bound(paper, 5)
        with pytest.raises(CertificateRefused, match=r"not below 1/\(λ\+β\)"):
            convex.fewest_steps(bound, paper, 0.1)
    for call in (
        lambda: convex.deletion_optimal(long, 5),
        lambda: convex.fewest_steps(convex.deletion_optimal, long, 5),
    ):
        with pytest.raises(
            CertificateRefused, match=r"not at most 2/\(2λ\+β\) = 0\.5.*at most 0\.5"
        ):
            call()


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: convex.deletion_optimal(GOLDEN, -1), "steps = -1 is not a whole number"),
        (lambda: convex.deletion_paper(GOLDEN, 0.5), "steps = 0.5 is not a whole number"),
        (lambda: convex.deletion_optimal(GOLDEN, 1, 0.5), "present = 0.5 is not a whole"),
        (lambda: replace(GOLDEN, order=0.9), "order = 0.9 is not a Rényi order"),
        (lambda: replace(GOLDEN, records=0), "records = 0 is not a finite whole number"),
        (lambda: convex.fewest_steps(convex.deletion_paper, GOLDEN, 1, 5), "present = 5"),
        (lambda: convex.fewest_steps(convex.privacy_optimal, GOLDEN, 1), "privacy_optimal"),
    ],
)
def test_bad_input_is_named(call, text):
    with pytest.raises(InputError, match=text):
        call()


def test_a_budget_of_nothing_is_refused():
    for bound in BOUNDS:
        with pytest.raises(InputError, match="eps = 0 is not a positive finite number"):
            convex.fewest_steps(bound, GOLDEN, 0)
