"""Risk bounds held to exact laws: the linear loss in closed form, 1-D Gibbs laws and runs."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import soak
from scipy import optimize
from scipy.special import logsumexp

from dd_jax.errors import CertificateRefused, InputError
from dd_jax.guarantees import renyi
from dd_jax.guarantees import risk as risks
from dd_jax.guarantees.convex import (
    Descent,
    deletion_paper,
    fewest_steps,
    least_noise,
    privacy_paper,
)
from dd_jax.guarantees.nonconvex import Bounded
from dd_jax.oracles import gaussian
from dd_jax.oracles.phases import in_turn

UNIT = Descent(2, 1, 1, 1, 4e-4, 100, 0.25)  # q, which no risk depends on, L, λ, β, σ², n, η


def bounded(lipschitz, l2, smoothness, bound, dim):
    """A bounded problem; no risk depends on q and n."""
    return Bounded(2, lipschitz, l2, smoothness, bound, 1, dim)


# Golden values, worked out by hand.


def test_paper_golden_values():
    edit = risks.excess_risk_after_edit(1, 1, 1, n=10, edits_per_request=2, excess_risk=0.5)
    assert edit == pytest.approx(2 * (1 + 16 * 0.04))
    run = Descent(2, 1, 2, 2, 0.1, 100, 0.2)
    found = risks.excess_risk_noisy_gd(run, 3, num_steps=5, initial_excess_risk=4)
    assert found == pytest.approx(4 * np.exp(-1) + 0.6)
    assert risks.excess_risk_convex_paper(2, 1, 1, 1, 100, 1, 1) == pytest.approx(4e-3)
    assert risks.learn_steps_convex_paper(2, 1, 1, 100, 1, 1) == 58  # 8 log 1250 = 57.05
    assert risks.delete_steps_convex_paper(2, 1, 1, 1, 1) == 19  # 8 log 10 = 18.4
    assert risks.delete_steps_convex_paper(2, 1, 1, 1, 1, edits_per_request=10) == 48
    assert risks.learn_steps_convex_paper(2, 1, 1, n=1, dim=1, eps_dp=1e-3) == 0
    assert risks.minimiser_shift(3, 2, 10, 2) == pytest.approx(0.6)
    gibbs = risks.gibbs_excess_risk_paper(bounded(1, 1, 1, 1, dim=3), 2)
    assert gibbs == pytest.approx(3 * (np.log(2) + np.e))
    B = np.exp(2)
    paper = risks.excess_risk_nonconvex_paper(bounded(1, 1, 1, 1, dim=3), 2, eps_dd=0.5)
    assert paper == pytest.approx(np.sqrt(2 * B) + 3 * B + 3 * (np.log(2) + 2 * np.e))


@pytest.mark.parametrize("smoothness", [0.0, 3.0, 200.0])
@pytest.mark.parametrize("share", [1.0, 0.1, 1e-4])
def test_a_request_saves_what_the_paper_says_below_its_theorem(smoothness, share):
    """K_L - K_U = Ω(log min{n/r, n√(ε_dd/(qd))}): 8κ of it, up to a number that no n changes."""
    order, l2, dim, eps_dp, n = 8.0, 1.0, 5, 0.5, 10.0 ** np.arange(2, 10)
    eps_dd, kappa = share * eps_dp, 1 + smoothness
    learn = risks.learn_steps_convex_paper(order, l2, smoothness, n, dim, eps_dp)
    run = Descent(order, 1.0, l2, smoothness, 1.0, n, 0.5 / kappa)
    run = replace(run, noise_variance=least_noise(privacy_paper, run, eps_dp))
    for edits in (1, 10, 100):
        utility = risks.delete_steps_convex_paper(order, l2, smoothness, dim, eps_dp, edits)
        delete = np.maximum(fewest_steps(deletion_paper, run, eps_dd), utility)
        stated = np.log(np.minimum(n / edits, n * np.sqrt(eps_dd / (order * dim))))
        beyond = 4 * kappa * np.log(max(32, 20 * kappa)) + 1
        saved, large = learn - delete, learn > 0
        assert np.all(saved[large] >= (8 * kappa * stated - beyond)[large])
        assert np.all(saved[large] <= (8 * kappa * stated + 1)[large])


def test_recursion_golden_values():
    # V = 4e-4/0.875; m0² = 0.75⁸(1 + V) + V(1 - 0.75⁸); one request of two steps.
    V, kept = 4e-4 / 0.875, 0.75**8
    first = kept * (1 + V) + V * (1 - kept)
    second = 0.75**4 * (np.sqrt(first) + 0.02) ** 2 + V * (1 - 0.75**4)
    found = risks.excess_risk_convex(UNIT, 1, 4, 2, request=np.array([0, 1]))
    assert found == pytest.approx([first, second], rel=1e-13)
    other = risks.excess_risk_convex(UNIT, 1, 4, 2, request=0, init_variance=3.0)
    assert other == pytest.approx(kept * 4 + V * (1 - kept), rel=1e-13)


def test_the_papers_plan_meets_its_own_risk_and_the_recursion_is_tighter():
    for n, dim, eps_dp, smoothness, edits in [(100, 1, 1, 1, 1), (10**5, 20, 0.1, 30, 40)]:
        bound = risks.excess_risk_convex_paper(4, 1, 1, smoothness, n, dim, eps_dp)
        noise, step_size = 16 / (eps_dp * n**2), 1 / (2 + 2 * smoothness)
        found = risks.excess_risk_convex(
            Descent(4, 1, 1, smoothness, noise, n, step_size, edits),
            dim,
            risks.learn_steps_convex_paper(4, 1, smoothness, n, dim, eps_dp),
            risks.delete_steps_convex_paper(4, 1, smoothness, dim, eps_dp, edits),
            request=np.array([0, 1, np.inf]),
        )
        assert np.all(found < bound)


# The linear loss: exact risk of every request.


def linear_cases(rng, size, requests):
    """Random runs, (d, K_L, K_U), and the exact excess risk of an adversarial stream for each."""
    l2, lipschitz = 10 ** rng.uniform(-2, 2, (2, size))
    smoothness = l2 * rng.choice([0, 1], size) * 10 ** rng.uniform(-1, 2, size)
    step_size = rng.uniform(0.01, 1, size) * 2 / (2 * l2 + smoothness)
    noise = lipschitz**2 / l2 * 10 ** rng.uniform(-7, 1, size)
    n = rng.integers(1, 200, size)
    edits = np.minimum(n, rng.integers(1, 30, size))
    dim = rng.integers(1, 20, size)
    learn, delete = rng.integers(0, 60, size), rng.integers(0, 15, size)
    c = 1 - step_size * l2
    reach, shift = lipschitz / l2, 2 * edits * lipschitz / (l2 * n)
    target = reach * rng.choice([-1, 1], size)
    variance = noise / (l2 * (1 - step_size * l2 / 2))  # the start's, and stationary
    mean, exact = np.zeros(size), []
    for i in range(requests + 1):
        if i:  # the edit that moves the minimiser farthest from the model, within its reach
            away = np.where(target > mean, 1, -1)
            away = np.where(np.abs(target + away * shift) > reach, -away, away)
            target = np.clip(target + away * shift, -reach, reach)
        mean = target + c ** np.where(i == 0, learn, delete) * (mean - target)
        exact.append(l2 / 2 * ((mean - target) ** 2 + dim * variance))
    run = Descent(2, lipschitz, l2, smoothness, noise, n, step_size, edits)
    return run, (dim, learn, delete), np.array(exact)


def test_linear_risk_never_exceeds_the_recursion():
    run, steps, exact = linear_cases(np.random.default_rng(3), 1000, requests=8)
    request = np.arange(9)[:, None]
    bound = risks.excess_risk_convex(run, *steps, request=request)
    assert np.all(exact <= bound * (1 + 1e-10))
    supremum = np.maximum(bound[0], risks.excess_risk_convex(run, *steps))
    assert np.all(bound <= supremum * (1 + 1e-10))


def test_recursion_is_attained():
    # Far learned, no noise, minimisers marching one way: bias alone.
    n, edits, delete = 100, 3, 2
    run = Descent(2, 1, 1, 0, 1e-30, n, 0.25, edits)
    bound = risks.excess_risk_convex(run, 1, 500, delete, request=np.arange(30))
    lag, exact = 0.0, [0.0]
    for _ in range(29):
        lag = 0.75**delete * (lag + 2 * edits / n)
        exact.append(lag**2 / 2)
    assert bound[1:] == pytest.approx(exact[1:], rel=1e-10)
    # Nothing but noise: a quadratic of curvature M at the largest step size.
    l2, smoothness, noise = 0.3, 5.0, 0.7
    step_size, curvature = 2 / (2 * l2 + smoothness), l2 + smoothness
    exact = 4 * noise / (2 * (1 - step_size * curvature / 2))
    run = Descent(2, 1, l2, smoothness, noise, 10, step_size)
    floor = risks.excess_risk_floor(run, 4)
    assert floor == pytest.approx(exact, rel=1e-12)
    request = np.array([0, 5, np.inf])
    limit = risks.excess_risk_convex(run, 4, np.inf, np.inf, request=request)
    assert limit == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("step_size", [1e-6, 1e-2, 0.5])
def test_late_requests_are_bounded_by_the_chord(step_size):
    run = replace(UNIT, step_size=step_size, noise_variance=1e-6)
    kept, V = (1 - step_size) ** 4, 1e-6 / (1 - step_size / 2)
    for learn in (0, 10**9):
        start = (1 - step_size) ** (2 * learn) + V
        distance, exact = np.sqrt(start), []
        for _ in range(1000):
            distance = np.sqrt(kept * (distance + 0.02) ** 2 + V * (1 - kept))
            exact.append(distance**2)
        found = risks.excess_risk_convex(run, 1, learn, 2, request=np.arange(1, 1001))
        assert np.all(found >= np.array(exact) * (1 - 1e-9))
        assert found == pytest.approx(exact, rel=1e-2)


def risk_with_batches(rng, ridge):
    """Exact excess risk of a stream with cyclic batches, and the run and numbers of its bound.

    The rows are sorted, so that batches pull in opposite directions. Ridge regression is bounded by
    the gradients that it has at the minimisers, which is all that the bound uses of L.
    """
    n, dim, edits, requests = (
        int(rng.integers(*ends)) for ends in ((4, 40), (1, 4), (1, 3), (0, 4))
    )
    batches = int(rng.integers(1, min(n, rng.choice([6, 40])) + 1))
    l2 = np.exp(rng.uniform(-2.5, 1))
    rows = rng.normal(size=(n + edits * requests, dim))
    rows *= rng.uniform(0.3, 1, (len(rows), 1)) / np.linalg.norm(rows, axis=1, keepdims=True)
    marks = rows @ rng.normal(size=dim) + rng.normal(size=len(rows))
    order = np.argsort(marks[:n] if ridge else rows[:n, 0])
    databases = [np.column_stack([rows[order], marks[order]])]
    for new in np.split(np.column_stack([rows, marks])[n:], requests) if requests else ():
        databases.append(databases[-1].copy())
        databases[-1][rng.choice(n, edits, replace=False)] = new

    def phase(database):
        if ridge:
            return gaussian.ridge_phase(database[:, :-1], database[:, -1], l2, 1)
        return gaussian.linear_phase(database[:, :-1], l2, 1)

    lipschitz, smoothness = 1.0, 0.0
    if ridge:
        least = [np.linalg.solve(*phase(database)[:2]) for database in databases]
        slopes = np.abs(rows @ np.transpose(least) - marks[:, None])
        norms = np.linalg.norm(rows, axis=1)
        lipschitz, smoothness = np.max(slopes * norms[:, None]), np.max(norms) ** 2
    eta = np.exp(rng.uniform(-4, 0)) * 2 / (2 * l2 + smoothness)
    noise, start = np.exp(rng.uniform(-12, 0)), rng.uniform()
    learn, delete = int(rng.integers(1, 60)), int(rng.integers(1, 15))
    phases, bounds = [], [j * n // batches for j in range(batches + 1)]
    for i, database in enumerate(databases):
        turns = [phase(database[low:high]) for low, high in itertools.pairwise(bounds)]
        taken = learn + (i - 1) * delete if i else 0
        phases += in_turn(turns, taken, delete if i else learn)
    law = gaussian.law_after(phases, eta, noise, np.zeros(dim), start)
    exact = gaussian.excess_risk(law, *phase(databases[-1])[:2])
    run = Descent(2, lipschitz, l2, smoothness, noise, n, eta, records=edits, batches=batches)
    return exact, run, (dim, learn, delete, requests, start)


def test_batches_in_their_worst_order_never_exceed_the_recursion():
    rng, missed = np.random.default_rng(5), 0
    for case in range(soak(60, 3000)):
        exact, run, numbers = risk_with_batches(rng, ridge=case % 2 == 0)
        assert exact <= risks.excess_risk_convex(run, *numbers) * (1 + 1e-12)
        # The bound of full batches is false.
        missed += exact > risks.excess_risk_convex(replace(run, batches=1), *numbers)
    assert missed > 0


def test_without_deletion_steps_the_error_grows_by_a_shift_per_request():
    request = np.array([0, 1, 10**6, np.inf])
    found = risks.excess_risk_convex(UNIT, 1, np.inf, 0, request=request)
    m = np.sqrt(4e-4 / 0.875)
    assert found[:3] == pytest.approx([m**2, (m + 0.02) ** 2, (m + 2e4) ** 2])
    assert found[3] == np.inf


def test_full_contraction_forgets_in_one_step():
    run = replace(UNIT, smoothness=0, step_size=1.0)
    assert risks.excess_risk_convex(run, 1, 1, 1, request=3) == pytest.approx(4e-4)
    assert risks.excess_risk_convex(run, 1, 0, 1, request=0) == pytest.approx(0.5 + 4e-4)
    assert risks.learn_steps_convex(run, 1, target_excess_risk=0.01) == 1
    assert risks.delete_steps_convex(run, 1, target_excess_risk=0.01) == 1


def test_step_counts_are_least_for_their_target():
    rng = np.random.default_rng(5)
    run, (dim, *_), _ = linear_cases(rng, 500, requests=0)
    floor = risks.excess_risk_floor(run, dim)
    target = floor * (1 + 10 ** rng.uniform(-3, 3, floor.size))
    learn = risks.learn_steps_convex(run, dim, target)
    delete = risks.delete_steps_convex(run, dim, target)

    def risk(learn_steps, delete_steps, request):
        return risks.excess_risk_convex(run, dim, learn_steps, delete_steps, request)

    for request in (0, 1, 7, np.inf):
        assert np.all(risk(learn, delete, request) <= target * (1 + 1e-9))
    some = learn > 0
    assert np.all(risk(np.maximum(learn - 1, 0), delete, 0)[some] > target[some] * (1 - 1e-9))
    assert np.all(risk(learn, delete - 1, np.inf) > target * (1 - 1e-9))


# Bounded non-convex losses on a 1-D grid.


class Grid:
    """ℒ(θ) = mean of b·tanh(slope) margins + (λ/2)θ² on a grid, with its exact constants."""

    theta = np.linspace(-40, 40, 8001)

    def __init__(self, rng, noise_variance):
        self.slopes = rng.uniform(-3, 3, 5) + rng.choice([-2, 2])
        self.bound = rng.uniform(0.2, 3)
        steepest = np.max(np.abs(self.slopes))
        self.lipschitz = self.bound * steepest
        self.smoothness = self.bound * steepest**2 * 4 / (3 * np.sqrt(3))
        self.l2 = rng.uniform(0.05, 2)
        self.noise_variance = noise_variance
        margins = np.tanh(np.outer(self.slopes, self.theta))
        self.loss = self.bound * margins.mean(0) + self.l2 / 2 * self.theta**2
        self.gibbs = self.normalise(-self.loss / noise_variance)

    def normalise(self, log_density):
        return np.exp(log_density - logsumexp(log_density))

    def gradient(self):
        squares = 1 - np.tanh(np.outer(self.slopes, self.theta)) ** 2
        return self.bound * (self.slopes @ squares) / self.slopes.size + self.l2 * self.theta

    def excess(self, law):
        return law @ self.loss - self.loss.min()

    @property
    def problem(self):
        return bounded(self.lipschitz, self.l2, self.smoothness, self.bound, dim=1)


def grids(count, seed):
    rng = np.random.default_rng(seed)
    return [Grid(rng, 10 ** rng.uniform(-1.5, 1.5)) for _ in range(count)]


def test_gibbs_bounds_hold_by_quadrature():
    tightness = []
    for grid in grids(soak(40, 150), seed=7):
        moment = risks.gibbs_second_moment(grid.problem, grid.noise_variance)
        assert grid.gibbs @ grid.theta**2 <= moment * (1 + 1e-9)
        risk = risks.gibbs_excess_risk(grid.problem, grid.noise_variance)
        paper = risks.gibbs_excess_risk_paper(grid.problem, grid.noise_variance)
        assert grid.excess(grid.gibbs) <= risk <= paper
        tightness.append((grid.gibbs @ grid.theta**2) / moment)
    assert max(tightness) > 0.85


def test_second_moment_is_never_above_the_simple_forms():
    rng = np.random.default_rng(11)
    L, l2, b, s2 = 10 ** rng.uniform(-3, 3, (4, 3000))
    dim = rng.integers(1, 1000, 3000)
    found = risks.gibbs_second_moment(bounded(L, l2, 0, b, dim), s2)
    with np.errstate(over="ignore"):
        simple = (
            ((L + np.sqrt(L**2 + 4 * l2 * dim * s2)) / (2 * l2)) ** 2,
            (8 * b + 2 * np.log(2) * dim * s2) / l2,
            np.exp(2 * b / s2) * dim * s2 / l2,
        )
    for bound in simple:
        assert np.all(found <= bound * (1 + 1e-9))
    assert np.all(found >= dim * s2 / l2)


def test_second_moment_solves_its_equation():
    # A huge L leaves the entropy form: y - 1 - log y = (2/d) min{2b/σ², b²/(2σ⁴)}, y = λ m²/(dσ²).
    ratio = np.array([1e-6, 1e-3, 1.0, 50.0, 1e4])
    y = 3.0 * risks.gibbs_second_moment(bounded(1e15, 3.0, 0, 2 * ratio, 4), 2.0) / (4 * 2.0)
    assert y - 1 - np.log(y) == pytest.approx(np.minimum(2 * ratio, ratio**2 / 2) / 2, rel=1e-3)


def test_gibbs_golden_values():
    # Bounded so loosely that E⟨θ, ∇ℒ⟩ = dσ² decides; a linear loss has E‖θ‖² = 2 here.
    steep = bounded(1, 1, 3, 1e9, 1)
    moment = risks.gibbs_second_moment(steep, 1)
    assert moment == pytest.approx(((1 + np.sqrt(5)) / 2) ** 2)
    risk = risks.gibbs_excess_risk(steep, 1)
    assert risk == pytest.approx((1 + np.log(4 * moment)) / 2)
    # Noise so large that the loss hardly matters: ‖θ‖² alone decides.
    flat = bounded(1, 2, 100, 0.5, 7)
    moment = risks.gibbs_second_moment(flat, 1e4)
    assert moment == pytest.approx(7e4 / 2, rel=1e-4)
    risk = risks.gibbs_excess_risk(flat, 1e4)
    assert risk == pytest.approx(1 + moment, rel=1e-12)


def test_released_models_on_a_grid():
    """Runs of a few steps, whose exact divergence from the Gibbs law plays the part of ε_dd."""
    for grid in grids(soak(12, 40), seed=13):
        step_size = 0.5 / (grid.l2 + grid.smoothness)
        width = 2 * step_size * grid.noise_variance
        theta = Grid.theta[::8]
        moved = (Grid.theta - step_size * grid.gradient())[::8]
        law = grid.normalise(-(theta**2) * grid.l2 / (2 * grid.noise_variance))
        if width < (2 * (theta[1] - theta[0])) ** 2:
            continue
        kernel = np.exp(-((theta[:, None] - moved[None, :]) ** 2) / (2 * width))
        kernel /= kernel.sum(0)
        gibbs, loss = grid.normalise(-grid.loss[::8] / grid.noise_variance), grid.loss[::8]
        moment = risks.released_second_moment(
            grid.lipschitz, grid.l2, grid.noise_variance, 1, step_size
        )
        numbers = (grid.problem, grid.noise_variance, step_size)
        for _ in range(6):
            for _ in range(4):
                law = kernel @ law
            with np.errstate(divide="ignore", invalid="ignore"):
                divergence = np.nansum(law * np.log(law / gibbs))
            assert law @ theta**2 <= moment * (1 + 1e-6)
            risk = risks.excess_risk_nonconvex(*numbers, max(divergence, 0))
            assert law @ loss - grid.loss.min() <= risk * (1 + 1e-6)


def test_released_second_moment_is_attained():
    # A loss of constant slope L, started at its own stationary law's second moment.
    L, l2, noise, dim, step_size = 2.0, 0.5, 0.3, 3, 0.4
    moment = risks.released_second_moment(L, l2, noise, dim, step_size)
    once = (
        (1 - step_size * l2) * np.sqrt(moment) + step_size * L
    ) ** 2 + 2 * step_size * noise * dim
    assert once == pytest.approx(moment, rel=1e-12)


def test_nonconvex_bound_is_never_above_gibbs_plus_transport_and_tends_to_gibbs():
    rng = np.random.default_rng(17)
    L, l2, smoothness, b, s2 = 10 ** rng.uniform(-2, 2, (5, 3000))
    dim, eps = rng.integers(1, 100, 3000), 10 ** rng.uniform(-12, 3, 3000)
    case, step_size = bounded(L, l2, smoothness, b, dim), 1e-9 / (l2 + smoothness)
    gibbs = risks.gibbs_excess_risk(case, s2)
    m = np.sqrt(risks.gibbs_second_moment(case, s2))
    with np.errstate(over="ignore"):
        W = np.sqrt(2 * s2 / l2 * eps) * np.exp(b / s2)
        transported = gibbs + (L + l2 * m) * W + l2 / 2 * W**2
        found = risks.excess_risk_nonconvex(case, s2, step_size, eps)
        paper = risks.excess_risk_nonconvex_paper(case, s2, eps)
    assert np.all(found <= transported * (1 + 1e-9))
    assert np.all(found <= paper * (1 + 1e-9))
    assert np.all(found >= gibbs * (1 - 1e-9))
    still = risks.excess_risk_nonconvex(case, s2, step_size, 0)
    assert still == pytest.approx(gibbs, rel=1e-9)


@pytest.mark.parametrize("ratio", [0.01, 0.1, 0.5, 1.0])
def test_the_entropy_of_a_law_close_to_gibbs_is_not_understated(ratio):
    """A loss of values ±b on halves of the Gaussian, and the law that is tilted twice as far.

    Its divergences from the Gibbs law and from the Gaussian are those of coins. With the second,
    and an L so large that nothing else decides, the bound is known by its formula.
    """
    l2, smoothness, noise_variance = 2.0, 3.0, 0.7
    gibbs, tilted = (1 / (1 + np.exp(-2 * t * ratio)) for t in (1, 2))

    def divergence(p, q):
        return p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))

    eps, entropy = divergence(tilted, gibbs), divergence(tilted, 0.5)
    y = optimize.brentq(lambda y: y - 1 - np.log(y) - 2 * entropy, 1, 100)
    square = noise_variance / l2 * y
    risk = noise_variance * (eps + (1 + np.log((l2 + smoothness) * square / noise_variance)) / 2)
    risk = min(risk, 2 * ratio * noise_variance + l2 * square / 2)
    case = bounded(1e9, l2, smoothness, ratio * noise_variance, 1)
    found = risks.excess_risk_nonconvex(case, noise_variance, 1e-9, eps)
    assert risk <= found <= risk * 1.1
    assert found == pytest.approx(risk, rel=0.3 * ratio**2)  # attained as the tilt vanishes


def test_paper_nonconvex_risk_is_vacuous_and_overflows_quietly():
    for noise_variance in 10 ** np.linspace(-4, 4, 50):
        paper = risks.excess_risk_nonconvex_paper(bounded(1, 1, 1, 1, 3), noise_variance, 0.1)
        assert paper >= 2 * np.e * 3
    steep = bounded(1, 1, 1, 1e4, 3)
    assert risks.excess_risk_nonconvex_paper(steep, 1, 0.0) == np.inf
    assert risks.gibbs_excess_risk_paper(steep, 1) == np.inf
    assert np.isfinite(risks.excess_risk_nonconvex(steep, 1, 1e-9, 0.1))


# Extreme magnitudes.

ratio = st.floats(-6, 6).map(lambda x: 10.0**x)
problem = st.fixed_dictionaries(
    {
        "lipschitz": ratio,
        "l2": ratio,
        "smoothness": st.floats(-3, 8).map(lambda x: 10.0**x),
        "noise_variance": st.floats(-30, 12).map(lambda x: 10.0**x),
        "n": st.floats(0, 12).map(lambda x: np.floor(10.0**x)),
        "dim": st.floats(0, 6).map(lambda x: np.floor(10.0**x)),
        "step_size": st.floats(1e-9, 1),
    }
)
step_counts = st.one_of(st.integers(0, 50), st.floats(0, 15).map(lambda x: np.floor(10.0**x)))


def scaled(p):
    p = dict(p, smoothness=p["smoothness"] * p["l2"])
    return dict(p, step_size=p["step_size"] * 2 / (2 * p["l2"] + p["smoothness"]))


def ordered(low, high):
    return 0 <= low <= high * (1 + 1e-9)


@settings(max_examples=100)
@given(problem, step_counts, step_counts, st.floats(0, 1), step_counts)
def test_recursion_is_finite_and_monotone(p, learn, delete, share, request):
    p = scaled(p)
    dim = p.pop("dim")
    run = Descent(2, **p, records=max(1, np.floor(share * p["n"])))

    def risk(dim=dim, learn=learn, delete=delete, request=request, **changes):
        return risks.excess_risk_convex(replace(run, **changes), dim, learn, delete, request)

    base = risk()
    assert isinstance(base, float)
    assert np.isfinite(base)
    for name in ("noise_variance", "lipschitz"):
        assert ordered(base, risk(**{name: 2 * getattr(run, name)}))
    assert ordered(base, risk(dim=2 * dim))
    assert ordered(risk(n=2 * run.n), base)
    assert ordered(risk(learn=2 * learn + 1), base)
    assert ordered(risk(delete=2 * delete + 1), base)
    first, last = risk(request=0), risk(request=np.inf)
    assert ordered(min(first, last), base)
    assert ordered(base, max(first, last))
    if delete:
        later = risk(request=2 * request + 1)
        assert ordered(base, later) if last > first else ordered(later, base)


@settings(max_examples=100)
@given(problem, st.floats(-6, 4), st.floats(-12, 3))
def test_nonconvex_bounds_are_finite_and_monotone(p, log_ratio, log_eps):
    p = scaled(p)
    noise_variance, step_size = p["noise_variance"], p["step_size"]
    constants = (p["lipschitz"], p["l2"], p["smoothness"])
    bound, eps_dd = noise_variance * 10**log_ratio, 10**log_eps
    case, looser = (bounded(*constants, b, p["dim"]) for b in (bound, 2 * bound))
    released = risks.excess_risk_nonconvex(case, noise_variance, step_size, eps_dd)
    assert np.isfinite(released)
    for larger in ((case, 2 * eps_dd), (looser, eps_dd)):
        above = risks.excess_risk_nonconvex(larger[0], noise_variance, step_size, larger[1])
        assert ordered(released, above)
    gibbs = risks.gibbs_excess_risk(case, noise_variance)
    assert ordered(gibbs, released)
    assert ordered(gibbs, risks.gibbs_excess_risk(looser, noise_variance))
    assert released <= risks.excess_risk_nonconvex_paper(case, noise_variance, eps_dd) * 1.0001


@settings(max_examples=60)
@given(problem, st.floats(-12, 3), st.floats(-10, 6), st.floats(1.0001, 1e6), st.floats(0, 1))
def test_paper_and_inverse_step_counts_are_whole_and_monotone(p, log_eps, log_target, order, share):
    p = scaled(p)
    eps, edits = 10**log_eps, max(1, np.floor(share * p["n"]))
    shape = {"l2": p["l2"], "smoothness": p["smoothness"], "dim": p["dim"]}
    learn = risks.learn_steps_convex_paper(order, n=p["n"], eps_dp=eps, **shape)
    more = risks.learn_steps_convex_paper(order, n=2 * p["n"], eps_dp=eps, **shape)
    assert 0 <= learn <= more
    delete = risks.delete_steps_convex_paper(order, eps_dp=eps, edits_per_request=edits, **shape)
    assert 0 < delete == np.floor(delete)
    dim = p.pop("dim")
    run = Descent(order, **p, records=edits)
    floor = risks.excess_risk_floor(run, dim)
    target = floor * (1 + 10**log_target)
    needed, fewer = (risks.delete_steps_convex(run, dim, t) for t in (target, 2 * target))
    assert 1 <= fewer <= needed < np.inf


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: risks.excess_risk_convex(replace(UNIT, step_size=0.7), 1, 1, 1), "step_size"),
        (lambda: risks.excess_risk_noisy_gd(replace(UNIT, step_size=0.5), 1, 1, 1), "step_size"),
        (lambda: risks.delete_steps_convex(UNIT, 1, target_excess_risk=1e-4), "target_excess_risk"),
        (lambda: risks.learn_steps_convex(UNIT, 1, target_excess_risk=1e-4), "target_excess_risk"),
        (lambda: risks.minimiser_shift(1, 1, 10, 11), "edits_per_request"),
        (lambda: risks.excess_risk_nonconvex(bounded(1, 1, 1, 1, 1), 1, 2.0, 0.1), "step_size"),
    ],
)
def test_refusals(call, name):
    with pytest.raises(CertificateRefused, match=name):
        call()


def test_bad_input_is_named():
    with pytest.raises(InputError, match="noise_variance"):
        risks.excess_risk_floor(replace(UNIT, noise_variance=0), 1)
    with pytest.raises(InputError, match="order"):
        risks.excess_risk_convex_paper(1, 1, 1, 1, 10, 1, 1)


def test_the_papers_risk_has_the_order_of_the_lower_bound():
    """By the footnote q/ε_dp = (2ε + 4 log(1/δ))/ε²: they are 10κ(2ε + 4 log(1/δ)) apart."""
    lipschitz, l2, smoothness, delta = 1.7, 0.3, 0.9, 1e-6
    for epsilon, n, dim in ((0.1, 10**4, 3), (1.0, 10**3, 50), (5.0, 10**5, 7)):
        order, eps_dp = renyi.renyi_from_epsilon_delta(epsilon, delta)
        paper = risks.excess_risk_convex_paper(order, lipschitz, l2, smoothness, n, dim, eps_dp)
        least = risks.least_risk_order(lipschitz, l2, n, dim, epsilon)
        assert paper / least == pytest.approx(10 * 4 * (2 * epsilon - 4 * np.log(delta)))
    # With few records the model 0 is as good as any.
    assert risks.least_risk_order(2.0, 0.5, 1, 9, 0.1) == 2.0**2 / 0.5
