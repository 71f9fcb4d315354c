"""Adaptive forms: the sound sums, interval forms against exact joint laws, and E2's attack."""

from dataclasses import replace

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dd_jax.errors import InputError
from dd_jax.guarantees import adaptive, convex, renyi
from dd_jax.guarantees.convex import Descent

RUN = Descent(2.0, 1.0, 0.5, 0, 0.01, 100, 0.3)  # q, L, λ, β, σ², n, η


def test_sums():
    for bound in (adaptive.deletion_adaptive, adaptive.deletion_adaptive_as_stated):
        assert bound(0.1, 1.0, 3) == pytest.approx(3.1)
        assert bound(0.1, np.inf, 0) == 0.1
    assert adaptive.privacy_adaptive(0.3, 0) == 0.3
    assert adaptive.privacy_adaptive(0.3, 4) == pytest.approx(1.5)


def test_gaussian_and_renyi_sums_agree():
    eps = adaptive.deletion_adaptive(renyi.renyi_from_gdp(3, 0.2), renyi.renyi_from_gdp(3, 0.9), 5)
    mu = adaptive.deletion_adaptive_mu(0.2, 0.9, 5)
    assert renyi.renyi_from_gdp(3, mu) == pytest.approx(eps, rel=1e-14)


def joint_exact(times, shifts, run):
    """R_q of several releases of the linear loss jointly, from one fixed start."""
    contraction = 1 - run.step_size * run.l2
    times, shifts = np.asarray(times, float), np.asarray(shifts)
    variance = (
        2
        * run.step_size
        * run.noise_variance
        * (1 - contraction ** (2 * times))
        / (1 - contraction**2)
    )
    earlier = np.minimum.outer(np.arange(len(times)), np.arange(len(times)))
    covariance = contraction ** np.abs(np.subtract.outer(times, times)) * variance[earlier]
    return run.order / 2 * shifts @ np.linalg.solve(covariance, shifts)


def random_interaction(rng):
    request = int(rng.integers(1, 7))
    inserted = int(rng.integers(0, request))
    seen = [s for s in range(inserted, request) if rng.random() < 0.5]
    l2 = rng.uniform(0.1, 2)
    sizes = (1 + rng.exponential(2), rng.uniform(0.1, 3), l2, 0, rng.uniform(0.01, 1), 50)
    steps = int(rng.integers(1, 40)), int(rng.integers(1, 15))
    return request, inserted, seen, Descent(*sizes, rng.uniform(0.02, 1) / l2), steps


def steps_by_counting(release, inserted, learn, delete):
    """Steps with the record up to and including a release, one run at a time."""
    runs = [learn] + [delete] * release
    return sum(runs[inserted:])


def test_intervals_are_attained_jointly_by_the_linear_loss():
    rng = np.random.default_rng(0)
    for _ in range(100):
        request, inserted, seen, run, (learn, delete) = random_interaction(rng)
        contraction = 1 - run.step_size * run.l2
        reach = 2 * run.lipschitz / (run.n * run.l2)
        present = [steps_by_counting(s, inserted, learn, delete) for s in seen]
        total = steps_by_counting(request - 1, inserted, learn, delete)
        exact = joint_exact(
            [*present, total + delete],
            [reach * (1 - contraction**k) for k in present]
            + [reach * (1 - contraction**total) * contraction**delete],
            run,
        )
        bound = adaptive.deletion_adaptive_intervals(
            run, learn, delete, request, seen, first_inserted=inserted
        )
        assert bound == pytest.approx(exact, rel=1e-9)
        eps_dd = convex.deletion_optimal(run, delete)
        eps_dp = convex.privacy_optimal(run, np.inf)
        assert bound <= adaptive.deletion_adaptive(eps_dd, eps_dp, len(seen)) * (1 + 1e-12)


def test_intervals_of_records_that_stay_are_attained_too():
    rng = np.random.default_rng(1)
    for _ in range(100):
        request, inserted, seen, run, (learn, delete) = random_interaction(rng)
        contraction = 1 - run.step_size * run.l2
        looks = sorted({*seen, request - 1})
        present = [steps_by_counting(s, inserted, learn, delete) for s in looks]
        shifts = [2 * run.lipschitz / (run.n * run.l2) * (1 - contraction**k) for k in present]
        exact = joint_exact(present, shifts, run)
        bound = adaptive.privacy_adaptive_intervals(
            run, learn, delete, request - 1, seen, first_inserted=inserted
        )
        assert bound == pytest.approx(exact, rel=1e-9)
        eps_dp = convex.privacy_optimal(run, np.inf)
        assert bound <= adaptive.privacy_adaptive(eps_dp, len(seen)) * (1 + 1e-12)
        run_sum = adaptive.privacy_run_sum(run, learn, delete, request - 1, first_inserted=inserted)
        assert bound <= run_sum * (1 + 1e-12)
        history = (run, learn, delete, request - 1)
        every = adaptive.privacy_adaptive_intervals(*history, range(request))
        assert adaptive.privacy_all_releases(*history) == pytest.approx(every, rel=1e-12)


def test_what_an_interval_form_becomes_at_its_ends():
    def remaining(observed, learn=30, **more):
        return adaptive.deletion_adaptive_intervals(RUN, learn, 4, 6, observed, **more)

    assert remaining([]) == convex.deletion_optimal(RUN, 4, present=30 + 5 * 4)
    # The model just before the deletion was seen: nothing is left to the deletion.
    assert remaining([5]) == convex.privacy_optimal(RUN, 30 + 5 * 4)
    endless = convex.privacy_optimal(RUN, [np.inf, 20]).sum()
    assert remaining([0, 5], 10**6) == pytest.approx(endless, rel=1e-14)
    # Releases outside the record's stay are free.
    inside, outside = (remaining(seen, first_inserted=2) for seen in ([3], [0, 1, 3, 3, 6, 9]))
    assert inside == outside


def test_run_sums():
    unit = 3 * 1.5**2 * 0.1 / (0.2 * 50**2)
    run = Descent(3, 1.5, 0, np.inf, 0.2, 50, 0.1)
    arguments = (run, 100, 7)
    assert adaptive.deletion_run_sum(*arguments, 4) == pytest.approx(unit * 121)
    assert adaptive.deletion_run_sum(*arguments, 4, first_inserted=2) == pytest.approx(unit * 14)
    assert adaptive.deletion_run_sum(replace(run, records=2), 100, 7, 4) == pytest.approx(
        4 * unit * 121
    )
    assert adaptive.privacy_run_sum(*arguments, 4) == pytest.approx(unit * 128)
    assert adaptive.privacy_run_sum(*arguments, 0) == pytest.approx(unit * 100)
    assert adaptive.privacy_run_sum(*arguments, 4, first_inserted=2) == pytest.approx(unit * 21)
    assert adaptive.deletion_runs(0.5, 4) == 2.0
    assert adaptive.deletion_runs(0.5, 4, first_inserted=3) == 0.5
    np.testing.assert_allclose(
        adaptive.deletion_run_sum(*arguments, [1, 2, 3], first_inserted=[0, 0, 2]),
        unit * np.array([100, 107, 7]),
    )


def test_run_sum_is_within_the_count_of_runs():
    run = Descent(3, 1.5, 0, np.inf, 0.2, 50, 0.1)
    eps_dp = convex.privacy_lipschitz(run, 100)
    for request in (1, 2, 9):
        tighter = adaptive.deletion_run_sum(run, 100, 7, request)
        assert tighter <= adaptive.deletion_runs(eps_dp, request) * (1 + 1e-12)


def test_recoding_requester_reaches_the_numbers_of_the_erratum():
    mu = np.sqrt(2 * 1.0 / 2)  # ε_dp = 1 at q = 2
    assert adaptive.recoding_leak(2, mu) == pytest.approx(0.523, abs=5e-4)
    assert adaptive.recoding_leak_staying(2, mu) == pytest.approx(1.523, abs=5e-4)


@pytest.mark.parametrize("order", [1.01, 2, 30])
@pytest.mark.parametrize("mu", [1e-3, 0.5, 6.0])
def test_recoding_leak_is_the_divergence_of_two_coins(order, mu):
    with mpmath.workdps(40):
        p = mpmath.ncdf(mpmath.mpf(mu) / 2)
        r = 1 - p
        moment = p**order * r ** (1 - order) + r**order * p ** (1 - order)
        exact = float(mpmath.log(moment) / (order - 1))
    assert adaptive.recoding_leak(order, mu) == pytest.approx(exact, rel=1e-8, abs=1e-13)
    assert adaptive.recoding_leak(order, np.inf) == np.inf
    assert adaptive.recoding_leak(order, 0) == 0


@settings(max_examples=100)
@given(
    log_order=st.floats(-3, 6),
    log_eps=st.floats(-12, 3),
    eps_dd=st.floats(0, 1),
)
def test_recoding_refutes_the_bare_numbers_and_never_the_sound_ones(log_order, log_eps, eps_dd):
    order, eps_dp = 1 + 10**log_order, 10**log_eps
    mu = renyi.gdp_from_linear_renyi(order, eps_dp)
    gone, stays = adaptive.recoding_leak(order, mu), adaptive.recoding_leak_staying(order, mu)
    slack = 1 + 1e-9
    assert 0 <= gone <= adaptive.deletion_adaptive(eps_dd, eps_dp, 1) * slack
    assert eps_dp / slack <= stays <= adaptive.privacy_adaptive(eps_dp, 1) * slack
    if log_eps > -6 and order < 1e3:
        assert gone > 0  # above ε_dd once enough deletion steps are taken
        assert stays > eps_dp


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: adaptive.deletion_runs(1, 0), "request"),
        (lambda: adaptive.deletion_runs(1, 2, first_inserted=2), "first_inserted"),
        (lambda: adaptive.deletion_adaptive(-1, 1, 1), "eps_dd"),
        (lambda: adaptive.deletion_adaptive(1, 1, 0.5), "adaptivity"),
        (lambda: adaptive.deletion_adaptive_intervals(RUN, 3, 4, 6, [1.5]), "observed"),
        (lambda: adaptive.deletion_adaptive_intervals(RUN, 3, 4, [6, 7], [1]), "request"),
    ],
)
def test_bad_input_is_named(call, name):
    with pytest.raises(InputError, match=name):
        call()
