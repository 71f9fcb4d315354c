"""Non-convex deletion: known settings, both directions against each other, and exact 1-D runs."""

from dataclasses import fields
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dd_jax.errors import CertificateRefused, InputError
from dd_jax.guarantees import nonconvex

FIELDS = {field.name for field in fields(nonconvex.Bounded)}


def call(formula, edits_per_request=1, **values):
    """A formula of all its numbers by name; those of `Bounded` that it does not need are 1."""
    values = {"lipschitz": 1, "n": 1, "dim": 1, "records": edits_per_request} | values
    problem = nonconvex.Bounded(**{name: values.pop(name) for name in FIELDS})
    return formula(problem, **values)


TANH = {"order": 2, "l2": 0.77, "smoothness": 0.77, "bound": 1}


def steps(found):
    """Learning and deletion steps to two digits."""
    return tuple(float(f"{count:.1e}") for count in (found.learn_steps, found.delete_steps))


# Known settings: -tanh(y⟨a, θ⟩), b = L = 1, β = λ = 0.77, q = 2, ε_dd = 0.5, r = 1.


# dim, n, b/σ², then (K_L, K_U) of the paper and of the tuned form.
KNOWN = [
    (1, 200, 1, (1.7e7, 8.7e6), (1.2e5, 1.7e4)),
    (2, 1000, 0.5, (4.7e5, 3.1e5), (1.4e4, 2.9e3)),
    (10, 1000, 0.25, (2.1e5, 2.1e5), (8.0e3, 3.5e3)),
]


@pytest.mark.parametrize(("dim", "n", "ratio", "paper", "tuned"), KNOWN)
def test_known_settings(dim, n, ratio, paper, tuned):
    case = TANH | {"noise_variance": 1 / ratio, "n": n, "dim": dim, "eps_dd": 0.5}
    found = call(nonconvex.settings_nonconvex_paper, **case)
    assert steps(found) == paper
    found = call(nonconvex.settings_nonconvex_tuned, **case, form="tuned")
    assert steps(found) == tuned
    # Privacy at ε_dp = 1 holds in each with room to spare.
    assert 2 * found.step_size * found.learn_steps / n**2 < found.noise_variance


def test_known_settings_of_the_tighter_forms():
    case = TANH | {"noise_variance": 1, "n": 200, "dim": 1, "eps_dd": 0.5}
    solve = partial(call, nonconvex.settings_nonconvex_tuned)
    assert steps(solve(**case, form="refined")) == (7.0e4, 1.4e4)
    # The start is within q b²/(2σ⁴) = 1 of its Gibbs law, not 2b/σ² = 2 times q.
    assert steps(solve(**case)) == (2.6e4, 3.2e3)
    assert solve(**(case | {"eps_dd": 1.0})).learn_steps == 0  # the start is close enough


def test_paper_golden_values():
    # q = 2, λ = β = 1, b/σ² = 1/4 so B = e; limit = 1/(64·2·e·4) min(ε/d, 1/2).
    shape = {"order": 2, "l2": 1, "smoothness": 1, "bound": 0.5, "noise_variance": 2}
    limit = call(nonconvex.step_size_limit_paper, **shape, dim=4, eps_dd=1)
    assert limit == pytest.approx(1 / (2048 * np.e))
    assert call(nonconvex.step_size_limit_paper, **shape, dim=1, eps_dd=1) == pytest.approx(
        2 * limit
    )
    run = call(
        nonconvex.gibbs_divergence_paper,
        **shape,
        dim=4,
        step_size=limit,
        num_steps=1000,
        initial_divergence=3,
    )
    assert run == pytest.approx(6 * np.exp(-limit * 1000 / (2 * np.e)) + 1024 * limit * np.e)
    found = call(
        nonconvex.settings_nonconvex_paper, **shape, n=10, dim=4, eps_dd=1, edits_per_request=3
    )
    assert found.step_size == limit
    time = 2 * np.e / limit
    assert found.learn_steps == np.ceil(time * np.log(2))
    assert found.delete_steps == np.ceil(time * np.log(4 * 1.3))


def test_tuned_golden_values():
    # M = 2, κ = 2, Λ = √e; ηM = 1e-3.
    shape = {"order": 3, "l2": 1, "smoothness": 1, "bound": 0.5, "noise_variance": 2}
    eta, root = 5e-4, np.exp(0.5)
    for form, factor in (("tuned", 1), ("refined", 2 / 3), ("sharp", 2 / 3)):
        theta = 8 * eta * 36 * (eta + 2 * root * factor)
        c1 = 2 * (0.75 - theta) / root
        bias = 16 * 3 * 5 * eta * 4 * (2 * eta + np.log(2)) / c1
        kept = np.exp(-c1 * eta * 700)
        run = call(
            nonconvex.gibbs_divergence_tuned,
            **shape,
            dim=5,
            step_size=eta,
            num_steps=700,
            initial_divergence=2,
            form=form,
        )
        built = 1 - kept if form == "sharp" else 1
        assert run == pytest.approx(3 * kept * 2 + bias * built, rel=1e-12)
        start = 0.25**2 / 2 if form == "sharp" else 0.5
        level = 3 * kept * start + bias * built
        more = np.exp(-c1 * eta * 50)
        for request in range(4):
            found = call(
                nonconvex.deletion_nonconvex_tuned,
                **shape,
                n=10,
                dim=5,
                step_size=eta,
                learn_steps=700,
                delete_steps=50,
                edits_per_request=2,
                request=request,
                form=form,
            )
            assert found == pytest.approx(level, rel=1e-12)
            level = more * (level + 3 * 0.2) + bias * (1 - more if form == "sharp" else 1)


def test_a_given_step_size_is_used():
    case = TANH | {"noise_variance": 1, "n": 200, "dim": 1, "eps_dd": 0.5}
    for solve in (
        partial(call, nonconvex.settings_nonconvex_paper),
        partial(call, nonconvex.settings_nonconvex_tuned),
    ):
        best, half = solve(**case), solve(**case, step_size=1e-5)
        assert half.step_size == pytest.approx(1e-5, rel=1e-12)
        assert half.learn_steps > best.learn_steps


# Both directions, and the forms against each other.


def cases(rng, count):
    for _ in range(count):
        order = 1 + 10 ** rng.uniform(-2, 1.5)
        n = int(10 ** rng.uniform(0, 5))
        yield {
            "order": order,
            "l2": 10 ** rng.uniform(-2, 2),
            "smoothness": 10 ** rng.uniform(-2, 2),
            "bound": 1.0,
            "noise_variance": 10 ** rng.uniform(-0.7, 2),
            "n": n,
            "dim": int(10 ** rng.uniform(0, 3)),
            "edits_per_request": int(rng.integers(1, min(n, 20) + 1)),
            "eps_dd": 10 ** rng.uniform(-3, 1),
        }


def test_steps_meet_the_budget_they_were_computed_for():
    for case in cases(np.random.default_rng(1), 25):
        rest = {k: v for k, v in case.items() if k != "eps_dd"}
        limit = case["eps_dd"] * (1 + 1e-9)

        def certified(bound, found, rest=rest, **form):
            steps = dict(zip(("step_size", "learn_steps", "delete_steps"), found[1:], strict=True))
            every = [bound(**rest, **steps, request=i, **form) for i in (0, 1, 2, 50, np.inf)]
            return max(every)

        found = call(nonconvex.settings_nonconvex_paper, **case)
        paper = certified(partial(call, nonconvex.deletion_nonconvex_paper), found)
        assert paper <= limit
        total = found.learn_steps + found.delete_steps
        tuned_at_paper = certified(
            partial(call, nonconvex.deletion_nonconvex_tuned), found, form="tuned"
        )
        assert tuned_at_paper <= paper * (1 + 1e-9)
        for form in nonconvex.FORMS:
            found = call(nonconvex.settings_nonconvex_tuned, **case, form=form)
            assert (
                certified(partial(call, nonconvex.deletion_nonconvex_tuned), found, form=form)
                <= limit
            )
            assert found.learn_steps + found.delete_steps <= total * (1 + 1e-3) + 2
            total = found.learn_steps + found.delete_steps


def test_steps_are_nearly_least():
    for case in cases(np.random.default_rng(2), 8):
        for form in nonconvex.FORMS:
            best = call(nonconvex.settings_nonconvex_tuned, **case, form=form)
            for factor in (0.3, 0.7, 0.9, 1.02):
                try:
                    other = call(
                        nonconvex.settings_nonconvex_tuned,
                        **case,
                        form=form,
                        step_size=factor * best.step_size,
                    )
                except CertificateRefused:
                    continue
                total = other.learn_steps + other.delete_steps
                assert best.learn_steps + best.delete_steps <= total * (1 + 1e-6) + 2


def test_too_few_steps_certify_nothing():
    case = TANH | {"noise_variance": 1, "n": 200, "dim": 1}
    steps = {"step_size": 1e-5, "learn_steps": 1000}
    paper = call(nonconvex.deletion_nonconvex_paper, **case, **steps, delete_steps=10)
    assert paper == np.inf
    one = call(nonconvex.deletion_nonconvex_paper, **case, **steps, delete_steps=10, request=1)
    assert np.isfinite(one)
    tuned = call(nonconvex.deletion_nonconvex_tuned, **case, **steps, delete_steps=0)
    assert tuned == np.inf
    still = call(nonconvex.deletion_nonconvex_tuned, **case, **steps, delete_steps=0, request=0)
    grown = call(nonconvex.deletion_nonconvex_tuned, **case, **steps, delete_steps=0, request=10)
    assert grown == pytest.approx(still + 10 * 2 * 4 / 200)


def test_the_bound_for_all_requests_is_their_supremum():
    case = TANH | {"noise_variance": 2, "n": 200, "dim": 1, "step_size": 1e-5}
    for bound in (
        partial(call, nonconvex.deletion_nonconvex_paper),
        partial(call, nonconvex.deletion_nonconvex_tuned),
    ):
        for learn in (0, 10**8):  # the first request is the worst, then the last
            steps = {"learn_steps": learn, "delete_steps": 4 * 10**6}
            every = bound(**case, **steps, request=np.arange(1, 400))
            assert bound(**case, **steps) == pytest.approx(every.max(), rel=1e-12)


def test_bounds_broadcast():
    request, learn = np.arange(4)[:, None], np.array([0, 10, 10**6])
    case = TANH | {"noise_variance": 1, "n": 200, "dim": 1, "step_size": 1e-5}
    for bound in (
        partial(call, nonconvex.deletion_nonconvex_paper),
        partial(call, nonconvex.deletion_nonconvex_tuned),
    ):
        found = bound(**case, learn_steps=learn, delete_steps=10**6, request=request)
        assert found.shape == (4, 3)
        one = bound(**case, learn_steps=10, delete_steps=10**6, request=2)
        assert isinstance(one, float)
        assert found[2, 1] == one


# The noise that privacy asks for.


def spent(order, lipschitz, n, found):
    steps = max(found.learn_steps, found.delete_steps)
    return order * (lipschitz / n) ** 2 * found.step_size * steps / found.noise_variance


@pytest.mark.parametrize(("n", "eps_dp"), [(1, 10), (200, 1), (10**6, 0.1)])
def test_noise_is_the_least_that_is_private(n, eps_dp):
    case = TANH | {"n": n, "dim": 2, "eps_dd": 0.05}
    paper = call(nonconvex.noise_nonconvex_paper, **case, lipschitz=1, eps_dp=eps_dp)
    assert eps_dp * (1 - 1e-3) <= spent(2, 1, n, paper) <= eps_dp * (1 + 1e-12)
    noise = paper.noise_variance
    for form in nonconvex.FORMS:
        found = call(nonconvex.noise_nonconvex_tuned, **case, lipschitz=1, eps_dp=eps_dp, form=form)
        assert spent(2, 1, n, found) <= eps_dp * (1 + 1e-12)
        assert found.noise_variance <= noise * 1.05  # the fewest steps, not the least noise
        noise = found.noise_variance
        less = call(
            nonconvex.settings_nonconvex_tuned, **case, noise_variance=0.99 * noise, form=form
        )
        assert spent(2, 1, n, less) > eps_dp
        more = call(
            nonconvex.settings_nonconvex_tuned, **case, noise_variance=1.5 * noise, form=form
        )
        assert spent(2, 1, n, more) < eps_dp


# Exact 1-D runs: the divergence from the Gibbs law, learning and then deleting.


def renyi(order, p, q):
    keep = p > 1e-290
    return np.log(np.sum(p[keep] ** order * q[keep] ** (1 - order))) / (order - 1)


@pytest.mark.parametrize(("noise_variance", "order"), [(1.0, 2.0), (2.0, 4.0)])
def test_exact_runs_stay_within_the_bound(noise_variance, order):
    l2, slopes, n = 0.77, np.array([1.0, 1.0, -1.0, 0.5]), 4
    theta = np.linspace(-8, 8, 701)
    spacing = theta[1] - theta[0]

    def kernel_and_gibbs(slopes, step_size):
        margin = np.outer(slopes, theta)
        loss = -np.tanh(margin).mean(0) + l2 / 2 * theta**2
        gradient = -(slopes @ (1 - np.tanh(margin) ** 2)) / n + l2 * theta
        moved = theta - step_size * gradient
        width = 2 * step_size * noise_variance
        kernel = np.exp(-((theta[:, None] - moved) ** 2) / (2 * width))
        gibbs = np.exp(-(loss - loss.min()) / noise_variance)
        return kernel / kernel.sum(0), gibbs / gibbs.sum()

    shape = {"order": order, "l2": l2, "smoothness": 0.77, "bound": 1, "dim": 1}
    shape["noise_variance"] = noise_variance
    step_size = 0.45 / (16 * order**2 * 4 * 0.77 * np.exp(2 / noise_variance))
    assert np.sqrt(2 * step_size * noise_variance) > spacing
    slopes_after = np.array([-1.0, 1.0, -1.0, 0.5])
    learn, gibbs = kernel_and_gibbs(slopes, step_size)
    delete, gibbs_after = kernel_and_gibbs(slopes_after, step_size)
    start = np.exp(-l2 * theta**2 / (2 * noise_variance))
    law = start = start / start.sum()
    assert renyi(order, start, gibbs) <= order / (2 * noise_variance**2)  # Hoeffding's
    for power in range(1, 12):  # 2, 4, …, 2048 steps
        learn, steps = learn @ learn, 2**power
        law = learn @ start
        exact = renyi(order, law, gibbs)
        found = call(
            nonconvex.gibbs_divergence_tuned,
            **shape,
            step_size=step_size,
            num_steps=steps,
            initial_divergence=renyi(order, start, gibbs),
        )
        assert exact <= found
    for power in range(1, 9):
        delete, more = delete @ delete, 2**power
        exact = renyi(order, delete @ law, gibbs_after)
        found = call(
            nonconvex.deletion_nonconvex_tuned,
            **shape,
            n=n,
            step_size=step_size,
            learn_steps=steps,
            delete_steps=more,
            request=1,
        )
        assert exact <= found


# Extreme magnitudes.

extreme = st.fixed_dictionaries(
    {
        "order": st.one_of(st.floats(1.0001, 100), st.floats(1, 6).map(lambda x: 10.0**x)),
        "l2": st.floats(-6, 6).map(lambda x: 10.0**x),
        "smoothness": st.floats(-3, 8).map(lambda x: 10.0**x),
        "bound": st.floats(-6, 6).map(lambda x: 10.0**x),
        "n": st.floats(0, 12).map(lambda x: np.floor(10.0**x)),
        "dim": st.floats(0, 6).map(lambda x: np.floor(10.0**x)),
        "eps_dd": st.floats(-12, 3).map(lambda x: 10.0**x),
        "edits_per_request": st.floats(0, 1),
    }
)


def scaled(case):
    edits = max(1.0, np.floor(case["edits_per_request"] * case["n"]))
    smoothness = case["smoothness"] * case["l2"]
    return case | {"edits_per_request": edits, "smoothness": smoothness}


def sound(found):
    assert all(isinstance(value, float) and value >= 0 for value in found)
    assert found.noise_variance > 0
    assert found.delete_steps >= 1
    for steps in (found.learn_steps, found.delete_steps):
        assert steps == np.floor(steps)


@settings(max_examples=50)
@given(extreme, st.floats(-6, 4), st.sampled_from(["paper", *nonconvex.FORMS]))
def test_settings_are_sound_at_extremes(case, log_ratio, form):
    case = scaled(case)
    noise = case["bound"] / 10**log_ratio

    def solve(**changes):
        case_now = case | {"noise_variance": noise} | changes
        if form == "paper":
            return call(nonconvex.settings_nonconvex_paper, **case_now)
        return call(nonconvex.settings_nonconvex_tuned, **case_now, form=form)

    found = solve()
    sound(found)
    limit = case["eps_dd"]
    if found.step_size > 1e-300 and found.delete_steps < np.inf:
        rest = {k: v for k, v in case.items() if k != "eps_dd"} | {"noise_variance": noise}
        rest |= {"step_size": found.step_size, "learn_steps": found.learn_steps}
        rest |= {"delete_steps": found.delete_steps}
        if form == "paper":
            certified = call(nonconvex.deletion_nonconvex_paper, **rest)
        else:
            certified = call(nonconvex.deletion_nonconvex_tuned, **rest, form=form)
        assert 0 <= certified <= limit * (1 + 1e-6)
    total = found.learn_steps + found.delete_steps
    for easier in (
        solve(eps_dd=2 * limit),
        solve(noise_variance=2 * noise),
        solve(n=2 * case["n"]),
    ):
        assert easier.learn_steps + easier.delete_steps <= total * (1 + 1e-4) + 2


@settings(max_examples=20)
@given(extreme, st.floats(-12, 3), st.floats(-6, 6), st.sampled_from(["paper", *nonconvex.FORMS]))
def test_noise_is_sound_at_extremes(case, log_eps, log_lipschitz, form):
    case = scaled(case)

    def solve(**changes):
        case_now = case | {"eps_dp": 10**log_eps, "lipschitz": 10**log_lipschitz} | changes
        if form == "paper":
            return call(nonconvex.noise_nonconvex_paper, **case_now)
        return call(nonconvex.noise_nonconvex_tuned, **case_now, form=form)

    found = solve()
    sound(found)
    assert spent(case["order"], 10**log_lipschitz, case["n"], found) <= 10**log_eps * (1 + 1e-9)
    easier = solve(n=2 * case["n"])
    assert easier.noise_variance <= found.noise_variance * (1 + 1e-4)


@settings(max_examples=50)
@given(extreme, st.floats(-6, 4), st.floats(0, 1), st.floats(0, 15), st.floats(0, 15))
def test_certified_bounds_are_monotone_at_extremes(case, log_ratio, share, log_learn, log_delete):
    case = scaled(case)
    del case["eps_dd"]
    case["noise_variance"] = case["bound"] / 10**log_ratio
    curvature = case["l2"] + case["smoothness"]
    q, spread = case["order"], 10**log_ratio
    log_limit = np.log(case["l2"] / (64 * (q * curvature) ** 2)) - 4 * spread
    case["step_size"] = np.exp(max(log_limit, -690)) * max(share, 1e-6)
    learn, delete = np.floor(10**log_learn), np.floor(10**log_delete)
    if log_limit < -690:
        with pytest.raises(CertificateRefused, match="step_size"):
            call(nonconvex.deletion_nonconvex_paper, **case, learn_steps=learn, delete_steps=delete)
        return

    def certified(learn, delete, form, request):
        steps = {"learn_steps": learn, "delete_steps": delete, "request": request}
        if form == "paper":
            return call(nonconvex.deletion_nonconvex_paper, **case, **steps)
        return call(nonconvex.deletion_nonconvex_tuned, **case, **steps, form=form)

    for request in (0, 1, 10**9, np.inf):
        looser = np.inf
        for form in ("paper", *nonconvex.FORMS):
            found = certified(learn, delete, form, request)
            assert 0 <= found <= looser * (1 + 1e-9)
            looser = found
            if form != "sharp":  # which may rise towards the bias as the start is forgotten
                assert certified(2 * learn, delete, form, request) <= found * (1 + 1e-9)
                assert certified(learn, 2 * delete, form, request) <= found * (1 + 1e-9)


# Refusals.

RUN = TANH | {"noise_variance": 1, "n": 200, "dim": 1, "learn_steps": 1, "delete_steps": 1}
PLAN = TANH | {"noise_variance": 1, "n": 200, "dim": 1, "eps_dd": 0.5}


@pytest.mark.parametrize(
    ("formula", "case", "name"),
    [
        (nonconvex.deletion_nonconvex_paper, RUN | {"step_size": 1e-3}, "step_size"),
        (nonconvex.settings_nonconvex_paper, PLAN | {"step_size": 1e-3}, "step_size"),
        (
            nonconvex.deletion_nonconvex_paper,
            RUN | {"noise_variance": 1e-3, "step_size": 1e-3},
            "noise_variance",  # no step size is small enough
        ),
        (nonconvex.deletion_nonconvex_tuned, RUN | {"step_size": 0.1}, "step_size"),
        (nonconvex.settings_nonconvex_tuned, PLAN | {"step_size": 0.1}, "eps_dd"),
        (nonconvex.settings_nonconvex_tuned, PLAN | {"edits_per_request": 201}, "exceeds n"),
    ],
)
def test_refusals(formula, case, name):
    with pytest.raises(CertificateRefused, match=name):
        call(formula, **case)


def test_both_conditions_of_the_paper_are_enforced_at_their_limit():
    """λ/(64Bq²M²) for a bound, λ/(64qBM²) · min(ε_dd/d, 1/q) for a plan."""
    share = 0.77 / (64 * 4 * np.exp(4) * 1.54**2)
    wide = PLAN | {"dim": 4}
    for formula, case, limit in (
        (nonconvex.deletion_nonconvex_paper, RUN, share),
        (nonconvex.settings_nonconvex_paper, PLAN, share),
        (nonconvex.settings_nonconvex_paper, wide, share * 2 * 0.5 / 4),
    ):
        call(formula, **case, step_size=limit * (1 - 1e-9))
        with pytest.raises(CertificateRefused, match="step_size"):
            call(formula, **case, step_size=limit * (1 + 1e-9))


def test_bad_input_is_named():
    with pytest.raises(InputError, match="form"):
        call(nonconvex.settings_nonconvex_tuned, **PLAN, form="tight")
    with pytest.raises(InputError, match="bound"):
        call(nonconvex.settings_nonconvex_paper, **(PLAN | {"bound": 0}))
