"""Non-convex deletion: known settings, both directions against each other, and exact 1-D runs."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dd_jax.errors import CertificateRefused, InputError
from dd_jax.guarantees import nonconvex
from dd_jax.guarantees.nonconvex import FORMS, PROOFS, Bounded


def tanh(n=200, dim=1, **changes):
    """The loss -tanh(y⟨a, θ⟩): b = L = 1 and, here, β = λ = 0.77; q = 2, r = 1."""
    return replace(Bounded(2, 1, 0.77, 0.77, 1, n, dim), **changes)


def steps(found):
    """Learning and deletion steps to two digits."""
    return tuple(float(f"{count:.1e}") for count in (found.learn_steps, found.delete_steps))


def total(found):
    return found.learn_steps + found.delete_steps


# --- known settings, ε_dd = 0.5 -------------------------------------------------------------------

# dim, n, b/σ², then (K_L, K_U) of the paper and of the tuned form.
KNOWN = [
    (1, 200, 1, (1.7e7, 8.7e6), (1.2e5, 1.7e4)),
    (2, 1000, 0.5, (4.7e5, 3.1e5), (1.4e4, 2.9e3)),
    (10, 1000, 0.25, (2.1e5, 2.1e5), (8.0e3, 3.5e3)),
]


@pytest.mark.parametrize(("dim", "n", "ratio", "paper", "tuned"), KNOWN)
def test_known_settings(dim, n, ratio, paper, tuned):
    problem = tanh(n, dim)
    assert steps(nonconvex.settings_nonconvex_paper(problem, 1 / ratio, 0.5)) == paper
    found = nonconvex.settings_nonconvex_tuned(problem, 1 / ratio, 0.5, form="tuned")
    assert steps(found) == tuned
    # Privacy at ε_dp = 1 holds in each with room to spare.
    assert 2 * found.step_size * found.learn_steps / n**2 < found.noise_variance


def test_known_settings_of_the_tighter_forms():
    assert steps(PROOFS["refined"].settings(tanh(), 1, 0.5)) == (7.0e4, 1.4e4)
    # The start is within q b²/(2σ⁴) = 1 of its Gibbs law, not 2b/σ² = 2 times q.
    assert steps(PROOFS["sharp"].settings(tanh(), 1, 0.5)) == (2.6e4, 3.2e3)
    assert PROOFS["sharp"].settings(tanh(), 1, 1.0).learn_steps == 0  # the start is close enough


def test_paper_golden_values():
    # q = 2, λ = β = 1, b/σ² = 1/4 so B = e; limit = 1/(64·2·e·4) min(ε/d, 1/2).
    problem, noise = Bounded(2, 1, 1, 1, 0.5, n=10, dim=4, records=3), 2
    limit = nonconvex.step_size_limit_paper(problem, noise, eps_dd=1)
    assert limit == pytest.approx(1 / (2048 * np.e))
    wider = nonconvex.step_size_limit_paper(replace(problem, dim=1), noise, eps_dd=1)
    assert wider == pytest.approx(2 * limit)
    run = nonconvex.gibbs_divergence_paper(problem, noise, limit, 1000, initial_divergence=3)
    assert run == pytest.approx(6 * np.exp(-limit * 1000 / (2 * np.e)) + 1024 * limit * np.e)
    found = nonconvex.settings_nonconvex_paper(problem, noise, eps_dd=1)
    assert found.step_size == limit
    time = 2 * np.e / limit
    assert found.learn_steps == np.ceil(time * np.log(2))
    assert found.delete_steps == np.ceil(time * np.log(4 * 1.3))


@pytest.mark.parametrize(("form", "factor"), [("tuned", 1), ("refined", 2 / 3), ("sharp", 2 / 3)])
def test_tuned_golden_values(form, factor):
    # M = 2, κ = 2, Λ = √e; ηM = 1e-3.
    problem, noise, eta, root = Bounded(3, 1, 1, 1, 0.5, 10, 5, records=2), 2, 5e-4, np.exp(0.5)
    theta = 8 * eta * 36 * (eta + 2 * root * factor)
    c1 = 2 * (0.75 - theta) / root
    bias = 16 * 3 * 5 * eta * 4 * (2 * eta + np.log(2)) / c1
    kept, more = np.exp(-c1 * eta * 700), np.exp(-c1 * eta * 50)
    run = nonconvex.gibbs_divergence_tuned(problem, noise, eta, 700, 2, form)
    sharp = form == "sharp"
    assert run == pytest.approx(6 * kept + bias * (1 - kept if sharp else 1), rel=1e-12)
    start = 0.25**2 / 2 if sharp else 0.5
    level = 3 * kept * start + bias * (1 - kept if sharp else 1)
    for request in range(4):
        found = PROOFS[form].deletion(problem, noise, eta, 700, 50, request=request)
        assert found == pytest.approx(level, rel=1e-12)
        level = more * (level + 3 * 0.2) + bias * (1 - more if sharp else 1)


# --- both directions, and the forms against each other --------------------------------------------


def cases(seed, count):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        n = int(10 ** rng.uniform(0, 5))
        problem = Bounded(
            order=1 + 10 ** rng.uniform(-2, 1.5),
            lipschitz=1,
            l2=10 ** rng.uniform(-2, 2),
            smoothness=10 ** rng.uniform(-2, 2),
            bound=1.0,
            n=n,
            dim=int(10 ** rng.uniform(0, 3)),
            records=int(rng.integers(1, min(n, 20) + 1)),
        )
        yield problem, 10 ** rng.uniform(-0.7, 2), 10 ** rng.uniform(-3, 1)


def test_steps_meet_the_budget_they_were_computed_for():
    request = np.array([0, 1, 2, 50, np.inf])
    for problem, noise, eps_dd in cases(1, 25):
        most = np.inf
        for form in ("paper", *FORMS):
            found = PROOFS[form].settings(problem, noise, eps_dd)
            every = PROOFS[form].deletion(problem, *found, request=request)
            assert every.max() <= eps_dd * (1 + 1e-9)
            assert total(found) <= most * (1 + 1e-3) + 2
            most = total(found)
            if form == "paper":  # the tuned bound is no larger at the paper's settings
                tuned = PROOFS["tuned"].deletion(problem, *found, request=request)
                assert tuned.max() <= every.max() * (1 + 1e-9)


def test_steps_are_nearly_least():
    for problem, noise, eps_dd in cases(2, 8):
        for form in FORMS:
            best = PROOFS[form].settings(problem, noise, eps_dd)
            for factor in (0.3, 0.9, 1.02):
                try:
                    other = PROOFS[form].settings(problem, noise, eps_dd, factor * best.step_size)
                except CertificateRefused:
                    continue
                assert other.step_size == pytest.approx(factor * best.step_size, rel=1e-12)
                assert total(best) <= total(other) * (1 + 1e-6) + 2


def test_too_few_steps_certify_nothing():
    def remaining(form, delete, **request):
        return PROOFS[form].deletion(tanh(), 1, 1e-5, 1000, delete, **request)

    assert remaining("paper", 10) == np.inf
    assert np.isfinite(remaining("paper", 10, request=1))
    assert remaining("sharp", 0) == np.inf
    still, grown = (remaining("sharp", 0, request=i) for i in (0, 10))
    assert grown == pytest.approx(still + 10 * 2 * 4 / 200)


@pytest.mark.parametrize("form", ["paper", "sharp"])
def test_bounds_broadcast_and_that_for_all_requests_is_their_supremum(form):
    deletion, request = PROOFS[form].deletion, np.arange(1, 400)[:, None]
    learn, delete = np.array([0, 10**8]), 4 * 10**6  # the first request is the worst, or the last
    every = deletion(tanh(), 2, 1e-5, learn, delete, request=request)
    assert every.shape == (399, 2)
    one = deletion(tanh(), 2, 1e-5, 10**8, delete, request=3)
    assert isinstance(one, float)
    assert every[2, 1] == one
    supremum = deletion(tanh(), 2, 1e-5, learn, delete)
    assert supremum == pytest.approx(every.max(axis=0), rel=1e-12)


# --- the noise that privacy needs -----------------------------------------------------------------


def spent(problem, found):
    """ε_dp of the longer run."""
    time = found.step_size * max(found.learn_steps, found.delete_steps)
    return problem.order * (problem.lipschitz / problem.n) ** 2 * time / found.noise_variance


@pytest.mark.parametrize(("n", "eps_dp"), [(1, 10), (200, 1), (10**6, 0.1)])
def test_noise_is_the_least_that_is_private(n, eps_dp):
    problem, most = tanh(n, dim=2), np.inf
    for form in ("paper", *FORMS):
        found = PROOFS[form].noise(problem, eps_dp, 0.05)
        noise = found.noise_variance
        assert spent(problem, found) <= eps_dp * (1 + 1e-12)
        assert noise <= most * 1.05  # the fewest steps, not the least noise
        most = noise
        assert spent(problem, PROOFS[form].settings(problem, 0.99 * noise, 0.05)) > eps_dp
        assert spent(problem, PROOFS[form].settings(problem, 1.5 * noise, 0.05)) < eps_dp


# --- exact 1-D runs: the divergence from the Gibbs law, learning and then deleting ----------------


def renyi(order, p, q):
    keep = p > 1e-290
    return np.log(np.sum(p[keep] ** order * q[keep] ** (1 - order))) / (order - 1)


@pytest.mark.parametrize(("noise", "order"), [(1.0, 2.0), (2.0, 4.0)])
def test_exact_runs_stay_within_the_bound(noise, order):
    l2, theta = 0.77, np.linspace(-8, 8, 701)
    problem = Bounded(order, 1, l2, 0.77, 1, n=4, dim=1)
    step_size = 0.45 / (16 * order**2 * 4 * 0.77 * np.exp(2 / noise))
    width = 2 * step_size * noise
    assert np.sqrt(width) > theta[1] - theta[0]

    def kernel_and_gibbs(slopes):
        margin = np.outer(slopes, theta)
        loss = -np.tanh(margin).mean(0) + l2 / 2 * theta**2
        gradient = -(slopes @ (1 - np.tanh(margin) ** 2)) / 4 + l2 * theta
        moved = theta - step_size * gradient
        kernel = np.exp(-((theta[:, None] - moved) ** 2) / (2 * width))
        gibbs = np.exp(-(loss - loss.min()) / noise)
        return kernel / kernel.sum(0), gibbs / gibbs.sum()

    learn, gibbs = kernel_and_gibbs(np.array([1.0, 1.0, -1.0, 0.5]))
    delete, gibbs_after = kernel_and_gibbs(np.array([-1.0, 1.0, -1.0, 0.5]))
    start = np.exp(-l2 * theta**2 / (2 * noise))
    law = start = start / start.sum()
    initial = renyi(order, start, gibbs)
    assert initial <= order / (2 * noise**2)  # Hoeffding's
    for power in range(1, 12):  # 2, 4, …, 2048 steps
        learn, learned = learn @ learn, 2**power
        law = learn @ start
        bound = nonconvex.gibbs_divergence_tuned(problem, noise, step_size, learned, initial)
        assert renyi(order, law, gibbs) <= bound
    for power in range(1, 9):
        delete, deleted = delete @ delete, 2**power
        numbers = (problem, noise, step_size, learned, deleted)
        bound = nonconvex.deletion_nonconvex_tuned(*numbers, request=1)
        assert renyi(order, delete @ law, gibbs_after) <= bound


# --- extreme magnitudes ---------------------------------------------------------------------------


def magnitude(low, high):
    return st.floats(low, high).map(lambda x: 10.0**x)


def whole(high):
    return magnitude(0, high).map(np.floor)


@st.composite
def extremes(draw):
    l2, n = draw(magnitude(-6, 6)), draw(whole(12))
    return Bounded(
        order=draw(st.one_of(st.floats(1.0001, 100), magnitude(1, 6))),
        lipschitz=draw(magnitude(-6, 6)),
        l2=l2,
        smoothness=l2 * draw(magnitude(-3, 8)),
        bound=draw(magnitude(-6, 6)),
        n=n,
        dim=draw(whole(6)),
        records=max(1.0, np.floor(draw(st.floats(0, 1)) * n)),
    )


ANY_FORM = st.sampled_from(["paper", *FORMS])


def assert_sound(found):
    assert all(isinstance(value, float) and value >= 0 for value in found)
    assert found.noise_variance > 0
    assert found.delete_steps >= 1
    for count in (found.learn_steps, found.delete_steps):
        assert count == np.floor(count)


@settings(max_examples=50)
@given(extremes(), magnitude(-6, 4), magnitude(-12, 3), ANY_FORM)
def test_settings_are_sound_at_extremes(problem, ratio, eps_dd, form):
    noise = float(problem.bound) / ratio
    found = PROOFS[form].settings(problem, noise, eps_dd)
    assert_sound(found)
    if found.step_size > 1e-300 and found.delete_steps < np.inf:
        certified = PROOFS[form].deletion(problem, *found)
        assert 0 <= certified <= eps_dd * (1 + 1e-6)
    for easier in (
        PROOFS[form].settings(problem, noise, 2 * eps_dd),
        PROOFS[form].settings(problem, 2 * noise, eps_dd),
        PROOFS[form].settings(replace(problem, n=2 * problem.n), noise, eps_dd),
    ):
        assert total(easier) <= total(found) * (1 + 1e-4) + 2


@settings(max_examples=20)
@given(extremes(), magnitude(-12, 3), magnitude(-12, 3), ANY_FORM)
def test_noise_is_sound_at_extremes(problem, eps_dp, eps_dd, form):
    found = PROOFS[form].noise(problem, eps_dp, eps_dd)
    assert_sound(found)
    assert spent(problem, found) <= eps_dp * (1 + 1e-9)
    easier = PROOFS[form].noise(replace(problem, n=2 * problem.n), eps_dp, eps_dd)
    assert easier.noise_variance <= found.noise_variance * (1 + 1e-4)


@settings(max_examples=50)
@given(extremes(), magnitude(-6, 4), st.floats(1e-6, 1), whole(15), whole(15))
def test_certified_bounds_are_monotone_at_extremes(problem, ratio, share, learn, delete):
    noise = float(problem.bound) / ratio
    steepness = 64 * (problem.order * problem.curvature) ** 2
    log_limit = np.log(problem.l2 / steepness) - 4 * ratio
    step_size = np.exp(max(log_limit, -690)) * share

    def certified(form, learn, delete, request):
        numbers = (problem, noise, step_size, learn, delete)
        return PROOFS[form].deletion(*numbers, request=request)

    if log_limit < -690:
        with pytest.raises(CertificateRefused, match="step_size"):
            certified("paper", learn, delete, 1)
        return
    for request in (0, 1, 10**9, np.inf):
        looser = np.inf
        for form in ("paper", *FORMS):
            found = certified(form, learn, delete, request)
            assert 0 <= found <= looser * (1 + 1e-9)
            looser = found
            if form != "sharp":  # which may rise towards the bias as the start is forgotten
                assert certified(form, 2 * learn, delete, request) <= found * (1 + 1e-9)
                assert certified(form, learn, 2 * delete, request) <= found * (1 + 1e-9)


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: PROOFS["paper"].deletion(tanh(), 1, 1e-3, 1, 1), "step_size"),
        (lambda: PROOFS["paper"].settings(tanh(), 1, 0.5, 1e-3), "step_size"),
        # No step size is small enough for so little noise.
        (lambda: PROOFS["paper"].deletion(tanh(), 1e-3, 1e-3, 1, 1), "noise_variance"),
        (lambda: PROOFS["sharp"].deletion(tanh(), 1, 0.1, 1, 1), "step_size"),
        (lambda: PROOFS["sharp"].settings(tanh(), 1, 0.5, 0.1), "eps_dd"),
        (lambda: tanh(records=201), "exceeds n"),
    ],
)
def test_refusals(call, word):
    with pytest.raises(CertificateRefused, match=word):
        call()


def test_both_conditions_of_the_paper_are_enforced_at_their_limit():
    """λ/(64Bq²M²) for a bound, λ/(64qBM²) · min(ε_dd/d, 1/q) for a plan."""
    share = 0.77 / (64 * 4 * np.exp(4) * 1.54**2)
    for call, limit in (
        (lambda eta: PROOFS["paper"].deletion(tanh(), 1, eta, 1, 1), share),
        (lambda eta: PROOFS["paper"].settings(tanh(), 1, 0.5, eta), share),
        (lambda eta: PROOFS["paper"].settings(tanh(dim=4), 1, 0.5, eta), share * 2 * 0.5 / 4),
    ):
        call(limit * (1 - 1e-9))
        with pytest.raises(CertificateRefused, match="step_size"):
            call(limit * (1 + 1e-9))


def test_bad_input_is_named():
    with pytest.raises(InputError, match="form"):
        nonconvex.settings_nonconvex_tuned(tanh(), 1, 0.5, form="tight")
    with pytest.raises(InputError, match="bound"):
        tanh(bound=0)
