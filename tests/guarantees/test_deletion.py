"""Deletion bounds against golden values, the table of steps, and the linear loss's exact law."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dd_jax.errors import CertificateRefused, InputError
from dd_jax.guarantees import deletion, privacy

GOLDEN = (1, 1, 4e-4, 100, 0.25)  # L, λ, σ², n, η; β = 1
BOUNDS = (deletion.deletion_optimal, deletion.deletion_unrelaxed, deletion.deletion_paper)
STEPS = (
    (deletion.delete_steps_optimal, deletion.deletion_optimal),
    (deletion.delete_steps_unrelaxed, deletion.deletion_unrelaxed),
    (deletion.delete_steps_paper, deletion.deletion_paper),
)


def magnitude(low, high):
    return st.floats(np.log10(low), np.log10(high)).map(lambda x: float(10**x))


def whole(high):
    return magnitude(1, high).map(lambda x: float(round(x)))


def test_golden_values():
    value = deletion.deletion_optimal(2, *GOLDEN, 5, present_steps=400, smoothness=1) / 2
    assert value == pytest.approx(0.02464, abs=5e-6)
    assert deletion.deletion_paper(2, *GOLDEN, 5, smoothness=1) / 2 == pytest.approx(
        0.5353, abs=5e-5
    )
    assert deletion.deletion_optimal(2, *GOLDEN, 5, smoothness=0) / 2 == pytest.approx(
        0.4375 * 0.75**10
    )
    assert deletion.deletion_unrelaxed(2, *GOLDEN, 5, smoothness=0) / 2 == pytest.approx(
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
    noise = privacy.noise_variance_paper(order, 1.0, 2.0, l2, n, step_size, smoothness=smoothness)
    arguments = (order, 2.0, l2, noise, n, step_size, eps_dd)
    assert deletion.delete_steps_paper(*arguments, smoothness=smoothness) == paper
    assert deletion.delete_steps_unrelaxed(*arguments, smoothness=smoothness) == unrelaxed
    assert deletion.delete_steps_optimal(*arguments, smoothness=smoothness) == optimal
    sizes = np.array([step_size, 2 * step_size, 2 / (2 * l2 + smoothness)])
    own = privacy.noise_variance_optimal(order, 1.0, 2.0, l2, n, sizes, smoothness=smoothness)
    mine = deletion.delete_steps_optimal(
        order, 2.0, l2, own, n, sizes, eps_dd, smoothness=smoothness
    )
    assert mine.tolist() == [a, b, c]
    assert np.all((own / noise > 0.32) & (own / noise <= 0.5))


def random_linear_cases(count, seed):
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
        "present_steps": np.floor(10 ** rng.uniform(0, 4, count)),
        "delete_steps": np.floor(10 ** rng.uniform(0, 3, count)) - 1,
    }


def linear_exact(cases, start_variance=0.0):
    """R_q of the linear loss in closed form, in extended precision."""
    c = 1 - cases["step_size"].astype(np.longdouble) * cases["l2"]
    rounded = np.maximum(1 - cases["step_size"] * cases["l2"], 0)
    c = np.where(np.abs(c) < 1e-15, rounded, c)  # η = 1/λ is exact only up to rounding
    present, delete = cases["present_steps"], cases["delete_steps"]
    reach = 2 * cases["lipschitz"] / (cases["n"] * cases["l2"].astype(np.longdouble))
    shift = reach * (1 - c**present) * c**delete
    forgotten = c ** (2 * (present + delete))
    variance = 2 * cases["step_size"] * cases["noise_variance"] * (1 - forgotten) / (1 - c**2)
    variance = variance + forgotten * start_variance
    return (cases["order"] * shift**2 / (2 * variance)).astype(float)


def test_20000_linear_cases_are_ordered_and_the_optimum_is_attained():
    cases = random_linear_cases(20_000, seed=4)
    exact, optimal = linear_exact(cases), deletion.deletion_optimal(**cases)
    np.testing.assert_allclose(optimal, exact, rtol=1e-9, atol=1e-290)
    v = cases["noise_variance"] / (cases["l2"] * (1 - cases["step_size"] * cases["l2"] / 2))
    assert np.all(linear_exact(cases, v) <= optimal * (1 + 1e-9) + 1e-290)
    supremum = deletion.deletion_optimal(**cases | {"present_steps": np.inf})
    assert np.all(optimal <= supremum * (1 + 1e-9))

    strict = cases["step_size"] < 1 / (cases["l2"] + cases["smoothness"])
    cases = {name: value[strict] for name, value in cases.items()}
    unrelaxed = deletion.deletion_unrelaxed(**cases)
    del cases["present_steps"]
    paper = deletion.deletion_paper(**cases)
    assert np.all(optimal[strict] <= unrelaxed * (1 + 1e-9))
    assert np.all(supremum[strict] <= deletion.deletion_unrelaxed(**cases) * (1 + 1e-9))
    assert np.all(deletion.deletion_unrelaxed(**cases) <= paper * (1 + 1e-9))
    assert np.all(unrelaxed <= paper * (1 + 1e-9))


def test_joint_deletion_of_several_records_is_attained_too():
    cases = random_linear_cases(500, seed=5)
    records = np.random.default_rng(6).integers(1, 20, 500)
    together = linear_exact(cases | {"lipschitz": records * cases["lipschitz"]})
    bound = deletion.deletion_optimal(**cases, records=records)
    np.testing.assert_allclose(bound, together, rtol=1e-9, atol=1e-290)
    np.testing.assert_allclose(
        bound, records**2 * deletion.deletion_optimal(**cases), rtol=1e-12, atol=1e-290
    )
    assert deletion.deletion_paper(2, *GOLDEN, 5, records=3, smoothness=0) == pytest.approx(
        9 * deletion.deletion_paper(2, *GOLDEN, 5, smoothness=0)
    )


def test_without_deletion_steps_what_remains_is_the_privacy_value():
    present = np.array([1, 5, 400, np.inf])
    np.testing.assert_allclose(
        deletion.deletion_optimal(2, *GOLDEN, 0, present_steps=present, smoothness=0),
        privacy.privacy_optimal(2, *GOLDEN, present, smoothness=0),
        rtol=1e-14,
    )
    assert deletion.deletion_unrelaxed(2, *GOLDEN, 0, smoothness=0) == privacy.privacy_unrelaxed(
        2, *GOLDEN, np.inf, smoothness=0
    )
    assert deletion.deletion_paper(2, *GOLDEN, 0, smoothness=0) == privacy.privacy_convex(
        2, *GOLDEN, np.inf, smoothness=0
    )


def test_a_contraction_of_zero_forgets_in_one_step_and_not_in_none():
    # β = 0, η = 1/λ
    value = deletion.deletion_optimal(2, 1, 1, 0.01, 100, 1.0, [0, 1, 2, np.inf], smoothness=0)
    np.testing.assert_allclose(value, [0.02, 0, 0, 0])
    assert deletion.delete_steps_optimal(2, 1, 1, 0.01, 100, 1.0, 1e-9, smoothness=0) == 1
    assert deletion.delete_steps_optimal(2, 1, 1, 0.01, 100, 1.0, 0.03, smoothness=0) == 0


def test_a_record_never_present_leaves_nothing():
    assert deletion.deletion_optimal(2, *GOLDEN, 0, present_steps=0, smoothness=0) == 0
    assert deletion.deletion_unrelaxed(2, *GOLDEN, 3, present_steps=0, smoothness=0) == 0
    assert deletion.delete_steps_optimal(2, *GOLDEN, 0.1, present_steps=0, smoothness=0) == 0


def test_infinitely_many_steps_leave_nothing():
    for bound in BOUNDS:
        assert bound(2, *GOLDEN, np.inf, smoothness=0) == 0


def test_gaussian_forms():
    eps = deletion.deletion_optimal(7, *GOLDEN, 5, present_steps=9, smoothness=0)
    mu = deletion.deletion_optimal_mu(*GOLDEN, 5, present_steps=9, smoothness=0)
    assert mu == pytest.approx(np.sqrt(2 * eps / 7), rel=1e-14)
    start = deletion.deletion_optimal_mu(*GOLDEN, 0, smoothness=0)
    steps = deletion.delete_steps_optimal_mu(*GOLDEN, 0.01, smoothness=0)
    assert steps == np.ceil(np.log(start / 0.01) / -np.log(0.75))
    assert deletion.deletion_optimal_mu(*GOLDEN, steps, smoothness=0) <= 0.01
    assert deletion.deletion_optimal_mu(*GOLDEN, steps - 1, smoothness=0) > 0.01


@pytest.mark.parametrize(("steps", "bound"), STEPS)
def test_steps_are_the_fewest_that_meet_the_budget(steps, bound):
    cases = random_linear_cases(2_000, seed=7)
    for name in ("present_steps", "delete_steps"):
        del cases[name]
    cases["step_size"] = 0.99 * np.minimum(
        cases["step_size"], 1 / (cases["l2"] + cases["smoothness"])
    )
    eps_dd = 10 ** np.random.default_rng(8).uniform(-12, 3, 2_000)
    needed = steps(**cases, eps_dd=eps_dd)
    assert np.all(bound(**cases, delete_steps=needed) <= eps_dd)
    one_less = bound(**cases, delete_steps=np.maximum(needed - 1, 0))
    assert np.all((one_less > eps_dd) | (needed == 0))
    assert (needed == 0).any()
    assert (needed > 1e4).any()


def test_a_budget_met_exactly_needs_no_further_step():
    steps = np.arange(0, 60.0)
    for contraction in (0.5, 0.4, 0.9):
        arguments = (2, 1, 1, 0.25, 8, 1 - contraction)
        budgets = deletion.deletion_optimal(*arguments, steps, smoothness=0)
        np.testing.assert_array_equal(
            deletion.delete_steps_optimal(*arguments, budgets, smoothness=0), steps
        )


def test_a_short_stay_needs_fewer_steps():
    present = np.array([1.0, 3, 10, 100, 1e6, np.inf])
    arguments = (2, 1, 1e-3, 4e-4, 100, 0.25)
    needed = deletion.delete_steps_optimal(*arguments, 0.1, present_steps=present, smoothness=0)
    assert np.all(np.diff(needed) >= 0)
    assert needed[0] < needed[-1] / 10
    after = deletion.deletion_optimal(*arguments, needed, present_steps=present, smoothness=0)
    before = deletion.deletion_optimal(*arguments, needed - 1, present_steps=present, smoothness=0)
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
    noise = privacy.noise_variance_optimal(
        order, eps_dp, 1.0, l2, n, step_size, smoothness=smoothness
    )
    base = {
        "order": order,
        "lipschitz": 1.0,
        "l2": l2,
        "noise_variance": noise,
        "n": n,
        "step_size": step_size,
        "smoothness": smoothness,
    }
    slack = 1 + 1e-12
    values = []
    for steps, bound in STEPS:
        value = bound(**base, delete_steps=delete_steps)
        assert isinstance(value, float)
        assert 0 <= value < np.inf
        values.append(value)
        assert bound(**base, delete_steps=2 * delete_steps + 1) <= value
        for name in ("order", "lipschitz"):
            assert (
                value <= bound(**base | {name: 2 * base[name]}, delete_steps=delete_steps) * slack
            )
        for name in ("noise_variance", "n"):
            assert (
                value >= bound(**base | {name: 2 * base[name]}, delete_steps=delete_steps) / slack
            )
        needed = steps(**base, eps_dd=eps_dd)
        assert needed >= 0
        assert needed == np.floor(needed)
        assert bound(**base, delete_steps=needed) <= eps_dd * slack
        assert needed >= steps(**base, eps_dd=2 * eps_dd)
    assert values[0] <= values[1] * slack
    assert values[1] <= values[2] * slack
    short = deletion.deletion_optimal(
        **base, delete_steps=delete_steps, present_steps=present_steps
    )
    longer = deletion.deletion_optimal(
        **base, delete_steps=delete_steps, present_steps=2 * present_steps
    )
    assert 0 <= short <= longer * slack
    assert longer <= values[0] * slack


def test_step_conditions_are_enforced():
    for name in (deletion.deletion_paper, deletion.deletion_unrelaxed):
        with pytest.raises(
            CertificateRefused, match=r"not below 1/\(λ\+β\) = 0\.5.*smaller than 0\.5"
        ):
            name(2, 1, 1, 0.1, 100, 0.5, 5, smoothness=1)
    for name in (deletion.delete_steps_paper, deletion.delete_steps_unrelaxed):
        with pytest.raises(CertificateRefused, match=r"not below 1/\(λ\+β\)"):
            name(2, 1, 1, 0.1, 100, 0.5, 0.1, smoothness=1)
    for name in (deletion.deletion_optimal, deletion.delete_steps_optimal):
        with pytest.raises(
            CertificateRefused, match=r"not at most 2/\(2λ\+β\) = 0\.5.*at most 0\.5"
        ):
            name(2, 1, 1, 0.1, 100, 0.6, 5, smoothness=2)


@pytest.mark.parametrize(
    ("bound", "changed", "text"),
    [
        (
            deletion.deletion_optimal,
            {"delete_steps": -1},
            "delete_steps = -1 is not a whole number",
        ),
        (
            deletion.deletion_paper,
            {"delete_steps": 0.5},
            "delete_steps = 0.5 is not a whole number",
        ),
        (deletion.deletion_optimal, {"present_steps": 0.5}, "present_steps = 0.5 is not a whole"),
        (deletion.deletion_unrelaxed, {"order": 0.9}, "order = 0.9 is not a Rényi order"),
        (deletion.deletion_optimal, {"records": 0}, "records = 0 is not a finite whole number"),
    ],
)
def test_bad_input_is_named(bound, changed, text):
    good = {
        "order": 2,
        "lipschitz": 1,
        "l2": 1,
        "noise_variance": 0.1,
        "n": 100,
        "step_size": 0.2,
        "delete_steps": 5,
        "smoothness": 0,
    }
    with pytest.raises(InputError, match=text):
        bound(**good | changed)


def test_a_budget_of_nothing_is_refused():
    for steps, _ in STEPS:
        with pytest.raises(InputError, match="eps_dd = 0 is not a positive finite number"):
            steps(2, *GOLDEN, 0, smoothness=0)
