"""The linear loss in closed form, and the requester that recodes the database."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dd_jax.errors import InputError
from dd_jax.oracles import gaussian, linear

GOLDEN = {"lipschitz": 1, "l2": 1, "noise_variance": 4e-4, "n": 100, "step_size": 0.25}
PAPER_INIT = 4e-4 / (1 - 0.25 / 2)
# The optimal noise for ε_dp = 1 at order 2, step size 1/4, n = 100.
UNIT = {**GOLDEN, "noise_variance": 2 * (2 - 0.25) / 100**2}


@pytest.mark.parametrize(
    ("present", "deleted", "init", "value"),
    [
        (5, 0, 0.0, 0.26968),
        (5, 0, PAPER_INIT, 0.2545),
        (math.inf, 0, 0.0, 0.4375),
        (400, 5, 0.0, 0.02464),
    ],
)
def test_golden_values(present, deleted, init, value):
    exact = linear.renyi(
        3, **GOLDEN, present_steps=present, delete_steps=deleted, init_variance=init
    )
    assert exact / 3 == pytest.approx(value, abs=5e-6 if value != 0.2545 else 5e-5)


@given(
    l2=st.floats(1e-3, 3),
    step=st.floats(1e-3, 1.9),
    init=st.floats(0, 2),
    steps=st.tuples(*[st.integers(0, 40)] * 3).filter(lambda s: s[1] > 0),
)
@settings(max_examples=50)
def test_closed_form_is_the_gaussian_law(l2, step, init, steps):
    earlier, present, deleted = steps
    step_size, rows = step / l2, np.zeros((7, 2))
    laws = []
    for side in (1.5, -1.5):
        held = rows.copy()
        held[3] = side * np.array([0.6, 0.8])
        laws.append(
            gaussian.law_after(
                [
                    gaussian.linear_phase(rows, l2, earlier),
                    gaussian.linear_phase(held, l2, present),
                    gaussian.linear_phase(rows, l2, deleted),
                ],
                step_size,
                0.3,
                np.zeros(2),
                init,
            )
        )
    exact = linear.renyi(
        2.5,
        1.5,
        l2,
        0.3,
        7,
        step_size,
        present,
        delete_steps=deleted,
        init_variance=init,
        earlier_steps=earlier,
    )
    assert exact == pytest.approx(gaussian.renyi(2.5, *laws), rel=1e-7, abs=1e-14)
    spread = linear.variance(l2, 0.3, step_size, sum(steps), init)
    assert laws[0].covariance == pytest.approx(spread * np.eye(2), rel=1e-10, abs=1e-14)


def test_closed_form_broadcasts_and_is_accurate_for_tiny_rates():
    values = linear.renyi(2, 1.0, 1e-12, 1.0, 10, 0.5, np.array([1, 10, 100]))
    lipschitz_bound = 2 * 0.5 * np.array([1, 10, 100]) / 100  # q L² η K / (σ² n²)
    assert values == pytest.approx(lipschitz_bound, rel=1e-9)


def test_no_contraction_left_at_step_size_one_over_l2():
    assert linear.mean_shift(1, 2.0, 10, 0.5, 4, 0) == pytest.approx(0.1)
    assert linear.mean_shift(1, 2.0, 10, 0.5, 4, 1) == 0
    assert linear.renyi(2, 1, 2.0, 1.0, 10, 0.5, 4, delete_steps=1) == 0
    assert linear.renyi(2, 1, 2.0, 1.0, 10, 0.5, 0) == 0


def test_coin_divergence():
    heads = stats.norm.cdf(0.5)
    expected = np.log(heads**2 / (1 - heads) + (1 - heads) ** 2 / heads)
    assert linear.coin_renyi(2, 1.0) == pytest.approx(expected, rel=1e-14)
    assert linear.coin_renyi(2, 1.0) == pytest.approx(0.523, abs=5e-4)
    assert linear.coin_renyi(7, 0.0) == 0


def test_recoding_leaves_the_coin_however_long_deletion_runs():
    for steps in (60, math.inf):
        deleted = linear.recoding_renyi(
            2, **UNIT, learn_steps=math.inf, present_steps=0, delete_steps=steps
        )
        stays = linear.recoding_renyi(
            2, **UNIT, learn_steps=math.inf, present_steps=steps, delete_steps=0
        )
        assert deleted == pytest.approx(0.523, abs=5e-4)
        assert stays == pytest.approx(1.523, abs=5e-4)
        assert stays == pytest.approx(1 + linear.coin_renyi(2, 1.0), rel=1e-6)


@pytest.mark.parametrize("order", [1.5, 6])
@pytest.mark.parametrize("steps", [1, 5, 20])
def test_recoding_respects_the_adaptive_bounds_and_breaks_the_plain_ones(order, steps):
    noise = order * (2 - 0.25) / 100**2  # ε_dp = 1 at this order
    unit = {**UNIT, "noise_variance": noise}
    deleted = linear.recoding_renyi(
        order, **unit, learn_steps=math.inf, present_steps=0, delete_steps=steps
    )
    stays = linear.recoding_renyi(
        order, **unit, learn_steps=math.inf, present_steps=steps, delete_steps=0
    )
    eps_dd = (1 - 0.25) ** (2 * steps)
    assert deleted <= 1 + 1e-12  # p ε_dp: the model just before the deletion was seen
    assert stays <= 2  # (p + 1) ε_dp
    assert stays <= 1 + (1 - 0.75**steps) / (1 + 0.75**steps) + 1e-12  # all releases jointly
    assert deleted > eps_dd
    assert stays > 1


def test_recoding_against_brute_force_quadrature():
    """The defining integral over the seen model, with no closed form for the mixture."""
    n, l2, noise, eta, order = 3, 0.8, 0.5, 0.4, 2.5
    learn, present, deleted = 4, 2, 1
    contraction = 1 - eta * l2
    after = present + deleted

    def run(steps, records):
        mean, spread = 0.0, 0.0
        for _, record in zip(range(steps), records, strict=True):
            mean = contraction * mean + eta * record / n
            spread = contraction**2 * spread + 2 * eta * noise
        return mean, spread

    nodes, weights = np.polynomial.legendre.leggauss(120)
    nodes, weights = 4.5 * (nodes + 1), 4.5 * weights  # on [0, 9]

    def density(y, side):
        mean0, var0 = run(learn, [side] * learn)
        total = np.zeros_like(y)
        for sign in (1, -1):
            others, seen = sign * (n - 1), sign * nodes
            mean, spread = run(after, [others + side] * present + [others] * deleted)
            centre = contraction**after * seen + mean
            given_seen = stats.norm.pdf(y[:, None], centre, math.sqrt(spread))
            total += given_seen @ (weights * stats.norm.pdf(seen, mean0, math.sqrt(var0)))
        return total

    points = np.linspace(-8, 8, 161)
    plus, minus = (density(points, side) for side in (1, -1))
    brute = np.log(np.sum(plus**order * minus ** (1 - order)) * 0.1) / (order - 1)
    exact = linear.recoding_renyi(
        order, 1, l2, noise, n, eta, learn_steps=learn, present_steps=present, delete_steps=deleted
    )
    assert exact == pytest.approx(brute, rel=1e-8)


def test_recoding_with_nothing_to_recode_is_the_plain_law():
    """With n = 1 there is no other row, so the requester does nothing."""
    alone = {**UNIT, "n": 1, "noise_variance": 3.0}
    for present, deleted in ((0, 3), (3, 0), (2, 2)):
        recoded = linear.recoding_renyi(
            4, **alone, learn_steps=6, present_steps=present, delete_steps=deleted, init_variance=2
        )
        plain = linear.renyi(
            4, **alone, present_steps=6 + present, delete_steps=deleted, init_variance=2
        )
        assert recoded == pytest.approx(plain, rel=1e-11)


@pytest.mark.parametrize(
    "change",
    [
        {"order": 1},
        {"noise_variance": -1.0},
        {"lipschitz": math.nan},
        {"n": 0},
        {"present_steps": 1.5},
        {"step_size": 2.0},
        {"init_variance": -1},
    ],
)
def test_bad_input_is_refused(change):
    (name,) = change
    with pytest.raises(InputError, match=name):
        linear.renyi(**({"order": 2, **GOLDEN, "present_steps": 5, "delete_steps": 1} | change))


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"present_steps": 0}, "present_steps"),
        ({"learn_steps": 0}, "learn_steps"),
        ({"order": 1e9}, "order"),
        ({"step_size": 1e-12, "learn_steps": math.inf}, "quadrature"),
    ],
)
def test_recoding_refuses_no_steps_and_absurd_numbers(change, word):
    arguments = {"order": 2, **UNIT, "learn_steps": 3, "present_steps": 1, "delete_steps": 0}
    with pytest.raises(InputError, match=word):
        linear.recoding_renyi(**(arguments | change))
