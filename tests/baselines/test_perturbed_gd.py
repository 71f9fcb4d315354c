"""Perturbed-GD: its noise against the papers' formulas and against its own proofs, and its runs."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from problems import deleting
from scipy import stats
from systems import DATABASE, DIM, PERTURBED, PROBLEM, TARGET, N

import dd_jax as dd
from dd_jax.baselines import perturbed_gd
from dd_jax.baselines.base import Constants, project
from dd_jax.errors import CertificateRefused, InputError
from dd_jax.guarantees import renyi

# γ = 0.6/1.4 < 1/2 and γ = 0.99/1.01.
STIFF = Constants(0.4, 1.0, 3.0, 2.0, 5.0)
FLAT = Constants(0.01, 2.0, 1.5, 1.0, 40.0)
CASES = [(STIFF, 50, 2, 0.5, 1e-2), (FLAT, 1000, 30, 1.0, 1e-5), (FLAT, 200, 5, 3.0, 1e-4)]


@pytest.mark.parametrize(("constants", "n", "steps", "epsilon", "delta"), CASES)
@pytest.mark.parametrize(("form", "factor"), [("published", 4), ("best", 2)])
def test_the_noise_is_what_the_proof_needs(form, factor, constants, n, steps, epsilon, delta):
    """Distances to the optimum settle at the recursion's fixed point, for both iterates."""
    sizes = {"n": n, "delete_steps": steps, "edits_per_request": 3}
    made = perturbed_gd.calibrate(constants, epsilon=epsilon, delta=delta, form=form, **sizes)
    assert (made.delete_steps, made.noise_steps) == (steps, steps)
    lipschitz = constants.lipschitz if form == "published" else constants.record_lipschitz
    shift = 3 * factor * lipschitz / (constants.strong_convexity * n)
    distance = 0.0
    for _ in range(20_000):
        distance = constants.contraction**steps * (distance + shift)
    slope = (2 * distance) ** 2 / (2 * made.noise_deviation**2)
    assert renyi.epsilon_simple_linear(slope, delta) == pytest.approx(epsilon, rel=1e-9)
    # Learning ends within that distance of the optimum, and one step fewer might not.
    gamma, reach = constants.contraction, constants.diameter
    near = 2 * lipschitz / (constants.strong_convexity * n)
    assert gamma ** (made.learn_steps - steps) * reach <= near * (1 + 1e-12)
    assert gamma ** (made.learn_steps - steps - 1) * reach > near
    assert gamma**made.learn_steps * reach <= distance


def test_an_l2_problem_has_the_constants_of_theorem_10():
    made = Constants.of_problem(dd.Problem(dd.losses.logistic(), l2=0.05))
    assert made.contraction == pytest.approx(0.25 / (0.25 + 2 * 0.05))
    assert made.step_size == pytest.approx(2 / (0.25 + 2 * 0.05))
    assert made.radius == pytest.approx(20.0)
    assert made.lipschitz == pytest.approx(2.0)
    assert made.record_lipschitz == pytest.approx(1.0)
    assert made.diameter == pytest.approx(40.0)


STATELESS_CASES = [(STIFF, 50, 4, 0.5, 1e-2), (FLAT, 1000, 64, 1.0, 1e-5), (FLAT, 300, 1, 0.1, 0.1)]


def stateless(case, **changes):
    constants, n, dim, epsilon, delta = case
    arguments = {"n": n, "dim": dim, "epsilon": epsilon, "delta": delta, "max_requests": 100}
    return perturbed_gd.calibrate_stateless(constants, **arguments | changes)


@pytest.mark.parametrize("case", STATELESS_CASES)
def test_the_stateless_form_has_the_published_noise_and_steps(case):
    constants, n, dim, epsilon, delta = case
    made = stateless(case)
    with mpmath.workdps(40):
        log = 2 * mpmath.log(2 / mpmath.mpf(delta))
        m, s, g = constants.strong_convexity, constants.smoothness, constants.lipschitz
        gamma = (mpmath.mpf(s) - m) / (mpmath.mpf(s) + m)
        first = mpmath.sqrt(log + epsilon) - mpmath.sqrt(log)
        least = mpmath.log(mpmath.sqrt(2 * dim) / (1 - gamma) / first) / mpmath.log(1 / gamma)
        steps = int(mpmath.ceil(least))
        high, low = (mpmath.sqrt(log + k * mpmath.mpf(epsilon)) for k in (3, 2))
        sigma = 8 * g * gamma**steps / (mpmath.mpf(m) * n * (1 - gamma**steps) * (high - low))
        tail = mpmath.log(mpmath.log(4 * dim * 100 / mpmath.mpf(delta))) / mpmath.log(1 / gamma)
    assert made.noise_steps == steps
    assert made.noise_deviation == pytest.approx(float(sigma), rel=1e-12)
    assert made.delete_steps == steps + int(mpmath.ceil(tail))
    # The noise is for I: with T_i in its place it would be far too small.
    assert made.delete_steps > made.noise_steps


def proof_epsilon(case, made, factor, lipschitz) -> float:
    """ε that the proof of Theorem 28 gives for a noise: its recursion, run to its fixed point."""
    constants, n, dim, _, delta = case
    shift = factor * lipschitz / (constants.strong_convexity * n)
    distance = 0.0
    for _ in range(20_000):
        started_from = distance + math.sqrt(2 * dim) * made.noise_deviation
        distance = constants.contraction**made.noise_steps * (started_from + shift)
    slope = (2 * distance) ** 2 / (2 * made.noise_deviation**2)
    return renyi.epsilon_simple_linear(slope, delta / 2)


@pytest.mark.parametrize("case", STATELESS_CASES)
def test_the_best_stateless_noise_solves_the_proof_exactly(case):
    made = stateless(case, form="best")
    epsilon = case[3]
    lipschitz = case[0].record_lipschitz
    assert proof_epsilon(case, made, 2, lipschitz) == pytest.approx(epsilon, rel=1e-9)
    fewer = stateless(case, form="best", noise_steps=made.noise_steps + 3)
    assert fewer.noise_deviation < made.noise_deviation


def test_the_published_noise_can_be_too_small_and_says_so():
    said = [any("proof needs" in c for c in stateless(case).conditions) for case in STATELESS_CASES]
    meets = [
        proof_epsilon(case, stateless(case), 4, case[0].lipschitz) <= case[3] * (1 + 1e-9)
        for case in STATELESS_CASES
    ]
    assert said == [not fine for fine in meets]
    assert any(said)
    assert not all(said)


# A ball without the minimiser in it, so that the projection acts.
def test_constants_are_refused_for_products_that_nothing_checks():
    coarse = dd.Problem(dd.losses.logistic(), l2=0.05, precision="bfloat16x3")
    with pytest.raises(dd.CertificateRefused, match="precision"):
        Constants.of_problem(coarse)


SMALL_BALL = Constants.of_problem(PROBLEM, radius=0.2)
MADE = perturbed_gd.calibrate(SMALL_BALL, n=N, delete_steps=3, **TARGET)


@pytest.fixture(scope="module")
def run():
    """Learn, then delete row 2, then publish: all states and releases of one key."""
    system = perturbed_gd.system(PROBLEM, MADE)
    edit = dd.deletion(PROBLEM.loss, DATABASE, [2])

    def go(key):
        keys = jax.random.split(key, 3)
        learned, _ = system.learn(keys[0], DATABASE)
        after, _ = deleting(system)(keys[1], DATABASE, edit, learned)
        return learned, after, system.publish(keys[2], after)

    keys = jax.random.split(jax.random.key(0), 4000)
    return edit, jax.jit(jax.vmap(go))(keys)


def by_hand(theta, database, steps, *, radius, step_size, l2=0.2):
    """Projected gradient descent in float64."""
    features, label = (np.asarray(leaf, np.float64) for leaf in database)
    for _ in range(steps):
        pull = label / (1 + np.exp(label * (features @ theta)))
        theta = theta - step_size * (l2 * theta - pull @ features / len(label))
        theta = theta * min(1.0, radius / np.linalg.norm(theta))
    return theta


def test_it_descends_without_noise_and_publishes_with_it(run):
    edit, (learned, after, released) = run
    numbers = {"radius": 0.2, "step_size": MADE.step_size}
    start = by_hand(np.zeros(DIM), DATABASE, MADE.learn_steps, **numbers)
    assert np.linalg.norm(start) == pytest.approx(0.2)
    edited = dd.apply_edit(DATABASE, edit)
    end = by_hand(start, edited, MADE.delete_steps, **numbers)
    np.testing.assert_allclose(learned, np.tile(start, (4000, 1)), atol=1e-5)
    np.testing.assert_allclose(after, np.tile(end, (4000, 1)), atol=1e-5)
    noise = (np.asarray(released) - end) / MADE.noise_deviation
    # 8000 standard normals: a wrong factor of 1.1 would be 12 deviations off.
    assert np.std(noise) == pytest.approx(1.0, abs=0.04)
    assert abs(np.mean(noise)) < 0.05
    assert stats.kstest(noise.ravel(), "norm").pvalue > 1e-3


def test_projection_is_onto_the_ball():
    far = {"a": jnp.array([3.0, 0.0]), "b": jnp.array([[4.0]])}
    near = project(far, 2.5)
    np.testing.assert_allclose(near["a"], [1.5, 0.0], rtol=1e-6)
    np.testing.assert_allclose(near["b"], [[2.0]], rtol=1e-6)
    np.testing.assert_array_equal(project(far, 5.1)["a"], far["a"])


def test_noise_that_float32_cannot_hold_is_refused():
    """Thirty steps leave noise of 1e-11: every release would be the model before the noise."""
    constants = Constants.of_problem(PROBLEM)
    reach = math.sqrt(2 * math.log(2) / 0.2)
    assert constants.reach == pytest.approx(reach)
    with pytest.raises(CertificateRefused, match="delete_steps"):
        perturbed_gd.calibrate(constants, n=N, delete_steps=30, **TARGET)
    kept = []
    for steps in range(1, 30):
        try:
            kept.append(perturbed_gd.calibrate(constants, n=N, delete_steps=steps, **TARGET))
        except CertificateRefused:
            break
    least = 100 * 2.0**-23 * reach
    assert least <= kept[-1].noise_deviation < least / constants.contraction
    with pytest.raises(CertificateRefused, match="noise_steps"):
        perturbed_gd.calibrate_stateless(
            constants, n=N, dim=DIM, max_requests=2, noise_steps=60, **TARGET
        )
    with pytest.raises(CertificateRefused, match="epsilon"):
        perturbed_gd.calibrate_stateless(constants, n=10**8, dim=DIM, max_requests=2, **TARGET)
    # Nothing is known of a declared loss at 0, and a small ball bounds every model.
    huber = dd.Problem(dd.losses.huber(), 0.2)
    assert Constants.of_problem(huber).reach == pytest.approx(5.0)
    assert SMALL_BALL.reach == 0.2


def test_altered_numbers_claim_nothing():
    for altered in (PERTURBED.replace(noise_deviation=0.0), PERTURBED.replace(epsilon=0.1)):
        claim = perturbed_gd.system(PROBLEM, altered).guarantee
        assert (claim.notion, claim.epsilon, claim.delta) == ("none", None, None)
        assert claim.adaptive == "no"
    assert perturbed_gd.system(PROBLEM, PERTURBED).guarantee.epsilon == 1.0


@pytest.mark.parametrize(
    ("name", "factor"),
    [("strong_convexity", 1.1), ("smoothness", 0.9), ("lipschitz", 0.9), ("record_lipschitz", 0.9)],
)
def test_constants_must_be_true_of_the_problem(name, factor):
    true = Constants.of_problem(PROBLEM)
    dataclasses.replace(true, **{name: getattr(true, name) / factor}).check_covers(PROBLEM)
    with pytest.raises(CertificateRefused, match="another problem"):
        dataclasses.replace(true, **{name: getattr(true, name) * factor}).check_covers(PROBLEM)


def test_refusals():
    arguments = {"n": 10, "epsilon": 1.0, "delta": 1e-2}
    with pytest.raises(CertificateRefused, match="epsilon"):
        perturbed_gd.calibrate(STIFF, n=10, epsilon=5.0, delta=1e-2, delete_steps=1)
    perturbed_gd.calibrate(STIFF, n=10, epsilon=5.0, delta=1e-2, delete_steps=1, form="best")
    with pytest.raises(InputError, match="form"):
        perturbed_gd.calibrate(STIFF, delete_steps=1, form="other", **arguments)
    with pytest.raises(CertificateRefused, match="γ = 0"):
        perturbed_gd.calibrate(Constants(1, 1, 1, 1, 1), delete_steps=1, **arguments)
    with pytest.raises(InputError, match="delete_steps"):
        perturbed_gd.calibrate(STIFF, delete_steps=0, **arguments)
    with pytest.raises(CertificateRefused, match="noise_steps"):
        stateless(STATELESS_CASES[1], noise_steps=3)
    with pytest.raises(CertificateRefused, match="noise_steps"):
        stateless(STATELESS_CASES[1], noise_steps=3, form="best")
    with pytest.raises(InputError, match="smoothness"):
        Constants(2, 1, 1, 1, 1)
    with pytest.raises(CertificateRefused, match="convex"):
        Constants.of_problem(dd.Problem(dd.losses.tanh_margin(), 0.1))
    with pytest.raises(CertificateRefused, match="another problem"):
        perturbed_gd.system(dd.Problem(dd.losses.logistic(), 0.1), PERTURBED)
    system = perturbed_gd.system(PROBLEM, PERTURBED)
    fewer = jax.tree.map(lambda leaf: leaf[1:], DATABASE)
    key = jax.random.key(0)
    with pytest.raises(InputError, match="calibrated"):
        system.learn(key, fewer)
    two = dd.deletion(PROBLEM.loss, DATABASE, [1, 2])
    with pytest.raises(InputError, match="edits_per_request"):
        deleting(system)(key, DATABASE, two, jnp.zeros(DIM))
